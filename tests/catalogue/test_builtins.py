"""Builtin functions and types, on constants, on tensors and on objects of the user."""

from __future__ import annotations

import functools
import operator
import types

import torch
from torch import nn

from tests.harness.catalogue import Changing, for_each_control_flow, program, tensor


class Thing:
    kind = "thing"

    def __init__(self, v):
        self.v = v

    def method(self):
        return self.v

    def __lt__(self, other):
        return self.v < other.v

    def __repr__(self):
        return f"Thing({self.v})"


# ------------------------------------------------------------------------------------------------------ attributes


@program(graphs=1, later=1)
def attribute_builtins():
    t = Thing(3)

    def fn(x, name):
        u = Thing(x)
        setattr(u, name, 4)
        got = getattr(u, name) + getattr(t, "missing", 2) + getattr(t, "v")
        has = [
            hasattr(u, name),
            hasattr(t, "nothing"),
            hasattr(Thing, "kind"),
            hasattr(x, "shape"),
            hasattr(x, "nothing"),
        ]
        delattr(u, name)
        setattr(t, name, x)
        return x * got, has, hasattr(u, name), getattr(x, "dtype"), getattr(t, name)

    return fn, [(tensor(3), "a"), (tensor(3), "a"), (tensor(3), "b")], t


@program(graphs=1, later=2)
def attribute_appears_between_calls():
    t = Thing(3)

    def fn(x):
        if hasattr(t, "extra"):
            return x * t.extra
        return x + getattr(t, "other", 1)

    changes = {
        1: lambda: setattr(t, "other", 5),
        2: lambda: setattr(t, "extra", 7),
        3: lambda: delattr(t, "extra"),
    }
    return fn, Changing([(tensor(3),)] * 5, changes)


CALLABLES = [Thing.method, functools.partial(max, 1), Thing(3).method, [].append]
HASHES = [hash(c) for c in CALLABLES]


@program(graphs=1)
def hashes_and_places_of_callables():
    def fn(x):
        function, partial, method, append = CALLABLES
        found = [hash(function), hash(partial), hash(method), hash(append)]
        places = [partial].index(partial), [1, method].count(method)
        return x + 1, found == HASHES, list(map(hash, CALLABLES)) == HASHES, places

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def vars_and_dir():
    t = Thing(3)

    def fn(x):
        local = 3
        u = Thing(x)
        names = [n for n in dir(u) if not n.startswith("_")]
        return x + vars(t)["v"] + len(vars(u)), names, sorted(locals())[:2], "kind" in vars(Thing), local

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1, breaks=["unsupported-call"])
def dir_of_outside_object():
    t = Thing(3)

    def fn(x):
        return x + len([n for n in dir(t) if n == "v"]), "method" in dir(Thing)

    return fn, Changing([(tensor(3),)] * 3, {2: lambda: delattr(t, "v")})


@program(graphs=1)
def types_and_instances():
    t = Thing(3)

    def fn(x):
        facts = [
            type(t) is Thing,
            type(x) is torch.Tensor,
            isinstance(x, torch.Tensor),
            isinstance(x, (int, torch.Tensor)),
            isinstance(3, bool),
            isinstance(True, int),
            isinstance(t, object),
            issubclass(Thing, object),
            issubclass(bool, int),
            isinstance(t, int | Thing),
            isinstance(nn.ReLU(), nn.Module),
            type(None)() is None,
            type(3)("4"),
            type([1])((1, 2)),
            isinstance(nn.Parameter(x, requires_grad=False), nn.Parameter),
            isinstance(x, nn.Parameter),
            callable(t),
            callable(Thing),
            callable(t.method),
            callable(len),
            callable(nn.ReLU()),
        ]
        return x + sum(bool(f) for f in facts), facts, type(t).__name__, t.__class__.__mro__[-1]

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def identity_and_hash():
    t = Thing(3)
    t.me = t

    def fn(x):
        u = Thing(1)
        facts = [
            id(t) == id(t.me),
            id(u) == id(t),
            hash("abc") == hash("abc"),
            hash(3),
            hash((1, 2)) == hash((1, 2)),
            hash(t) == hash(t.me),
            x is x,
            t is t.me,
            x is not None,
            hash(x) == hash(x),
            hash(2.0) == hash(2),
        ]
        return x + sum(bool(f) for f in facts), facts

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def identity_leaves():
    def fn(x):
        u = Thing(1)
        return x + 1, id(u) == 0, len(repr(object())) > 5

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def unhashable_and_uncallable():
    def fn(x):
        texts = []
        for bad in (
            lambda: {[]: 1},
            lambda: (lambda v: v())(3),
            lambda: hash({}),
            lambda: Thing(1) < 3,
            lambda: len(3),
            lambda: iter(3),
            lambda: None + 1,
        ):
            try:
                bad()
            except (TypeError, AttributeError) as e:
                texts.append((type(e).__name__, str(e)))
        return x + len(texts), texts

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def argument_errors():
    def two(a, b, *, c=1):
        return a

    def fn(x):
        texts = []
        calls = (
            lambda: two(),
            lambda: two(1),
            lambda: two(1, 2, 3),
            lambda: two(1, 2, d=4),
            lambda: two(1, 2, a=3),
            lambda: two(*[1, 2], **{"c": 2, "e": 1}),
            lambda: Thing(),
            lambda: Thing(1).method(2),
            lambda: len(),
            lambda: (lambda *, k: k)(),
            lambda: int("zz"),
            lambda: [].pop(),
            lambda: {}["k"],
            lambda: (1, 2)[5],
            lambda: "a" + 1,
            lambda: [1].index(2),
            lambda: getattr(Thing(1), "nope"),
            lambda: Thing.nope,
        )
        for c in calls:
            try:
                c()
            except Exception as e:
                texts.append((type(e).__name__, str(e)))
        return x + len(texts), texts

    return fn, [(tensor(3),)] * 3


# ------------------------------------------------------------------------------------------------------- sequences


@program(graphs=1)
def sorting():
    things = [Thing(3), Thing(1), Thing(2)]

    def fn(x):
        tensors = {"b": x, "a": x * 2}
        first = [k for k, _ in sorted(tensors.items(), key=lambda p: p[0])]
        lengths = sorted([[1, 2, 3], [1], [1, 2]], key=len, reverse=True)
        return (
            x * sorted(things)[0].v,
            first,
            lengths,
            sorted("bca"),
            sorted({3, 1, 2}),
            sorted([(1, "b"), (1, "a")]),
            sorted([1, -2, 3], key=abs),
            [t.v for t in sorted(things, key=operator.attrgetter("v"), reverse=True)],
            max(things, key=lambda t: t.v).v,
            min(things).v,
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def sorting_is_stable_and_fails():
    def fn(x):
        pairs = sorted([("a", 2), ("b", 1), ("c", 2)], key=lambda p: p[1])
        try:
            sorted([1, "a"])
        except TypeError as e:
            text = str(e)
        return x + 1, pairs, text

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def sums_and_extremes():
    def fn(x):
        parts = [x, x * 2]
        return (
            sum(parts)
            + sum(parts, x)
            + sum(p.sum() for p in parts)
            + sum([[1], [2]], [])[1]
            + max(1, 2, 3)
            + min([4, 5]),
            max([], default=7),
            max("abc", key=ord),
            max([1, 5], [2]),
            min({"k": 1, "j": 2}),
            sum([0.1] * 10),
            any([0, 1]),
            all([]),
            any(p is x for p in parts),
            all(isinstance(p, torch.Tensor) for p in parts),
            max(x.shape),
            sum(x.shape),
        )

    return fn, [(tensor(3),)] * 3


@program(
    graphs=4,
    later=2,
    breaks=["data-dependent-condition"] * 3,
)
def extremes_of_tensors():
    def fn(x, y):
        return (
            max(x.sum(), y.sum()),
            min([x.mean(), y.mean()]),
            any([x.sum() > 0]),
            sorted([x[0], x[1], x[2]]),
        )

    return fn, [(tensor(3), tensor(3)), (tensor(3), tensor(3)), (tensor(3), tensor(3))]


@program(graphs=1)
def iteration_builtins():
    def fn(x):
        total = x
        for i, p in enumerate([x, x * 2], start=3):
            total = total + i * p
        for a, b in zip([x, x], (1, 2), strict=True):
            total = total + a * b
        for a in map(lambda p, q: p * q, [x, x + 1], [2, 3]):
            total = total + a
        for a in filter(lambda p: p > 1, [1, 2, 3]):
            total = total + a
        for a in reversed([1, 2]):
            total = total * a
        rows = [r for r in x.view(3, 1)]
        it = iter([1, 2])
        first = next(it)
        rest = list(it)
        end = next(it, "done")
        counted = iter(lambda: len(rest), 1)
        return (
            total + rows[0] + first,
            rest,
            end,
            list(counted),
            [*range(5)][1:4:2],
            list(zip(*[(1, 2), (3, 4)])),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def zip_strict_fails():
    def fn(x):
        try:
            list(zip([1], [1, 2], strict=True))
        except ValueError as e:
            return x + 1, str(e)

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def ranges_and_slices():
    def fn(x, n):
        r = range(1, n * 2, 2)
        s = slice(0, n)
        return (
            x[s] + len(r) + r[-1] + (3 in r) + r.index(3),
            r,
            s.indices(10),
            r[1:],
            list(reversed(r)),
            x[::2],
            x[..., None].shape,
            s == slice(0, n),
            r == range(1, n * 2, 2),
        )

    return fn, [(tensor(4), 2), (tensor(4), 2), (tensor(4), 3)]


@program(graphs=1, later=1)
def tuples_lists_sets_dicts():
    def fn(x, n):
        t = (1, x, *range(n))
        d = {**{"a": 1}, "b": x, **dict(c=3)}
        s = {1, 2, *range(n)} | {9} - {1}
        nested = [[i * j for j in range(3)] for i in range(n)]
        by_key = {k: v for k, v in zip("abc", nested)}
        a, (b, *c), d2 = 1, (2, 3, 4), [5]
        return (
            t[1] + d["b"] + len(s) + nested[1][2] + a + b,
            t,
            d,
            s,
            nested,
            by_key,
            c,
            d2,
            (1, 2) + (3,),
            (1, 2) < (1, 3),
            [1, 2] * 2,
            [1, [2]] == [1, [2]],
            {1: 2} == {1: 2.0},
            frozenset([1]) | {2},
            (1, 2).count(1),
            dict([(1, 2)]) | {3: 4},
            list(d),
            [*d.items()][0],
            d.keys() & {"a", "z"},
            dict.fromkeys("ab", 0),
            set("aab"),
            tuple([1]),
        )

    return fn, [(tensor(3), 2), (tensor(3), 2), (tensor(3), 3)]


@program(graphs=1)
def comparisons_of_containers_with_tensors():
    def fn(x, y):
        a = [x, 1]
        return (
            x + y,
            a == [x, 1],
            (x, 2) == (x, 3),
            x in [x, y],
            [x] != [x],
            {"k": x} == {"k": x},
            [y, x].index(y),
            (x,).count(x),
        )

    return fn, [(tensor(1), tensor(1)), (tensor(1), tensor(1)), (tensor(1), tensor(1))]


# --------------------------------------------------------------------------------------------------------- numbers


@program(graphs=1, later=1)
def number_builtins():
    def fn(x, n):
        values = [
            divmod(7, n), divmod(-7, n), pow(2, n), pow(2, n, 5), round(2.567, 2), round(2.5), abs(-n), int("12"), int(3.9),
            int("ff", 16), float("1e3"), float("inf"), bool([]), bool("a"), complex(1, 2), complex("1+2j"), hex(255), oct(8), bin(5),
            str(n), repr("a"), ascii("é"), chr(97), ord("a"), n // 2, -n // 2, n % 3, -n % 3, n**2, 2**-1, n / 2, n << 2, n & 1,
            ~n, True + True, 1 < n < 5, 0.1 + 0.2, 1e300 * 1e10, n.bit_length(), (3.5).is_integer(), (0.5).as_integer_ratio(),
            float.fromhex("0x1p3"), int.from_bytes(b"\x01\x02", "big"), n.to_bytes(2, "little"), 10_000, 1j * 1j, not n, n and 3,
            n or 4, None or "x", format(3.14159, ".2f"), format(n, "05d"), f"{n:>4}|{3.14159:.1e}|{1234567:,}", round(-0.5), -0.0,
            bytes(2), bytearray(b"a"), b"a" + b"b", "a" "b", memoryview(b"abc")[1], (1).__add__(2), int.__mul__(2, 3),
            str.join("-", ["a", "b"]), float(n), int(True), sum((1, 2)), isinstance(n, int), max(n, 2.5),
        ]  # fmt: skip
        return x * n, values

    return fn, [(tensor(3), 2), (tensor(3), 2), (tensor(3), 3)]


@program(graphs=1)
def division_by_zero():
    def fn(x):
        texts = []
        for f in (
            lambda: 1 / 0,
            lambda: 1 // 0,
            lambda: 1 % 0,
            lambda: 0.0**-1,
            lambda: divmod(1, 0),
            lambda: 1 << -1,
        ):
            try:
                f()
            except (ZeroDivisionError, ValueError) as e:
                texts.append((type(e).__name__, str(e)))
        return x, texts, x + 1

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def numbers_of_tensors_by_operators():
    def fn(x):
        return (
            abs(x),
            pow(x, 2),
            pow(2, x),
            x.__add__(1),
            torch.Tensor.mul(x, 2),
            x // 2,
            x % 2,
            -x,
            +x,
            2**x,
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=0, eager=["user-exception"])
def divmod_of_a_tensor_raises():
    return lambda x: divmod(x, 2), [(tensor(3),)] * 3


@program(graphs=0, eager=["user-exception"])
def rounding_a_tensor_raises():
    return lambda x: round(x), [(tensor(3),)] * 3


@program(
    graphs=3,
    later=1,
    breaks=["data-dependent-value"] * 2,
)
def conversions_of_tensors():
    def fn(x):
        return (
            int(x.sum() * 0 + 3),
            float(x.max()),
            bool((x == x).all()),
            x.tolist(),
            len(x),
            list(x)[0],
            x.sum().item(),
        )

    return fn, [(tensor(3),), (tensor(3),), (tensor(3),)]


@for_each_control_flow(
    dict(graphs=2, breaks=["data-dependent-value"] * 2),
    dict(graphs=3, later=1, breaks=["data-dependent-condition", *["data-dependent-value"] * 3]),
)
def tensor_as_index_and_condition():
    def fn(x, i):
        if x.sum() > 0:
            y = x * 2
        else:
            y = x - 2
        return y + [10, 20, 30][i], range(10)[i]

    i = torch.tensor(1)
    return fn, [(tensor(3), i), (-tensor(3), i), (tensor(3), i), (torch.ones(3), i), (-torch.ones(3), i)]


@program(graphs=1)
def constants_of_tensors_known():
    def fn(x):
        k = int(torch.tensor(3))
        n = torch.tensor([1, 2]).tolist()
        return x * k + n[1] + float(torch.ones(()))

    return fn, [(tensor(3),)] * 3


# ---------------------------------------------------------------------------------------------------------- others


@program(graphs=1)
def properties_as_objects():
    def fn(x):
        class C:
            def __init__(self):
                self.n = 2

            def get(self):
                return self.n

            def put(self, v):
                self.n = v

            p = property(get)
            p = p.setter(put)

        c = C()
        c.p = 5
        return x * c.p, C.p.fget(c), C.p.fset is C.put, C.p.fdel

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def methods_as_objects():
    t = Thing(4)

    def fn(x):
        bound = t.method
        unbound = Thing.method
        other = types.MethodType(unbound, Thing(5))
        append = [].append
        append(3)
        return (
            x * bound() + unbound(t) + other(),
            bound.__self__ is t,
            bound.__func__ is unbound,
            bound == t.method,
            bound.__name__,
            append.__self__,
            str.upper("a"),
            "a".upper(),
            dict.get({"k": 1}, "k"),
            list.__len__([1]),
            object.__repr__(t) == repr(t),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def unbound_methods_of_tensors():
    def fn(x):
        f = torch.Tensor.add
        g = x.mul
        h = getattr(x, "sum")
        return (
            f(x, 1) + g(2) + h(),
            map(torch.Tensor.exp, [x]).__next__(),
            torch.Tensor.size(x),
            list(map(torch.neg, [x, x])),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def function_objects():
    def helper(x, k: int = 2, *, j=3):
        "doc"
        return x * k + j

    def fn(x):
        code = helper.__code__
        made = types.FunctionType(code, helper.__globals__, "made", (5,), None)
        made.__kwdefaults__ = {"j": 1}
        return (
            helper(x) + made(x),
            helper.__name__,
            helper.__doc__,
            helper.__defaults__,
            helper.__kwdefaults__,
            code.co_varnames,
            code.co_argcount,
            helper.__qualname__,
            helper.__module__,
            helper.__annotations__,
            (lambda: 0).__name__,
            fn.__name__,
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def builtins_shadowed():
    def fn(x):
        return len(x), abs(-3), sum([1]), x * 2

    scope = dict(globals())
    shadowed = types.FunctionType(fn.__code__, scope, "shadowed")
    changes = {2: lambda: scope.update(len=lambda v: 100), 3: lambda: scope.pop("len")}
    return shadowed, Changing([(tensor(3),)] * 4, changes)


@program(graphs=1)
def evaluated_code():
    def fn(x):
        k = eval("1 + 2")
        scope = {}
        exec("y = 5", scope)
        return x * k + scope["y"]

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def ellipsis_notimplemented_none():
    def fn(x):
        return (
            x[..., 0],
            Ellipsis is ...,
            NotImplemented,
            None,
            type(...),
            [None] * 2,
            bool(None),
            repr(...),
            __name__,
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def bytes_and_memory():
    def fn(x):
        b = bytearray(b"abc")
        b[0] = 90
        b.extend(b"de")
        m = memoryview(bytes(b))
        return (
            x + b[0] + m[1] + len(m),
            bytes(b),
            b.find(b"c"),
            b"x".join([b"1", b"2"]),
            bytes(m[:2]),
            b == b"Zbcde",
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def print_to_nowhere_and_formatting():
    def fn(x, n):
        text = f"{n=} {n!r:>3} {n:{n}d} {x.shape} {x.dtype} {[1, 'a']} {Thing(n)} {len(x.shape):02}"
        return x * n, text, str([Thing(1), {"k": Thing(2)}]), "%d %s" % (n, Thing(3)), "{:.2f}".format(n / 3)

    return fn, [(tensor(3), 2), (tensor(3), 2), (tensor(3), 3)]
