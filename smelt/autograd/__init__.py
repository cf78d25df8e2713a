"""A joint graph becomes a forward and a backward (`partition.py`) that keep as few bytes as possible between them
(`cut_problem.py`, `cut.py`), and both become what autograd knows as a node (`compile.py`)."""
