"""Classes: inheritance, descriptors, special methods, metaclasses, dataclasses, enums, subclasses of builtin types."""

from __future__ import annotations

import abc
import collections
import ctypes
import dataclasses
import enum
import functools
import types
import typing
import weakref

import torch
from torch import nn

import smelt
from tests.harness.catalogue import Changing, program, tensor

# ------------------------------------------------------------------------------------------ inheritance and super


class Base:
    factor = 2.0

    def __init__(self, v):
        self.v = v

    def run(self, x):
        return x * self.v

    @classmethod
    def make(cls, v):
        return cls(v)

    @staticmethod
    def twice(x):
        return x + x

    @property
    def name(self):
        return "base"


class Left(Base):
    def run(self, x):
        return super().run(x) + 1

    @classmethod
    def make(cls, v):
        return super().make(v + 1)

    @property
    def name(self):
        return "left/" + super().name


class Right(Base):
    factor = 3.0

    def run(self, x):
        return super(Right, self).run(x) - 2

    @staticmethod
    def twice(x):
        return Base.twice(x) * 2


class Diamond(Left, Right):
    def run(self, x):
        return super().run(x) * self.factor


@program(graphs=1)
def diamond_inheritance():
    def fn(x, v):
        d = Diamond.make(v)
        return d.run(x), d.twice(x), d.name, d.v

    return fn, [(tensor(3), 2), (tensor(3), 2), (tensor(3), 2)]


def _without_class_cell(self, x):
    return super().run(x)


@program(graphs=1)
def super_where_it_has_no_class_or_argument():
    class Local(Base):
        no_class_cell = _without_class_cell

        def no_argument(*args):
            return super().run(args[1])

        def deleted_argument(self, x):
            del self
            return super().run(x)

        def deleted_cell(self, x):
            held = lambda: self
            del self
            return super().run(x), held

    names = [n for n in vars(Local) if not n.startswith("__")]

    def fn(x):
        errors = []
        for name in names:
            try:
                getattr(Local(2), name)(x)
            except (RuntimeError, NameError) as e:  # NameError: CPython 3.12 and later
                errors.append(str(e))
        return x + len(errors), errors

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def super_in_a_class_body():
    def fn(x):
        class Local(Base):
            def run(self, x):
                return super().run(x)

            try:
                error = run(None, 3)
            except (RuntimeError, NameError) as e:
                error = str(e)

        return Local(3).run(x), Local.error

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1, eager=["user-exception"])
def class_cell_changes_between_calls():
    class Middle(Base):
        def run(self, x):
            return x * 5

    class Local(Middle):
        def assign(self, cls):
            nonlocal __class__
            __class__ = cls

        def run(self, x):
            return super().run(x)

    held = Local(2)

    def fn(x):
        return held.run(x)

    def no_class():
        Local.run.__closure__[0].cell_contents = 7

    changes = {1: lambda: held.assign(Middle), 2: lambda: held.assign(Local), 3: no_class}
    return fn, Changing([(tensor(3),)] * 4, changes)


@program(graphs=1)
def attributes_of_super_itself():
    class Local(Base):
        def all(self, x):
            proxy, unbound, of_class = super(), super(Local), super(Local, Local)
            return (
                proxy.__thisclass__ is Local,
                proxy.__self__ is self,
                proxy.__self_class__ is Local,
                proxy.__class__ is super,
                unbound.__self__,
                of_class.__self__ is Local,
                hasattr(proxy, "missing"),
                getattr(unbound, "run", 3),
                super().run(x),
            )

    def fn(x):
        return Local(3).all(x)

    return fn, [(tensor(3),)] * 3


@program(graphs=2, breaks=["graph-break-requested"])
def super_under_another_name_after_a_break():
    class Local(Base):
        def run(self, x):
            parent = super_by_name
            __class__
            x = x * 2
            smelt.graph_break()
            return parent().run(x)

    super_by_name = super
    held = Local(3)

    def fn(x):
        return held.run(x)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def inherited_outside_object():
    d = Diamond(3)

    def fn(x):
        return d.run(x) + len(d.name)

    return fn, [(tensor(3),), (tensor(3),), (tensor(3),)]


@program(graphs=1, later=1)
def class_attribute_changes_between_calls():
    class Local(Base):
        pass

    def fn(x):
        return x * Local.factor + Local(2).factor

    return fn, Changing(
        [(tensor(3),)] * 4,
        {1: lambda: setattr(Local, "factor", 5.0), 3: lambda: setattr(Base, "factor", 2.0)},
    )


@program(graphs=1, later=2)
def method_replaced_between_calls():
    class Local(Base):
        pass

    held = Local(3)

    def fn(x):
        return held.run(x) + Local(2).run(x)

    def shadow():
        held.run = lambda x: x * 100

    return fn, Changing(
        [(tensor(3),)] * 4, {1: lambda: setattr(Local, "run", lambda self, x: x - self.v), 3: shadow}
    )


@program(graphs=1, later=1)
def property_added_between_calls():
    class Local:
        def __init__(self):
            self.__dict__["p"] = 3

    held = Local()

    def fn(x):
        return x * held.p

    def add():
        Local.p = property(lambda self: 7)

    return fn, Changing([(tensor(3),)] * 4, {2: add})


@program(graphs=1, later=1)
def special_method_added_between_calls():
    class Local:
        v = 1

    held = Local()

    def fn(x):
        return x + 1 if held else x - 1

    return fn, Changing([(tensor(3),)] * 4, {2: lambda: setattr(Local, "__bool__", lambda self: False)})


@program(graphs=1, later=2)
def base_class_patched_between_calls():
    class Parent:
        def go(self, x):
            return x + 1

    class Kid(Parent):
        def go(self, x):
            return super().go(x) * 2

    held = Kid()

    def fn(x):
        return held.go(x)

    def rebase():
        class Other(Parent):
            def go(self, x):
                return x * 9

        Kid.__bases__ = (Other,)

    return fn, Changing(
        [(tensor(3),)] * 5, {2: lambda: setattr(Parent, "go", lambda self, x: x + 5), 4: rebase}
    )


@program(graphs=1, later=3)
def defaults_and_code_change_between_calls():
    def helper(x, k=2, *, j=3):
        return x * k + j

    def other(x, k=2, *, j=3):
        return x - k - j

    def fn(x):
        return helper(x)

    changes = {
        1: lambda: setattr(helper, "__defaults__", (4,)),
        2: lambda: setattr(helper, "__kwdefaults__", {"j": 5}),
        3: lambda: setattr(helper, "__code__", other.__code__),
    }
    return fn, Changing([(tensor(3),)] * 5, changes)


@program(graphs=1)
def explicit_unbound_super_call():
    class Child(Base):
        def run(self, x):
            return Base.run(self, x) + Base.make(4).run(x)

    def fn(x):
        return Child(3).run(x)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def super_in_nested_function_and_comprehension():
    class Child(Base):
        def run(self, x):
            def inner():
                return super(Child, self).run(x)

            return sum([super(Child, self).run(x) for _ in range(2)]) + inner()

    def fn(x):
        return Child(3).run(x)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def super_stored_in_a_variable():
    class Child(Base):
        def run(self, x):
            s = super()
            return s.run(x) + getattr(s, "factor") + (1 if hasattr(s, "nothing") else 0)

    def fn(x):
        return Child(3).run(x)

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def super_setattr_and_property_setter():
    class Parent:
        @property
        def p(self):
            return self._p

        @p.setter
        def p(self, v):
            self._p = v * 2

    class Child(Parent):
        @property
        def p(self):
            return super().p + 1

        @p.setter
        def p(self, v):
            super(Child, type(self)).p.fset(self, v + 1)

        def __setattr__(self, name, v):
            super().__setattr__(name, v)

    def fn(x, v):
        c = Child()
        c.p = v
        return x * c.p, c

    return fn, [(tensor(3), 2), (tensor(3), 2), (tensor(3), 3)]


@program(graphs=1)
def super_getattribute():
    class Counting:
        def __init__(self):
            self.seen = []

        def __getattribute__(self, name):
            if name not in ("seen", "__class__", "__dict__"):
                object.__getattribute__(self, "seen").append(name)
            return super().__getattribute__(name)

        def go(self, x):
            return x + len(self.seen)

    def fn(x):
        c = Counting()
        a = c.go(x)
        return c.go(a), c.seen

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def mro_and_bases():
    def fn(x):
        names = [c.__name__ for c in Diamond.__mro__]
        return x + len(names), names, Diamond.__bases__, Diamond.__name__, Diamond.__qualname__, Diamond.mro()

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def class_body_in_function():
    def fn(x, k):
        scale = k * 2

        class Local(Base):
            factor = scale + 1
            table = {i: i * scale for i in range(3)}

            def run(self, y):
                return super().run(y) * self.factor + self.table[2] + scale

        return Local(3).run(x)

    return fn, [(tensor(3), 2), (tensor(3), 2), (tensor(3), 3)]


@program(graphs=1)
def class_made_inside_escapes():
    def fn(x):
        class Local:
            kind = "local"

            def __init__(self, v):
                self.v = v

            def get(self):
                return self.v * 2

        made = Local(x + 1)
        return made.get(), made.kind, type(made).__name__

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def class_with_keyword_arguments_and_init_subclass():
    class Registry:
        names = []

        def __init_subclass__(cls, /, scale=1, **kwargs):
            super().__init_subclass__(**kwargs)
            cls.scale = scale

    def fn(x):
        class A(Registry, scale=3):
            pass

        class B(A):
            pass

        return x * A.scale + B.scale

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def set_name():
    class Field:
        def __set_name__(self, owner, name):
            self.name = name
            self.owner = owner.__name__

        def __get__(self, obj, cls=None):
            if obj is None:
                return self
            return obj.__dict__.get("_" + self.name, 7)

        def __set__(self, obj, v):
            obj.__dict__["_" + self.name] = v + 1

    class Outer:
        a = Field()

    def fn(x, v):
        class Holder:
            a = Field()
            b = Field()

        h, o = Holder(), Outer()
        h.b = v
        o.a = v
        return x * h.a + h.b + o.a, Holder.b.name, Outer.a.owner

    return fn, [(tensor(3), 1), (tensor(3), 1), (tensor(3), 2)]


@program(graphs=1)
def metaclass_call_and_attributes():
    class Meta(type):
        def __call__(cls, *args):
            made = super().__call__(*args)
            made.extra = 5
            return made

        @property
        def size(cls):
            return len(cls.__name__)

        def __len__(cls):
            return 11

        def __getitem__(cls, i):
            return i * 2

        def __iter__(cls):
            return iter((1, 2, 3))

        def __contains__(cls, v):
            return v == 3

    class Thing(metaclass=Meta):
        def __init__(self, v):
            self.v = v

    def fn(x):
        t = Thing(3)
        total = sum(Thing)
        return x * t.extra + t.v + Thing.size + len(Thing) + Thing[4] + total + (3 in Thing)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def metaclass_new_inside():
    class Meta(type):
        def __new__(mcls, name, bases, ns, **kw):
            ns["added"] = 4
            return super().__new__(mcls, name, bases, ns)

        def __init__(cls, name, bases, ns, **kw):
            super().__init__(name, bases, ns)
            cls.more = kw.get("more", 1)

        @classmethod
        def __prepare__(mcls, name, bases, **kw):
            return {"prepared": 9}

    def fn(x):
        class Thing(metaclass=Meta, more=6):
            z = prepared  # noqa: F821

        return x * Thing.added + Thing.more + Thing.z + Thing.prepared, type(Thing).__name__

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def three_argument_type():
    def fn(x):
        made = type("Made", (Base,), {"factor": 9.0, "go": lambda self, y: y * self.factor})
        return made(2).go(x) + made(3).run(x), made.__name__

    return fn, [(tensor(3),)] * 3


# ---------------------------------------------------------------------------------------------------- descriptors


class NonData:
    def __init__(self, k):
        self.k = k

    def __get__(self, obj, cls):
        return self.k if obj is None else self.k + obj.v


class Data(NonData):
    def __set__(self, obj, v):
        obj.__dict__["stored"] = v

    def __delete__(self, obj):
        del obj.__dict__["stored"]


class Described:
    plain = NonData(3)
    data = Data(4)

    def __init__(self, v):
        self.v = v


@program(graphs=1)
def descriptors():
    def fn(x):
        d = Described(2)
        a = d.plain + Described.plain + d.data
        d.plain = 10
        d.data = 20
        b = d.plain + d.data + d.__dict__["stored"]
        del d.plain, d.data
        return x * a + b + d.plain, "stored" in vars(d)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def descriptors_of_outside_object():
    d = Described(2)

    def fn(x):
        d.data = x
        return x * d.plain + d.data

    return fn, [(tensor(3),)] * 3, d


@program(graphs=1, later=1)
def property_with_setter_and_deleter():
    class Temperature:
        def __init__(self):
            self._c = 1.0

        @property
        def f(self):
            return self._c * 9 / 5 + 32

        @f.setter
        def f(self, v):
            self._c = (v - 32) * 5 / 9

        @f.deleter
        def f(self):
            self._c = 0.0

    def fn(x, v):
        t = Temperature()
        a = t.f
        t.f = v
        b = t._c
        del t.f
        return x * a + b + t._c, t

    return fn, [(tensor(3), 50.0), (tensor(3), 50.0), (tensor(3), 60.0)]


@program(graphs=1)
def property_object_by_hand():
    def get(self):
        return self.v + 1

    class C:
        def __init__(self, v):
            self.v = v

        p = property(get, lambda self, v: setattr(self, "v", v), doc="a property")

    def fn(x):
        c = C(3)
        c.p = 9
        return x * c.p, C.p.__doc__, C.p.fget(c), isinstance(C.p, property)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def read_only_property_raises():
    class C:
        @property
        def p(self):
            return 1

    def fn(x):
        c = C()
        try:
            c.p = 3
        except AttributeError as e:
            return x + 1, str(e)
        return x

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def delete_read_only_property_raises():
    class C:
        @property
        def p(self):
            return 1

    def fn(x):
        c = C()
        try:
            del c.p
        except AttributeError as e:
            return x + 1, str(e)
        return x

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def property_raising_attribute_error_falls_to_getattr():
    class C:
        @property
        def p(self):
            return self.nothing

        def __getattr__(self, name):
            return 5 if name == "p" else 6

    def fn(x):
        return x * C().p + C().q

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def getattr_raises_and_default():
    class C:
        def __getattr__(self, name):
            if name.startswith("x_"):
                return int(name[2:])
            raise AttributeError(name)

    c = C()

    def fn(x):
        return x * c.x_4 + getattr(c, "y", 3) + (1 if hasattr(c, "z") else 2)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def setattr_and_delattr_special_methods():
    class Log:
        def __init__(self):
            object.__setattr__(self, "log", [])

        def __setattr__(self, name, v):
            self.log.append(("set", name))
            super().__setattr__(name, v)

        def __delattr__(self, name):
            self.log.append(("del", name))
            object.__delattr__(self, name)

    outside = Log()

    def fn(x):
        inner = Log()
        inner.a = x
        outside.b = 3
        outside.c = x + 1
        del outside.b
        del inner.a
        return outside.c * 2, inner.log

    return fn, [(tensor(3),)] * 3, outside


@program(graphs=1)
def slots():
    class S:
        __slots__ = ("a", "b")

        def __init__(self, a):
            self.a = a

    class T(S):
        __slots__ = ("c",)

    class U(T):
        pass

    out = U(1)

    def fn(x):
        s, t, u = S(2), T(3), U(4)
        t.c = x
        u.c = 5
        u.d = 6
        out.c = x * 2
        try:
            s.z = 1
        except AttributeError as e:
            text = str(e)
        try:
            s.b
        except AttributeError as e:
            text += str(e)
        del u.c
        return t.c * s.a + t.a + u.a, text, t, u, hasattr(u, "c")

    return fn, [(tensor(3),)] * 3, out


@program(graphs=1)
def class_and_static_methods():
    class C:
        total = 3

        @classmethod
        def a(cls, y):
            return y * cls.total

        @staticmethod
        def b(y, k=2):
            return y + k

        @classmethod
        def alternative(cls):
            return cls()

    class D(C):
        total = 4

    c = D()

    def fn(x):
        f, g = D.a, c.b
        return f(x) + g(x) + C.a(x) + C.alternative().b(x, k=3) + c.a(x), f.__name__, f.__self__

    return fn, [(tensor(3),)] * 3


# ------------------------------------------------------------------------------------------------------ operators


class Vec:
    def __init__(self, t):
        self.t = t

    def __add__(self, o):
        if isinstance(o, Vec):
            return Vec(self.t + o.t)
        if isinstance(o, (int, float)):
            return Vec(self.t + o)
        return NotImplemented

    def __radd__(self, o):
        return Vec(self.t + o * 10)

    def __sub__(self, o):
        return NotImplemented

    def __mul__(self, o):
        return Vec(self.t * (o.t if isinstance(o, Vec) else o))

    __rmul__ = __mul__

    def __imul__(self, o):
        self.t = self.t * o
        return self

    def __matmul__(self, o):
        return (self.t * o.t).sum()

    def __neg__(self):
        return Vec(-self.t)

    def __pos__(self):
        return self

    def __invert__(self):
        return Vec(1 / self.t)

    def __abs__(self):
        return Vec(self.t.abs())

    def __getitem__(self, i):
        return self.t[i]

    def __setitem__(self, i, v):
        self.t = torch.cat([self.t[:i], v[None], self.t[i + 1 :]])

    def __len__(self):
        return self.t.shape[0]

    def __iter__(self):
        return iter(self.t)

    def __contains__(self, v):
        return v == len(self)

    def __bool__(self):
        return False

    def __call__(self, k):
        return self.t * k

    def __divmod__(self, o):
        return self.t // o, self.t % o

    def __pow__(self, k, mod=None):
        return Vec(self.t**k)

    def __rpow__(self, k):
        return Vec(k**self.t)

    def __round__(self, n=0):
        return n + 1

    def __lshift__(self, k):
        return self.t + k

    def __index__(self):
        return 1


@program(graphs=1)
def arithmetic_operators():
    def fn(x, y):
        v, w = Vec(x), Vec(y)
        z = v + w
        z = z + 1
        z = 2 + z
        z = z * w
        z = 3 * z
        z *= 2
        z = -z
        z = +z
        z = abs(z)
        q, r = divmod(v, 2)
        p = z**2
        return z.t + (~w).t + (v @ w) + q + r + p.t + (2**w).t + (v << 4) + v(3) + round(v, 4)

    return fn, [(tensor(3), tensor(3))] * 3


@program(graphs=1)
def container_protocol():
    def fn(x, y):
        v = Vec(x)
        v[1] = y
        parts = [p for p in v]
        a, b, c = v
        return v[0] + parts[1] + c + len(v) + (3 in v) + (4 in v) + (5 if v else 6) + [10, 20, 30][v], a + b

    return fn, [(tensor(3), tensor(1)[0])] * 3


@program(graphs=1)
def not_implemented_raises():
    def fn(x):
        v = Vec(x)
        try:
            v - 3
        except TypeError as e:
            text = str(e)
        try:
            v + "s"
        except TypeError as e:
            text += str(e)
        return v.t * 2, text

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def reflected_subclass_priority():
    class A:
        def __add__(self, o):
            return "A.add"

        def __radd__(self, o):
            return "A.radd"

        def __eq__(self, o):
            return "A.eq"

        def __lt__(self, o):
            return "A.lt"

        __hash__ = None

    class B(A):
        def __radd__(self, o):
            return "B.radd"

        def __gt__(self, o):
            return "B.gt"

        def __eq__(self, o):
            return "B.eq"

    class C(A):
        pass

    def fn(x):
        a, b, c = A(), B(), C()
        return x + 1, [a + b, a + c, b + a, 1 + a, a == b, b == a, a < b, a < c, a == c, a != b]

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def in_place_falls_back():
    class A:
        def __init__(self, v):
            self.v = v

        def __iadd__(self, o):
            return NotImplemented

        def __add__(self, o):
            return A(self.v + o)

        def __isub__(self, o):
            self.v = self.v - o
            return self

    held = A(1)

    def fn(x):
        a = A(x)
        b = a
        a += 2
        c = b
        c -= 1
        global_held = held
        global_held -= x
        return a.v, b.v, a is b, c is b, held.v

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1)
def comparison_and_sorting():
    @functools.total_ordering
    class Ver:
        def __init__(self, n):
            self.n = n

        def __eq__(self, o):
            return isinstance(o, Ver) and self.n == o.n

        def __lt__(self, o):
            return self.n < o.n

        def __hash__(self):
            return hash(self.n)

        def __repr__(self):
            return f"Ver({self.n})"

    def fn(x):
        vs = [Ver(3), Ver(1), Ver(2)]
        s = sorted(vs)
        s2 = sorted(vs, reverse=True)
        vs.sort()
        return (
            x * max(vs).n + min(vs).n,
            repr(s),
            repr(s2),
            Ver(1) <= Ver(2),
            Ver(3) >= Ver(4),
            vs == s,
            vs[0] in s2,
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def eq_and_hash_as_keys():
    class Key:
        def __init__(self, a, b):
            self.a, self.b = a, b

        def __eq__(self, o):
            return isinstance(o, Key) and (self.a, self.b) == (o.a, o.b)

        def __hash__(self):
            return hash((self.a, self.b))

    def fn(x):
        d = {Key(1, 2): x, Key(3, 4): x * 2}
        d[Key(1, 2)] = x * 5
        s = {Key(1, 2), Key(1, 2), Key(2, 1)}
        return d[Key(1, 2)] + d[Key(3, 4)] + len(d) + len(s) + (Key(2, 1) in s) + (Key(9, 9) in d)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def identity_hash_keys():
    class Plain:
        pass

    a = Plain()
    table = {a: 3, Plain: 4}

    def fn(x):
        b = Plain()
        d = {a: x, b: x * 2}
        return d[a] + d[b] + table[a] + table[Plain] + len({a, b, a})

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def len_bool_truth():
    class L:
        def __init__(self, n):
            self.n = n

        def __len__(self):
            return self.n

    class Bad:
        def __bool__(self):
            return 3

    class Negative:
        def __len__(self):
            return -1

    def fn(x):
        texts = []
        for bad in (Bad(), Negative()):
            try:
                bool(bad)
            except (TypeError, ValueError) as e:
                texts.append(str(e))
        return (x if L(0) else x * 2) + (1 if not L(3) else 4) + bool(L(2)) + len(L(5)), texts

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def callable_objects():
    class Adder:
        def __init__(self, k):
            self.k = k

        def __call__(self, x, *rest, scale=1):
            return (x + self.k + sum(rest)) * scale

    add = Adder(3)

    def fn(x):
        return add(x) + add(x, 1, 2, scale=2) + Adder(9)(x) + add.__call__(x) + sum(map(Adder(1), [1, 2]))

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def format_repr_str():
    class F:
        def __format__(self, spec):
            return f"<{spec}>"

        def __repr__(self):
            return "F()"

        def __str__(self):
            return "effff"

    class G:
        def __repr__(self):
            return "G!"

    def fn(x):
        f, g = F(), G()
        text = f"{f:abc} {f!r} {f!s} {g} {g!r:>5} {[f, g]} {(f,)} {{'k': f}}" + "%s %r" % (f, g)
        return x + len(text), text, str(f), repr(g), format(f, "q"), "{:z} {}".format(f, g), ascii(g)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def number_conversions():
    class N:
        def __int__(self):
            return 3

        def __float__(self):
            return 2.5

        def __complex__(self):
            return 1j

        def __index__(self):
            return 2

        def __trunc__(self):
            return 8

        def __bytes__(self):
            return b"nn"

    import math

    def fn(x):
        n = N()
        values = [
            int(n),
            float(n),
            complex(n),
            [1, 2, 3][n],
            hex(n),
            bin(n),
            range(n)[-1],
            bytes(n),
            math.trunc(n),
        ]
        return x * int(n) + float(n), values, x[n]

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def iterator_protocol():
    class Count:
        def __init__(self, n):
            self.n, self.i = n, 0

        def __iter__(self):
            return self

        def __next__(self):
            if self.i >= self.n:
                raise StopIteration
            self.i += 1
            return self.i

    class Sequence:
        def __getitem__(self, i):
            if i > 2:
                raise IndexError
            return i * 2

        def __len__(self):
            return 3

    class Gen:
        def __iter__(self):
            yield 1
            yield from Count(2)

    def fn(x):
        total = x
        for i in Count(3):
            total = total + i
        a, *b = Count(4)
        return (
            total
            + sum(Sequence())
            + list(Gen())[2]
            + a
            + len(b)
            + (4 in Sequence())
            + sum(reversed(Sequence())),
            [*Gen()],
            dict(zip(Count(2), Gen())),
            next(iter(Gen())),
            max(Count(5)),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def metaclasses_that_have_type_make_what_is_made_in_c():
    made = []

    class Meta(type):
        def __call__(cls, *args, **kwargs):
            made.append(cls.__name__)
            instance = super().__call__(*args, **kwargs)
            return instance

    class Items(list, metaclass=Meta):
        pass

    class Table(dict, metaclass=Meta):
        pass

    class Pair(tuple, metaclass=Meta):
        pass

    class Text(str, metaclass=Meta):
        pass

    class Plain(metaclass=Meta):
        pass

    def fn(x):
        made.clear()
        kept = (
            Items([x, x * 2])[1],
            Table(a=x)["a"] + 1,
            Pair((x, 3))[1],
            Text("a") + "b",
            type(Plain()).__name__,
        )
        return kept, list(made)

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def what_aliases_of_classes_make():
    T = typing.TypeVar("T")
    made = []

    class Meta(type):
        def __call__(cls, *args):
            made.append(cls.__name__)
            return super().__call__(*args)

    class Box(typing.Generic[T], metaclass=Meta):
        def __init__(self, v):
            made.append(v.shape)
            self.v = v

    class Own:
        __class_getitem__ = classmethod(types.GenericAlias)

        def __init__(self, v):
            made.append("own")
            self.v = v

    class Slots(Own):
        __slots__ = ()

    def fn(x):
        made.clear()
        box, own = Box[int](x), Own[str](x)
        aliases = box.__orig_class__ is Box[int], own.__orig_class__ == Own[str]
        return (
            box.v + own.v,
            Slots[int](x).v,
            aliases,
            list(made),
            collections.deque[int]([1]),
            dict[str, int](a=1),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def class_getitem_and_generics():
    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        def __init__(self, v: T):
            self.v = v

        def get(self) -> T:
            return self.v

    class IntBox(Box[int]):
        pass

    class Own:
        def __class_getitem__(cls, k):
            return k * 2

    def fn(x):
        return Box[int](3).get() * x + IntBox(4).get() + Own[5], Box[str].__origin__, list[int]([1, 2])

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def assigning_class():
    class A:
        def go(self, x):
            return x + 1

    class B:
        def go(self, x):
            return x * 3

    def fn(x):
        a = A()
        y = a.go(x)
        a.__class__ = B
        return a.go(y), isinstance(a, B), type(a).__name__, a.__class__ is B

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def assigning_class_of_an_outside_object():
    class A:
        def go(self, x):
            return x + 1

    class B:
        def go(self, x):
            return x * 3

    a = A()

    def fn(x):
        y = a.go(x)
        a.__class__ = B if type(a) is A else A
        return a.go(y)

    return fn, [(tensor(3),)] * 4, lambda: type(a).__name__


@program(graphs=0, eager=["unsupported-call"])
def object_with_finalizer():
    log = []

    class Final:
        def __del__(self):
            log.append("gone")

    def fn(x):
        f = Final()
        y = x + 1
        del f
        return y * len(log)

    return fn, [(tensor(3),)] * 3, log


# -------------------------------------------------------------------------------------------- ABCs and protocols


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    @property
    @abc.abstractmethod
    def label(self): ...

    def double(self):
        return self.area() * 2


class Square(Shape):
    def __init__(self, s):
        self.s = s

    def area(self):
        return self.s * self.s

    @property
    def label(self):
        return "square"


@typing.runtime_checkable
class HasArea(typing.Protocol):
    def area(self): ...


@program(graphs=1)
def abstract_base_class():
    outer = Square(3)

    def fn(x):
        s = Square(x)
        try:
            Shape()
        except TypeError as e:
            text = str(e)
        return s.double() + outer.double(), s.label, isinstance(s, Shape), issubclass(Square, Shape), text

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def protocol_and_registered_class():
    class Other(abc.ABC):  # noqa: B024
        @classmethod
        def __subclasshook__(cls, c):
            return True if any("special" in b.__dict__ for b in c.__mro__) else NotImplemented

    @Other.register
    class Registered:
        pass

    class Special:
        special = 1

    def fn(x):
        s = Square(2)
        flags = [
            isinstance(s, HasArea),
            isinstance(3, HasArea),
            isinstance(Registered(), Other),
            isinstance(Special(), Other),
            issubclass(int, Other),
            isinstance([], collections.abc.Sequence),
            isinstance({}, collections.abc.Mapping),
            isinstance(x, collections.abc.Hashable),
            isinstance(3, int | str),
            isinstance(x, torch.Tensor | None),
        ]
        return x + sum(flags), flags

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def abc_made_inside():
    def fn(x):
        class A(abc.ABC):
            @abc.abstractmethod
            def go(self, y): ...

        class B(A):
            def go(self, y):
                return y * 2

        return B().go(x), isinstance(B(), A)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def instancecheck_in_python():
    class Meta(type):
        def __instancecheck__(cls, o):
            return hasattr(o, "duck")

        def __subclasscheck__(cls, c):
            return c is int

    class Duck(metaclass=Meta):
        pass

    class D:
        duck = 1

    def fn(x):
        return x + isinstance(D(), Duck) + 2 * isinstance(3, Duck) + 4 * issubclass(int, Duck)

    return fn, [(tensor(3),)] * 3


# ------------------------------------------------------------------------------------------------- weak references


@program(graphs=2, breaks=["unsupported-object"])
def weak_references():
    class Node:
        def __init__(self, v):
            self.v = v

    node = Node(3)
    ref = weakref.ref(node)
    keyed = weakref.WeakKeyDictionary({node: 5})

    def fn(x):
        inner = Node(2)
        r = weakref.ref(inner)
        return x * ref().v + r().v + (r() is inner) + keyed[node]

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def weak_reference_read():
    class Node:
        v = 4

    node = Node()
    ref = weakref.ref(node)

    def fn(x):
        inner = Node()
        r = weakref.ref(inner)
        return x * ref().v + (r() is inner)

    return fn, [(tensor(3),)] * 3, node


# --------------------------------------------------------------------------------------------------- named tuples

Point = collections.namedtuple("Point", "x y", defaults=[0])


class Typed(typing.NamedTuple):
    a: int
    b: torch.Tensor | None = None

    def total(self):
        return self.a + self.b

    @property
    def double(self):
        return self.a * 2


@program(graphs=1)
def named_tuples():
    p = Point(1, 2)

    def fn(x):
        q = Point(x)
        t = Typed(3, x)
        r = q._replace(y=x * 2)
        a, b = r
        return (
            t.total() + p.x + a + b + t.double,
            r,
            t._asdict(),
            Point._fields,
            p == Point(1, 2),
            Point._make([1, 2]),
            p._asdict(),
            t[0],
            len(r),
            Typed.__annotations__ is not None,
            p.index(2),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def named_tuple_argument():
    def fn(p):
        return p.x * 2 + p.y, p._replace(y=5), p

    return fn, [(Point(tensor(3), 2),), (Point(tensor(3), 2),), (Point(tensor(3), 3),)]


@program(graphs=1)
def named_tuple_made_inside():
    def fn(x):
        Local = collections.namedtuple("Local", ["a", "b"])
        v = Local(x, 3)
        return v.a * v.b

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def named_tuple_subclass():
    class Sub(Point):
        def norm(self):
            return self.x * self.x + self.y * self.y

        def __new__(cls, x, y=7):
            return super().__new__(cls, x, y)

    def fn(x):
        return Sub(x).norm(), Sub(x, 2), Sub(1) < Sub(2)

    return fn, [(tensor(3),)] * 3


# ---------------------------------------------------------------------------------------------------------- enums


class Color(enum.Enum):
    RED = 1
    GREEN = 2
    ALIAS = 1

    @property
    def pretty(self):
        return self.name.lower()

    def mix(self, x):
        return x * self.value

    @classmethod
    def default(cls):
        return cls.GREEN


class Perm(enum.Flag):
    R = enum.auto()
    W = enum.auto()
    X = enum.auto()


class Num(enum.IntEnum):
    ONE = 1
    TWO = 2


class Name(enum.StrEnum):
    A = "a"
    B = enum.auto()


@program(graphs=1, later=1)
def enums():
    def fn(x, c):
        ok = c is Color.RED or c == Color.GREEN
        return (
            c.mix(x) + len(Color) + ok,
            c.pretty,
            c.name,
            Color(2),
            Color["RED"],
            Color.ALIAS is Color.RED,
            [m.value for m in Color],
            Color.default(),
            c in Color,
            list(Color.__members__),
            repr(c),
            {Color.RED: 1, Color.GREEN: 2}[c],
        )

    return fn, [(tensor(3), Color.RED), (tensor(3), Color.RED), (tensor(3), Color.GREEN)]


@program(graphs=1, later=1)
def flags_and_int_enums():
    def fn(x, p):
        both = p | Perm.W
        return (
            x * Num.TWO + Num.ONE,
            both,
            bool(both & Perm.R),
            Perm.W in both,
            ~both,
            both ^ Perm.R,
            Num(2) + 3,
            Num.ONE < Num.TWO,
            f"{Num.ONE} {Name.A} {Name.B.upper()}",
            x.sum(dim=-Num.ONE),
            {"a": 1}[Name.A],
            isinstance(Num.ONE, int),
        )

    return fn, [(tensor(3), Perm.R), (tensor(3), Perm.R), (tensor(3), Perm.X)]


@program(graphs=1)
def enum_lookup_fails():
    def fn(x):
        try:
            Color(9)
        except ValueError as e:
            return x + 1, str(e)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def enum_made_inside():
    def fn(x):
        class Local(enum.Enum):
            A = 2
            B = 3

        return x * Local.A.value + Local(3).value + len(Local)

    return fn, [(tensor(3),)] * 3


# ---------------------------------------------------------------------------------------------------- dataclasses


@dataclasses.dataclass
class Config:
    width: int
    name: str = "c"
    items: list = dataclasses.field(default_factory=list)
    hidden: int = dataclasses.field(default=3, repr=False, compare=False)
    total: int = dataclasses.field(init=False)

    def __post_init__(self):
        self.total = self.width + len(self.items)


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: float = 2.0


@dataclasses.dataclass(slots=True)
class Slotted:
    t: torch.Tensor
    k: int = 1


@dataclasses.dataclass(kw_only=True)
class Child(Config):
    extra: torch.Tensor | None = None
    seed: dataclasses.InitVar[int] = 0

    def __post_init__(self, seed):
        super().__post_init__()
        self.seeded = seed * 2


@program(graphs=1)
def dataclass_made_and_returned():
    def fn(x):
        c = Config(3, items=[x])
        s = Slotted(x * 2)
        d = Child(width=4, extra=x, seed=5)
        return c, s, d, c.total + s.k + d.seeded

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def dataclass_frozen():
    f = Frozen(1)

    def fn(x):
        g = Frozen(2, 3.0)
        try:
            g.a = 4
        except dataclasses.FrozenInstanceError as e:
            text = str(e)
        return x * g.a + f.b, text, g, f < g, hash(f) == hash(Frozen(1)), {f: 1}[Frozen(1)], f == Frozen(1)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def dataclass_functions():
    c = Config(3, items=[1, 2])

    def fn(x):
        r = dataclasses.replace(Frozen(1), b=9.0)
        n = [f.name for f in dataclasses.fields(c)]
        return (
            x * r.b + len(n),
            dataclasses.asdict(Frozen(1)),
            dataclasses.astuple(r),
            n,
            dataclasses.is_dataclass(c),
            repr(r),
            dataclasses.asdict(c),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def dataclass_asdict_with_tensor():
    def fn(x):
        s = Slotted(x, 2)
        d = dataclasses.asdict(s)
        e = dataclasses.replace(s, k=5)
        return d["t"] * d["k"] + e.t, e, d

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def dataclass_argument_and_mutation():
    c = Config(3)

    def fn(x, f):
        c.width = c.width if f.a == 1 else 5
        c.items.append(x)
        return x * c.width + f.b

    return fn, [(tensor(3), Frozen(1)), (tensor(3), Frozen(1)), (tensor(3), Frozen(2))], c


@program(graphs=1)
def dataclass_defined_inside():
    def fn(x):
        @dataclasses.dataclass
        class Local:
            a: int
            b: torch.Tensor

        v = Local(2, x)
        return v.a * v.b

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def dataclass_match():
    def fn(x, f):
        match f:
            case Frozen(1, b):
                return x * b
            case Frozen(a=a, b=3.0):
                return x + a
            case _:
                return x

    return fn, [(tensor(3), Frozen(1)), (tensor(3), Frozen(1)), (tensor(3), Frozen(2, 3.0)), (tensor(3), 4)]


# ------------------------------------------------------------------------------------------ TypedDict and friends


class Movie(typing.TypedDict):
    name: str
    year: int


@program(graphs=1)
def typed_dict_and_newtype():
    UserId = typing.NewType("UserId", int)

    def fn(x):
        m = Movie(name="a", year=3)
        m2: Movie = {"name": "b", "year": 4}
        return (
            x * m["year"] + m2["year"] + UserId(5),
            m,
            typing.cast(int, 3),
            typing.get_type_hints(Movie) is not None,
        )

    return fn, [(tensor(3),)] * 3


# -------------------------------------------------------------------------------------- subclasses of builtin types


class MyList(list):
    def total(self):
        return sum(self)

    def append(self, v):
        super().append(v * 2)


class MyDict(dict):
    def __missing__(self, key):
        return len(key)

    def __setitem__(self, key, v):
        super().__setitem__(key.upper(), v)


class AttrDict(dict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, v):
        self[name] = v


class MyStr(str):
    def shout(self):
        return self.upper() + "!"


class MyInt(int):
    def __add__(self, o):
        return MyInt(int(self) + int(o) + 100)

    def __new__(cls, v, tag="t"):
        made = super().__new__(cls, v)
        made.tag = tag
        return made


class MyFloat(float):
    @property
    def half(self):
        return self / 2


class MyTuple(tuple):
    def __new__(cls, *items):
        return super().__new__(cls, items)

    @property
    def first(self):
        return self[0]


class MySet(set):
    def add(self, v):
        super().add(v + 1)


@program(graphs=1, later=2)
def subclass_of_list():
    held = MyList([1])

    def fn(x):
        m = MyList([x, x * 2])
        m.append(x)
        held.append(4)
        m2 = m[:2]
        return m.total(), m, held[-1], type(m2), len(m), m + [x], MyList(m) == m

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1)
def subclass_of_dict():
    held = MyDict(a=1)

    def fn(x):
        d = MyDict()
        d["k"] = x
        held["z"] = x * 2
        return d["K"] * d["missing"] + held["a"], d, d.get("nope"), "K" in d, list(d), {**d}

    return fn, [(tensor(3),)] * 3, held


@program(graphs=1)
def attribute_dictionary():
    cfg = AttrDict(width=3, act="relu")

    def fn(x):
        d = AttrDict(a=x)
        d.b = 4
        y = x * cfg.width + d.b + d.a
        if cfg.act == "relu":
            y = y.relu()
        return y, d, hasattr(cfg, "zzz"), getattr(cfg, "q", 1)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def subclass_of_str_int_float_tuple_set():
    s, i, f = MyStr("abc"), MyInt(3), MyFloat(2.5)

    def fn(x):
        t = MyTuple(x, 2)
        z = MySet()
        z.add(1)
        return (
            x * (i + 1) + f.half + t.first * t[1],
            s.shout(),
            MyStr("q").shout(),
            t,
            i.tag,
            MyInt(4, tag="u").tag,
            z,
            MyFloat(3.0).half,
            f"{s} {i} {f}",
            s + "d",
            {"abc": 1}[s],
            len(s),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def builtin_subclass_arguments():
    def fn(x, s, i, f, t):
        return x * i + f + t[1] + len(s), s.shout(), i.tag, f.half, t.first

    args = (MyStr("abc"), MyInt(3), MyFloat(2.5), MyTuple(1, 2))
    return fn, [
        (tensor(3), *args),
        (tensor(3), *args),
        (tensor(3), MyStr("abcd"), MyInt(4), MyFloat(3.5), MyTuple(1, 3)),
    ]


@program(graphs=1)
def subclasses_of_collections():
    class Def(collections.defaultdict):
        pass

    class Ord(collections.OrderedDict):
        def first(self):
            return next(iter(self))

    class Cnt(collections.Counter):
        def top(self):
            return self.most_common(1)[0][0]

    class UD(collections.UserDict):
        def __getitem__(self, k):
            return super().__getitem__(k) * 2

    class UL(collections.UserList):
        pass

    def fn(x):
        d = Def(list)
        d["a"].append(x)
        o = Ord(b=1, a=2)
        c = Cnt("aab")
        u = UD(k=x)
        return u["k"] + d["a"][0] + o["b"], o.first(), c.top(), UL([1, 2]) + [3], len(u), d

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def mutable_mapping_in_python():
    class Map(collections.abc.MutableMapping):
        def __init__(self):
            self.d = {}

        def __getitem__(self, k):
            return self.d[k]

        def __setitem__(self, k, v):
            self.d[k] = v

        def __delitem__(self, k):
            del self.d[k]

        def __iter__(self):
            return iter(self.d)

        def __len__(self):
            return len(self.d)

    def fn(x):
        m = Map()
        m["a"] = x
        m.update(b=x * 2, c=3)
        p = m.pop("c")
        d = m.setdefault("d", 4)
        return (
            sum(m.values()) + p + d,
            list(m.items()),
            "a" in m,
            m.get("z", 5),
            list(m.keys()),
            dict(m),
            dict(**m),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=2)
def context_manager_class():
    class Scope:
        def __init__(self, log):
            self.log = log

        def __enter__(self):
            self.log.append("in")
            return self

        def __exit__(self, kind, value, tb):
            self.log.append(kind.__name__ if kind else None)
            return kind is ValueError

    log = []

    def fn(x):
        with Scope(log) as s, Scope(log):
            y = x * 2
            raise ValueError("swallowed")
        return y + len(s.log)

    return fn, [(tensor(3),)] * 3, log


# --------------------------------------------------------------------------------------------------------- modules


@program(graphs=1)
def module_with_everything():
    class Block(nn.Module):
        scale: float = 2.0

        def __init__(self, n):
            super().__init__()
            self.lin = nn.Linear(n, n)
            self.register_buffer("offset", torch.ones(n))
            self.layers = nn.ModuleList([nn.Linear(n, n) for _ in range(2)])
            self.by_name = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Identity()})
            self.extra = nn.ParameterList([nn.Parameter(torch.ones(n))])

        def __getattr__(self, name):
            if name == "virtual":
                return 3.0
            return super().__getattr__(name)

        @property
        def width(self):
            return self.lin.in_features

        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs) + 1

        def forward(self, x):
            y = self.lin(x) * self.scale + self.offset * self.virtual + self.width
            for layer in self.layers:
                y = layer(y)
            for name, act in self.by_name.items():
                y = act(y) + len(name)
            return y * self.extra[0] + len(self.layers) + sum(1 for _ in self.named_parameters())

    m = Block(4).eval().requires_grad_(False)
    return m, [(tensor(2, 4),)] * 3


@program(graphs=1)
def module_made_inside():
    def fn(x):
        with torch.no_grad():
            m = nn.Sequential(nn.ReLU(), nn.Identity())
            return m(x) + len(m)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def mixin_and_cooperative_init():
    class Mixin:
        def __init__(self, *args, tag="t", **kwargs):
            super().__init__(*args, **kwargs)
            self.tag = tag

    class A:
        def __init__(self, v):
            self.v = v

    class B(Mixin, A):
        pass

    def fn(x):
        b = B(3, tag="q")
        return x * b.v, b.tag, vars(b)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def new_returning_other_and_singleton():
    class Single:
        _it = None

        def __new__(cls, *args):
            if cls._it is None:
                cls._it = super().__new__(cls)
            return cls._it

        def __init__(self, v=1):
            self.v = v

    class Other:
        def __new__(cls, v):
            return v * 2

    Single(5)

    def fn(x):
        s = Single(6)
        return x * s.v + Other(3), s is Single._it

    return fn, [(tensor(3),)] * 3, lambda: Single._it


@program(graphs=2, breaks=["unsupported-call"])
def cached_and_lazy_attributes():
    class Lazy:
        def __init__(self, n):
            self.n = n
            self.count = 0

        @functools.cached_property
        def value(self):
            self.count += 1
            return self.n * 2

        @functools.lru_cache  # noqa: B019
        def method(self, k):
            return self.n + k

    def fn(x):
        z = Lazy(3)
        return x * z.value + z.value + z.count + z.method(2), sorted(vars(z))

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def private_names_and_nested_classes():
    class Outer:
        class Inner:
            k = 3

            def go(self, x):
                return x * self.k

        def __init__(self):
            self.__secret = 4

        def reveal(self):
            return self.__secret

    o = Outer()

    def fn(x):
        return Outer.Inner().go(x) + o.reveal() + Outer().reveal(), o._Outer__secret

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def class_decorator_and_method_decorator():
    def register(cls):
        cls.registered = True
        return cls

    def logged(f):
        @functools.wraps(f)
        def inner(self, *a, **k):
            self.calls += 1
            return f(self, *a, **k)

        return inner

    @register
    class C:
        calls = 0

        @logged
        def go(self, x):
            return x * 2

    c = C()

    def fn(x):
        d = C()
        y = d.go(x) + d.go(x) + d.calls + C.registered
        return y, c.go.__name__, d.go.__wrapped__ is not None

    return fn, [(tensor(3),)] * 3


def structure():
    class Structure(ctypes.Structure):
        _fields_ = [("a", ctypes.c_int)]  # noqa: RUF012
        extra = 1

    return Structure


@program(graphs=2, later=2, breaks=["unsupported-effect"])
def attribute_of_a_class_whose_metaclass_of_c_stores_it():
    made = structure()

    def fn(x):
        y = x * 2
        made.extra = made.extra + 1
        return y + made.extra

    return fn, [(tensor(3),)] * 3, lambda: made.extra


@program(graphs=2, breaks=["unsupported-effect"])
def attribute_of_a_class_whose_metaclass_of_c_deletes_it():
    made = structure()

    def fn(x):
        y = x * 2
        del made.extra
        return y + hasattr(made, "extra")

    return fn, Changing([(tensor(3),)] * 3, {n: lambda: setattr(made, "extra", 1) for n in range(3)})


@program(graphs=0, eager=["unsupported-effect"])
def fields_of_a_structure_made_inside():
    def fn(x):
        class Pair(ctypes.Structure):
            pass

        Pair._fields_ = [("a", ctypes.c_int)]
        return x + Pair(a=3).a

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def member_of_an_enum_made_inside_is_not_replaced():
    def fn(x):
        class Kind(enum.Enum):
            A = 1

        try:
            Kind.A = 2
        except AttributeError as error:
            return x + 1, str(error)

    return fn, [(tensor(3),)] * 3


class Code(enum.IntEnum):
    OK = 200


class ShownError(Exception):
    def __repr__(self):
        return "shown"


class Shown(str):
    def __repr__(self):
        return "shown"


class Index(int):
    def __index__(self):
        return 99


@program(graphs=1)
def text_of_a_class_of_c_that_has_its_own():
    def fn(x):
        values = (Code.OK, ShownError("a"), Shown("b"), Index(3))
        return (
            x + int(values[3]),
            [str(value) for value in values],
            f"{values[0]} {values[1]}",
            "%s %r" % values[:2],
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def operators_of_counters_with_one_operand():
    def fn(x):
        counter["b"] = -2
        positive, negative = +counter, -counter
        counter["b"] = 1
        return x + 1, positive, negative

    counter = collections.Counter("aab")
    return fn, [(tensor(3),)] * 3


@program(graphs=0, eager=["unsupported-call"])
def weak_method_of_an_object_made_inside():
    class Model:
        def scaled(self, x):
            return x * 2

    def fn(x):
        model = Model()
        method = weakref.WeakMethod(model.scaled)
        y = method()(x)
        del model
        return y, method() is None

    return fn, [(tensor(3),)] * 3


class AskedForItsLength:
    def __init__(self, length):
        self.length, self.asked = length, 0

    def __len__(self):
        self.asked += 1
        if self.length is None:
            raise NotImplementedError("no length")
        return self.length

    def __iter__(self):
        return iter((1, 2))


@program(graphs=1)
def length_is_asked_where_a_list_or_a_tuple_is_made():
    def fn(x):
        seen = []
        for make in (
            list,
            tuple,
            torch.Size,
            [0].extend,
            [0].__iadd__,
            lambda rows: (lambda *args: args)(*rows),
        ):
            for length in (2, 100, None):
                rows = AskedForItsLength(length)
                try:
                    seen.append((make(rows), rows.asked))
                except NotImplementedError as error:
                    seen.append((str(error), rows.asked))
        return x + 1, seen

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1, fullgraph=True)
def subclasses_of_a_class():
    class Base:
        pass

    class First(Base):
        pass

    def fn(x, number):
        names = [cls.__name__ for cls in type.__subclasses__(Base)]
        return x + len(Base.__subclasses__()), names, First in Base.__subclasses__()

    class Calls:
        def __len__(self):
            return 4

        def __iter__(self):
            yield tensor(3), 0
            yield tensor(3), 0
            self.second = type("Second", (Base,), {})
            yield tensor(3), 0
            yield tensor(3), 0

    return fn, Calls()


@program(graphs=0, eager=["unsupported-call"])
def subclasses_that_the_function_creates():
    def fn(x):
        class Base:
            pass

        x = x + len(Base.__subclasses__())
        return x * 2

    return fn, [(tensor(3),)] * 3
