"""The torch-level call that is running while a trace records, and what it has done so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from smelt.errors import Unsupported
from smelt.graph.ir import Line, Node
from smelt.reasons import UNSUPPORTED_EFFECT, Reason, ReasonKind
from smelt.torch_private import DisableFuncTorch, DisableTorchFunction, current_autograd_node


def no_handlers(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Any:
    """The result of `call_handlers` where the program has no handlers."""
    return NotImplemented


def no_dispatch(func: Any, kinds: tuple[type, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The result of `call_dispatch` where the program has no wrapper subclasses."""
    return NotImplemented


def backward_node(forward: Node | None) -> Node:
    """A node of no graph that stands for the source of a backward's operators: with the line and source of the aten
    node `forward`, if known."""
    line, source = (None, None) if forward is None else (forward.line, forward.source)
    return Node("call_function", "backward", (), {}, "backward", None, line, source)


class CurrentCall:
    """The torch-level call that operators running now belong to.

    Attributes:
        where: returns the user line that is running.
        node: the call's torch-level node; None between calls. While autograd's engine records a backward, a node
            of no graph that stands for it (`backward_node`).
        mutated: the call in `node` wrote memory or changed a tensor's metadata.
        is_opaque: its Python code is the user's (`opaque_call_recorder.py`).
        had_opaque: some call so far was opaque.
        has_subclasses: the program has used tensors of a subclass.
        gather_depth: number of open modes in which `x[i, j]` is a gather even for one-element tensors, also in
            transforms.
        pause_depth: number of open `paused` blocks; nothing is recorded inside one.
        failure: why the trace cannot be finished.
        modes: the program's open modes with a `__torch_function__`, innermost last, without one whose handler is
            running.
        dispatches_handlers: native code carries out a call of the program, so `__torch_function__` handlers may be
            called; no code of smelt is running.
        has_empty_kwargs: the next native call passes an empty keyword dictionary (`f(x, **{})`), which handlers
            receive.
        call_handlers: dispatches a call to the program's handlers; NotImplemented if none applies.
        call_dispatch: calls the `__torch_dispatch__` of wrapper subclasses for an operator.
        load_attributes: the attributes of a wrapper of the environment as the program reads them.
        wrappers: by id, the tensors of wrapper subclasses that the program uses.
        in_dispatch: such a `__torch_dispatch__` is running, beneath autograd.
        changed: the indices in `TorchSettings` of the process's settings that the program has set to other
            values, and `changed_defaults.GENERATOR`.
        hidden_keys: the dispatch keys of autograd that an operator on nested tensors passes by; None between such operators.
        backwards: while a backward is recorded, the stand-in node for each autograd node (`backward_node`).
    """

    __slots__ = (
        "backwards", "call_dispatch", "call_handlers", "changed", "dispatches_handlers", "failure", "gather_depth",
        "had_opaque", "has_empty_kwargs", "has_subclasses", "hidden_keys", "in_dispatch", "is_opaque", "load_attributes",
        "modes", "mutated", "node", "pause_depth", "where", "wrappers",
    )  # fmt: skip

    def __init__(self, where: Callable[[], Line | None]) -> None:
        self.where = where
        self.node: Node | None = None
        self.mutated = False
        self.is_opaque = False
        self.had_opaque = False
        self.has_subclasses = False
        self.gather_depth = 0
        self.pause_depth = 0
        self.modes: list[TorchFunctionMode] = []
        self.failure: Reason | None = None
        self.dispatches_handlers = False
        self.has_empty_kwargs = False
        self.call_handlers: Callable[[Any, tuple[Any, ...], Mapping[str, Any] | None], Any] = no_handlers
        self.call_dispatch: Callable[[Any, tuple[type, ...], tuple[Any, ...], Mapping[str, Any]], Any] = (
            no_dispatch
        )
        self.load_attributes: Callable[[Tensor], Mapping[str, Any]] = vars
        self.wrappers: dict[int, Tensor] = {}
        self.in_dispatch = False
        self.hidden_keys: Any = None
        self.changed: frozenset[int] = frozenset()
        self.backwards: Mapping[Any, Node] | None = None

    def source(self) -> Node | None:
        """The node that causes an operator running now."""
        if self.backwards is not None and self.node is not None:
            return self.backwards.get(current_autograd_node(), self.node)
        return self.node

    def line(self) -> Line | None:
        """The user's line of an operator running now."""
        if self.backwards is not None:
            forward = self.backwards.get(current_autograd_node())
            return None if forward is None else forward.line
        node = self.node
        if node is None:
            return self.where()
        if node.line is None:
            node.line = self.where()
        return node.line

    def consume_empty_kwargs(self) -> dict[str, object] | None:
        """The keyword dictionary to pass on for a native call without keywords: empty if the call had one, else None.
        Resets the flag."""
        had_empty, self.has_empty_kwargs = self.has_empty_kwargs, False
        return {} if had_empty else None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context for real torch computation by smelt itself, which is not recorded."""
        self.pause_depth += 1
        try:
            with DisableTorchFunction(), DisableFuncTorch():
                yield
        finally:
            self.pause_depth -= 1

    def unsupported(self, kind: ReasonKind, detail: str) -> Unsupported:
        """The error to raise for something that cannot be recorded, with the user's line."""
        return Unsupported(Reason(kind, detail, self.where()))

    def fail(self, name: str, error: BaseException) -> None:
        """Mark the trace as failed: the call of `name` raised after it may have changed something. The user's code may
        handle the error, but the record no longer matches what happened."""
        self.failure = Reason(UNSUPPORTED_EFFECT, f"{name} raised {type(error).__name__}", self.line())
