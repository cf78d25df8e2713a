"""Bound methods of C classes from the environment; the bound object changes from call to call."""

import collections
import functools
import operator

import pytest
import torch
from torch import nn

import smelt


class Table(dict):
    pass


class Items(list):
    pass


def put(table, i):
    table[i] = i


def append(values, i):
    values.append(i)


MAPPINGS = (dict, collections.OrderedDict, Table, collections.Counter, lambda: collections.defaultdict(int))
OF_MAPPINGS = {
    "__len__": (), "__contains__": (1,), "__eq__": ({},), "__ne__": ({},), "__repr__": (), "__str__": (), "get": (1,),
    "__or__": ({9: 9},), "__iter__": (), "__reversed__": (), "items": (), "copy": (),
}  # fmt: skip
OF_LISTS = {
    "__len__": (), "__contains__": (1,), "__getitem__": (-1,), "__mul__": (2,), "__repr__": (), "__iter__": (),
}  # fmt: skip
OF_SETS = {
    "__len__": (),
    "__contains__": (1,),
    "__eq__": (set(),),
    "__or__": ({9},),
    "__le__": ({0, 1},),
    "__iter__": (),
}
CASES = [
    *((make, put, name, args) for make in MAPPINGS for name, args in OF_MAPPINGS.items()),
    *((make, append, name, args) for make in (lambda: [0], lambda: Items([0])) for name, args in OF_LISTS.items()),
    *((set, set.add, name, args) for name, args in OF_SETS.items()),
    (lambda: bytearray(b"0"), append, "__len__", ()),
    (lambda: bytearray(b"0"), append, "__getitem__", (-1,)),
    (lambda: iter(range(9)), lambda it, i: next(it), "__next__", ()),
    (lambda: iter([*range(9)]), lambda it, i: next(it), "__length_hint__", ()),
    (lambda: nn.Linear(1, 1), lambda module, i: setattr(module, "training", bool(i % 2)), "__getattribute__", ("training",)),
    (lambda: torch.zeros(2), lambda x, i: x.resize_(i + 3), "__len__", ()),
]  # fmt: skip


def results(compile, make, change, name, args):
    owner = make()
    method = getattr(owner, name)

    def fn(x):
        found = method(*args)
        return x + 1, list(found) if hasattr(type(found), "__next__") else found

    compiled, seen = compile(fn), []
    for i in range(4):
        found = compiled(torch.zeros(1))[1]
        seen.append((type(found), repr(found)))
        change(owner, i)
    return seen


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{type(case[0]()).__name__} {case[2]}")
def test_bound_object_is_guarded(case):
    assert results(smelt.compile, *case) == results(lambda fn: fn, *case)


# ------------------------------------------------------------------------------------------ objects that pybind11 made

STORES = {
    "set": lambda x, s: (s.set("a", f"v{s.num_keys()}"), x + 1)[1],
    "add": lambda x, s: x + s.add("n", 1),
    "bound before": lambda x, s: (lambda add: x + add("n", 1))(s.add),
    "of the class": lambda x, s: (type(s).add(s, "n", 1), x + s.num_keys())[1],
    "partial": lambda x, s: (functools.partial(s.add, "n")(1), x + s.num_keys())[1],
    "by name": lambda x, s: (operator.methodcaller("add", "n", 2)(s), x * 2)[1],
    "mapped": lambda x, s: x + len(list(map(s.add, ["a", "b"], [1, 2]))),
    "around": lambda x, s: (torch.distributed.PrefixStore("p", s).add("n", 1), x.exp())[1],
}


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
@pytest.mark.parametrize("name", STORES)
def test_methods_of_pybind_objects_run_at_each_call(name):
    found = []
    for function in (STORES[name], smelt.compile(STORES[name])):
        store = torch.distributed.HashStore()
        results = [function(torch.full((2,), float(k)), store) for k in range(3)]
        found.append((results, store.num_keys(), store.add("n", 0)))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_future_is_read_and_set_at_each_call():
    def function(x, future):
        if not future.done():
            future.set_result(x * 1)
        return x + 1

    future = torch.futures.Future()
    compiled = smelt.compile(function)
    for k in range(3):
        assert torch.equal(compiled(torch.full((2,), float(k)), future), torch.full((2,), k + 1.0))
    assert torch.equal(future.value(), torch.zeros(2))
