"""Autograd calls and state of tensors: custom functions, checkpoints, hooks, gradients, `backward()`, `.grad`."""
