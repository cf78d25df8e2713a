"""Programs of one graph with `fullgraph=True`, where another compilation breaks the graph."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import smelt
from smelt.errors import Unsupported
from smelt.report.inspect import reasons

A, B, C = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([3.0, float("nan"), -4.0]), torch.arange(3.0)


def _clamped(a: Any, b: Any) -> Any:
    limit = min(max(a.mean(), -1.0), 1.0)
    return a * limit + b


def _largest_norm(a: Any, b: Any) -> Any:
    return max(x.norm() for x in (a, b, a - b))


def _best_of_list(a: Any, b: Any) -> Any:
    scores = [(a * k - b).abs().sum() for k in range(4)]
    return min(scores), max(*scores), min([a.max()])


def _integers(a: Any, b: Any) -> Any:
    return b + max(a.argmax(), b.argmin(), 1)


@pytest.mark.parametrize("f", [_clamped, _largest_norm, _best_of_list, _integers])
@pytest.mark.parametrize("pair", [(A, C), (C, A), (A, B), (B, A), (C, C)])
def test_extremes_of_tensors(f: Callable[..., Any], pair: Any) -> None:
    compiled = smelt.compile(f, fullgraph=True)
    for a, b in (pair, (A * 2, B + 1), pair):
        torch.testing.assert_close(compiled(a, b), f(a, b), equal_nan=True)
    broken = smelt.compile(f)
    torch.testing.assert_close(broken(*pair), f(*pair), equal_nan=True)
    assert reasons(broken)


def test_extremes_that_a_tensor_cannot_hold() -> None:
    """The gradient of the tensor that is not chosen is None in eager, and a number decides the dtype."""
    x = A.clone().requires_grad_()
    with pytest.raises(Unsupported):
        smelt.compile(lambda x: max(x.sum(), x.norm()), fullgraph=True)(x)
    with pytest.raises(Unsupported):
        smelt.compile(lambda x: max(x.argmax(), 0.5), fullgraph=True)(A)
    with pytest.raises(RuntimeError, match="ambiguous"):
        smelt.compile(lambda x: max(x, x + 1), fullgraph=True)(A)
    with pytest.raises(TypeError, match="at least 1 argument"):
        smelt.compile(lambda x: max(), fullgraph=True)(A)


class Attention(torch.nn.Module):
    @functools.lru_cache(maxsize=4)  # noqa: B019
    def mask(self, n: int, like: torch.Tensor) -> torch.Tensor:
        return torch.ones(n, n, dtype=like.dtype).tril()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mask(x.shape[0], x * 2) @ x


def test_cached_functions_of_tensors() -> None:
    @functools.cache
    def shifted(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return x + by

    def f(x: torch.Tensor) -> Any:
        return shifted(x), shifted(x.sin(), by=2.0)

    for program in (f, Attention()):
        compiled = smelt.compile(program, fullgraph=True)
        for x in (torch.ones(3, 2), torch.zeros(4, 2)):
            torch.testing.assert_close(compiled(x), program(x))


class State:
    """An object whose attributes programs change."""

    __slots__ = ("__dict__", "slot")

    def __init__(self) -> None:
        self.n, self.w, self.items, self.norm = 1, torch.ones(3), [1.0], torch.nn.BatchNorm1d(3)

    @functools.cached_property
    def lazy(self) -> int:
        return 3


def _with_slot(x: Any) -> State:
    s = State()
    s.slot, s.items = 1, [x * 2]
    return s


def _add_to_slot(y: Any) -> None:
    y.slot += 1


# What the cached function does, and what the program does with its result.
CHANGES: dict[str, tuple[Callable[[Any, State], Any], Callable[[Any, State], Any]]] = {
    "writes attribute": (lambda x, s: [x, setattr(s, "n", s.n + 1)][0] * 2, lambda y, s: setattr(s, "n", s.n + 1)),
    "writes list": (lambda x, s: [x * 2, s.items.append(2.0)][0], lambda y, s: s.items.append(3.0)),
    "writes tensor": (lambda x, s: [x * 2, s.w.view(3, 1)[1:].add_(1)][0], lambda y, s: s.w.add_(1)),
    "writes tensors": (lambda x, s: [x * 2, torch._foreach_add_([s.w], 1.0)][0], lambda y, s: None),
    "writes statistics": (lambda x, s: s.norm(x.expand(4, 3)), lambda y, s: None),
    "draws": (lambda x, s: torch.rand_like(x), lambda y, s: None),
    "reads attribute": (lambda x, s: x * s.n, lambda y, s: setattr(s, "n", s.n + 1)),
    "reads list": (lambda x, s: x * s.items[0], lambda y, s: s.items.insert(0, s.items[0] + 1)),
    "reads tensor": (lambda x, s: x * s.w[:1], lambda y, s: s.w[1:].add_(1)),
    "reads its argument": (lambda x, s: x * 2, lambda y, s: s.w.add_(1)),
    "returns its argument": (lambda x, s: x, lambda y, s: y.add_(1)),
    "returns tensor": (lambda x, s: x * 2, lambda y, s: y.add_(1)),
    "returns list": (lambda x, s: [x * 2], lambda y, s: y.append(y[0] * 2)),
    "returns instance": (lambda x, s: _with_slot(x), lambda y, s: setattr(y, "n", y.n + 1)),
    "returns instance with a list": (lambda x, s: _with_slot(x), lambda y, s: y.items.append(1)),
    "returns instance with a slot": (lambda x, s: _with_slot(x), lambda y, s: _add_to_slot(y)),
    "returns iterator": (lambda x, s: iter([x, x + 1]), lambda y, s: next(y, None)),
    "returns tensor with an attribute": (lambda x, s: x * 2, lambda y, s: setattr(y, "k", getattr(y, "k", 0) + 1)),
}  # fmt: skip


def _shown(x: Any) -> Any:
    if isinstance(x, State):
        return [_shown(v) for v in (x.n, x.w, x.items, x.norm.running_mean, getattr(x, "slot", None))]
    if isinstance(x, torch.Tensor):
        return x.tolist(), getattr(x, "k", None)
    return [_shown(v) for v in x] if isinstance(x, list) else x


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("first", [False, True])
def test_cached_functions_with_effects(name: str, first: bool) -> None:
    """No call computes what eager does not compute; a refusal is allowed."""
    compute, use = CHANGES[name]

    def outcomes(compile: Callable[..., Any]) -> list[Any]:
        s = State()
        cached = functools.cache(lambda x: compute(x, s))

        def f(x: torch.Tensor) -> Any:
            if first:
                s.n += 1
                s.items.append(0.0)
            y = cached(x)
            use(y, s)
            return y

        program, found = compile(f), []
        for _ in range(3):
            y = program(s.w if "argument" in name else A)
            found.append((_shown(y) if type(y).__name__ != "list_iterator" else next(y, None), _shown(s)))
        return found

    torch.manual_seed(0)
    expected = outcomes(lambda f: f)
    torch.manual_seed(0)
    try:
        assert str(outcomes(functools.partial(smelt.compile, fullgraph=True))) == str(expected)
    except Unsupported as e:
        assert "which is cached" in str(e)  # noqa: PT017


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(3).add_(x) * math.sqrt(4.0)


@pytest.mark.parametrize("name", ["counted", "cached", "lazy", "partial", "created", "result"])
def test_cached_functions_without_effects(name: str) -> None:
    def program() -> Callable[..., Any]:
        s = State()
        inner = functools.cache(lambda n: n + 1)
        cached: dict[str, Callable[..., Any]] = {
            "counted": functools.cache(lambda x: _doubled(x) + 1),
            "cached": functools.cache(lambda x: x * inner(3)),
            "lazy": functools.cache(lambda x: x * s.lazy),
            "partial": functools.cache(functools.partial(lambda k, x: x * k, 3)),
            "result": functools.cache(lambda x: _with_slot(x).items[0]),
        }

        def f(x: torch.Tensor) -> Any:
            if name == "counted":
                s.n += 1
            if name == "created":
                out = x
                for k in range(4):
                    make = lambda k: lambda x: x * (k + 1)  # noqa: E731
                    out = out + functools.lru_cache(make(k))(x)
                return out
            return cached[name](x) + cached[name](x), s.n

        return f

    eager, compiled = program(), smelt.compile(program(), fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(A), eager(A))


@pytest.mark.parametrize(
    "scope",
    [
        lambda f: torch.vmap(f, randomness="different"),
        lambda f: lambda x: checkpoint(f, x * 2, use_reentrant=False),
    ],
)
def test_cached_functions_in_scopes(scope: Callable[..., Any]) -> None:
    doubled, random = functools.cache(lambda x: x * 2), functools.cache(torch.rand_like)
    x = torch.ones(3, 2)
    pure = scope(lambda x: doubled(x) + doubled(x))
    torch.testing.assert_close(smelt.compile(lambda x: pure(x), fullgraph=True)(x), pure(x))
    for f in (lambda x: (doubled(x).add_(1), doubled(x))[1], lambda x: random(x) - random(x)):
        with pytest.raises(Unsupported, match="which is cached"):
            smelt.compile(lambda x, f=f: scope(f)(x), fullgraph=True)(x)


def test_keys_of_cached_functions() -> None:
    nan = float("nan")
    typed = functools.lru_cache(typed=True)(lambda x, key: x * 2)
    cached = functools.cache(lambda x, key=0: x * 2)

    def f(x: torch.Tensor) -> Any:
        x = x + 1
        same = [
            typed(x, (1, 2)) is typed(x, (True, 2)),
            typed(x, 1) is typed(x, True),
            typed(x, 1) is typed(x, 1),
        ]
        same += [
            cached(x, nan) is cached(x, nan),
            cached(x, 1) is cached(x, True),
            cached(x, 1) is cached(x, key=1),
        ]
        for key in ([2], {}, (1, {2})):
            try:
                cached(x, key)
            except TypeError as e:
                same.append(str(e))
        return same

    assert smelt.compile(f, fullgraph=True)(A) == f(A)


@pytest.mark.parametrize("backend", ["smelt", "eager"])
def test_numbers_in_tensors_where_nothing_is_dynamic(backend: str) -> None:
    def f(x: torch.Tensor, s: torch.Tensor) -> Any:
        return x * float(s + 1) if s > 2 else (x, s.item())

    compiled = smelt.compile(f, fullgraph=True, dynamic=False, backend=backend)
    for value in (1.0, 1.5, 3.0, 4.0):
        for shape in ((), (1,), (1, 1)):
            s = torch.full(shape, value)
            torch.testing.assert_close(compiled(A, s), f(A, s))


def test_whether_a_checkpoint_is_valid() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.autograd._is_checkpoint_valid() else x - 1

    compiled = smelt.compile(f, fullgraph=True)
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: seen.append((compiled(A), f(A))))
    compiled(A)
    y.sum().backward(inputs=[x], retain_graph=True)
    y.sum().backward()
    assert len(seen) == 2 and all(torch.equal(*pair) for pair in seen)
    assert not torch.equal(seen[0][0], seen[1][0])


def _rows(x: torch.Tensor) -> Any:
    return torch.arange(3)[: torch._shape_as_tensor(x)[0]], x + torch._shape_as_tensor(x.T)[1]


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_shapes_as_tensors(dynamic: bool | None) -> None:
    compiled = smelt.compile(_rows, fullgraph=True, dynamic=dynamic)
    for n in (2, 3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(n, 2)), _rows(torch.ones(n, 2)))
