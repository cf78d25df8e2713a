"""Trying an operator on real tensors of a CPU: of one element to see whether it has a kernel, of zeros to see the layouts
of its results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.graph.effects import Effects, effects
from smelt.graph.tree import leaves, map_leaves
from smelt.ops.layouts.meta import CPU, META, to_meta, uninitialized
from smelt.ops.registry import row

aten = torch.ops.aten
_PYTHON = torch._C.DispatchKey.Meta  # among an operator's `py_kernels`: its shape function is Python
_FEW = 1 << 16  # elements, at least as many as an operator that is tried on zeros may touch


def accepts(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the operator runs on a CPU when every dimension is cut down to one element. Raises RuntimeError where it has
    no kernel for the dtypes."""
    for fill in (0, 1):  # neither a division by zero nor an index out of range counts
        try:
            func(*(_cut(a, fill) for a in args), **{k: _cut(v, fill) for k, v in kwargs.items()})
            return True
        except NotImplementedError as error:
            raise RuntimeError(*error.args) from error
        except (RuntimeError, ValueError, IndexError, TypeError):
            if row(func).needs_room:
                return True
    return False


def _cut(value: Any, fill: int) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.full([min(n, 1) for n in value.size()], fill, dtype=value.dtype, device=CPU)
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return [_cut(v, fill) for v in value]
    return CPU if value == META and isinstance(value, torch.device) else value


def of_zeros(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Layouts of what `func` returns for zeros. NotImplemented where its shape function is not Python, a call could have
    effects or depend on data, the sizes are large, or the call raises."""
    if _PYTHON not in func.py_kernels or not _may_be_tried(effects(func)):
        return NotImplemented
    if _size((*args, *kwargs.values())) > _FEW:
        return NotImplemented
    try:
        return tried(func, args, kwargs)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return NotImplemented


def _may_be_tried(info: Effects) -> bool:
    return not (
        info.random or info.view or info.data_dependent or info.dynamic_shape or info.changes_metadata
    )


def _size(values: Any) -> int:
    """A bound for the elements of the arguments and of what they describe: all their sizes multiplied."""
    size = 1
    for value in leaves(values, (torch.Tensor, int, float)):
        if isinstance(value, torch.Tensor):
            size *= max(value.numel(), 1)
        elif math.isfinite(value):
            size *= max(int(abs(value)), 1)
    return size


def tried(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Layouts of what `func` gives on real tensors of zeros, as meta tensors; NotImplemented if it gives an argument back
    that its schema does not name."""
    real_args, real_kwargs = map_leaves((list(args), kwargs), (torch.Tensor, torch.device), _zeros)
    out = func(*real_args, **real_kwargs)
    if not effects(func).writes:
        given = {id(v) for v in leaves((real_args, real_kwargs), torch.Tensor)}
        if any(id(v) in given for v in leaves(out, torch.Tensor)):
            return NotImplemented
    return to_meta(out)


def _zeros(value: torch.Tensor | torch.device) -> torch.Tensor | torch.device:
    if isinstance(value, torch.Tensor):
        return uninitialized(value).zero_()
    return CPU if value == META else value
