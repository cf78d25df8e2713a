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
_OF_LEAF, _RESTRICTED = 2, 3  # results of `_native.write_restriction`


def _shares_counter(written: FakeTensor, other: FakeTensor) -> bool:
    """Whether a write of `written` increments the version of `other`, in whose memory it is: a result of `.data` has a
    counter of its own."""
    if written.is_inference() or other.is_inference():
        return True
    before, version = other._version, written._version
    torch.autograd.graph.increment_version([written])
    is_shared = other._version != before
    set_version_counter((written,), (version,))
    return is_shared


@dataclass(frozen=True)
class WriteCall:
    """A torch-level call that wrote the memory of `base`, which is no view and had `history` afterwards."""

    node: Node
    base: FakeTensor
    history: Any


class Writes:
    """The writes of one trace. Storages are identified by `FakeTensor.storage_key`.

    Attributes:
        happened: some operator wrote memory (possibly of no tensor: an empty list).
        storages: the written storages. Only grows.
        frozen: storages that must not be written, because a NumPy array shares their memory. No trace continues in
            which `storages` and `frozen` intersect.
        autograd_writes: by id, inputs for which autograd's reaction to a write was queried, with its result
            (`_native.write_restriction`).
        calls: the torch-level calls that wrote, in order; a call that wrote several tensors appears once for each.
        addressed_from_start: tensors whose storage is addressed from its start, so that the offsets of inputs in
            it matter.
    """

    def __init__(self, call: CurrentCall, copies: Copies, inputs: Inputs) -> None:
        self.happened = False
        self.storages: set[int] = set()
        self.frozen: set[int] = set()
        self.autograd_writes: dict[int, tuple[FakeTensor, int]] = {}
        self.calls: list[WriteCall] = []
        self.addressed_from_start: list[FakeTensor] = []
        self._current_writes: list[FakeTensor] = []  # by the call that is running
        self._call = call
        self._copies = copies
        self._inputs = inputs

    def check_history(self, fake: FakeTensor, differentiated: bool) -> None:
        """Check a write of `fake` by an operator that autograd differentiates (or not). Autograd's reaction for an
        input is guarded; other fakes raise themselves. Raises Unsupported where eager raises errors about views that
        fakes cannot: at the write, or at the view's next use."""
        for root in self._inputs.in_storage(fake.storage_key):
            if differentiated or (root.requires_grad and _shares_counter(fake, root)):
                _, how = self.autograd_writes.setdefault(
                    id(root), (root, _native.write_restriction(self._inputs.real(root)))
                )
                if how == _RESTRICTED or (differentiated and how == _OF_LEAF):
                    raise self._call.unsupported(
                        UNSUPPORTED_EFFECT, "a view that autograd does not allow to be written"
                    )

    def record(self, fakes: Iterable[FakeTensor]) -> None:
        """Record that the running operator writes these. Raises Unsupported if one of them must not be written."""
        self.happened = self._call.mutated = True
        self._current_writes += fakes
        written = {f.storage_key for f in fakes}
        self.storages |= written
        self._copies.record_writes(written)
        if not self.frozen.isdisjoint(self.storages):
            raise self._call.unsupported(
                UNSUPPORTED_EFFECT, "a write to a tensor that shares memory with a NumPy array"
            )

    def record_call(self, node: Node) -> None:
        """Record what the torch-level call `node` wrote, when it has ended and autograd has updated histories."""
        if not self._current_writes:
            return
        with DisableTorchFunction():
            bases = {id(base): base for base in map(base_of, self._current_writes)}
        self.calls += [WriteCall(node, base, base.grad_fn) for base in bases.values()]
        self._current_writes.clear()


def base_of(tensor: T) -> T:
    """The base of a view for autograd, or the tensor itself."""
    return tensor if tensor._base is None else tensor._base  # type: ignore[return-value]
