"""The names, besides builtins, that the source of a compiled frame may use."""

from __future__ import annotations

import collections
import functools
import math
import types

import numpy as np
import torch

from smelt.autograd.nested_results import nested_tensor, ragged_size, values_of
from smelt.autograd.wrapper_nodes import add_history, gradient_inputs, protect


def _as_instance(tensor: torch.Tensor, cls: type) -> torch.Tensor:
    """`tensor` itself as an instance of `cls`. It is not an alias, since other results are computed from `tensor`."""
    if type(tensor) is not cls:
        tensor.__class__ = cls
    return tensor


def _as_parameter(tensor: torch.Tensor, requires_grad: bool) -> torch.nn.Parameter:
    """A graph's result as the nn.Parameter that the user created; a torch-level graph returns one already."""
    return tensor if type(tensor) is torch.nn.Parameter else torch.nn.Parameter(tensor, requires_grad)


# The functions that create a graph input from an object of the environment, by kind of source.
CONVERSIONS = {"array": "from_numpy", "values": "values_of"}
# Packages above add their own names by `provide`.
FRAME_NAMES: dict[str, object] = {
    "OrderedDict": collections.OrderedDict,
    "defaultdict": collections.defaultdict,
    "deque": collections.deque,
    "partial": functools.partial,
    "MethodType": types.MethodType,
    "MappingProxyType": types.MappingProxyType,
    "GenericAlias": types.GenericAlias,
    "SimpleNamespace": types.SimpleNamespace,
    "as_instance": _as_instance,
    "as_parameter": _as_parameter,
    "add_history": add_history,
    "gradient_inputs": gradient_inputs,
    "protect": protect,
    "values_of": values_of,
    "nested_tensor": nested_tensor,
    "ragged_size": ragged_size,
    "CellType": types.CellType,
    "FunctionType": types.FunctionType,
    "set_attribute": object.__setattr__,
    "set_type_attribute": type.__setattr__,
    "delete_attribute": object.__delattr__,
    "delete_type_attribute": type.__delattr__,
    "torch": torch,
    "from_numpy": torch.from_numpy,
    "numpy_dtype": np.dtype,
    "from_bytes": np.frombuffer,
    "math": math,
    "float32": np.float32,
    **{f.__name__: f for f in (abs, float, int, max, min, round)},
}


def provide(**names: object) -> None:
    """Add names. Raises ValueError for a name that already has another object, since written source refers to that one."""
    for name, value in names.items():
        if FRAME_NAMES.setdefault(name, value) is not value:
            raise ValueError(f"two objects are called {name} in compiled frames")
