"""Where the instructions of a code object stand in the user's file: lines and columns, in CPython's format.

The format: CPython's Objects/locations.md (InternalDocs).
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
    """The positions of the instructions of `code`, which stand at these offsets in bytes."""
    by_unit = list(code.co_positions())
    return [by_unit[offset // 2] for offset in offsets]


def location_table(runs: Iterable[tuple[int, Position]], first_line: int) -> bytes:
    """The table for instructions with these lengths (in units of two bytes) and positions."""
    table, line = bytearray(), first_line
    for units, position in runs:
        while units:
            length = min(units, 8)
            line = _add(table, position, line, length)
            units -= length
    return bytes(table)


def _add(table: bytearray, position: Position, before: int, length: int) -> int:
    """Appends an entry; gives the line that the next counts from."""
    line, end_line, column, end_column = position
    if line is None:
        table.append(0x80 | _NONE << 3 | length - 1)
        return before
    whole = end_line is not None and column is not None and end_column is not None
    table.append(0x80 | (_LONG if whole else _NO_COLUMNS) << 3 | length - 1)
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
class Place:
    """An instruction of the user's code, at byte `offset` of `source`, in a function with `scope` as its globals."""

    source: types.CodeType
    offset: int
    scope: dict[str, object] = field(default_factory=dict, compare=False)

    def stands_for(self, function: types.FunctionType) -> None:
        """From now on the frames of `function` look like one of the user's code that stands here."""
        source, code = self.source, function.__code__
        position = list(source.co_positions())[self.offset // 2]
        function.__code__ = code.replace(
            co_flags=code.co_flags | source.co_flags & FUTURE,
            co_filename=source.co_filename,
            co_name=source.co_name,
            co_qualname=source.co_qualname,
            co_firstlineno=source.co_firstlineno,
            co_linetable=location_table([(len(code.co_code) // 2, position)], source.co_firstlineno),
        )

    def warned(self) -> dict[str, object]:
        """What `warnings.warn` asks the globals for, of a frame that stands here: the name of the module, and, of a module
        that was imported, what it has warned of."""
        name = self.scope.get("__name__")
        found: dict[str, object] = {} if name is None else {"__name__": name}
        module = sys.modules.get(name) if type(name) is str else None
        if isinstance(module, types.ModuleType) and module_dict(module) is self.scope:
            found["__warningregistry__"] = self.scope.setdefault("__warningregistry__", {})
        return found
