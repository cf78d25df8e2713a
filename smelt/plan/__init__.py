"""What a compiled graph does at run time, as data: steps (`steps.py`) with their verifier, printer and byte form, and the
machine code that they name (`machine_code.py`).

`build_plan.py` turns a schedule and its launches into steps. It finds the buffer that owns each memory (`buffer_roots.py`),
the end of each lifetime (`register_liveness.py`), arena offsets (`arena_allocation.py`) and launches that may run in
parallel (`parallel_launches.py`); `plan_device.py` holds what it needs to know of the device. `plan_template.py` does the
same for symbolic sizes. `executable_plan.py` hands a plan to `smelt._native.Plan`, which runs it.
"""
