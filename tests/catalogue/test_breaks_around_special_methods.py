"""Graph breaks inside of special methods, with what stands around them: errors, weak references, modes, recursion, conditions."""

import contextlib
import functools
import sys
import weakref

import torch
from torch import nn

import smelt
from tests.harness.catalogue import Unlike, program, since, tensor

JUMPS = {"3.12": Unlike("conditions at the end of a loop are other jumps")}
AT_ITS_BEGINNING = "the condition of a `while` loop is at its beginning only"


def xs():
    return [(tensor(3), 1), (tensor(3), 1), (tensor(3), 2), (tensor(3), 0)]


@smelt.disable
def fails(n):
    if n == 1:
        raise KeyError(n)
    return n


@program(graphs=1, later=2, breaks=["disabled-function"])
def context_of_errors():
    class A:
        def __init__(self, n):
            try:
                fails(n)
            except KeyError as e:
                raise ValueError("init") from e
            self.n = n

    def fn(x, n):
        try:
            a = A(n)
        except ValueError as e:
            return x + 1, str(e), repr(e.__cause__), repr(e.__context__)
        return x * a.n

    return fn, xs()


@program(graphs=1, breaks=["graph-break-requested"], eager=["user-exception", "user-exception"])
def errors_leave_the_function():
    class A:
        @property
        def p(self):
            smelt.graph_break()
            raise LookupError("p")

    def fn(x, n):
        y = x * 2
        return y * A().p

    return fn, xs()


@program(graphs=1, breaks=["graph-break-requested"])
def weak_references_to_what_init_makes():
    class A:
        def __init__(self, x):
            self.ref = weakref.ref(self)
            smelt.graph_break()
            self.same = self.ref() is self

    def fn(x, n):
        a = A(x)
        return a.same, x * 2

    return fn, xs()


@program(graphs=1, later=1, breaks=["graph-break-requested"] * 5)
def singletons():
    class S:
        _one = None

        def __new__(cls, x):
            if cls._one is None:
                smelt.graph_break()
                cls._one = object.__new__(cls)
            return cls._one

        def __init__(self, x):
            smelt.graph_break()
            self.n = getattr(self, "n", 0) + 1

    def fn(x, n):
        a, b = S(x), S(x)
        return x * a.n, a is b

    return fn, xs(), lambda: S._one.__dict__ if S._one else None


@program(graphs=1, later=2, breaks=["graph-break-requested"])
def lazily_made_parameters():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self._w = None

        @property
        def w(self):
            if self._w is None:
                smelt.graph_break()
                self._w = torch.ones(3)
            return self._w

        def forward(self, x, n):
            return x * self.w + self.w * n

    return Lazy(), xs()


@program(graphs=1, later=1, breaks=["graph-break-requested"])
def partial_and_methods_of_properties():
    class A:
        def __init__(self, n):
            self.n = n

        @property
        def scaled(self):
            smelt.graph_break()
            return functools.partial(torch.mul, self.n + 1)

    def fn(x, n):
        return A(n).scaled(x)

    return fn, xs()


@program(graphs=3, later=3, breaks=["graph-break-requested"] * 6)
def under_no_grad_and_autocast():
    class A:
        def __init__(self, x):
            self.x = x * 2
            smelt.graph_break()
            self.mode = torch.is_grad_enabled()

        def __getitem__(self, i):
            smelt.graph_break()
            return torch.is_grad_enabled(), self.x * i

    def fn(x, n):
        w = x.detach().requires_grad_()
        with torch.no_grad():
            a = A(w)
            b = a[n]
        c = A(w)[n]
        return a.mode, b[0], b[1].requires_grad, c[0], c[1].requires_grad, c[1].sum()

    return fn, xs()


@program(graphs=1, breaks=["graph-break-requested", "graph-break-requested", "graph-break-requested"])
def handled_exceptions_around():
    class A:
        @property
        def p(self):
            smelt.graph_break()
            return sys.exc_info()[1] is not None

        def __init__(self):
            smelt.graph_break()

    def fn(x, n):
        try:
            raise ValueError
        except ValueError:
            a = A()
            q = a.p
        return x + 1, q, a.p

    return fn, xs()


@program(graphs=1, later=1, breaks=["graph-break-requested", "graph-break-requested"])
def generators_that_use_properties():
    class A:
        def __init__(self, n):
            self.n = n

        @property
        def p(self):
            smelt.graph_break()
            return self.n

        def __iter__(self):
            for i in range(3):
                yield self.p + i

    def fn(x, n):
        return x * sum(A(n)), list(A(n))

    return fn, xs()


@program(graphs=1, breaks=["graph-break-requested"] * 8)
def deep_recursion_of_properties():
    class N:
        def __init__(self, depth):
            self.child = N(depth - 1) if depth else None
            smelt.graph_break()
            self.depth = depth

        @property
        def total(self):
            below = self.child.total if self.child is not None else 0
            smelt.graph_break()
            return below + self.depth

    def fn(x, n):
        return x * N(3).total

    return fn, xs()


@program(graphs=0, eager=["graph-break-requested"])
def class_made_inside():
    def fn(x, n):
        class A:
            def __init__(self):
                smelt.graph_break()
                self.k = __class__.__name__

            @property
            def p(self):
                smelt.graph_break()
                return super().__hash__ is not None

        a = A()
        return x * n, a.k, a.p

    return fn, xs()


@program(graphs=1, later=1, breaks=["graph-break-requested"] * 4)
def exit_stack_and_closing():
    class M:
        def __init__(self, log):
            self.log = log

        def __enter__(self):
            smelt.graph_break()
            self.log.append("in")
            return self

        def __exit__(self, *e):
            smelt.graph_break()
            self.log.append("out")

    def fn(x, n):
        log = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(M(log))
            stack.enter_context(M(log))
            y = x * n
        return y, log

    return fn, xs()


@program(
    graphs=2,
    later=2,
    breaks=["graph-break-requested"] * 5,
    unlike=JUMPS | since("3.14", AT_ITS_BEGINNING, 2, later=1, breaks=["graph-break-requested"] * 4),
)
def conditions_in_asserts_and_loops():
    class T:
        def __init__(self, n):
            self.n = n

        def __bool__(self):
            smelt.graph_break()
            self.n -= 1
            return self.n > 0

    def fn(x, n):
        t = T(n + 3)
        assert t
        count = 0
        while t and count < 10:
            count += 1
            x = x + 1
        return x, count, t.n, (1 if t else 2)

    return fn, xs()


@program(graphs=1, later=1, breaks=["graph-break-requested"])
def stores_through_setattr_of_modules():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.k = 1

        def __setattr__(self, name, value):
            if name == "k":
                smelt.graph_break()
            super().__setattr__(name, value)

        def forward(self, x, n):
            self.k = self.k + n
            return x * self.k

    return M(), xs()
