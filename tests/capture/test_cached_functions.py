"""Cached functions called after changes, and between changes: of the capture, of the program around it."""

from __future__ import annotations

import functools
import re
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import einops
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import smelt
from smelt.errors import Unsupported
from smelt.report.inspect import reasons

Build = Callable[
    [], tuple[Callable[..., Any], Callable[[], object]]
]  # a program, and a change between its calls


class Holder:
    scale = 2

    def __init__(self) -> None:
        self.scale = 2
        self.calls: list[int] = []


def _nothing() -> None:
    return None


@pytest.fixture
def cold_einops(monkeypatch: pytest.MonkeyPatch) -> None:
    """einops as in a process that has not used it."""
    for table in ("_type2backend", "_loaded_backends"):
        monkeypatch.setattr(einops._backends, table, {})
    for cached in (einops.einops._prepare_transformation_recipe, einops.einops._reconstruct_from_shape):
        cached.cache_clear()


def _patches(x: torch.Tensor) -> torch.Tensor:
    y = einops.rearrange(x, "b c (h p) w -> b (h w) (p c)", p=2)
    return einops.rearrange(y, "b n c -> n b c") + einops.reduce(y, "b n c -> c", "mean")


@pytest.mark.usefixtures("cold_einops")
def test_first_use_of_einops_in_one_graph() -> None:
    compiled, x = smelt.compile(_patches, fullgraph=True), torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(compiled(x), _patches(x))


@pytest.mark.usefixtures("cold_einops")
def test_first_use_of_einops_in_an_exported_program() -> None:
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(smelt.export(_patches, (x,))(x), _patches(x))


def _creates_tensors() -> tuple[Callable[..., Any], Callable[[], object]]:
    h, positions = Holder(), functools.cache(lambda n: torch.arange(n) * 0.5)

    def f(x: torch.Tensor) -> Any:
        h.scale += 1
        return x * positions(x.shape[0]), h.scale

    return f, _nothing


def _creates_instances() -> tuple[Callable[..., Any], Callable[[], object]]:
    seen: dict[int, int] = {}
    pattern = re.compile(r"(\d+)x(\d+)")
    sizes = functools.lru_cache(lambda text: [int(n) for n in pattern.findall(text)[0]])

    def f(x: torch.Tensor) -> Any:
        seen[len(seen)] = 1
        return x * sizes("3x4")[0] + sizes("5x6")[1], len(seen)

    return f, _nothing


def _calls_another() -> tuple[Callable[..., Any], Callable[[], object]]:
    h = Holder()
    inner = functools.cache(lambda n: n + 1)
    outer = functools.cache(lambda n: inner(n) * 2)

    def f(x: torch.Tensor) -> Any:
        h.calls.append(1)
        return x * outer(3) + inner(4)

    return f, _nothing


def _raises() -> tuple[Callable[..., Any], Callable[[], object]]:
    h, cached = Holder(), functools.cache(lambda n: [][n])

    def f(x: torch.Tensor) -> Any:
        h.calls.append(1)
        try:
            return cached(3)
        except IndexError as e:
            return x + len(h.calls), str(e)

    return f, _nothing


@pytest.mark.parametrize("build", [_creates_tensors, _creates_instances, _calls_another, _raises])
def test_calls_after_changes_of_other_objects(build: Build) -> None:
    """They need no graph break: the function reads nothing that the capture has changed."""
    eager, compiled = build()[0], smelt.compile(build()[0], fullgraph=True)
    for _ in range(3):
        assert str(compiled(torch.ones(2))) == str(eager(torch.ones(2)))


def _reader(read: Callable[[Holder], int]) -> Build:
    def build() -> tuple[Callable[..., Any], Callable[[], object]]:
        h = Holder()
        cached = functools.cache(lambda n: n * read(h))

        def f(x: torch.Tensor) -> torch.Tensor:
            h.scale += 1
            return x * cached(3)

        return f, lambda: setattr(h, "scale", 10)

    return build


def _reads_memory() -> tuple[Callable[..., Any], Callable[[], object]]:
    w = torch.ones(2)
    cached = functools.cache(lambda n: w * n)

    def f(x: torch.Tensor) -> torch.Tensor:
        w.add_(1)
        return x * cached(3)

    return f, _nothing


def _reads_memory_of_a_view() -> tuple[Callable[..., Any], Callable[[], object]]:
    w = torch.ones(2)
    rows = w[:1]
    cached = functools.cache(lambda n: torch.mul(rows, n))

    def f(x: torch.Tensor) -> torch.Tensor:
        w.add_(1)
        return x * cached(3)

    return f, _nothing


def _reads_class() -> tuple[Callable[..., Any], Callable[[], object]]:
    base = type("Base", (), {"k": 2})
    instance = type("Derived", (base,), {})()
    cached = functools.cache(lambda n: n * instance.k)

    def f(x: torch.Tensor) -> torch.Tensor:
        base.k += 1
        return x * cached(3)

    return f, _nothing


def _reads_module() -> tuple[Callable[..., Any], Callable[[], object]]:
    module = types.ModuleType("settings_of_a_test")
    module.k = 2
    sys.modules[module.__name__] = module

    @functools.cache
    def cached(n: int) -> int:
        import settings_of_a_test

        return n * settings_of_a_test.k

    def f(x: torch.Tensor) -> torch.Tensor:
        module.k += 1
        return x * cached(3)

    return f, _nothing


def _reads_cell() -> tuple[Callable[..., Any], Callable[[], object]]:
    k = 2

    def change() -> None:
        nonlocal k
        k += 1

    cached = functools.cache(lambda n: n * k)

    def f(x: torch.Tensor) -> torch.Tensor:
        change()
        return x * cached(3)

    return f, change


READERS = [
    _reader(lambda h: h.scale),
    _reader(lambda h: getattr(h, "".join(("sc", "ale")))),
    _reader(lambda h: vars(h)["scale"]),
    _reader(lambda h: weakref.ref(h)().scale),
    _reads_memory,
    _reads_memory_of_a_view,
    _reads_class,
    _reads_module,
    _reads_cell,
]


@pytest.mark.parametrize("build", READERS)
def test_calls_after_changes_of_what_they_read(build: Build) -> None:
    (eager, change_eager), (f, change) = build(), build()
    compiled = smelt.compile(f)
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(2)), eager(torch.ones(2)))
        change_eager()
        change()
    assert reasons(compiled)
    with pytest.raises(Unsupported, match="is cached, and called after changes|which is cached, has effects"):
        smelt.compile(build()[0], fullgraph=True)(torch.ones(2))


def _stale_attribute() -> tuple[Callable[..., Any], Callable[[], object]]:
    h = Holder()
    cached = functools.cache(lambda x: x * h.scale)
    return lambda x: cached(x) + 1, lambda: setattr(h, "scale", h.scale + 1)


def _stale_item() -> tuple[Callable[..., Any], Callable[[], object]]:
    scales = [2.0]
    cached = functools.lru_cache(maxsize=1)(lambda x: x * scales[0])
    return lambda x: cached(x) + 1, lambda: scales.insert(0, scales[0] + 1)


def _stale_method() -> tuple[Callable[..., Any], Callable[[], object]]:
    class Model(torch.nn.Module):
        scale = 2

        @functools.lru_cache  # noqa: B019
        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scaled(x) + 1

    model = Model()
    return model, lambda: setattr(model, "scale", model.scale + 1)


def _stale_memory() -> tuple[Callable[..., Any], Callable[[], object]]:
    w, cached = torch.ones(2), functools.cache(lambda w: w.sum())
    return lambda x: x * cached(w), lambda: w.add_(1)


def _stale_in(around: Callable[[Callable[..., Any], torch.Tensor], Any]) -> Build:
    def build() -> tuple[Callable[..., Any], Callable[[], object]]:
        w, cached = torch.ones(2), functools.cache(lambda w: w * 2)
        return lambda x: around(lambda y: y * cached(w), x), lambda: w.add_(1)

    return build


class _Applies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fn: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        return fn(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, gradient


_STALE_IN = {
    "a checkpoint": lambda fn, x: checkpoint(fn, x, use_reentrant=False),
    "a reentrant checkpoint": lambda fn, x: checkpoint(fn, x, use_reentrant=True),
    "a custom function": lambda fn, x: _Applies.apply(fn, x),  # type: ignore[no-untyped-call]
    "vmap": lambda fn, x: torch.vmap(fn)(x),
    "grad": lambda fn, x: torch.func.grad(lambda y: fn(y).sum())(x),
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    "build",
    [_stale_attribute, _stale_item, _stale_method, _stale_memory]
    + [pytest.param(_stale_in(around), id=name) for name, around in _STALE_IN.items()],
)
def test_changes_between_calls_with_tensors(build: Build) -> None:
    """Eager returns the cached result of the first call, also after the change. One graph has no cache: it refuses."""
    (eager, change_eager), (f, change), (g, change_one) = build(), build(), build()
    x, broken, compiled = torch.ones(2), smelt.compile(f), smelt.compile(g, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), eager(x))
    for _ in range(3):
        torch.testing.assert_close(broken(x), eager(x))
        change_eager()
        change()
    change_one()
    for _ in range(2):
        with pytest.raises(Unsupported, match="which is cached"):
            compiled(x)


def test_changes_between_calls_with_other_tensors() -> None:
    """Each tensor has an entry of its own in the cache, and each size; what the function does not read may change."""
    h = Holder()
    cached = functools.cache(lambda x, n: x * h.scale + n)

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return cached(x, len(y)) + y.sum(), len(h.calls)

    compiled, x = smelt.compile(f, fullgraph=True), torch.ones(2)
    for n in (2, 3, 4, 2, 3):
        y = torch.ones(n)
        assert str(compiled(x, y)) == str(f(x, y))
        h.calls.append(n)
    h.scale = 5
    torch.testing.assert_close(compiled(torch.ones(2), y), f(torch.ones(2), y))


def test_calls_that_were_made_in_eager() -> None:
    h = Holder()
    cached = functools.cache(lambda x: x * h.scale)
    x = torch.ones(2)
    cached(x)
    h.scale = 3
    with pytest.raises(Unsupported, match="which is cached"):
        smelt.compile(lambda x: cached(x) + 1, fullgraph=True)(x)
