"""What the native hook asks when a call matches no entry: the frame is captured, its graph compiled, an entry installed.

`frame_compiler.py` is that callback; `capture_attempts.py` decides what is tried in which order; `capture_frame.py` is
one capture; `compile_frame.py` and `guard_tree_checks.py` lead from what it gives to an entry; `cache_entries.py`
keeps what is known of each function.
"""
