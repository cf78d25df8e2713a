"""From a lowered program to a `Schedule` (`schedule.py`). `inlining.py` chooses the tensors that get loops,
`fusion.py` the loops that fuse, `kernel_assembly.py` builds the kernels, and `build_schedule.py` orders the items;
`schedule_program.py` calls them."""
