"""Compiled frames from files: an edited program replaces the function that smelt wrote.

The program's objects are available under the names that smelt gave them, along with the file's own definitions and
imports. The function takes the same arguments as smelt's, and all names that it reads are defined.
"""

from __future__ import annotations

import builtins
import dis
import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from smelt.capture.base.bytecode import FUTURE
from smelt.capture.emit.compiled_frame import CompiledFrame
from smelt.errors import ArtifactError
from smelt.report.edited_sources import compiled, is_made_from, run

_READS = ("LOAD_GLOBAL", "LOAD_NAME")
_DEFINES = ("STORE_GLOBAL", "STORE_NAME")


def frame_of(path: Path, frame: CompiledFrame) -> CompiledFrame:
    """The file's function, to install for `frame`.

    Raises ArtifactError if it cannot be installed, with the file, the line if known, and the expectation.
    """
    if not is_made_from(path, frame.source):
        raise ArtifactError(
            f"{path} is edited, but was written from another frame than the current one: delete it, dump the frame and edit "
            "that"
        )
    own = frame.function
    code = compiled(path, own.__code__.co_flags & FUTURE)
    scope = dict(own.__globals__)
    _check_names(path, code, scope)
    run(path, code, scope)
    made = scope.pop(own.__name__, None)
    _check_parameters(path, made, own)
    return replace(frame, function=made, source=path.read_text(encoding="utf-8"), direct_graph=None)


def _check_parameters(path: Path, made: Any, own: FunctionType) -> None:
    wanted = [(p.name, p.kind) for p in inspect.signature(own).parameters.values()]
    text = ", ".join(name for name, _ in wanted)
    if not isinstance(made, FunctionType):
        raise ArtifactError(f"{path} defines no function {own.__name__}({text})")
    actual = [(p.name, p.kind) for p in inspect.signature(made).parameters.values()]
    if actual != wanted:
        raise ArtifactError(
            f"{path}:{made.__code__.co_firstlineno}: {own.__name__} takes ({', '.join(name for name, _ in actual)}), "
            f"smelt's own ({text}): arguments must not change, also unread ones"
        )


def _check_names(path: Path, code: CodeType, scope: dict[str, object]) -> None:
    """Check that each name is in `scope`, defined in the file, or a builtin."""
    known = {*scope, *vars(builtins), *(name for name, _ in _named(code, _DEFINES))}
    for name, line in _named(code, _READS):
        if name not in known:
            raise ArtifactError(
                f"{path}:{line}: {name} is defined neither in the file nor, for this frame, by smelt"
            )


def _named(code: CodeType, kinds: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """The names in instructions of these kinds, with their lines, of a program and its functions."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in kinds:
            positions = instruction.positions
            yield instruction.argval, (positions and positions.lineno) or code.co_firstlineno
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(constant, kinds)
