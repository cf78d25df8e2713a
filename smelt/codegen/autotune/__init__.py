"""Products and attention on a GPU, generated where that was measured to be faster than ATen's calls and kernels."""
