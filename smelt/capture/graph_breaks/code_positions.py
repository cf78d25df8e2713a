"""Positions of the instructions of a code object in the user's file, and CPython's location table.

The format: Objects/locations.md (InternalDocs) of CPython.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from smelt._native import isinstance
from smelt.capture.base.bytecode import FUTURE
from smelt.capture.base.value_kinds import module_dict

Position = tuple[int | None, int | None, int | None, int | None]  # line, end line, column, end column

_LONG, _NO_COLUMNS, _NONE = 14, 13, 15


def positions(code: types.CodeType, offsets: Sequence[int]) -> list[Position]:
    """The positions of the instructions at these byte offsets of `code`."""
    by_unit = list(code.co_positions())
    return [by_unit[offset // 2] for offset in offsets]


def location_table(runs: Iterable[tuple[int, Position]], first_line: int) -> bytes:
    """The location table of runs of (length in units of two bytes, position)."""
    table, line = bytearray(), first_line
    for units, position in runs:
        while units:
            length = min(units, 8)
            line = _add(table, position, line, length)
            units -= length
    return bytes(table)


def _add(table: bytearray, position: Position, before: int, length: int) -> int:
    """Append an entry; return the line to which the next entry is relative."""
    line, end_line, column, end_column = position
    if line is None:
        table.append(0x80 | _NONE << 3 | length - 1)
        return before
    has_columns = end_line is not None and column is not None and end_column is not None
    table.append(0x80 | (_LONG if has_columns else _NO_COLUMNS) << 3 | length - 1)
    delta = line - before
    _add_varint(table, (-delta << 1 | 1) if delta < 0 else delta << 1)
    if end_line is not None and column is not None and end_column is not None:
        for value in (end_line - line, column + 1, end_column + 1):
            _add_varint(table, value)
    return line


def _add_varint(table: bytearray, value: int) -> None:
    while value >= 64:
        table.append(0x40 | value & 63)
        value >>= 6
    table.append(value)


@dataclass(frozen=True)
class CodePosition:
    """An instruction of the user's code, at byte `offset` of `user_code`, in a function with `scope` as its globals."""

    user_code: types.CodeType
    offset: int
    scope: dict[str, object] = field(default_factory=dict, compare=False)

    def disguise(self, function: types.FunctionType) -> None:
        """Make the frames of `function` look like frames of the user's code at this position."""
        user_code, code = self.user_code, function.__code__
        position = list(user_code.co_positions())[self.offset // 2]
        function.__code__ = code.replace(
            co_flags=code.co_flags | user_code.co_flags & FUTURE,
            co_filename=user_code.co_filename,
            co_name=user_code.co_name,
            co_qualname=user_code.co_qualname,
            co_firstlineno=user_code.co_firstlineno,
            co_linetable=location_table([(len(code.co_code) // 2, position)], user_code.co_firstlineno),
        )

    def warning_globals(self) -> dict[str, object]:
        """The globals that `warnings.warn` reads: the module's name and, if it is imported, its registry of warnings."""
        name = self.scope.get("__name__")
        found: dict[str, object] = {} if name is None else {"__name__": name}
        module = sys.modules.get(name) if type(name) is str else None
        if isinstance(module, types.ModuleType) and module_dict(module) is self.scope:
            found["__warningregistry__"] = self.scope.setdefault("__warningregistry__", {})
        return found
