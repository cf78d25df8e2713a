"""Programs with graph breaks: at any instruction, at any depth, with anything alive.

PYTEST_DONT_REWRITE: the `assert` statements of the programs are part of what is tested.
"""

from __future__ import annotations

import contextlib

import torch
from torch import nn

import smelt
from tests.harness.catalogue import BREAKS, INLINED, Changing, for_each_control_flow, program


def calls(*shapes):
    torch.manual_seed(1)
    return [(torch.randn(*shape),) for shape in shapes]


THREE = ((3, 4), (3, 4), (3, 4))


@for_each_control_flow(dict(graphs=1), dict(graphs=2, later=1, breaks=["data-dependent-condition"]))
def tensor_condition():
    def fn(x):
        y = x + 1
        if y.sum() > 0:
            return y * 2
        return y - 2

    return fn, [(torch.ones(3),), (-torch.ones(3) * 4,), (torch.ones(3),)]


@program(graphs=3, breaks=["data-dependent-condition"] * 2, options=BREAKS)
def condition_in_a_loop():
    def fn(x):
        steps = 0
        while x.sum() < 100:
            x = x * 2 + 1
            steps += 1
        return x, steps

    return fn, [(torch.ones(3),), (torch.zeros(3),), (torch.ones(3) * 50,)]


@program(graphs=3, later=1, breaks=["data-dependent-condition", "data-dependent-condition"], options=BREAKS)
def break_and_continue():
    def fn(x):
        out = []
        for i in range(10):
            if i % 3 == 1:
                continue
            x = x + i
            if x.sum() > 40:
                break
            out.append(x * 2)
        else:
            out.append("whole")
        return x, out

    return fn, [(torch.ones(3),), (torch.ones(3) * -100,), (torch.ones(3),)]


@for_each_control_flow(
    dict(graphs=1), dict(graphs=6, breaks=["data-dependent-condition", "data-dependent-condition"])
)
def nested_loops():
    def fn(x):
        for i in range(3):
            for j in range(3):
                x = x + i * j
                if x.max() > 6:
                    break
            x = x - 1
        return x

    return fn, calls(*THREE)


@program(graphs=3, later=2, breaks=["data-dependent-value", "data-dependent-value"])
def item_and_arithmetic():
    def fn(x):
        a = x.sum().tolist()
        b = (x * 2).sum().tolist()
        return x * a + b, a - b

    return fn, calls(*THREE)


@program(graphs=1, later=1, breaks=["data-dependent-value"])
def tolist():
    def fn(x):
        values = x.tolist()
        return x + len(values), [v[0] for v in values]

    return fn, calls(*THREE)


def deep(depth, x):
    if depth == 0:
        v = x.sum().tolist()
        return x + v
    y = x.sin()
    r = deep(depth - 1, y + depth)
    return r * y


@program(graphs=2, later=1, breaks=["data-dependent-value"])
def five_calls_deep():
    def fn(x):
        return deep(5, x) + 1

    return fn, calls(*THREE)


@program(graphs=4, later=3, breaks=["data-dependent-value", "data-dependent-value", "data-dependent-value"])
def values_on_the_stack():
    def fn(x):
        return x.sin() + (x * x.sum().tolist()) * (x - x.max().tolist()) - [x, x.min().tolist()][1]

    return fn, calls(*THREE)


@program(graphs=3, breaks=["graph-break-requested", "graph-break-requested"])
def keyword_arguments():
    def scale(x, *, by, and_then=0.0):
        smelt.graph_break()
        return x * by + and_then

    def fn(x):
        return scale(x, by=x.sum(), and_then=2.0) + scale(by=2, x=x, **{"and_then": 1.0})

    return fn, calls(*THREE)


@program(graphs=2, later=1, breaks=["data-dependent-condition"])
def break_inside_try():
    def fn(x):
        try:
            y = x + 1
            if y.sum() > 0:
                raise ValueError("positive")
            return y
        except ValueError as e:
            return x - 1, str(e)
        finally:
            x.add_(1)

    return fn, [(torch.ones(3),), (-torch.ones(3) * 4,), (torch.ones(3),)]


@program(graphs=2, later=1, breaks=["data-dependent-value"])
def the_break_raises():
    def fn(x, d):
        try:
            y = x + 1
            n = int(y.sum().tolist())
            z = [1, 2, 3][n]
        except IndexError as e:
            return x - 1, str(e)
        return y * z

    return fn, [(torch.zeros(1), 0), (torch.ones(1) * 7, 0), (torch.zeros(1), 0)]


@program(graphs=2, later=2, breaks=["disabled-function"])
def the_break_raises_in_a_callee():
    @smelt.disable
    def fails(n):
        raise KeyError(n)

    def inner(x, n):
        y = x * 2
        return fails(n) + y

    def middle(x, n):
        try:
            return inner(x + 1, n)
        except KeyError as e:
            return x * 10, e.args

    def fn(x, n):
        return middle(x - 1, n), x

    return fn, [(torch.ones(3), 1), (torch.ones(3), 2), (torch.ones(3), 1)]


@program(graphs=2, later=1, breaks=["data-dependent-value"])
def an_exception_leaves_after_a_break():
    log = []

    def fn(x):
        log.append(x.sum().tolist())
        y = x + 1
        if y.sum() > 0:
            log.append("raises")
            raise RuntimeError(f"sum {y.shape}")
        return y

    return fn, [(torch.ones(3),), (-torch.ones(3) * 4,), (torch.ones(3),)], log


@program(graphs=2, breaks=["data-dependent-condition"])
def inside_a_handler():
    def fn(x):
        try:
            raise ValueError("first")
        except ValueError as e:
            y = x * 2
            if y.sum() > 0:
                y = y + len(str(e))
            try:
                raise
            except ValueError as again:
                return y, again is e, str(again)

    return fn, [(torch.ones(3),), (-torch.ones(3) * 4,), (torch.ones(3),)]


@program(graphs=2, later=1, breaks=["data-dependent-value"])
def raise_again_after_a_break():
    def fn(x):
        try:
            try:
                raise ValueError("first")
            finally:
                x = x + x.sum().tolist()
        except ValueError as e:
            return x, e.args, e.__context__

    return fn, calls(*THREE)


@program(graphs=2, breaks=["data-dependent-value"])
def inside_no_grad():
    def fn(x):
        with torch.no_grad():
            y = x * 2
            v = y.sum().tolist()
            z = y + v
        w = x * 3
        return z, w, torch.is_grad_enabled()

    return fn, [(torch.ones(3, requires_grad=True),) for _ in range(3)]


@program(graphs=2, breaks=["data-dependent-value"])
def grad_mode_left_switched_off_by_a_break():
    def fn(x):
        torch.set_grad_enabled(False)
        v = x.sum().tolist()
        inside = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        return x * v, inside

    return fn, [(torch.ones(3, requires_grad=True),) for _ in range(3)]


@program(graphs=2, breaks=["data-dependent-value"])
def inside_autocast():
    def fn(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
            v = y.sum().tolist()
            z = y @ w
        return z, v, x @ w

    return fn, [(torch.ones(4, 4), torch.ones(4, 4)) for _ in range(3)]


@contextlib.contextmanager
def managed(log, x):
    log.append("enter")
    try:
        yield x * 2
    finally:
        log.append("exit")


@program(graphs=2, later=1, breaks=["data-dependent-value", "unsupported-object"])
def inside_a_generator_manager():
    log = []

    def fn(x):
        with managed(log, x) as y:
            v = y.sum().tolist()
            z = y + v
        return z

    return fn, calls(*THREE), log


class Manager:
    def __init__(self):
        self.events = []

    def __enter__(self):
        self.events.append("enter")
        return self

    def __exit__(self, kind, error, tb):
        self.events.append(("exit", kind.__name__ if kind else None))
        return kind is ValueError


@program(graphs=1)
def inside_a_manager_that_suppresses():
    manager = Manager()

    def fn(x):
        with manager as m:
            if x.sum() > 0:
                m.events.append("raises")
                raise ValueError
            x = x + 1
        return x * 2

    return fn, [(torch.ones(3),), (-torch.ones(3) * 4,), (torch.ones(3),)], manager


@program(graphs=2, later=1, breaks=["data-dependent-value"])
def closures_and_cells():
    def fn(x):
        count = 0

        def bump(y):
            nonlocal count
            count += 1
            return y * count

        a = bump(x)
        v = a.sum().tolist()
        b = bump(x + v)
        return a, b, count, bump

    def whole(x):
        a, b, count, bump = fn(x)
        return a, b, count, bump(x)

    return whole, calls(*THREE)


@program(graphs=2, later=2, breaks=["data-dependent-value"])
def outer_cells():
    total = 0.0

    def fn(x):
        nonlocal total
        total = total + 1.0
        v = x.sum().tolist()
        total = total + v
        return x * 2

    def state():
        return total

    return fn, calls(*THREE), state


@program(graphs=3, later=1, breaks=["data-dependent-value", "unsupported-call", "unsupported-call"])
def generator_across_a_break():
    def steps(x):
        got = 0
        while True:
            x = x + 1
            got = (yield x * got) or got + 1

    def fn(x):
        g = steps(x)
        a = next(g)
        b = next(g)
        v = b.sum().tolist()
        c = g.send(5)
        g.close()
        return a, b, c + v

    return fn, calls(*THREE)


@program(graphs=0, eager=["data-dependent-value"])
def generator_with_try_across_a_break():
    def numbers(log):
        try:
            yield 1
            yield 2
            yield 3
        except ValueError as e:
            log.append(str(e))
            yield 10
        finally:
            log.append("done")

    def fn(x):
        log = []
        g = numbers(log)
        a = next(g)
        v = x.sum().tolist()
        b = g.throw(ValueError("thrown"))
        rest = list(g)
        return x * a + b + v, rest, log

    return fn, calls(*THREE)


@program(
    graphs=7,
    later=1,
    breaks=["data-dependent-condition", "data-dependent-condition", "unsupported-object"],
    options=BREAKS,
)
def break_in_a_generator():
    def numbers(x):
        for i in range(3):
            yield x + i
            if x.sum() > 0:
                yield x * i

    def fn(x):
        return [y * 2 for y in numbers(x)]

    return fn, [(torch.ones(3),), (-torch.ones(3) * 4,), (torch.ones(3),)]


@program(
    graphs=6,
    later=6,
    breaks=[
        "data-dependent-value",
        "data-dependent-value",
        "data-dependent-value",
        "data-dependent-value",
        "data-dependent-value",
        "data-dependent-value",
        "unsupported-object",
        "unsupported-object",
    ],
    unlike={"3.12": INLINED},
)
def comprehensions():
    def fn(x):
        a = [x + i * (x.abs().sum().tolist() > 0) for i in range(3)]
        b = {i: v.sum().tolist() for i, v in enumerate(a)}
        c = {round(v) for v in b.values()}
        return a, b, c

    return fn, calls(*THREE)


@program(graphs=3, later=1, breaks=["data-dependent-value", "unsupported-object"])
def half_consumed_iterators():
    def fn(x):
        pairs = zip(enumerate([x, x + 1, x + 2]), "abc")
        first = next(pairs)
        mapped = map(lambda t: t * 2, [x, x + 1, x + 2])
        head = next(mapped)
        keys = iter({"p": 1, "q": 2})
        key = next(keys)
        v = x.sum().tolist()
        return first, head + v, list(pairs), list(mapped), key, list(keys)

    return fn, calls(*THREE)


@program(graphs=0, eager=["data-dependent-value"])
def class_made_inside():
    def fn(x):
        class Box:
            def __init__(self, v):
                self.v = v

            def get(self):
                return self.v * 2

        box = Box(x)
        n = x.sum().tolist()
        return box.get() + n

    return fn, calls(*THREE)


class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b


@program(graphs=1, breaks=["data-dependent-value"])
def objects_with_aliases_and_cycles():
    def fn(x):
        p = Pair(x, [x])
        p.me = p
        q = [p, p.b]
        n = x.sum().tolist()
        q[1].append(n)
        return p.b is q[1], p.me is p, p.b, q[0] is p

    return fn, calls(*THREE)


@program(graphs=2, later=3, breaks=["data-dependent-condition"], options=BREAKS)
def effects_before_and_after():
    state = {"n": 0, "log": []}

    def fn(x):
        state["n"] += 1
        state["log"].append(x.shape[0])
        if x.sum() > 0:
            state["log"].append("positive")
        state["n"] += 10
        return x * state["n"]

    return fn, [(torch.ones(3),), (-torch.ones(3) * 4,), (torch.ones(3),)], state


@program(graphs=2, breaks=["data-dependent-value"])
def argument_mutated_around_a_break():
    def fn(x, box):
        x.add_(1)
        box.append(x * 2)
        v = x.sum().tolist()
        x.mul_(2)
        box.append(v)
        return x

    return fn, [(torch.ones(3), []) for _ in range(3)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        h = self.a(x).relu()
        self.seen += 1
        if h.sum() > 3:
            h = h * 0.5
        return self.b(h)


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList([Net() for _ in range(3)])

    def forward(self, x):
        for net in self.nets:
            x = x + net(x)
        return x


@for_each_control_flow(dict(graphs=1), dict(graphs=2, later=1, breaks=["data-dependent-condition"]))
def module_with_a_break():
    net = Net()
    return net, calls(*THREE), net


@for_each_control_flow(dict(graphs=1), dict(graphs=4, later=2, breaks=["data-dependent-condition"] * 3))
def modules_with_breaks_in_a_loop():
    net = Outer()
    return net, calls(*THREE), net


@program(graphs=2, breaks=["data-dependent-value"])
def gradients_across_a_break():
    def fn(x):
        y = x * 2
        v = y.sum().tolist()
        return (y * v).sin()

    return fn, [(torch.ones(3, requires_grad=True),) for _ in range(3)]


@program(graphs=2, later=1, breaks=["data-dependent-value"])
def super_after_a_break():
    class Base:
        def f(self, x):
            return x + 1

    class Derived(Base):
        def f(self, x):
            y = x * 2
            v = y.sum().tolist()
            return super().f(y) + v

    obj = Derived()

    def fn(x):
        return obj.f(x)

    return fn, calls(*THREE)


@program(graphs=2, breaks=["disabled-function"])
def disabled_function():
    seen = []

    @smelt.disable
    def look(x):
        seen.append(x.sum().tolist())
        return x.sum()

    def fn(x):
        return look(x + 1) * x

    return fn, calls(*THREE), seen


@program(graphs=2, breaks=["data-dependent-value", "data-dependent-value"])
def callback_with_a_break():
    def fn(x):
        return sorted([x, x * -1, x + 1], key=lambda t: t.sum().tolist())

    return fn, calls(*THREE)


@program(graphs=2, later=1, breaks=["data-dependent-value"])
def property_with_a_break():
    class Box:
        def __init__(self, v):
            self.v = v

        @property
        def total(self):
            return self.v.sum().tolist()

    def fn(x):
        return Box(x + 1).total * x

    return fn, calls(*THREE)


@program(graphs=2, later=1, breaks=["data-dependent-value"])
def operators_with_breaks():
    class Meter:
        def __init__(self, v):
            self.v = v

        def __add__(self, other):
            return Meter(self.v + other.sum().tolist())

        def __bool__(self):
            return bool(self.v > 0)

    def fn(x):
        m = Meter(1) + x
        return x * 2 if m else x * 3

    return fn, [(torch.ones(3),), (-torch.ones(3) * 4,), (torch.ones(3),)]


@program(graphs=1)
def data_dependent_shape():
    def fn(x):
        y = x[x > 0]
        z = torch.nonzero(x)
        return y * 2, z.shape, y.sum()

    return fn, calls(*THREE)


@program(graphs=1)
def tensor_in_control_of_a_range():
    def fn(x, n):
        for i in range(int(n)):
            x = x + i
        return x

    return fn, [(torch.ones(3), torch.tensor(k)) for k in (2, 3, 2)]


@program(graphs=1)
def assertion_on_values():
    def fn(x):
        assert (x > -100).all(), "too small"
        return x + 1

    return fn, [(torch.ones(3),), (-torch.ones(3) * 400,), (torch.ones(3),)]


@program(graphs=1, later=1, breaks=["data-dependent-value", "data-dependent-value"])
def star_expressions():
    def fn(x):
        head, *rest = x.tolist()
        return [*rest, head], {**{"a": x}, "b": x.sum().tolist()}, x

    return fn, calls((4,), (4,), (4,))


@program(
    graphs=4,
    later=3,
    breaks=("data-dependent-value", "data-dependent-value", "data-dependent-value"),
)
def subscripts_and_attributes():
    class Box:
        pass

    def fn(x):
        box, table = Box(), {}
        box.value = x.sum().tolist()
        table[int(x.numel())] = x.mean().tolist()
        del table[x.numel()]
        table["k"] = x.max().tolist()
        return box.value, table, x[int(x.argmax().tolist()) % 3]

    return fn, calls(*THREE)


@for_each_control_flow(
    dict(graphs=2, later=2, breaks=["data-dependent-value"]),
    dict(graphs=2, later=3, breaks=["data-dependent-condition", "data-dependent-value"]),
)
def walrus_and_chained_comparison():
    def fn(x):
        if (n := x.sum().tolist()) > 0 and -100 < x.max() < 100:
            return x * n
        return x - n

    return fn, calls(*THREE)


@program(graphs=1, later=3, breaks=("data-dependent-value",))
def match_on_a_value():
    def fn(x):
        match int(x.sum().tolist()) % 3:
            case 0:
                return x
            case 1:
                return x + 1
            case n:
                return x * n

    return fn, [(torch.ones(k),) for k in (3, 4, 5)]


@program(graphs=2, breaks=["data-dependent-condition", "data-dependent-condition"], options=BREAKS)
def bounded_graphs_for_a_thousand_iterations():
    def fn(x):
        for i in range(1000):
            x = x * 1.01 + i
            if x.sum() > 1e9:
                x = x / 2
        return x

    return fn, [(torch.ones(3, dtype=torch.float64),) for _ in range(3)]


class Counts:
    base = 2


@program(graphs=2, later=1, breaks=["data-dependent-condition"])
def a_dictionary_of_an_instance_is_held_over_a_break():
    def fn(x):
        counts, empty = Counts(), Counts()
        counts.steps = 1
        own, other = counts.__dict__, vars(empty)
        if x.sum() > 0:
            own["steps"] += 1
            other["steps"] = x
        return x * own["steps"], vars(counts) is own, vars(empty) is other, sorted(vars(empty))

    return fn, calls(*THREE)


@program(graphs=2, later=1, breaks=["data-dependent-condition", *["unsupported-object"] * 3])
def iterators_over_sets_are_those_of_sets():
    outside = set()
    for i in range(40):
        outside.add(i * 7919 % 1009)
    for number in list(outside)[:35]:
        outside.discard(number)

    def fn(x):
        inside, outer = iter({i * 300 % 1009 for i in range(9)}), iter(outside)
        first = next(inside), next(outer)
        if x.sum() > 0:
            first = (*first, 1)
        kinds = type(inside), type(outer)
        return x * first[0], first, kinds, list(inside), list(outer)

    return fn, calls(*THREE)


@program(graphs=1)
def an_outside_set_that_may_change_keeps_the_order_of_its_elements():
    outside = {i * 7919 % 1009 for i in range(40)}
    for number in list(outside)[:30]:
        outside.discard(number)

    def fn(x):
        outside.discard(2000)
        return x + 1, list(outside), [number for number in outside]

    return fn, calls(*THREE)


TEXT = " ".join(["not", "a", "name"])


@program(graphs=1, breaks=["graph-break-requested"])
def texts_are_the_same_objects_behind_a_break():
    def fn(x):
        text, made = TEXT, "".join(["not", "_", "kept"])
        smelt.graph_break()
        return x + 1, text is TEXT, made is text, {text: "not a name"}, made

    return fn, [(torch.ones(3),)] * 3, lambda: fn(torch.ones(3))[3].popitem()[0] is TEXT


@program(graphs=1)
def texts_that_are_returned_are_the_programs_own():
    found = []

    def fn(x):
        found.append(TEXT)
        return x * 2, TEXT

    return fn, [(torch.ones(3),)] * 3, lambda: [text is TEXT for text in found]


class Limits:
    count, rate, steps, names = 10**6, 1.5, (1, 2.5), frozenset(["a", "b"])


@program(graphs=2, later=2, breaks=["graph-break-requested"])
def constants_behind_a_break_are_the_same_objects():
    limits = Limits()
    vars(limits).update(count=10**6 + 1, rate=2.5, steps=(1, 3.5), names=frozenset([1, 2]))

    def fn(x):
        count, rate, steps, names = limits.count, limits.rate, limits.steps, limits.names
        of_class, far = Limits.steps, 1000
        x = x + 1
        smelt.graph_break()
        kept = (count is limits.count, rate is limits.rate, steps is limits.steps, names is limits.names)
        return x * 2, kept, of_class is Limits.steps, far is 1000  # noqa: F632

    def replace():
        limits.count, limits.steps = int(str(limits.count)), tuple([1, 3.5])

    return fn, Changing([(torch.ones(3),)] * 4, {1: replace, 2: replace})


@program(graphs=1)
def constants_that_are_returned_and_stored_are_the_same_objects():
    limits = Limits()

    def fn(x):
        vars(limits)["copy"] = limits.steps
        return x * 2, [limits.copy is limits.steps, limits.count, limits.names]

    def seen(x):
        y, (stays, count, names) = fn(x)
        return y, stays, count is limits.count, names is limits.names

    return seen, calls(*THREE)
