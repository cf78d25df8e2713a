"""Graph breaks inside of special methods: operators, items, lengths, truth, context managers."""

import collections

import torch
from torch import nn

import smelt
from smelt.report import inspect
from tests.harness.catalogue import INLINED, Unlike, program, since, tensor

JUMPS = {"3.12": Unlike("conditions at the end of a loop, `and` and `or` are other jumps")}


@smelt.disable
def plus_one(v):
    return v + 1


@smelt.disable
def fails_value(n):
    raise ValueError(f"value {n}")


def xs():
    return [(tensor(3), 1), (tensor(3), 1), (tensor(3), 2), (tensor(3), 0)]


class V:
    def __init__(self, n):
        self.n = n

    def __add__(self, other):
        smelt.graph_break()
        return V(self.n + other.n) if isinstance(other, V) else NotImplemented

    def __radd__(self, other):
        smelt.graph_break()
        return other + self.n

    def __sub__(self, other):
        smelt.graph_break()
        return NotImplemented

    def __mul__(self, other):
        smelt.graph_break()
        return V(self.n * plus_one(other))

    def __imul__(self, other):
        smelt.graph_break()
        self.n = self.n * other
        return self

    def __ifloordiv__(self, other):
        smelt.graph_break()
        return NotImplemented

    def __floordiv__(self, other):
        smelt.graph_break()
        return self.n // 2

    def __eq__(self, other):
        smelt.graph_break()
        return NotImplemented if not isinstance(other, V) else self.n == other.n

    def __ne__(self, other):
        smelt.graph_break()
        return 5

    def __lt__(self, other):
        smelt.graph_break()
        return NotImplemented if not isinstance(other, V) else self.n < other.n

    def __neg__(self):
        smelt.graph_break()
        return V(-self.n)

    def __invert__(self):
        smelt.graph_break()
        return 7

    def __pow__(self, other):
        smelt.graph_break()
        return NotImplemented

    def __ipow__(self, other):
        smelt.graph_break()
        return NotImplemented

    def __matmul__(self, other):
        smelt.graph_break()
        return other * self.n

    __hash__ = None


def message(f):
    try:
        return f()
    except TypeError as e:
        return str(e)


@program(graphs=4, later=4, breaks=["disabled-function"] + ["graph-break-requested"] * 5)
def arithmetic():
    def fn(x, n):
        a, b = V(n), V(n + 1)
        y = x * (a + b).n
        z = y + (a * n).n + (-b).n + ~a
        return z * 2

    return fn, xs()


@program(graphs=2, later=2, breaks=["graph-break-requested"] * 4)
def reflected():
    def fn(x, n):
        a = V(n)
        return x + a, 3 + a, 2.5 + a, a @ x

    return fn, xs()


@program(graphs=1, later=1, breaks=["graph-break-requested"] * 5)
def reflected_of_other():
    class W:
        def __rsub__(self, other):
            smelt.graph_break()
            return other.n * 10

        def __rmul__(self, other):
            return 1

    class Sub(V):
        def __radd__(self, other):
            smelt.graph_break()
            return "sub"

        def __rsub__(self, other):
            smelt.graph_break()
            return NotImplemented

    def fn(x, n):
        a = V(n)
        return x * (a - W()), a + Sub(n), message(lambda: a - Sub(n))

    return fn, xs()


@program(graphs=1, later=1, breaks=[*["graph-break-requested"] * 6, "tensor-subclass"])
def refused_operators():
    def fn(x, n):
        a = V(n)
        return (
            x + 1,
            message(lambda: a - 1),
            message(lambda: a - a),
            message(lambda: a**2),
            message(lambda: a < 3),
            message(lambda: a + "s"),
            message(lambda: a - x),
        )

    return fn, xs()


@program(graphs=1, later=1, breaks=["graph-break-requested", "graph-break-requested"])
def refused_in_place():
    def f(a):
        a **= 2
        return a

    def fn(x, n):
        a = V(n)
        return x + 1, message(lambda: f(a))

    return fn, xs()


@program(
    graphs=1, later=1, breaks=["graph-break-requested", "graph-break-requested", "graph-break-requested"]
)
def in_place():
    def fn(x, n):
        a = V(n + 3)
        b = a
        a *= 2
        same = a is b
        b //= 2
        return x * a.n, same, b

    return fn, xs()


@program(graphs=3, later=1, breaks=["graph-break-requested"] * 11)
def comparisons():
    def fn(x, n):
        a, b = V(n), V(1)
        out = [a == b, a != b, a < b, a > b, a == 3, 3 == a, [a] == [b], a in [1, b]]
        if a == b:
            x = x + 1
        if a != b:
            x = x * 2
        if not a < b:
            x = x - 3
        return x, out

    return fn, xs()


@program(
    graphs=4, later=1, breaks=["graph-break-requested", "graph-break-requested", "graph-break-requested"]
)
def tensor_valued_comparison():
    class T:
        def __init__(self, x):
            self.x = x

        def __lt__(self, other):
            smelt.graph_break()
            return self.x < other.x

        def __eq__(self, other):
            smelt.graph_break()
            return self.x == other.x

    def fn(x, n):
        a, b = T(x), T(x * n)
        return (a < b), (a > b), (a == b)

    return fn, xs()


class Box:
    def __init__(self, items):
        self.items = items
        self.log = []

    def __getitem__(self, key):
        self.log.append(str(key))
        smelt.graph_break()
        return self.items[key]

    def __setitem__(self, key, value):
        smelt.graph_break()
        self.items[key] = value

    def __delitem__(self, key):
        smelt.graph_break()
        del self.items[key]

    def __len__(self):
        smelt.graph_break()
        return len(self.items)

    def __contains__(self, value):
        smelt.graph_break()
        return len([i for i in self.items if i is value])

    def __call__(self, x):
        smelt.graph_break()
        return x * len(self.items)


@program(graphs=4, breaks=["graph-break-requested"] * 10)
def items():
    def fn(x, n):
        b = Box([x, x * 2, x * 3])
        b[0] = b[1] + b[-1]
        b[1:] = [b[0]]
        y = b[0] * 2
        del b[0]
        b[0] += 1
        return y, b.items, b.log, b[0:1]

    return fn, xs()


@program(graphs=1, later=1, breaks=["graph-break-requested"])
def items_that_raise():
    def fn(x, n):
        b = Box([x])
        try:
            return b[n]
        except IndexError as e:
            return x * 3, str(e), b.log

    return fn, xs()


AT_ITS_BEGINNING = "the condition of a `while` loop is at its beginning only"


@program(
    graphs=2,
    later=4,
    breaks=["graph-break-requested"] * 8,
    unlike=JUMPS | since("3.14", AT_ITS_BEGINNING, 2, later=4, breaks=["graph-break-requested"] * 6),
)
def lengths():
    def fn(x, n):
        b = Box([x] * n)
        y = x * len(b)
        if b:
            y = y + 1
        if not b:
            y = y * 2
        while b:
            b.items.pop()
        return y, bool(b)

    return fn, xs()


@program(
    graphs=2,
    later=3,
    breaks=["graph-break-requested"] * 5,
    unlike=JUMPS | since("3.13", INLINED, 2, later=3, breaks=["graph-break-requested"] * 7),
)
def containment():
    def fn(x, n):
        b = Box([x, 1])
        y = x * 2 if x in b else x
        if n not in b:
            y = y + 1
        return y, n in b, n not in b, b(x)

    return fn, xs()


@program(graphs=2, later=3, breaks=["graph-break-requested"] * 15, unlike=JUMPS)
def truth():
    class T:
        def __init__(self, n):
            self.n = n

        def __bool__(self):
            smelt.graph_break()
            return self.n > 1

    class Bad:
        def __bool__(self):
            smelt.graph_break()
            return 1

    class Len:
        def __len__(self):
            smelt.graph_break()
            return -1

    def fn(x, n):
        t = T(n)
        if t:
            x = x + 1
        if not t:
            x = x * 2
        r = not t
        y = x if t else x - 1

        def trying(f):
            try:
                return f()
            except (TypeError, ValueError) as e:
                return type(e).__name__, str(e)

        while t:
            t.n -= 1
        return (
            x,
            r,
            y,
            bool(t),
            trying(lambda: not Bad()),
            trying(lambda: len(Len())),
            trying(lambda: 1 if Len() else 2),
            trying(lambda: bool(Bad())),
        )

    return fn, xs()


@program(
    graphs=1, later=2, breaks=["graph-break-requested", "graph-break-requested", "graph-break-requested"]
)
def missing_items():
    class D(dict):
        def __missing__(self, key):
            smelt.graph_break()
            self[key] = value = key * 2
            return value

    def fn(x, n):
        d = D()

        def make():
            smelt.graph_break()
            return [n]

        dd = collections.defaultdict(make)
        dd["a"].append(3)
        dd["a"].append(4)
        return x * d[n] * d[n], dict(d), dd["a"], list(dd), dd["b"] is dd["b"]

    return fn, xs()


@program(graphs=2, later=3, breaks=["graph-break-requested"] * 10)
def managers():
    class M:
        def __init__(self):
            self.log = []

        def __enter__(self):
            self.log.append("enter")
            smelt.graph_break()
            return self.log

        def __exit__(self, kind, error, trace):
            self.log.append(kind and kind.__name__)
            smelt.graph_break()
            return kind is KeyError

    def fn(x, n):
        m = M()
        with m as log:
            x = x * 2
            log.append("in")
        with M() as a, M() as b:
            x = x + 1
        try:
            with m:
                if n:
                    {}[n]
                x = x + 1
        except KeyError:
            x = x - 1
        return x, m.log, a, b

    return fn, xs()


@program(graphs=3, later=3, breaks=["graph-break-requested", "graph-break-requested"])
def manager_that_changes_grad_mode():
    class M:
        def __enter__(self):
            self.prev = torch.is_grad_enabled()
            smelt.graph_break()
            torch.set_grad_enabled(False)
            return self

        def __exit__(self, *error):
            smelt.graph_break()
            torch.set_grad_enabled(self.prev)

    def fn(x, n):
        w = x.detach().requires_grad_()
        with M():
            y = w * n
        z = w * n
        return y.requires_grad, z.requires_grad, y + 1

    return fn, xs()


@program(graphs=1, breaks=["disabled-function"])
def enter_that_raises():
    class M:
        def __enter__(self):
            fails_value(1)

        def __exit__(self, *error):
            raise RuntimeError("never")

    def fn(x, n):
        try:
            with M():
                x = x + 100
        except ValueError as e:
            return x + 1, str(e), repr(e.__context__)

    return fn, xs()


@program(graphs=1, breaks=["graph-break-requested"] * 7)
def functions_about_attributes():
    class A:
        def __init__(self, n):
            self.n = n

        @property
        def p(self):
            smelt.graph_break()
            if self.n == 0:
                raise AttributeError("no p")
            return self.n

        @p.setter
        def p(self, value):
            smelt.graph_break()
            self.n = value

        @p.deleter
        def p(self):
            smelt.graph_break()
            self.n = 0

    def fn(x, n):
        a = A(n)
        out = [
            getattr(a, "p", -1),
            hasattr(a, "p"),
            hasattr(a, "q"),
            getattr(a, "q", 3),
            setattr(a, "p", 5),
            getattr(a, "p"),
            delattr(a, "p"),
            a.n,
            hasattr(a, "p"),
        ]
        object.__setattr__(a, "p", 3)
        return x * a.n, out, a.__dict__

    return fn, xs()


@program(graphs=1, breaks=["disabled-function", "disabled-function"])
def getattr_of_a_property_that_raises_other():
    class A:
        @property
        def p(self):
            fails_value(1)

    def fn(x, n):
        a = A()

        def message(f):
            try:
                return f()
            except ValueError as e:
                return str(e)

        return x * 2, message(lambda: getattr(a, "p", 1)), message(lambda: hasattr(a, "p"))

    return fn, xs()


@program(graphs=4, later=1, breaks=["graph-break-requested"] * 6)
def break_in_a_break():
    class A:
        def __init__(self, x):
            self.x = x

        def __add__(self, other):
            a = self.twice
            b = other.twice
            return A(a + b)

        @property
        def twice(self):
            y = self.x * 2
            smelt.graph_break()
            return Box([y])[0]

    def fn(x, n):
        return (A(x) + A(x + n)).twice + 1

    return fn, xs()


@program(graphs=1, later=2, breaks=["graph-break-requested"] * 4, unlike=JUMPS)
def in_loops_and_handlers():
    class A:
        def __init__(self, n):
            self.n = n

        def __getitem__(self, i):
            smelt.graph_break()
            if i >= self.n:
                raise IndexError(i)
            return i * 2

    def fn(x, n):
        a = A(n)
        total = i = 0
        while i < 4:
            try:
                total += a[i]
            except IndexError as e:
                total += e.args[0] * 100
            finally:
                total += 1
            i += 1
        return x * total

    return fn, xs()


@program(graphs=1, later=1)
def data_dependent_in_special_methods():
    class Gate(nn.Module):
        def __init__(self, limit):
            super().__init__()
            self.limit = nn.Parameter(torch.tensor(limit))

        @property
        def is_open(self):
            return bool(self.limit > 0)

        def forward(self, x, n):
            if self.is_open:
                x = x * 2
            return x + n

    return Gate(1.5), xs()


@program(graphs=1, later=2, breaks=["disabled-function"])
def missing_item_that_a_guard_asks_for():
    class D(dict):
        @smelt.disable
        def __missing__(self, key):
            self[key] = value = key * 2
            return value

    def fn(x, n):
        d = D()
        return x * d[n] * d[n], dict(d)

    return fn, xs()


@program(graphs=0, breaks=["disabled-function", "disabled-function"])
def default_that_a_guard_asks_for():
    @smelt.disable
    def make():
        return [1]

    def fn(x, n):
        dd = collections.defaultdict(make)
        dd[n].append(3)
        dd[n].append(4)
        return x, dict(dd), dd[n + 1] is dd[n + 1]

    return fn, xs()


@program(
    graphs=1,
    later=1,
    breaks=["graph-break-requested"] * 6,
    unlike=JUMPS | since("3.13", JUMPS["3.12"], 1, later=1, breaks=["graph-break-requested"] * 4),
)
def and_or():
    class T:
        def __init__(self, n):
            self.n = n

        def __bool__(self):
            smelt.graph_break()
            return self.n > 1

    def fn(x, n):
        t = T(n)
        return x * n, (t and 3) is t, (t or 4) is t, (t and not t) is t

    return fn, xs()


class BreaksFirst(nn.Sequential):
    def __init__(self, *layers):
        smelt.graph_break()
        super().__init__(*layers)


def test_a_module_whose_init_breaks_is_called():
    def fn(x):
        return BreaksFirst(nn.ReLU(), nn.Tanh())(x)

    compiled, x = smelt.compile(fn), tensor(3)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), fn(x))
    kinds = {reason.kind.id for reason in inspect.reasons(compiled)}
    assert "graph-break-requested" in kinds and "internal-error" not in kinds
