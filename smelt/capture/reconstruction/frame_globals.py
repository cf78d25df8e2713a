"""What the source of a compiled frame may use by name, besides builtins."""

from __future__ import annotations

import collections
import functools
import math
import types

import numpy as np
import torch


def _as_instance(given: torch.Tensor, cls: type) -> torch.Tensor:
    """`given` itself, which nobody has seen yet, and not an alias: other results are computed from it."""
    if type(given) is not cls:
        given.__class__ = cls
    return given


def _as_parameter(given: torch.Tensor, requires_grad: bool) -> torch.nn.Parameter:
    """What a graph gave where the user made an nn.Parameter: a torch-level graph has made it one."""
    return given if type(given) is torch.nn.Parameter else torch.nn.Parameter(given, requires_grad)


# Packages above add names of their own: `provide`.
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
    """Adds names. One that is there already would be taken for the other by the source that was written with it."""
    for name, what in names.items():
        if FRAME_NAMES.setdefault(name, what) is not what:
            raise ValueError(f"two objects are called {name} in compiled frames")
