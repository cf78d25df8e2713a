"""The call drops the holder of an object, and reads what the callback of a weak reference to that object did."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import smelt

LOG: list[str] = []


class Thing:
    pass


class Slots:
    __slots__ = ("__weakref__", "held")


class Box:
    def __init__(self, held: object) -> None:
        self.held = held
        self.items = {"key": held}


TARGETS: dict[str, Callable[[], object]] = {
    "object": Thing,
    "slots": Slots,
    "tensor": lambda: torch.ones(3),
    "parameter": lambda: nn.Parameter(torch.ones(3)),
    "function": lambda: lambda: 1,
}


class Method:
    def __init__(self, held: object) -> None:
        self.held = held

    def method(self) -> None:
        pass


class Holds(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, held: object) -> torch.Tensor:
        ctx.held = held
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        return g * 2, None


def itself(held: object) -> object:
    return held


def attribute_of_a_tensor(held: object) -> object:
    x = torch.ones(2)
    x.held = held  # type: ignore[attr-defined]
    return x


def metadata_of_a_node(held: object) -> object:
    y = torch.ones(3, requires_grad=True).exp()
    y.grad_fn.metadata["held"] = held  # type: ignore[union-attr]
    return y


def context_of_a_function(held: object) -> object:
    return Holds.apply(torch.ones(3, requires_grad=True), held)


def hook(held: object) -> object:
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda g: None if held else None)
    return x


def view(held: object) -> object:
    return held[:1] if isinstance(held, torch.Tensor) else [held]


def slot(held: object) -> object:
    slots = Slots()
    slots.held = held  # type: ignore[attr-defined]
    return slots


def closure(held: object) -> object:
    return lambda: held


def default(held: object) -> object:
    def fn(value: object = held) -> object:
        return value

    return fn


def partial(held: object) -> object:
    return functools.partial(print, held)


def method(held: object) -> object:
    return Method(held).method


def generator(held: object) -> object:
    def numbers(held: object) -> Iterator[object]:
        yield 1
        yield held

    values = numbers(held)
    next(values)
    return values


def iterator(held: object) -> object:
    return iter([held])


HOLDERS = (
    itself, attribute_of_a_tensor, metadata_of_a_node, context_of_a_function, hook, view, slot,
    closure, default, partial, method, generator, iterator,
)  # fmt: skip


def setting(x, box):
    y = x.sin()
    box.held = None
    LOG.append("later")
    return y.cos(), list(LOG)


def deleting(x, box):
    y = x.sin()
    del box.items["key"]
    LOG.append("later")
    return y.cos(), list(LOG)


def seen(run: Callable[..., Any], make: Callable[[], object], hold: Callable[[object], object]) -> list[str]:
    LOG.clear()
    target = make()
    reference = weakref.ref(target, lambda _: LOG.append("gone"))
    box = Box(hold(target))
    if run.__name__ == "setting":
        del box.items
    else:
        del box.held
    del target
    assert reference() is not None
    result: list[str] = run(torch.ones(3), box)[1]
    return result


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("hold", HOLDERS)
@pytest.mark.parametrize("fn", [setting, deleting])
def test_what_is_dropped_is_gone_for_the_rest_of_the_call(fn, hold, target):
    # a function of its own: equal compilations share entries, and one is not for holders without callbacks
    own = types.FunctionType(fn.__code__.replace(co_name=fn.__name__), globals(), fn.__name__)
    compiled = smelt.compile(own)
    want = seen(own, TARGETS[target], hold)
    assert want == ["gone", "later"]
    assert [seen(compiled, TARGETS[target], hold) for _ in range(2)] == [want] * 2
