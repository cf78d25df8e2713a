"""Operators, containers, iteration and statements over values."""
