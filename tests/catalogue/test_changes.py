"""The world changes between two calls: whatever decided a trace is noticed, whatever kind of object holds it.

A program yields the function first; after each further `yield` it is called again, twice.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import os
import pathlib
import re
import string
import textwrap
import types
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tests.harness.catalogue import program

x = torch.tensor([1.0, 2.0, 3.0])


class Steps:
    """The calls of a program; the world changes in between."""

    def __init__(self, changes: Iterator[Any]) -> None:
        self.changes = changes

    def __len__(self) -> int:
        return 3  # at least

    def __iter__(self) -> Iterator[tuple[()]]:
        yield ()
        yield ()
        for _ in self.changes:
            yield ()
            yield ()


def steps(**said: Any) -> Callable[[Callable[[], Iterator[Any]]], Callable[..., None]]:
    """A row from a generator that gives the function and then changes the world, once a step; `said` is as for `program`."""

    def decorate(world: Callable[[], Iterator[Any]]) -> Callable[..., None]:
        @functools.wraps(world)
        def factory() -> Any:
            changes = world()
            return next(changes), Steps(changes)

        return program(**said)(factory)

    return decorate


@steps(graphs=1, later=2)
def descriptor_object_state():
    class D:
        def __init__(self):
            self.k = 2

        def __get__(self, o, c):
            return self.k

    d = D()

    class C:
        p = d

    c = C()
    yield lambda: x * c.p
    d.k = 5
    yield
    C.p = 9
    yield


@steps(graphs=1, later=4)
def class_level_list():
    class C:
        items = [1, 2]

    c = C()
    yield lambda: x * len(c.items) + c.items[0]
    C.items.append(3)
    yield
    C.items[0] = 7
    yield
    C.items = [0]
    yield
    c.items = [4]
    yield


@steps(graphs=1, later=2)
def class_level_dict_in_staticmethod():
    class C:
        table = {"a": 1}

        @staticmethod
        def get():
            return C.table["a"]

    yield lambda: x * C.get()
    C.table["a"] = 3
    yield
    C.get = staticmethod(lambda: 11)
    yield


@steps(graphs=1, later=1)
def partial_keywords():
    p = functools.partial(lambda t, k=1: t * k, k=2)
    yield lambda: p(x)
    p.keywords["k"] = 5
    yield


@steps(graphs=1, later=1)
def bound_method_rebinding():
    class C:
        def __init__(self, k):
            self.k = k

        def m(self, t):
            return t * self.k

    a, b = C(2), C(3)
    box = {"f": a.m}
    yield lambda: box["f"](x)
    a.k = 7
    yield
    box["f"] = b.m
    yield


@steps(graphs=1, later=1)
def default_mutable():
    def h(t, opts={"k": 2}):
        return t * opts["k"]

    yield lambda: h(x)
    h.__defaults__[0]["k"] = 6
    yield


@steps(graphs=1, later=1)
def closure_cell_of_helper():
    k = 2

    def h(t):
        return t * k

    def setk(v):
        nonlocal k
        k = v

    yield lambda: h(x)
    setk(5)
    yield


@steps(graphs=1, later=1)
def enum_member_attr():
    class E(enum.Enum):
        A = 1

    E.A.extra = 3
    yield lambda: x * E.A.extra
    E.A.extra = 8
    yield


@steps(graphs=1, later=2)
def namedtuple_in_dict():
    P = collections.namedtuple("P", "a b")
    d = {"p": P(1, [2])}
    yield lambda: x * d["p"].a + d["p"].b[0]
    d["p"].b[0] = 9
    yield
    d["p"] = P(4, [5])
    yield


@steps(graphs=1, later=2)
def getattr_on_class_instance_default():
    class C:
        pass

    c = C()
    yield lambda: x * getattr(c, "zz", 4)
    C.zz = 6
    yield
    c.zz = 7
    yield
    del c.zz
    yield
    del C.zz
    yield


@steps(graphs=1, later=1)
def dunder_contains():
    class C(list):
        pass

    c = C([1, 2])
    yield lambda: x + (1 in c)
    C.__contains__ = lambda self, v: False
    yield


@steps(graphs=1, later=2)
def iter_protocol_swap():
    class C:
        def __init__(self):
            self.v = [1, 2]

        def __iter__(self):
            return iter(self.v)

    c = C()
    yield lambda: x * sum(c)
    c.v.append(5)
    yield
    C.__iter__ = lambda self: iter([100])
    yield


@steps(graphs=1, later=1)
def len_swap():
    class C(dict):
        pass

    c = C(a=1)
    yield lambda: x * len(c)
    C.__len__ = lambda self: 9
    yield


@steps(graphs=1, later=2)
def metaclass_getattr():
    class M(type):
        def __getattr__(cls, n):
            return 3

    class C(metaclass=M):
        pass

    yield lambda: x * C.nothing
    M.__getattr__ = lambda cls, n: 8
    yield
    C.nothing = 5
    yield


@steps(graphs=1, later=2)
def module_function_replaced():
    m = types.ModuleType("m")
    m.f = lambda t: t * 2
    yield lambda: m.f(x)
    m.f = lambda t: t * 3
    yield
    m.f.__defaults__ = ()
    yield


@steps(graphs=1, later=1)
def property_fget_swap():
    class C:
        p = property(lambda self: 2)

    c = C()
    yield lambda: x * c.p
    C.p = property(lambda self: 4)
    yield


@steps(graphs=1, later=2)
def slots_change():
    class C:
        __slots__ = ("a",)

    c = C()
    c.a = 2
    yield lambda: x * c.a
    c.a = 3
    yield
    del c.a
    c.a = 4.5
    yield


@steps(graphs=1, later=2)
def set_content():
    s = {1, 2}
    yield lambda: x * (2 in s) + len(s)
    s.discard(2)
    yield
    s.add(5)
    yield


@steps(graphs=1, later=1)
def frozen_dataclass_field():
    @dataclasses.dataclass(frozen=True)
    class F:
        a: int = 1

    f = F()
    yield lambda: x * f.a
    object.__setattr__(f, "a", 5)
    yield


@steps(graphs=1, later=1)
def isinstance_virtual():
    class A(abc.ABC):
        pass

    class B:
        pass

    b = B()
    yield lambda: x + isinstance(b, A)
    A.register(B)
    yield


@steps(graphs=1, later=1)
def userdict():
    u = collections.UserDict(a=2)
    yield lambda: x * u["a"]
    u["a"] = 7
    yield


@steps(graphs=1, later=3)
def chainmap():
    a, b = {"k": 1}, {"k": 2, "z": 3}
    c = collections.ChainMap(a, b)
    yield lambda: x * c["k"] + c["z"]
    a["k"] = 5
    yield
    del a["k"]
    yield
    a["z"] = 9
    yield


@steps(graphs=1, later=1)
def defaultdict_factory():
    d = collections.defaultdict(lambda: 2)
    yield lambda: x * d.get("q", 3) + len(d)
    d["q"]
    yield


@steps(graphs=1, later=2)
def counter_missing():
    c = collections.Counter("aab")
    yield lambda: x * c["a"] + c["zz"]
    c["zz"] += 4
    yield
    c.update("aaa")
    yield


@steps(graphs=1, later=2)
def singledispatch_new():
    @functools.singledispatch
    def f(v):
        return 1

    yield lambda: x * f(3) + f(x)
    f.register(int, lambda v: 7)
    yield
    f.register(torch.Tensor, lambda v: v * 2)
    yield


@steps(graphs=1, later=3)
def cached_property_state():
    class C:
        k = 2

        @functools.cached_property
        def p(self):
            return self.k * 3

    c = C()
    yield lambda: x * c.p
    c.__dict__["p"] = 50
    yield
    del c.__dict__["p"]
    C.k = 4
    yield


@steps(graphs=1, later=1)
def deep_attr_chain():
    N = types.SimpleNamespace
    n = N(a=N(b=N(c=[{"k": 2}])))
    yield lambda: x * n.a.b.c[0]["k"]
    n.a.b.c[0]["k"] = 3
    yield
    n.a.b = N(c=[{"k": 8}])
    yield


@steps(graphs=1, later=3)
def tuple_of_lists():
    t = ([1], [2])
    box = [t]
    yield lambda: x * box[0][0][0] + len(box[0][1])
    t[0][0] = 5
    yield
    t[1].append(1)
    yield
    box[0] = ([9], [])
    yield


@steps(graphs=1, later=2)
def int_subclass():
    class Whole(int):
        def __mul__(self, o):
            return o * 100

    i = {"i": Whole(3)}
    yield lambda: i["i"] * x if False else x + int(i["i"])
    i["i"] = Whole(4)
    yield
    i["i"] = 5
    yield


@steps(graphs=1, later=1)
def str_subclass_attr():
    class S(str):
        pass

    s = S("ab")
    s.k = 2
    yield lambda: x * s.k + len(s)
    s.k = 5
    yield


@steps(graphs=1, later=2)
def list_subclass_attr():
    class L(list):
        pass

    l = L([1, 2])
    l.k = 3
    yield lambda: x * l.k + l[0]
    l.k = 4
    yield
    l[0] = 9
    yield


@steps(graphs=1, later=2)
def operators_patched():
    class V:
        def __init__(self, k):
            self.k = k

        def __mul__(self, o):
            return o * self.k

    v = V(2)
    yield lambda: v * x
    V.__mul__ = lambda self, o: o - self.k
    yield
    v.k = 9
    yield


@steps(graphs=1, later=1)
def reflected_added():
    class V:
        def __radd__(self, o):
            return o + 1

    class W(V):
        pass

    v, w = V(), W()
    yield lambda: x + (3 + w)
    W.__radd__ = lambda self, o: 100
    yield


@steps(graphs=1, later=1)
def eq_added():
    class V:
        pass

    a, b = V(), V()
    yield lambda: x + (a == b)
    V.__eq__ = lambda s, o: True
    yield


@steps(graphs=1, later=2)
def hash_key_objects():
    class K:
        pass

    k = K()
    d = {k: 2}
    box = [k]
    yield lambda: x * d[box[0]]
    d[k] = 5
    yield
    k2 = K()
    d[k2] = 9
    box[0] = k2
    yield


@steps(graphs=1, later=1)
def function_wrapped_attr():
    def f(t):
        return t * f.k

    f.k = 2
    yield lambda: f(x)
    f.k = 3
    yield


@steps(graphs=1, later=1)
def super_method_patched():
    class A:
        def go(self, t):
            return t + 1

    class B(A):
        def go(self, t):
            return super().go(t) * 2

    b = B()
    yield lambda: b.go(x)
    A.go = lambda self, t: t + 50
    yield
    b.go = lambda t: t
    yield


@steps(graphs=1, later=1)
def init_patched():
    class A:
        def __init__(self):
            self.k = 2

    yield lambda: x * A().k
    A.__init__ = lambda self: setattr(self, "k", 7)
    yield


@steps(graphs=1, later=1)
def new_added():
    class A:
        k = 1

    yield lambda: x * A().k

    def new(cls):
        o = object.__new__(cls)
        o.k = 5
        return o

    A.__new__ = new
    yield


@steps(graphs=1, later=1)
def instance_dict_key_order():
    class A:
        pass

    a = A()
    a.p = 1
    a.q = 2
    yield lambda: (x + len(vars(a)), list(vars(a)))
    del a.p
    a.p = 1
    yield


@steps(graphs=1, later=2)
def os_environ():
    os.environ["QQ"] = "1"
    yield lambda: x * int(os.environ.get("QQ", 5))
    os.environ["QQ"] = "3"
    yield
    del os.environ["QQ"]
    yield


@steps(graphs=1, later=2)
def weakref_target():
    class A:
        k = 2

    a = [A()]
    r = weakref.ref(a[0])
    yield lambda: x * (r().k if r() else 9)
    A.k = 4
    yield
    a.clear()
    yield


@steps(graphs=1, later=1)
def typing_hints():
    def h(a: int):
        return a

    yield lambda: x + len(h.__annotations__)
    h.__annotations__["z"] = int
    yield


@steps(graphs=1, later=1)
def method_via_type():
    class A:
        def m(self, t):
            return t * 2

    a = A()
    yield lambda: type(a).m(a, x)
    a.__class__ = type("B", (A,), {"m": lambda self, t: t * 9})
    yield


@steps(graphs=1, later=3)
def classmethod_override():
    class A:
        @classmethod
        def m(cls):
            return cls.k

        k = 2

    class B(A):
        k = 3

    yield lambda: x * B.m()
    B.k = 4
    yield
    del B.k
    yield
    A.m = classmethod(lambda cls: 11)
    yield


@steps(graphs=1, later=1)
def module_level_getattr():
    m = types.ModuleType("mm")
    exec("def __getattr__(n): return len(n)", m.__dict__)
    yield lambda: x * m.abc
    m.abc = 50
    yield


@steps(graphs=1, later=1)
def re_flags():
    p = {"p": re.compile("a+")}
    yield lambda: x * len(p["p"].match("aaab").group())
    p["p"] = re.compile("a")
    yield


@steps(graphs=1, later=1)
def numpy_scalar():
    b = {"k": np.float64(2.0), "n": np.int64(3), "f": np.float32(1.5)}
    yield lambda: x * b["k"]
    b["k"] = np.float64(3.0)
    yield


@steps(graphs=1, later=1)
def numpy_int_scalar():
    b = {"n": np.int64(3)}
    yield lambda: (x * b["n"], bool(b["n"]), b["n"] + 1)
    b["n"] = np.int64(0)
    yield


@steps(graphs=1, later=1, breaks=["unsupported-effect"])
def decimal_value():
    b = {"d": decimal.Decimal("1.5")}
    yield lambda: (x * float(b["d"]), b["d"] + 1, bool(b["d"]), str(b["d"]))
    b["d"] = decimal.Decimal("0")
    yield


@steps(graphs=1, later=2)
def date_value():
    b = {"d": datetime.date(2020, 1, 2), "t": datetime.timedelta(1)}
    yield lambda: (x * b["d"].day, b["t"] * 2, b["d"].isoformat())
    b["d"] = datetime.date(2021, 1, 3)
    yield
    b["t"] = datetime.timedelta(3)
    yield


@steps(graphs=1, later=1)
def fraction_value():
    b = {"d": fractions.Fraction(1, 2)}
    yield lambda: (x * float(b["d"]), b["d"] + 1, b["d"].numerator)
    b["d"] = fractions.Fraction(1, 3)
    yield


@steps(graphs=1, later=3)
def path_value():
    b = {"d": pathlib.PurePosixPath("/a")}
    yield lambda: (x * len(b["d"].parts), str(b["d"]), b["d"] / "z")
    b["d"] = pathlib.PurePosixPath("/a/b")
    yield


@steps(graphs=1, later=1)
def str_subclass_value():
    class S(str):
        pass

    b = {"d": S("ab")}
    yield lambda: (
        x * len(b["d"]),
        b["d"] + "c",
        b["d"].upper(),
        b["d"] == "ab",
        "a" in b["d"],
        b["d"][0],
        f"{b['d']}",
        {"ab": 1}.get(b["d"]),
    )
    b["d"] = S("xyz")
    yield


@steps(graphs=1, later=1)
def float_subclass_value():
    class S(float):
        pass

    b = {"d": S(2.0)}
    yield lambda: (x * b["d"], b["d"] + 1, bool(b["d"]), round(b["d"]), b["d"] > 1, int(b["d"]))
    b["d"] = S(0.0)
    yield


@steps(graphs=1, later=1, breaks=["unsupported-object", "unsupported-object"])
def bytes_bytearray_value():
    b = {"d": b"ab", "e": bytearray(b"q")}
    yield lambda: (x * len(b["d"]), b["d"][0], bytes(b["e"]), len(b["e"]))
    b["d"] = b"xyz"
    yield
    b["e"][0] = 50
    yield


@steps(graphs=1, later=3)
def complex_range_slice():
    b = {"c": 1j, "r": range(3), "s": slice(0, 2)}
    yield lambda: (x * b["c"].imag, list(b["r"]), x[b["s"]])
    b["c"] = 2j
    yield
    b["r"] = range(2)
    yield
    b["s"] = slice(1, 2)
    yield


@steps(graphs=1, later=1, breaks=["input-output"])
def uuid_and_version():
    b = {"u": uuid.UUID(int=5)}
    yield lambda: (x * b["u"].int, str(b["u"]))
    b["u"] = uuid.UUID(int=6)
    yield


@steps(
    graphs=1,
    later=1,
    breaks=[
        "unsupported-object",
        "unsupported-object",
        "unsupported-object",
        "unsupported-object",
        "unsupported-object",
    ],
)
def mapping_proxy_and_views():
    d = {"a": 1}
    b = {"p": types.MappingProxyType(d), "k": d.keys(), "v": d.values()}
    yield lambda: (x * b["p"]["a"], list(b["k"]), sum(b["v"]), len(b["p"]), "z" in b["k"])
    d["a"] = 5
    yield
    d["z"] = 7
    yield


@steps(graphs=1, later=3)
def method_wrapper_and_builtin_bound():
    l = [1, 2]
    b = {"f": l.__len__, "g": l.index, "h": "abc".upper, "i": {"k": 3}.get}
    yield lambda: (x * b["f"](), b["g"](2), b["h"](), b["i"]("k"))
    l.insert(0, 9)
    yield
    b["h"] = "q".upper
    yield
    b["i"] = {"k": 8}.get
    yield


@steps(graphs=1, later=3)
def torch_objects():
    b = {"d": torch.float32, "v": torch.device("cpu"), "s": torch.Size([3]), "g": torch.finfo(torch.float32)}
    yield lambda: (x.to(b["d"]), x.to(b["v"]), x.view(b["s"]), b["g"].eps)
    b["d"] = torch.float64
    yield
    b["s"] = torch.Size([3, 1])
    yield
    b["g"] = torch.finfo(torch.float64)
    yield


@steps(graphs=2, later=1, breaks=["data-dependent-value"])
def ndarray():
    a = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    yield lambda: x + torch.from_numpy(a) + float(a.sum())
    a[0] = 50
    yield


@steps(graphs=1, later=1)
def string_template():
    t = string.Template("$a!")
    yield lambda: (x + len(t.substitute(a=1)), t.substitute(a="z"))
    t.template = "$a?????"
    yield


@steps(graphs=1, later=1)
def text_wrapper():
    t = textwrap.TextWrapper(width=5)
    yield lambda: (x + len(t.wrap("aa bb cc dd")),)
    t.width = 50
    yield


@steps(graphs=1, later=1, breaks=["unsupported-object", "unsupported-object"])
def inspect_signature_obj():
    def f(a, b=2):
        pass

    b = {"s": inspect.signature(f)}
    yield lambda: (x + len(b["s"].parameters), b["s"].parameters["b"].default)
    b["s"] = inspect.signature(lambda q, b=7: 0)
    yield
