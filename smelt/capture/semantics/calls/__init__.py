"""Calls, by the type of the callable."""
