"""Programs of lazy tensors (`lazy_tensor.py`), which lowerings build with `lowering_builder.py` and `loop_values.py`,
and kernels (`kernel_ir.py`) with their verifier, printer and reference interpreter."""
