"""Calls of torch functions that the VM implements itself, since recording them as one operator would be wrong or impossible.

- Values: `tensor_item.py` and `unbacked_reads.py` (`item()`, `int()`, `tolist()`), `asserted_values.py` and
  `value_checks.py` (results and checks that a compiled graph verifies), `tensor_constructors.py`, `tensor_methods.py`,
  `shape_functions.py`, `storages.py`, `attention_parameters.py`, `numpy_conversions.py`.
- Autograd: `autograd/` (custom functions, checkpoints, hooks, `backward()`), `optimizers.py`, `function_transforms.py`
  (`torch.func`).
- Higher-order operators: `higher_order_operators.py` and `control_flow.py`, whose branches and loop bodies
  `subgraph_capture.py` captures and `subgraph_nodes.py` records; `triton_kernels.py`.
- Dispatch and settings: `torch_function_calls.py`, `function_modes.py`, `backend_flag_calls.py`, `compiler_queries.py`,
  `other_tracers.py`.
"""
