"""`torch.cond` whose branches are small: both are computed, and each element of the results is chosen.

That is what eager gives only where a branch does nothing but compute, cannot raise, and needs no gradient (a branch that is
not taken would give NaN times zero). What was recorded tells, when both branches have run; where it is otherwise, the frame
is captured again without (`Attempt.selects`), and the graph breaks at the condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import cast

import torch

from smelt._native import isinstance
from smelt.autograd.classes import class_of
from smelt.capture.base.handlers import Args, Kwargs, function, unsupported
from smelt.capture.base.values import LEAF_TYPES
from smelt.capture.machine.vm import VM
from smelt.capture.protocol import polyfills_of_torch as polyfills
from smelt.graph.ir import Node
from smelt.ops.raising import must_run
from smelt.reasons import DATA_DEPENDENT
from smelt.trace.fake import FakeTensor, fakes_in

_MOST = 32  # nodes of both branches
_CHEAP = frozenset(("view", "creation", "pointwise", "transcendental", "movement", "reduction", "input"))


@dataclass(frozen=True)
class _Mark:
    """How much was recorded and changed before the branches."""

    entries: int
    changes: tuple[int, int]


def _changes(vm: VM) -> tuple[int, int]:
    return vm.outside.log.changed, len(vm.outside.log.calls)


@function(cast(FunctionType, polyfills.begin_choice))
def _begin(vm: VM, args: Args, kwargs: Kwargs) -> _Mark | None:
    """A mark, if `pred` is a condition that only the graph knows, and both branches may be tried."""
    (pred,) = args
    if type(pred) is not FakeTensor or not vm.disclosed.selects or pred.dtype is not torch.bool:
        return None
    if pred.device.type != "cpu" or pred.numel() != 1 or vm.trace.known.value(pred) is not None:
        return None
    if torch._C._functorch.maybe_current_level() is not None or vm.trace.call.is_opaque:
        return None
    vm.disclosed.choosing += 1
    return _Mark(len(vm.trace.tape.entries), _changes(vm))


@function(cast(FunctionType, polyfills.choose))
def _choose(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """The result of one branch or the other. Raises Unsupported, while a choice is open, where that is not what eager
    gives."""
    mark, pred, *results = args
    assert isinstance(mark, _Mark)
    added = [entry.node for entry in vm.trace.tape.entries[mark.entries :]]
    if _changes(vm) != mark.changes or len(added) > _MOST or not all(map(_is_small, added)):
        raise unsupported("branches that do more than compute a little", DATA_DEPENDENT)
    before = {f.storage_key for entry in vm.trace.tape.entries[: mark.entries] for f in fakes_in(entry.out)}
    before.update(f.storage_key for f in vm.trace.inputs)
    made = _chosen(vm, cast(FakeTensor, pred), results[0], results[1], before)
    vm.disclosed.choosing -= 1
    return made


def _is_small(node: Node) -> bool:
    return class_of(node).name in _CHEAP and not must_run(node)


def _chosen(vm: VM, pred: FakeTensor, a: object, b: object, before: set[int]) -> object:
    if type(a) is not type(b):
        raise unsupported("branches with results of other types", DATA_DEPENDENT)
    if isinstance(a, FakeTensor) and isinstance(b, FakeTensor):
        return _selected(vm, pred, a, b, before)
    if (
        type(a) in (tuple, list)
        and isinstance(a, (tuple, list))
        and isinstance(b, (tuple, list))
        and len(a) == len(b)
    ):
        return type(a)(_chosen(vm, pred, x, y, before) for x, y in zip(a, b))
    if type(a) is dict and isinstance(b, dict) and list(a) == list(b):
        return {k: _chosen(vm, pred, a[k], b[k], before) for k in a}
    if type(a) in LEAF_TYPES and a == b:
        return a
    raise unsupported("branches with other results", DATA_DEPENDENT)


def _selected(vm: VM, pred: FakeTensor, a: FakeTensor, b: FakeTensor, before: set[int]) -> object:
    if a.spec != b.spec or a.requires_grad or b.requires_grad or {a.storage_key, b.storage_key} & before:
        raise unsupported("branches with tensors of other layouts, or with gradients", DATA_DEPENDENT)
    made = vm.native(torch.where, (vm.native(torch.Tensor.reshape, (pred, ())), a, b))
    if not isinstance(made, FakeTensor) or made.spec != a.spec:
        raise unsupported("branches with tensors of such layouts", DATA_DEPENDENT)
    return made
