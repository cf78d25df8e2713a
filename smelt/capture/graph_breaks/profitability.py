"""Whether there is something to compile in what goes on behind a graph break: it has tensors."""

from __future__ import annotations

import gc
import itertools
import types
from collections import deque
from collections.abc import Iterable

import torch

from smelt._native import isinstance
from smelt.capture.base.vm_frames import SEQUENCE_ITERATOR, Generator, VMCallable, VMIterator, VMSequence
from smelt.capture.graph_breaks.reachable_objects import nearby

_HOLDING: tuple[type, ...] = (
    list, tuple, dict, set, frozenset, deque, types.CellType, SEQUENCE_ITERATOR, enumerate, zip, map, filter, reversed,
    *map(type, map(iter, ((), [], {}, {}.values(), {}.items(), set()))),
    itertools.chain, itertools.islice, itertools.accumulate, itertools.starmap, itertools.takewhile, itertools.dropwhile,
    itertools.filterfalse,
)  # fmt: skip


def has_tensors(values: Iterable[object]) -> bool:
    """Whether a tensor or a module is near: among `values`, in what they contain, in closures and attributes."""
    return any(isinstance(x, (torch.Tensor, torch.nn.Module)) for x in nearby(values, _held))


def _held(x: object) -> Iterable[object]:
    if type(x) in _HOLDING:
        return gc.get_referents(x)
    if isinstance(x, VMCallable):
        return (x.function,)
    if isinstance(x, VMIterator):
        return (x.iterator,)
    if isinstance(x, VMSequence):
        return (x.sequence,)
    if type(x) is types.FunctionType:
        return (*(x.__closure__ or ()), *(x.__defaults__ or ()))
    if type(x) is types.MethodType:
        return x.__self__, x.__func__
    if isinstance(x, Generator):
        return *x.frame.locals, *x.frame.stack
    if isinstance(x, (type, types.ModuleType)):
        return ()
    try:
        return tuple(object.__getattribute__(x, "__dict__").values())
    except Exception:
        return ()
