"""Python code that native code starts: special methods inside containers, callbacks, descriptors, class creation.

Each program runs its special method only from C code. What the method reads must be guarded: when the environment changes
between two calls, the compiled function must recompile; after the change is reverted, the first entry is used again.
"""

from __future__ import annotations

import _abc
import abc
import collections
import contextvars
import copy
import dataclasses
import enum
import functools
import itertools
import json
import logging
import operator
import sys
import time
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from smelt import _native
from smelt.backends.eager import eager
from smelt.capture.base.call_handlers import BUILTINS
from smelt.capture.driver.cache_entries import entries_of, reasons_of, wrap
from smelt.capture.driver.frame_compiler import FrameCompiler
from smelt.config import DEFAULT
from smelt.errors import Unsupported
from smelt.reasons import INTERNAL, SIDE_EFFECT_IO, UNSUPPORTED_CALL, USER_EXCEPTION


class World:
    """What special methods read: an object from outside."""

    scale = 1.0


WORLD = World()
X = torch.arange(3.0)


class Key:
    """Orders, hashes, compares and prints by what the world says."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __lt__(self, other: Any) -> bool:
        return self.n * WORLD.scale < other.n * WORLD.scale

    def __eq__(self, other: Any) -> bool:
        return bool(WORLD.scale > 0) and isinstance(other, Key) and self.n == other.n

    def __hash__(self) -> int:
        return hash(self.n * WORLD.scale)

    def __repr__(self) -> str:
        return f"{self.n * WORLD.scale:.0f}"

    def __index__(self) -> int:
        return int(self.n * abs(WORLD.scale))

    def __bool__(self) -> bool:
        return self.n * WORLD.scale > 0

    def __format__(self, spec: str) -> str:
        return "x" * (int(WORLD.scale) + 3)

    def __add__(self, other: Any) -> Any:
        return Key(self.n + int(WORLD.scale) * (other.n if isinstance(other, Key) else other))

    def __call__(self, value: Any) -> float:
        return value * WORLD.scale


@functools.total_ordering
class Ordered:
    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: Any) -> bool:
        return bool(self.n == other.n)

    def __lt__(self, other: Any) -> bool:
        return self.n * WORLD.scale < other.n * WORLD.scale

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass
class Record:
    n: Any
    names: list[Any] = dataclasses.field(default_factory=list)


class Sequence:
    def __len__(self) -> int:
        return 2 + int(WORLD.scale)

    def __getitem__(self, i: int) -> float:
        if i >= len(self):
            raise IndexError
        return i * WORLD.scale


class Mapping:
    def keys(self) -> Any:
        return ["a", "b"]

    def __getitem__(self, key: str) -> float:
        return WORLD.scale


class Checked(abc.ABC):  # noqa: B024
    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        return WORLD.scale > 0


class Meta(type):
    def __instancecheck__(cls, obj: Any) -> bool:
        return WORLD.scale > 0


class ByMeta(metaclass=Meta):
    pass


class Pretender:
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        return int if WORLD.scale > 0 else str


class Named:
    def __set_name__(self, owner: Any, name: str) -> None:
        owner.found = WORLD.scale


class Base:
    found = 0.0

    def __init_subclass__(cls) -> None:
        cls.found = WORLD.scale


class Scaled:
    def __init__(self, n: int) -> None:
        self.n = n

    @property
    def value(self) -> float:
        return self.n * WORLD.scale

    def key(self) -> float:
        return self.n * WORLD.scale


class Wrapped(collections.UserDict):  # type: ignore[type-arg]
    pass


class Descriptor:
    def __get__(self, obj: Any, owner: Any) -> float:
        return WORLD.scale

    def __set__(self, obj: Any, value: Any) -> None:
        obj.__dict__["set"] = value * WORLD.scale

    def __delete__(self, obj: Any) -> None:
        obj.__dict__["deleted"] = WORLD.scale


class NonData:
    def __get__(self, obj: Any, owner: Any) -> float:
        return WORLD.scale


class MetaWithDescriptor(type):
    described = Descriptor()
    plain = NonData()


class Described(metaclass=MetaWithDescriptor):
    data, other = Descriptor(), NonData()

    def deleted(self) -> float:
        del self.data
        self.data = 2.0
        return self.__dict__["deleted"] + self.__dict__["set"]


class Child(Described):
    def inherited(self) -> Any:
        return super().data + super().other


class Color(enum.Enum):
    RED = 1

    def __str__(self) -> str:
        return "r" * (int(WORLD.scale) + 3)


class Measured:
    def __len__(self) -> int:
        return int(WORLD.scale > 0)


@typing.runtime_checkable
class HasValue(typing.Protocol):
    value: float


class OnlyIn:
    value_of_world = property(lambda self: WORLD.scale)

    def __getattr__(self, name: str) -> Any:
        if WORLD.scale > 0:
            raise AttributeError(name)
        return 1.0


KEYS = [Key(2), Key(1), Key(3)]
ORDERED = [Ordered(2), Ordered(1)]
RECORD = Record(Scaled(2), [Scaled(3)])
WRAPPED = Wrapped(scale=1.0)
copy.deepcopy(Scaled(1))  # leaves notes in the class
WORLD.scale = 1.0  # on the instance, where monkeypatch puts it back to


def made(base: Any) -> Any:
    class New(base):  # type: ignore[misc]
        attribute = Named() if base is object else 0

    return New


def text(x: Any) -> int:
    """A number out of a text, so that results can be compared."""
    return sum(map(ord, x))


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "sorted": lambda x: x * sorted(KEYS)[0].n,
    "sorted, fresh": lambda x: x * sorted([Key(5), Key(4)])[0].n,
    "list.sort": lambda x: x * (lambda v: (v.sort(), v)[1])([Key(5), Key(4)])[0].n,
    "min and max": lambda x: x * min(KEYS).n + max(KEYS).n,
    "tuples in sorted": lambda x: x * sorted([(1, Key(5)), (1, Key(4))])[0][1].n,
    "key is an object": lambda x: x * sorted([1, 2], key=Key(1))[0],
    "key is a partial": lambda x: x * sorted([1, 2], key=functools.partial(operator.mul, WORLD.scale))[0],
    "key is a methodcaller": lambda x: (
        x * sorted([Scaled(1), Scaled(2)], key=operator.methodcaller("key"))[0].n
    ),
    "key is an attrgetter": lambda x: (
        x * sorted([Scaled(1), Scaled(2)], key=operator.attrgetter("value"))[0].n
    ),
    "cmp_to_key": lambda x: (
        x * sorted([Scaled(1), Scaled(2)], key=functools.cmp_to_key(lambda a, b: int(a.value - b.value)))[0].n
    ),
    "total_ordering": lambda x: x * (ORDERED[0] >= ORDERED[1]),
    "hash of a tuple": lambda x: x * (hash((1, Key(1))) == hash((1, 1.0))),
    "set": lambda x: x * len({Key(1), Key(1)}),
    "set of a list": lambda x: x * len(set([Key(1), Key(1)])),  # noqa: C405
    "set comprehension": lambda x: x * len({Key(n) for n in (1, 1)}),
    "set.add": lambda x: x * (lambda s: (s.add(Key(1)), s.add(Key(1)), len(s))[2])(set()),
    "in a set": lambda x: x * (Key(1) in {Key(1)}),
    "dict": lambda x: x * len({Key(1): 1, Key(1): 2}),
    "dict comprehension": lambda x: x * len({Key(n): 1 for n in (1, 1)}),
    "dict()": lambda x: x * len(dict([(Key(1), 1), (Key(1), 2)])),  # noqa: C406
    "dict.get": lambda x: x * {Key(1): 2}.get(Key(1), 7),
    "dict lookup": lambda x: x * (lambda d: (d.__setitem__(Key(1), 3), len(d))[1])({Key(1): 2}),
    "dict.fromkeys": lambda x: x * len(dict.fromkeys([Key(1), Key(1)])),
    "Counter": lambda x: x * len(collections.Counter([Key(1), Key(1)])),
    "in a list": lambda x: x * (Key(1) in [Key(1)]),
    "list.count": lambda x: x * ([Key(1)].count(Key(1))),
    "list.index of another": lambda x: (
        x * (lambda v: v.index(Key(2)) if WORLD.scale > 0 else 5)([Key(1), Key(2)])
    ),
    "deque.count": lambda x: x * collections.deque([Key(1)]).count(Key(1)),
    "lists are equal": lambda x: x * ([Key(1)] == [Key(1)]),
    "tuples are ordered": lambda x: x * ((1, Key(1)) < (1, Key(2))),
    "dicts are equal": lambda x: x * ({"a": Key(1)} == {"a": Key(1)}),
    "nested are equal": lambda x: x * ([{"a": (Key(1),)}] == [{"a": (Key(1),)}]),
    "repr of a list": lambda x: x * text(repr(KEYS)),
    "str of a dict": lambda x: x * text(str({"a": (Key(1),)})),
    "f-string of a list": lambda x: x * text(f"{[Key(1)]}"),
    "f-string of a tuple, !r": lambda x: x * text(f"{(Key(1),)!r}"),
    "percent": lambda x: x * text("%s" % Key(1)) + text("%s %d" % ([Key(1)], 2)),  # noqa: UP031
    "percent of a tuple": lambda x: x * text("%s-%s" % (Key(1), 1)),  # noqa: UP031
    "str.format": lambda x: x * text("{} {:>3}".format(Key(1), Key(2))),  # noqa: UP032
    "str.format, attribute": lambda x: x * text("{0.value}".format(Scaled(2))),  # noqa: UP030, UP032
    "str.join of a map": lambda x: x * text(",".join(map(str, [Key(1), Key(2)]))),
    "map(repr)": lambda x: x * text(list(map(repr, KEYS))[0]),
    "map over a zip": lambda x: x * text([a for a, _ in zip(map(repr, KEYS), KEYS)][0]),
    "unpacked map": lambda x: x * text((lambda *v: v)(*map(repr, KEYS))[0]),
    "repr of a dataclass": lambda x: x * text(repr(Record(Key(1)))),
    "dataclass equality": lambda x: x * (Record(Key(1)) == Record(Key(1))),
    "asdict": lambda x: x * dataclasses.asdict(Record(WORLD.scale))["n"],
    "replace": lambda x: (
        x * dataclasses.replace(RECORD, n=Key(1))(2.0) if callable(RECORD) else x * RECORD.n.value
    ),
    "filter(None)": lambda x: x * len(list(filter(None, KEYS))),
    "any over a filter": lambda x: x * any(k.n > 0 for k in filter(None, KEYS)),
    "groupby": lambda x: x * len(list(itertools.groupby([Key(1), Key(1)]))),
    "accumulate": lambda x: x * list(itertools.accumulate([Key(1), Key(1)]))[-1].n,
    "compress": lambda x: x * len(list(itertools.compress([1, 2], [Key(1), 1]))),
    "iter with a sentinel": lambda x: (
        x * len(list(iter(iter([Key(2), Key(1), Key(1)]).__next__, Key(1)))) if WORLD.scale > 0 else x
    ),
    "range": lambda x: x * len(range(Key(3))),
    "index of a list": lambda x: x * [1.0, 2.0, 3.0, 4.0, 5.0][Key(1)],
    "slice": lambda x: x * len([1, 2, 3, 4][: Key(1)]),
    "operator.index": lambda x: x * operator.index(Key(1)),
    "list of a sequence": lambda x: x * sum(list(Sequence())),
    "reversed": lambda x: x * len(list(reversed(Sequence()))),
    "in a sequence": lambda x: x * (2.0 in Sequence()),
    "dict of a mapping": lambda x: x * dict(Mapping())["a"],  # type: ignore[call-overload]
    "keywords of a mapping": lambda x: x * (lambda **k: k)(**Mapping())["a"],
    "format_map": lambda x: x * text("{a}".format_map(Mapping())),
    "percent of a mapping": lambda x: x * text("%(a)s" % Mapping()),  # noqa: UP031
    "subclasshook": lambda x: x * isinstance(3, Checked),
    "issubclass": lambda x: x * issubclass(float, (Checked, str)),
    "instancecheck": lambda x: x * isinstance(3, ByMeta),
    "class property": lambda x: x * isinstance(Pretender(), int),
    "set_name": lambda x: x * made(object).found,
    "init_subclass": lambda x: x * made(Base).found,
    "type()": lambda x: x * type("New", (Base,), {}).found,  # type: ignore[attr-defined]
    "user dict": lambda x: x * WRAPPED["scale"],
    "json": lambda x: x * text(json.dumps([1], default=str)) * WORLD.scale,
    "deepcopy": lambda x: x * copy.deepcopy(Scaled(2)).value,
    "descriptors of a metaclass": lambda x: x * Described.described + Described.plain,  # type: ignore[attr-defined]
    "descriptors of a class": lambda x: x * Described.data + Described.other,
    "descriptors through super": lambda x: x * Child().inherited(),
    "deleted by a descriptor": lambda x: x * Child().deleted(),
    "str of an enum member": lambda x: x * text(str(Color.RED)) + text("%s" % Color.RED),  # noqa: UP031
    "enum member in an f-string": lambda x: x * text(f"{Color.RED}"),
    "filter by length": lambda x: x * len(list(filter(None, [Measured()]))),
    "protocol": lambda x: x * isinstance(OnlyIn(), HasValue),
    "getattr of an attrgetter": lambda x: x * operator.attrgetter("value_of_world")(OnlyIn()),
    "nested callback": lambda x: x * sorted([[Key(2)], [Key(1)]], key=lambda v: sorted(v)[0])[0][0].n,
}


if sys.version_info >= (3, 12):
    del PROGRAMS["protocol"]  # looks at instances without running their code


def compiled(fn: Callable[..., Any], fullgraph: bool = True) -> Any:
    return wrap(fn, FrameCompiler(eager, DEFAULT, fullgraph=fullgraph))


@pytest.mark.parametrize("name", PROGRAMS)
def test_reads_of_special_methods_are_guarded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn = PROGRAMS[name]
    monkeypatch.setitem(WRAPPED.data, "scale", 1.0)
    c = compiled(fn)
    _abc._reset_caches(Checked)  # type: ignore[attr-defined]
    torch.testing.assert_close(c(X), fn(X))
    torch.testing.assert_close(c(X + 1), fn(X + 1))
    assert len(entries_of(c.__code__)) == 1
    monkeypatch.setattr(WORLD, "scale", -2.0, raising=False)
    monkeypatch.setitem(WRAPPED.data, "scale", -2.0)
    torch.testing.assert_close(c(X), fn(X))
    monkeypatch.undo()
    torch.testing.assert_close(c(X), fn(X))
    assert len(entries_of(c.__code__)) == 2


# ------------------------------------------------------------------------------------------------- refusals


class Prints:
    def __repr__(self) -> str:
        time.sleep(0)
        return "printed"

    def __eq__(self, other: Any) -> bool:
        time.sleep(0)
        return True

    def __hash__(self) -> int:
        return 1

    def __call__(self, value: Any) -> Any:
        time.sleep(0)
        return value


REFUSED: dict[str, Callable[[Any], Any]] = {
    "repr": lambda x: x * len(repr([Prints()])),
    "equality": lambda x: x * (Prints() in [1, Prints()]),
    "dict key": lambda x: x * len({Prints(): 1, Prints(): 2}),
    "callable": lambda x: x * sorted([1.0, 2.0], key=Prints())[0],
    "library code that catches everything": lambda x: x * swallow(Prints()),
    "generator": lambda x: x * len(list(map(repr, [Prints()]))),
}


def swallow(obj: Any) -> int:
    """`inspect.unwrap` and its like: library code that turns any exception into a value."""
    return 1 if dataclasses.is_dataclass(obj) or operator.length_hint(Hinted(), 1) == 1 else 2


class Hinted:
    def __length_hint__(self) -> int:
        time.sleep(0)
        raise TypeError


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_code_below_native_code_ends_the_capture(name: str) -> None:
    c = compiled(REFUSED[name], fullgraph=False)
    torch.testing.assert_close(c(X), REFUSED[name](X))
    (reason,) = reasons_of(c.__code__)
    assert reason.kind is SIDE_EFFECT_IO and "sleep" in reason.detail and reason.line is not None
    assert reason.line.filename == __file__


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) * 2


class Overrides:
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] * WORLD.scale


def test_python_code_inside_of_operators_is_refused() -> None:
    def fn(x: Any) -> Any:
        with DispatchMode():
            return x + 1

    c = compiled(fn, fullgraph=False)
    torch.testing.assert_close(c(X), fn(X))
    assert UNSUPPORTED_CALL in [r.kind for r in reasons_of(c.__code__)]


def test_reads_of_torch_function_handlers_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Any) -> Any:
        return torch.add(x, Overrides())  # type: ignore[arg-type]

    c = compiled(fn)
    for scale in (WORLD.scale, 5.0):
        monkeypatch.setattr(WORLD, "scale", scale)
        torch.testing.assert_close(c(X), fn(X))


@pytest.mark.parametrize(
    "make", [lambda: (v for v in [1.0, 2.0]), lambda: iter({1.0, 2.0}), lambda: map(abs, [1.0])]
)
def test_capture_does_not_advance_environment_iterators(make: Callable[[], Any]) -> None:
    def f(x: Any, values: Any) -> Any:
        return x * sum(values)

    c = compiled(f, fullgraph=False)
    torch.testing.assert_close(c(X, make()), f(X, make()))
    (reason,) = reasons_of(c.__code__)
    assert "environment" in reason.detail


def test_exception_passes_through_native_code() -> None:
    class Raises:
        def __lt__(self, other: Any) -> bool:
            raise ValueError("no order")

    def f(x: Any) -> Any:
        try:
            sorted([Raises(), Raises()])
        except ValueError as e:
            return x * len(str(e))

    torch.testing.assert_close(compiled(f)(X), f(X))


def test_elements_of_native_iterators_are_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any) -> Any:
        for a, b in zip(map(str, KEYS), enumerate(filter(None, KEYS))):
            x = x * text(a) + b[0]
        return x

    c = compiled(f)
    torch.testing.assert_close(c(X), f(X))
    monkeypatch.setattr(WORLD, "scale", 2.0, raising=False)
    torch.testing.assert_close(c(X), f(X))


def test_torch_modes_pass_through_a_window() -> None:
    """A callback that computes on tensors: the trace's own modes run below the window."""

    def f(x: Any) -> Any:
        rows = sorted([Row(2, x), Row(1, x + 1)])
        return rows[0].x + torch.stack([r.doubled() for r in rows]).sum(0)

    class Row:
        def __init__(self, n: int, x: Any) -> None:
            self.n, self.x = n, x

        def doubled(self) -> Any:
            return self.x * 2

        def __lt__(self, other: Any) -> bool:
            self.x = torch.nn.functional.relu(self.x) + 1
            return self.n < other.n

    torch.testing.assert_close(compiled(f)(X), f(X))


def test_calls_on_tensors_open_no_window() -> None:
    before = _native.state()["diverted"]
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())

    def f(x: Any) -> Any:
        return torch.cat([net(x), x * 2], -1)

    with torch.no_grad():
        compiled(f)(X)
    assert _native.state()["diverted"] == before


# --------------------------------------------------------------------------------------- what else is read


UNSET: contextvars.ContextVar[float] = contextvars.ContextVar("UNSET")


def test_unset_context_variable_is_guarded() -> None:
    def f(x: Any) -> Any:
        return x * UNSET.get(3.0)

    c = compiled(f)
    torch.testing.assert_close(c(X), X * 3)
    token = UNSET.set(5.0)
    torch.testing.assert_close(c(X), X * 5)
    UNSET.set(7.0)
    torch.testing.assert_close(c(X), X * 7)
    UNSET.reset(token)
    torch.testing.assert_close(c(X), X * 3)
    assert len(entries_of(c.__code__)) == 3


LOG = logging.getLogger("tests.capture.windows")


SILENCED: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
    "level": (lambda: None, lambda: LOG.setLevel(logging.DEBUG)),
    "parent's level": (lambda: None, lambda: logging.getLogger("tests.capture").setLevel(logging.DEBUG)),
    "disabled": (
        lambda: (setattr(LOG, "disabled", True), LOG.setLevel(logging.DEBUG))[1],
        lambda: setattr(LOG, "disabled", False),
    ),
    "disable": (
        lambda: (logging.disable(logging.INFO), LOG.setLevel(logging.DEBUG))[1],
        lambda: logging.disable(logging.NOTSET),
    ),
}


@pytest.mark.parametrize("how", SILENCED)
@pytest.mark.parametrize("logger", [LOG, logging.LoggerAdapter(LOG, {})], ids=["logger", "adapter"])
def test_disabled_logger_is_guarded(how: str, logger: Any, caplog: pytest.LogCaptureFixture) -> None:
    def f(x: Any) -> Any:
        logger.debug("called")
        return x + 1

    def records() -> int:
        return sum(r.name == LOG.name for r in caplog.records)

    before, after = SILENCED[how]
    c = compiled(f, fullgraph=False)
    try:
        before()
        c(X), c(X)
        assert len(entries_of(c.__code__)) == 1 and records() == 0
        after()
        c(X)
        assert records() == 1
    finally:
        logging.disable(logging.NOTSET)
        LOG.disabled = False
        for name in (LOG.name, "tests.capture"):
            logging.getLogger(name).setLevel(logging.NOTSET)


def test_attribute_that_replaces_a_parameter_recompiles() -> None:
    net = torch.nn.Linear(3, 3)

    def f(x: Any) -> Any:
        return net(x)

    c = compiled(f)
    with torch.no_grad():
        torch.testing.assert_close(c(X), f(X))
        net.__dict__["weight"] = torch.nn.Parameter(torch.ones(3, 3))
        torch.testing.assert_close(c(X), f(X))
        net.__dict__["weight"] = torch.ones(3, 3, dtype=torch.float64).float() * 2
        torch.testing.assert_close(c(X), f(X))
        del net.__dict__["weight"]
        torch.testing.assert_close(c(X), f(X))


# ----------------------------------------------------------------------------------------- smelt's own errors


def test_error_raised_only_by_capture_is_reported_as_smelts(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(vm: Any, args: Any, kwargs: Any) -> Any:
        raise AttributeError("a handler's own mistake")

    monkeypatch.setitem(BUILTINS, divmod, broken)
    # else another may have changed the world
    monkeypatch.setattr("smelt.capture.driver.frame_compiler.is_only_thread", lambda: True)

    def f(x: Any) -> Any:
        return x * divmod(7, 2)[0]

    c = compiled(f, fullgraph=False)
    torch.testing.assert_close(c(X), X * 3)
    (reason,) = reasons_of(c.__code__)
    assert reason.kind is INTERNAL and "a handler's own mistake" in reason.detail
    with pytest.raises(Unsupported, match="a handler's own mistake"):
        compiled(f)(X)


def test_user_error_is_the_users() -> None:
    def f(x: Any) -> Any:
        return x * {}["missing"]

    c = compiled(f)
    with pytest.raises(KeyError, match="missing"):
        c(X)
    (reason,) = reasons_of(c.__code__)
    assert reason.kind is USER_EXCEPTION


def test_methods_are_guarded_by_their_class() -> None:
    """Each access of `dict.fromkeys` gives another object."""

    def fn(x: torch.Tensor, make: Any, read: Any) -> torch.Tensor:
        return x * len(make("ab")) + read(b"\x01", "big")

    c = compiled(fn)
    for _ in range(3):
        torch.testing.assert_close(c(X, dict.fromkeys, int.from_bytes), fn(X, dict.fromkeys, int.from_bytes))
    assert len(entries_of(c.__code__)) == 1
    torch.testing.assert_close(
        c(X, collections.Counter, int.from_bytes), fn(X, collections.Counter, int.from_bytes)
    )
