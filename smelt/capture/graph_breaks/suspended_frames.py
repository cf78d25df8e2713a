"""Where a frame goes on whose instruction waits for a callee: `WAITING` has a row for each instruction that can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from smelt._native import isinstance
from smelt.capture.base.value_kinds import to_be_called
from smelt.capture.base.vm_frames import Frame


@dataclass(frozen=True)
class Waiting:
    """A row: how many values the instruction takes from the stack, and what it puts there, given its argument, the result
    and the frame. `again`: with these on the stack it is carried out once more."""

    takes: Callable[[int], int]
    gives: Callable[[object, object, Frame], tuple[object, ...]]
    again: bool = False


def _takes(count: int) -> Callable[[int], int]:
    return lambda arg: count


def _result(arg: object, result: object, frame: Frame) -> tuple[object, ...]:
    return (result,)


def _nothing(arg: object, result: object, frame: Frame) -> tuple[object, ...]:
    return ()


def _attribute(arg: object, result: object, frame: Frame) -> tuple[object, ...]:
    """An attribute; the second part of `arg` says whether it is about to be called."""
    return to_be_called(result) if isinstance(arg, tuple) and arg[1] else (result,)


def _entered(arg: object, result: object, frame: Frame) -> tuple[object, ...]:
    return (*frame.prepared, result)


_ATTRIBUTE = Waiting(_takes(1), _attribute)
_UNARY, _BINARY, _TERNARY = (Waiting(_takes(count), _result) for count in (1, 2, 3))
_STORES = {count: Waiting(_takes(count), _nothing) for count in (1, 2, 3, 4)}
_JUMP = Waiting(_takes(1), _result, again=True)  # its condition is True or False then

WAITING: dict[str, Waiting] = {
    "CALL": Waiting(lambda arg: arg + 2, _result),
    "CALL_KW": Waiting(lambda arg: arg + 3, _result),
    "CALL_FUNCTION_EX": Waiting(lambda arg: 3 + arg, _result),
    "LOAD_ATTR": _ATTRIBUTE,
    "LOAD_METHOD": Waiting(_takes(1), lambda arg, result, frame: to_be_called(result)),
    "LOAD_SUPER_ATTR": Waiting(_takes(3), _attribute),
    "STORE_ATTR": _STORES[2],
    "DELETE_ATTR": _STORES[1],
    "BINARY_OP": _BINARY,
    "COMPARE_OP": _BINARY,
    "CONTAINS_OP": _BINARY,
    "TO_BOOL": _UNARY,
    "UNARY_NOT": _UNARY,
    "UNARY_NEGATIVE": _UNARY,
    "UNARY_POSITIVE": _UNARY,
    "UNARY_INVERT": _UNARY,
    "BINARY_SUBSCR": _BINARY,
    "BINARY_SLICE": _TERNARY,
    "STORE_SUBSCR": _STORES[3],
    "STORE_SLICE": _STORES[4],
    "DELETE_SUBSCR": _STORES[2],
    "GET_ITER": _UNARY,
    "GET_YIELD_FROM_ITER": _UNARY,
    "BEFORE_WITH": Waiting(_takes(1), _entered),
}
WAITING.update(
    (f"POP_JUMP_{direction}IF_{condition}", _JUMP)
    for direction in ("", "FORWARD_", "BACKWARD_")
    for condition in ("TRUE", "FALSE")
)


def after(frame: Frame, result: object) -> tuple[int, list[object]]:
    """The next instruction of `frame`, which waits at one of these, and the stack there, once its callee gave `result`."""
    arg = frame.instructions[frame.pc][1]
    row = WAITING[frame.code.names[frame.pc]]
    stack = [*frame.stack[: len(frame.stack) - row.takes(arg)], *row.gives(arg, result, frame)]
    return (frame.pc if row.again else frame.pc + 1), stack
