"""Recording of one run of the user's code at two levels.

`Trace` (`trace.py`) pushes a function mode (`function_mode.py`), which sees torch-level calls above autograd, and a
dispatch mode (`dispatch_mode.py`), which sees ATen operators beneath it. The recorders append nodes to the `Tape`:
`torch_call_recorder.py`, `aten_call_recorder.py` with the per-operator rules of `recording_rules.py`,
`opaque_call_recorder.py` for calls recorded as one node, and `user_kernel_recorder.py` for Triton kernels.
`finish_trace.py` builds the graphs of `Traced`.

Every aten node names the torch-level node that caused it (`source`), and a fake names the nodes that produced it.
"""
