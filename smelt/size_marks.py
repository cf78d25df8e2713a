"""What a program says of the sizes of its tensors: that a dimension will have many sizes, or that it keeps the one it has.

A mark is an attribute of the tensor. Those that torch's `mark_dynamic`, `maybe_mark_dynamic`, `mark_unbacked` and
`mark_static` leave on tensors are read too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_ATTRIBUTE = "_smelt_sizes"
_TORCHS = ("_dynamo_dynamic_indices", "_dynamo_unbacked_indices")
_TORCHS_HINTS = ("_dynamo_weak_dynamic_indices", "_dynamo_dynamic_range", "_dynamo_static_indices")


@dataclass(frozen=True)
class Mark:
    """Whether a size is to be symbolic, and the least and largest that it will be, where that is known. `is_hint`: the
    program may specialize the size. `name`: that of a dimension of an exported program; sizes with other names have symbols
    of their own."""

    dynamic: bool
    min: int | None = None
    max: int | None = None
    is_hint: bool = False
    name: str = ""


def mark_dynamic(
    tensor: torch.Tensor, dim: int | Sequence[int], *, min: int | None = None, max: int | None = None
) -> None:
    """Says that calls will bring tensors of many sizes along `dim`: it is a symbol from the first compile of a function that
    is given `tensor`, also where it is a parameter. Call it before the compiled function.

    A call whose program works for one size only raises `smelt.errors.MarkedSizeError`. A size of 0 has an entry of its own,
    and so has one of 1 unless `min` is 1 and the program does the same for it.

    Args:
        tensor: an argument of a compiled function, or what it reads.
        dim: one or several dimensions; negative ones count from the end.
        min, max: the sizes that there will be, both included. The compiled program may rely on them, so other sizes are
            another entry.

    Raises:
        TypeError: `tensor` is no tensor, or a dimension or bound no int.
        IndexError: `tensor` has no such dimension.
        ValueError: `min` is negative or above `max`, or the size that `tensor` has is outside of them.
    """
    dims = _checked("mark_dynamic", tensor, dim)
    _check_bounds(tensor, dims, min, max)
    _put(tensor, dims, Mark(True, min, max))


def mark_static(tensor: torch.Tensor, dim: int | Sequence[int] | None = None) -> None:
    """Says that the size along `dim` (None: along all dimensions) is a number in each entry, also when it is seen to change.

    Args and errors are those of `mark_dynamic`.
    """
    every = range(tensor.dim()) if dim is None and _is_tensor(tensor) else ()
    dims = _checked("mark_static", tensor, tuple(every) if dim is None else dim)
    _put(tensor, dims, Mark(False))


# In a compiled function they break the graph: what they leave on a tensor is for others to see.
mark_dynamic.__smelt_disable__ = mark_static.__smelt_disable__ = True  # type: ignore[attr-defined]


def marks_of(tensor: torch.Tensor) -> Mapping[int, Mark]:
    """The marks of a tensor by dimension: smelt's own, else torch's."""
    state = object.__getattribute__(tensor, "__dict__")
    if not state:
        return {}
    found = dict.fromkeys(state.get("_dynamo_weak_dynamic_indices", ()), Mark(True, is_hint=True))
    found |= {d: Mark(True) for name in _TORCHS for d in state.get(name, ())}
    for stated in state.get("_dynamo_dynamic_range", ()):
        found[stated.dim] = Mark(True, stated.min, stated.max)
    found |= dict.fromkeys(state.get("_dynamo_static_indices", ()), Mark(False))
    return found | state.get(_ATTRIBUTE, {})


@contextmanager
def marked(marks: Sequence[tuple[torch.Tensor, Mapping[int, Mark]]]) -> Iterator[None]:
    """Within the context, these marks and no others are on the tensors."""
    names = (_ATTRIBUTE, *_TORCHS, *_TORCHS_HINTS)
    states = [object.__getattribute__(tensor, "__dict__") for tensor, _ in marks]
    earlier = [{name: state.pop(name) for name in names if name in state} for state in states]
    try:
        for state, (_, of_tensor) in zip(states, marks):
            state[_ATTRIBUTE] = dict(of_tensor)
        yield
    finally:
        for state, before in zip(states, earlier):
            state.pop(_ATTRIBUTE, None)
            state.update(before)


def _put(tensor: torch.Tensor, dims: Sequence[int], mark: Mark) -> None:
    state = object.__getattribute__(tensor, "__dict__")
    state[_ATTRIBUTE] = state.get(_ATTRIBUTE, {}) | dict.fromkeys(dims, mark)


def _is_tensor(value: object) -> bool:
    import torch  # noqa: PLC0415 (`import smelt` does not import torch: `smelt --help` is quick)

    return issubclass(type(value), torch.Tensor)


def _checked(name: str, tensor: torch.Tensor, dim: int | Sequence[int]) -> tuple[int, ...]:
    """The dimensions, counted from the front."""
    if not _is_tensor(tensor):
        raise TypeError(f"smelt.{name}: tensor must be a torch.Tensor, got {type(tensor).__name__}")
    dims = (dim,) if isinstance(dim, int) else tuple(dim) if isinstance(dim, Sequence) else (dim,)
    rank = tensor.dim()
    for d in dims:
        if not isinstance(d, int) or isinstance(d, bool):
            raise TypeError(f"smelt.{name}: dim must be an int or several, got {d!r}")
        if not -rank <= d < rank:
            raise IndexError(f"smelt.{name}: dim {d} of a tensor of {rank} dimensions")
    return tuple(d % rank for d in dims)


def _check_bounds(tensor: torch.Tensor, dims: Sequence[int], least: int | None, most: int | None) -> None:
    for name, bound in (("min", least), ("max", most)):
        if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool)):
            raise TypeError(f"smelt.mark_dynamic: {name} must be an int or None, got {bound!r}")
    if least is not None and least < 0:
        raise ValueError(f"smelt.mark_dynamic: min must be at least 0, got {least}")
    if least is not None and most is not None and least > most:
        raise ValueError(f"smelt.mark_dynamic: min must be at most max, got {least} and {most}")
    for d in dims:
        size = tensor.shape[d]
        if (least is not None and size < least) or (most is not None and size > most):
            raise ValueError(
                f"smelt.mark_dynamic: dim {d} has size {size}, which is not from {least} to {most}"
            )
