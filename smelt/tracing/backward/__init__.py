"""The recorded backward and the joint graph.

`record_backward.py` has autograd compute gradients on fakes after the forward, so that the dispatch mode records the
backward on the same tape. `joint_builder.py` extracts the joint graph (`joint.py`) from the functional graph of both.
The other modules analyze autograd's graph: what eager saves (`shared_saves.py`), which graphs were freed
(`freed_graphs.py`), gradient flags (`grad_flags.py`), custom functions (`custom_function_backward.py`), and where the
torch-level graph has the same tensors (`torch_level_index.py`).
"""
