"""Symbolic numbers and sizes in a trace."""
