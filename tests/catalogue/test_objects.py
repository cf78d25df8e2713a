"""More of the object protocol: rarely used special methods, name lookup, coercion, and what callers may observe of it."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import operator
import types
import typing

from torch import nn

from tests.harness.catalogue import Changing, call, program, tensor


class Logged:
    """Notes every special method that is called."""

    def __init__(self, v, log):
        object.__setattr__(self, "v", v)
        object.__setattr__(self, "log", log)

    def __getattr__(self, name):
        self.log.append(("getattr", name))
        if name.startswith("made_"):
            return len(name)
        raise AttributeError(name)

    def __setattr__(self, name, v):
        self.log.append(("setattr", name))
        object.__setattr__(self, name, v)

    def __eq__(self, other):
        self.log.append("eq")
        return isinstance(other, Logged) and self.v == other.v

    def __hash__(self):
        self.log.append("hash")
        return hash(self.v)

    def __lt__(self, other):
        self.log.append("lt")
        return self.v < other.v

    def __add__(self, other):
        self.log.append("add")
        return NotImplemented

    def __radd__(self, other):
        self.log.append("radd")
        return other + self.v

    def __len__(self):
        self.log.append("len")
        return 2

    def __iter__(self):
        self.log.append("iter")
        return iter((self.v, 5))

    def __contains__(self, v):
        self.log.append("contains")
        return v == self.v

    def __bool__(self):
        self.log.append("bool")
        return True

    def __index__(self):
        self.log.append("index")
        return 1

    def __str__(self):
        self.log.append("str")
        return f"<{self.v}>"

    def __repr__(self):
        self.log.append("repr")
        return f"Logged({self.v})"

    def __format__(self, spec):
        self.log.append(("format", spec))
        return format(self.v, spec)

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, *args):
        self.log.append("exit")
        return False

    def __call__(self, *args, **kwargs):
        self.log.append(("call", len(args), tuple(kwargs)))
        return self.v

    def __getitem__(self, k):
        self.log.append(("getitem", repr(k)))
        if isinstance(k, int) and k > 2:
            raise IndexError
        return self.v

    def __missing__(self, k):
        self.log.append("missing")
        return 0

    def __reversed__(self):
        self.log.append("reversed")
        return iter((5, self.v))

    def __matmul__(self, other):
        self.log.append("matmul")
        return 3

    def __int__(self):
        self.log.append("int")
        return 4

    def __float__(self):
        self.log.append("float")
        return 4.5

    def __round__(self, n=None):
        self.log.append(("round", n))
        return 5

    def __neg__(self):
        self.log.append("neg")
        return -self.v

    def __dir__(self):
        self.log.append("dir")
        return ["a", "b"]

    def __sizeof__(self):
        return 1

    def __instancecheck__(self, o):
        return True


@program(graphs=1)
def which_special_methods_run_in_what_order():
    log = []
    a, b = Logged(3, log), Logged(2, log)

    def fn(x):
        facts = [
            a == b, a != b, a in [b, a], {a: 1}.get(b), sorted([a, b])[0].v, a < b, 1 + a, len(a), list(a), 3 in a, bool(a),
            [7, 8][a], str(a), repr(a), f"{a:03d} {a!r} {b}", a(1, k=2), a[0], a[1:2], tuple(reversed(a)), a @ 2, int(a), float(a),
            round(a), round(a, 1), -a, dir(a), a.made_up, hasattr(a, "nope"), getattr(a, "nope", 1), max(a, b).v, [*a], {*b},
            "%s %r" % (a, b), isinstance(a, Logged), any([a]), all([a, b]), not a, a and 1, sum(a), dict(zip(a, b)), min(a),
        ]  # fmt: skip
        with a as c:
            c.w = 4
        try:
            a + 1
        except TypeError as e:
            facts.append(str(e))
        x1, y1 = a
        return x * a.w + x1 + y1, facts

    return fn, [(tensor(3),)] * 3, log


@program(graphs=1)
def made_inside_and_logged():
    def fn(x):
        log = []
        a, b = Logged(x, log), Logged(x * 2, log)
        y = sum([p for p in a][:1]) + b() + a[0]
        if a:
            y = y + len(a)
        return y, log, a is a

    return fn, [(tensor(3),)] * 3


# ------------------------------------------------------------------------------------------------------- operators


@program(graphs=1)
def every_in_place_operator():
    class N:
        def __init__(self, v, log):
            self.v, self.log = v, log

    names = [
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "matmul",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
    ]
    for i, name in enumerate(names):

        def method(self, other, name=name, i=i):
            self.log.append(name)
            return self if i % 2 else NotImplemented

        setattr(N, f"__i{name}__", method)

        def plain(self, other, name=name):
            self.log.append("plain " + name)
            return N(self.v + 1, self.log)

        setattr(N, f"__{name}__", plain)

    def fn(x):
        n = N(0, [])
        n += 1
        n -= 1
        n *= 1
        n /= 1
        n //= 1
        n %= 1
        n **= 1
        n @= 1
        n &= 1
        n |= 1
        n ^= 1
        n <<= 1
        n >>= 1
        return x * n.v, n.log

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=2)
def every_reflected_operator():
    log = []

    class R:
        pass

    names = [
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "matmul",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
        "divmod",
    ]
    for name in names:
        setattr(R, f"__r{name}__", lambda self, other, name=name: log.append((name, other)) or len(log))

    def fn(x):
        r = R()
        values = [
            1 + r,
            2 - r,
            3 * r,
            4 / r,
            5 // r,
            6 % r,
            7**r,
            8 @ r,
            9 & r,
            10 | r,
            11 ^ r,
            12 << r,
            13 >> r,
            divmod(14, r),
        ]
        return x + sum(values), [[1] + [2], "a" + "b"], (1,) * 2, operator.sub(5, r)

    return fn, [(tensor(3),)] * 3, log


@program(graphs=1)
def tensor_and_object_operators():
    class Scale:
        def __init__(self, k):
            self.k = k

        def __mul__(self, o):
            return o * self.k

        def __rmul__(self, o):
            return o * (self.k + 1)

        def __rsub__(self, o):
            return o - self.k

        def __radd__(self, o):
            return o + self.k

        def __rmatmul__(self, o):
            return o.sum() * self.k

        def __rpow__(self, o):
            return o * 3

        def __eq__(self, o):
            return "eq"

        __hash__ = None

    def fn(x):
        s = Scale(3)
        return s * x, x * s, x - s, x + s, x @ s, x**s, s == x, x == s if False else 1

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def comparison_methods_fall_back():
    class OnlyLess:
        def __init__(self, n):
            self.n = n

        def __lt__(self, o):
            return self.n < o.n

    class OnlyEq:
        def __eq__(self, o):
            return True

    class Odd:
        def __eq__(self, o):
            return NotImplemented

        def __lt__(self, o):
            return NotImplemented

    def fn(x):
        a, b = OnlyLess(1), OnlyLess(2)
        facts = [
            a < b,
            a > b,
            a != b,
            a == a,
            OnlyEq() == 3,
            3 == OnlyEq(),
            OnlyEq() != 3,
            Odd() == Odd(),
            Odd() != 1,
        ]
        texts = []
        for f in (
            lambda: a <= b,
            lambda: Odd() < Odd(),
            lambda: Odd() < 3,
            lambda: 3 > Odd(),
            lambda: hash(OnlyEq()),
        ):
            try:
                f()
            except TypeError as e:
                texts.append(str(e))
        return x + sum(map(bool, facts)), facts, texts

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def comparisons_return_objects():
    class V:
        def __init__(self, t):
            self.t = t

        def __lt__(self, o):
            return self.t < o

        def __eq__(self, o):
            return self.t == o

        __hash__ = None

        def __and__(self, o):
            return [self, o]

    def fn(x):
        v = V(x)
        return v < 0, v == 1, 0 > v, (v & 3)[1]

    return fn, [(tensor(3),)] * 3


@program(graphs=0, eager=["user-exception"])
def the_opposite_of_a_comparison_that_returns_a_tensor_raises():
    class V:
        def __init__(self, t):
            self.t = t

        def __eq__(self, o):
            return self.t == o

        __hash__ = None

    return lambda x: V(x) != 0, [(tensor(3),)] * 3


# -------------------------------------------------------------------------------------------------- lookup of names


@program(graphs=1)
def special_methods_are_looked_up_on_the_class():
    class C:
        def __len__(self):
            return 3

    c = C()
    c.__len__ = lambda: 99
    c.__call__ = lambda: 98

    def fn(x):
        text = ""
        try:
            c()
        except TypeError as e:
            text = str(e)
        return x + len(c) + c.__len__(), text, callable(c)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def instance_and_class_and_descriptor_precedence():
    class Data:
        def __get__(self, o, c):
            return "data"

        def __set__(self, o, v):
            raise AttributeError("no")

    class Plain:
        def __get__(self, o, c):
            return "non-data"

    class C:
        d = Data()
        n = Plain()
        v = "class"

    class Sub(C):
        d = "overridden"

    def fn(x):
        c, s = C(), Sub()
        c.__dict__.update(d="i", n="i", v="i")
        s.__dict__.update(d="i")
        try:
            c.d = 1
        except AttributeError as e:
            text = str(e)
        return x, [c.d, c.n, c.v, s.d, C().n, C().v, text], x + 1

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def multiple_inheritance_and_super_chain():
    log = []

    class Root:
        def go(self, x):
            log.append("root")
            return x

    class A(Root):
        def go(self, x):
            log.append("a")
            return super().go(x) + 1

    class B(Root):
        def go(self, x):
            log.append("b")
            return super().go(x) * 2

    class Mixin:
        def go(self, x):
            log.append("mixin")
            return super().go(x) - 3

    class C(Mixin, A, B):
        pass

    def fn(x):
        return C().go(x), [k.__name__ for k in C.__mro__]

    return fn, [(tensor(3),)] * 3, log


@program(graphs=1)
def inconsistent_bases_raise():
    class A:
        pass

    class B(A):
        pass

    def fn(x):
        try:
            type("C", (A, B), {})
        except TypeError as e:
            return x + 1, str(e)[:20]

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def getattribute_of_module():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3).requires_grad_(False)
            self.calls = []

        def __getattribute__(self, name):
            if name == "virtual":
                return 7
            return super().__getattribute__(name)

        def __setattr__(self, name, v):
            if name == "doubled":
                v = v * 2
            super().__setattr__(name, v)

        def forward(self, x):
            self.doubled = x
            self.calls.append(1)
            return self.lin(x) * self.virtual + self.doubled

    m = M()
    return m, [(tensor(2, 3),)] * 3, lambda: (m.calls, m.doubled)


@program(graphs=1)
def class_and_static_properties():
    class ClassProperty:
        def __init__(self, f):
            self.f = f

        def __get__(self, o, cls):
            return self.f(cls)

    class C:
        base = 3

        @ClassProperty
        def doubled(cls):
            return cls.base * 2

        @classmethod
        @functools.wraps(len)
        def wrapped(cls, v):
            return v + cls.base

        @staticmethod
        def outer(v):
            return C.wrapped(v) + C.doubled

    def fn(x):
        return C.outer(x) + C().doubled + C().wrapped(1)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def abstract_property_and_classmethod():
    class Base(abc.ABC):
        @property
        @abc.abstractmethod
        def p(self): ...

        @classmethod
        @abc.abstractmethod
        def c(cls): ...

    class Good(Base):
        p = 3

        @classmethod
        def c(cls):
            return cls.__name__

    def fn(x):
        g = Good()
        return x * g.p, g.c(), sorted(Base.__abstractmethods__), isinstance(g, Base)

    return fn, [(tensor(3),)] * 3


# -------------------------------------------------------------------------------------------------- typed containers


@program(graphs=1)
def generic_dataclass_tree():
    T = typing.TypeVar("T")

    @dataclasses.dataclass
    class Pair(typing.Generic[T]):
        a: T
        b: T
        tags: dict[str, int] = dataclasses.field(default_factory=dict)

        def swap(self):
            return dataclasses.replace(self, a=self.b, b=self.a)

        def __add__(self, o):
            return Pair(self.a + o.a, self.b + o.b, {**self.tags, **o.tags})

    p = Pair(1, 2, {"k": 1})

    def fn(x):
        q = Pair(x, x * 2) + Pair(1, 2, {"z": 3})
        r = q.swap()
        return (
            r,
            r.a - r.b,
            p.swap(),
            p == Pair(1, 2, {"k": 1}),
            dataclasses.asdict(p),
            dataclasses.astuple(p),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def dataclass_options():
    @dataclasses.dataclass(eq=False)
    class A:
        v: int = 1

    @dataclasses.dataclass(unsafe_hash=True, order=True)
    class B:
        v: int
        w: int = dataclasses.field(default=0, compare=False)

    @dataclasses.dataclass(init=False)
    class C:
        v: int

        def __init__(self, k):
            self.v = k * 2

    @dataclasses.dataclass(match_args=True, repr=False)
    class D(B):
        z: list = dataclasses.field(default_factory=lambda: [1])

    def fn(x):
        a, b, c, d = A(), B(2, 3), C(4), D(1)
        d.z.append(x)
        return (
            x + c.v, a == A(), b == B(2, 9), hash(b) == hash(B(2)), b < B(3), c, d, D.__match_args__, [f.name for f in dataclasses.fields(D)],
            repr(b), {b: 1}[B(2, 7)],
        )  # fmt: skip

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def dataclass_default_changes_between_calls():
    @dataclasses.dataclass
    class A:
        v: int = 1
        items: list = dataclasses.field(default_factory=list)

    def fn(x):
        a = A()
        a.items.append(a.v)
        return x * a.v + len(a.items)

    return fn, Changing(
        [(tensor(3),)] * 4,
        {2: lambda: setattr(A.__init__, "__defaults__", (5, *A.__init__.__defaults__[1:]))},
    )


@program(graphs=1, later=1)
def enum_with_everything():
    class Op(enum.Enum):
        ADD = "+", lambda a, b: a + b
        MUL = "*", lambda a, b: a * b

        def __init__(self, symbol, fn):
            self.symbol = symbol
            self.fn = fn

        def __call__(self, a, b):
            return self.fn(a, b)

        @classmethod
        def _missing_(cls, value):
            return cls.ADD

    class Auto(enum.Enum):
        def _generate_next_value_(name, start, count, last):
            return name.lower() * 2

        A = enum.auto()
        B = enum.auto()

    class Mode(str, enum.Enum):
        TRAIN = "train"
        EVAL = "eval"

    def fn(x, op):
        return (
            op(x, 3), Op("nothing") is Op.ADD, [o.symbol for o in Op], Auto.A.value, Mode("train") == "train", Mode.EVAL.upper(),
            {Mode.TRAIN: 1}["train"], op.name, isinstance(Mode.TRAIN, str), Mode.TRAIN in ("train", "x"), len(Op),
        )  # fmt: skip

    return fn, [(tensor(3), Op.ADD), (tensor(3), Op.ADD), (tensor(3), Op.MUL)]


@program(graphs=1, later=1)
def flags_combined():
    class F(enum.IntFlag):
        A = 1
        B = 2
        C = 4
        AB = 3

    def fn(x, f):
        return (
            x * int(f),
            f | F.C,
            F.A in f,
            f & ~F.A,
            [m for m in F.AB],
            F(5),
            f == 3,
            F.AB.name,
            (f ^ F.A).value,
            bool(F(0)),
        )

    return fn, [(tensor(3), F.AB), (tensor(3), F.AB), (tensor(3), F.C)]


# ------------------------------------------------------------------------------------------------- calls of objects


@program(graphs=1, later=1)
def calls_of_every_kind():
    class C:
        def __call__(self, x, *args, k=1, **kw):
            return x * k + len(args) + len(kw)

        @classmethod
        def make(cls):
            return cls()

        def method(self, x):
            return x - 1

        attribute = len

    c = C()
    d = {"f": c, "g": c.method, "h": C.make, "i": functools.partial(c, k=3)}

    def fn(x, *args, **kwargs):
        return d["f"](x, *args, **kwargs) + d["g"](x) + d["h"]()(x) + d["i"](x, 1) + C.attribute([1]) + (
            lambda *a: a[0]
        )(x, 2), kwargs

    return fn, [call(tensor(3), 1, 2, k=4, z=5), call(tensor(3), 1, 2, k=4, z=5), call(tensor(3))]


@program(graphs=1, later=1)
def instances_with_call_replaced():
    class C:
        def __call__(self, x):
            return x + 1

    c = C()

    def fn(x):
        return c(x)

    return fn, Changing([(tensor(3),)] * 4, {2: lambda: setattr(C, "__call__", lambda self, x: x * 9)})


@program(graphs=1)
def static_method_called_in_its_class_body():
    class C:
        @staticmethod
        def helper(n):
            return n * 2

        table = helper(4)
        also = [helper.__func__(i) for i in range(2)] if False else None

    def fn(x):
        return x * C.table + C.helper(x), C.also

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def decorators_with_state():
    class Counted:
        def __init__(self, f):
            functools.update_wrapper(self, f)
            self.f = f
            self.calls = []

        def __call__(self, *args):
            self.calls.append(len(args))
            return self.f(*args)

        def __get__(self, obj, cls):
            return functools.partial(self, obj) if obj is not None else self

    class C:
        @Counted
        def method(self, x):
            return x * 2

    @Counted
    def free(x):
        return x + 1

    c = C()

    def fn(x):
        return free(c.method(x)), free.__name__

    return fn, [(tensor(3),)] * 3, lambda: (free.calls, C.method.calls)


@program(graphs=1, later=1)
def registry_by_decorator():
    registry = {}

    def register(name):
        def inner(f):
            registry[name] = f
            return f

        return inner

    @register("double")
    def double(x):
        return x * 2

    def fn(x, name):
        @register("local")
        def local(y):
            return y - 1

        return registry[name](x) + registry["local"](x)

    return fn, [(tensor(3), "double"), (tensor(3), "double"), (tensor(3), "local")], lambda: sorted(registry)


@program(graphs=1, later=1)
def plugin_classes_by_init_subclass():
    class Plugin:
        known = {}

        def __init_subclass__(cls, name=None, **kw):
            super().__init_subclass__(**kw)
            Plugin.known[name or cls.__name__] = cls

        def run(self, x):
            raise NotImplementedError

    class Add(Plugin, name="add"):
        def run(self, x):
            return x + 1

    def fn(x, name):
        return Plugin.known[name]().run(x)

    def define():
        class Mul(Plugin, name="mul"):
            def run(self, x):
                return x * 3

        Plugin.known["add"] = Mul

    return fn, Changing([(tensor(3), "add")] * 4, {2: define})


@program(graphs=1, later=2)
def exit_stack_and_own_managers():
    log = []

    class Manager(contextlib.ContextDecorator):
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            log.append("+" + self.name)
            return self

        def __exit__(self, *args):
            log.append("-" + self.name)
            return args[0] is KeyError

    @Manager("decorated")
    def helper(x):
        return x * 2

    def fn(x):
        with contextlib.ExitStack() as stack:
            for n in "ab":
                stack.enter_context(Manager(n))
            stack.push(lambda *a: log.append("pushed"))
            y = helper(x)
        with Manager("swallows"):
            raise KeyError("k")
        return y + len(log) * 0

    return fn, [(tensor(3),)] * 3, log


@program(graphs=1)
def slots_and_properties_and_weak_dict():
    class Base:
        __slots__ = ("_x", "__weakref__")

        @property
        def x(self):
            return self._x

        @x.setter
        def x(self, v):
            self._x = v

    class Sub(Base):
        __slots__ = {"y": "documented"}

    s = Sub()

    def fn(x):
        s.x = x
        s.y = [x]
        t = Sub()
        t.x = s.x + 1
        try:
            t.y
        except AttributeError as e:
            text = str(e)
        return t.x * len(s.y), text, Sub.__slots__, t

    return fn, [(tensor(3),)] * 3, s


@program(graphs=1, later=1)
def nested_functions_and_classes_close_over_each_other():
    def fn(x, k):
        scale = k

        class Local:
            factor = scale * 2

            def go(self, y):
                def inner(z):
                    return z * self.factor + scale

                return inner(y)

            @classmethod
            def make(cls):
                return cls()

            @property
            def twice(self):
                return [self.factor for _ in range(2)]

        scale = 10
        return Local.make().go(x), sum(Local().twice), Local.__qualname__

    return fn, [(tensor(3), 2), (tensor(3), 2), (tensor(3), 3)]


@program(graphs=1)
def attribute_errors_have_eagers_words():
    class C:
        __slots__ = ("a",)

    class D:
        @property
        def p(self):
            return self.missing

    class E(nn.Module):
        pass

    def fn(x):
        texts = []
        for f in (
            lambda: C().b, lambda: C().a, lambda: D().p, lambda: D.q, lambda: E().w, lambda: x.nothing, lambda: types.zzz,
            lambda: (1).a, lambda: [].b, lambda: fn.c, lambda: setattr(C(), "z", 1), lambda: delattr(D(), "k"), lambda: setattr(3, "a", 1),
            lambda: super(D, D()).p, lambda: None.x, lambda: Logged(1, []).other,
        ):  # fmt: skip
            try:
                f()
            except Exception as e:
                texts.append((type(e).__name__, str(e)))
        return x + 1, texts

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def mapping_unpacking_of_objects():
    class M:
        def __init__(self, log):
            self.log = log

        def keys(self):
            self.log.append("keys")
            return ["a", "b"]

        def __getitem__(self, k):
            self.log.append(k)
            return len(self.log)

    def inner(**kw):
        return kw

    def fn(x):
        log = []
        m = M(log)
        d = dict(m)
        e = {**m, "c": 3}
        f = inner(**m)
        g = {}
        g.update(m)
        return x + f["a"], d, e, f, g, log

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def counter_and_chain_of_objects():
    class Token:
        def __init__(self, s):
            self.s = s

        def __eq__(self, o):
            return self.s == o.s

        def __hash__(self):
            return hash(self.s)

    def fn(x):
        c = collections.Counter([Token("a"), Token("b"), Token("a")])
        g = collections.defaultdict(list)
        for t in c:
            g[t].append(x)
        return (
            c[Token("a")] * x,
            len(g[Token("a")]),
            len(set(c)),
            Token("b") in c,
            [t.s for t, _ in c.most_common()],
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def a_property_hides_a_slot():
    asked = []

    class Base:
        __slots__ = ("a", "b")

        def __init__(self, a):
            self.b = a

    class Derived(Base):
        __slots__ = ()

        @property
        def a(self):
            asked.append("a")
            return self.b + 1

    def fn(x):
        made = Derived(x * 2)
        return made, made.a

    return fn, [(tensor(3),)] * 3, asked


@program(graphs=2, breaks=["unsupported-call", "unsupported-call"])
def a_value_hides_a_slot():
    class Base:
        __slots__ = ("a",)

    class Derived(Base):
        __slots__ = ()
        a = 5

    hidden = vars(Base)["a"]

    def fn(x):
        made = Derived()
        y = x + made.a
        hidden.__set__(made, 7)
        return made, y * 2, hidden.__get__(made)

    return fn, [(tensor(3),)] * 3
