"""Graph breaks inside of generators, `__next__`, and functions that code of C calls: each part is compiled by itself."""

import contextlib
import functools
import itertools
import re
import sys
import traceback

import torch

import smelt
from tests.harness.catalogue import BREAKS, INLINED, ITER_TWICE, Unlike, program, since, tensor, within

WHOLE = Unlike("every generator is protected as a whole, for which fewer of its parts are captured")


def calls():
    return [(tensor(3), 0), (tensor(3), 1), (tensor(3), 2), (tensor(3), 2)]


def values(x, n):
    for i in range(n + 1):
        y = x * i
        smelt.graph_break()
        yield y + 1


@program(
    graphs=4,
    later=4,
    breaks=[*["graph-break-requested"] * 3, "unsupported-object"],
)
def for_over_a_generator():
    def fn(x, n):
        total = x
        for v in values(x.cos(), n):
            total = total + v * 2
        return total

    return fn, calls()


@program(
    graphs=3,
    later=3,
    breaks=[*["graph-break-requested"] * 3, *["unsupported-object"] * 2],
)
def next_of_a_generator():
    def fn(x, n):
        made = values(x, n)
        return next(made) * 2, next(made, None), next(made, None)

    return fn, calls()


@program(
    graphs=4, later=6, breaks=["graph-break-requested", "graph-break-requested", "graph-break-requested"]
)
def list_of_a_generator():
    def fn(x, n):
        return torch.stack(list(values(x * 2, n))) + 1

    return fn, calls()


@program(graphs=5, breaks=["data-dependent-value", "data-dependent-value", "data-dependent-value"])
def generator_expression():
    def fn(x, n):
        return sum(((x * i).cos() * (x * 0 + i).sum().tolist() for i in range(3)), x) * 2

    return fn, calls()


WALKED_HERE = "the function itself walks over a generator that is the argument of `any` or `all`, and leaves it at a break"


@program(
    graphs=3,
    later=3,
    breaks=["data-dependent-condition"],
    unlike=since(
        "3.14", WALKED_HERE, 3, later=3, breaks=["data-dependent-condition"] * 2 + ["unsupported-object"]
    ),
)
def any_of_a_generator_expression():
    def fn(x, n):
        return any((x * i).sum() > n for i in range(3)), x + 1

    return fn, calls()


@program(
    graphs=4,
    later=4,
    breaks=[*["graph-break-requested"] * 4, *["unsupported-object"] * 2],
)
def yield_from_a_generator():
    def outer(x, n):
        yield x.sin()
        result = yield from values(x, n)
        yield x if result is None else result

    def fn(x, n):
        total = x
        for v in outer(x, n):
            total = total + v
        return total

    return fn, calls()


@program(
    graphs=3,
    later=1,
    breaks=[*["graph-break-requested"] * 4, *["unsupported-call"] * 2],
)
def value_of_yield_from():
    def inner(x):
        smelt.graph_break()
        got = yield x
        smelt.graph_break()
        return got + 1

    def outer(x):
        result = yield from inner(x)
        yield result * 2

    def fn(x, n):
        made = outer(x)
        first = next(made)
        return first, made.send(x + n)

    return fn, calls()


@program(
    graphs=2,
    later=3,
    breaks=[*["graph-break-requested"] * 6, *["unsupported-object"] * 3],
)
def generator_that_recurs():
    def walk(x, depth):
        if depth:
            yield from walk(x + 1, depth - 1)
            smelt.graph_break()
            yield x * depth
            yield from walk(x + 2, depth - 1)

    def fn(x, n):
        return [v + 1 for v in walk(x, n + 1)]

    return fn, calls()


@program(
    graphs=5,
    later=4,
    breaks=[*["graph-break-requested"] * 3, "unsupported-object"],
)
def two_generators_in_zip():
    def fn(x, n):
        return [a * b for a, b in zip(values(x, n), values(x + 1, n + 1))]

    return fn, calls()


@program(
    graphs=5,
    later=4,
    breaks=[*["graph-break-requested"] * 3, "unsupported-object"],
)
def generators_in_itertools():
    def fn(x, n):
        chained = itertools.chain(values(x, n), values(x + 1, n))
        return [v.cos() for _, v in enumerate(itertools.islice(chained, 3))]

    return fn, calls()


@program(
    graphs=3,
    later=2,
    breaks=[*["graph-break-requested"] * 2, *["unsupported-call"] * 2],
)
def send_into_a_generator():
    def summing(x):
        total = x
        while True:
            got = yield total
            smelt.graph_break()
            total = total + got

    def fn(x, n):
        made = summing(x)
        next(made)
        first = made.send(x * 2)
        second = made.send(x * n)
        made.close()
        return first, second

    return fn, calls()


@program(graphs=0, eager=["graph-break-requested"])
def throw_into_a_generator():
    def catching(x, log):
        got = x
        while True:
            try:
                got = yield got * 2
            except KeyError as error:
                log.append(repr(error.__context__))
                smelt.graph_break()
                got = x + 1

    log = []

    def fn(x, n):
        made = catching(x, log)
        first = next(made)
        return first, made.throw(KeyError(n)), made.send(x)

    return fn, calls(), log


@program(
    graphs=1,
    later=3,
    breaks=["graph-break-requested", "graph-break-requested", "unsupported-call"],
    unlike={"3.12": WHOLE} | since("3.13", WHOLE, 1, eager=["graph-break-requested"]),
)
def close_of_a_generator():
    log = []

    def closing(x):
        try:
            yield x + 1
            smelt.graph_break()
            yield x + 2
            yield x + 3
        finally:
            log.append("closed")

    def fn(x, n):
        made = closing(x)
        found = [next(made) for _ in range(n + 1)]
        made.close()
        log.append("after")
        return found

    return fn, calls(), log


@program(graphs=0, later=2, eager=["graph-break-requested"])
def generator_dropped_early():
    log = []

    def closing(x):
        try:
            yield x + 1
            smelt.graph_break()
            yield x + 2
        finally:
            log.append("closed")

    def fn(x, n):
        for v in closing(x):
            if v.shape[0] == 3 and n:
                log.append("left")
                break
        log.append("after")
        return v

    return fn, calls(), log


@program(
    graphs=3,
    later=3,
    breaks=[*["graph-break-requested"] * 3, "unsupported-call", "unsupported-object"],
    eager=["user-exception"],
)
def exception_crosses_a_yield():
    def raising(x, n):
        y = x.cos()
        smelt.graph_break()
        yield y
        smelt.graph_break()
        if n:
            raise ValueError(f"number {n}")
        yield y + 1

    def fn(x, n):
        total = x
        try:
            for v in raising(x, n):
                total = total + v
        except ValueError as error:
            return total * 2, str(error), [f.name for f in traceback.extract_tb(error.__traceback__)]
        return total

    return fn, calls()


@program(
    graphs=3,
    breaks=[*["graph-break-requested"] * 3, "unsupported-object"],
    eager=["user-exception"],
    unlike={"3.12": WHOLE}
    | since(
        "3.13",
        INLINED,
        3,
        breaks=[*["graph-break-requested"] * 3, "unsupported-object"],
        eager=["user-exception"] * 2,
    ),
)
def exception_leaves_a_generator():
    def raising(x, n):
        smelt.graph_break()
        yield x
        smelt.graph_break()
        yield x[n + 2]

    def fn(x, n):
        return [v + 1 for v in raising(x, n)]

    return fn, calls()


@program(
    graphs=1,
    breaks=["graph-break-requested", "graph-break-requested", "unsupported-object"],
    eager=["user-exception"],
)
def stop_iteration_inside_a_generator():
    def raising(x, n):
        smelt.graph_break()
        yield x
        yield next(iter([x] * (n > 1)))

    def fn(x, n):
        try:
            return [v + 1 for v in raising(x, n)]
        except RuntimeError as error:
            return str(error), type(error.__cause__)

    return fn, calls()


@program(graphs=0, eager=["graph-break-requested"])
def exception_while_another_is_handled():
    def handling(x):
        try:
            raise KeyError("first")
        except KeyError:
            smelt.graph_break()
            yield x
            yield sys.exception() is not None
        try:
            raise ValueError("second")
        except ValueError as error:
            yield repr(error.__context__)

    def fn(x, n):
        return list(handling(x)), x + n

    return fn, calls()


@contextlib.contextmanager
def scaled_by_break(x, log):
    y = x * 2
    smelt.graph_break()
    try:
        yield y
        log.append("left")
    except KeyError as error:
        log.append(repr(error))
    finally:
        smelt.graph_break()
        log.append("finally")


@program(
    graphs=3,
    later=1,
    breaks=[*["graph-break-requested"] * 3, "unsupported-object"],
)
def break_in_a_contextmanager():
    log = []

    def fn(x, n):
        with scaled_by_break(x, log) as y:
            z = y + n
        return z * 2

    return fn, calls(), log


@program(
    graphs=3,
    later=1,
    breaks=[*["graph-break-requested"] * 3, "unsupported-call", "unsupported-object"],
)
def exception_in_a_contextmanager_that_breaks():
    log = []

    def fn(x, n):
        with scaled_by_break(x, log) as y:
            if n:
                raise KeyError(n)
            x = y + 1
        return x * 2

    return fn, calls(), log


@program(
    graphs=5,
    breaks=[*["graph-break-requested"] * 3, *["unsupported-object"] * 2],
)
def generator_kept_between_calls():
    class Stream:
        made = None

    stream = Stream()

    def fn(x, n):
        if stream.made is None:
            stream.made = values(x, 9)
        return next(stream.made) + n, next(stream.made) * 2

    return fn, calls(), stream


@program(
    graphs=4, later=2, breaks=["graph-break-requested", "graph-break-requested", "graph-break-requested"]
)
def generator_returned_half_way():
    def fn(x, n):
        made = values(x, n + 1)
        first = next(made)
        return first + 1, made

    return fn, calls()


@program(
    graphs=4,
    later=2,
    breaks=[*["data-dependent-condition"] * 3, "unsupported-object"],
    options=BREAKS,
)
def generator_in_a_module():
    class Blocks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))

        def outputs(self, x):
            for layer in self.layers:
                x = layer(x)
                if x.sum() > 1000:
                    return
                yield x

        def forward(self, x, n):
            total = x
            for i, y in enumerate(self.outputs(x)):
                total = total + y * (i + n)
            return total

    return Blocks(), calls()


@program(
    graphs=3,
    later=2,
    breaks=[*["graph-break-requested"] * 3, "unsupported-object"],
)
def generator_with_cells():
    def fn(x, n):
        scale = x * 2

        def made():
            nonlocal scale
            for i in range(n + 1):
                smelt.graph_break()
                scale = scale + i
                yield lambda: scale * 2

        return [f() for f in made()], scale

    return fn, calls()


@program(
    graphs=5,
    breaks=[*["graph-break-requested"] * 3, "unsupported-object"],
)
def generator_that_writes_tensors():
    def adding(x, buffer):
        for i in range(3):
            buffer.add_(x * i)
            smelt.graph_break()
            yield buffer.sum()

    def fn(x, n):
        buffer = torch.zeros(3)
        sums = [s * 2 for s in adding(x, buffer)]
        return sums, buffer

    return fn, calls()


@program(
    graphs=3,
    later=3,
    breaks=[*["graph-break-requested"] * 3, "unsupported-call", *["unsupported-object"] * 2],
    unlike=within(
        "3.13",
        ITER_TWICE,
        3,
        later=3,
        breaks=[*["graph-break-requested"] * 3, "unsupported-call", *["unsupported-object"] * 3],
    ),
)
def gradients_through_a_generator():
    def fn(x, n):
        x = x.requires_grad_()
        loss = sum(v.sin().sum() for v in values(x, n))
        return torch.autograd.grad(loss, x)

    return fn, calls()


@program(graphs=0, eager=["graph-break-requested"])
def generator_with_no_grad_inside():
    def made(x):
        with torch.no_grad():
            y = x * 2
            smelt.graph_break()
            yield y
            yield torch.is_grad_enabled(), y + 1

    def fn(x, n):
        found = []
        for v in made(x):
            found.append(v)
        return found, torch.is_grad_enabled()

    return fn, calls()


@program(
    graphs=3,
    later=1,
    breaks=[*["graph-break-requested"] * 3, "unsupported-object"],
)
def generator_with_defaults_and_keywords():
    def made(x, *rest, scale=2, **more):
        for v in rest:
            smelt.graph_break()
            yield x * v * scale + more["shift"]

    def fn(x, n):
        return [v + 1 for v in made(x, 1, n, scale=3, shift=n)]

    return fn, calls()


@program(
    graphs=3,
    later=3,
    breaks=[*["graph-break-requested"] * 3, "unsupported-object"],
)
def generator_that_calls_what_breaks():
    def helper(y):
        y = y + 1
        smelt.graph_break()
        return y * 2

    def made(x, n):
        for i in range(n + 1):
            yield helper(x * i) + 1

    def fn(x, n):
        return [v.cos() for v in made(x, n)]

    return fn, calls()


@program(
    graphs=1,
    later=1,
    breaks=[*["graph-break-requested"] * 4, "unsupported-object"],
)
def names_of_a_generator():
    def made(x):
        smelt.graph_break()
        yield x
        smelt.graph_break()

    def fn(x, n):
        one = made(x)
        next(one)
        smelt.graph_break()
        return one.__name__, one.__qualname__, type(one), one.gi_running, list(one), x + n

    return fn, calls()


class Counter:
    def __init__(self, x, n):
        self.x, self.n, self.i = x, n, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.i > self.n:
            raise StopIteration
        self.i += 1
        y = self.x * self.i
        smelt.graph_break()
        return y + 1


@program(
    graphs=3,
    later=3,
    breaks=["graph-break-requested", "graph-break-requested", "graph-break-requested"],
    eager=["user-exception"],
)
def break_in_next():
    def fn(x, n):
        counter = Counter(x, n)
        total = x
        for v in counter:
            total = total + v
        return total, counter.i

    return fn, calls()


@program(graphs=2, later=2, breaks=["graph-break-requested"])
def break_in_iter():
    class Rows:
        def __init__(self, x):
            self.x = x

        def __iter__(self):
            y = self.x + 1
            smelt.graph_break()
            return iter([y, y * 2])

    def fn(x, n):
        total = x
        for v in Rows(x):
            total = total + v * n
        return total

    return fn, calls()


@program(graphs=0, breaks=["graph-break-requested"], eager=["user-exception"])
def iter_that_gives_no_iterator():
    class Rows:
        def __iter__(self):
            smelt.graph_break()
            return [1]

    def fn(x, n):
        for v in Rows():
            x = x + v
        return x

    return fn, calls()


def measured(t):
    y = t * 2
    return y.sum().tolist()


@program(
    graphs=5,
    later=2,
    breaks=["data-dependent-value"] * 6,
)
def break_in_a_key():
    def fn(x, n):
        rows = [x * 3, x - 1, x * 2]
        rows.sort(key=measured)
        a = sorted(rows, key=measured, reverse=bool(n))
        return rows[0] + a[1] * 2 + max(rows, key=lambda t: (t + n).sum().tolist()), min(
            x, x + 1, key=measured
        )

    return fn, calls()


@program(graphs=5, later=1, breaks=["data-dependent-value", "data-dependent-value"])
def break_in_a_mapped_function():
    def fn(x, n):
        shift = x + n
        return sum(map(lambda t: t.cos() * t.sum().tolist() + shift, [x, x + 1])) * 2

    return fn, calls()


@program(graphs=3, later=2, breaks=["data-dependent-condition", "unsupported-object"])
def break_in_a_filter():
    def fn(x, n):
        return [v * 2 for v in filter(lambda t: t.sum() > n, [x, x + 1, x + 2])]

    return fn, calls()


@program(graphs=5, later=1, breaks=["data-dependent-value", "data-dependent-value"])
def break_in_reduce():
    def fn(x, n):
        return functools.reduce(lambda a, b: a.cos() + b.sum().tolist(), [x, x + n, x + 2]) * 2

    return fn, calls()


@program(graphs=2, later=3, breaks=["data-dependent-value", "data-dependent-value"])
def break_in_a_replacement():
    def fn(x, n):
        text = re.sub("a", lambda m: str(int((x * 0 + n).sum().tolist())) + m[0], "bab")
        return x * len(text), text

    return fn, calls()


@program(graphs=4, later=2, breaks=["data-dependent-value", "data-dependent-value"])
def method_as_a_key():
    class Judge:
        def __init__(self, x):
            self.x = x
            self.asked = 0

        def measure(self, t):
            self.asked += 1
            return (self.x * t).sum().tolist()

    def fn(x, n):
        judge = Judge(x)
        return max([x, x + 1, -x], key=judge.measure) + n, judge.asked

    return fn, calls()


@program(graphs=3, later=2, breaks=["data-dependent-value", "data-dependent-value"], eager=["user-exception"])
def key_that_raises():
    def key(t):
        y = t.sum().tolist()
        if y == y:
            raise ValueError("not in order")
        return y

    def fn(x, n):
        try:
            return sorted([x, x + 1], key=key)
        except ValueError as error:
            return str(error), x + n

    return fn, calls()


@program(
    graphs=1,
    breaks=[*["graph-break-requested"] * 2, "unsupported-call", "unsupported-object"],
)
def throw_through_a_delegation():
    log = []

    def inner(x):
        try:
            log.append((yield x * 1))
            yield x * 2
        except KeyError as error:
            log.append((str(error), repr(error.__context__)))
            smelt.graph_break()
            yield x * 3
        return x * 4

    def outer(x):
        smelt.graph_break()
        result = yield from inner(x)
        log.append("delegated")
        yield result

    def fn(x, n):
        made = outer(x)
        return next(made), made.throw(KeyError(n)), next(made)

    return fn, calls(), log


@program(graphs=0, eager=["graph-break-requested"])
def close_through_a_delegation():
    log = []

    def inner(x):
        smelt.graph_break()
        with contextlib.suppress(KeyError):
            try:
                yield x
            finally:
                log.append("inner")

    def outer(x):
        try:
            yield from inner(x)
        finally:
            log.append("outer")

    def fn(x, n):
        made = outer(x)
        first = next(made)
        made.close()
        log.append("closed")
        return first, list(made)

    return fn, calls(), log


@program(
    graphs=4,
    later=1,
    breaks=[*["graph-break-requested"] * 3, "unsupported-object"],
    eager=["graph-break-requested"],
)
def generator_that_several_consume():
    def fn(x, n):
        made = values(x, 5)
        pairs = [a * b for a, b in zip(made, made)]
        one, other = itertools.tee(values(x, n))
        return pairs, [v + 1 for v in one], sum(other)

    return fn, calls()


@program(
    graphs=4,
    later=1,
    breaks=["graph-break-requested"] * 5,
)
def generator_as_arguments():
    def fn(x, n):
        def three(a, b, c):
            return a + 2 * b + 3 * c

        first, *rest = values(x, n)
        return three(*values(x, 2)), first, rest, dict(enumerate(values(x, n)))

    return fn, calls()


@program(
    graphs=2,
    breaks=[*["graph-break-requested"] * 3, "unsupported-object"],
)
def generator_a_hundred_deep():
    def walk(x, depth):
        smelt.graph_break()
        if depth:
            yield from walk(x, depth - 1)
        yield x * depth

    def fn(x, n):
        return sum(walk(x, 100))

    return fn, calls()


@program(
    graphs=2,
    later=3,
    breaks=[*["graph-break-requested"] * 4, *["unsupported-object"] * 4],
)
def contextmanagers_on_a_stack():
    log = []

    @contextlib.contextmanager
    def scaled(x, i):
        log.append(("in", i))
        smelt.graph_break()
        try:
            yield x * i
        finally:
            smelt.graph_break()
            log.append(("out", i))

    def fn(x, n):
        with contextlib.ExitStack() as stack:
            found = [stack.enter_context(scaled(x, i)) for i in range(n + 1)]
            log.append("body")
            return sum(found)

    return fn, calls(), log


@program(
    graphs=2,
    breaks=[*["graph-break-requested"] * 3, "unsupported-call", "unsupported-object"],
    eager=["user-exception"],
)
def tracebacks_of_a_contextmanager():
    @contextlib.contextmanager
    def failing(x):
        smelt.graph_break()
        yield x * 2
        smelt.graph_break()
        raise KeyError("out")

    def fn(x, n):
        try:
            with failing(x) as y:
                z = y + 1
        except KeyError as error:
            frames = traceback.extract_tb(error.__traceback__)
            return [(f.name, f.line) for f in frames[-2:]], z

    return fn, calls()


@program(graphs=1, later=3, breaks=["data-dependent-condition", "data-dependent-condition"], options=BREAKS)
def generator_compiled_itself():
    def made(x, n=1, *rest, scale=2):
        for i in range(n + 1):
            y = x * i * scale
            if y.sum() > 1000:
                return "large"
            got = yield y
            if got is not None:
                yield got * 2

    return made, calls()
