"""Whatever decided a capture may change between two calls: the next call gives eager's answer."""

from __future__ import annotations

import collections
import functools
import gc
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from tests.harness.agreement import calls_agree, ones

SCENARIOS: list[Any] = []


def scenario(make: Any) -> Any:
    SCENARIOS.append(make)
    return make


class Holder:
    scale = 2.0

    def __init__(self) -> None:
        self.value = 1.0

    def method(self, x: Any) -> Any:
        return x * self.value * self.scale


class Slotted:
    __slots__ = ("extra",)


class WithDefault(Slotted):
    def __getattr__(self, name: str) -> float:
        return 9.0


def stored_and_deleted(change: Callable[[Any], Any], made: Callable[[], Any] = Holder) -> None:
    """Whether `extra` is in what `made` gives changes between the calls: an attribute, a key or a slot."""

    def make(compile):
        for first in (False, True):
            holder = made()
            is_table = isinstance(holder, dict)

            def fn(x):
                return x * 2, change(holder)

            c = compile(fn)
            for there in (first, not first, first, not first):
                if there:
                    holder.update(extra=5) if is_table else setattr(holder, "extra", 5)
                yield c(ones())
                yield "extra" in holder if is_table else hasattr(holder, "extra")

    scenario(make)


def _attribute(holder):
    holder.extra = 3
    del holder.extra


def _attribute_by_its_dictionary(holder):
    vars(holder)["extra"] = 3
    if hasattr(holder, "extra"):
        delattr(holder, "extra")


def _deleted_attribute(holder):
    try:
        del holder.extra
    except AttributeError as error:
        return str(error)


def _key(table):
    table["extra"] = 1
    del table["extra"]


def _popped_key(table):
    table["extra"] = 1
    return table.pop("extra")


def _name_of_the_module(holder):
    global extra
    extra = 3
    del extra


for _change, _made in (
    (_attribute, Holder),
    (_attribute_by_its_dictionary, Holder),
    (_deleted_attribute, Holder),
    (_key, dict),
    (_popped_key, dict),
    (_attribute, Slotted),
    (_deleted_attribute, Slotted),
    (_attribute, lambda: type("Made", (), {})),
    (_name_of_the_module, lambda: sys.modules[__name__]),
):
    stored_and_deleted(_change, _made)


@scenario
def slot_that_is_filled(compile):
    slotted, with_default = Slotted(), WithDefault()
    c = compile(lambda x: (x * getattr(slotted, "extra", 7), hasattr(slotted, "extra"), with_default.extra))
    for there in (False, True, False):
        for holder in (slotted, with_default):
            if there:
                holder.extra = 5
            else:
                _deleted_attribute(holder)
        yield c(ones())


@scenario
def cell_that_is_filled_and_emptied(compile):
    count = 0

    def fn(x):
        nonlocal count
        count = 1
        del count
        return x * 2

    def fill():
        nonlocal count
        count = 5

    c = compile(fn)
    for _ in range(3):
        yield c(ones()), fn.__closure__[0] == types.CellType()
        fill()


@scenario
def partial_of_a_partial(compile):
    def scaled(x, **options):
        return x * options.get("k", 1)

    inner = functools.partial(scaled, k=2)
    c = compile(lambda x, inner: (functools.partial(inner, x)(), inner(x)))
    yield c(ones(), inner)
    yield c(ones(), functools.partial(scaled, k=4))
    inner.keywords["k"] = 9
    yield c(ones(), inner)
    inner.keywords.clear()
    yield c(ones(), inner)
    yield c(ones(), functools.partial(scaled))
    inner.keywords["k"] = 3
    yield c(ones(), inner)


@scenario
def what_a_metaclass_holds(compile):
    class Single(type):
        made = {}  # noqa: RUF012

        def __call__(cls, *args):
            if cls not in cls.made:
                cls.made[cls] = super().__call__(*args)
            return cls.made[cls]

        @classmethod
        def named(mcs):
            return mcs.__name__

        @staticmethod
        def doubled(x):
            return x * 2

    class Config(metaclass=Single):
        def __init__(self, x):
            self.x = x

    c = compile(lambda x: (Config(x).x * 2, Config(x) is Config(None), Config.named(), Config.doubled(x)))
    yield c(ones()), c(ones() * 3)
    Single.made.clear()
    yield c(ones() * 4), c(ones())
    Single.made = {Config: types.SimpleNamespace(x=ones() * 5)}
    yield c(ones())


@scenario
def grad_of_an_input(compile):
    c = compile(lambda x: x * 2 if x.grad is None else x * x.grad)
    x = torch.ones(3, requires_grad=True)
    yield c(x)
    x.grad = torch.full((3,), 5.0)
    yield c(x)
    x.grad.mul_(2)
    yield c(x)
    x.grad = None
    yield c(x)


@scenario
def history_of_an_input(compile):
    with torch.enable_grad():
        leaf = torch.ones(3, requires_grad=True)
        result = leaf * 1
        result.retain_grad()
    for name in ("is_leaf", "retains_grad", "grad_fn", "_version"):
        c = compile(lambda x: (getattr(x, name) in (True, None, 0), x.detach() * 2))
        yield c(leaf), c(result), c(leaf)
    c = compile(lambda x: x * x._version)
    x = ones()
    yield c(x), c(x.add_(1)), x.storage_offset()


@scenario
def offset_into_the_storage(compile):
    c, base = compile(lambda x: x * x.storage_offset()), torch.ones(10)
    yield c(base[2:5]), c(base[3:6])
    of_views = (lambda x: x[1:].storage_offset(), lambda x: torch.Tensor.storage_offset(x.view(3, 1).t()))
    for of_view in of_views:
        c = compile(lambda x: x * of_view(x))
        yield c(base[:3]), c(base[2:5]), c(base[3:6]), c(base[:3])


@scenario
def patched_tensor_method(compile):
    c = compile(lambda x: x.relu())
    yield c(ones())
    torch.Tensor.relu = lambda self: self * 99
    try:
        yield c(ones())
    finally:
        del torch.Tensor.relu
    yield c(ones())


@scenario
def attributes_and_classes(compile):
    class Derived(Holder):
        scale = 11.0

    holder = Holder()
    c = compile(lambda x: holder.method(x))
    yield c(ones())
    holder.value = 3.0
    yield c(ones())
    holder.scale = 5.0
    yield c(ones())
    del holder.scale
    holder.__class__ = Derived
    yield c(ones())
    holder.method = lambda x: x - 1
    yield c(ones())


@scenario
def identity_of_an_argument(compile):
    a, b = Holder(), Holder()
    by_id, by_object = {id(a): 2.0}, {a: 3.0}
    c = compile(lambda x, o: (x * by_id.get(id(o), 7.0), x * by_object.get(o, 8.0), o in {a}))
    yield c(ones(), a), c(ones(), b), c(ones(), a)
    by_object[a] = 4.0
    yield c(ones(), a)


@scenario
def same_or_different_tensors(compile):
    c = compile(lambda x, y: (x is y, len({x, y}), y in {x: 1}))
    x, y = ones(), ones()
    yield c(x, y), c(x, x), c(y, x)


@scenario
def equality_of_nested_containers(compile):
    left, right = Holder(), Holder()
    left.value, right.value = [1], [1]
    c = compile(lambda x: (x, (1, left.value) == (1, right.value), [left.value] == [right.value]))
    yield c(ones())
    left.value.append(2)
    yield c(ones())


@scenario
def views_of_containers(compile):
    table = {"a": 1.0}
    proxy, values, get = types.MappingProxyType(table), table.values(), table.get
    for f in (lambda x: x * proxy["a"], lambda x: [x * v for v in values], lambda x: x * get("a")):
        table["a"] = 1.0
        c = compile(f)
        yield c(ones())
        table["a"] = 2.0
        yield c(ones())


@scenario
def weak_reference(compile):
    holder = Holder()
    reference = weakref.ref(holder)
    c = compile(lambda x: x * (50.0 if reference() is None else reference().value))
    yield c(ones())
    holder.value = 3.0
    yield c(ones())
    del holder
    gc.collect()  # what a capture leaves behind may be cyclic
    yield c(ones())


@scenario
def array_of_numpy(compile):
    import numpy as np

    array = np.ones(3, dtype=np.float32)
    c = compile(lambda x: x * float(array[0]))
    yield c(ones())
    array[:] = 6
    yield c(ones())


@scenario
def import_inside(compile):
    sys.modules["smelt_test_module"] = first = types.ModuleType("smelt_test_module")
    first.v = 1.0

    def f(x):
        import smelt_test_module

        return x * smelt_test_module.v

    c = compile(f)
    yield c(ones())
    second = types.ModuleType("smelt_test_module")
    second.v = 7.0
    sys.modules["smelt_test_module"] = second
    yield c(ones())
    del sys.modules["smelt_test_module"]


@scenario
def numbers_that_are_equal_but_not_the_same(compile):
    c = compile(lambda x, s: (x * s, type(s)))
    for value in (1, True, 1.0, 0.0, -0.0, float("nan"), 2**40):
        yield c(ones(), value)
    c = compile(lambda x, pair: x / pair[0])
    for pair in ((1, 2), (True, 2), (0.0, 2), (-0.0, 2)):
        yield c(ones(), pair)


@scenario
def modules_and_their_parts(compile):
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).requires_grad_(False)
    c, x = compile(lambda x: m(x)), -ones()
    yield c(x)
    m[1] = nn.Tanh()
    yield c(x)
    m.append(nn.ReLU())
    yield c(x)
    m[0].weight = nn.Parameter(torch.eye(3), requires_grad=False)
    yield c(x)
    m[0].bias = None
    yield c(x)
    handle = m[0].register_forward_hook(lambda module, args, out: out * 10)
    yield c(x)
    handle.remove()
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 3)
    yield c(x)
    handle.remove()
    yield c(x)


@scenario
def contexts_of_torch(compile):
    c, x = compile(lambda x: (x @ x, torch.ones(2), torch.is_grad_enabled())), torch.ones(3, 3)
    yield c(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield c(x)
    with torch.inference_mode():
        yield c(x)
    torch.set_default_dtype(torch.float64)
    try:
        yield c(x)
    finally:
        torch.set_default_dtype(torch.float32)
    yield c(x)


@scenario
def order_of_dictionaries(compile):
    c = compile(lambda x, **d: (list(d), [x * v for v in d.values()]))
    yield c(ones(), a=1, b=2), c(ones(), b=2, a=1), c(ones())
    counter = collections.Counter(a=1)
    c = compile(lambda x: x * counter["b"] + counter["a"])
    yield c(ones())
    counter["b"] = 5
    yield c(ones())


@pytest.mark.parametrize("make", SCENARIOS, ids=lambda s: s.__name__)
def test_changes(make):
    calls_agree(make)


def test_attributes_changed_by_another_thread():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.k = 1.0

        def forward(self, x):
            k = self.k
            return x * k, k

    module = Scaled()
    compiled = smelt.compile(module)
    wrong: list[Any] = []
    done = threading.Event()

    def call() -> None:
        with torch.no_grad():
            while not done.is_set():
                y, k = compiled(ones())
                if not bool((y == k).all()):
                    wrong.append((y, k))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for t in threads:
        t.start()
    for i in range(50):
        module.k = float(i % 3)
        time.sleep(0.001)
    done.set()
    for t in threads:
        t.join()
    assert not wrong, wrong[0]
