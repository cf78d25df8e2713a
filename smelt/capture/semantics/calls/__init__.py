"""Calls, by the kind of the callable."""
