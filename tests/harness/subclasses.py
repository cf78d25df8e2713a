"""Subclasses of tensors that several tests use."""

import torch
from torch import nn


class Plain(torch.Tensor):
    """A subclass without behaviour."""


class Marked(nn.Parameter):
    """A parameter with a type of its own."""


class Logged(torch.Tensor):
    """Notes the functions that are called with it."""

    calls: list = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(getattr(func, "__name__", "?"))
        return super().__torch_function__(func, types, args, kwargs or {})
