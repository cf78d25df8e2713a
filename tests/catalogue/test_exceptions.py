"""Exceptions: every way into and out of try blocks, contexts, causes, groups, and errors that leave the function.

PYTEST_DONT_REWRITE: the `assert` statements of the programs are part of what is tested.
"""

import contextlib
import heapq
import json
import operator
import sys

import pytest
import torch

import smelt
from tests.harness.agreement import failure_of
from tests.harness.catalogue import asserts_on_gpu, program, tensor


class Stop(Exception):
    def __init__(self, message, code=0):
        super().__init__(message)
        self.code = code
        self.seen = []


class Quiet(Stop):
    def __str__(self):
        return f"quiet {self.code}"


def numbers():
    return [(tensor(3), 0), (tensor(3), 0), (tensor(3), 1), (tensor(3), 2), (tensor(3), 3)]


def chain(error):
    """An exception and what it comes from, as text."""
    if error is None:
        return None
    return (
        type(error).__name__,
        str(error),
        chain(error.__cause__),
        chain(error.__context__),
        error.__suppress_context__,
    )


@program(graphs=1, later=3)
def try_except_else_finally():
    def fn(x, n):
        log = []
        try:
            log.append("try")
            value = [10, 20][n]
            if n == 1:
                raise KeyError(n)
        except IndexError as e:
            log.append(f"index {e}")
            x = x * 2
        except KeyError as e:
            log.append(repr(e))
            x = x * 3
        else:
            log.append(value)
            x = x * 4
        finally:
            log.append("finally")
        return x, log

    return fn, numbers()


@program(graphs=1, later=2)
def return_in_finally_wins():
    def fn(x, n):
        try:
            if n == 1:
                raise ValueError("lost")
            return x + 1
        finally:
            if n:
                return x - n

    return fn, numbers()


@program(graphs=1, later=3)
def break_and_continue_in_finally():
    def fn(x, n):
        out = []
        for i in range(4):
            try:
                if i == n:
                    raise ValueError(i)
                out.append(x + i)
            except ValueError:
                out.append(x * 10)
                continue
            finally:
                if i == 2:
                    break
                out.append(x - i)
        else:
            out.append("else")
        return out

    return fn, numbers()


@program(graphs=1, later=3)
def break_swallows_an_exception():
    def fn(x, n):
        for i in range(3):
            try:
                raise RuntimeError(i)
            finally:
                if i == n % 3:
                    break
                else:
                    continue
        return x + i

    return fn, numbers()


@program(graphs=1, later=2)
def nested_try():
    def fn(x, n):
        log = []
        try:
            try:
                if n == 0:
                    raise ValueError("inner")
                if n == 1:
                    raise TypeError("passes")
                x = x / 1
            except ValueError:
                log.append("caught value")
                raise LookupError("from handler")
            finally:
                log.append("inner finally")
        except (LookupError, TypeError) as e:
            log.append(chain(e))
            x = x + 1
        return x, log

    return fn, numbers()


@program(graphs=1, later=3)
def implicit_context():
    def fn(x, n):
        try:
            try:
                {}["missing"]
            except KeyError:
                [][n]
        except IndexError as e:
            return x + 1, chain(e)

    return fn, numbers()


@program(graphs=1, later=1)
def context_of_an_error_in_a_called_function():
    def check(v):
        if v is not None:
            raise TypeError("checked")

    def fn(x, n):
        try:
            try:
                1 // 0
            except ZeroDivisionError:
                check(n)
        except TypeError as e:
            return x + 1, chain(e)

    return fn, numbers()


@program(graphs=1, later=3)
def context_is_gone_after_the_handler():
    def fn(x, n):
        try:
            1 // 0
        except ZeroDivisionError:
            pass
        try:
            raise ValueError(n)
        except ValueError as e:
            return x + 1, chain(e), sys.exc_info()[0]

    return fn, numbers()


@program(graphs=1, later=3)
def raise_from():
    def fn(x, n):
        try:
            try:
                int("a")
            except ValueError as e:
                if n == 0:
                    raise KeyError("k") from e
                if n == 1:
                    raise KeyError("k") from None
                if n == 2:
                    raise KeyError from LookupError
                raise KeyError("k") from RuntimeError("other")
        except KeyError as e:
            return x + n, chain(e)

    return fn, numbers()


@program(graphs=1, later=1)
def raise_from_something_else():
    def fn(x, n):
        try:
            raise KeyError("k") from n
        except TypeError as e:
            return x + 1, str(e)

    return fn, numbers()


@program(graphs=1, later=1)
def raise_what_is_no_exception():
    def fn(x, n):
        out = []
        for bad in (n, "text", int, object()):
            try:
                raise bad
            except TypeError as e:
                out.append(str(e))
        return x + 1, out

    return fn, numbers()


@program(graphs=1, later=1)
def except_what_is_no_class():
    def fn(x, n):
        try:
            try:
                raise KeyError("k")
            except (n, ValueError):
                return x
        except TypeError as e:
            return x * 2, chain(e)

    return fn, numbers()


@program(graphs=1, later=3)
def bare_raise():
    def again():
        raise

    def fn(x, n):
        log = []
        try:
            try:
                raise Stop("s", n)
            except Stop as e:
                log.append(e.code)
                e.code += 1
                if n == 0:
                    raise
                if n == 1:
                    again()
                raise e
        except Stop as e:
            log.append((e.code, chain(e)))
        return x * len(log), log

    return fn, numbers()


@program(graphs=1, later=1)
def bare_raise_without_an_exception():
    def fn(x, n):
        try:
            raise
        except RuntimeError as e:
            return x + n, str(e)

    return fn, numbers()


@program(graphs=1, later=1)
def name_of_the_exception_is_deleted():
    def fn(x, n):
        e = 1
        try:
            raise ValueError
        except ValueError as e:
            pass
        try:
            return x, e
        except UnboundLocalError as error:
            return x + n, str(error)

    return fn, numbers()


@program(graphs=1, later=2)
def custom_exceptions_with_state():
    def deep(x, n):
        if n > 2:
            raise Quiet("q", n)
        if n > 1:
            error = Stop("s", code=n)
            error.seen.append(x)
            raise error
        return x

    def fn(x, n):
        try:
            return deep(x, n) + 1
        except Quiet as e:
            return x, str(e), e.args, e.code
        except Stop as e:
            return e.seen[0] * 2, e.seen[0] is x, str(e), repr(e)

    return fn, numbers()


@program(graphs=1, later=3)
def exception_is_returned():
    def fn(x, n):
        try:
            raise Stop("kept", n)
        except Stop as e:
            e.seen.append(x + 1)
            kept = e
        return kept, x * 2

    return fn, numbers()


@program(graphs=1, later=3)
def exception_with_cause_is_returned():
    def fn(x, n):
        try:
            try:
                raise KeyError(n)
            except KeyError as e:
                raise Stop("wrapped") from e
        except Stop as e:
            e.add_note("a note")
            kept = e
        return kept, x * 2

    return fn, numbers()


@program(graphs=1, later=1)
def exception_is_stored_outside():
    class Holder:
        last = None

    holder = Holder()

    def fn(x, n):
        try:
            return x + [1, 2][n]
        except IndexError as e:
            holder.last = e
            return x

    return fn, numbers(), holder


@program(graphs=1, later=3)
def builtin_exceptions_with_fields_are_returned():
    def fn(x, n):
        out = []
        try:
            x.nothing_here
        except AttributeError as e:
            out.append(e.name)
        try:
            undefined_name  # noqa: F821
        except NameError as e:
            out.append((e.name, str(e)))
        out.append(StopIteration(n))
        out.append(SystemExit(3))
        out.append(OSError(2, "gone"))
        out.append(KeyError("a", 1))
        out.append(UnicodeDecodeError("utf8", b"a", 0, 1, "why"))
        out.append(ImportError("i", name="n", path="p"))
        return x + 1, out

    return fn, numbers()


@program(graphs=1, later=1, eager=["user-exception"])
def raises_out_of_the_function():
    def fn(x, n):
        y = x * 2
        if n == 2:
            raise Stop("out", n)
        return y

    return fn, numbers()


@program(graphs=1, later=1, eager=["user-exception"])
def raises_out_with_a_chain():
    def fn(x, n):
        try:
            return x + (1 // (n - 1))
        except ZeroDivisionError as e:
            raise Quiet("wrapped", n) from e
        finally:
            log.append(n)

    log = []
    return fn, numbers(), log


@program(graphs=0, later=1)
def error_of_a_tensor_operation_is_caught():
    def fn(x, n):
        try:
            return x @ torch.ones(n + 2)
        except RuntimeError as e:
            return x, str(e).split("\n")[0]

    return fn, numbers()


@program(graphs=0, later=1, eager=["user-exception"])
def error_of_a_tensor_operation_leaves():
    def fn(x, n):
        return x.view(n + 1)

    return fn, numbers()


@program(graphs=1, later=3)
def mutation_before_an_error_stays():
    def fn(x, n):
        seen = []
        try:
            seen.append(x + 1)
            state["count"] = n
            seen.append([1, 2][n])
        except IndexError:
            seen.append("error")
        return seen

    state = {}
    return fn, numbers(), state


@program(graphs=1, later=1)
def raised_in_a_dunder():
    class Grumpy:
        def __add__(self, other):
            raise Stop("add", 1)

        def __bool__(self):
            raise Stop("bool", 2)

        def __len__(self):
            return -1

        def __getitem__(self, key):
            raise KeyError(key)

        def __iter__(self):
            return 5

        def __getattr__(self, name):
            raise AttributeError(f"no {name}")

        def __contains__(self, item):
            raise Stop("contains", 3)

        def __eq__(self, other):
            raise Stop("eq", 4)

        def __call__(self):
            raise Stop("call", 5)

        __hash__ = None

    def attempt(f):
        try:
            return f()
        except Exception as e:
            return type(e).__name__, str(e)

    def fn(x, n):
        g = Grumpy()
        tries = [
            lambda: g + 1, lambda: bool(g), lambda: len(g), lambda: g["k"], lambda: list(g), lambda: g.name, lambda: 1 in g,
            lambda: g == g, lambda: g(), lambda: {g: 1}, lambda: [1, 2].index(g), lambda: g < 1, lambda: -g, lambda: [*g],
            lambda: getattr(g, "x", "default"), lambda: hasattr(g, "x"), lambda: 1 + g, lambda: g - 1, lambda: int(g),
        ]  # fmt: skip
        return [attempt(t) for t in tries], x + n

    return fn, numbers()


@program(graphs=1, later=3)
def messages_of_the_interpreter():
    def attempt(f):
        try:
            return f()
        except Exception as e:
            return type(e).__name__, str(e), e.args

    def fn(x, n):
        def unbound():
            if n > 10:
                late = 1
            return late

        def free():
            return later

        a, s, d = [1, 2], "text", {"k": 1}
        tries = [
            lambda: a[5], lambda: a["x"], lambda: d["q"], lambda: s[9], lambda: (1, 2)[n + 2], lambda: 1 + "a", lambda: "a" + 1,
            lambda: a.nothing, lambda: None.x, lambda: n.real.y, lambda: 5(), lambda: len(5), lambda: iter(5), lambda: next(a),
            lambda: [][0], lambda: {}.popitem(), lambda: [].pop(), lambda: set().pop(), lambda: int("x"), lambda: float("x"),
            lambda: 1 / 0, lambda: 1 % 0, lambda: 1.0 // 0, lambda: 2**-1, lambda: 0**-1, lambda: "a" * "b", lambda: a < 5,
            lambda: sorted([1, "a"]), lambda: max([]), lambda: sum(["a"]), lambda: unbound(), lambda: free(),
            lambda: isinstance(1, 5), lambda: issubclass(1, int), lambda: super(int, "a"), lambda: [].remove(3),
            lambda: [].index(3), lambda: "abc".index("z"), lambda: {[]: 1}, lambda: {1: 2}[[]], lambda: {*[[]]},
            lambda: chr(-1), lambda: ord("ab"), lambda: range(1, 2, 0), lambda: slice(), lambda: zip(1), lambda: enumerate(2),
            lambda: dict([1]), lambda: dict([(1, 2, 3)]), lambda: "{} {}".format(1), lambda: "%d" % "a", lambda: "%s %s" % 1,
            lambda: f"{1:q}", lambda: bytes([300]), lambda: "é".encode("ascii"), lambda: -"a", lambda: ~1.5, lambda: not_there,
            lambda: object().x, lambda: object() < 1, lambda: type("T", (1,), {}), lambda: getattr(1, 2), lambda: a[1:2:0],
        ]  # fmt: skip
        out = [attempt(t) for t in tries]
        later = 1
        return out, x + later

    return fn, numbers()


@program(graphs=1, later=1)
def unpacking_errors():
    def attempt(f):
        try:
            return f()
        except Exception as e:
            return type(e).__name__, str(e)

    def fn(x, n):
        def two(v):
            a, b = v
            return a, b

        def starred(v):
            a, *b, c = v
            return a, b, c

        values = [
            (1,),
            (1, 2, 3),
            5,
            "ab",
            "a",
            {"k": 1},
            iter([1, 2, 3]),
            (i for i in range(1)),
            None,
            [],
            {1, 2},
        ]
        return (
            [attempt(lambda v=v: two(v)) for v in values],
            [attempt(lambda v=v: starred(v)) for v in values[:4]],
            x + n,
        )

    return fn, numbers()


@program(graphs=1, later=3)
def assertions():
    def fn(x, n):
        try:
            assert n != 1, f"n is {n}"
            assert x.shape[0] == 3
            assert n != 2
            assert (n != 3, "always true")
        except AssertionError as e:
            return x * 2, e.args
        return x + 1

    return fn, numbers()


@program(graphs=1, later=3)
def exception_hierarchy():
    def fn(x, n):
        for cls in (KeyError, ZeroDivisionError, UnicodeError, NotImplementedError, FileNotFoundError, Quiet):
            try:
                raise cls("e") if cls is not Quiet else Quiet("e", n)
            except (LookupError, ArithmeticError) as e:
                x = x + len(type(e).__name__)
            except (OSError, RuntimeError):
                x = x * 2
            except Stop as e:
                x = x - e.code
            except Exception:
                x = x - 1
        return x

    return fn, numbers()


@program(graphs=1, later=3)
def base_exceptions_pass_except_exception():
    def fn(x, n):
        try:
            try:
                raise (KeyboardInterrupt, SystemExit, GeneratorExit, BaseException)[n]("b")
            except Exception:
                x = x * 100
        except BaseException as e:
            return x + n, type(e).__name__, e.args

    return fn, numbers()


@program(graphs=1)
def except_star_splits():
    def fn(x, n):
        log = []
        try:
            raise ExceptionGroup(
                "g", [ValueError("a"), TypeError("b"), ExceptionGroup("n", [ValueError("c"), KeyError("d")])]
            )
        except* ValueError as group:
            log.append([str(e) for e in group.exceptions])
        except* (TypeError, KeyError) as group:
            log.append(repr(group))
        return x + len(log), log

    return fn, numbers()


@program(graphs=1, later=3)
def except_star_with_a_plain_exception():
    def fn(x, n):
        try:
            raise ValueError(n)
        except* ValueError as group:
            log.append((type(group).__name__, [repr(e) for e in group.exceptions], str(group)))
        return x + 1

    log = []
    return fn, numbers(), log


@program(graphs=1, later=1)
def except_star_leaves_a_rest():
    def fn(x, n):
        log = []
        try:
            try:
                raise ExceptionGroup("g", [ValueError("a"), KeyError("b"), OSError("c")])
            except* ValueError:
                log.append("value")
            except* KeyError:
                if n:
                    raise
                raise TypeError("new")
        except ExceptionGroup as group:
            log.append((group.message, [chain(e)[:2] for e in group.exceptions]))
        return x * 2, log

    return fn, numbers()


@program(graphs=1, later=1)
def except_star_not_entered():
    def fn(x, n):
        log = []
        try:
            if n:
                raise ExceptionGroup("g", [ValueError("v")])
        except* KeyError:
            log.append("key")
        except* ValueError as e:
            log.append(len(e.exceptions))
        else:
            log.append("else")
        finally:
            log.append("finally")
        return x + 1, log

    return fn, numbers()


@program(graphs=1, later=1)
def groups_split_and_derive():
    def fn(x, n):
        group = ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [TypeError(2), ValueError(3)])])
        match, rest = group.split(ValueError)
        only = group.subgroup(lambda e: isinstance(e, TypeError))
        return x + n, repr(match), repr(rest), repr(only), group.message, group

    return fn, numbers()


@program(graphs=0, eager=["user-exception"])
def except_star_error_leaves():
    def fn(x, n):
        try:
            raise ExceptionGroup("g", [ValueError(n), KeyError(n)])
        except* ValueError:
            x = x + 1
        return x

    return fn, numbers()


@program(graphs=1, later=3)
def exception_in_an_except_clause_expression():
    def classes(n):
        return {0: ValueError, 1: (ValueError, KeyError)}[n]

    def fn(x, n):
        try:
            try:
                raise ValueError("v")
            except classes(n):
                return x + 1
        except KeyError as e:
            return x - 1, chain(e)

    return fn, numbers()


@program(graphs=1, later=3)
def exc_info_and_with_traceback():
    def fn(x, n):
        try:
            raise Stop("s", n)
        except Stop as e:
            kind, value, _ = sys.exc_info()
            same = value is e, kind is Stop, sys.exception() is e
            again = e.with_traceback(None) is e
        return x + 1, same, again, sys.exc_info()

    return fn, numbers()


@program(graphs=1, later=2)
def retry_loop():
    class Flaky:
        def __init__(self, fails):
            self.left = fails

        def __call__(self, x):
            if self.left:
                self.left -= 1
                raise ConnectionError(f"{self.left} left")
            return x * 2

    def fn(x, n):
        flaky, errors = Flaky(n), []
        for attempt in range(3):
            try:
                out = flaky(x)
                break
            except ConnectionError as e:
                errors.append(str(e))
        else:
            return "gave up", errors
        return out, attempt, errors

    return fn, numbers()


@program(graphs=1, later=1)
def recursion_error_is_caught():
    def forever(n):
        return forever(n + 1)

    def fn(x, n):
        try:
            forever(0)
        except RecursionError as e:  # the words of its text depend on where the stack ends
            return x + n, str(e)[:32]

    return fn, numbers()


@program(graphs=1)
def exceptions_compare_by_identity_and_hash():
    def fn(x, n):
        a, b = ValueError("a"), ValueError("a")
        return x + 1, a == b, a == a, a in [b, a], len({a, b}), isinstance(a, Exception), a.args == b.args

    return fn, numbers()


@program(graphs=1, later=3)
def error_in_default_str():
    class Odd(Exception):
        def __init__(self, a, b):
            self.a, self.b = a, b

    def fn(x, n):
        try:
            raise Odd(n, b=x)
        except Odd as e:
            return e.args[0], e.b + 1, str(e.a), len(e.args)

    return fn, numbers()


@program(graphs=1, later=1)
def finally_runs_in_every_frame():
    log = []

    def inner(n):
        try:
            if n == 3:
                raise Stop("inner", n)
            return n
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
        except Stop:
            return x
        finally:
            log.append("outer")

    return fn, numbers(), log


@program(graphs=1, later=3)
def notes():
    def fn(x, n):
        e = ValueError("v")
        e.add_note("first")
        e.add_note(f"second {n}")
        try:
            e.add_note(5)
        except TypeError as error:
            return x + 1, e.__notes__, str(error)

    return fn, numbers()


def test_called_while_the_caller_handles_an_exception():
    def fn(x):
        try:
            raise ValueError("inside")
        except ValueError as e:
            return x * 2, chain(e), sys.exc_info()[1] is e

    def from_handler(call, x):
        try:
            {}["k"]
        except KeyError:
            return call(x)

    compiled, x = smelt.compile(fn), tensor(3)
    for _ in range(2):
        for way in (lambda call: call(x), lambda call: from_handler(call, x)):
            got, want = way(compiled), way(fn)
            assert torch.equal(got[0], want[0])
            assert got[1:] == want[1:]


@asserts_on_gpu
@program(graphs=1)
def an_operator_that_raises_where_it_is_handled():
    def fn(table, places):
        try:
            found = torch.nn.functional.embedding(places, table)
        except IndexError as e:
            return table * 2, type(e)
        return found + 1

    return fn, [(tensor(4, 3), torch.tensor(places)) for places in ([0, 3], [1, 9], [2, 2])]


@asserts_on_gpu
@program(graphs=1)
def an_operator_that_raises_where_a_manager_suppresses_it():
    def fn(table, places):
        with contextlib.suppress(IndexError):
            return table[places] + 1
        return table * 2

    return fn, [(tensor(4, 3), torch.tensor(places)) for places in ([0, 3], [1, 9], [2, 2])]


class Marked(torch.Tensor):
    pass


NAMED = {
    "+ list": lambda x: x + [1],
    "list +": lambda x: [1] + x,
    "+ text": lambda x: x + "a",
    "text +": lambda x: "a" + x,
    "in text": lambda x: x in "abc",
    "<": lambda x: x < "a",
    "@": lambda x: x @ "a",
    "+=": lambda x: operator.iadd(x, "a"),
    "index": lambda x: x[1.5],
    "call": lambda x: x(),
    "with": lambda x: x.__enter__(),
    "next": lambda x: next(x),
    "attribute": lambda x: x.missing,
    "delete": lambda x: operator.delitem(x, 0),
    "join": lambda x: "".join([x]),
    "method of a list": lambda x: list.append(x, 1),
    "concat": lambda x: operator.concat([], x),
    "round": lambda x: round(x, "a"),
    "json": lambda x: json.dumps([x]),
    "size": lambda x: torch.zeros(x, x),
    "argument": lambda x: torch.where(x, "a", 1),
    "method": lambda x: x.expand("a"),
    "heappush": lambda x: heapq.heappush(x, 1),
    "isinstance": lambda x: isinstance(1, x),
    "iter": lambda x: iter(x, 1),
    "vars": lambda x: vars([x]),
    "class": lambda x: (type(x).__name__, repr(type(x)), f"{type(x)}"),
}
CLASSES = {"Tensor": lambda x: x, "Parameter": torch.nn.Parameter, "Marked": lambda x: x.as_subclass(Marked)}


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("raising", NAMED)
def test_texts_name_the_class_of_the_tensor(raising, cls):
    fails = NAMED[raising]

    def fn(x):
        try:
            return fails(x)
        except Exception as e:
            return type(e), str(e), str(e.__context__)

    x = CLASSES[cls](tensor(3))
    compiled = smelt.compile(fn, backend="eager")
    assert [compiled(x), compiled(x)] == [fn(x), fn(x)]
    assert failure_of(compiled) is None
