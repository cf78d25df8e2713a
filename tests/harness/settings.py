"""Settings of torch that a test must not leave behind."""

import torch

from smelt.graph.torch_settings import autocast_depth


def close_autocasts() -> int:
    """How many autocasts were left open (less than 0: closed more than once). None is afterwards, and nothing is in the
    cache of cast weights, which would answer later tests."""
    depth = autocast_depth()
    for _ in range(-depth):
        torch.autocast_increment_nesting()
    for _ in range(depth):
        torch.autocast_decrement_nesting()
    torch.set_autocast_enabled("cpu", False)
    torch.clear_autocast_cache()
    return depth
