"""Stores of what is there already: at the next call something else may be there."""

from __future__ import annotations

import collections
import types
from dataclasses import dataclass

from torch import nn

from tests.harness.catalogue import program, tensor


@program(graphs=1)
def an_attribute():
    state = types.SimpleNamespace(flag=True)

    def fn(x):
        state.flag = True
        return x + 1

    def spoil():
        found, state.flag = state.flag, False
        return found

    return fn, [(tensor(3),)] * 3, spoil


@program(graphs=1)
def an_attribute_of_a_plain_object():
    @dataclass
    class State:
        flag: bool = True
        step: int = 0

    state = State()

    def fn(x):
        state.step = 0
        state.flag = True
        return x + 1

    def spoil():
        found = (state.flag, state.step)
        state.flag, state.step = False, 7
        return found

    return fn, [(tensor(3),)] * 3, spoil


@program(graphs=1)
def a_slot():
    class Slots:
        __slots__ = ("n",)

    state = Slots()
    state.n = 1

    def fn(x):
        state.n = 1
        return x + 1

    def spoil():
        found, state.n = state.n, 5
        return found

    return fn, [(tensor(3),)] * 3, spoil


@program(graphs=1)
def an_attribute_of_a_module():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = None

        def forward(self, x):
            self.seen = None
            return x * 2

    model = Model()

    def spoil():
        found, model.seen = model.seen, "something"
        return found

    return model, [(tensor(3),)] * 3, spoil


@program(graphs=1)
def an_entry_of_a_dictionary():
    table = {"a": 1, "b": 2}

    def fn(x):
        table["a"] = 1
        return x + 1

    def spoil():
        found = dict(table)
        table["a"], table["b"] = 3, found["b"] + 1
        return found

    return fn, [(tensor(3),)] * 3, spoil


@program(graphs=1)
def an_entry_of_an_ordered_dictionary():
    table = collections.OrderedDict(a=1, b=2)

    def fn(x):
        table["b"] = 2
        return x + 1

    def spoil():
        found = list(table.items())
        table["b"] = 3
        return found

    return fn, [(tensor(3),)] * 3, spoil


_flag = True


@program(graphs=1)
def a_global():
    global _flag
    _flag = True

    def fn(x):
        global _flag
        _flag = True
        return x + 1

    def spoil():
        global _flag
        found, _flag = _flag, False
        return found

    return fn, [(tensor(3),)] * 3, spoil


@program(graphs=1)
def a_closure_cell():
    flag = True

    def fn(x):
        nonlocal flag
        flag = True
        return x + 1

    def spoil():
        nonlocal flag
        found, flag = flag, False
        return found

    return fn, [(tensor(3),)] * 3, spoil


@program(graphs=1)
def changed_and_put_back():
    state = types.SimpleNamespace(mode="eval")

    def fn(x):
        state.mode = "train"
        y = x * (2 if state.mode == "train" else 3)
        state.mode = "eval"
        return y

    def spoil():
        found, state.mode = state.mode, "other"
        return found

    return fn, [(tensor(3),)] * 3, spoil


@program(graphs=1)
def through_vars():
    state = types.SimpleNamespace(flag=True)

    def fn(x):
        vars(state)["flag"] = True
        return x + 1

    def spoil():
        found, state.flag = state.flag, False
        return found

    return fn, [(tensor(3),)] * 3, spoil


@program(graphs=1, later=1)
def a_number_that_is_overwritten_by_an_equal_one():
    state = types.SimpleNamespace(n=3)
    values = iter((5, 7, 5, 2, 9))

    def fn(x):
        y = x * state.n
        state.n = 5
        return y + state.n

    def change():
        found, state.n = state.n, next(values)
        return found

    return fn, [(tensor(3),)] * 5, change


@program(graphs=1, later=1)
def an_entry_that_is_overwritten_by_an_equal_one():
    table = {"n": 3}
    values = iter((5, 7, 5, 2, 9))

    def fn(x):
        y = x * table["n"]
        table["n"] = 5
        return y + table["n"]

    def change():
        found, table["n"] = table["n"], next(values)
        return found

    return fn, [(tensor(3),)] * 5, change


@program(graphs=1, later=1)
def overwritten_through_vars():
    state = types.SimpleNamespace(n=3)
    values = iter((5, 7, 5, 2, 9))

    def fn(x):
        y = x * state.n
        vars(state)["n"] = 5
        return y + state.n

    def change():
        found, state.n = state.n, next(values)
        return found

    return fn, [(tensor(3),)] * 5, change


@program(graphs=1, later=1)
def a_cell_that_is_overwritten_by_an_equal_number():
    n = 3
    values = iter((5, 7, 5, 2, 9))

    def fn(x):
        nonlocal n
        y = x * n
        n = 5
        return y + n

    def change():
        nonlocal n
        found, n = n, next(values)
        return found

    return fn, [(tensor(3),)] * 5, change


@program(graphs=1, later=3)
def an_item_of_a_list_that_is_overwritten():
    numbers = [3, 4]
    values = iter((5, 7, 5, 2, 9))

    def fn(x):
        y = x * numbers[0]
        numbers[0] = 5
        return y + numbers[0] + sum(numbers)

    def change():
        found, numbers[0] = numbers[0], next(values)
        return found

    return fn, [(tensor(3),)] * 5, change


@program(graphs=1, later=1)
def a_number_of_a_module_that_is_overwritten():
    module = types.ModuleType("settings")
    module.n = 3
    values = iter((5, 7, 5, 2, 9))

    def fn(x):
        y = x * module.n
        module.n = 5
        return y + module.n

    def change():
        found, module.n = module.n, next(values)
        return found

    return fn, [(tensor(3),)] * 5, change


@program(graphs=1, later=1)
def a_number_in_a_slot_that_is_overwritten():
    class Slots:
        __slots__ = ("n",)

    state = Slots()
    state.n = 3
    values = iter((5, 7, 5, 2, 9))

    def fn(x):
        y = x * state.n
        state.n = 5
        return y + state.n

    def change():
        found, state.n = state.n, next(values)
        return found

    return fn, [(tensor(3),)] * 5, change


_number = 3


@program(graphs=1, later=1)
def a_global_number_that_is_overwritten():
    global _number
    _number = 3
    values = iter((5, 7, 5, 2, 9))

    def fn(x):
        global _number
        y = x * _number
        _number = 5
        return y + _number

    def change():
        global _number
        found, _number = _number, next(values)
        return found

    return fn, [(tensor(3),)] * 5, change


@program(graphs=1, later=1)
def deleted_and_set_again():
    state = types.SimpleNamespace(n=3)
    values = iter((5, 7, 5, 2, 9))

    def fn(x):
        y = x * state.n
        del state.n
        state.n = 5
        return y + state.n

    def change():
        found, state.n = state.n, next(values)
        return found

    return fn, [(tensor(3),)] * 5, change


# What was read once is read again after a dictionary behind it has changed.


@program(graphs=1, later=1)
def an_attribute_changes_through_the_dictionary():
    class State:
        pass

    state = State()
    state.first = state.second = 0

    def fn(x):
        state.first = 1
        before = state.second
        state.__dict__["second"] = before + 3
        after = state.second
        vars(state).update(second=0)
        own = vars(state)
        state.first = 7
        return x * 2, before, after, state.second, own["first"], own.pop("first"), hasattr(state, "first")

    return fn, [(tensor(3),)] * 3, lambda: dict(vars(state))


def _module():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(tensor(3))
            self.inner = nn.ReLU()
            self.register_buffer("shift", tensor(3))

    return Net()


@program(graphs=1)
def entries_of_a_module_change_through_its_dictionaries():
    net = _module()
    other = nn.Parameter(tensor(3) * 2)

    def fn(x):
        before = net.weight * x + net.shift + net.inner(x)
        net._parameters["weight"] = other
        net._buffers["shift"] = net._buffers["shift"] + 1
        net._modules["inner"] = nn.Identity()
        after = net.weight * x + net.shift + net.inner(x)
        net._buffers.pop("shift")
        gone = hasattr(net, "shift")
        net._buffers["shift"] = x
        return before, after, gone

    def restore():
        found = net.shift, type(net.inner).__name__
        net.inner, net._parameters["weight"] = nn.ReLU(), nn.Parameter(tensor(3))
        return found

    return fn, [(tensor(3),)] * 3, restore


@program(graphs=1)
def the_buffers_of_a_module_are_replaced():
    net = _module()

    def fn(x):
        before = net.shift + 0
        vars(net)["_buffers"] = own = {"shift": x * 2}
        between = net.shift + 0
        own["shift"] = x * 3
        return before, between, net.shift

    return fn, [(tensor(3),)] * 3, lambda: net.shift


@program(graphs=1)
def keys_that_are_set_have_their_places():
    def fn(x, table):
        table["d"] = x
        table["a"] = x + 1
        return table, x * 2

    return fn, [(tensor(3), dict.fromkeys(keys)) for keys in ("ab", "ab", "", "d", "a", "da")]
