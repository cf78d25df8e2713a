"""Expressions of symbolic sizes and numbers, their bounds and sample values."""
