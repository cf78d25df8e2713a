"""Shape functions: metadata of an operator's results for meta tensors, without torch's Python shape functions where
possible.

torch registers Python functions over the C++ shape functions of most operators. They take 0.1 to 1 ms, and the first
of them that runs in a process imports torch's own compiler and sympy, which takes a second. `on_metas` therefore asks,
in this order:

1. torch's C++ shape functions (`native/operators/shape_functions.cpp`); 2. the `layout` of the operator's row, for operators
that models use and that have none; 3. the operator itself on real tensors of zeros, if they are few and it would
otherwise be a Python function; 4. torch's function.

The answers of 2 and 3 are those of a CPU. On a GPU the operator itself runs instead, on zeros of these sizes: the
library, and so the layout of results, differs from device to device and from version to version. A row's `layout_on`
is asked first: cuDNN builds some convolutions at their first call, for up to a second. For symbolic sizes the operator
runs once, for those of the call: the difference to a CPU's layout (`observed_layouts.py`) holds for other sizes, for
which a GPU may have no memory.

Shape functions do not know for which dtypes a device has kernels, and on a CPU whether a number fits a dtype: after 1,
and with numbers after 2, the operator is tried on tensors of one element; before 4 on real ones, whose refusal counts.
If a row says `run_on_zeros`, 2 and 3 come first. If a layout returns NotImplemented, or an operator refuses zeros, the
next in the list is asked.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import torch

from smelt.graph.operator_effects import effects
from smelt.ops.layouts.meta_layouts import CPU, elements, of_cpp
from smelt.ops.layouts.observed_layouts import Seen, compared
from smelt.ops.layouts.operator_trials import (
    accepts,
    check_devices,
    check_numbers,
    check_refused,
    is_overflow,
    may_be_tried,
    not_tried,
    of_empty,
    of_zeros,
    tried,
)
from smelt.ops.registry import row
from smelt.torch_private import OpOverload

# Namespaces of torch's own: an operator of the user's runs where the program runs it, and nowhere else.
_MANY = 1 << 28  # elements, for which a GPU may have no memory beside what the program has
_TORCH = frozenset({"aten", "prims", "mkldnn", "quantized"})


class Accepted:
    """Whether an operator runs on one element of each of its arguments. Of calls that differ only in sizes, one is
    tried."""

    def __init__(self) -> None:
        self._answer: bool | None = None

    def __call__(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        if self._answer is None:
            self._answer = accepts(func, args, kwargs)
        return self._answer


def on_metas(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device,
    accepted: Accepted | None = None,
) -> Any:
    """The result of `func` for meta tensors that represent tensors on `device`. Raises what `func` raises."""
    if func.namespace == "smelt" and row(func).layout is not None:  # no device decides
        return of_row(func, args, kwargs)
    if device.type == "cuda" and torch.cuda.is_available():
        return _on_gpu(func, args, kwargs, device)
    cpu = device == CPU
    if cpu and row(func).run_on_zeros:
        out = of_row(func, args, kwargs)
        out = tried(func, args, kwargs) if out is NotImplemented else out
        if out is not NotImplemented:
            return out
    try:
        out = of_cpp(func, args, kwargs)
    except (RuntimeError, IndexError):
        if not cpu:
            raise
        out = of_empty(func, args, kwargs)  # what a shape function refuses an operator may take (`index_add`)
        if out is NotImplemented:
            raise
        return out
    if out is not NotImplemented and (not cpu or (accepted or accepts)(func, args, kwargs)):
        if cpu:
            check_numbers(func, args, kwargs, out)
        return out
    if cpu and out is NotImplemented:
        out = of_row(func, args, kwargs)
        if out is not NotImplemented:
            check_numbers(func, args, kwargs, out)
            return out
        out = of_zeros(func, args, kwargs)
        if out is not NotImplemented:
            return out
    if cpu:
        check_refused(func, args, kwargs)
    return func(*args, **kwargs)


def _on_gpu(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], device: torch.device) -> Any:
    out = of_cpp(func, args, kwargs)
    if out is not NotImplemented and accepts(func, args, kwargs, device):
        check_numbers(func, args, kwargs, out, device)
        return out
    if out is NotImplemented and effects(func).random:
        out = of_row(func, args, kwargs)
        if out is not NotImplemented:
            return out
    elif out is NotImplemented and (known := _of_row_on(device, func, args, kwargs)) is not NotImplemented:
        check_numbers(func, args, kwargs, known, device)
        return known
    elif (
        out is NotImplemented
        and func.namespace in _TORCH
        and may_be_tried(effects(func))
        and not _gives_values(func)
    ):
        try:
            return tried(func, args, kwargs, device)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if is_overflow(error):
                raise
    check_refused(func, args, kwargs, device)  # zeros may be what it refuses
    return func(*args, **kwargs)


def seen_on_gpu(
    func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], device: torch.device, fixed: Set[int]
) -> Seen | None:
    """The difference between an operator's result layouts on a GPU and the declared ones of a CPU, observed by running
    it for these meta tensors. `fixed`: sizes that are the same at each call. None if nothing follows for other sizes.
    """
    info = effects(func)
    if func.namespace != "aten" or info.random or not may_be_tried(info) or _gives_values(func):
        return None
    if elements((args, kwargs)) > _MANY:
        return None
    if of_cpp(func, args, kwargs) is not NotImplemented:
        return None
    if _of_row_on(device, func, args, kwargs) is not NotImplemented:
        return None
    try:
        found, said = tried(func, args, kwargs, device), on_metas(func, args, kwargs, CPU)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None
    return None if found is NotImplemented else compared(found, said, fixed)


def _of_row_on(device: torch.device, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    function = row(func).layout_on
    return NotImplemented if function is None else function(device, *args, **kwargs)


def _gives_values(func: OpOverload) -> bool:
    """Whether a result is not a tensor: it then depends on these tensors rather than on layouts."""
    return any("Tensor" not in str(r.type) for r in func._schema.returns)


def of_row(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The answer of the operator's row; NotImplemented if it has none."""
    function = row(func).layout
    return NotImplemented if function is None else function(*args, **kwargs)


__all__ = [
    "Accepted",
    "check_devices",
    "not_tried",
    "of_cpp",
    "of_row",
    "of_zeros",
    "on_metas",
    "seen_on_gpu",
    "tried",
]
