"""The callee of the last statement of a continuation stack (`capture/graph_breaks/continuation_stack.py`)."""

from __future__ import annotations

from collections.abc import Callable

from smelt import _native

CONTINUATION_STACK_MODULE = "__smelt_continuation_stack__"  # the __name__ in these functions


class TailCall:
    """Where the stack runs eagerly, its native caller makes the call of `target`, so that the C stack does not grow with
    each break in a loop."""

    __slots__ = ("target",)

    def __init__(self, target: Callable[..., object]) -> None:
        self.target = target

    def __call__(self, *arguments: object) -> object:
        return _native.tail_call(self.target, *arguments)
