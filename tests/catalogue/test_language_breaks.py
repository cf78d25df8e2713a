"""Graph breaks in the middle of the language's constructs: what is handled, held and half done goes on afterwards."""

import contextlib
import contextvars
import functools
import operator
import re
import sys

import smelt
from tests.harness.catalogue import INLINED, ITER_TWICE, program, tensor, within


def numbers():
    return [(tensor(3), 0), (tensor(3), 0), (tensor(3), 1), (tensor(3), 2), (tensor(3), 5)]


def chain(error):
    if error is None:
        return None
    return (
        type(error).__name__,
        str(error),
        chain(error.__cause__),
        chain(error.__context__),
        error.__suppress_context__,
    )


@smelt.disable
def fails(n):
    """Not captured: what it raises comes from outside of the resume function."""
    raise LookupError(f"number {n}", n)


@smelt.disable
def succeeds(n):
    return n + 1


@program(graphs=1, later=3, breaks=["disabled-function"])
def error_of_a_break_is_caught():
    def fn(x, n):
        try:
            fails(n)
        except LookupError as e:
            return x * 2, str(e), e.args, repr(e), f"{e}", chain(e)

    return fn, numbers()


@program(graphs=1, later=3, breaks=["graph-break-requested"])
def break_in_an_except_block():
    def fn(x, n):
        log = []
        try:
            [][n]
        except IndexError as e:
            smelt.graph_break()
            log.append((sys.exc_info()[1] is e, sys.exception() is e))
            try:
                {}[n]
            except KeyError as inner:
                log.append(chain(inner))
        log.append(sys.exception())
        return x * 2, log

    return fn, numbers()


@program(graphs=1, later=3, breaks=["disabled-function"])
def break_that_raises_in_an_except_block():
    def fn(x, n):
        try:
            try:
                1 // 0
            except ZeroDivisionError:
                fails(n)
        except LookupError as e:
            return x + 1, chain(e)

    return fn, numbers()


@program(graphs=1, later=3, breaks=["disabled-function"])
def bare_raise_after_a_break():
    def fn(x, n):
        log = []
        try:
            try:
                raise ValueError(n)
            except ValueError:
                x = x * succeeds(n)
                raise
        except ValueError as e:
            log.append(chain(e))
        return x, log

    return fn, numbers()


@program(graphs=1, later=3, breaks=["graph-break-requested"])
def break_in_what_an_except_block_calls():
    def check(n):
        smelt.graph_break()
        raise TypeError(n)

    def fn(x, n):
        try:
            try:
                [][n]
            except IndexError:
                check(n)
        except TypeError as e:
            return x * 3, chain(e)

    return fn, numbers()


@program(graphs=2, later=2, breaks=["disabled-function", "graph-break-requested", "graph-break-requested"])
def break_in_finally():
    def fn(x, n):
        log = []
        try:
            try:
                x = x * [1, 2][n]
            finally:
                log.append(succeeds(n))
                smelt.graph_break()
                log.append("finally")
        except IndexError as e:
            log.append(chain(e))
        return x + 1, log

    return fn, numbers()


@program(graphs=1, later=2, breaks=["disabled-function", "disabled-function"])
def finally_in_every_frame_of_a_broken_call():
    log = []

    def inner(n):
        try:
            if n == 2:
                fails(n)
            return succeeds(n)
        finally:
            log.append(("inner", n))

    def middle(n):
        try:
            return inner(n) * 2
        finally:
            log.append(("middle", n))

    def fn(x, n):
        try:
            return x * middle(n)
        except LookupError as e:
            return x, e.args
        finally:
            log.append("outer")

    return fn, numbers(), log


@program(
    graphs=1,
    later=3,
    breaks=["disabled-function", "disabled-function", "graph-break-requested", "graph-break-requested"],
)
def handlers_one_after_the_other_in_a_broken_call():
    def inner(n):
        try:
            return fails(n)
        except LookupError as e:
            if n % 2:
                raise KeyError(n) from e
            return n

    def outer(n):
        try:
            return inner(n)
        except KeyError as e:
            return chain(e)

    def fn(x, n):
        got = outer(n)
        smelt.graph_break()
        return x * 2, got, outer(n + 1)

    return fn, numbers()


@program(graphs=2, later=2, breaks=["disabled-function", "disabled-function", "graph-break-requested"])
def break_in_a_with_block():
    class Manager:
        def __enter__(self):
            log.append("in")
            return self

        def __exit__(self, kind, error, traceback):
            log.append(kind and (kind.__name__, str(error), sys.exception() is error))
            return kind is LookupError

    log = []

    def fn(x, n):
        with Manager():
            x = x + succeeds(n)
            if n == 1:
                fails(n)
            smelt.graph_break()
            x = x * 2
        return x

    return fn, numbers(), log


@program(
    graphs=2,
    later=2,
    breaks=["disabled-function", "graph-break-requested", "unsupported-call", "unsupported-object"],
)
def break_in_a_contextmanager_block():
    log = []

    @contextlib.contextmanager
    def scope(n):
        log.append("in")
        try:
            yield n
        except LookupError as e:
            log.append(str(e))
        finally:
            log.append("out")

    def fn(x, n):
        with scope(n) as k:
            smelt.graph_break()
            if n == 2:
                fails(k)
            x = x * 2
        return x + 1

    return fn, numbers(), log


@program(graphs=1, later=4, breaks=["disabled-function"])
def break_in_an_exit_stack():
    log = []

    def fn(x, n):
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, n)
            x = x * succeeds(n)
            stack.callback(lambda: log.append("last in"))
        return x

    return fn, numbers(), log


@program(graphs=2, later=6, breaks=["graph-break-requested", "unsupported-object", "unsupported-object"])
def break_in_a_loop_over_a_generator():
    def values(x, n):
        for i in range(n + 2):
            yield x * i

    def fn(x, n):
        total = x
        for i, v in enumerate(values(x, n)):
            if i == 1:
                smelt.graph_break()
            total = total + v
        return total

    return fn, numbers()


@program(
    graphs=2,
    later=1,
    breaks=[
        "graph-break-requested",
        "graph-break-requested",
        "graph-break-requested",
        "unsupported-object",
        "unsupported-object",
    ],
    unlike=within(
        "3.13",
        ITER_TWICE,
        3,
        later=1,
        breaks=[*["graph-break-requested"] * 3, *["unsupported-object"] * 4],
    ),
)
def break_inside_a_generator():
    def values(x, n):
        for i in range(3):
            smelt.graph_break()
            yield x * (i + n)

    def fn(x, n):
        made = values(x, n)
        first = next(made)
        return first, [v + 1 for v in made]

    return fn, numbers()


@program(graphs=0, eager=["graph-break-requested"])
def break_between_send_and_throw():
    def running(x):
        total = x
        while True:
            try:
                total = total + (yield total)
            except ValueError as e:
                total = total * float(str(e))

    def fn(x, n):
        made = running(x)
        next(made)
        a = made.send(n)
        smelt.graph_break()
        b = made.throw(ValueError("2"))
        made.close()
        return a, b

    return fn, numbers()


@program(graphs=0, eager=["graph-break-requested"])
def break_while_a_generator_has_a_finally():
    log = []

    def values(x):
        try:
            yield x * 2
            yield x
        finally:
            log.append("closed")

    def fn(x, n):
        for v in values(x):
            smelt.graph_break()
            break
        log.append("after")
        return v

    return fn, numbers(), log


@program(graphs=1, later=1, breaks=["graph-break-requested", "unsupported-object"])
def break_with_half_consumed_iterators():
    def fn(x, n):
        pairs = zip([1, 2, 3], (x, x + 1, x + 2), strict=True)
        counted = enumerate(map(lambda v: v * n, [4, 5, 6]))
        first, second = next(pairs), next(counted)
        smelt.graph_break()
        return first, second, list(pairs), list(counted)

    return fn, numbers()


@program(
    graphs=2,
    breaks=["graph-break-requested", "unsupported-object", "unsupported-object", "unsupported-object"],
)
def break_with_views_of_a_dictionary():
    def fn(x, n):
        d = {"a": x, "b": x + 1}
        keys, values = d.keys(), d.values()
        smelt.graph_break()
        d["c"] = x * 2
        return list(keys), list(values), len(keys), d

    return fn, numbers()


@program(
    graphs=1,
    later=4,
    breaks=[
        "disabled-function",
        "disabled-function",
        "disabled-function",
        "disabled-function",
        "disabled-function",
    ],
    unlike={"3.12": INLINED},
)
def break_in_a_comprehension():
    def fn(x, n):
        squares = [x * succeeds(i) for i in range(n)]
        table = {i: succeeds(i) for i in range(2)}
        return squares, table, x + 1

    return fn, numbers()


@program(graphs=0, later=6, breaks=[*["disabled-function"] * 3, "unsupported-object"])
def breaks_in_comprehensions_with_cells():
    def fn(x, n):
        rows = {i: x * i for i in range(n)}
        squares = {i: succeeds((lambda: rows[i] + 1)() is not None) for i in rows}
        return {i: (lambda: rows[i] * squares[i])() for i in rows}, squares

    return fn, numbers()


@program(graphs=1, later=1, breaks=["disabled-function", "disabled-function", "graph-break-requested"])
def break_with_closures_alive():
    def fn(x, n):
        count = 0

        def step():
            nonlocal count
            count += succeeds(n)
            return count

        a = step()
        smelt.graph_break()
        b = step()
        return x * a + b, count, step

    return fn, numbers()


@program(
    graphs=0,
    later=6,
    breaks=[
        "graph-break-requested",
        "graph-break-requested",
        "graph-break-requested",
        "graph-break-requested",
    ],
)
def break_in_recursion():
    def down(x, n):
        if n == 0:
            smelt.graph_break()
            return x
        return down(x + 1, n - 1) * 2

    def fn(x, n):
        return down(x, n)

    return fn, numbers()


@program(graphs=1, later=1, breaks=["graph-break-requested"])
def break_beside_globals_and_locals():
    def fn(x, n):
        y = x * 2
        smelt.graph_break()
        scope = sorted(locals())
        exec("z = n + 1", scope_of := {"n": n})
        return y, scope, scope_of["z"], "numbers" in globals(), eval("n * 3")

    return fn, numbers()


@program(
    graphs=2, later=2, breaks=["graph-break-requested", "graph-break-requested", "graph-break-requested"]
)
def break_in_a_class_body_and_super():
    class Base:
        def run(self, x):
            smelt.graph_break()
            return x * 2

    class Derived(Base):
        def run(self, x):
            made = super().run(x)
            smelt.graph_break()
            return super().run(made) + 1

    def fn(x, n):
        return Derived().run(x) + n

    return fn, numbers()


@program(graphs=1, later=1, breaks=["disabled-function", "disabled-function"])
def break_in_match():
    def fn(x, n):
        match succeeds(n), {"k": [n, x]}:
            case (1, {"k": [_, t]}):
                return t * 2
            case (k, {"k": [m, *_]}) if succeeds(k) > 3:
                return x * k + m
            case _:
                return x

    return fn, numbers()


@program(graphs=2, later=3, breaks=["disabled-function", "disabled-function"])
def break_that_leaves_an_error():
    def fn(x, n):
        y = x * 2
        if n == 2:
            fails(n)
        return y + succeeds(n)

    return fn, numbers()


@program(graphs=1, later=4, breaks=["disabled-function"])
def partials_and_getters_made_by_a_break():
    @smelt.disable
    def make(n):
        return (
            functools.partial(operator.add, n),
            operator.itemgetter(n % 2),
            re.compile("a" if n % 2 else "b"),
        )

    def fn(x, n):
        add, get, pattern = make(n)
        return (
            list(map(add, [1, 2])),
            get(["x", "y"]),
            sorted([[2, 1], [1, 2]], key=get),
            pattern.findall("aabb"),
            x + add(1),
        )

    return fn, numbers()


@program(graphs=0, eager=["graph-break-requested"])
def context_variables_around_a_break():
    variable = contextvars.ContextVar("variable", default=0)

    def fn(x, n):
        token = variable.set(n)
        smelt.graph_break()
        x = x * (variable.get() + 1)
        variable.reset(token)
        return x, variable.get()

    return fn, numbers(), lambda: variable.get()


@program(graphs=0, breaks=["graph-break-requested"])
def nested_results_across_a_break():
    def fn(x, n):
        nested = x
        for _ in range(150):
            nested = [nested]
        smelt.graph_break()
        return nested

    return fn, numbers()


@program(graphs=1, later=3, breaks=["graph-break-requested", "graph-break-requested"])
def group_is_split_after_a_break():
    def fn(x, n):
        log = []
        try:
            try:
                raise ExceptionGroup("g", [ValueError(n), KeyError(n), OSError(n)])
            except* ValueError as group:
                log.append(len(group.exceptions))
                smelt.graph_break()
            except* KeyError:
                smelt.graph_break()
                raise
        except ExceptionGroup as group:
            log.append((group.message, [type(e).__name__ for e in group.exceptions]))
        return x * 2, log

    return fn, numbers()
