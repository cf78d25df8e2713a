"""Text that is known only when the compiled frame runs: what formatting a tensor gives.

A `Text` stands for such a string on the VM's stack: a native function (`str`, `format`, ...) and its arguments, in which a
`Shown` takes the place of each tensor. It can be joined, formatted, printed, logged, stored and returned; whatever would
look at its characters raises Unsupported. The compiled frame makes the real string after the graph has run. What always
holds: the text is that of the moment when it was made (a tensor that is written afterwards is copied before).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import torch

from smelt._native import isinstance
from smelt.capture.base.value_kinds import LEAF_TYPES
from smelt.errors import Unsupported
from smelt.graph.operator_effects import effects
from smelt.reasons import DATA_DEPENDENT, Reason
from smelt.torch_private import DisableTorchFunction, OpOverload, disabled_torch_function_impl, tensor_text
from smelt.tracing.fake.fake_tensor import FakeTensor, check_class
from smelt.tracing.record.trace import Trace


class Unreadable(Unsupported):
    """Something looks at the characters of a `Text`."""


def unreadable(what: str) -> Unsupported:
    """The refusal of a program that looks at the characters of a `Text`: `what` it does."""
    return Unreadable(Reason(DATA_DEPENDENT, what))


class Text:
    """`how(*args)`, a string, once the tensors in `args` are known."""

    __slots__ = ("args", "how")

    def __init__(self, how: Callable[..., str], *args: object) -> None:
        self.how = how
        self.args = args

    def __add__(self, other: object) -> object:
        return Text(joined, self, other) if isinstance(other, (str, Text)) else NotImplemented

    def __radd__(self, other: object) -> object:
        return Text(joined, other, self) if isinstance(other, str) else NotImplemented

    def __getattr__(self, name: str) -> object:
        raise unreadable(f"str.{name} of a tensor's text")


def _reads(name: str) -> Callable[..., object]:
    def refuse(self: Text, *args: object) -> object:
        raise unreadable(f"str.{name} of a tensor's text")

    return refuse


for _name in (
    "str", "repr", "format", "len", "iter", "getitem", "contains", "eq", "ne", "lt", "le", "gt", "ge", "hash", "mul",
    "rmul", "mod", "rmod", "bool", "int", "float", "index",
):  # fmt: skip
    setattr(Text, f"__{_name}__", _reads(f"__{_name}__"))


class Shown:
    """A tensor inside a `Text`, as it was when the text was made.

    `grad_fn` is the name of the node that gave it, None for one from outside, whose own is there when the frame runs. With
    `bare`, only its numbers are asked for.
    """

    __slots__ = ("_after", "_copy", "_trace", "bare", "fake", "grad_fn", "is_parameter")

    def __init__(self, trace: Trace, fake: FakeTensor, bare: bool = False) -> None:
        check_class(fake, "the text")
        with DisableTorchFunction():
            history = fake.grad_fn
        self.fake = fake
        self.bare = bare
        self.is_parameter = bool(getattr(fake, "_is_param", False))
        self.grad_fn = None if history is None or trace.is_input(fake) else _node_name(history)
        self._copy = fake.detach().clone()
        self._trace = trace
        self._after = len(trace.tape.entries)

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor itself; its copy if anything was written since."""
        written = any(
            isinstance(record.node.target, OpOverload) and effects(record.node.target).writes
            for record in self._trace.tape.entries[self._after :]
        )
        if written and not self.bare and self._trace.is_input(self.fake) and not self.fake.is_leaf:
            raise unreadable("the text of a tensor from outside, with a history, which is written afterwards")
        return self._copy if written else self.fake

    @property
    def is_plain(self) -> bool:
        """Whether formatting `tensor` itself gives the text."""
        needs = self.grad_fn is not None or (self.tensor is self._copy and self.fake.requires_grad)
        return self.bare or not (needs or (self.is_parameter and self.tensor is self._copy))


class _Node(Protocol):
    """A node of autograd's graph."""

    def name(self) -> str: ...


def _node_name(node: _Node) -> str:
    name = type(node).__name__
    return node.name().rsplit("::", 1)[-1] if name == "CppFunction" else name


class Verbatim:
    """An object of which only the text matters, which is known."""

    __slots__ = ("text",)

    def __init__(self, text: object) -> None:
        self.text = text  # a string, or a `Text`

    def __repr__(self) -> str:
        return str(self.text)

    def __format__(self, spec: str) -> str:
        return format(self.text, spec)


def join_all(parts: Sequence[object]) -> object:
    """The concatenation of strings and `Text`s."""
    return (
        Text(joined, *parts) if any(type(p) is Text for p in parts) else "".join(cast("Sequence[str]", parts))
    )


def binary(fn: Callable[..., object], left: object, right: object) -> object:
    """An operator of which at least one side is a `Text`: strings can be added to it."""
    if all(type(v) is Text or type(v) in LEAF_TYPES for v in (left, right)):
        return fn(left, right)
    raise unreadable("a tensor's text is compared")


# ------------------------------------------------------------------------------------------- in compiled frames


def joined(*parts: str) -> str:
    """The concatenation of strings."""
    return "".join(parts)


def separated(separator: str, *parts: str) -> str:
    """`separator.join(parts)`."""
    return separator.join(parts)


class _History:
    """`tensor.grad_fn` as the text shows it."""


class tensor(torch.Tensor):
    """A tensor whose text shows another `grad_fn` than it has; named as text names tensors."""

    __torch_function__ = disabled_torch_function_impl  # type: ignore[assignment]
    shown_history: object

    @property
    def grad_fn(self) -> object:  # type: ignore[override]
        """An object whose class has the name of the node that the text shows."""
        return self.shown_history


class Display:
    """Formats a tensor with the history and the type that it had."""

    __slots__ = ("_is_parameter", "_tensor")

    def __init__(
        self, value: torch.Tensor, grad_fn: str | None, requires_grad: bool, is_parameter: bool
    ) -> None:
        shown = value.detach().as_subclass(tensor)
        shown.shown_history = None if grad_fn is None else type(grad_fn, (_History,), {})()
        self._tensor = shown.requires_grad_(requires_grad)
        self._is_parameter = is_parameter

    def __repr__(self) -> str:
        return ("Parameter containing:\n" if self._is_parameter else "") + tensor_text(self._tensor)
