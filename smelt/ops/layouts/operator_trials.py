"""Trials of an operator on real tensors: on one element to see whether it has a kernel, on zeros (or the row's
`tried_on`) to see the layouts of its results."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from smelt.graph.operator_effects import Effects, effects
from smelt.graph.pytree import leaves, map_leaves
from smelt.ops.layouts.meta_layouts import CPU, META, to_meta, uninitialized
from smelt.ops.registry import row
from smelt.torch_private import META_KEY, OpOverload

aten = torch.ops.aten
_FEW = 1 << 16  # elements, at least as many as an operator that is tried on zeros may touch


def accepts(
    func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], device: torch.device = CPU
) -> bool:
    """Whether the operator runs on `device` with every dimension cut to one element. Raises RuntimeError if it has no
    kernel for the dtypes."""
    # Neither a division by zero nor an index out of range counts. On a GPU, where nothing checks divisors, the latter would
    # end the process's use of it.
    scales = row(func).scales
    for fill in _fills(func) if device == CPU else (row(func).tried_on,):
        try:
            func(
                *(_cut(a, fill, device, scales) for a in args),
                **{k: _cut(v, fill, device, scales) for k, v in kwargs.items()},
            )
            return True
        except NotImplementedError as error:
            raise RuntimeError(*error.args) from error
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if is_overflow(error):
                raise
            if row(func).needs_room:
                return True
    return False


def is_overflow(error: Exception) -> bool:
    """Whether torch reports that a number does not fit a dtype."""
    return "without overflow" in str(error)


def check_numbers(
    func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], filled: Any, device: torch.device = CPU
) -> None:
    """Raise the operator's error for a number that does not fit the dtype to which it is converted; shape functions
    ignore values. `filled`: its result."""
    arguments = (args[i] if i < len(args) else kwargs.get(name) for i, name in scalar_arguments(func))
    if all(
        number is None or (isinstance(number, (int, float)) and 0 <= number <= 127) for number in arguments
    ):
        return
    known = row(func)
    if known.filled is None:
        accepts(func, args, kwargs, device)
    else:  # of a single element, nothing is checked
        torch.full((2,), known.filled(*args), dtype=known.fits_in(filled.dtype, device))


@cache
def scalar_arguments(func: OpOverload) -> tuple[tuple[int, str], ...]:
    """(position, name) of the arguments that are typed Scalar."""
    arguments = enumerate(func._schema.arguments)
    return tuple((i, a.name) for i, a in arguments if str(a.type) in ("number", "Optional[number]"))


def check_refused(
    func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], device: torch.device = CPU
) -> None:
    """Raise the operator's error on real tensors of these sizes, whatever their values: a refusal that torch's shape
    function lacks. Not for operators whose errors depend on values, nor for large sizes. The trial runs on a CPU; a
    kernel that only a CPU lacks is no reason."""
    if func.namespace != "aten" or row(func).raises or not may_be_tried(effects(func)):
        return
    if _size(func, args, kwargs) > _FEW:
        return
    refusals = [_refusal(func, args, kwargs, fill) for fill in _fills(func)]
    if device != CPU and isinstance(refusals[0], NotImplementedError):
        return
    if None not in refusals and str(refusals[0]) == str(refusals[-1]):
        raise RuntimeError(*refusals[0].args) from refusals[0]  # type: ignore[union-attr]


def _fills(func: OpOverload) -> tuple[int, ...]:
    """The values on which the operator is tried: two numbers, as it may refuse one of them."""
    return tuple(dict.fromkeys((row(func).tried_on, 1)))


_untried = threading.local()  # `why`: an error that operators raise in place of being tried


@contextmanager
def not_tried(why: Exception | None) -> Iterator[None]:
    """Raise `why` if an operator would run on tensors of more than one element: sample sizes may be inconsistent,
    which kernels need not check."""
    before, _untried.why = getattr(_untried, "why", None), why
    try:
        yield
    finally:
        _untried.why = before


def _check_tried() -> None:
    why = getattr(_untried, "why", None)
    if why is not None:
        raise why


def _refusal(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], fill: int) -> Exception | None:
    _check_tried()
    real = map_leaves((list(args), kwargs), (torch.Tensor, torch.device), lambda v: _filled(v, fill, CPU))
    try:
        func(*real[0], **real[1])
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        return error
    return None


def _cut(value: Any, fill: int, device: torch.device, scales: bool) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.full([min(n, 1) for n in value.size()], fill, dtype=value.dtype, device=device)
    if scales and isinstance(value, (list, tuple, float)):
        return None if isinstance(value, float) else [1] * len(value)
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return [_cut(v, fill, device, scales) for v in value]
    return device if value == META and isinstance(value, torch.device) else value


def of_zeros(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Layouts of the results of `func` for zeros. NotImplemented if its shape function is not Python, a call could
    have effects or depend on data, the sizes are large, or the call raises."""
    return _tried_if_few(func, args, kwargs) if META_KEY in func.py_kernels else NotImplemented


def of_empty(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The same for operators on a tensor without elements; NotImplemented otherwise."""
    arguments = leaves((list(args), kwargs), torch.Tensor)
    return NotImplemented if all(t.numel() for t in arguments) else _tried_if_few(func, args, kwargs)


def _tried_if_few(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if not may_be_tried(effects(func)) or _size(func, args, kwargs) > _FEW:
        return NotImplemented
    try:
        return tried(func, args, kwargs)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return NotImplemented


def may_be_tried(info: Effects) -> bool:
    """Whether another run of the operator has no effect and the layouts of its results do not depend on values."""
    return not (
        info.random or info.view or info.data_dependent or info.dynamic_shape or info.changes_metadata
    )


def _size(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """A bound for the elements of the arguments and of the sizes that they state."""
    numbers = scalar_arguments(func)
    arguments = [a for i, a in enumerate(args) if all(i != position for position, _ in numbers)]
    arguments += [v for k, v in kwargs.items() if all(k != name for _, name in numbers)]
    size = 1
    for value in leaves(arguments, (torch.Tensor, int, float)):
        if isinstance(value, torch.Tensor):
            size *= max(value.numel(), 1)
        elif math.isfinite(value):
            size *= max(int(abs(value)), 1)
    return size


def tried(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], device: torch.device = CPU) -> Any:
    """Layouts of the results of `func` on `device` for zeros, as meta tensors; NotImplemented if it returns an
    argument that its schema does not declare."""
    _check_tried()
    real_args, real_kwargs = map_leaves(
        (list(args), kwargs), (torch.Tensor, torch.device), lambda v: _filled(v, row(func).tried_on, device)
    )
    out = func(*real_args, **real_kwargs)
    if not effects(func).writes:
        arguments = {id(v) for v in leaves((real_args, real_kwargs), torch.Tensor)}
        if any(id(v) in arguments for v in leaves(out, torch.Tensor)):
            return NotImplemented
    return to_meta(out)


def check_devices(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise the error of `func` for arguments (fakes) on these devices. Shape functions do not know which operators
    accept tensors of several devices, so the operator runs on zeros."""
    if may_be_tried(effects(func)):
        fill = row(func).tried_on
        real = map_leaves((list(args), kwargs), torch.Tensor, lambda v: _filled(v, fill, v.device))
        func(*real[0], **real[1])


def _filled(
    value: torch.Tensor | torch.device, fill: int, device: torch.device
) -> torch.Tensor | torch.device:
    if isinstance(value, torch.Tensor):
        return uninitialized(value, device).fill_(fill)
    return device if value == META else value
