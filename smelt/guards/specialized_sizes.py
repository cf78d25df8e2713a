"""Which sizes of tensors the guards need as numbers, apart from those that a tensor must have.

Each has a number among the *size words* of a pass of the native tree: the check of its tensor writes it there, so that
comparisons and arithmetic read no object. A guard that two sizes are equal is part of the check of the later tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch

from smelt.guards.guard import Guard
from smelt.guards.source import Source
from smelt.shapes.expr import leaves

STORE = -1


class SizesRead:
    """The sizes that `guards` read."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        self._tensors = {g.source for g in guards if g.kind == "tensor" and _has_torchs_shape(g.value.type)}
        self._words: dict[Source, int] = {}
        self._reads: dict[Source, list[tuple[int, int, int]]] = defaultdict(list)

    def owner(self, source: Source) -> Source | None:
        """The tensor that the size at `source` (`changed_numbers.size_origin`) is read of; None for what is no such size."""
        shape = source.base
        if source.kind != "item" or type(source.key) is not int or source.key < 0 or shape is None:
            return None
        is_shape = shape.kind == "member" and shape.key == "shape"
        return shape.base if is_shape and shape.base in self._tensors else None

    def needed(self, guard: Guard) -> tuple[Source, ...]:
        """The sources that must have been read before an expression is computed; for sizes, their tensors."""
        return tuple(dict.fromkeys(self.owner(leaf) or leaf for leaf in leaves(guard.value[0])))

    def word(self, source: Source) -> int:
        """The word of a size."""
        found = self._words.get(source)
        if found is None:
            found = self._words[source] = len(self._words)
            self._note(source, found, STORE)
        return found

    def add(self, guard: Guard, number: int, position: Callable[[Source], int]) -> bool:
        """Takes what an expression reads into the checks of its tensors, before these are asked for with `native`. Whether
        that is all of the guard, which is number `number`: it says that two sizes are equal. `position` says in which order
        tensors are checked."""
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

    def native(self, guard: Guard) -> Any:
        """The value of a tensor's guard as the native tree takes it: the facts, and where any size of it is read, with
        (dimension, word, guard) for each; it is written to the word, or by `guard` must be what is there."""
        reads = self._reads.get(guard.source) if guard.source is not None else None
        return (
            (guard.value, tuple(sorted(reads, key=lambda read: read[2] != STORE))) if reads else guard.value
        )


def _has_torchs_shape(cls: type) -> bool:
    found = next((vars(c)["shape"] for c in cls.__mro__ if "shape" in vars(c)), None)
    return found is torch.Tensor.shape
