"""What the native hook asks when a call matches no entry: the frame is captured, its graph compiled, an entry installed.

`compiler.py` is that callback; `attempts.py` decides what is tried in which order; `run.py` is one capture; `stages.py` and
`checks.py` lead from what it gives to an entry; `entries.py` keeps what is known of each function.
"""
