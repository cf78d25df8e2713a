"""Fake tensors: metadata, aliases and version counters without data."""
