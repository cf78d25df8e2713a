"""Autotuning: matrix products and attention on a GPU, generated where they are measured to be faster than ATen's."""
