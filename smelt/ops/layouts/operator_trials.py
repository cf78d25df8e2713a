"""Trying an operator on real tensors of a device: of one element to see whether it has a kernel, of zeros (or of what
`tried_on` of its row says) to see the layouts of its results."""

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
    """Whether the operator runs on `device` when every dimension is cut down to one element. Raises RuntimeError where it
    has no kernel for the dtypes."""
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
    """Whether torch says that a number does not fit a dtype."""
    return "without overflow" in str(error)


def check_numbers(
    func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], filled: Any, device: torch.device = CPU
) -> None:
    """Raises what the operator raises for a number that does not fit the dtype that it is converted to; shape functions do
    not look at numbers. `filled`: what it returns."""
    given = (args[i] if i < len(args) else kwargs.get(name) for i, name in scalar_arguments(func))
    if all(number is None or (isinstance(number, (int, float)) and 0 <= number <= 127) for number in given):
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
    """Raises what the operator raises on real tensors of the given sizes, whatever they hold: a refusal that torch's shape
    function leaves out. Not for operators whose errors depend on values, nor for large sizes. It is asked of a CPU, which
    is no reason where only that has no kernel."""
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
    """What tensors hold on which the operator is tried: as values may be what it refuses, two numbers."""
    return tuple(dict.fromkeys((row(func).tried_on, 1)))


_untried = threading.local()  # `why`: an error that operators raise in place of being tried


@contextmanager
def not_tried(why: Exception | None) -> Iterator[None]:
    """Raises `why` where an operator would be run, but on tensors of one element: sizes that nobody gave may not go
    together, which kernels need not check."""
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
    """Layouts of what `func` returns for zeros. NotImplemented where its shape function is not Python, a call could have
    effects or depend on data, the sizes are large, or the call raises."""
    return _tried_if_few(func, args, kwargs) if META_KEY in func.py_kernels else NotImplemented


def of_empty(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The same where a tensor has no elements, of any operator; NotImplemented elsewhere."""
    given = leaves((list(args), kwargs), torch.Tensor)
    return NotImplemented if all(t.numel() for t in given) else _tried_if_few(func, args, kwargs)


def _tried_if_few(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if not may_be_tried(effects(func)) or _size(func, args, kwargs) > _FEW:
        return NotImplemented
    try:
        return tried(func, args, kwargs)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return NotImplemented


def may_be_tried(info: Effects) -> bool:
    """Whether running the operator once more changes nothing and its results' layouts depend on no values."""
    return not (
        info.random or info.view or info.data_dependent or info.dynamic_shape or info.changes_metadata
    )


def _size(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """A bound for the elements of the arguments and of what they describe: all their sizes multiplied."""
    numbers = scalar_arguments(func)
    given = [a for i, a in enumerate(args) if all(i != position for position, _ in numbers)]
    given += [v for k, v in kwargs.items() if all(k != name for _, name in numbers)]
    size = 1
    for value in leaves(given, (torch.Tensor, int, float)):
        if isinstance(value, torch.Tensor):
            size *= max(value.numel(), 1)
        elif math.isfinite(value):
            size *= max(int(abs(value)), 1)
    return size


def tried(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], device: torch.device = CPU) -> Any:
    """Layouts of what `func` gives on `device` for zeros, as meta tensors; NotImplemented if it gives an argument back that
    its schema does not name."""
    _check_tried()
    real_args, real_kwargs = map_leaves(
        (list(args), kwargs), (torch.Tensor, torch.device), lambda v: _filled(v, row(func).tried_on, device)
    )
    out = func(*real_args, **real_kwargs)
    if not effects(func).writes:
        given = {id(v) for v in leaves((real_args, real_kwargs), torch.Tensor)}
        if any(id(v) in given for v in leaves(out, torch.Tensor)):
            return NotImplemented
    return to_meta(out)


def check_devices(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raises what `func` raises for tensors on the devices that its arguments (fakes) say they are on. Shape functions do
    not know which operators take tensors of several devices, so it is run on zeros."""
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
