"""Functions: how arguments bind, closures, recursion, attributes, classes made inside."""

import functools
import math
import operator

import torch
from torch import nn

from tests.harness.catalogue import call, program, tensor


def numbers():
    return [(tensor(3), 0), (tensor(3), 0), (tensor(3), 1), (tensor(3), 2), (tensor(3), 5)]


def attempt(f):
    try:
        return f()
    except Exception as e:
        return type(e).__name__, str(e)


@program(graphs=1, later=3)
def every_kind_of_parameter():
    def inner(a, b=2, /, c=3, *rest, d, e=5, **named):
        return a * b + c + len(rest) * d - e, named

    def fn(x, n):
        return [
            inner(x, d=n), inner(x, 1, 2, d=1), inner(x, 1, 2, 3, 4, d=n), inner(x, c=n, d=2, e=0), inner(x, d=1, b=7, z=x),
            inner(*[x, n], **{"d": 2, "q": 1}), inner(x, *range(n), d=0, **{}),
        ]  # fmt: skip

    return fn, numbers()


@program(graphs=1, later=2)
def compiled_function_with_every_kind_of_parameter():
    def fn(x, b=2, /, c=3, *rest, d, e=5, **named):
        return x * b + c + len(rest) * d - e, rest, named

    t = tensor
    return fn, [
        call(t(3), d=1),
        call(t(3), d=1),
        call(t(3), 1, 2, 3, d=2, q=t(2)),
        call(t(3), c=9, d=1, e=0),
        call(t(3), 5, d=0),
    ]


@program(graphs=0, later=2)
def compiled_function_called_wrongly():
    def fn(x, b=2, /, c=3, *, d):
        return x * b + c + d

    x = tensor(3)
    return fn, [
        call(x),
        call(x, d=1),
        call(x, b=1, d=1),
        call(x, 1, 2, 3, d=1),
        call(x, d=1, z=2),
        call(d=1),
        call(x, d=2),
    ]


@program(graphs=1, later=1)
def binding_errors():
    def none():
        pass

    def one(a):
        pass

    def some(a, b, c=1):
        pass

    def positional(a, b, /):
        pass

    def keyword(*, k, l, m=1):
        pass

    def mixed(a, /, b, *, c):
        pass

    class C:
        def __init__(self, a):
            pass

        def method(self, a, *, k=1):
            pass

    def fn(x, n):
        c = C(1)
        tries = [
            lambda: none(1), lambda: none(1, 2), lambda: none(a=1), lambda: one(), lambda: one(1, 2), lambda: one(1, a=1), lambda: one(b=1),
            lambda: some(), lambda: some(1), lambda: some(1, 2, 3, 4), lambda: some(c=1), lambda: some(1, 2, d=1), lambda: some(1, 2, d=1, e=2),
            lambda: positional(a=1, b=2), lambda: positional(1, b=2), lambda: positional(1), lambda: keyword(), lambda: keyword(k=1),
            lambda: keyword(1), lambda: keyword(1, k=1, l=1), lambda: keyword(1, 2, k=1, l=2, m=3), lambda: keyword(k=1, l=1, z=1), lambda: mixed(1),
            lambda: mixed(1, 2), lambda: mixed(a=1, b=2, c=3), lambda: mixed(1, b=2), lambda: C(), lambda: C(1, 2), lambda: c.method(),
            lambda: c.method(1, 2), lambda: c.method(1, j=2), lambda: one(*5), lambda: one(**5), lambda: one(**{1: 2}), lambda: one(**{"a": 1}, **{"a": 2}),
            lambda: one(*[1], **{"a": 1}), lambda: (lambda a, b: 1)(1), lambda: some(*[1], 2, **{"c": 3}, **{"c": 4}), lambda: C.method(),
            lambda: one(1, **{"b": 1}), lambda: some(1, 2, 3, c=4), lambda: some(b=1), lambda: some(**{"x y": 1}), lambda: some(1, 2, cc=1),
        ]  # fmt: skip
        return [attempt(t) for t in tries], x + n

    return fn, numbers()


@program(graphs=1, later=1)
def binding_errors_of_builtins():
    def fn(x, n):
        tries = [
            lambda: len(), lambda: len(1, 2), lambda: abs(), lambda: isinstance(1), lambda: int("1", base=2, z=1), lambda: [].append(),
            lambda: {}.get(), lambda: "a".split(1, 2, 3), lambda: sorted(), lambda: sorted([1], 2), lambda: getattr(1), lambda: range(),
            lambda: print(sepp=1), lambda: min(), lambda: zip(1, 2), lambda: map(), lambda: dict(1, 2), lambda: list(1, 2), lambda: tuple(z=1),
            lambda: object(1), lambda: type(), lambda: super(1, 2, 3), lambda: sum(), lambda: any(), lambda: round(), lambda: divmod(1),
            lambda: str(1, 2, 3, 4), lambda: hash(), lambda: next(), lambda: iter(), lambda: functools.partial(), lambda: math.sqrt("a"),
            lambda: math.sqrt(-1), lambda: operator.add(1), lambda: bool(1, 2), lambda: float([]), lambda: chr("a"), lambda: set(1, 2),
            lambda: frozenset(5), lambda: reversed(5), lambda: enumerate(), lambda: filter(1), lambda: callable(), lambda: id(), lambda: slice(1, 2, 3, 4),
        ]  # fmt: skip
        return [attempt(t) for t in tries], x + n

    return fn, numbers()


@program(graphs=1, later=1)
def closures_made_and_called():
    def fn(x, n):
        def make(k):
            def inner(v):
                nonlocal k
                k += 1
                return v * k + n

            return inner

        a, b = make(1), make(10)
        return a(x), a(x), b(x), a.__closure__[0].cell_contents

    return fn, numbers()


@program(graphs=1, later=1)
def closures_returned():
    def fn(x, n):
        y = x * 2
        count = 0

        def inner(z):
            nonlocal count
            count += 1
            return y + z + n + count

        def reader():
            return count

        return inner, reader, y

    return fn, numbers()


@program(graphs=1, later=3)
def closures_returned_are_called_later():
    made = []

    def fn(x, n):
        if made and n:
            return made[-1](x)
        scale = x.sum() + n

        def inner(z, *, shift=n):
            return z * scale + shift

        made.append(inner)
        return inner(x)

    return fn, [(tensor(3), 0), (tensor(3), 1), (tensor(3), 1), (tensor(3), 0), (tensor(3), 2)]


@program(graphs=1, later=1)
def lambdas_in_containers():
    def fn(x, n):
        table = {
            "add": lambda a: a + n,
            "mul": lambda a: a * 2,
            "both": lambda a: table["add"](table["mul"](a)),
        }
        return table["both"](x), [f(x) for f in table.values()]

    return fn, numbers()


@program(graphs=1, later=4)
def mutable_default_arguments():
    def remember(v, seen=[]):  # noqa: B006
        seen.append(v)
        return len(seen)

    def fn(x, n):
        inner_default = []

        def inner(v, kept=inner_default):
            kept.append(v)
            return kept

        inner(n)
        return x * remember(n), inner(n + 1) is inner_default, inner_default

    return fn, numbers(), [remember]


@program(graphs=1, later=1)
def mutable_default_of_the_compiled_function():
    def fn(x, n, seen=[]):  # noqa: B006
        seen.append(n)
        return x + n, seen

    return fn, numbers()


@program(graphs=1, later=1)
def recursion():
    def factorial(x, n):
        return x if n == 0 else factorial(x, n - 1) * n

    def fn(x, n):
        return factorial(x, n)

    return fn, [(tensor(3), 3), (tensor(3), 3), (tensor(3), 5)]


@program(graphs=1, later=3)
def mutual_recursion():
    def even(x, n):
        return x * 2 if n == 0 else odd(x + 1, n - 1)

    def odd(x, n):
        return x * 3 if n == 0 else even(x - 2, n - 1)

    return even, numbers()


@program(graphs=1, later=1)
def compiled_function_recurses_into_itself():
    def fn(x, n):
        return x if n == 0 else fn(x * 2, n - 1) + 1

    return fn, [(tensor(3), 2), (tensor(3), 2), (tensor(3), 4)]


@program(graphs=1, later=3)
def deep_recursion_within_the_limit():
    def down(x, n):
        return x if n == 0 else down(x, n - 1)

    def fn(x, n):
        return down(x, 300 + n) * 2

    return fn, numbers()


@program(graphs=1, later=1, eager=["user-exception"])
def recursion_error_leaves():
    def forever(x):
        return forever(x)

    def fn(x, n):
        if n == 1:
            return forever(x)
        return x + n

    return fn, numbers()


@program(graphs=1)
def recursive_module():
    class Tree(nn.Module):
        def __init__(self, depth):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))
            self.children_ = nn.ModuleList([Tree(depth - 1) for _ in range(2)] if depth else [])

        def forward(self, x):
            for child in self.children_:
                x = child(x)
            return x * self.weight

    model = Tree(2).requires_grad_(False)
    return model, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def function_attributes():
    def counted(x):
        counted.calls += 1
        return x * counted.scale

    counted.calls, counted.scale = 0, 2

    def fn(x, n):
        def inner():
            pass

        inner.tag = [n]
        return (
            counted(x),
            inner.tag,
            inner.__name__,
            counted.__name__,
            hasattr(counted, "nothing"),
            inner.__dict__,
        )

    return fn, [(tensor(3), 0)] * 3, [counted]


@program(graphs=1, later=1)
def function_metadata():
    def documented(a: int, b: str = "q", *c, d: float = 1.0, **e) -> None:
        """Says what it does."""

    def fn(x, n):
        code = documented.__code__
        return (
            x + n, documented.__doc__, documented.__annotations__, documented.__defaults__, documented.__kwdefaults__, code.co_argcount,
            code.co_varnames, documented.__module__, documented.__qualname__, code.co_name,
        )  # fmt: skip

    return fn, numbers()


@program(graphs=1, later=1)
def locals_of_a_function():
    def fn(x, n):
        y = x * 2

        def inner():
            return n

        names = sorted(locals())
        values = locals()["y"]
        return names, values + inner(), len(locals())

    return fn, numbers()


@program(graphs=1, later=1)
def locals_is_a_snapshot():
    def fn(x, n):
        a = 1
        seen = locals()
        seen["a"] = 5
        seen["q"] = n
        return x + a, sorted(seen), seen["q"]

    return fn, numbers()


@program(graphs=1, later=1)
def globals_are_read():
    def fn(x, n):
        return x + len(globals()["__name__"]) * 0, "attempt" in globals(), globals()["attempt"](lambda: n)

    return fn, numbers()


@program(graphs=1, later=1)
def eval_and_exec():
    def fn(x, n):
        scope = {"x": x, "n": n}
        exec("y = x * n", scope)
        return scope["y"], eval("n + 1"), eval("a * 2", {"a": n}), eval(compile("1 + 1", "<s>", "eval"))

    return fn, numbers()


@program(graphs=1, later=1)
def class_made_inside():
    def fn(x, n):
        class Base:
            scale = n + 1

            def apply(self, v):
                return v * self.scale

            @classmethod
            def make(cls):
                return cls()

            @staticmethod
            def plain(v):
                return v + 1

            @property
            def double(self):
                return self.scale * 2

        class Derived(Base):
            def apply(self, v):
                return super().apply(v) + self.double

        made = Derived.make()
        return (
            made.apply(x),
            Derived.plain(x),
            isinstance(made, Base),
            Derived.__name__,
            [c.__name__ for c in Derived.__mro__],
        )

    return fn, numbers()


@program(graphs=0, eager=["unsupported-object"])
def class_made_inside_is_returned():
    def fn(x, n):
        class Made:
            value = n

            def get(self):
                return x + self.value

        return Made, Made().get()

    return fn, numbers()


@program(graphs=0, eager=["unsupported-object"])
def instance_of_a_class_made_inside_is_returned():
    def fn(x, n):
        class Made:
            def __init__(self, v):
                self.v = v

        return Made(x * 2)

    return fn, numbers()


@program(graphs=1, later=3)
def class_with_decorators_slots_and_init_subclass():
    def fn(x, n):
        seen = []

        def tag(cls):
            cls.tag = n
            return cls

        class Base:
            def __init_subclass__(cls, **kw):
                seen.append((cls.__name__, kw))

        @tag
        class Made(Base, flag=n):
            __slots__ = ("a",)

            def __init__(self, a):
                self.a = a

        m = Made(x)
        return m.a * 2, Made.tag, seen, attempt(lambda: setattr(m, "b", 1))

    return fn, numbers()


@program(graphs=1, later=1)
def class_made_by_type():
    def fn(x, n):
        made = type("Made", (), {"scale": n, "run": lambda self, v: v * self.scale})
        return made().run(x), made.__name__

    return fn, numbers()


@program(graphs=1, later=1)
def decorators():
    def twice(f):
        @functools.wraps(f)
        def wrapper(*args, **kwargs):
            return f(*args, **kwargs) + f(*args, **kwargs)

        return wrapper

    def scaled(k):
        def decorate(f):
            return lambda v: f(v) * k

        return decorate

    @twice
    def base(v, *, shift=1):
        """Adds."""
        return v + shift

    def fn(x, n):
        @scaled(n)
        @twice
        def inner(v):
            return v - 1

        return base(x, shift=n), inner(x), base.__name__, base.__doc__

    return fn, numbers()


@program(graphs=1, later=1)
def partials():
    def base(a, b, c=0, **named):
        return a * b + c, named

    add = functools.partial(base, c=5)

    def fn(x, n):
        p = functools.partial(base, x, c=n)
        q = functools.partial(p, 2, z=1)
        return (
            p(3),
            q(),
            q.args[1],
            q.keywords,
            add(x, n),
            list(map(functools.partial(operator.add, n), [1, 2])),
        )

    return fn, numbers()


@program(graphs=1, later=1)
def methods_as_values():
    class Box:
        def __init__(self, v):
            self.v = v

        def add(self, k):
            return self.v + k

        @classmethod
        def make(cls, v):
            return cls(v)

    def fn(x, n):
        make, add = Box.make, Box.add
        box = make(x)
        bound = box.add
        return (
            bound(n),
            add(box, n),
            bound.__self__ is box,
            bound == box.add,
            bound.__func__ is Box.add,
            list(map(bound, [1, 2])),
        )

    return fn, numbers()


@program(graphs=1, later=3)
def reduce_and_operator():
    def fn(x, n):
        total = functools.reduce(lambda a, b: a * 2 + b, [x, x + 1, x + n])
        product = functools.reduce(operator.mul, range(1, n + 2), 1)
        get, attr, method = (
            operator.itemgetter(0, 1),
            operator.attrgetter("shape"),
            operator.methodcaller("split", ","),
        )
        return (
            total,
            product,
            get([x, n]),
            attr(x),
            method("a,b"),
            operator.index(n),
            operator.neg(x),
            operator.truediv(n, 2),
        )

    return fn, numbers()


@program(graphs=1, later=3, breaks=["unsupported-effect"])
def caches():
    calls = []

    @functools.lru_cache
    def cached(n):
        calls.append(n)
        return n * 2

    def fn(x, n):
        return x * cached(n) + cached(n)

    return fn, numbers()


@program(graphs=1, later=1)
def single_dispatch():
    @functools.singledispatch
    def show(v):
        return "other"

    @show.register
    def _(v: int):
        return "int"

    @show.register(list)
    def _(v):
        return "list" + show(v[0])

    def fn(x, n):
        return x + n, show(n), show([n]), show("s")

    return fn, numbers()


@program(graphs=1, later=1)
def callable_objects():
    class Scale:
        def __init__(self, k):
            self.k = k

        def __call__(self, v, *, shift=0):
            return v * self.k + shift

    scale = Scale(3)

    def fn(x, n):
        return scale(x), Scale(n)(x, shift=1), callable(scale), list(map(scale, [1, 2]))

    return fn, numbers()


@program(graphs=1, later=1)
def callable_object_compiled():
    class Scale:
        def __init__(self, k):
            self.k = k

        def __call__(self, v, n):
            return v * self.k + n

    return Scale(3), numbers()


@program(graphs=1, later=1)
def bound_method_compiled():
    class Scale:
        def __init__(self, k):
            self.k = k
            self.seen = []

        def run(self, v, n):
            self.seen.append(n)
            return v * self.k + n

    return Scale(3).run, numbers()


@program(graphs=1, later=1)
def keyword_order_is_kept():
    def inner(**named):
        return list(named)

    def fn(x, n):
        return inner(b=1, a=2, **{"z": 3, "c": 4}), inner(**dict(q=1), p=2), x + n

    return fn, numbers()


@program(graphs=1, later=1)
def kwargs_are_a_fresh_dict():
    def inner(*args, **named):
        named["added"] = 1
        return args, named

    def fn(x, n):
        given = {"a": x}
        args, named = inner(*[x, n], **given)
        return given, named, args, x * 2

    return fn, numbers()


@program(graphs=1)
def functions_compared_and_hashed():
    def a():
        pass

    def fn(x, n):
        def b():
            pass

        table = {a: 1, b: 2, len: 3, torch.add: 4}
        return x + table[a] + table[b] + table[len] + table[torch.add], a == b, a != a, b in table

    return fn, numbers()


@program(graphs=1, later=1)
def sys_of_the_frame_is_not_seen():
    def fn(x, n):
        def inner(a, b=1):
            return sorted(vars()), dir()

        return inner(n), x + 1

    return fn, numbers()


@program(graphs=1, later=1)
def conditional_function_definition():
    def fn(x, n):
        if n:

            def f(v):
                return v * 2

        else:
            f = torch.neg
        return f(x)

    return fn, numbers()


@program(graphs=1, later=1)
def default_evaluated_once():
    def fn(x, n):
        log = []

        def note(v):
            log.append(v)
            return v

        def inner(a=note(n), *, b=note(n + 1)):
            return a + b

        return inner() + inner(1), log, x * 2

    return fn, numbers()


@program(graphs=1, later=1)
def unbound_closure_variable():
    def fn(x, n):
        def use():
            return late

        early = attempt(use)
        late = n
        result = use()
        del late
        return early, result, attempt(use), x + 1

    return fn, numbers()


@program(graphs=1, later=2)
def cells_read_and_written_by_name():
    def make(k):
        def inner(v):
            nonlocal k
            k += 1
            return v * k

        return inner

    scale = make(1)

    def fn(x, n):
        y = scale(x)
        cell = scale.__closure__[0]
        before = cell.cell_contents
        cell.cell_contents = before + n
        return y + scale(x), before, cell.cell_contents

    return fn, numbers(), [scale]
