"""Sizes as a straight-line integer program over slots (`native/plan/plan_template.cpp`): symbols, then instructions."""

from __future__ import annotations

from collections.abc import Iterable

from smelt.shapes.expr import Expr, Size, Sym

CONSTANT, ADD, MULTIPLY, DIVIDE, MODULO = range(5)  # the opcodes of native/plan/plan_template.cpp
_OPERATIONS = {"add": ADD, "mul": MULTIPLY, "floordiv": DIVIDE, "mod": MODULO}


class SizeProgram:
    """Instructions (operation, slot, slot) or (CONSTANT, number, 0); the i-th defines the i-th slot after the symbols."""

    def __init__(self, syms: Iterable[Sym]) -> None:
        self._slots: dict[Size, int] = {sym: i for i, sym in enumerate(syms)}
        self.n_syms = len(self._slots)
        self._computed: dict[tuple[int, int, int], int] = {}

    @property
    def instructions(self) -> tuple[tuple[int, int, int], ...]:
        """The instructions, in order."""
        return tuple(self._computed)

    def slot(self, size: Size) -> int:
        """The slot of a size, with new instructions where it has none. Raises KeyError for other symbols than `syms`."""
        found = self._slots.get(size)
        if found is None:
            found = self._slots[size] = self._slot(size)
        return found

    def _slot(self, size: Size) -> int:
        if not isinstance(size, Expr):
            return self._instruction(CONSTANT, size, 0)
        if isinstance(size, Sym):
            raise KeyError(size)
        return self._instruction(_OPERATIONS[size.op], *map(self.slot, size.args))

    def _instruction(self, operation: int, a: int, b: int) -> int:
        return self._computed.setdefault((operation, a, b), self.n_syms + len(self._computed))
