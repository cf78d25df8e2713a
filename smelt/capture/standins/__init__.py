"""Values on the machine's stack that stand for what is known at run time only: NumPy arrays, texts of tensors."""
