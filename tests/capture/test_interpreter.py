"""Python programs, captured and replayed: each must return eager's result, and its guards must accept the call.

PYTEST_DONT_REWRITE: the `assert` statements of the programs are part of what is tested.
"""

# ruff: noqa: C416, C417, UP031, B009, B010, SIM222  (odd programs are the point)

import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import inspect
import itertools
import math
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.report.inspect import reasons
from smelt.tracing.fake.fake_tensor import FakeTensor
from tests.harness.captured import check_replay

PROGRAMS = {}


def program(fn):
    PROGRAMS[fn.__name__] = fn
    return fn


@dataclasses.dataclass
class Record:
    value: torch.Tensor
    scale: int = 2
    parts: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int = 1


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


class Color(enum.Enum):
    RED = 1
    GREEN = 2


class Base:
    kind = "base"

    def __init__(self, k):
        self.k = k

    def scaled(self, x):
        return x * self.k

    @property
    def next_k(self):
        return self.k + 1

    @classmethod
    def make(cls, k):
        return cls(k)

    @staticmethod
    def plus_one(x):
        return x + 1


class Rich(Base):
    def scaled(self, x):
        return super().scaled(x) + self.next_k

    def __getattr__(self, name):
        if name == "magic":
            return 5
        raise AttributeError(name)

    def __add__(self, other):
        return self.k + other

    def __eq__(self, other):
        return self.k == other.k

    def __hash__(self):
        return 1

    def __lt__(self, other):
        return self.k < other.k

    def __len__(self):
        return 3

    def __getitem__(self, i):
        if i > 2:
            raise IndexError
        return i * self.k

    def __contains__(self, value):
        return value == 1

    def __bool__(self):
        return True

    def __call__(self, x):
        return x * 2

    def __enter__(self):
        self.k += 1
        return self

    def __exit__(self, *error):
        self.k -= 1
        return True

    def __repr__(self):
        return f"Rich({self.k})"

    @functools.cached_property
    def cached(self):
        return self.k * 10


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = 1


class Verbose:
    """Every read goes through a `__getattribute__` in Python."""

    def __init__(self):
        self.k = 4

    def __getattribute__(self, name):
        if name == "alias":
            name = "k"
        return super().__getattribute__(name)


class Descriptor:
    def __get__(self, obj, cls):
        return 7 if obj is None else obj.k

    def __set__(self, obj, value):
        obj.k = value * 2


class Described:
    field = Descriptor()


def plus_one(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs) + 1

    return wrapper


@plus_one
def decorated(x, *, s=2):
    return x * s


@functools.lru_cache(None)
def cached(n):
    return n * 3


VARIABLE = contextvars.ContextVar("variable", default=3)
GLOBAL = {"a": 2, "b": [3, 4]}


@contextlib.contextmanager
def manager(v):
    try:
        yield v + 1
    finally:
        pass


@program
def dataclass_(x):
    d = Record(x, scale=3)
    d.parts.append(d.value * d.scale)
    return d.parts[0] + dataclasses.replace(d, scale=5).scale + Frozen(3).a


@program
def named_tuple(x):
    n = Pair(x, second=2)
    p, q = n
    return p * q + n._replace(second=3).second


@program
def enum_(x):
    c = Color.RED
    return x * c.value if c is Color.RED and c in (Color.GREEN, Color.RED) else x


@program
def classes(x):
    d = Rich.make(3)
    y = d.scaled(x) + Rich.plus_one(x) + d.magic + (d + 1) + len(d) + sum(d) + (1 in d) + d(x)
    return y + (d == Rich(3)) + d.cached + len(repr(d)) + len(Rich.kind) + sorted([Rich(4), d])[0].k


@program
def getattribute(x):
    v = Verbose()
    return x * v.alias + v.k


@program
def descriptors(x):
    d = Described()
    d.field = 3
    return x * d.field + Described.field


@program
def slots(x):
    s = Slotted()
    s.b = 4
    return x * s.a * s.b + hasattr(s, "c")


@program
def with_user_class(x):
    d = Rich(2)
    with d as e:
        x = x * e.k
        raise ValueError
    return x * d.k


@program
def decorator(x):
    return decorated(x, s=3)


@program
def lru_cache(x):
    return x * cached(4)


@program
def context_variable(x):
    return x * VARIABLE.get()


@program
def context_manager(x):
    with manager(2) as v, contextlib.suppress(KeyError), contextlib.nullcontext(3) as n:
        return x * v * n


@program
def exit_stack(x):
    with contextlib.ExitStack() as stack:
        v = stack.enter_context(manager(2))
        return x * v


@program
def generators(x):
    def g(n):
        for i in range(n):
            yield x * i

    return sum(g(3)) + sum(y for y in g(2)) + list(g(2))[1]


@program
def generator_send(x):
    def g():
        r = yield 1
        yield x * r

    h = g()
    next(h)
    return h.send(4)


@program
def generator_throw_close(x):
    log = []

    def g():
        try:
            yield 1
        except ValueError:
            log.append(2)
            yield 3
        finally:
            log.append(5)

    h = g()
    next(h)
    log.append(h.throw(ValueError("a")))
    h.close()
    return x * sum(log)


@program
def yield_from(x):
    def a():
        yield 1
        yield 2
        return 7

    def b():
        r = yield from a()
        yield r

    return x * sum(b())


@program
def throw_into_yield_from(x):
    log = []

    class Counting:
        def __init__(self):
            self.n = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.n += 1
            return self.n

    def inner():
        try:
            yield x
        except ValueError:
            yield x + 9
            return "answered"
        finally:
            log.append("left")

    def outer(iterator):
        try:
            result = yield from iterator
        except KeyError as error:
            result = str(error)
        yield result

    answered, raised, closed, plain = (outer(i) for i in (inner(), inner(), inner(), Counting()))
    got = [next(answered), answered.throw(ValueError()), next(answered)]
    got += [next(raised), raised.throw(KeyError("k")), next(closed), next(plain), plain.throw(KeyError("p"))]
    closed.close()
    return got, log


@program
def closures(x):
    n = 0

    def inc(k):
        nonlocal n
        n += k
        return n

    inc(2)
    inc(3)
    fs = [lambda y, i=i: y + i for i in range(3)]
    return fs[2](x) * n


@program
def try_finally(x):
    r = []
    try:
        try:
            raise KeyError("a")
        except KeyError as e:
            r.append(1)
            raise ValueError(str(e)) from e
        finally:
            r.append(2)
    except ValueError as e:
        r.append(len(e.args))
        r.append(isinstance(e.__cause__, KeyError))
    else:
        r.append(100)
    return x * sum(r)


@program
def reraise(x):
    try:
        try:
            [][1]
        except IndexError:
            raise
    except LookupError:
        return x + 1


@program
def comprehensions(x):
    y = sum([a * b for a in range(3) for b in (x, x + 1) if a])
    return y + len({i % 2 for i in range(4)}) + {k: v for k, v in zip("ab", [x, 2])}["b"]


@program
def sort_with_key(x):
    y = torch.stack(sorted([x, x + 1], key=lambda t: -t.dim()))
    return y + sorted([3, 1, 2], key=lambda v: -v)[0] + max([1, 2], key=lambda v: -v)


@program
def map_filter_reduce(x):
    y = sum(map(lambda v: v * x, filter(lambda v: v > 1, [1, 2, 3])))
    return y + functools.reduce(lambda a, b: a + b, [x, x])


@program
def star_arguments(x):
    def f(a, *b, c=1, **d):
        return a + sum(b) + c + sum(d.values())

    k = {"c": 2, "z": 3}
    return f(x, *[1, 2], **k) + f(*(x,))


@program
def f_string(x):
    s = f"{x.shape[0]:>4}|{'a'!r}|{x.dtype}|{Rich(2)}"
    return x * len(s)


@program
def match_(x):
    total = 0
    for subject in (x.shape, {"a": 1, "b": 2}, Base(3), 5, [1, 2, 3], Frozen(4)):
        match subject:
            case (3, n):
                total += n
            case {"a": v, **rest}:
                total += v + len(rest)
            case Base(k=k):
                total += k
            case int():
                total += 100
            case [first, *others]:
                total += first + len(others)
            case Frozen(a=4):
                total += 1000
    return x * total


@program
def walrus(x):
    return x * n if (n := x.size(0)) > 2 else x


@program
def type_tests(x):
    p = nn.Parameter(torch.ones(4))
    y = isinstance(x, torch.Tensor) + torch.is_tensor(x) + (type(x) is torch.Tensor) + x.is_floating_point()
    return (
        x * y + (x.device == torch.device("cpu")) + isinstance(p, nn.Parameter) + isinstance(x, nn.Parameter)
    )


@program
def dtypes(x):
    return x.to(torch.float64).to(x.dtype).type_as(x).type(torch.float32).float()


@program
def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
    return y.float()


@program
def grad_modes(x):
    with torch.no_grad():
        y = x * 2

    @torch.no_grad()
    def f(v):
        return v + torch.is_grad_enabled()

    return f(y)


@program
def in_place(x):
    y = x.clone()
    y[0] = 1
    y[:, 1] += 2
    y.mul_(2)
    y[y.shape[0] - 1 :, ...] = 3
    return y


@program
def out_argument(x):
    o = torch.empty(3, 4)
    torch.add(x, 1, out=o)
    return o


@program
def new_tensors(x):
    return (
        x
        + torch.tensor([1.0, 2, 3, 4])
        + torch.zeros_like(x)
        + torch.full((4,), 2.0)
        + torch.arange(4)
        + x.new_zeros(4)
    )


@program
def tensor_constants(x):
    t = torch.tensor(3)
    return x * t * int(t)


@program
def splits(x):
    a, b = x.chunk(2, 1)
    c, d, *e = x.split(1, 1)
    q, _ = x.max(1)
    return a + b + c + q[:, None] + sum(e)


@program
def iterates_tensor(x):
    return sum([r for r in x]) + len(x)


@program
def functional(x):
    return torch.einsum("ij,kj->ik", x, x) + F.pad(x, (0, 0, 0, 0)) @ x.T + F.layer_norm(x @ x.T, (3,))


@program
def strings(x):
    return x * len(",".join(str(i) for i in range(3)).split(",")) + len("a%d" % 3) + len("{:>5}".format("a"))


@program
def dictionaries(x):
    d = {"a": x}
    d.setdefault("b", 2)
    d.update(c=3)
    d |= {"d": 4}
    k = [k for k in d]
    v = d.pop("a")
    return v * sum(d.values()) + len(k) + ("b" in d) + d.get("q", 1) + len({**d, "z": 1})


@program
def collections_(x):
    d = collections.OrderedDict(a=x)
    d["b"] = 1
    dd = collections.defaultdict(list)
    dd["q"].append(x)
    counter = collections.Counter("aab")
    q = collections.deque([1, 2], maxlen=2)
    q.append(5)
    return d["a"] + dd["q"][0] + counter["a"] + counter["zz"] + q[0] + counter.most_common(1)[0][1]


@program
def itertools_(x):
    y = sum(a * b for a, b in itertools.product([1, 2], [x])) + sum(itertools.chain([1], [2]))
    return (
        y
        + list(itertools.accumulate([1, 2], lambda a, b: a * b))[-1]
        + sum(a for a, _ in zip(itertools.count(), [1, 2, 3]))
    )


@program
def deep_copy(x):
    return copy.deepcopy({"a": [1, 2], "r": Base([3])})["r"].k[0] * x + copy.copy(Base(4)).k


@program
def partials(x):
    return functools.partial(lambda a, b, c=1: a * b + c, 2, c=3)(x)


@program
def class_definition(x):
    class Inner(Base):
        two = 2

        def f(self, x):
            return x * self.two + self.k

    return Inner(3).f(x)


@program
def generic_class(x):
    T = TypeVar("T")

    class C(Generic[T]):
        def double(self, x):
            return x * 2

    return C().double(x), len(C.__orig_bases__)


@program
def containers_in_classes(x):
    class C:
        first = [x]
        second = {"k": x + 1}

    C.third = [x * 2]
    listed = C.first
    return listed, C().first is listed, C.second["k"], getattr(C, "third"), vars(C)["first"]


@program
def numbers(x):
    return (
        x * math.sqrt(x.shape[-1])
        + math.prod(x.shape)
        + torch.numel(x)
        + divmod(7, 3)[1]
        + abs(-2)
        + round(2.6)
        + pow(2, 3)
    )


@program
def dynamic_attributes(x):
    o = Base(1)
    setattr(o, "z", x)
    return (
        getattr(o, "z") + getattr(o, "nope", 2) + hasattr(o, "k") + vars(o)["k"] + operator.attrgetter("k")(o)
    )


@program
def caught_error_of_an_operator(x):
    try:
        return x.view(7, 7)
    except RuntimeError:
        return x + 1


@program
def assertion(x):
    assert x.dim() == 2, "bad"
    try:
        assert x.dim() == 3, "expected"
    except AssertionError as e:
        return x + len(str(e))


@program
def tree_map(x):
    return torch.utils._pytree.tree_map(lambda v: v * 2, {"a": [x, 1]})["a"][0]


@program
def signature(x):
    return x * len(inspect.signature(decorated).parameters)


@program
def tensor_attributes(x):
    return x.data + x.shape.numel() + x.mT.mean() + x.ndim + x.stride(0) + x.element_size()


@program
def local_names(x):
    a = 3
    return x * locals()["a"] + len(vars())


@program
def conditional_expressions(x):
    a = None or 3
    b = a and 4
    return x * (a if a > 2 else b) + (not b) + (1 < a < 5) + (a is not None)


@program
def slices(x):
    lst = list(range(10))
    lst[2:4] = [7, 8, 9]
    del lst[0]
    return x * sum(lst[1:-1:2]) + x[1:, ::2].sum() + len(lst)


@program
def loops(x):
    for i in range(5):
        if i == 1:
            continue
        if i == 3:
            break
        x = x + i
    else:
        x = x * 100
    while i < 6:
        i += 1
    return x * i


@program
def outside_data(x):
    a, *rest = GLOBAL["b"]
    return (
        x * GLOBAL["a"]
        + a
        + sum(rest)
        + len(GLOBAL)
        + ("a" in GLOBAL)
        + GLOBAL.get("zz", 1)
        + sum(1 for _ in GLOBAL.items())
    )


@program
def checkpoint(x):
    return torch.utils.checkpoint.checkpoint(lambda y: y.sin(), x, use_reentrant=False)


@program
def results_of_all_kinds(x):
    return {"a": x + 1, "b": [x * 2, (x - 1, None, 3)], "p": Pair(x, 2)}, collections.OrderedDict(z=x.sin())


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


@program
def autograd_function(x):
    return Twice.apply(x)


MODULES = {
    "attention": (
        lambda: nn.MultiheadAttention(4, 2, batch_first=True),
        lambda m, x: m(x[None], x[None], x[None])[0],
    ),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2),
        lambda m, x: m(x[None]),
    ),
    "parameter list": (
        lambda: nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(2)]),
        lambda m, x: sum(x * p for p in m),
    ),
    "module dict": (
        lambda: nn.ModuleDict({"a": nn.Linear(4, 4)}),
        lambda m, x: sum(v(x) for k, v in m.items()),
    ),
    "named parameters": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        lambda m, x: sum(p.sum() for n, p in m.named_parameters()) + sum(1 for _ in m.modules()) + m(x),
    ),
    "batch norm": (lambda: nn.BatchNorm1d(4), lambda m, x: m(x)),
    "slice of a sequential": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)),
        lambda m, x: m[1:](m[0](x)),
    ),
    "hook": (
        lambda: (lambda l: (l.register_forward_hook(lambda m, i, o: o * 2), l)[1])(nn.Linear(4, 4)),
        lambda m, x: m(x),
    ),
    "embedding bag": (lambda: nn.EmbeddingBag(5, 4), lambda m, x: m(torch.tensor([[1, 2], [3, 4]]))),
    "parametrized": (lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), lambda m, x: m(x)),
    "lstm": (lambda: nn.LSTM(4, 5), lambda m, x: m(x[:, None])[0]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    check_replay(PROGRAMS[name], torch.randn(3, 4))


@pytest.mark.parametrize("name", MODULES)
def test_module(name):
    make, call = MODULES[name]
    check_replay(call, make().eval(), torch.randn(3, 4))


def test_a_generator_is_closed_where_it_is_dropped_while_the_caller_handles_an_exception() -> None:
    log: list[str] = []

    def pieces(x: torch.Tensor) -> Iterator[torch.Tensor]:
        try:
            yield x * 2
            yield x
        finally:
            log.append("closed")

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return next(pieces(x)), len(log)

    def during(f: Callable[[torch.Tensor], tuple[torch.Tensor, int]]) -> list[object]:
        log.clear()
        try:
            raise ValueError
        except ValueError:
            made, count = f(torch.ones(2))
        return [made.tolist(), count, list(log)]

    compiled = smelt.compile(fn, backend="eager")
    for _ in range(3):
        assert during(compiled) == during(fn)


def test_classes_in_tuples_that_are_nested_too_deep() -> None:
    def fn(check: Any, given: object, depth: int, first: tuple[type, ...]) -> Any:
        classes: Any = (int,)
        for _ in range(depth):
            classes = (classes,)
        try:
            return check(given, (first, classes))
        except RecursionError as e:
            return str(e)

    limit = sys.getrecursionlimit()
    for depth in (3, limit // 2, limit + 100):
        for first in ((), (str,), (float,)):
            for check, given in ((isinstance, ""), (issubclass, str)):
                arguments = (check, given, depth, first)
                assert smelt.compile(fn)(*arguments) == fn(*arguments)


@pytest.mark.parametrize(
    "name",
    [
        *FakeTensor.__slots__,
        "spec",
        "__doc__",
        "__module__",
        "__annotations__",
        "__slots__",
        "_python_dispatch",
    ],
)
@pytest.mark.parametrize("make", [torch.ones, lambda n: nn.Parameter(torch.ones(n))])
def test_tensors_have_no_attributes_of_fakes(make: Any, name: str) -> None:
    def f(x: Any) -> Any:
        def text() -> Any:
            try:
                return getattr(x + 1, name), getattr(x, name)
            except AttributeError as error:
                return str(error), error.name

        return x * (2 if hasattr(x, name) else 3), hasattr(x + 1, name), text()

    x = make(2)
    expected, found = f(x), smelt.compile(f, fullgraph=True)(x)
    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:]


def test_dir_of_a_tensor_lists_no_attribute_of_fakes() -> None:
    def f(x: Any) -> Any:
        return dir(x + 1)

    assert smelt.compile(f, fullgraph=True)(torch.ones(2)) == f(torch.ones(2))


@pytest.mark.parametrize("name", [*FakeTensor.__slots__, "spec", "other"])
def test_a_program_sets_an_attribute_that_fakes_have(name: str) -> None:
    def f(x: Any) -> Any:
        y = x + 1
        setattr(y, name, 3)
        setattr(x, name, 4)
        return (y * 2).sin(), y

    x = torch.ones(2)
    compiled = smelt.compile(f)
    result, y = compiled(x)
    assert torch.equal(result, torch.full((2,), 4.0).sin())
    assert (getattr(y, name), getattr(x, name)) == (3, 4)
    assert "internal-error" not in {r.kind.id for r in reasons(compiled)}


@pytest.mark.parametrize("make", [torch.ones, lambda n: nn.Parameter(torch.ones(n))])
def test_the_hash_of_a_tensor_is_its_address(make: Any) -> None:
    x = make(2)
    compiled = smelt.compile(lambda x: (x + 1, hash(x), x in {x: 1}, len({x, x})), fullgraph=True)
    for _ in range(2):
        assert compiled(x)[1:] == (hash(x), True, 1)
    other = make(2)
    assert compiled(other)[1] == hash(other)
