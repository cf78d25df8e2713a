"""Keys with `__hash__` and `__eq__` in Python: dictionaries and sets call them as often as in eager code, in its order."""

import collections
import copy
import functools
import os
import types

import pytest
import torch

import smelt
from smelt.report.inspect import reasons


class Key:
    """Notes who is asked: all keys have the same hash."""

    def __init__(self, name, asked):
        self.name, self.asked = name, asked

    def __hash__(self):
        self.asked.append(("hash", self.name))
        return 7

    def __eq__(self, other):
        self.asked.append(("eq", self.name))
        return isinstance(other, Key) and self.name == other.name


class Missing(dict):
    def __missing__(self, key):
        self[key] = 5
        return 6


def store(d, key):
    d[key] = 3


def delete(d, key):
    del d[key]


def add(d, key):
    d[key] += 1


MAPPINGS = {
    "dict": dict,
    "ordered": collections.OrderedDict,
    "default": functools.partial(collections.defaultdict, int),
    "counter": collections.Counter,
    "missing": Missing,
    "chain": collections.ChainMap,
    "proxy": types.MappingProxyType,
}
ON_MAPPINGS = {
    "get item": lambda d, key: d[key],
    "store": store,
    "delete": delete,
    "add": add,
    "get": lambda d, key: d.get(key),
    "contains": lambda d, key: key in d,
    "setdefault": lambda d, key: d.setdefault(key, 3),
    "pop": lambda d, key: d.pop(key, None),
    "update": lambda d, key: d.update([(key, 2)]),
    "update by a dictionary": lambda d, key: d.update({key: 2}),
    "keys": lambda d, key: key in d.keys(),  # noqa: SIM118
    "items": lambda d, key: (key, 1) in d.items(),
    "union": lambda d, key: d | {key: 1},
    "equality": lambda d, key: d == {key: 1},
    "list": lambda d, key: list(d.items()),
    "copy": lambda d, key: copy.copy(d),
    "dict": lambda d, key: dict(d),
    "unpacked": lambda d, key: {**d},
    "fromkeys": lambda d, key: dict.fromkeys(d),
    "set": lambda d, key: set(d),
    "count": lambda d, key: collections.Counter([key, *d, key]),
    "cleared": lambda d, key: d.clear(),
}
# A store in an outside dictionary is replayed, and asks the key again (docs/cpython.md).
STORING = ("store", "add", "setdefault", "update", "update by a dictionary")
ON_SETS = {
    "add": lambda s, key: s.add(key),
    "contains": lambda s, key: key in s,
    "discard": lambda s, key: s.discard(key),
    "update": lambda s, key: s.update([key, key]),
    "union": lambda s, key: s | {key},
    "intersection": lambda s, key: s & {key},
    "subset": lambda s, key: s <= {key},
    "copy": lambda s, key: copy.copy(s),
    "frozen": lambda s, key: key in frozenset(s),
}


def attempted(act, container, key):
    try:
        act(container, key)
    except Exception as error:
        return type(error)
    return len(container)


def inside(x, make, act, name):
    asked = []
    container = make(Key("a", asked))
    asked.clear()
    found = attempted(act, container, Key(name, asked))
    return x + 1, asked, found


def outside(x, container, act, key):
    found = attempted(act, container, key)
    return x + 1, found


def check_inside(make, act, name):
    expected = inside(torch.ones(2), make, act, name)
    compiled = smelt.compile(inside, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2), make, act, name)[1:] == expected[1:]


def check_outside(make, act, name):
    compiled = smelt.compile(outside, backend="eager")
    for run in (outside, compiled, compiled):
        asked = []
        container, key = make(Key("a", asked)), Key(name, asked)
        asked.clear()
        _, found = run(torch.ones(2), container, act, key)
        if run is outside:
            expected = list(asked), found
        assert (asked, found) == expected


def of_mapping(kind):
    return lambda key: MAPPINGS[kind]({key: 1})


def of_set(key):
    return {key}


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("act", ON_MAPPINGS)
@pytest.mark.parametrize("kind", MAPPINGS)
def test_created_mappings(kind, act, name):
    check_inside(of_mapping(kind), ON_MAPPINGS[act], name)


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("act", [a for a in ON_MAPPINGS if a not in STORING])
@pytest.mark.parametrize("kind", MAPPINGS)
def test_environment_mappings(kind, act, name):
    check_outside(of_mapping(kind), ON_MAPPINGS[act], name)


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("check", [check_inside, check_outside])
@pytest.mark.parametrize("act", ON_SETS)
def test_sets(act, check, name):
    check(of_set, ON_SETS[act], name)


def test_tuple_with_python_key_in_set_alive_at_a_break():
    def fn(x):
        asked = []
        held = {(Key("a", asked), 1)}
        os.getpid()
        return x + len(held), asked

    compiled = smelt.compile(fn, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2))[1] == [("hash", "a")]


same = True


class Number(int):
    def __eq__(self, other):
        return same and int(self) == other

    __hash__ = int.__hash__


@pytest.mark.parametrize("is_outside", [False, True])
def test_plain_key_compared_with_python_key(is_outside):
    global same

    def fn(x, held):
        held = held or {Number(7): 1}
        return x + 1, held.get(7), 7 in held

    compiled = smelt.compile(fn, backend="eager")
    held = {Number(7): 1} if is_outside else None
    for same in (True, False, True):  # noqa: B007
        assert compiled(torch.ones(2), held)[1:] == fn(torch.ones(2), held)[1:]
    assert bool(reasons(compiled)) is is_outside


def test_special_methods_that_are_callable_objects():
    class Counting:
        def __init__(self, result):
            self.calls, self.result = 0, result

        def __call__(self, *args):
            self.calls += 1
            return self.result

    class Counted:
        __hash__ = Counting(5)
        __mul__ = Counting(2.0)

    def fn(x, counted):
        os.getpid()  # captured again from here
        return x * (counted * 3) + hash(counted)

    compiled = smelt.compile(fn, backend="eager")
    for number in range(1, 4):
        compiled(torch.ones(2), Counted())
        assert (Counted.__hash__.calls, Counted.__mul__.calls) == (number, number)


def test_copy_of_ordered_dictionary_keeps_order():
    def fn(x, given):
        made = collections.OrderedDict([(1, x), (2, x)])
        orders = []
        for held in (made, given):
            held.move_to_end(1)
            orders += [list(copy.copy(held)), list(copy.deepcopy(held))]
        return x + 1, orders

    compiled = smelt.compile(fn, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2), collections.OrderedDict([(1, 1), (2, 2)]))[1] == [[2, 1]] * 4


@pytest.mark.parametrize("make", [lambda: types.MappingProxyType({"a": 1}), lambda: types])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copy_of_uncopyable_object_raises(copied, make):
    def fn(x, obj):
        try:
            copied(obj)
        except TypeError as error:
            return x + 1, str(error)
        return x, ""

    assert smelt.compile(fn, backend="eager")(torch.ones(2), make())[1] == fn(torch.ones(2), make())[1] != ""


def test_dict_from_mapping_proxy():
    def fn(x, proxy):
        return x + 1, dict(proxy), {**proxy}, collections.OrderedDict(proxy)

    proxy = types.MappingProxyType({"a": 1, "b": 2})
    assert smelt.compile(fn, backend="eager")(torch.ones(2), proxy)[1:] == fn(torch.ones(2), proxy)[1:]


@pytest.mark.parametrize("view", ["keys", "values", "items"])
@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_environment_view_shows_current_contents(kind, view):
    def fn(x, shown):
        return x + 1, list(shown), len(shown)

    compiled = smelt.compile(fn, backend="eager")
    for key in (1, 2, 3):
        shown = getattr(kind({key: key}), view)()
        assert compiled(torch.ones(2), shown)[1:] == fn(torch.ones(2), shown)[1:]
