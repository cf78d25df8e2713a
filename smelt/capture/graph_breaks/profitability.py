"""Profitability of compiling the code after a graph break: it has tensors."""

from __future__ import annotations

import gc
import itertools
import types
from collections import deque
from collections.abc import Iterable

import torch

from smelt._native import isinstance
from smelt.capture.base.vm_frames import SEQUENCE_ITERATOR, Generator, VMCallable, VMIterator, VMSequence
from smelt.capture.graph_breaks.reachable_objects import reachable

_CONTAINERS: tuple[type, ...] = (
    list, tuple, dict, set, frozenset, deque, types.CellType, SEQUENCE_ITERATOR, enumerate, zip, map, filter, reversed,
    *map(type, map(iter, ((), [], {}, {}.values(), {}.items(), set()))),
    itertools.chain, itertools.islice, itertools.accumulate, itertools.starmap, itertools.takewhile, itertools.dropwhile,
    itertools.filterfalse,
)  # fmt: skip


def has_tensors(values: Iterable[object]) -> bool:
    """Whether a tensor or a module is reachable from `values` through containers, closures and attributes."""
    return any(isinstance(x, (torch.Tensor, torch.nn.Module)) for x in reachable(values, _children))


def _children(x: object) -> Iterable[object]:
    if type(x) in _CONTAINERS:
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
