"""Proxies: values of a program under symbolic tracing. Each operation on a proxy becomes a node.

A proxy has no value, so a program that needs one (a condition, a length, a loop) raises `TraceError`. The message names the
user's line and what to do: an example input has a value.
"""

from __future__ import annotations

import dis
import functools
import operator
import os
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, NoReturn

import torch
import torch.fx
from torch import nn

from smelt.errors import SmeltError
from smelt.torch_private import HigherOrderOperator, ScriptMethod, fx_assert, tree_map
from smelt.user_lines import Line, is_own

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HINT = (
    "no value is known without an example input: smelt.symbolic_trace(module, example_inputs=(...)) traces with one; "
    "or make it a concrete argument (concrete_args), or a leaf function (smelt.fx.wrap)"
)


class TraceError(SmeltError, torch.fx.proxy.TraceError, RuntimeError):
    """A program needs the value of a proxy. The message names the user's line and what to do. The class is a ValueError, as
    torch.fx's is, and a RuntimeError."""


class NotTraceable(SmeltError, TypeError, AssertionError):
    """The object to trace is neither a Python function nor a module, or lacks the method to trace. The class is an
    AssertionError, which torch.fx raises."""


class Proxy(torch.fx.Proxy):
    """The value of a node in the traced program, with the operators of `torch.fx.Proxy`. `__torch_function__` records calls
    of torch."""

    def __getattr__(self, name: str) -> Any:
        return Attribute(self, name)

    def __iter__(self) -> Iterator[Any]:
        frame = sys._getframe(1)
        instruction = _instruction(frame)
        if instruction.opname == "UNPACK_SEQUENCE":
            return map(functools.partial(operator.getitem, self), range(instruction.argval))
        if instruction.opname == "UNPACK_EX":
            refuse(self, "Proxy object cannot be iterated: the number of values of a starred target")
        values: Iterator[Any] = self.tracer.iter(self)
        return values

    def __bool__(self) -> bool:
        if self.tracer.trace_asserts and _is_asserted(sys._getframe(1)):
            self.tracer.create_proxy("call_function", fx_assert, (self,), {})
            return True
        holds: bool = self.tracer.to_bool(self)
        return holds

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def __len__(self) -> int:
        refuse(self, "'len' is not supported in symbolic tracing by default")

    def __index__(self) -> int:
        refuse(self, "a proxy cannot be an index, the bound of a range or a number for Python")

    def __int__(self) -> int:
        refuse(self, "a proxy cannot become an int")

    def __float__(self) -> float:
        refuse(self, "a proxy cannot become a float")

    def __deepcopy__(self, memo: dict[int, Any]) -> Proxy:
        made = super().__deepcopy__(memo)
        made.__class__ = type(self)
        return made  # type: ignore[return-value]

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Record a call of torch that has a proxy among its arguments.

        Raises TraceError if the arguments belong to several traces, or if a higher-order operator takes a Python function.
        """
        args, kwargs = args or (), kwargs or {}
        tracer = _tracer_of(function, args, kwargs)
        if isinstance(function, ScriptMethod):
            return tracer.create_proxy("call_method", function.name, (function.owner, *args), kwargs)
        if torch.overrides.is_tensor_method_or_property(function):
            return tracer.create_proxy("call_method", function.__name__, args, kwargs)
        name = tracer.graph._target_to_str(function.__name__)
        return tracer.create_proxy("call_function", function, args, kwargs, name=name)


class Attribute(Proxy):
    """An attribute of a proxy. A call of it is one call_method node; its first other use creates a `getattr` node."""

    def __init__(self, root: torch.fx.Proxy, attr: str) -> None:
        self.root = root
        self.attr = attr
        self.tracer = root.tracer
        self._node: torch.fx.Node | None = None

    @property
    def node(self) -> torch.fx.Node:  # type: ignore[override]
        """The `getattr` node, created at its first use."""
        if self._node is None:
            self._node = self.tracer.create_proxy("call_function", getattr, (self.root, self.attr), {}).node
        return self._node

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.create_proxy("call_method", self.attr, (self.root, *args), kwargs)


class ParameterProxy(Proxy):
    """A parameter with known sizes, which may decide conditions (`Tracer(param_shapes_constant=True)`)."""

    def __init__(self, tracer: Any, node: torch.fx.Node, name: str, param: nn.Parameter) -> None:
        super().__init__(node, tracer)
        self.param = param
        self.name = name

    def __repr__(self) -> str:
        return f"ParameterProxy({self.name})"

    @property
    def shape(self) -> torch.Size:
        """The parameter's sizes."""
        return self.param.shape

    @property
    def ndim(self) -> int:
        """Its number of dimensions."""
        return self.param.ndim

    def size(self) -> torch.Size:
        """The parameter's sizes."""
        return self.param.size()

    def dim(self) -> int:
        """Its number of dimensions."""
        return self.param.dim()

    def numel(self) -> int:
        """Its number of elements."""
        return self.param.numel()

    nelement = numel


def user_line() -> Line | None:
    """The current line of the traced program: that of the innermost frame outside of smelt and torch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith((_TORCH, "<frozen")) and not is_own(code.co_filename):
            return Line(code.co_filename, frame.f_lineno, code.co_qualname)
        frame = frame.f_back
    return None


def refuse(proxy: torch.fx.Proxy, what: str) -> NoReturn:
    """Raise a TraceError that says `what` cannot be done, names the proxy and the user's line, and gives the remedy."""
    line = user_line()
    value = proxy.node.name
    raise TraceError(f"{what}: `{value}` at {line or 'an unknown line'}. {_HINT}")


def _tracer_of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tracer of the proxies among the arguments."""
    tracers: dict[Any, None] = {}
    functions: list[Any] = []

    def look(leaf: Any) -> Any:
        if isinstance(leaf, torch.fx.Proxy):
            tracers[leaf.tracer] = None
        elif callable(leaf) and not isinstance(leaf, (type, nn.Module, torch.Tensor)):
            functions.append(leaf)
        return leaf

    tree_map(look, (args, kwargs))
    if len(tracers) > 1:
        raise TraceError(f"Found multiple different tracers in a call of {function}: {list(tracers)}")
    if functions and isinstance(function, HigherOrderOperator):
        raise TraceError(
            f"Unable to symbolically trace the HigherOrderOperator {function.name()} because it received an arbitrary "
            f"callable argument {functions[0]}: at {user_line()}. {_HINT}"
        )
    return next(iter(tracers))


def _instruction(frame: FrameType) -> dis.Instruction:
    return next(i for i in dis.get_instructions(frame.f_code) if i.offset >= frame.f_lasti)


def _is_asserted(frame: FrameType) -> bool:
    """Whether the frame evaluates the condition of an `assert`: a jump over a raise of AssertionError follows."""
    code: CodeType = frame.f_code
    after = [i for i in dis.get_instructions(code) if i.offset >= frame.f_lasti]
    jumps = next((at for at, i in enumerate(after[:3]) if i.opname.startswith("POP_JUMP")), None)
    if jumps is None or "TRUE" not in after[jumps].opname:
        return False
    following = next((i for i in after[jumps + 1 :] if i.opname not in ("CACHE", "NOT_TAKEN")), None)
    return following is not None and following.opname in ("LOAD_ASSERTION_ERROR", "LOAD_COMMON_CONSTANT")
