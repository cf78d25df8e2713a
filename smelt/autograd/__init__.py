"""Autograd ahead of time: a joint graph is partitioned into a forward and a backward (`partition.py`) that save as few
bytes as possible between them (`min_cut_problem.py`, `min_cut.py`), and both become one autograd node
(`compile_joint.py`)."""
