"""What the machine does in place of functions of Python, the standard library and torch that cannot run on fakes.

Of Python: `classes.py` (`isinstance`, `class`), `attribute_functions.py` (`getattr`), `special_methods.py` (`abs`,
`str`, `operator.add`), `iterators.py`, `ranges.py`, `descriptors.py` (`property`), `function_wrappers.py`
(`functools`), `evaluation.py` (`exec`), `stack_frames.py` (`sys._getframe`), `exceptions.py`,
`context_variables.py`, `copying.py`, `random_draws.py` (`random`, `numpy.random`), `local_settings.py` (`strftime`),
`output/` (`print`, `warnings`, `logging`). Of torch: `shapes.py` (`torch.broadcast_shapes`),
`tensor_methods.py`, `tensor_numbers.py` (`Tensor.item`), `assumed_values.py` (`torch.equal`),
`numpy_conversions.py` (`Tensor.numpy`), `compiler_queries.py`, `torch_function.py` (`super().__torch_function__`),
`function_modes.py`, `function_transforms.py` (`torch.func`), `higher_order_operators.py` (flex attention),
`control_flow.py` (`torch.cond`), `optimizers.py`, `other_tracers.py` (`make_fx`), `process_settings.py` (`sdpa_kernel`),
`autograd/` (custom functions, hooks, gradients). Methods of containers, such as `list.append`, are in
`protocol/containers.py`.
"""
