"""Graph breaks inside of what reads, stores and makes attributes and instances: the frames of getters, setters, `__init__`, ... are
gone on with, and so are those that wait for them."""

import functools

import torch
from torch import nn

import smelt
from tests.harness.catalogue import Unlike, program, tensor

JUMPS = {"3.12": Unlike("conditions at the end of a loop are other jumps")}


@smelt.disable
def plus_one(v):
    return v + 1


@smelt.disable
def fails(n):
    raise AttributeError(f"attribute {n}")


@smelt.disable
def fails_value(n):
    raise ValueError(f"value {n}")


def xs():
    return [(tensor(3), 1), (tensor(3), 1), (tensor(3), 2), (tensor(3), 0)]


@program(graphs=2, later=2, breaks=["disabled-function"])
def property_of_an_object():
    class Scaled:
        def __init__(self, n):
            self.n = n

        @property
        def scale(self):
            doubled = self.n * 2
            return plus_one(doubled) + self.n

    def fn(x, n):
        s = Scaled(n)
        y = x * 2
        return y * s.scale + y, s.__dict__

    return fn, xs()


@program(graphs=2, later=2, breaks=["graph-break-requested"])
def property_of_a_module():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)

        @property
        def scale(self):
            smelt.graph_break()
            return self.a.weight.sum()

        def forward(self, x, n):
            return self.a(x) * self.scale * n

    return Net(), xs()


@program(graphs=1, breaks=["disabled-function", "graph-break-requested"])
def property_that_raises_attribute_error_with_getattr():
    class A:
        def __init__(self):
            self.log = []

        @property
        def p(self):
            self.log.append("p")
            fails(1)

        def __getattr__(self, name):
            self.log.append(name)
            if name == "q":
                raise AttributeError(name)
            return 3

        @property
        def q(self):
            smelt.graph_break()
            raise AttributeError("own")

    def fn(x, n):
        a = A()
        try:
            a.q
        except AttributeError as e:
            t = str(e), repr(e.__context__), repr(e.__cause__)
        return x * a.p, a.log, t

    return fn, xs()


@program(graphs=1, breaks=["disabled-function"])
def property_that_raises_other_with_getattr():
    class A:
        @property
        def p(self):
            fails_value(1)

        def __getattr__(self, name):
            return 3

    def fn(x, n):
        a = A()
        try:
            return x * a.p
        except ValueError as e:
            return x + 1, str(e), repr(e.__context__)

    return fn, xs()


@program(graphs=2, breaks=["disabled-function"] * 2 + ["graph-break-requested"] * 3)
def getattr_of_python():
    class A:
        def __getattr__(self, name):
            if name == "missing":
                smelt.graph_break()
                raise AttributeError(name)
            return plus_one(len(name))

    def fn(x, n):
        a = A()
        try:
            a.missing
        except AttributeError as e:
            x = x + 1
        return x * a.abc, getattr(a, "abcd"), getattr(a, "missing", 3), hasattr(a, "missing")

    return fn, xs()


@program(
    graphs=1, later=1, breaks=["graph-break-requested", "graph-break-requested", "graph-break-requested"]
)
def getattribute_of_python():
    class A:
        def __init__(self, n):
            self.n = n

        def __getattribute__(self, name):
            smelt.graph_break()
            return object.__getattribute__(self, name)

        def __getattr__(self, name):
            smelt.graph_break()
            return name

    def fn(x, n):
        a = A(n)
        return x * a.n, a.other

    return fn, xs()


@program(graphs=3, later=2, breaks=["graph-break-requested"] * 6)
def descriptors():
    class D:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, obj, cls):
            smelt.graph_break()
            return getattr(obj, self.name, 0) + 1

        def __set__(self, obj, value):
            smelt.graph_break()
            setattr(obj, self.name, value * 2)

        def __delete__(self, obj):
            smelt.graph_break()
            delattr(obj, self.name)

    class A:
        d = D()
        e = D()

    def fn(x, n):
        a = A()
        a.d = x
        a.e = n
        r = a.d * a.e
        del a.e
        return r, a.e, a.__dict__

    return fn, xs()


@program(graphs=1, later=1, breaks=["graph-break-requested", "graph-break-requested"])
def non_data_descriptor():
    class D:
        def __get__(self, obj, cls):
            smelt.graph_break()
            return lambda y: y * obj.n

    class A:
        d = D()

        def __init__(self, n):
            self.n = n

    def fn(x, n):
        a = A(n + 2)
        return a.d(x), a.d

    return (lambda x, n: fn(x, n)[0]), xs()


@program(graphs=1, breaks=["graph-break-requested"])
def cached_property():
    class A:
        def __init__(self, x):
            self.x = x

        @functools.cached_property
        def total(self):
            smelt.graph_break()
            return self.x.sum()

    def fn(x, n):
        a = A(x)
        y = a.total + a.total
        return y, a.__dict__, a.total is a.total

    return fn, xs()


@program(graphs=1, later=1, breaks=["disabled-function"])
def cached_property_of_outside():
    class A:
        def __init__(self):
            self.k = 3

        @functools.cached_property
        def total(self):
            return plus_one(self.k)

    a = A()

    def fn(x, n):
        return x * a.total

    return fn, xs(), a


@program(graphs=2, later=1, breaks=["disabled-function", "disabled-function", "graph-break-requested"])
def setter():
    class A:
        def __init__(self):
            self._v = 0
            self.log = []

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, value):
            self.log.append("before")
            w = plus_one(value)
            self._v = w
            self.log.append("after")
            return 7

        @v.deleter
        def v(self):
            smelt.graph_break()
            del self._v

    def fn(x, n):
        a = A()
        a.v = x * n
        b = a.v
        a.v += 1
        r = a.v
        del a.v
        return r, b, a.__dict__

    return fn, xs()


@program(
    graphs=2, later=2, breaks=["graph-break-requested", "graph-break-requested", "graph-break-requested"]
)
def setattr_of_python():
    class A:
        def __setattr__(self, name, value):
            smelt.graph_break()
            object.__setattr__(self, name, value)

        def __delattr__(self, name):
            smelt.graph_break()
            super().__delattr__(name)

    a = A()

    def fn(x, n):
        a.n = n
        a.x = x * 2
        y = a.x + a.n
        del a.x
        return y

    return fn, xs(), a


@program(graphs=1, breaks=["disabled-function"])
def setter_that_raises():
    class A:
        def __setattr__(self, name, value):
            fails_value(name)

    def fn(x, n):
        a = A()
        try:
            a.n = x
        except ValueError as e:
            return x + 1, str(e), a.__dict__

    return fn, xs()


@program(graphs=3, later=3, breaks=["disabled-function", "disabled-function"])
def init():
    class A:
        def __init__(self, x, n, *, k=2):
            self.n = n
            self.y = x * k
            self.m = plus_one(n)
            self.z = self.y + self.m

    def fn(x, n):
        a = A(x, n)
        b = A(a.z, n=n, k=3)
        return a.__dict__, b.z, type(b).__name__, isinstance(b, A)

    return fn, xs()


@program(graphs=2, breaks=["graph-break-requested", "graph-break-requested"])
def init_with_super():
    class A:
        def __init__(self, x):
            self.before = x * 2
            smelt.graph_break()
            self.after = self.before + 1

    class B(A):
        def __init__(self, x):
            super().__init__(x.sin())
            self.cls = __class__.__name__
            smelt.graph_break()
            self.b = super().get() if hasattr(super(), "get") else 1

    def fn(x, n):
        b = B(x)
        return b.__dict__

    return fn, xs()


@program(graphs=2, later=2, breaks=["graph-break-requested"] * 4)
def new_and_init():
    class A:
        def __new__(cls, x, n):
            smelt.graph_break()
            self = super().__new__(cls)
            self.made = n
            return self

        def __init__(self, x, n):
            self.x = x * self.made
            smelt.graph_break()
            self.y = self.x + 1

    class B(A):
        def __new__(cls, x, n):
            smelt.graph_break()
            return x

    def fn(x, n):
        a = A(x, n)
        return a.y, a.__dict__, B(x, n) is x

    return fn, xs()


@program(graphs=1, later=2, breaks=["disabled-function"])
def init_that_raises():
    class A:
        def __init__(self, n):
            self.n = n
            fails_value(n)

    def fn(x, n):
        try:
            A(n)
        except ValueError as e:
            return x + 1, str(e)

    return fn, xs()


@program(graphs=1, later=1, breaks=["graph-break-requested"])
def init_that_returns():
    class A:
        def __init__(self, n):
            smelt.graph_break()
            return n

    class B:
        def __init__(self, n):
            return n

    def fn(x, n):
        def message(cls):
            try:
                cls(n)
            except TypeError as e:
                return str(e)

        return x + 1, message(A), message(B)

    return fn, xs()


@program(graphs=2, later=2, breaks=["graph-break-requested"])
def module_made_inside():
    class Layer(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.register_buffer("scale", torch.ones(3) * n)
            smelt.graph_break()
            self.n = n

        def forward(self, x):
            return x * self.scale + self.n

    def fn(x, n):
        return Layer(n)(x)

    return fn, xs()


@program(graphs=1, later=3, breaks=["graph-break-requested"])
def registers_itself():
    made = []

    class A:
        def __init__(self, x):
            made.append(self)
            self.x = x
            smelt.graph_break()
            self.y = x * len(made)

    def fn(x, n):
        a = A(x)
        return a.y, made[-1] is a

    return fn, xs(), lambda: [m.__dict__ for m in made]


@program(graphs=1, later=1, breaks=["graph-break-requested"])
def list_subclass_init():
    class L(list):
        def __init__(self, items, n):
            super().__init__(items)
            smelt.graph_break()
            self.append(n)
            self.n = n

    def fn(x, n):
        l = L([x, x * 2], n)
        return l, l.n, len(l)

    return fn, xs()


@program(graphs=2, breaks=["graph-break-requested"])
def slots_init():
    class S:
        __slots__ = ("a", "b")

        def __init__(self, x):
            self.a = x * 2
            smelt.graph_break()
            self.b = self.a + 1

    def fn(x, n):
        s = S(x)
        return s.a, s.b

    return fn, xs()


@program(graphs=1, breaks=["graph-break-requested", "graph-break-requested"])
def metaclass_call():
    class Meta(type):
        def __call__(cls, *args):
            smelt.graph_break()
            obj = super().__call__(*args)
            obj.extra = 1
            return obj

    class A(metaclass=Meta):
        def __init__(self, x):
            self.x = x
            smelt.graph_break()
            self.y = x + 1

    def fn(x, n):
        a = A(x)
        return a.__dict__

    return fn, xs()


@program(graphs=1, breaks=["graph-break-requested", "graph-break-requested", "graph-break-requested"])
def property_on_a_metaclass_and_classmethod():
    class Meta(type):
        @property
        def p(cls):
            smelt.graph_break()
            return cls.k

    class A(metaclass=Meta):
        k = 4

        @classmethod
        def make(cls, x):
            smelt.graph_break()
            return x * cls.p

    def fn(x, n):
        return A.make(x), A.p

    return fn, xs()


@program(graphs=1, later=1, breaks=["graph-break-requested"])
def super_property():
    class A:
        @property
        def p(self):
            smelt.graph_break()
            return self.n

    class B(A):
        def __init__(self, n):
            self.n = n

        @property
        def p(self):
            return super().p + 10

    def fn(x, n):
        return x * B(n).p

    return fn, xs()


@program(
    graphs=2, later=2, breaks=["graph-break-requested", "graph-break-requested", "graph-break-requested"]
)
def callable_property():
    class A:
        def __init__(self, n):
            self.n = n

        @property
        def act(self):
            smelt.graph_break()
            return self.run

        def run(self, x, k=1):
            return x * self.n + k

        @property
        def __call__(self):
            smelt.graph_break()
            return self.run

    def fn(x, n):
        a = A(n)
        return a.act(x), a.act(x, k=3), a(x)

    return fn, xs()


@program(
    graphs=3,
    later=4,
    breaks=["graph-break-requested", "graph-break-requested", "graph-break-requested"],
    unlike=JUMPS,
)
def nested_properties_in_a_loop():
    class A:
        def __init__(self, n):
            self.n = n

        @property
        def a(self):
            return self.b + 1

        @property
        def b(self):
            r = self.n
            smelt.graph_break()
            return r

    def fn(x, n):
        obj = A(n)
        while obj.n < n + 4:
            x = x + obj.a
            obj.n += 1
        return x

    return fn, xs()


@program(graphs=0, breaks=["graph-break-requested"])
def forward_is_a_property():
    class M(nn.Module):
        @property
        def forward(self):
            smelt.graph_break()
            return lambda x, n: x * n

    return M(), xs()


@program(graphs=1, breaks=["graph-break-requested"])
def aliases_through_init():
    class A:
        def __init__(self, x, held):
            self.x = x
            self.held = held
            held.append(self)
            smelt.graph_break()
            self.same = held[0] is self and self.x is x

    def fn(x, n):
        held = []
        a = A(x, held)
        return a.same, a.held is held, held[0] is a, a.x is x, x + 1

    return fn, xs()


@program(graphs=2, later=2, breaks=["graph-break-requested"])
def gradients_through_a_property():
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        @property
        def scaled(self):
            y = self.w * 2
            smelt.graph_break()
            return y.exp()

        def forward(self, x, n):
            return (x * self.scaled).sum() * n

    return A(), xs()


@program(graphs=2, later=2, breaks=["graph-break-requested", "graph-break-requested"])
def dataclass_post_init():
    import dataclasses

    @dataclasses.dataclass
    class D:
        x: object
        n: int = 2

        def __post_init__(self):
            smelt.graph_break()
            self.y = self.x * self.n

    def fn(x, n):
        d = D(x, n)
        e = dataclasses.replace(d, n=5)
        return d.y, e.y, d.n

    return fn, xs()


@program(graphs=0, breaks=["graph-break-requested"], eager=["unsupported-effect"])
def exception_with_init():
    class E(Exception):
        def __init__(self, n):
            smelt.graph_break()
            super().__init__(f"number {n}")
            self.n = n

    def fn(x, n):
        try:
            raise E(n)
        except E as e:
            return x * e.n, str(e), e.args

    return fn, xs()
