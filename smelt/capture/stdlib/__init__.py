"""What the machine does in place of functions of Python, the standard library and torch that cannot run on fakes.

Of Python: `class_functions.py` (`isinstance`, `class`), `attribute_functions.py` (`getattr`), `special_methods.py` (`abs`,
`str`, `operator.add`), `itertools_functions.py`, `symbolic_range_calls.py`, `descriptor_functions.py` (`property`),
`functools_wrappers.py` (`functools`), `eval_exec.py` (`exec`), `stack_frames.py` (`sys._getframe`),
`exception_functions.py`, `context_variables.py`, `copy_functions.py`, `random_functions.py` (`random`,
`numpy.random`), `locale_settings.py` (`strftime`), `output/` (`print`, `warnings`, `logging`). Of torch:
`capture/torch_calls/shape_functions.py` (`torch.broadcast_shapes`), `capture/torch_calls/tensor_methods.py`,
`capture/torch_calls/tensor_item.py` (`Tensor.item`), `capture/torch_calls/asserted_values.py` (`torch.equal`),
`capture/torch_calls/numpy_conversions.py` (`Tensor.numpy`), `capture/torch_calls/compiler_queries.py`,
`capture/torch_calls/torch_function_calls.py` (`super().__torch_function__`), `capture/torch_calls/function_modes.py`,
`capture/torch_calls/function_transforms.py` (`torch.func`), `capture/torch_calls/higher_order_operators.py` (flex
attention), `capture/torch_calls/control_flow.py` (`torch.cond`), `capture/torch_calls/optimizers.py`,
`capture/torch_calls/other_tracers.py` (`make_fx`), `capture/torch_calls/backend_flag_calls.py` (`sdpa_kernel`),
`autograd/` (custom functions, hooks, gradients). Methods of containers, such as `list.append`, are in
`capture/semantics/values/container_methods.py`.
"""
