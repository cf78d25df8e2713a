"""What compiled code does to the objects around it is what eager does, call after call, also after others changed them."""

from __future__ import annotations

import collections
import contextlib
import functools
import types
from typing import Any

import pytest
import torch
from torch import nn

from tests.harness.agreement import calls_agree, ones


class Plain:
    def method(self, x: Any) -> Any:
        return x + 1


def scenario(make: Any) -> Any:
    """Registers `make(compile) -> what was seen`; run with eager's and with smelt's `compile`."""
    SCENARIOS.append(make)
    return make


SCENARIOS: list[Any] = []


@scenario
def append_then_length(compile):
    log = [1]

    def f(x):
        log.append(2)
        return x * len(log), len(log) > 2

    c = compile(f)
    yield c(ones()), c(ones()), list(log)
    log[:] = [5]
    yield c(ones()), log


@scenario
def append_to_a_list_nobody_reads(compile):
    log = []
    c = compile(lambda x: (log.append("h"), x * 2)[1])
    for _ in range(4):
        c(ones())
    yield log


@scenario
def set_an_item_of_a_list_that_others_change(compile):
    values = [1, 2, 3]

    def f(x):
        values[0] = 7
        values[-1] = x.shape[0]
        return x

    c = compile(f)
    c(ones())
    values[1] = 50
    c(ones())
    yield list(values)
    values.append(4)
    c(ones())
    yield values


@scenario
def delete_an_entry_of_a_dictionary_that_others_change(compile):
    table = {"a": 1, "b": 2}

    def f(x):
        del table["a"]
        return x

    c = compile(f)
    c(ones())
    table.update(a=5, b=77, z=0)
    c(ones())
    yield list(table.items())


@scenario
def move_an_entry_to_the_end(compile):
    table = {"a": 1, "b": 2}

    def f(x):
        table["a"] = table.pop("a") + 1
        return x

    c = compile(f)
    c(ones())
    yield list(table.items())
    table["c"] = 1
    c(ones())
    yield list(table.items())


@scenario
def absence_read_after_a_write(compile):
    table, obj = {}, Plain()

    def f(x):
        table["a"] = obj.n = 1
        return (
            x * (2 if "b" in table else 3),
            table.get("c"),
            len(table),
            hasattr(obj, "cache"),
            obj.method(x),
        )

    c = compile(f)
    yield c(ones())
    table["b"] = 1
    yield c(ones())
    table["c"] = obj.cache = 4
    yield c(ones())
    obj.method = lambda x: x * 9
    yield c(ones())


@scenario
def one_object_under_two_names(compile):
    def f(x, a, b):
        a.append(1)
        b.append(2)
        return x * len(a)

    c, a, b = compile(f), [], []
    yield c(ones(), a, b), c(ones(), a, a), c(ones(), b, a), a, b


@scenario
def rebuilt_objects_keep_identity(compile):
    def f(x):
        shared = [x * 2]
        shared.append(shared)
        return shared, {"k": shared}, x

    c, x = compile(f), ones()
    for _ in range(2):
        got = c(x)
        yield got[0][1] is got[0], got[1]["k"] is got[0], got[2] is x


@scenario
def closures_that_escape(compile):
    def f(x):
        n = 0

        def count():
            nonlocal n
            n += 1
            return x * n

        count()
        return count, x.add, functools.partial(torch.add, x, alpha=2)

    c = compile(f)
    for _ in range(2):
        count, add, partial = c(ones())
        yield count(), count(), add(1), partial(ones())


@scenario
def failed_capture_leaves_no_trace(compile):
    obj, log, table, total = Plain(), [1], {"a": 1}, 0
    obj.n = 1

    def f(x):
        nonlocal total
        obj.n += 1
        log.append(x.shape[0])
        table["a"] += 1
        total += 1
        x.add_(1)
        print("", end="")
        return x * 2

    c, x = compile(f), ones()
    yield c(x), c(x), obj.n, log, table, total


@scenario
def user_exception_after_effects(compile):
    log = []

    def f(x):
        log.append(1)
        x.add_(1)
        raise ValueError(f"n={len(log)}")

    c, x = compile(f), ones()
    for _ in range(2):
        with pytest.raises(ValueError) as caught:
            c(x)
        yield str(caught.value), log, x


@scenario
def context_managers_and_exceptions(compile):
    log = []

    @contextlib.contextmanager
    def manager(k):
        log.append(k)
        try:
            yield k * 2
        except ValueError as error:
            log.append(str(error))
        finally:
            log.append("left")

    def f(x):
        with manager(3) as k:
            x = x * k
            raise ValueError("caught")
        return x + 1

    c = compile(f)
    yield c(ones()), c(ones()), log


@scenario
def text_of_an_operators_error(compile):
    def f(x):
        try:
            return x @ torch.ones(7, 7)
        except RuntimeError as error:
            return str(error)

    c = compile(f)
    yield c(torch.ones(3, 3)), c(torch.ones(3, 3))


@scenario
def attribute_protocol_in_c(compile):
    class Attributes(dict):
        __getattr__ = dict.__getitem__
        __setattr__ = dict.__setitem__

    table = Attributes(a=1.0)

    def f(x):
        table.b = table.a + 1
        return x * table.b

    c = compile(f)
    yield c(ones())
    table.a = 5.0
    yield c(ones()), dict(table), vars(table)


@scenario
def caches_of_modules(compile):
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = {}
            self.register_buffer("table", None)

        def forward(self, x):
            if x.shape[0] not in self.cache:
                self.cache[x.shape[0]] = torch.arange(x.shape[0]) * 2.0
            if self.table is None or self.table.shape[0] < x.shape[0]:
                self.table = torch.arange(x.shape[0]).cos()
            return x * self.cache[x.shape[0]] * self.table[: x.shape[0]]

    m = Cached()
    c = compile(m)
    for n in (3, 3, 5, 2, 3):
        yield c(ones(n)), list(m.cache), m.table, list(m._buffers)
    m.cache.clear()
    yield c(ones(3)), list(m.cache)


@scenario
def containers_of_many_kinds(compile):
    ordered, queue, members = collections.OrderedDict(a=1, b=2), collections.deque([1], maxlen=2), {1}
    space = types.SimpleNamespace(items=[1])
    default = collections.defaultdict(lambda: 2.0)

    def f(x):
        ordered.move_to_end("a")
        queue.append(x.shape[0])
        members.add(2)
        members.discard(1)
        space.items.append(3)
        space.n = default["k"]
        return x * len(queue) * space.n, list(ordered)

    c = compile(f)
    for _ in range(2):
        yield c(ones()), list(ordered), list(queue), sorted(members), vars(space), dict(default)
    default.default_factory = lambda: 9.0
    del default["k"]
    members.add(9)
    yield c(ones()), sorted(members)


@pytest.mark.parametrize("make", SCENARIOS, ids=lambda s: s.__name__)
def test_effects(make):
    calls_agree(make)


def test_an_error_inside_inference_mode_leaves_torch_as_it_was():
    import smelt

    @torch.inference_mode()
    def f(x):
        return x * 2

    with torch.no_grad():
        smelt.compile(f)(ones())
    assert not torch.is_inference_mode_enabled()
    assert torch.ones(3).sum() == 3
