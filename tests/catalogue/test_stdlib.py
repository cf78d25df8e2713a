"""The standard library inside compiled functions."""

from __future__ import annotations

import abc
import bisect
import cmath
import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import heapq
import importlib
import inspect
import itertools
import json
import math
import numbers
import operator
import os
import pathlib
import queue
import random
import re
import statistics
import string
import sys
import textwrap
import time
import types
import typing
import uuid

import numpy
import pytest
import torch
from torch import nn

import smelt
from smelt.errors import SmeltError
from tests.harness.catalogue import DEVICE, Changing, program, tensor

# ------------------------------------------------------------------------------------------------------- functools


@program(graphs=1)
def partials():
    def scaled(x, k, *, add=0):
        return x * k + add

    outside = functools.partial(scaled, k=3)

    def fn(x):
        inner = functools.partial(scaled, x, add=1)
        nested = functools.partial(inner, 2)
        return (
            outside(x) + nested() + inner(k=4),
            outside.func is scaled,
            outside.keywords,
            inner.args[0] + 1,
            nested,
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def partial_changes_between_calls():
    held = {"f": functools.partial(operator.mul, 3)}

    def fn(x):
        return held["f"](x)

    return fn, Changing([(tensor(3),)] * 4, {2: lambda: held.update(f=functools.partial(operator.add, 7))})


@program(graphs=1)
def partial_methods():
    class C:
        def scale(self, x, k, add=0):
            return x * k + add

        double = functools.partialmethod(scale, k=2)
        triple = functools.partialmethod(scale, k=3, add=1)

    c = C()

    def fn(x):
        return c.double(x) + C().triple(x) + c.triple(x, add=5)

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1, breaks=["unsupported-effect"])
def lru_cache_of_constants():
    calls = []

    @functools.lru_cache(maxsize=None)
    def table(n):
        calls.append(n)
        return [i * i for i in range(n)][-1]

    @functools.cache
    def shape(n, k=2):
        return (n, k)

    def fn(x, n):
        return x * table(n) + table(n) + shape(n)[1] + shape(n, k=3)[1]

    return fn, [(tensor(3), 3), (tensor(3), 3), (tensor(3), 4)], calls


@program(graphs=1, later=3, breaks=["unsupported-call", "unsupported-call", "unsupported-effect"])
def lru_cache_whose_function_has_effects():
    log = []

    @functools.lru_cache(maxsize=2)
    def cached(k):
        log.append(k)
        return k + 1

    def fn(x):
        log.append(cached(1))
        log.append(cached(len(log)))
        log.append(cached.cache_info())
        return x * 2 + len(log)

    return fn, [(tensor(3),)] * 4, log


@program(graphs=2, later=2, breaks=["unsupported-call", "unsupported-call"])
def lru_cache_whose_keys_are_objects():
    """Keys that a guard cannot look up: the cache is asked for real."""
    log = []

    @dataclasses.dataclass(frozen=True)
    class Key:
        k: int

    @functools.lru_cache(maxsize=8)
    def cached(key, k):
        log.append(k)
        return [k]

    def fn(x, n):
        found = cached(Key(3), k=3)
        return x * found[0] + cached(n, k=3)[0], found

    given = (numpy.int64(2), numpy.int64(2), numpy.float32(1), numpy.int64(3))
    return fn, [(tensor(3), n) for n in given], lambda: (cached.cache_info(), log)


@program(graphs=1)
def lru_cache_counts_every_call():
    @functools.lru_cache(maxsize=16)
    def bounded(k):
        return (k, [k])

    @functools.cache
    def unbounded(k, *, m=1):
        return k if k < 2 else unbounded(k - 1) + m

    class Box:
        @classmethod
        @functools.lru_cache(maxsize=8)
        def table(cls, k):
            return torch.arange(k, device=DEVICE)

    def fn(x):
        y = x * bounded(2)[0] + bounded(3)[1][0] + bounded(2)[0]
        return y + unbounded(4) + unbounded(3, m=1) + Box.table(3) + Box.table(3)

    def observed():
        return [c.cache_info() for c in (bounded, unbounded, Box.table)]

    return fn, [(tensor(3),)] * 4, observed


def cached_from_a_state(output: bool):
    """A cached function, and what empties its cache and what fills it while the state is another one."""
    state = {"k": 1}

    @functools.lru_cache
    def cached(n):
        if output:
            print("computing")
        return n + state["k"]

    def stale():
        cached.cache_clear()
        state["k"] = 7
        cached(1)
        state["k"] = 1

    return cached, stale


@program(graphs=0, breaks=["unsupported-effect"], eager=["data-dependent-value"] * 2)
def lru_cache_counts_no_call_of_a_capture_that_fails():
    log, array = [], numpy.zeros(3)
    part = array[1:]  # inputs that share memory, of which one is written

    @functools.lru_cache(maxsize=4)
    def cached(k):
        log.append(k)
        return {k: k + 1}

    def fn(x, n):
        try:
            log.append(cached(2)[2])
            raise ValueError(n)
        except ValueError:
            x[-1, 0] += 1
            part[0] += 1
        log.append(float(array.sum()))
        return x

    return fn, [(tensor(n, 3), n) for n in (2, 4, 2, 4)], lambda: (cached.cache_info(), log)


@program(graphs=1, later=1)
def lru_cache_filled_by_others_behind_a_print():
    """The call is deferred behind the print, so its entry is missing when the program is captured."""
    cached, stale = cached_from_a_state(output=False)

    def fn(x):
        print("first")
        return x + cached(1)

    changes = {2: cached.cache_clear, 3: stale, 5: cached.cache_clear}
    return fn, Changing([(tensor(3),)] * 7, changes), lambda: cached.cache_info()


@program(graphs=1, later=2)
def lru_cache_whose_function_prints_filled_by_others():
    cached, stale = cached_from_a_state(output=True)
    stale()

    def fn(x):
        return x + cached(1)

    changes = {2: cached.cache_clear, 3: stale, 5: cached.cache_clear}
    return fn, Changing([(tensor(3),)] * 7, changes), lambda: cached.cache_info()


@program(graphs=1, later=1, breaks=["unsupported-call"])
def lru_cache_whose_function_raises():
    state = [True]

    @functools.cache
    def cached(k):
        if state[0]:
            raise ValueError(k)
        return k

    def fn(x, fails):
        state[0] = fails
        try:
            return x * cached(3)
        except ValueError:
            return x - 1

    return fn, [(tensor(3), True), (tensor(3), True), (tensor(3), False)], cached.cache_info


@program(graphs=1)
def lru_cache_made_inside():
    def fn(x):
        calls = []

        @functools.lru_cache
        def f(n):
            calls.append(n)
            return n * 2

        return x * f(3) + f(3) + f(4), calls

    return fn, [(tensor(3),)] * 3


@program(graphs=1, breaks=["unsupported-call", "unsupported-call"])
def lru_cache_with_tensor():
    @functools.lru_cache
    def f(t, k):
        return t * k

    def fn(x):
        return f(x, 2) + f(x, 2)

    return fn, [(tensor(3),), (tensor(3),), (tensor(3),)]


@program(graphs=1, later=1)
def cached_properties():
    class C:
        def __init__(self, v):
            self.v = v

        @functools.cached_property
        def table(self):
            return self.v * 2

    c = C(3)

    def fn(x):
        d = C(x)
        return d.table + d.table * c.table

    return fn, [(tensor(3),)] * 3, c


@program(graphs=1)
def reduce_and_cmp_to_key():
    def fn(x):
        total = functools.reduce(lambda a, b: a * 2 + b, [x, x + 1, 3])
        joined = functools.reduce(operator.add, [[1], [2]], [0])
        order = sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))
        return total, joined, order

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def wraps_keeps_names():
    def twice(f):
        @functools.wraps(f)
        def inner(*args, **kwargs):
            "inner"
            return f(*args, **kwargs) * 2

        return inner

    @twice
    def named(x):
        "documented"
        return x + 1

    def fn(x):
        @twice
        def local(y):
            return y - 1

        return named(x) + local(x), named.__name__, named.__doc__, local.__name__, local.__wrapped__(3)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def single_dispatch():
    @functools.singledispatch
    def f(v, x):
        return x

    @f.register
    def _(v: int, x):
        return x * v

    @f.register(list)
    def _(v, x):
        return x + len(v)

    @f.register(torch.Tensor)
    def _(v, x):
        return v - x

    class C:
        @functools.singledispatchmethod
        def go(self, v):
            return 0

        @go.register
        def _(self, v: str):
            return len(v)

        @go.register
        def _(self, v: int):
            return v * 2

    c = C()

    def fn(x):
        return f(3, x) + f([1, 2], x) + f(x * 2, x) + f("s", x) + c.go("abc") + c.go(4) + c.go(2.0)

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def dispatch_registered_between_calls():
    @functools.singledispatch
    def f(v, x):
        return x

    def fn(x):
        return f(3, x) + 1

    return fn, Changing([(tensor(3),)] * 4, {2: lambda: f.register(int)(lambda v, x: x * v)})


@program(graphs=1)
def total_ordering_inside():
    def fn(x):
        @functools.total_ordering
        class V:
            def __init__(self, n):
                self.n = n

            def __eq__(self, o):
                return self.n == o.n

            def __lt__(self, o):
                return self.n < o.n

        return x + (V(1) <= V(2)) + (V(3) > V(2)) + max(V(1), V(5)).n

    return fn, [(tensor(3),)] * 3


# ------------------------------------------------------------------------------------------------------- itertools


@program(graphs=1)
def itertools_of_tensors():
    def fn(x):
        parts = [x, x * 2, x + 1]
        total = sum(itertools.chain(parts, [x]))
        total = total + sum(itertools.chain.from_iterable([parts, parts]))
        total = total + list(itertools.accumulate(parts))[-1]
        total = total + list(itertools.accumulate([1, 2, 3], operator.mul, initial=2))[-1]
        for a, b in itertools.product(parts[:2], [1, 2]):
            total = total + a * b
        for a, b in itertools.pairwise(parts):
            total = total + a - b
        for a, b in itertools.combinations(parts, 2):
            total = total * 0.5 + a * b
        for a, b in itertools.zip_longest(parts, [1], fillvalue=0):
            total = total + a * b
        for a in itertools.islice(itertools.cycle(parts), 1, 5):
            total = total + a
        for i, a in zip(itertools.count(2, 3), parts):
            total = total + a * i
        for a in itertools.starmap(lambda p, q: p * q, zip(parts, parts)):
            total = total + a
        for a in itertools.compress(parts, [1, 0, 1]):
            total = total + a
        return total

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def itertools_of_constants():
    def fn(x):
        values = [
            list(itertools.permutations("abc", 2)),
            list(itertools.combinations_with_replacement([1, 2], 2)),
            list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1])),
            list(itertools.dropwhile(lambda v: v < 3, [1, 2, 3, 1])),
            list(itertools.filterfalse(lambda v: v % 2, range(5))),
            [(k, list(g)) for k, g in itertools.groupby([1, 1, 2, 3, 3], key=lambda v: v // 2)],
            [list(g) for _, g in itertools.groupby("aabb")],
            list(itertools.repeat(3, 2)),
            next(itertools.count(5)),
            [list(t) for t in itertools.tee([1, 2])],
            list(zip(*[iter(range(6))] * 2)),
        ]
        return x + len(values), values

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def grouped_tensors():
    def fn(x):
        items = sorted([("b", x), ("a", x * 2), ("b", x + 1)], key=operator.itemgetter(0))
        return {k: sum(v for _, v in g) for k, g in itertools.groupby(items, key=lambda p: p[0])}

    return fn, [(tensor(3),)] * 3


# ------------------------------------------------------------------------------------------------------ collections


@program(graphs=1)
def collections_made_inside():
    def fn(x):
        d = collections.defaultdict(lambda: x)
        d["a"] += 1
        d["b"]
        c = collections.Counter([1, 1, 2])
        c2 = collections.Counter(a=3) + collections.Counter(a=1, b=2) - collections.Counter(b=1)
        q = collections.deque([x], maxlen=2)
        q.append(x * 2)
        q.append(x * 3)
        o = collections.OrderedDict([("z", x), ("y", 1)])
        o.move_to_end("z")
        m = collections.ChainMap({"a": x * 2}, d)
        return (
            d["a"] + q[0] + q[-1] + o["z"] + m["b"] + c[1] + c[9],
            c.most_common(),
            c2,
            list(o),
            sorted(m),
            c.total(),
            c == collections.Counter({1: 2, 2: 1}),
            c | c2,
            +c,
            dict(c & collections.Counter([1])),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def user_collections():
    class Names(collections.UserDict):
        def __setitem__(self, k, v):
            super().__setitem__(k.lower(), v)

    def fn(x):
        n = Names(A=x)
        n["B"] = 2
        ul = collections.UserList([3, 1])
        ul.append(x)
        us = collections.UserString("ab")
        return n["a"] * n["b"] + ul[0] + len(us), list(n), us.upper() == "AB", ul[:2] == [3, 1], "b" in n

    return fn, [(tensor(3),)] * 3


# -------------------------------------------------------------------------------------------------------- copy


class Node:
    def __init__(self, v, *children):
        self.v = v
        self.children = list(children)


class Custom:
    def __init__(self, v):
        self.v = v

    def __copy__(self):
        return Custom(self.v + 1)

    def __deepcopy__(self, memo):
        return Custom(copy.deepcopy(self.v, memo) + 2)


class Stateful:
    def __init__(self, v):
        self.v = v
        self.cache = 1

    def __getstate__(self):
        return {"v": self.v}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.cache = 7


@program(graphs=1)
def copies_of_objects():
    shared = Node(2)
    tree = Node(1, shared, shared)

    def fn(x):
        n = Node(x, Node(x * 2))
        n.me = n
        a, b = copy.copy(n), copy.deepcopy(n)
        t = copy.deepcopy(tree)
        t.v = 5
        c, d = copy.copy(Custom(1)), copy.deepcopy(Custom(x))
        return (
            a.v + b.v + b.children[0].v + t.v + tree.v + c.v + d.v,
            a.children is n.children,
            b.me is b,
            a.me is n,
            t.children[0] is t.children[1],
            t.children[0] is shared,
            b.v is n.v,
        )

    return fn, [(tensor(3),)] * 3, tree


@program(graphs=1)
def copies_of_containers():
    held = {"a": [1, 2], "t": (1, [2])}

    def fn(x):
        d = {"x": x, "n": [x, {"y": x}]}
        a, b = copy.copy(d), copy.deepcopy(d)
        h = copy.deepcopy(held)
        h["a"].append(3)
        s = copy.copy({1, 2})
        q = copy.copy(collections.deque([1], maxlen=3))
        dd = copy.deepcopy(collections.defaultdict(list, a=[x]))
        return a["n"] is d["n"], b["x"] + b["n"][1]["y"], h, s, q, dd["zz"], copy.copy((1, 2)), copy.copy(3)

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1)
def copies_with_state():
    def fn(x):
        s = Stateful(x)
        a, b = copy.copy(s), copy.deepcopy(s)
        return a.v + b.v + a.cache + b.cache + s.cache

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def copies_of_tensors():
    def fn(x):
        a, b = copy.copy(x), copy.deepcopy(x)
        b.add_(1)
        return a + b, a is x, b is x

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def copy_of_module():
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).requires_grad_(False)

    def fn(x):
        n = copy.deepcopy(m)
        return n(x) + m(x)

    return fn, [(tensor(2, 3),)] * 3


@program(graphs=1)
def copies_of_special_classes():
    P = collections.namedtuple("P", "a b")

    @dataclasses.dataclass
    class D:
        t: torch.Tensor
        n: list

    class L(list):
        pass

    def fn(x):
        p = copy.deepcopy(P(x, [1]))
        d = copy.deepcopy(D(x, [2]))
        made = L([x, 1])
        made.tag = "t"
        e = copy.copy(made)
        return p.a + d.t + e[0], p.b, d.n, e.tag, type(e) is L, copy.deepcopy(re.compile("a")).pattern

    return fn, [(tensor(3),)] * 3


# ------------------------------------------------------------------------------------------------ inspect and typing


@program(graphs=1)
def signatures():
    def helper(a, b: int = 2, *args, c, d=4, **kw) -> int:
        return a

    def fn(x):
        sig = inspect.signature(helper)
        names = list(sig.parameters)
        bound = sig.bind(1, c=3)
        bound.apply_defaults()
        local = inspect.signature(lambda p, q=1: p)
        return (
            x + len(names) + sig.parameters["b"].default + bound.arguments["d"] + len(local.parameters),
            names,
            [str(p.kind) for p in sig.parameters.values()],
            inspect.isfunction(helper),
            inspect.ismethod(helper),
            inspect.isclass(Node),
            inspect.isbuiltin(len),
            inspect.ismodule(inspect),
            inspect.isgeneratorfunction(helper),
            "b" in inspect.signature(helper).parameters,
            inspect.getfullargspec(helper).kwonlyargs,
            inspect.getdoc(helper),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def signature_filters_arguments():
    class Block(nn.Module):
        def forward(self, x, scale=1):
            return x * scale

    block = Block()

    def fn(x, **kwargs):
        accepted = set(inspect.signature(block.forward).parameters)
        return block(x, **{k: v for k, v in kwargs.items() if k in accepted})

    return functools.partial(fn, scale=3, other=2), [(tensor(3),)] * 3


@program(graphs=1)
def typing_helpers():
    T = typing.TypeVar("T")

    def typed(a: int, b: typing.Optional[str] = None) -> list[int]:  # noqa: UP045
        return [a]

    def fn(x):
        hints = typing.get_type_hints(Node.__init__)
        return (
            x + len(hints) + typing.cast("int", 3),
            typing.get_origin(list[int]),
            typing.get_args(dict[str, int]),
            typing.get_args(typing.Union[int, str]),  # noqa: UP007
            isinstance(3, typing.SupportsInt),
            typing.TYPE_CHECKING,
            T.__name__,
            list(typed.__annotations__),
        )

    return fn, [(tensor(3),)] * 3


# ------------------------------------------------------------------------------------------------------- numbers


@program(graphs=1, later=1)
def mathematics():
    def fn(x, n):
        values = [
            math.sqrt(n), math.pi, math.floor(2.5), math.ceil(2.5), math.gcd(12, n), math.prod([1, 2, n]), math.inf,
            math.isnan(math.nan), math.log(n, 2), math.exp(0), math.factorial(n), math.comb(n, 2), math.hypot(3, 4),
            math.copysign(1, -0.0), math.isclose(0.1 + 0.2, 0.3), math.trunc(2.7), math.fsum([0.1] * 3), math.lcm(4, 6),
            math.dist((0, 0), (3, 4)), math.isqrt(17), math.modf(1.5), math.frexp(8.0), math.atan2(1, 1), math.degrees(1.0),
            cmath.sqrt(-1), cmath.phase(1j), cmath.exp(0j),
            statistics.mean([1, 2, 3]), statistics.median([1, 5, 2]), statistics.stdev([1.0, 2.0, 4.0]), statistics.mode("aab"),
        ]  # fmt: skip
        return x * math.sqrt(n) + math.floor(n / 2), values

    return fn, [(tensor(3), 4), (tensor(3), 4), (tensor(3), 6)]


@program(graphs=1, later=2, breaks=["unsupported-effect", "unsupported-effect"])
def exact_numbers():
    third = fractions.Fraction(1, 3)
    dec = decimal.Decimal("1.10")

    def fn(x):
        f = fractions.Fraction(3, 4) + third
        d = decimal.Decimal("2.5") * dec
        return (
            x * float(f) + int(d),
            f,
            d,
            str(f),
            f.numerator,
            fractions.Fraction(0.5),
            d.quantize(decimal.Decimal("0.1")),
            round(f, 2),
            f > third,
            isinstance(f, numbers.Rational),
            isinstance(3, numbers.Integral),
            isinstance(2.0, numbers.Real),
            f.limit_denominator(10),
        )

    return fn, [(tensor(3),)] * 3


# ----------------------------------------------------------------------------------------------------------- text


@program(graphs=1, later=1)
def regular_expressions():
    layer = re.compile(r"layer(\d+)\.(?P<kind>\w+)")

    def fn(x, name):
        m = layer.match(name)
        k = int(m.group(1)) if m else 0
        return (
            x * k,
            m.group("kind") if m else None,
            m.groups() if m else (),
            m.groupdict() if m else {},
            re.sub(r"\d", lambda q: str(int(q.group()) + 1), name),
            re.findall(r"\d+", name),
            re.split(r"[._]", name),
            bool(re.search("zz", name)),
            re.escape("a.b"),
            [q.span() for q in layer.finditer(name)],
            re.fullmatch("a+", "aaa", re.I) is not None,
        )

    return fn, [(tensor(3), "layer3.weight"), (tensor(3), "layer3.weight"), (tensor(3), "none_of")]


@program(graphs=1, later=1)
def strings_and_json():
    def fn(x, name):
        values = [
            name.split("."), name.upper(), "-".join([name, "x"]), name.replace("a", "b"), name.startswith("l"), f"{name:>10}",
            name.encode(), name.partition("."), name.zfill(12), name.title(), name[::-1], name.removeprefix("l"), name * 2,
            "%s-%03d" % (name, 7), "{0} {k!r}".format(name, k=3), string.ascii_lowercase[:3], string.Template("$a!").substitute(a=1),
            textwrap.dedent("  a\n  b"), textwrap.shorten("hello big world", 9), json.dumps({"a": [1, None, True]}, sort_keys=True),
            json.loads('{"b": [1, 2.5]}'), name.isidentifier(), ord(name[0]), chr(65), name.casefold() == name, str(b"ab", "ascii"),
            bytes([1, 2]).hex(), name.translate(str.maketrans("l", "L")), name.count("e"), sorted(name), "é".encode("utf-8"),
        ]  # fmt: skip
        return x + len(values), values

    return fn, [(tensor(3), "layer.weight"), (tensor(3), "layer.weight"), (tensor(3), "bias")]


# ------------------------------------------------------------------------------------ operator, bisect, heapq, types


@program(graphs=1)
def operator_functions():
    class C:
        def __init__(self, v):
            self.v = v
            self.inner = self

        def go(self, k):
            return self.v * k

    def fn(x):
        c = C(x)
        d = {"k": x}
        operator.setitem(d, "j", x * 2)
        operator.delitem(d, "k")
        held = [1]
        held = operator.iadd(held, [2])
        return (
            operator.attrgetter("inner.v")(c)
            + operator.methodcaller("go", 3)(c)
            + operator.itemgetter("j")(d)
            + operator.mul(x, 2)
            + operator.neg(x)
            + operator.getitem([x], 0)
            + operator.truediv(x, 2)
            + operator.pow(2, 3)
            + operator.matmul(x, x)
            + operator.abs(-3)
            + operator.index(4)
            + operator.length_hint([1, 2])
            + operator.countOf([1, 1], 1)
            + operator.indexOf([5, 6], 6),
            operator.itemgetter(0, 2)("abc"),
            operator.attrgetter("v", "inner")(c)[1] is c,
            operator.contains([1], 1),
            operator.concat([1], [2]),
            operator.not_([]),
            operator.is_not(c, None),
            operator.xor(5, 1),
            operator.inv(3),
            held,
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def bisection_and_heaps():
    edges = [1, 3, 5]
    outside_heap = [5, 7, 9]

    def fn(x, v):
        i = bisect.bisect(edges, v)
        own = [1, 4]
        bisect.insort(own, 3)
        heap = []
        for p in (3, 1, 2):
            heapq.heappush(heap, p)
        first = heapq.heappop(heap)
        heapq.heappush(outside_heap, 1)
        least = heapq.heappop(outside_heap)
        pair = []
        heapq.heappush(pair, (2, "b"))
        heapq.heappush(pair, (1, "a"))
        return (
            x * i + first + least,
            own,
            heapq.nlargest(2, [1, 5, 3]),
            heapq.nsmallest(1, [4, 2], key=lambda t: -t),
            list(heapq.merge([1, 4], [2, 3])),
            pair[0],
            bisect.bisect_left(edges, 3),
            bisect.bisect_left([(1, "a"), (2, "b")], 2, key=lambda t: t[0]),
        )

    return fn, [(tensor(3), 4), (tensor(3), 4), (tensor(3), 2)], (edges, outside_heap)


@program(graphs=1)
def types_module():
    ns = types.SimpleNamespace(a=1, b=[2])
    proxy = types.MappingProxyType({"k": 3})

    def fn(x):
        own = types.SimpleNamespace(t=x, n=2)
        own.n += 1
        ns.last = x * 2
        ns.a = 4
        p = types.MappingProxyType({"z": x})
        m = types.MethodType(lambda self, y: self.n * y, own)
        return (
            own.t * own.n + ns.last + ns.a + p["z"] + m(x),
            "z" in p,
            own == types.SimpleNamespace(t=own.t, n=3),
            isinstance(fn, types.FunctionType),
            isinstance(len, types.BuiltinFunctionType),
            isinstance((i for i in ()), types.GeneratorType),
            isinstance(None, types.NoneType),
            vars(ns)["a"],
            hasattr(own, "zz"),
        )

    return fn, [(tensor(3),)] * 3, ns


@program(graphs=2, breaks=["unsupported-object", "unsupported-object"])
def mapping_proxy_from_outside():
    proxy = types.MappingProxyType({"k": 3})

    def fn(x):
        return x * proxy["k"] + len(proxy)

    return fn, [(tensor(3),)] * 3


# --------------------------------------------------------------------------------------------------- context and IO


@program(graphs=1)
def pseudo_random_numbers():
    rng = random.Random(5)

    def fn(x):
        return x * random.random() + rng.randint(1, 10) + random.choice([1, 2, 3]) + random.uniform(0, 1)

    return fn, [(tensor(3),)] * 3, lambda: rng.getstate()[1][:5]


@program(graphs=1, later=2, breaks=["random-state"])
def random_shuffle_and_sample():
    held = [1, 2, 3, 4]

    def fn(x):
        random.shuffle(held)
        picked = random.sample(held, 2)
        return x * picked[0] + random.gauss(0, 1)

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1)
def random_seeded_inside():
    def fn(x):
        rng = random.Random(3)
        return x * rng.random() + rng.randrange(5)

    return fn, [(tensor(3),)] * 3


@program(
    graphs=1,
    breaks=["input-output", "input-output", "input-output", "unsupported-call"],
    eager=["unsupported-call"],
)
def queues():
    q = queue.Queue()

    def fn(x):
        q.put(x)
        own = queue.SimpleQueue()
        own.put(x * 2)
        return q.get() + own.get()

    return fn, [(tensor(3),)] * 3, lambda: q.qsize()


@program(
    graphs=1, later=2, breaks=["input-output", "input-output", "input-output", "input-output", "input-output"]
)
def clocks_and_identifiers():
    def fn(x):
        a = time.perf_counter()
        b = time.time()
        c = datetime.datetime.now()
        d = uuid.uuid4()
        return x * 2, a > 0, b > 0, c.year > 2000, len(str(d))

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def dates():
    day = datetime.date(2020, 1, 2)

    def fn(x):
        d = datetime.datetime(2020, 1, 5) - datetime.timedelta(days=2)
        return (
            x * d.day + day.month,
            d,
            d.isoformat(),
            (d.date() - day).days,
            datetime.timedelta(hours=1).total_seconds(),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=2)
def environment():
    os.environ["SMELT_CATALOGUE"] = "2"

    def fn(x):
        k = int(os.environ.get("SMELT_CATALOGUE", "1"))
        flag = os.getenv("SMELT_CATALOGUE_FLAG")
        return x * k + int(os.environ["SMELT_CATALOGUE"]), flag, "SMELT_CATALOGUE" in os.environ

    changes = {
        2: lambda: os.environ.__setitem__("SMELT_CATALOGUE", "5"),
        3: lambda: os.environ.__setitem__("SMELT_CATALOGUE_FLAG", "on"),
        4: lambda: os.environ.pop("SMELT_CATALOGUE_FLAG"),
    }
    return fn, Changing([(tensor(3),)] * 5, changes)


@program(graphs=1, later=1)  # the path keeps what it computed in slots that were empty
def paths():
    base = pathlib.PurePosixPath("/a/b")

    def fn(x):
        p = base / "c.txt"
        return (
            x + len(p.parts),
            p,
            p.name,
            p.suffix,
            p.parent == base,
            str(p.with_suffix(".md")),
            os.path.join("a", "b"),
            os.path.basename("/x/y.z"),
            os.path.splitext("y.tar"),
            os.path.dirname("/x/y"),
            os.path.normpath("a//b/../c"),
            os.sep,
            os.path.isabs("/a"),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1, breaks=["input-output", "input-output", "input-output", "input-output"])
def files():
    def fn(x):
        return (
            x * 2,
            os.path.exists("/"),
            os.path.isdir("/nowhere"),
            pathlib.Path("/").exists(),
            bool(os.getcwd()),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def imports_inside():
    def fn(x):
        import json as j
        import os.path
        from collections import OrderedDict
        from math import sqrt

        mod = importlib.import_module("math")
        return x * sqrt(4) + mod.floor(2.5) + len(j.dumps([1])) + len(os.path.join("a", "b")), OrderedDict(
            a=1
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def import_fails():
    def fn(x):
        try:
            import no_such_module_anywhere  # noqa: F401

            return x
        except ImportError as e:
            return x + 1, type(e), str(e)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def system_reads():
    def fn(x):
        return (
            x + sys.maxsize % 7,
            sys.version_info >= (3, 8),
            sys.platform,
            sys.byteorder,
            "torch" in sys.modules,
            sys.float_info.epsilon,
            sys.intern("abc"),
            sys.version_info[0],
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def abstract_numbers_and_abcs():
    class Seq(collections.abc.Sequence):
        def __init__(self, *items):
            self.items = items

        def __getitem__(self, i):
            return self.items[i]

        def __len__(self):
            return len(self.items)

    class Bag(collections.abc.MutableSet):
        def __init__(self, items=()):
            self.items = list(items)

        def __contains__(self, v):
            return v in self.items

        def __iter__(self):
            return iter(self.items)

        def __len__(self):
            return len(self.items)

        def add(self, v):
            if v not in self.items:
                self.items.append(v)

        def discard(self, v):
            self.items.remove(v)

    def fn(x):
        s = Seq(5, 1, 2)
        b = Bag([1, 2])
        b.add(3)
        b |= Bag([4])
        u = b & Bag([1, 9])
        return (
            x * s[0] + s.index(2) + s.count(1) + len(b),
            list(reversed(s))[0],
            1 in s,
            list(u),
            b <= Bag([1, 2, 3, 4]),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def enum_of_the_standard_library():
    def fn(x):
        pattern = re.compile("a", re.IGNORECASE | re.MULTILINE)
        k = enum.unique
        return (
            x + int(bool(pattern.flags & re.I)),
            inspect.Parameter.KEYWORD_ONLY.name,
            k is not None,
            abc.ABC.__name__,
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def contextlib_helpers():
    import contextlib

    log = []

    @contextlib.contextmanager
    def scope(k):
        log.append("in")
        try:
            yield k
        finally:
            log.append("out")

    class Closing:
        def close(self):
            log.append("closed")

    def fn(x):
        with contextlib.ExitStack() as stack:
            k = stack.enter_context(scope(3))
            stack.callback(log.append, "callback")
            y = x * k
        with contextlib.suppress(KeyError):
            {}["a"]
        with contextlib.nullcontext(4) as n:
            y = y + n
        with contextlib.closing(Closing()):
            y = y + 1
        return y

    return fn, [(tensor(3),)] * 3, log


# ------------------------------------------------------------------------------- cached functions of tensors in one graph


@program(graphs=1, fullgraph=True)
def a_cached_function_of_computed_tensors():
    drawn = []

    @functools.lru_cache
    def scaled(x, by=2, *, shift=0):
        drawn.append(by)
        return x * by + shift

    def fn(x):
        x = x + 1
        first = scaled(x)
        first.add_(1)
        again = scaled(x)
        others = scaled(x, 2), scaled(x, by=2), scaled(x, shift=1), scaled(x, shift=True)
        same = [again is first, others[0] is first, others[2] is others[3]]
        return again, others, same

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=1, fullgraph=True)
def a_cached_function_forgets_the_oldest_call():
    @functools.lru_cache(maxsize=1)
    def noise(x):
        return torch.rand_like(x)

    def fn(x):
        x, y = x + 1, x + 2
        first = noise(x)
        same = noise(x) is first
        noise(y)
        return first, same, noise(x) is first

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=1, later=1, fullgraph=True)
def cached_calls_with_inputs_that_become_one_tensor():
    @functools.cache
    def both(x, y):
        return {"sum": x + y, "parts": [x, y]}

    def fn(x, y):
        return both(x, y) is both(y, x), both(x, y)["sum"], both(x, y)["parts"][1] * 2

    same = tensor(3)
    return fn, [(tensor(3), tensor(3)), (same, same), (tensor(3), tensor(3))]


@pytest.mark.parametrize("effect", ["result", "argument", "list", "random", "append"])
def test_a_cached_function_whose_entries_of_other_calls_differ_is_refused(effect):
    calls = []

    @functools.lru_cache
    def cached(x):
        if effect == "append":
            calls.append(1)
        return [x * 2 + (torch.rand(3) if effect == "random" else 1)]

    @smelt.compile(fullgraph=True)
    def fn(x):
        (found,) = held = cached(x)
        if effect == "result":
            found.add_(1)
        if effect == "argument":
            x.add_(1)
        if effect == "list":
            held.append(3)
        return found + 1

    with pytest.raises(SmeltError, match="which is cached"):
        fn(tensor(3))
