"""Sizes as an integer program: each slot is a symbol, or computed from slots before it (`native/plan/plan_template.cpp`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from smelt.shapes.expr import Expr, Size, Sym

CONSTANT, ADD, MULTIPLY, DIVIDE, MODULO = range(5)  # as native/plan/plan_template.cpp counts them
_OPERATIONS = {"add": ADD, "mul": MULTIPLY, "floordiv": DIVIDE, "mod": MODULO}


@dataclass(frozen=True)
class Slot:
    """Stands for a number that is computed."""

    index: int


class SizeProgram:
    """`instructions`: (operation, slot, slot), or (CONSTANT, number, 0), of the slots behind those of `syms`, in order."""

    def __init__(self, syms: Iterable[Sym]) -> None:
        self._slots: dict[Size, int] = {sym: i for i, sym in enumerate(syms)}
        self.n_syms = len(self._slots)
        self._computed: dict[tuple[int, int, int], int] = {}

    @property
    def instructions(self) -> tuple[tuple[int, int, int], ...]:
        """How the slots behind those of the symbols are computed."""
        return tuple(self._computed)

    def slot(self, size: Size) -> int:
        """Which slot holds a size; it is computed from now on. Raises KeyError for symbols that the program is not of."""
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
