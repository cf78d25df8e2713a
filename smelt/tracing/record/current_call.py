"""The torch-level call that is running while a trace records, and what it has done so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.overrides import TorchFunctionMode

from smelt.errors import Unsupported
from smelt.graph.ir import Line, Node
from smelt.reasons import UNSUPPORTED_EFFECT, Reason, ReasonKind
from smelt.torch_private import DisableFuncTorch, DisableTorchFunction, current_autograd_node


def ask_none(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Any:
    """The answer where there are no handlers."""
    return NotImplemented


def backward_of(forward: Node | None) -> Node:
    """What causes the operators of a backward, in no graph: of the aten node `forward`, where that is known."""
    line, source = (None, None) if forward is None else (forward.line, forward.source)
    return Node("call_function", "backward", (), {}, "backward", None, line, source)


class CurrentCall:
    """Which torch-level call the operators that run now belong to.

    Attributes:
        where: says which user line is running.
        node: the call's torch-level node; None between calls. While autograd's engine records a backward, a node of no
            graph that stands for it.
        wrote: the call in `node` wrote memory or changed a tensor.
        is_opaque: its Python code is the user's (`smelt.tracing.record.opaque_call_recorder`).
        had_opaque: some call so far was opaque.
        has_subclasses: the program has met tensors of a subclass.
        gathers: how many modes are open in which `x[i, j]` is a gather for tensors of one element too, also in transforms.
        pauses: how many blocks of `paused` are open; nothing is recorded inside of one.
        failure: why the trace cannot be finished.
        modes: the program's modes with a `__torch_function__` that are open, innermost last; one whose handler runs is not.
        asks: native code carries out a call of the program's, about which handlers are asked; no code of smelt's runs.
        has_no_keywords: native code is called next with a dictionary of keywords that is empty (`f(x, **{})`), of which its
            handlers are told.
        ask: hands a call to the program's handlers; NotImplemented where none is to be asked.
        backwards: while a backward is recorded, what stands for each node of autograd's graph (`backward_of`).
    """

    __slots__ = (
        "ask", "asks", "backwards", "failure", "gathers", "had_opaque", "has_no_keywords",
        "has_subclasses", "is_opaque", "modes", "node", "pauses", "where", "wrote",
    )  # fmt: skip

    def __init__(self, where: Callable[[], Line | None]) -> None:
        self.where = where
        self.node: Node | None = None
        self.wrote = False
        self.is_opaque = False
        self.had_opaque = False
        self.has_subclasses = False
        self.gathers = 0
        self.pauses = 0
        self.modes: list[TorchFunctionMode] = []
        self.failure: Reason | None = None
        self.asks = False
        self.has_no_keywords = False
        self.ask: Callable[[Any, tuple[Any, ...], Mapping[str, Any] | None], Any] = ask_none
        self.backwards: Mapping[Any, Node] | None = None

    def source(self) -> Node | None:
        """The node that causes an operator that runs now."""
        if self.backwards is not None and self.node is not None:
            return self.backwards.get(current_autograd_node(), self.node)
        return self.node

    def line(self) -> Line | None:
        """The user's line of an operator that runs now."""
        if self.backwards is not None:
            found = self.backwards.get(current_autograd_node())
            return None if found is None else found.line
        node = self.node
        if node is None:
            return self.where()
        if node.line is None:
            node.line = self.where()
        return node.line

    def take_no_keywords(self) -> dict[str, object] | None:
        """The keywords of the native code that is called now, where the call has none."""
        found, self.has_no_keywords = self.has_no_keywords, False
        return {} if found else None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Real torch computation by smelt itself, not recorded."""
        self.pauses += 1
        try:
            with DisableTorchFunction(), DisableFuncTorch():
                yield
        finally:
            self.pauses -= 1

    def unsupported(self, kind: ReasonKind, detail: str) -> Unsupported:
        """The error to raise for something that cannot be recorded, with the user's line."""
        return Unsupported(Reason(kind, detail, self.where()))

    def fail(self, name: str, error: BaseException) -> None:
        """The call of `name` raised after it may have changed something: the user's code may handle that, but what was
        recorded is no longer what happened."""
        self.failure = Reason(UNSUPPORTED_EFFECT, f"{name} raised {type(error).__name__}", self.line())
