"""The sizes of tensors that expressions in guards read.

Each has an index among the *size words* of a pass of the native tree. The check of its tensor writes the size there, so that
comparisons and arithmetic read no object. A guard that two sizes are equal is part of the check of the later tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch

from smelt.guards.guard import Guard
from smelt.guards.guard_kinds import SizeRead
from smelt.guards.source import Source
from smelt.shapes.expr import leaves

STORE = -1


class SizesRead:
    """The sizes that `guards` read."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        self._tensors = {g.source for g in guards if g.facts and _has_torchs_shape(g.facts.type)}
        self._words: dict[Source, int] = {}
        self._reads: dict[Source, list[SizeRead]] = defaultdict(list)

    def owner(self, source: Source) -> Source | None:
        """The tensor that has the size at `source` (`changed_numbers.size_source`); None if it is no size."""
        shape = source.base
        if source.kind != "item" or type(source.key) is not int or source.key < 0 or shape is None:
            return None
        is_shape = shape.kind == "member" and shape.key == "shape"
        return shape.base if is_shape and shape.base in self._tensors else None

    def word(self, source: Source) -> int:
        """The index of the word of a size."""
        found = self._words.get(source)
        if found is None:
            found = self._words[source] = len(self._words)
            self._note(source, found, STORE)
        return found

    def add(self, guard: Guard, number: int, position: Callable[[Source], int]) -> bool:
        """Add the sizes that an expression reads to the checks of their tensors, before `reads` is called. `number`: the
        index of the guard; `position`: of a tensor in the order of the checks. Returns whether this is all of the guard,
        because it requires that two sizes are equal."""
        expression, expected = guard.value
        sizes = [leaf for leaf in leaves(expression) if self.owner(leaf) is not None]
        is_equality = expression.op == "eq" and expected is True and len(sizes) == 2
        if not is_equality or any(part.op != "leaf" for part in expression.args):
            for size in sizes:
                self.word(size)
            return False
        first, second = sorted(sizes, key=lambda size: position(self._tensor(size)))
        self._note(second, self.word(first), number)
        return True

    def _tensor(self, size: Source) -> Source:
        tensor = self.owner(size)
        assert tensor is not None
        return tensor

    def _note(self, source: Source, word: int, guard: int) -> None:
        self._reads[self._tensor(source)].append((source.key, word, guard))

    def reads(self, tensor: Source) -> tuple[SizeRead, ...]:
        """(dimension, word, guard) for each size of a tensor that is read. The check writes the size to the word if `guard`
        is `STORE`, else compares it with the word."""
        return tuple(sorted(self._reads.get(tensor, ()), key=lambda read: read[2] != STORE))


def _has_torchs_shape(cls: type) -> bool:
    found = next((vars(c)["shape"] for c in cls.__mro__ if "shape" in vars(c)), None)
    return found is torch.Tensor.shape
