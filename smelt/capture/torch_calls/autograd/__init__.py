"""What autograd keeps with tensors and does through Python: custom functions, checkpoints, hooks, gradients, `.grad`."""
