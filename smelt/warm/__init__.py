"""Warm starts: entries that an earlier process compiled, found on disk by their code and guards (docs/warm-starts.md).

Finding an entry imports neither capture nor code generation. Only a compilation imports `keep_entry.py`,
which stores entries.
"""
