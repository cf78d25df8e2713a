"""A joint graph becomes a forward and a backward (`partition.py`) that keep as few bytes as possible between them
(`min_cut_problem.py`, `min_cut.py`), and both become what autograd knows as a node (`compile_joint.py`)."""
