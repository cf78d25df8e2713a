"""The memory that recorded operators wrote, or must not write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from smelt import _native
from smelt.graph.ir import Node
from smelt.reasons import UNSUPPORTED_EFFECT
from smelt.torch_private import DisableTorchFunction, set_version_counter
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.functionalize.view_copies import Copies
from smelt.tracing.record.current_call import CurrentCall
from smelt.tracing.record.trace_inputs import Inputs

T = TypeVar("T", bound=torch.Tensor)
_OF_LEAF, _RESTRICTED = 2, 3  # of `_native.how_written`


def _counts_for(written: FakeTensor, seen: FakeTensor) -> bool:
    """Whether autograd notices at `seen` that `written`, which lies in its memory, is written: what `.data` gives counts for
    itself."""
    if written.is_inference() or seen.is_inference():
        return True
    before, own = seen._version, written._version
    torch.autograd.graph.increment_version([written])
    counted = seen._version != before
    set_version_counter((written,), (own,))
    return counted


@dataclass(frozen=True)
class WriteCall:
    """A torch-level call that wrote the memory of `base`, which is no view and had `history` afterwards."""

    node: Node
    base: FakeTensor
    history: Any


class Writes:
    """What the operators of one trace wrote. Storages are told apart by `FakeTensor.storage_key`.

    Attributes:
        happened: some operator wrote memory (maybe of no tensor: an empty list).
        storages: those that operators wrote. Only grows.
        frozen: those that must not be written, because a NumPy array shares their memory. No trace goes on in which
            `storages` and `frozen` meet.
        autograd_writes: inputs that autograd was asked to write, by id, each with what it said (`_native.how_written`).
        calls: the torch-level calls that wrote, in order; one that wrote several tensors is there for each.
        addressed_from_start: tensors whose storage is addressed from its start, so that the offsets of the inputs which
            share it matter.
    """

    def __init__(self, call: CurrentCall, copies: Copies, inputs: Inputs) -> None:
        self.happened = False
        self.storages: set[int] = set()
        self.frozen: set[int] = set()
        self.autograd_writes: dict[int, tuple[FakeTensor, int]] = {}
        self.calls: list[WriteCall] = []
        self.addressed_from_start: list[FakeTensor] = []
        self._by_call: list[FakeTensor] = []  # written by the call that is running
        self._call = call
        self._copies = copies
        self._inputs = inputs

    def check_history(self, fake: FakeTensor, differentiated: bool) -> None:
        """`fake` is about to be written, by an operator that autograd differentiates or by another. Of an input what
        autograd says to that is guarded; other fakes say it themselves. Raises Unsupported where eager raises an
        error about views that no fake knows: at the write, or where the view is used next."""
        for root in self._inputs.in_storage(fake.storage_key):
            if differentiated or (root.requires_grad and _counts_for(fake, root)):
                _, how = self.autograd_writes.setdefault(
                    id(root), (root, _native.how_written(self._inputs.real(root)))
                )
                if how == _RESTRICTED or (differentiated and how == _OF_LEAF):
                    raise self._call.unsupported(UNSUPPORTED_EFFECT, "a view that autograd lets nobody write")

    def note(self, fakes: Iterable[FakeTensor]) -> None:
        """The operator that is running writes these. Raises Unsupported if one of them must not be written."""
        self.happened = self._call.mutated = True
        self._by_call += fakes
        written = {f.storage_key for f in fakes}
        self.storages |= written
        self._copies.record_writes(written)
        if not self.frozen.isdisjoint(self.storages):
            raise self._call.unsupported(
                UNSUPPORTED_EFFECT, "a tensor is written that shares memory with a NumPy array"
            )

    def record_call(self, node: Node) -> None:
        """The torch-level call that has just ended is `node`: autograd knows by now what it wrote."""
        if not self._by_call:
            return
        with DisableTorchFunction():
            bases = {id(base): base for base in map(base_of, self._by_call)}
        self.calls += [WriteCall(node, base, base.grad_fn) for base in bases.values()]
        self._by_call.clear()


def base_of(tensor: T) -> T:
    """What it is a view of to autograd, or itself."""
    return tensor if tensor._base is None else tensor._base  # type: ignore[return-value]
