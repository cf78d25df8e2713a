"""Comparisons of environment objects in sets, dictionaries and sequences: guards check which objects are identical, not
which objects they are, unless the order of a set depends on it."""

import logging
import random
import types

import pytest
import torch
from torch import nn

import smelt
from smelt.report.inspect import entries


class Thing:
    def __init__(self, size=1):
        self.size = size


def added(a, b):
    seen = set()
    seen.add(a)
    seen.add(b)
    return len(seen)


def filled(a, b):
    held = {}
    held.setdefault(a, []).append(1)
    held.setdefault(b, []).append(2)
    return held[a]


def stored(a, b):
    held = {a: 1}
    held[b] = 2
    return held[a]


PROGRAMS = {
    "get": lambda a, b: {a: 1}.get(b, 5),
    "set display": lambda a, b: len({a, b}),
    "equal sets": lambda a, b: {a} == {b},
    "dictionary display": lambda a, b: len({a: 1, b: 2}),
    "in a dictionary": lambda a, b: b in {a: 1},
    "in a set": lambda a, b: b in {a},
    "in a list": lambda a, b: b in [a],
    "in a tuple": lambda a, b: b in (a, 1),
    "intersection": lambda a, b: len({a} & {b}),
    "union": lambda a, b: len({a}.union([b])),
    "disjoint": lambda a, b: {a}.isdisjoint({b}),
    "add": added,
    "setdefault": filled,
    "store": stored,
    "equal lists": lambda a, b: [a] == [b],
    "equal tuples": lambda a, b: (a, 1) == (b, 1),
    "equal dictionaries": lambda a, b: {1: [a]} == {1: [b]},
    "fromkeys": lambda a, b: len(dict.fromkeys([a, b])),
    "tuples as keys": lambda a, b: len({(a, 1), (b, 1)}),
    "comprehension": lambda a, b: len({k for k in (a, b) if k}),
    "count": lambda a, b: [a, a, 1].count(b),
    "set of a list": lambda a, b: len(set([a, b])),  # noqa: C405
    "equality": lambda a, b: a == b,
    "identity": lambda a, b: a is b,
}


def thing(k):
    return Thing(k)


def function(k):
    return lambda: 0


@pytest.mark.parametrize("make", [thing, function, nn.Identity])
@pytest.mark.parametrize("name", PROGRAMS)
def test_recompiles_only_if_identities_change(name, make):
    program = PROGRAMS[name]

    def fn(x, a, b):
        return x + 1, program(a, b)

    compiled, x = smelt.compile(fn, backend="eager"), torch.ones(2)
    one = make(0)
    for a, b in [(make(1), make(2)), (make(3), make(4)), (one, one), (make(5), make(6)), (one, one)]:
        assert compiled(x, a, b)[1] == fn(x, a, b)[1]
    assert len(entries(compiled)) == 2


def test_set_order_of_environment_objects_is_eagers():
    logging.getLogger("smelt").setLevel(logging.ERROR)

    def fn(x, *things):
        seen = set(things)
        for one in {*things}:
            x = x * 2 + one.size
        return x, [one.size for one in seen], seen.pop().size

    compiled, x = smelt.compile(fn, backend="eager"), torch.ones(1)
    things = [Thing(k) for k in range(20)]
    for seed in range(8):
        chosen = random.Random(seed).sample(things, 4)
        assert compiled(x, *chosen) == fn(x, *chosen)


KNOWN = Thing(7)
ALL = {KNOWN}


@pytest.mark.parametrize(
    "read",
    [lambda held: held.thing in ALL, lambda held: held.thing.size, lambda held: held.thing is KNOWN],
    ids=["in the set", "attribute", "identity"],
)
def test_set_element_that_changes_elsewhere(read):
    def fn(x, held):
        return x + sum(one.size for one in ALL), read(held)

    compiled, x = smelt.compile(fn, backend="eager"), torch.ones(1)
    for one in (KNOWN, Thing(5), KNOWN, Thing(5)):
        held = types.SimpleNamespace(thing=one)
        assert compiled(x, held) == fn(x, held)


def test_search_for_functions_in_sequences():
    def f():
        pass

    def fn(x):
        return x, [f, f].count(f), (1, f).index(f), [KNOWN.__init__].count(KNOWN.__init__)

    compiled = smelt.compile(fn, backend="eager")
    assert compiled(torch.ones(1))[1:] == (2, 1, 1)
    assert len(entries(compiled)) == 1


class Walked(nn.Module):
    def __init__(self, walk):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
        self.walk = walk

    def forward(self, x):
        for name, child in getattr(self.layers, self.walk)():
            x = child(x) if name else x + 1
        return x


@pytest.mark.parametrize("walk", ["named_children", "named_modules"])
def test_iteration_over_modules_created_per_call_is_one_graph(walk):
    def fn(x, model):
        return model(x)

    compiled, x = smelt.compile(fn, backend="eager"), torch.ones(2, 3)
    for _ in range(4):
        model = Walked(walk)
        assert torch.equal(compiled(x, model), fn(x, model))
    assert len(entries(compiled)) == 1


def test_iteration_over_modules_created_before_a_break_is_one_graph():
    def fn(x):
        model = Walked("named_children")
        smelt.graph_break()
        return model(x).shape

    compiled = smelt.compile(fn, backend="eager")
    for _ in range(12):
        compiled(torch.ones(2, 3))
    assert len(entries(compiled)) == 1


def test_iteration_over_many_modules_with_breaks_does_not_warn(caplog):
    layers = nn.Sequential(*[nn.Linear(3, 3) for _ in range(12)])

    def fn(x):
        for child in layers.children():
            x = child(x)
            smelt.graph_break()
        return x

    logging.getLogger("smelt").setLevel(logging.WARNING)
    compiled, x = smelt.compile(fn, backend="eager"), torch.ones(2, 3)
    for _ in range(2):
        assert torch.equal(compiled(x), fn(x))
    assert not [r for r in caplog.records if "step_of" in r.getMessage()]


def test_comparison_of_sequences_with_overridden_methods():
    def refused(self, *args):
        raise NotImplementedError

    own = {"__len__": refused, "__iter__": refused, "index": refused, "count": refused}
    kinds = [type("Own", (base,), own) for base in (tuple, list, frozenset)]

    def fn(x, a, b):
        return [(a == kind((b,))) + (kind([a]) in [kind([b]), 3]) for kind in kinds], x + 1

    compiled, x = smelt.compile(fn), torch.ones(2)
    one, other = Thing(), Thing()
    for a, b in ((one, other), (one, one), (other, one)):
        assert compiled(x, a, b)[0] == fn(x, a, b)[0]
    assert entries(compiled)


def test_iteration_over_sets_with_overridden_iterator():
    class Own(set):
        asked = 0

        def __iter__(self):
            Own.asked += 1
            return super().__iter__()

    def fn(x, a, b):
        held = Own([a, b])
        return [v.size for v in held], len({*held}), x + 1

    def times_asked(run):
        Own.asked = 0
        for _ in range(3):
            run(torch.ones(2), Thing(1), Thing(1))
        return Own.asked

    assert times_asked(smelt.compile(fn)) == times_asked(fn)
