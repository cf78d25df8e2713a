"""Guards (`guard.py`): facts about objects from outside that decided a capture, so that later calls are checked for them.

A source (`source.py`) says where such an object is found. `tree_layout.py` lays guards out as the native tree;
`read_source.py` and `guard_evaluation.py` evaluate them in Python, `guard_printer.py` and `guard_failures.py` write
them for people.
"""
