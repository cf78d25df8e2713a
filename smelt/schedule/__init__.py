"""From a program to a `Schedule` (`schedule`): which tensors are stored (`inline`), which loops run together (`groups`,
asked by `fuse`), and the kernels that come of it (`kernels`, `nests`, `spaces`), put in order by `build`."""
