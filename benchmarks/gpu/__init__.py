"""What smelt, eager and torch.compile do on a GPU: the ten models, the bandwidth of kernels, the cost of a call.

docs/gpu.md says how to run each.
"""
