"""Copies at the aten level where eager has views, and whether the program can distinguish them.

Where a program indexes a tensor by a position that is known only at run time
(`smelt.tracing.composites.row_indexing`), eager returns a view and the aten level a gathered copy. They are equivalent
as long as neither is written, the view does not leave the graph and nothing queries its memory. The same holds for a
branch result that is an existing tensor, but it may leave the graph: the compiled frame selects the tensor itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from smelt.graph.ir import TensorSpec
from smelt.tracing.fake.fake_tensor import FakeTensor


class NotCopies(Exception):
    """The program can distinguish a copy from the view that it replaces."""


class Copies:
    """The copies of one trace, by storage.

    Attributes:
        allowed: whether copies may be created.
        storages: the storages of the copies; `sources` those they are copied from.
        distinguished: the program did something with a different result for a copy than for a view.
    """

    def __init__(self) -> None:
        self.allowed = True
        self.storages: set[int] = set()
        self.sources: set[int] = set()
        self.distinguished = False
        self._layouts: list[
            tuple[FakeTensor, TensorSpec]
        ] = []  # of tensors that have alternatives or are some

    def add(self, copy: FakeTensor, sources: Iterable[FakeTensor]) -> None:
        """Record that `copy` was created where eager has one of `sources`, or a view of it."""
        sources = list(sources)
        self.storages.add(copy.storage_key)
        self.sources.update(source.storage_key for source in sources)
        if copy.alternatives:
            self._layouts += [(f, f.spec) for f in (copy, *sources)]

    def record_writes(self, written: set[int]) -> None:
        """Record that an operator wrote these storages."""
        if self.storages and not (written.isdisjoint(self.storages) and written.isdisjoint(self.sources)):
            self.distinguished = True

    def record_query(self, fake: FakeTensor) -> None:
        """Record that the program queries more of `fake` than its metadata and values."""
        self.distinguished |= bool(self.storages) and fake.storage_key in self.storages

    def check(self, leaving: Iterable[FakeTensor]) -> None:
        """Raise NotCopies if the program can distinguish copies from views; `leaving`: the tensors that leave the
        graph."""
        leaves = any(f.storage_key in self.storages and not f.alternatives for f in leaving)
        leaves |= any(f.spec != spec or (f.alternatives and f.__dict__) for f, spec in self._layouts)
        if self.storages and (self.distinguished or leaves):
            raise NotCopies
