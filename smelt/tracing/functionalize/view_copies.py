"""Copies that the aten level has where eager has views, and whether the program can tell.

Where a program indexes a tensor by a place that only a run knows (`smelt.tracing.composites.row_indexing`), eager
gives a view and the aten level a gathered copy. That is as good as long as neither is written, the view does not leave
the graph and nothing asks where it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from smelt.tracing.fake.fake_tensor import FakeTensor


class NotCopies(Exception):
    """A copy was made in place of a view, and the program can tell."""


class Copies:
    """The copies of one trace, by their storages.

    Attributes:
        allowed: whether to make any.
        made: the storages of the copies; `sources` what they are copies of.
        distinguished: the program did what gives another result for a copy than for a view.
    """

    def __init__(self) -> None:
        self.allowed = True
        self.made: set[int] = set()
        self.sources: set[int] = set()
        self.distinguished = False

    def add(self, copy: FakeTensor, source: FakeTensor) -> None:
        """`copy` was made where eager has a view of `source`."""
        self.made.add(copy.storage_key)
        self.sources.add(source.storage_key)

    def record_writes(self, storages: set[int]) -> None:
        """An operator wrote these storages."""
        if self.made and not (storages.isdisjoint(self.made) and storages.isdisjoint(self.sources)):
            self.distinguished = True

    def record_query(self, fake: FakeTensor) -> None:
        """The program asks `fake` for more than its metadata and values."""
        self.distinguished |= bool(self.made) and fake.storage_key in self.made

    def check(self, leaving: Iterable[FakeTensor]) -> None:
        """Raises NotCopies if the program can tell, `leaving` being the tensors that leave the graph."""
        if self.made and (self.distinguished or any(f.storage_key in self.made for f in leaving)):
            raise NotCopies
