"""A simulated CUDA device for a torch without CUDA: see `cuda`."""
