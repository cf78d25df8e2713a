"""Guards (`guard.py`): facts about objects from outside that decided a capture, so that later calls are checked for them.

An origin (`origin.py`) says where such an object is found. `tree_layout.py` lays guards out as the native tree;
`accessors.py` and `evaluate.py` evaluate them in Python, `printer.py` and `explain.py` write them for people.
"""
