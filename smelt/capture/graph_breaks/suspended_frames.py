"""The stack of a suspended frame after its callee returns: `STACK_EFFECTS` has a row for each instruction that calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from smelt._native import isinstance
from smelt.capture.base.value_kinds import unbound_callable
from smelt.capture.base.vm_frames import Frame


@dataclass(frozen=True)
class StackEffect:
    """The stack effect of an instruction whose callee has returned.

    `pops(arg)`: the number of values that it pops. `pushes(arg, result, frame)`: the values that it pushes. `reexecutes`:
    the instruction runs again with these values on the stack.
    """

    pops: Callable[[int], int]
    pushes: Callable[[object, object, Frame], tuple[object, ...]]
    reexecutes: bool = False


def _pops(count: int) -> Callable[[int], int]:
    return lambda arg: count


def _result(arg: object, result: object, frame: Frame) -> tuple[object, ...]:
    return (result,)


def _no_values(arg: object, result: object, frame: Frame) -> tuple[object, ...]:
    return ()


def _attribute(arg: object, result: object, frame: Frame) -> tuple[object, ...]:
    """The value of an attribute; `arg[1]`: it is the method of a call that follows."""
    return unbound_callable(result) if isinstance(arg, tuple) and arg[1] else (result,)


def _entered_context(arg: object, result: object, frame: Frame) -> tuple[object, ...]:
    return (*frame.pending_exit, result)


_ATTRIBUTE = StackEffect(_pops(1), _attribute)
_UNARY, _BINARY, _TERNARY = (StackEffect(_pops(count), _result) for count in (1, 2, 3))
_STORES = {count: StackEffect(_pops(count), _no_values) for count in (1, 2, 3, 4)}
_JUMP = StackEffect(_pops(1), _result, reexecutes=True)  # the condition is a bool then

STACK_EFFECTS: dict[str, StackEffect] = {
    "CALL": StackEffect(lambda arg: arg + 2, _result), "CALL_KW": StackEffect(lambda arg: arg + 3, _result),
    "CALL_FUNCTION_EX": StackEffect(lambda arg: 3 + arg, _result), "LOAD_ATTR": _ATTRIBUTE,
    "LOAD_METHOD": StackEffect(_pops(1), lambda arg, result, frame: unbound_callable(result)),
    "LOAD_SUPER_ATTR": StackEffect(_pops(3), _attribute), "STORE_ATTR": _STORES[2], "DELETE_ATTR": _STORES[1],
    "BINARY_OP": _BINARY, "COMPARE_OP": _BINARY, "CONTAINS_OP": _BINARY, "TO_BOOL": _UNARY, "UNARY_NOT": _UNARY,
    "UNARY_NEGATIVE": _UNARY, "UNARY_POSITIVE": _UNARY, "UNARY_INVERT": _UNARY, "BINARY_SUBSCR": _BINARY,
    "BINARY_SLICE": _TERNARY, "STORE_SUBSCR": _STORES[3], "STORE_SLICE": _STORES[4], "DELETE_SUBSCR": _STORES[2],
    "GET_ITER": _UNARY, "GET_YIELD_FROM_ITER": _UNARY, "BEFORE_WITH": StackEffect(_pops(1), _entered_context),
}  # fmt: skip
STACK_EFFECTS.update(
    (f"POP_JUMP_{direction}IF_{condition}", _JUMP)
    for direction in ("", "FORWARD_", "BACKWARD_")
    for condition in ("TRUE", "FALSE")
)


def state_after_call(frame: Frame, result: object) -> tuple[int, list[object]]:
    """The instruction at which the suspended `frame` resumes when its callee returns `result`, and the stack there."""
    arg = frame.instructions[frame.pc][1]
    effect = STACK_EFFECTS[frame.code.names[frame.pc]]
    stack = [*frame.stack[: len(frame.stack) - effect.pops(arg)], *effect.pushes(arg, result, frame)]
    return (frame.pc if effect.reexecutes else frame.pc + 1), stack
