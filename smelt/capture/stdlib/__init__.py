"""VM handlers for functions of Python and its standard library that cannot run on fakes.

Classes and attributes: `class_functions.py` (`isinstance`, `class`), `attribute_functions.py` (`getattr`),
`descriptor_functions.py` (`property`), `special_methods.py` (`abs`, `str`, `operator.add`). Functions and code:
`functools_wrappers.py` (`functools`), `eval_exec.py` (`exec`), `stack_frames.py` (`sys._getframe`),
`exception_functions.py`, `context_variables.py`. Values: `itertools_functions.py`, `symbolic_range_calls.py`,
`copy_functions.py`, `random_functions.py` (`random`, `numpy.random`), `locale_settings.py` (`strftime`),
`weak_references.py`. Output: `output/` (`print`, `warnings`, `logging`). Handlers of torch's functions are in
`capture/torch_calls/`; methods of containers, such as `list.append`, in `capture/semantics/values/container_methods.py`.
"""
