"""Plain Python versions of native functions that call Python back; the VM interprets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def reversed_sequence(obj: Any) -> Iterator[Any]:
    for i in range(len(obj) - 1, -1, -1):
        yield obj[i]


def iterate_sequence(obj: Any) -> Iterator[Any]:
    """The iterator of an object with `__getitem__` only."""
    i = 0
    while True:
        try:
            value = obj[i]
        except IndexError:
            return
        yield value
        i += 1


class FunctionContext:
    """`ctx` of a torch.autograd.Function when no gradient will be asked."""

    def __init__(self) -> None:
        self.needs_input_grad: tuple[bool, ...] = ()
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None: ...

    def mark_dirty(self, *tensors: Any) -> None: ...

    def mark_non_differentiable(self, *tensors: Any) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...


def apply_function(forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return forward(FunctionContext(), *args, **kwargs)
