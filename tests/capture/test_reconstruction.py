"""Reconstruction of objects in the source of a compiled frame: their identity, aliasing and cycles are preserved."""

from __future__ import annotations

import collections
import functools
import linecache
import traceback
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import smelt
from smelt.capture.emit.effect_replay import Store
from smelt.errors import Unsupported
from smelt.guards.source import Source
from tests.harness.emitted import HandMadeFrame, fake_of_two


def test_source_text() -> None:
    frame = HandMadeFrame()
    compiled = frame.emit({"y": fake_of_two(), "n": (1, "a", None)})
    name, *body = compiled.source.splitlines()
    assert name.startswith("def compiled_f(x, obj, inputs):")
    assert body == ["    t0, = graph(inputs)", "    return {'y': t0, 'n': (1, 'a', None)}"]


def test_returned_input_keeps_its_identity() -> None:
    frame = HandMadeFrame()
    x, obj = frame.run((frame.fx, frame.obj))
    assert x is frame.x and obj is frame.obj


class Point(NamedTuple):
    a: Any
    b: Any


@dataclass(frozen=True)
class Frozen:
    value: Any


class Slotted:
    __slots__ = ("__private", "left")

    def __init__(self, left: Any, private: Any) -> None:
        self.left, self.__private = left, private

    def state(self) -> Any:
        return self.left, self.__private


class Words(list):
    pass


class Loud(dict):
    """Its own methods must not run in its reconstruction."""

    def __init__(self, **items: Any) -> None:
        dict.update(self, items)

    def __setitem__(self, *a: Any) -> None:
        raise AssertionError

    def update(self, *a: Any) -> None:
        raise AssertionError

    def __setattr__(self, *a: Any) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    "make",
    [
        lambda t: [t, (t,), {"k": t}],
        lambda t: Point(t, b=2.5),
        lambda t: {1, 2, (3, float("inf"))},
        lambda t: frozenset({"a"}),
        lambda t: collections.deque([t, 1], maxlen=3),
        lambda t: collections.OrderedDict(b=t, a=1),
        lambda t: collections.defaultdict(list, k=[t]),
        lambda t: collections.Counter("aab"),
        lambda t: Loud(a=t),
        lambda t: Words([t]),
        lambda t: slice(1, None, 2),
        lambda t: range(3),
        lambda t: (torch.float32, torch.Size([1, 2]), torch.device("cpu"), ..., 1j, float("nan"), -0.0, b"x"),
        lambda t: (int, nn.Linear, len, torch.exp),
        lambda t: torch.return_types.max([t, t]),
        lambda t: True,
        lambda t: None,
    ],
)
def test_containers(make: Any) -> None:
    frame = HandMadeFrame()
    want, got = make(frame.x * 2), frame.run(make(fake_of_two()))
    assert type(got) is type(want)
    assert repr(got) == repr(want)


def test_instances() -> None:
    frame = HandMadeFrame()
    got = frame.run([Frozen(fake_of_two()), Slotted(fake_of_two(), 3), ValueError("bad", 1)])
    assert torch.equal(got[0].value, frame.x * 2)
    assert torch.equal(got[1].state()[0], frame.x * 4) and got[1].state()[1] == 3
    assert type(got[2]) is ValueError and got[2].args == ("bad", 1)


def test_model_output() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    frame = HandMadeFrame()
    cls = outputs.BaseModelOutputWithPooling
    got = frame.run(cls(last_hidden_state=fake_of_two(), hidden_states=(fake_of_two(),)))
    assert type(got) is cls and list(got) == ["last_hidden_state", "hidden_states"]
    assert got.last_hidden_state is got["last_hidden_state"] is got[0]
    assert got.pooler_output is None and torch.equal(got.hidden_states[0], frame.x * 4)


def test_functions_methods_and_cells() -> None:
    t, factor = fake_of_two(), 3

    def scaled(y: Any, *, by: Any = t) -> Any:
        return y + by * factor

    frame = HandMadeFrame()
    frame.sources[id(globals())] = Source("const", "globals", value=globals())
    f, method, part = frame.run((scaled, frame.obj.get, functools.partial(scaled, 1, by=2)))
    assert torch.equal(f(1), 1 + frame.x * 2 * 3) and f.__name__ == "scaled"
    assert method.__self__ is frame.obj
    assert part() == 7


def test_aliases_stay_one_object() -> None:
    frame = HandMadeFrame()
    shared = [fake_of_two()]
    pair = (shared, 1)
    got = frame.run({"a": shared, "b": shared, "c": pair, "d": [pair]})
    assert got["a"] is got["b"] is got["c"][0] and got["d"][0] is got["c"]


def test_cycles() -> None:
    frame = HandMadeFrame()
    ring: list[Any] = [fake_of_two()]
    ring.append((ring, 1))
    got = frame.run((ring,))
    assert got[0][1][0] is got[0]
    node = Slotted(None, None)
    node.left = {"me": node}
    got = frame.run(node)
    assert got.left["me"] is got


def test_deeply_nested_results_need_no_recursion() -> None:
    deep: Any = None
    for _ in range(50):
        deep = [deep]
    assert HandMadeFrame().run(deep) == deep


def test_environment_objects_are_collected() -> None:
    frame = HandMadeFrame()
    cache: list[Any] = []
    frame.sources[id(cache)] = frame.sources[id(frame.obj)].child("attr", "cache")
    compiled = frame.emit((fake_of_two(), cache, cache))
    assert "cache = inputs[1]  # L['obj'].cache" in compiled.source and "graph(inputs[:1])" in compiled.source
    assert [o.source for o in compiled.collect] == ["L['x']", "L['obj'].cache"]
    assert compiled.function(frame.x, frame.obj, (frame.x, cache))[1] is cache


def test_stores_come_after_all_values_in_order() -> None:
    frame = HandMadeFrame()
    t = fake_of_two()
    got = frame.run(
        t,
        Store("{}.data['k'] = {}", (frame.obj, [t])),
        Store("{}.data['n'] = {}", (frame.obj, 1)),
    )
    assert list(frame.obj.data) == ["k", "n"] and frame.obj["k"][0] is got


class Finalized:
    def __del__(self) -> None: ...


class Odd:
    def __hash__(self) -> int:
        return 1


@pytest.mark.parametrize(
    "make", [lambda: (i for i in ()), lambda: memoryview(b""), Finalized, lambda: {Odd(): 1}]
)
def test_unsupported_objects_are_refused(make: Any) -> None:
    with pytest.raises(Unsupported, match="unsupported-object"):
        HandMadeFrame().emit([make()])


def test_tracebacks_show_the_source() -> None:
    frame = HandMadeFrame()
    compiled = frame.emit(fake_of_two(), Store("{}.missing.attribute = {}", (frame.obj, 1)))
    try:
        compiled.function(frame.x, frame.obj, (frame.x,))
    except AttributeError as e:
        last = traceback.extract_tb(e.__traceback__)[-1]
    assert last.name == "compiled_f" and last.line == "obj.missing.attribute = 1"
    filename = compiled.function.__code__.co_filename
    assert filename in linecache.cache
    del compiled, last
    import gc

    gc.collect()
    assert filename not in linecache.cache


def _grid() -> Any:
    x, y = np.meshgrid(np.linspace(0, 1, 90), np.linspace(0, 1, 60))
    inside = np.zeros_like(x)
    inside += x**2 + y**2 <= 1
    return inside, x


def _views() -> Any:
    x = np.linspace(0, 1, 7)
    part, back = x[2:5], x[::-2]
    part += 1
    return {
        "part": part,
        "x": x,
        "back": [back, x.reshape(7, 1).T],
        "dates": np.arange("2020-01", "2020-04", dtype="M8[M]"),
    }


@pytest.mark.parametrize("make", [_grid, _views, lambda: np.arange(2000)])
def test_arrays_of_numbers(make: Any) -> None:
    """Each call returns new arrays, which share memory where eager's do."""
    compiled = smelt.compile(lambda t: (t + 1, make()), fullgraph=True)
    for _ in range(2):
        found, expected = pytree.tree_leaves(compiled(torch.ones(2))[1]), pytree.tree_leaves(make())
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
            assert (ours.dtype, ours.strides, ours.flags.owndata) == (
                theirs.dtype,
                theirs.strides,
                theirs.flags.owndata,
            )
        shared = [[np.shares_memory(a, b) for a in arrays for b in arrays] for arrays in (found, expected)]
        assert shared[0] == shared[1]
        found[0][...] = found[1 % len(found)].flat[0]  # which no later call sees
