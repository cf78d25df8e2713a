"""Replaced contents of containers: elements and order are right, and other threads never find a container empty."""

from __future__ import annotations

import collections
import itertools
import random
import sys
import threading

import pytest
import torch

import smelt
from smelt.capture.emit.container_updates import REFILLS


class Table(dict):
    def __setitem__(self, key, value):
        raise AssertionError


class Ordered(collections.OrderedDict):
    def __delitem__(self, key):
        raise AssertionError


def emptied(base, target, items):
    """What clearing and filling gives."""
    base.clear(target)
    if base is collections.OrderedDict:
        for key, value in items:
            base.__setitem__(target, key, value)
    else:
        (base.extend if base is collections.deque else base.update)(target, items)


@pytest.mark.parametrize("kind", [dict, Table, collections.Counter, collections.OrderedDict, Ordered, set])
def test_equals_clear_and_refill(kind) -> None:
    base = next(b for b in (collections.OrderedDict, dict, set) if issubclass(kind, b))
    rng = random.Random(0)
    for _ in range(300):
        before, after = (rng.sample([0, 1.0, True, "a", "b", (1,), None, 7], rng.randrange(7)) for _ in "ab")
        got, want = kind(), kind()
        for made in (got, want):
            emptied(base, made, before if base is set else [(k, 1) for k in dict.fromkeys(before)])
        items = tuple(after if base is set else dict.fromkeys(after, 2).items())
        items = tuple(set(after)) if base is set else items
        REFILLS[base.__name__](got, items)
        emptied(base, want, items)
        assert list(map(repr, got)) == list(map(repr, want)), (before, after)
        assert got == want


def test_a_bounded_deque() -> None:
    target = collections.deque([1, 2, 3], maxlen=3)
    REFILLS["deque"](target, (4, 5))
    assert list(target) == [4, 5]


class Shared:
    def __init__(self) -> None:
        self.set = {1, 2}
        self.ordered = collections.OrderedDict(a=1, b=2)
        self.dict = {"a": 1, "b": 2}


def test_other_threads_never_find_a_container_empty() -> None:
    """Python would let a reader see the moment after `clear()`; a replay has none."""
    shared = Shared()

    def fn(x, n):
        for held, items in (
            (shared.set, {n, 1}),
            (shared.ordered, {"b": n, "a": 1}),
            (shared.dict, {"b": n, "a": 1}),
        ):
            held.clear()
            held.update(items)
        return x + 1

    compiled, empty, stop = smelt.compile(fn), [], threading.Event()

    def read() -> None:
        while not stop.is_set():
            if not (
                shared.set and shared.ordered and shared.dict and "a" in shared.ordered and 1 in shared.set
            ):
                empty.append(1)

    x = torch.ones(2)
    for n in range(4):
        compiled(x, n)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=read)
    thread.start()
    try:
        for n in itertools.islice(itertools.cycle(range(4)), 300):
            compiled(x, n)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not empty
    assert list(shared.dict) == ["b", "a"] and list(shared.ordered) == ["b", "a"]
