"""What a function prints, logs and warns of comes out as eager writes it: same text, same order, same places."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import io
import logging
import sys
import warnings

import pytest
import torch
from torch import nn

import smelt
from smelt.report import inspect
from tests.harness.catalogue import call, compilation_of, for_each_control_flow, program, tensor

FORMAT = "%(levelname)s %(filename)s:%(lineno)d %(funcName)s: %(message)s"


def integers(*shape):
    """Whole numbers: text shows all digits, so values must be eager's to the last bit."""
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def three(*args):
    return [args, args, args]


# -------------------------------------------------------------------------------------------------------- print


@program(graphs=1)
def prints_constants():
    def fn(x):
        print("start", 1, 2.5, None, True)
        y = x * 2
        print("shape", y.shape, y.dtype, y.device)
        return y

    return fn, three(integers(2, 3))


@program(graphs=1, later=1)
def prints_tensors():
    def fn(x):
        print("x =", x)
        y = x + 1
        print("y =", y, "sum", y.sum())
        return y

    return fn, [(integers(2, 3),), (integers(2, 3) + 5,), (integers(4),), (integers(2, 3) * 3,)]


@program(graphs=1, later=1)
def separators_and_ends():
    def fn(x, n):
        print("a", x, n, sep=", ", end=".\n")
        print(end="")
        print()
        print("x", "y", sep="", end="|", flush=True)
        print(*range(n), sep="-")
        print("none", "given", sep=None, end=None, file=None)
        return x - n

    return fn, [(integers(2), 3), (integers(2), 3), (integers(2), 4)]


@program(graphs=1, later=1)
def formatted_strings():
    def fn(x, name, width):
        total = x.sum()
        print(f"{name}: {total} {total:.3f} {total:>10.2f}|{x}|{x!r}|{name!r:>{width}}")
        return total

    return fn, [(integers(3), "loss", 8), (integers(3) + 1, "loss", 8), (integers(3), "accuracy", 12)]


@program(graphs=1, later=1)
def old_formats():
    def fn(x, n):
        total = x.sum()
        print("%s has %d, %5.1f %r" % ("x", n, total, x))
        print("{} {1} {0!r} {k:.2f}".replace("{}", "{0}").format(total, n, k=total))
        print("%(a)s-%(b)03d" % {"a": "dict", "b": n})
        print("%.2f%%" % total)
        return x

    return fn, [(integers(3), 1), (integers(3) * 2, 1), (integers(3), 2)]


@program(graphs=1)
def joined_and_added():
    def fn(x):
        text = "sum " + str(x.sum()) + "; " + repr(x)
        print(", ".join([text, "end", str(x.max())]))
        return x * 1

    return fn, [(integers(3),), (integers(3) * 2,), (integers(3) * 3,)]


@program(graphs=1)
def text_is_returned_and_stored():
    log = []

    def fn(x):
        text = f"mean {x.mean()}"
        log.append(text)
        log.append(str(x.shape))
        return {"text": text, "again": [text, text + "!"]}

    return fn, [(integers(3),), (integers(3) * 2,), (integers(3),)], log


@program(graphs=1)
def printed_before_written_in_place():
    def fn(x):
        print("before", x)
        y = x * 2
        print(f"y {y}")
        y.add_(1)
        x.mul_(3)
        print("after", x, y)
        return y

    return fn, [(integers(2, 2),), (integers(2, 2),), (integers(2, 2) + 1,)]


@program(graphs=1)
def printed_views_of_what_is_written():
    def fn(x):
        row = x[0]
        print(row)
        x[0, 0] = 7
        print(row, row + x[1])
        return row

    return fn, three(integers(2, 2))


@program(graphs=1)
def containers_of_tensors():
    def fn(x):
        y = x + 1
        state = {"x": x, "list": [y, 1, "two"], "none": None, 3: (y, (x,))}
        print(state)
        state["list"].append("later")
        print([y], (y,), collections.deque([y, 2], maxlen=4), collections.OrderedDict(a=y), [], {}, ())
        return state

    return fn, [(integers(2),), (integers(2) * 2,), (integers(2) * 3,)]


@program(graphs=1)
def a_list_that_contains_itself():
    def fn(x):
        items = [1, x]
        items.append(items)
        mapping = {"items": items}
        mapping["self"] = mapping
        print(items, mapping)
        return x + 1

    return fn, three(integers(2))


@program(graphs=1, later=2)
def text_of_a_list_at_the_time():
    seen = []

    def fn(x):
        print("empty", seen)
        seen.append(x.shape[0])
        print("one more", seen, len(seen))
        return x + len(seen)

    return fn, three(integers(2)), seen


class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y
        self.shown = 0

    def __repr__(self):
        self.shown += 1
        return f"Point({self.x}, {self.y!r}, shown {self.shown} times)"


class Named(Point):
    def __str__(self):
        return f"<{type(self).__name__} {super().__repr__()}>"

    def __format__(self, spec):
        return f"[{spec}:{self.x}]"


@program(graphs=1, later=1)
def objects_with_their_own_text():
    point = Named(1, "one")

    def fn(x):
        inner = Point(x + 1, [x])
        print(point, [point], inner, f"{point:wide} {inner}")
        return x, point.shown

    return fn, three(integers(2)), point


@dataclasses.dataclass
class Config:
    size: int
    scale: float
    names: list
    weight: object = None


@program(graphs=1, later=1)
def data_classes():
    config = Config(3, 0.5, ["a", "b"])

    def fn(x):
        print(config)
        print(f"{Config(1, 2.0, [], x)}")
        config.size += 1
        return x * config.scale

    return fn, three(integers(2)), config


@program(graphs=1, later=1)
def numbers_and_containers_of_numbers():
    def fn(x, n):
        print(
            n,
            -n,
            n / 3,
            1e30,
            float("nan"),
            complex(1, n),
            b"bytes",
            range(n),
            {n},
            frozenset([n]),
            slice(1, n),
        )
        print({"a": {"b": [n, (n,)]}}, type(x), int, len, torch.float32)
        return x * n

    return fn, [(integers(2), 3), (integers(2), 3), (integers(2), 4)]


@program(graphs=1, later=1)
def in_loops_and_branches():
    def fn(x, n):
        for i in range(n):
            if i % 2:
                print("odd", i, x.sum())
                continue
            print("even", i)
            x = x + i
        else:
            print("end of", n)
        return x

    return fn, [(integers(2), 3), (integers(2), 4), (integers(2), 3)]


@program(graphs=1)
def in_called_functions_and_generators():
    def helper(x, depth):
        print("  " * depth + f"depth {depth}")
        return x if depth == 2 else helper(x + 1, depth + 1)

    def pieces(x):
        for i in range(2):
            print("piece", i)
            yield x * i
        print("no more")

    def fn(x):
        y = helper(x, 0)
        return sum(pieces(y))

    return fn, three(integers(2))


@program(graphs=1, later=1)
def before_an_exception_that_is_caught():
    def fn(x, n):
        try:
            print("trying", x.sum())
            if n > 1:
                raise ValueError(f"too big: {n}")
            print("fine")
        except ValueError as e:
            print("caught", e)
        finally:
            print("done")
        return x + n

    return fn, [(integers(2), 1), (integers(2), 2), (integers(2), 1)]


@program(graphs=1, eager=["user-exception"])
def before_an_exception_that_is_raised():
    def fn(x, n):
        print("about to", x)
        if n > 1:
            raise ValueError(f"too big: {n}")
        print("did not")
        return x + n

    return fn, [(integers(2), 1), (integers(2), 2), (integers(2), 1), (integers(2), 2)]


@program(graphs=1, eager=["user-exception"])
def an_exception_that_shows_a_tensor():
    def fn(x, n):
        if n > 1:
            raise ValueError(f"bad {x.sum()}")
        return x + n

    return fn, [(integers(2), 1), (integers(2), 2), (integers(2), 3)]


@program(graphs=2, later=2, breaks=["data-dependent-value"])
def tests_of_a_tensors_text():
    def fn(x):
        text = str(x.sum())
        if len(text) > 12 or text == "tensor(1.)" or text in {"tensor(2.)"}:
            return x + 1
        return x - 1, text.upper(), text[:3], text.split("(")

    return fn, [(integers(2),), (integers(2) * 2,), (integers(2) * 1000000,), (integers(2),)]


@program(graphs=0)
def formats_that_raise():
    def fn(x, spec):
        try:
            print(f"{x:{spec}}")
        except (TypeError, ValueError) as e:
            return f"{type(e).__name__}: {e}"
        return x

    return fn, [(integers(2), ".2f"), (integers(1)[0], ".2f"), (integers(1)[0], "d"), (integers(1)[0], ">8")]


@program(graphs=1)
def numbers_of_every_type():
    def fn(a, b, c, d):
        print(f"{a:.3f} {b:5d} {c} {d}", "%d" % b, "%s" % c, a, b, c, d, "%e" % a)
        return a + b

    return fn, three(torch.tensor(1.5), torch.tensor(3), torch.tensor(True), torch.tensor(1 + 2j))


@program(graphs=1)
def to_standard_error_and_streams():
    buffer = io.StringIO()

    def fn(x, file):
        print("to error", x, file=sys.stderr)
        print("to a buffer", x.sum(), file=file, flush=True)
        file.write("written\n")
        file.writelines(["one\n", f"{x}\n"])
        sys.stdout.write("directly\n")
        sys.stdout.flush()
        return x + 1

    return fn, three(integers(2), buffer), lambda: buffer.getvalue()


class Tee:
    """A stream of the user's, which the function looks at."""

    def __init__(self):
        self.lines = []

    def write(self, text):
        self.lines.append(text)


@program(graphs=2, later=2, breaks=["output"])
def to_a_stream_that_the_function_reads():
    tee = Tee()

    def fn(x):
        print("line", x.sum(), file=tee)
        return x + len(tee.lines)

    return fn, three(integers(2)), tee


@program(graphs=0, eager=["unsupported-call"])
def standard_output_is_replaced():
    from contextlib import redirect_stdout

    def fn(x):
        buffer = io.StringIO()
        print("outside")
        with redirect_stdout(buffer):
            print("inside", x)
        print("again outside")
        return x + 1, buffer.getvalue()

    return fn, three(integers(2))


@program(graphs=1, grad=True)
def tensors_with_a_history():
    weight = nn.Parameter(torch.ones(2))
    wide = torch.arange(30.0).requires_grad_(True)

    def fn(x):
        y = x * weight
        print(y, weight, [weight], x, f"{y.sum()} {y.sum():.1f} {weight}", wide * 2, wide)
        with torch.no_grad():
            print(y + 1, y.detach())
            weight.add_(1)
        print(weight, y)
        return y.detach()

    return fn, three(integers(2).requires_grad_(True)), weight


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.calls = 0

    def extra_repr(self):
        return f"size={self.weight.shape[0]}"

    def forward(self, x):
        self.calls += 1
        print(f"{type(self).__name__} in {'training' if self.training else 'eval'}")
        return x * self.weight


@program(graphs=1, later=1, grad=False)
def modules():
    model = nn.Sequential(Layer(), nn.ReLU(), Layer())

    def fn(x):
        print(model[0])
        return model(x)

    return fn, three(integers(2)), model


@program(graphs=0)
def no_tensors_between_prints():
    def fn(n):
        print("only", n)
        return [n, str(n), f"{n:03d}"]

    return fn, [(1,), (1,), (2,)]


@program(graphs=1)
def unusual_tensors():
    def fn(empty, large, half, inf):
        print(empty, large, half, inf, large[0], empty.sum())
        print(torch.zeros(0, 3), torch.tensor([1, 2]), torch.tensor(3.0), torch.zeros(2, dtype=torch.bool))
        return large + 1

    arguments = (
        torch.zeros(0),
        torch.arange(2000).reshape(2, 1000),
        torch.ones(2, dtype=torch.bfloat16),
        torch.tensor([float("inf"), float("nan"), 1e-10, 3.0]),
    )
    return fn, three(*arguments)


@program(graphs=1)
def print_passed_as_a_function():
    def fn(x, show):
        show("shown", x.shape)
        list(map(show, [1, x, "two"]))
        functools.partial(show, "partial", sep="/")(x)
        return x + 1

    return fn, three(integers(2), print)


@program(graphs=0, breaks=["output"])
def a_print_that_is_an_error():
    def fn(x, sep):
        print("first")
        try:
            print("a", "b", sep=sep)
        except TypeError as e:
            return str(e)
        return x

    return fn, [(integers(2), 1), (integers(2), None), (integers(2), "-")]


@program(graphs=0)
def keywords_by_name():
    def fn(x, **options):
        print("a", x, **options)
        return x

    return fn, [call(integers(2), sep=":"), call(integers(2), sep=":", end="!\n"), call(integers(2))]


# --------------------------------------------------------------------------------------------------------- logs


class Loggers:
    """Loggers that the programs find here: what they hold (a cache of levels) is no concern of the comparison."""


loggers = Loggers()


def logger_with(level=logging.INFO):
    """What a logger of its own, `loggers.own`, has written."""
    stream = io.StringIO()
    loggers.own = logger = logging.getLogger(f"catalogue.{len(logging.root.manager.loggerDict)}")
    logger.setLevel(level)
    logger.propagate = False
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(FORMAT))
    logger.addHandler(handler)
    return stream.getvalue


@program(graphs=1)
def logs_by_level():
    written = logger_with()

    def fn(x):
        loggers.own.debug("not seen %s", x)
        loggers.own.info("seen %s of %d", "one", 2)
        y = x + 1
        loggers.own.warning("a tensor: %s", y)
        loggers.own.error("sum %.2f, all %r", y.sum(), [y])
        loggers.own.log(logging.CRITICAL, "critical")
        return y

    return fn, [(integers(2),), (integers(2) * 2,), (integers(2),)], written


@program(graphs=1)
def logs_from_functions_and_with_stack_levels():
    written = logger_with()

    def report(message, *args):
        loggers.own.info(message, *args, stacklevel=2)
        loggers.own.info("from report")

    def fn(x):
        report("caller's line %s", x.shape)
        loggers.own.info(
            "several lines",
        )
        loggers.own.info("above", stacklevel=2)
        return x * 2

    return fn, three(integers(2)), written


@program(graphs=1, later=2)
def logs_of_objects():
    written = logger_with()
    point, items = Point(1, 2), [1, 2]

    def fn(x):
        loggers.own.info("%s %r %s", point, items, {"x": x})
        items.append(3)
        loggers.own.info(items)
        loggers.own.info("100%")
        loggers.own.info("%(a)s and %(b)d", {"a": "mapping", "b": 2})
        return x * 2

    return fn, three(integers(2)), lambda: (written(), items, point)


def levels(following, written):
    """Gives what was written; each time, the logger's level changes to the next one."""
    following = iter(following)

    def state():
        loggers.own.setLevel(next(following))
        return written()

    return state


@program(graphs=0, later=1)
def logs_whose_level_changes():
    written = logger_with()

    def fn(x):
        if loggers.own.isEnabledFor(logging.DEBUG):
            x = x + 1
        loggers.own.debug("debug %s", x.sum())
        loggers.own.info("info")
        return x

    return (
        fn,
        [(integers(2),), (integers(2) * 2,), (integers(2),), (integers(2),)],
        levels([20, 10, 20, 40], written),
    )


@program(graphs=1, eager=["output"])
def logs_an_exception():
    written = logger_with()

    def fn(x, n):
        try:
            if n:
                raise ValueError("inside")
        except ValueError:
            loggers.own.exception("failed")
        return x + n

    return (
        fn,
        [(integers(2), 0), (integers(2), 1), (integers(2), 1)],
        lambda: written().count("ValueError: inside"),
    )


@program(graphs=1)
def adapters_and_extra():
    written = logger_with()

    class Prefixed(logging.LoggerAdapter):
        def process(self, msg, kwargs):
            return f"[{self.extra['run']}] {msg}", kwargs

    loggers.adapter = Prefixed(loggers.own, {"run": 7})

    def fn(x):
        loggers.adapter.info("adapted %s", x)
        loggers.adapter.debug("not seen")
        loggers.own.info("extra", extra={"step": 1})
        return x + 1

    return fn, three(integers(2)), written


class Collecting(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record.getMessage())


@program(graphs=2, later=2, breaks=["output"])
def a_handler_that_the_function_reads():
    collecting = Collecting()
    loggers.own = logging.Logger("collecting", logging.INFO)
    loggers.own.addHandler(collecting)

    def fn(x):
        loggers.own.info("message %s", x.sum())
        return x + len(collecting.records)

    return fn, three(integers(2)), lambda: collecting.records


@program(graphs=1, later=1, breaks=["unsupported-call"])
def cached_warnings():
    written = logger_with()

    @functools.lru_cache(None)
    def warning_once(logger, message):
        logger.warning(message)

    @functools.lru_cache(None)
    def print_once(message):
        print(message)

    def fn(x, n):
        print("first")
        warning_once(loggers.own, "once")
        print_once("printed once")
        warning_once(loggers.own, f"for {n}")
        return x * n

    return fn, [(integers(2), n) for n in (1, 1, 2, 2, 3)], written


@program(graphs=1)
def a_disabled_logger_and_no_handlers():
    loggers.silent = logging.Logger("silent")
    loggers.silent.addHandler(logging.NullHandler())
    written = logger_with()
    loggers.own.disabled = True

    def fn(x):
        loggers.silent.warning("to nobody %s", x)
        loggers.own.error("to nobody either")
        return x + 1

    return fn, three(integers(2)), written


@program(graphs=2, breaks=["data-dependent-value"])
def a_list_of_tensors_is_sorted_by_its_texts():
    rows = [integers(2), integers(3), 5]

    def fn(x):
        y = x * 2
        rows.sort(key=repr)
        return y + x, rows

    return fn, three(integers(2)), rows


def ignored() -> list[object]:
    """The filters that ignore all of a common class; imports add others."""
    common = (DeprecationWarning, RuntimeWarning, Warning)
    return [f for f in warnings.filters if f[0] == "ignore" and f[2] in common]


@program(graphs=1)
def warnings_that_filters_inside_ignore():
    def fn(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.warn("old", DeprecationWarning)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="over", category=RuntimeWarning)
                warnings.warn("overflow", RuntimeWarning)
            return x * 2

    return fn, [(tensor(3),)] * 3, ignored


def shown(recorded):
    return [(type(m.message), str(m.message), m.category, m.lineno, m.filename) for m in recorded]


@program(graphs=1, fullgraph=True)
def recorded_warnings():
    def fn(x):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            warnings.warn("old", DeprecationWarning)
            y = x * 2
            warnings.warn(RuntimeWarning("overflow"))
        return y, len(found), str(found[0].message), shown(found), found[-1].category

    return fn, [(tensor(3),)] * 3


@program(graphs=1, fullgraph=True)
def no_warning_to_record():
    def fn(x):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("ignore")
            warnings.warn("ignored")
            with warnings.catch_warnings(record=True) as inner:
                warnings.simplefilter("always")
                warnings.warn("inner")
        return x + len(found), found, shown(inner)

    return fn, [(tensor(3),)] * 3


@for_each_control_flow(
    dict(graphs=1),
    dict(graphs=3, breaks=["data-dependent-condition", "output", "unsupported-effect", "unsupported-effect"]),
)
def a_break_while_warnings_are_recorded():
    def fn(x):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            x = x * 2
            if x.sum() > -100:
                x = x + 1
        return x * 2, found

    return fn, [(torch.ones(3),)] * 3


@program(graphs=0, eager=["output"])
def a_recorded_warning_of_native_code():
    def fn(x):
        y = x + 1
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            y = torch.tensor(y)
        return y * 2, len(found)

    return fn, [(torch.ones(3),)] * 3


@program(graphs=1, later=1)
def equal_filters_of_each_call():
    def fn(x, action):
        warnings.warn("note")
        return x * 2

    @contextlib.contextmanager
    def quiet(action):
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            warnings.filterwarnings(action, message="no.*", module="other")
            yield

    class Calls:
        def __len__(self):
            return 14

        def __iter__(self):
            for i in range(14):
                with quiet("ignore" if i < 12 else "default"):
                    yield tensor(3), i > 11

    return fn, Calls()


@program(graphs=1, breaks=["unsupported-effect"])
def filters_of_the_process():
    def fn(x):
        kept = warnings.filters[:]
        warnings.simplefilter("ignore")
        warnings.filters[:] = kept
        return x + 1

    return fn, [(tensor(3),)] * 3, ignored


@for_each_control_flow(
    dict(graphs=1), dict(graphs=2, breaks=["data-dependent-condition", "unsupported-effect"])
)
def a_break_between_filters():
    def fn(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if (x * 2).sum() > -100:
                x = x + 1
            return x * 2

    return fn, [(torch.ones(3),)] * 3, ignored


# ------------------------------------------------------------------------------------------------------ progress bars


def over_a_bar(tqdm, x):
    for i in tqdm.tqdm(range(3), desc="bar"):
        x = x * 2 + i
    return x + 1


def over_a_bar_in_a_variable(tqdm, x):
    bar = tqdm.trange(3)
    for i in bar:
        x = x * 2 + i
        bar.set_description(f"step {i}")
    return x + 1


def updates_a_bar(tqdm, x):
    with tqdm.tqdm(total=3) as bar:
        for i in range(3):
            x = x * 2 + i
            bar.update(1)
    return x + 1


@pytest.mark.parametrize(
    "loop", [over_a_bar, over_a_bar_in_a_variable, updates_a_bar], ids=lambda fn: fn.__name__
)
def test_loops_with_progress_bars_are_compiled_between_the_breaks(loop):
    tqdm = pytest.importorskip("tqdm")

    def fn(x):
        return loop(tqdm, x * 2)

    compiled, x = smelt.compile(fn), tensor(3)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), fn(x))
        first = inspect.graph_count(compiled)
    found = compilation_of(compiled, first)
    assert found.eager == () and found.graphs > 1
