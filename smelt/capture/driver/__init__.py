"""The driver: at a cache miss it captures the frame, compiles the graph and installs an entry.

`frame_compiler.py` is the callback of the native hook; `capture_attempts.py` decides the order of attempts;
`capture_frame.py` is one capture; `compile_frame.py` and `guard_tree_checks.py` turn its result into an entry;
`cache_entries.py` holds the entries and the compilation state of each function.
"""
