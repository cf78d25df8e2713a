"""Products on a GPU, generated where that was measured to be faster than ATen's call and the kernels around it."""
