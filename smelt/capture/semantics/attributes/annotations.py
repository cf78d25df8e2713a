"""Annotations of functions, classes and modules, which CPython evaluates on first access from 3.14 on (PEP 649).

Evaluation runs program code. If that code only reads names, it has no effect and runs during capture, when eager would run
it.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Protocol, cast

from smelt import _native
from smelt._native import isinstance
from smelt.capture.environment.environment import Environment
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_CALL, Reason

# Instructions of annotations that are names, attributes, subscripts and constants.
_PURE_INSTRUCTIONS = frozenset(
    (
        "RESUME", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_SMALL_INT", "COMPARE_OP", "POP_JUMP_IF_FALSE", "NOT_TAKEN",
        "LOAD_COMMON_CONSTANT", "RAISE_VARARGS", "LOAD_CONST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR", "BINARY_OP",
        "BUILD_MAP", "BUILD_TUPLE", "BUILD_LIST", "COPY_FREE_VARS", "RETURN_VALUE", "CACHE",
        "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF", "CONTAINS_OP", "STORE_SUBSCR", "COPY", "SWAP", "POP_TOP",
    )
)  # fmt: skip


_GLOBAL_LOADS = ("LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")


class _HasAnnotate(Protocol):
    @property
    def __annotate__(self) -> Callable[[int], object]: ...


def annotations_of(vm: VM, function: FunctionType) -> dict[str, object]:
    """`function.__annotations__`. The VM evaluates those of functions created by the program."""
    if vm.env.sources.find(function) is not None:
        check_annotations(vm.env, function)
    elif _native.annotations_wait(function):
        vm.frames.call_site = None
        annotations = vm.call(cast(_HasAnnotate, function).__annotate__, (1,), {})
        if type(annotations) is not dict:
            raise TypeError(f"__annotate__ returned non-dict of type '{type(annotations).__name__}'")
        _native.keep_annotations(function, annotations)
    return function.__annotations__


def check_annotations(env: Environment, owner: FunctionType | type | ModuleType) -> None:
    """Raise Unsupported if evaluating annotations does more than read names, or reads names that the trace has written."""
    if not _native.annotations_wait(owner):
        return
    read = type.__getattribute__ if isinstance(owner, type) else object.__getattribute__
    annotate = read(owner, "__annotate__")  # type: ignore[arg-type]
    if type(annotate) is not FunctionType or not _only_reads_names(env, annotate):
        raise Unsupported(Reason(UNSUPPORTED_CALL, "annotations that are not evaluated yet"))


def _only_reads_names(env: Environment, annotate: FunctionType) -> bool:
    instructions = list(dis.get_instructions(annotate.__code__))
    if any(i.opname not in _PURE_INSTRUCTIONS for i in instructions):
        return False
    if any(map(env.log.has_written_cell, annotate.__closure__ or ())):
        return False
    names = (i.argval for i in instructions if i.opname in _GLOBAL_LOADS)
    return not any(env.log.has_written_name(annotate.__globals__, name) for name in names)
