"""The memory that recorded operators wrote, or must not write."""

from __future__ import annotations

from collections.abc import Iterable

from smelt.reasons import UNSUPPORTED_EFFECT
from smelt.trace.copies import Copies
from smelt.trace.current_call import CurrentCall
from smelt.trace.fake import FakeTensor


class Writes:
    """What the operators of one trace wrote. Storages are told apart by `FakeTensor.storage_key`.

    Attributes:
        happened: some operator wrote memory (maybe of no tensor: an empty list).
        storages: those that operators wrote. Only grows.
        frozen: those that must not be written, because a NumPy array shares their memory. No trace goes on in which
            `storages` and `frozen` meet.
        counted_from_start: tensors whose storage is addressed from its start, so that the offsets of the inputs which
            share it matter.
    """

    def __init__(self, call: CurrentCall, copies: Copies) -> None:
        self.happened = False
        self.storages: set[int] = set()
        self.frozen: set[int] = set()
        self.counted_from_start: list[FakeTensor] = []
        self._call = call
        self._copies = copies

    def note(self, storages: Iterable[int]) -> None:
        """The operator that is running writes these. Raises Unsupported if one of them must not be written."""
        self.happened = self._call.wrote = True
        written = set(storages)
        self.storages |= written
        self._copies.note_written(written)
        if not self.frozen.isdisjoint(self.storages):
            raise self._call.unsupported(
                UNSUPPORTED_EFFECT, "a tensor is written that shares memory with a NumPy array"
            )
