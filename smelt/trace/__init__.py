"""Fake tensors and the recording of what happens to them."""
