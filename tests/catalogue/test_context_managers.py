"""`with`: own managers, contextlib's, torch's; suppressing, nested, left by every exit."""

import contextlib
import contextvars
import io
import sys

import torch

from tests.harness.catalogue import program, tensor


class Recorder:
    """Notes what happens to it; suppresses what it is told to."""

    def __init__(self, log, name="r", suppress=()):
        self.log, self.name, self.suppress = log, name, suppress

    def __enter__(self):
        self.log.append(("enter", self.name))
        return self

    def __exit__(self, kind, error, traceback):
        self.log.append(("exit", self.name, kind and kind.__name__, error and str(error)))
        return kind is not None and issubclass(kind, self.suppress)


def numbers():
    return [(tensor(3), 0), (tensor(3), 0), (tensor(3), 1), (tensor(3), 2), (tensor(3), 3)]


@program(graphs=1, later=1)
def own_manager():
    log = []

    def fn(x, n):
        with Recorder(log, n) as r:
            y = x * 2
            r.name = "renamed"
        return y, r

    return fn, numbers(), log


@program(graphs=1, later=3)
def own_manager_suppresses():
    log = []

    def fn(x, n):
        y = x + 1
        with Recorder(log, suppress=(ValueError, LookupError)):
            y = x * [1, 2, 3][n]
            if n == 1:
                raise ValueError("no")
            y = y + 1
        return y

    return fn, numbers(), log


@program(graphs=1, eager=["user-exception"])
def own_manager_lets_through():
    log = []

    def fn(x, n):
        with Recorder(log, suppress=(ValueError,)):
            if n:
                raise KeyError(n)
        return x + 1

    return fn, numbers(), log


@program(graphs=1, later=3)
def several_managers_in_one_with():
    log = []

    def fn(x, n):
        with Recorder(log, "a") as a, Recorder(log, "b", (KeyError,)), Recorder(log, "c") as c:
            if n > 1:
                raise KeyError(n)
            log.append(a is c)
            x = x + 1
        return x * 2

    return fn, numbers(), log


@program(graphs=1, later=3)
def parenthesized_with():
    def fn(x, n):
        log = []
        with (
            Recorder(log, "a") as first,
            contextlib.suppress(IndexError),
            Recorder(log, "b"),
        ):
            x = x * [1, 2][n]
        return x + 1, first.name, log

    return fn, numbers()


@program(graphs=1, later=3)
def left_by_return_break_continue():
    def fn(x, n):
        log = []

        def inner():
            for i in range(4):
                with Recorder(log, i):
                    if i == n:
                        continue
                    if i == n + 1:
                        break
                    with Recorder(log, "inner"):
                        if n == 3:
                            return x * 10
            return x + i

        return inner(), log

    return fn, numbers()


@program(graphs=1, later=1)
def error_in_enter():
    class Bad(Recorder):
        def __enter__(self):
            raise RuntimeError("enter")

    def fn(x, n):
        log = []
        try:
            with Recorder(log, "outer"), Bad(log, "bad"):
                x = x * 100
        except RuntimeError as e:
            log.append(str(e))
        return x + n, log, x * 2

    return fn, numbers()


@program(graphs=1, later=1)
def error_in_exit():
    class Bad(Recorder):
        def __exit__(self, *error):
            raise LookupError("exit")

    def fn(x, n):
        try:
            with Bad([], "bad"):
                if n:
                    raise ValueError("body")
                x = x + 1
        except LookupError as e:
            return x * 2, str(e), type(e.__context__).__name__

    return fn, numbers()


@program(graphs=1, later=1)
def what_is_no_manager():
    class Half:
        def __enter__(self):
            return self

    def fn(x, n):
        out = []
        for bad in (n, Half(), None):
            try:
                with bad:
                    x = x + 1
            except (TypeError, AttributeError) as e:
                out.append((type(e).__name__, str(e)))
        return x + 1, out

    return fn, numbers()


@program(graphs=1, later=3)
def truth_of_exit_is_python_code():
    class Answer:
        def __init__(self, value):
            self.value = value

        def __bool__(self):
            log.append("asked")
            return self.value

    class Manager:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            return Answer(True)

    log = []

    def fn(x, n):
        with Manager():
            if n:
                raise ValueError(n)
        return x + 1

    return fn, numbers(), log


@program(graphs=1)
def dunders_are_looked_up_on_the_type():
    class Manager:
        def __enter__(self):
            return "type"

        def __exit__(self, *error):
            return None

    def fn(x, n):
        m = Manager()
        m.__enter__ = lambda: "instance"
        with m as got:
            pass
        return x + 1, got

    return fn, numbers()


@program(graphs=1, later=1)
def contextmanager_function():
    log = []

    @contextlib.contextmanager
    def scope(name):
        log.append(f"+{name}")
        try:
            yield name.upper()
        finally:
            log.append(f"-{name}")

    def fn(x, n):
        with scope("a") as a, scope("b") as b:
            x = x * 2
        return x + n, a + b

    return fn, numbers(), log


@program(graphs=1, later=3)
def contextmanager_handles_errors():
    log = []

    @contextlib.contextmanager
    def scope(n):
        try:
            yield
        except KeyError as e:
            log.append(repr(e))
            if n == 2:
                raise ValueError("converted") from e
        else:
            log.append("fine")

    def fn(x, n):
        try:
            with scope(n):
                if n:
                    raise KeyError(n) if n < 3 else TypeError(n)
                x = x + 1
        except (ValueError, TypeError) as e:
            log.append((str(e), type(e.__cause__).__name__))
        return x * 2

    return fn, numbers(), log


@program(graphs=1)
def contextmanager_that_does_not_yield_once():
    @contextlib.contextmanager
    def never():
        return
        yield

    @contextlib.contextmanager
    def twice():
        yield 1
        yield 2

    def fn(x, n):
        out = []
        for make in (never, twice):
            try:
                with make():
                    x = x + 1
            except RuntimeError as e:
                out.append(str(e))
        return x * 2, out

    return fn, numbers()


@program(graphs=1, later=1)
def contextmanager_as_decorator():
    log = []

    @contextlib.contextmanager
    def scope():
        log.append("in")
        yield
        log.append("out")

    @scope()
    def inner(x):
        return x * 2

    def fn(x, n):
        return inner(x) + inner(x + n)

    return fn, numbers(), log


@program(graphs=1, later=1)
def context_decorator_class():
    class Scope(contextlib.ContextDecorator):
        def __enter__(self):
            log.append("in")
            return self

        def __exit__(self, *error):
            log.append("out")
            return False

    log = []

    @Scope()
    def inner(x):
        return x * 2

    def fn(x, n):
        return inner(x) + n

    return fn, numbers(), log


@program(graphs=1, later=3)
def exit_stack():
    def fn(x, n):
        log = []
        with contextlib.ExitStack() as stack:
            for i in range(n):
                stack.enter_context(Recorder(log, i))
            stack.callback(log.append, "callback")
            stack.callback(lambda *a, **k: log.append((a, k)), 1, b=2)
            stack.push(lambda kind, error, tb: log.append(kind))
            x = x * 2
        return x, log

    return fn, numbers()


@program(graphs=1, later=3)
def exit_stack_unwinds_an_error():
    def fn(x, n):
        log = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(Recorder(log, "outer", (KeyError,)))
            stack.enter_context(Recorder(log, "inner"))
            if n:
                raise KeyError(n)
            x = x + 1
        return x * 2, log

    return fn, numbers()


@program(graphs=1, later=1)
def exit_stack_pop_all():
    def fn(x, n):
        log = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(Recorder(log, "kept"))
            later = stack.pop_all()
        log.append("between")
        later.close()
        return x + n, log, x * 2

    return fn, numbers()


@program(graphs=1, later=3)
def suppress():
    def fn(x, n):
        with contextlib.suppress(IndexError, KeyError):
            x = x * [1, 2][n]
            x = x + 1
        return x * 3

    return fn, numbers()


@program(graphs=1, later=1)
def nullcontext():
    def fn(x, n):
        with contextlib.nullcontext(x * 2) as y:
            pass
        with contextlib.nullcontext() as nothing, torch.no_grad() if n else contextlib.nullcontext():
            z = y + 1
        return y, z, nothing

    return fn, numbers()


@program(graphs=1)
def closing():
    class Resource:
        def __init__(self):
            self.open = True

        def close(self):
            self.open = False

    def fn(x, n):
        with contextlib.closing(Resource()) as resource:
            was = resource.open
        return x * 2, was, resource.open

    return fn, numbers()


@program(graphs=0, eager=["unsupported-call"])
def redirect_stdout():
    import io

    def fn(x, n):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            print("captured", n)
        return x + 1, out.getvalue()

    return fn, numbers()


@program(graphs=1, later=3)
def manager_kept_outside():
    log = []
    manager = Recorder(log, "kept")

    def fn(x, n):
        with manager as m:
            m.name = n
            x = x + 1
        return x

    return fn, numbers(), manager


@program(graphs=1)
def reentrant_manager():
    class Depth:
        depth = 0

        def __enter__(self):
            self.depth += 1
            return self.depth

        def __exit__(self, *error):
            self.depth -= 1

    def fn(x, n):
        d = Depth()
        with d as a, d as b:
            with d as c:
                x = x * (a + b + c)
        return x, d.depth

    return fn, numbers()


@program(graphs=1, later=1)
def grad_modes():
    def fn(x, n):
        seen = [torch.is_grad_enabled()]
        with torch.no_grad():
            seen.append(torch.is_grad_enabled())
            with torch.enable_grad():
                seen.append(torch.is_grad_enabled())
            with torch.set_grad_enabled(n > 0):
                seen.append(torch.is_grad_enabled())
        return x * 2, seen, torch.is_grad_enabled()

    return fn, numbers()


@program(graphs=1, later=3)
def grad_mode_left_by_an_error():
    def fn(x, n):
        try:
            with torch.no_grad():
                raise ValueError(n)
        except ValueError:
            return x * 2, torch.is_grad_enabled()

    return fn, numbers()


@program(graphs=1, later=1)
def no_grad_as_decorator():
    @torch.no_grad()
    def inner(x):
        return x * 2, torch.is_grad_enabled()

    def fn(x, n):
        y, mode = inner(x)
        return y + n, mode, torch.is_grad_enabled()

    return fn, numbers()


@program(graphs=1, later=2)
def autocast_block():
    def fn(x, n):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=n != 1):
            y = torch.mm(x.view(1, 3), x.view(3, 1))
        return y, y.dtype, torch.is_autocast_enabled("cpu")

    return fn, numbers()


@program(graphs=1, later=1)
def manual_enter_and_exit():
    def fn(x, n):
        guard = torch.no_grad()
        guard.__enter__()
        inside = torch.is_grad_enabled()
        guard.__exit__(None, None, None)
        log = []
        r = Recorder(log)
        Recorder.__enter__(r)
        r.__exit__(None, None, None)
        return x + n, inside, torch.is_grad_enabled(), log, x * 2

    return fn, numbers()


@program(graphs=1, later=1)
def context_variables():
    variable = contextvars.ContextVar("variable", default=1)

    def fn(x, n):
        before = variable.get()
        token = variable.set(n)
        inside = variable.get()
        variable.reset(token)
        return x * (before + inside + variable.get())

    return fn, numbers()


@program(graphs=1, later=1)
def generator_manager_by_hand():
    def manager(log):
        log.append("in")
        try:
            yield "value"
        except ValueError as e:
            log.append(str(e))
        log.append("out")

    def fn(x, n):
        log = []
        running = manager(log)
        got = next(running)
        try:
            running.throw(ValueError("v")) if n else next(running)
        except StopIteration:
            log.append("stopped")
        return x * 2, got, log

    return fn, numbers()


@program(graphs=1)
def with_targets():
    class Pair:
        def __enter__(self):
            return 1, (2, 3)

        def __exit__(self, *error):
            pass

    class Box:
        pass

    def fn(x, n):
        box, items = Box(), {}
        with Pair() as (a, (b, c)), Pair() as box.value, Pair() as items["k"]:
            pass
        return x * (a + b + c), box, items

    return fn, numbers()


@program(graphs=1, later=3)
def exit_sees_the_exception_handled():
    class Manager:
        def __enter__(self):
            return self

        def __exit__(self, kind, error, traceback):
            try:
                raise
            except ValueError as again:
                log.append(again is error)
            return True

    log = []

    def fn(x, n):
        with Manager():
            raise ValueError(n)
        return x + 1

    return fn, numbers(), log


@program(graphs=1)
def with_in_a_generator_closed_by_the_collector():
    log = []

    def values(x):
        with Recorder(log, "g"):
            yield x
            yield x + 1

    def fn(x, n):
        for v in values(x):
            break
        log.append("after")
        return v * 2

    return fn, numbers(), log


@program(graphs=1)
def finally_of_a_dropped_generator():
    log = []

    def values(x):
        try:
            yield x
        finally:
            log.append("finally")

    def first(x):
        made = values(x)
        return next(made) * 2

    def fn(x, n):
        y = first(x)
        log.append("between")
        made = values(x)
        next(made)
        made = None
        log.append("end")
        return y

    return fn, numbers(), log


@program(graphs=1, breaks=["output", "output", "unsupported-call"])
def redirect_stdout_to_an_argument():
    def fn(x, out):
        with contextlib.redirect_stdout(out):
            print("captured", x.shape)
        print("outside")
        return x * 2, out.getvalue()

    return fn, [(tensor(3), io.StringIO()) for _ in range(3)]


@program(graphs=1, breaks=["output", "unsupported-call"])
def stdout_replaced_by_hand():
    def fn(x, out):
        old, sys.stdout = sys.stdout, out
        print("captured")
        sys.stdout = old
        return x * 2, out.getvalue()

    return fn, [(tensor(3), io.StringIO()) for _ in range(3)]
