"""Strings that exist only when the compiled frame runs: formatted tensors.

A `TextProxy` is the proxy of such a string: a native function (`str`, `format`, ...) and its arguments, with a
`FormattedTensor` for each tensor. It can be joined, formatted, printed, logged, stored and returned; reading its
characters raises Unsupported. The compiled frame creates the real string after the graph has run. Invariant: the text
shows the tensor as it was when the text was created (a tensor that is written later is copied first).
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
    """The program reads the characters of a `TextProxy`, or an object that changes from call to call. `values`: the proxies
    that it reads, if known."""

    def __init__(self, reason: Reason, *values: object) -> None:
        super().__init__(reason)
        self.values = values


def unreadable(what: str, *values: object) -> Unsupported:
    """The exception for a program that reads the proxies `values`, if these are known; `what`: how it reads them."""
    return Unreadable(Reason(DATA_DEPENDENT, what), *values)


class TextProxy:
    """The string `how(*args)`, created once the tensors in `args` are known."""

    __slots__ = ("args", "fn")

    def __init__(self, fn: Callable[..., str], *args: object) -> None:
        self.fn = fn
        self.args = args

    def __add__(self, other: object) -> object:
        return TextProxy(concatenate, self, other) if isinstance(other, (str, TextProxy)) else NotImplemented

    def __radd__(self, other: object) -> object:
        return TextProxy(concatenate, other, self) if isinstance(other, str) else NotImplemented

    def __getattr__(self, name: str) -> object:
        raise unreadable(f"str.{name} of a tensor's text", self)


def _refused_reader(name: str) -> Callable[..., object]:
    def refuse(self: TextProxy, *args: object) -> object:
        raise unreadable(f"str.{name} of a tensor's text", self)

    return refuse


for _name in (
    "str", "repr", "format", "len", "iter", "getitem", "contains", "eq", "ne", "lt", "le", "gt", "ge", "hash", "mul",
    "rmul", "mod", "rmod", "bool", "int", "float", "index",
):  # fmt: skip
    setattr(TextProxy, f"__{_name}__", _refused_reader(f"__{_name}__"))


class FormattedTensor:
    """A tensor in a `TextProxy`, as it was when the text was created.

    `grad_fn` is the name of its autograd node; None for an input, whose node exists when the frame runs. `bare`: only its
    numbers are formatted.
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
        """The tensor itself, or its copy if anything was written since."""
        written = any(
            isinstance(record.node.target, OpOverload) and effects(record.node.target).writes
            for record in self._trace.tape.entries[self._after :]
        )
        if written and not self.bare and self._trace.is_input(self.fake) and not self.fake.is_leaf:
            raise unreadable(
                "the text of a tensor of the environment, with a history, which is written later"
            )
        return self._copy if written else self.fake

    @property
    def is_plain(self) -> bool:
        """Whether formatting `tensor` directly gives the text."""
        needs = self.grad_fn is not None or (self.tensor is self._copy and self.fake.requires_grad)
        return self.bare or not (needs or (self.is_parameter and self.tensor is self._copy))


class _Node(Protocol):
    """An autograd node."""

    def name(self) -> str: ...


def _node_name(node: _Node) -> str:
    name = type(node).__name__
    return node.name().rsplit("::", 1)[-1] if name == "CppFunction" else name


class Verbatim:
    """An object whose text is known."""

    __slots__ = ("text",)

    def __init__(self, text: object) -> None:
        self.text = text  # a string, or a `TextProxy`

    def __repr__(self) -> str:
        return str(self.text)

    def __format__(self, spec: str) -> str:
        return format(self.text, spec)


def join_all(parts: Sequence[object]) -> object:
    """The concatenation of strings and `TextProxy`s."""
    if any(type(p) is TextProxy for p in parts):
        return TextProxy(concatenate, *parts)
    return "".join(cast("Sequence[str]", parts))


def binary(fn: Callable[..., object], left: object, right: object) -> object:
    """An operator with a `TextProxy` operand: only concatenation with strings is supported."""
    if all(type(v) is TextProxy or type(v) in LEAF_TYPES for v in (left, right)):
        return fn(left, right)
    raise unreadable("a tensor's text is compared", left, right)


# ------------------------------------------------------------------------------------------- in compiled frames


def concatenate(*parts: str) -> str:
    """The concatenation of strings."""
    return "".join(parts)


def join_with(separator: str, *parts: str) -> str:
    """`separator.join(parts)`."""
    return separator.join(parts)


class _GradFn:
    """`tensor.grad_fn` as displayed."""


class tensor(torch.Tensor):
    """A tensor displayed with another `grad_fn`; its class name appears in the text."""

    __torch_function__ = disabled_torch_function_impl  # type: ignore[assignment]
    shown_history: object

    @property
    def grad_fn(self) -> object:  # type: ignore[override]
        """An object whose class has the name of the displayed node."""
        return self.shown_history


class DisplayedTensor:
    """Formatter of a tensor with its former history and type."""

    __slots__ = ("_is_parameter", "_tensor")

    def __init__(
        self, value: torch.Tensor, grad_fn: str | None, requires_grad: bool, is_parameter: bool
    ) -> None:
        shown = value.detach().as_subclass(tensor)
        shown.shown_history = None if grad_fn is None else type(grad_fn, (_GradFn,), {})()
        self._tensor = shown.requires_grad_(requires_grad)
        self._is_parameter = is_parameter

    def __repr__(self) -> str:
        return ("Parameter containing:\n" if self._is_parameter else "") + tensor_text(self._tensor)
