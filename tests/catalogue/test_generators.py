"""Generators, iterators and comprehensions: made, delegated to, half consumed, passed around, stored."""

import functools
import itertools
from collections import deque

import torch

from tests.harness.catalogue import INLINED, ITER_TWICE, call, program, since, tensor, within


def scaled(x, n):
    for i in range(n):
        yield x * i


def three_shapes():
    return [(tensor(3, 4), 2), (tensor(3, 4), 2), (tensor(2), 5)]


@program(graphs=1, later=1)
def sums_a_generator():
    def fn(x, n):
        return sum(scaled(x, n), x)

    return fn, three_shapes()


@program(graphs=1, later=1)
def unpacks_a_generator():
    def fn(x, n):
        first, *rest = scaled(x, n)
        return first, rest

    return fn, three_shapes()


@program(graphs=3, later=3)
def returns_an_unstarted_generator():
    def fn(x, n):
        return scaled(x + 1, n), x + 1

    return fn, three_shapes()


@program(graphs=2, later=2)
def returns_a_half_consumed_generator():
    def fn(x, n):
        made = scaled(x, n)
        next(made)
        return made, x + 1

    return fn, three_shapes()


@program(graphs=2, later=2)
def stores_a_half_consumed_generator():
    kept = []

    def fn(x, n):
        made = scaled(x, n)
        kept.append(made)
        return next(made) + 1

    return fn, three_shapes(), kept


@program(graphs=1, later=1)
def returns_an_exhausted_generator():
    def fn(x, n):
        made = scaled(x, n)
        total = sum(made, x)
        return made, total

    return fn, three_shapes()


@program(graphs=2, later=2, breaks=["unsupported-object", "unsupported-object"])
def advances_a_generator_from_outside():
    source = (i * 2 for i in itertools.count())

    def fn(x):
        return x * next(source) + next(source)

    return fn, [(tensor(3),), (tensor(3),), (tensor(3),)]


@program(
    graphs=1,
    later=3,
    breaks=["unsupported-object"] * 3,
    unlike=within("3.13", ITER_TWICE, 1, later=3, breaks=["unsupported-object"] * 4),
)
def takes_a_generator_as_argument():
    def fn(x, values):
        return [x * v for v in values]

    return fn, [
        (tensor(3), iter([1, 2])),
        (tensor(3), (i for i in (3, 4))),
        (tensor(3), scaled(tensor(3), 2)),
    ]


@program(graphs=1, later=1)
def sends_into_a_generator():
    def running(x):
        total = x
        while True:
            got = yield total
            if got is None:
                return
            total = total + got

    def fn(x, values):
        made = running(x)
        next(made)
        return [made.send(v) for v in values]

    return fn, [(tensor(3), (1, 2, 3)), (tensor(3), (1, 2, 3)), (tensor(3), (0.5,))]


@program(graphs=1, later=1)
def throws_into_a_generator():
    def patient(x):
        for i in range(4):
            try:
                yield x + i
            except ValueError as e:
                yield x * float(str(e))

    def fn(x, s):
        made = patient(x)
        a = next(made)
        b = made.throw(ValueError(s))
        c = next(made)
        return a, b, c, list(made)

    return fn, [(tensor(3), "2"), (tensor(3), "2"), (tensor(3), "4.5")]


@program(graphs=1)
def throw_ends_a_generator():
    def gen(x):
        try:
            yield x
        finally:
            log.append("finally")

    log = []

    def fn(x):
        made = gen(x)
        a = next(made)
        try:
            made.throw(KeyError("k"))
        except KeyError as e:
            return a + 1, e.args, list(made)

    return fn, [(tensor(3),)] * 3, log


@program(graphs=1)
def closes_a_generator():
    def gen(x):
        try:
            while True:
                yield x
                x = x + 1
        except GeneratorExit:
            log.append("exit")
            raise
        finally:
            log.append("finally")

    log = []

    def fn(x):
        made = gen(x)
        next(made)
        out = next(made)
        made.close()
        made.close()
        return out, next(made, "ended")

    return fn, [(tensor(3),)] * 3, log


@program(graphs=1)
def close_is_ignored():
    def gen(x):
        while True:
            try:
                yield x
            except GeneratorExit:
                pass

    def fn(x):
        made = gen(x)
        out = next(made) * 2
        try:
            made.close()
        except RuntimeError as e:
            return out, str(e)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def generator_returns_a_value():
    def inner(x):
        yield x
        return x * 10

    def outer(x):
        got = yield from inner(x)
        yield got
        return "done", got

    def fn(x):
        made = outer(x)
        a, b = next(made), next(made)
        try:
            next(made)
        except StopIteration as stop:
            return a, b, stop.value

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def delegates_three_deep():
    def leaf(x, n):
        for i in range(n):
            got = yield x + i
            if got is not None:
                x = x * got
        return n

    def middle(x, n):
        return (yield from leaf(x, n)) + (yield from leaf(x * 2, n))

    def top(x, n):
        total = yield from middle(x, n)
        yield total

    def fn(x, n):
        made = top(x, n)
        out = [next(made)]
        try:
            while True:
                out.append(made.send(len(out)))
        except StopIteration:
            return out

    return fn, three_shapes()


@program(graphs=1)
def delegates_to_plain_iterables():
    def gen(x):
        yield from [x, x + 1]
        yield from (x * i for i in range(2))
        yield from {"a": 1}
        yield from "bc"
        yield from map(lambda v: x - v, (1, 2))

    def fn(x):
        return list(gen(x))

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def throws_through_a_delegation():
    def inner(x):
        try:
            yield x
        except ValueError as e:
            yield x * 2
            return e.args[0]

    def outer(x):
        got = yield from inner(x)
        yield x + got

    def fn(x, k):
        made = outer(x)
        return next(made), made.throw(ValueError(k)), next(made), next(made, None)

    return fn, [(tensor(3), 2), (tensor(3), 2), (tensor(3), 3)]


@program(graphs=1, later=1)
def recursive_generator():
    def walk(tree):
        if isinstance(tree, list):
            for part in tree:
                yield from walk(part)
        else:
            yield tree

    def fn(x, depth):
        tree = x
        for i in range(depth):
            tree = [tree, x + i, [x * i]]
        return sum(walk(tree))

    return fn, [(tensor(3), 2), (tensor(3), 2), (tensor(3), 4)]


@program(graphs=1, later=1)
def infinite_with_islice():
    def powers(x):
        while True:
            yield x
            x = x * 2

    def fn(x, n):
        return list(itertools.islice(powers(x), 1, n, 2))

    return fn, [(tensor(3), 5), (tensor(3), 5), (tensor(3), 2)]


@program(graphs=1, later=1)
def pipeline_of_generators():
    def numbers(n):
        yield from range(n)

    def odd(values):
        return (v for v in values if v % 2)

    def times(x, values):
        for v in values:
            yield x * v

    def fn(x, n):
        return torch.stack(list(times(x, odd(numbers(n)))))

    return fn, [(tensor(3), 6), (tensor(3), 6), (tensor(3), 3)]


@program(graphs=1)
def generator_passed_and_shared():
    def take(values, n):
        return [next(values) for _ in range(n)]

    def fn(x):
        made = scaled(x, 6)
        first = take(made, 2)
        second = take(made, 1)
        return first, second, list(made)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def generator_on_an_object():
    class Source:
        def __init__(self, x):
            self.x = x
            self.made = self.run()

        def run(self):
            while True:
                self.x = self.x + 1
                yield self.x

        def __iter__(self):
            return self.made

    def fn(x):
        source = Source(x)
        out = []
        for value in source:
            out.append(value)
            if len(out) == 3:
                break
        return out, source.x is out[-1]

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def generator_expressions():
    def fn(x, n):
        pairs = ((i, j) for i in range(n) for j in range(i) if (i + j) % 2)
        return sum(x * i + j for i, j in pairs)

    return fn, [(tensor(3), 4), (tensor(3), 4), (tensor(2), 3)]


@program(graphs=1)
def generator_expression_binds_late():
    def fn(x):
        factor = 2
        made = (v * factor for v in [x, x + 1])
        first = next(made)
        factor = 3
        return first, next(made)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def any_and_all_stop_early():
    def fn(x):
        seen = []

        def values():
            for i in range(5):
                seen.append(i)
                yield i > 1

        return any(values()), all(values()), seen, x + len(seen)

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def loop_over_a_tensor():
    def fn(x):
        total = 0
        for row in x:
            total = total + row * 2
        return total

    return fn, [(tensor(3, 4),), (tensor(3, 4),), (tensor(5, 2),)]


@program(graphs=1, later=1)
def own_iterator():
    class Countdown:
        def __init__(self, n):
            self.n = n

        def __iter__(self):
            return self

        def __next__(self):
            if self.n == 0:
                raise StopIteration
            self.n -= 1
            return self.n

    def fn(x, n):
        down = Countdown(n)
        first = next(down)
        return [x * i for i in down], first, list(down), down

    return fn, [(tensor(3), 4), (tensor(3), 4), (tensor(3), 2)]


@program(graphs=1, later=1)
def own_iterator_from_outside():
    class Source:
        def __init__(self):
            self.n = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.n += 1
            if self.n % 4 == 0:
                raise StopIteration
            return self.n

    source = Source()

    def fn(x):
        return [x * i for i in source]

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def iter_of_getitem_only():
    class Letters:
        def __getitem__(self, i):
            if i > 2:
                raise IndexError
            return i * 2

    def fn(x):
        return [x + v for v in Letters()], 4 in Letters(), list(reversed([*Letters()]))

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def iter_with_a_sentinel():
    def fn(x, stop):
        values = [x]

        def step():
            values.append(values[-1] * 2)
            return len(values)

        return list(iter(step, stop)), values

    return fn, [(tensor(3), 3), (tensor(3), 3), (tensor(3), 5)]


@program(graphs=3)
def half_consumed_builtins_are_returned():
    def fn(x):
        z = zip([1, 2, 3], [x, x + 1, x * 2])
        e = enumerate([x, x * 3], start=5)
        r = reversed([1, x, 3])
        m = map(lambda v: x + v, [1, 2, 3])
        f = filter(lambda v: v != 2, [1, 2, 3])
        for it in (z, e, r, m, f):
            next(it)
        return z, e, r, m, f

    return fn, [(tensor(3),)] * 3


@program(graphs=0, eager=["unsupported-object"])
def half_consumed_itertools_are_returned():
    def fn(x):
        made = [
            itertools.count(3, 2), itertools.cycle([1, x]), itertools.chain([1], [x]), itertools.islice([1, x, 3], 1, None),
            itertools.repeat(x, 3), itertools.accumulate([1, 2, 3]), itertools.product([1, 2], [x]),
            itertools.combinations([1, 2, x], 2), itertools.permutations([1, 2], 2), itertools.zip_longest([1], [x, 2]),
            itertools.pairwise([1, 2, x]), itertools.compress([x, 2, 3], [1, 0, 1]),
        ]  # fmt: skip
        for it in made:
            next(it)
        return made, x + 1

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def itertools_inside():
    def fn(x, n):
        out = [x * a + b for a, b in itertools.product(range(n), (1, 2))]
        out += [x + sum(c) for c in itertools.combinations(range(n), 2)]
        out += [v for _, v in zip(range(3), itertools.cycle([x, x + 1]))]
        out += list(itertools.accumulate([x, x + 1, x + 2], lambda a, b: a * b))
        out += list(itertools.takewhile(lambda t: True, [x]))
        out += list(itertools.dropwhile(lambda i: i < 1, range(n)))
        groups = {k: list(g) for k, g in itertools.groupby(range(n + 3), key=lambda i: i // 2)}
        return out, groups, list(itertools.starmap(lambda a, b: x * a - b, [(1, 2), (3, 4)]))

    return fn, [(tensor(3), 2), (tensor(3), 2), (tensor(2), 3)]


@program(graphs=1, later=1)
def tee_of_a_generator():
    def fn(x, n):
        a, b = itertools.tee(scaled(x, n))
        next(a)
        return list(zip(a, b)), list(b)

    return fn, three_shapes()


@program(graphs=1, later=2)
def zip_strict():
    def fn(x, xs):
        try:
            return [a * b for a, b in zip([x, x + 1], xs, strict=True)]
        except ValueError as e:
            return str(e), x - 1

    return fn, [(tensor(3), (1, 2)), (tensor(3), (1, 2)), (tensor(3), (1,)), (tensor(3), (1, 2, 3))]


@program(graphs=1)
def dict_views():
    def fn(x):
        d = {"a": x, "b": x + 1}
        keys, values, items = d.keys(), d.values(), d.items()
        d["c"] = x * 2
        return (
            list(keys),
            list(values),
            list(items),
            "c" in keys,
            keys & {"a", "z"},
            len(items),
            next(iter(values)),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def dict_changed_while_iterated():
    def fn(x):
        d = {1: x}
        try:
            for k in d:
                d[k + 1] = x
        except RuntimeError as e:
            return str(e), x + len(d)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def list_changed_while_iterated():
    def fn(x):
        values = [x]
        for v in values:
            if len(values) < 4:
                values.append(v + 1)
        return values

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def comprehensions_nested():
    def fn(x, n):
        grid = [[x * i + j for j in range(n)] for i in range(n)]
        flat = {(i, j): v for i, row in enumerate(grid) for j, v in enumerate(row) if i != j}
        kinds = {type(v) for v in flat.values()}
        return grid, flat, kinds, {i % 2 for i in range(n)}

    return fn, three_shapes()


@program(graphs=1, later=1)
def comprehension_with_walrus():
    def fn(x, n):
        out = [y for i in range(n) if (y := x * i) is not x]
        total = [last := i for i in range(n)]
        return out, y, last, total

    return fn, three_shapes()


@program(graphs=1, later=1)
def comprehension_closures():
    def fn(x, n):
        late = [lambda: x * i for i in range(n)]
        early = [lambda i=i: x * i for i in range(n)]
        return [f() for f in late], [f() for f in early]

    return fn, three_shapes()


@program(graphs=1, later=1)
def comprehension_in_a_class_body():
    def fn(x, n):
        class Table:
            size = n
            rows = [x * i for i in range(size)]

        return Table.rows, Table.size

    return fn, three_shapes()


@program(graphs=1, later=1)
def generator_with_try_in_loop():
    def gen(values):
        for v in values:
            try:
                yield 10 // v
            except ZeroDivisionError:
                yield -1
            else:
                yield 0

    def fn(x, values):
        return [x * v for v in gen(values)]

    return fn, [(tensor(3), (1, 0, 5)), (tensor(3), (1, 0, 5)), (tensor(3), (0,))]


@program(graphs=1)
def generator_raising_stop_iteration():
    def gen(x):
        yield x
        raise StopIteration("inner")

    def fn(x):
        made = gen(x)
        out = next(made) + 1
        try:
            next(made)
        except RuntimeError as e:
            return out, str(e), type(e.__cause__).__name__, e.__cause__.value

    return fn, [(tensor(3),)] * 3


@program(graphs=0, eager=["user-exception"])
def generator_raises_out():
    def gen(x, n):
        for i in range(n):
            yield x
        raise LookupError(f"after {n}")

    def fn(x, n):
        return [v + 1 for v in gen(x, n)]

    return fn, three_shapes()


@program(graphs=1)
def generator_sees_its_own_running_state():
    def gen(x):
        try:
            next(made)
        except ValueError as e:
            yield str(e)
        yield x

    made = None

    def fn(x):
        nonlocal made
        made = gen(x)
        out = next(made), next(made) * 2
        made = None
        return out

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def started_generator_refuses_a_value():
    def fn(x):
        made = scaled(x, 2)
        try:
            made.send(1)
        except TypeError as e:
            return str(e), next(made) + 1

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def generator_in_a_with_block():
    class Manager:
        def __enter__(self):
            log.append("enter")
            return self

        def __exit__(self, *error):
            log.append(error[0])

    log = []

    def gen(x):
        with Manager():
            yield x * 2
            yield x + 1

    def fn(x, n):
        made = gen(x)
        out = [next(made) for _ in range(n)]
        made.close()
        return out

    return fn, [(tensor(3), 1), (tensor(3), 2), (tensor(3), 1)], log


@program(graphs=1)
def generator_under_no_grad():
    def gen(x):
        with torch.no_grad():
            yield x * 2
        yield x * 3

    def fn(x):
        return [v.requires_grad for v in gen(x)], x + 1

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def deque_of_generators_round_robin():
    def fn(x, n):
        waiting = deque([scaled(x, n), scaled(x + 1, n + 1)])
        out = []
        while waiting:
            current = waiting.popleft()
            try:
                out.append(next(current))
            except StopIteration:
                continue
            waiting.append(current)
        return out

    return fn, three_shapes()


@program(graphs=1)
def generator_attributes():
    def fn(x):
        made = scaled(x, 2)
        names = made.__name__, made.__qualname__.rpartition(".")[2], made.gi_yieldfrom, made.gi_running
        next(made)
        return names, type(made).__name__, hasattr(made, "send"), iter(made) is made, x + 1

    return fn, [(tensor(3),)] * 3


@program(graphs=2, later=2)
def compiled_generator_function():
    def fn(x, n):
        for i in range(n):
            yield x * i

    return fn, three_shapes()


@program(graphs=2)
def coroutine_function_returns_its_coroutine():
    async def child(x):
        return x * 2

    async def work(x):
        return await child(x) + 1

    def fn(x):
        return work(x), x + 1

    return fn, [(tensor(3),)] * 3


@program(
    graphs=4,
    breaks=[
        "unsupported-call",
        "unsupported-call",
        "unsupported-call",
        "unsupported-call",
        "unsupported-call",
        "unsupported-call",
    ],
)
def coroutine_is_driven_by_hand():
    class Ready:
        def __init__(self, value):
            self.value = value

        def __await__(self):
            got = yield self.value
            return got

    async def work(x):
        a = await Ready(x)
        b = await Ready(x + a)
        return a + b

    def fn(x):
        made = work(x)
        first = made.send(None)
        second = made.send(x * 2)
        try:
            made.send(x * 3)
        except StopIteration as stop:
            return first, second, stop.value

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def async_function_compiled():
    async def fn(x):
        return x + 1

    return fn, [(tensor(3),)] * 3


@program(
    graphs=0,
    breaks=["unsupported-call", "unsupported-call", "unsupported-call"],
    unlike=since(
        "3.12", INLINED, 1, breaks=[*["unsupported-call"] * 8, "unsupported-object", "unsupported-object"]
    ),
)
def async_generator_is_made():
    async def gen(x):
        yield x

    async def total(x):
        out = [v async for v in gen(x)]
        async with Async():
            return out + [v + 1 async for v in gen(x)]

    class Async:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *error):
            return False

    def fn(x):
        return total(x)

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=1)
def map_over_several():
    def fn(x, xs, ys):
        return list(map(lambda a, b: x * a + b, xs, ys)), list(filter(None, [0, 1, "", "a"]))

    return fn, [(tensor(3), [1, 2], (3, 4)), (tensor(3), [1, 2], (3, 4)), (tensor(3), [1], (3, 4))]


@program(graphs=1, later=1)
def sorted_and_extremes_with_keys():
    def fn(x, names):
        order = sorted(names, key=lambda n: (-len(n), n))
        return (
            order,
            min(names, key=len),
            max(names, default=None),
            sorted(names, reverse=True),
            x + len(order[0]),
        )

    return fn, [
        call(tensor(3), ["b", "aa", "c"]),
        call(tensor(3), names=["b", "aa", "c"]),
        call(tensor(3), ["q"]),
    ]


@program(graphs=1)
def lazy_map_keeps_its_order_of_effects():
    def fn(x):
        log = []

        def note(v):
            log.append(v)
            return x + v

        made = map(note, [1, 2, 3])
        log.append("made")
        first = next(made)
        log.append("first")
        return log, first, list(made)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def generator_in_finally():
    def gen(x, log):
        try:
            yield x
        finally:
            log.append("closing")
            yield x * 2
            log.append("closed")

    def fn(x):
        log = []
        return list(gen(x, log)), log

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def endless_iterators_are_advanced_one_by_one():
    def numbers():
        i = 0
        while True:
            yield i
            i += 1

    def fn(x):
        it = itertools
        total = sum(b for a, b in zip(range(5), it.chain.from_iterable(it.repeat((0, 1)))))
        for i, v in enumerate(it.repeat(3)):
            if i > 5:
                break
            total += v
        for i, v in enumerate(numbers()):
            if i > 3:
                break
            total += v
        total += sum(it.islice(it.starmap(pow, it.repeat((2, 3))), 2))
        total += sum(it.islice(it.accumulate(it.count()), 4))
        total += sum(a * b for a, b in it.islice(it.pairwise(it.chain.from_iterable(it.repeat([1, 2]))), 3))
        first, second = it.tee(it.count())
        total += next(first) + next(first) + next(second)
        total += sum(it.islice(it.compress(it.count(), it.cycle([0, 1])), 4))
        total += len([k for k, g in it.islice(it.groupby(it.count(), lambda v: v // 3), 4)])
        return x + total

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def reduce_takes_elements_as_it_goes():
    def fn(x):
        seen = []

        def numbered():
            for i in range(4):
                seen.append(i)
                yield i

        def add(a, b):
            seen.append((a, b))
            return a + b

        return x + functools.reduce(add, numbered()), seen

    return fn, [(tensor(3),)] * 3
