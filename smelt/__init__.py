"""smelt: a PyTorch compiler that is small, instant and honest."""
