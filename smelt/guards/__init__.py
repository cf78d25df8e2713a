"""Guards (`guard.py`): facts about the captured environment that decided a capture and that later calls must satisfy.

A source (`source.py`) is the path to an object. `guard_kinds.py` has one class per kind of guard, which evaluates and prints
it; `tree_layout.py` lays guards out as the native tree; `guard_failures.py` explains why a call fails one.
"""
