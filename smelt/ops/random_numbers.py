"""Random numbers.

On a GPU, kernels draw the numbers that ATen's own would draw: from an element's index (`ops/philox_order.py`), the
generator's seed and its offset, which `smelt::philox_offset` reads and advances. ATen draws the rest: other dtypes and
orders, functions that no kernel reproduces to the last bit (a logarithm of float64), operators that synchronize the
device (`bernoulli` of a tensor), and tensors so large that ATen is cheaper (`MOST_APART`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch

from smelt.graph.ir import Node, TensorSpec
from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import Extern, Index, Load, Stored, Tensor
from smelt.loops.loop_values import call, cast, compare, const, where
from smelt.loops.lowering_builder import Builder
from smelt.loops.philox import philox
from smelt.ops.layouts.meta_layouts import filled, like
from smelt.ops.node_builders import Make
from smelt.ops.philox_order import Draws, Step
from smelt.ops.registry import declare, operator
from smelt.shapes.expr import Expr, static

aten = torch.ops.aten
# Elements of a tensor whose threads take some that are far apart: of what a step of Philox gives, a kernel uses a quarter.
# That costs some 3 ps an element of an H100, 3 us here, about what ATen's launch does (estimated, not measured).
MOST_APART = 1 << 20
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_COST = 64.0
_CPU = torch.device("cpu")

# for a probability, a rate or a deviation out of range
declare("multinomial poisson binomial _standard_gamma _sample_dirichlet", raises=True)
declare(
    "bernoulli exponential native_dropout normal normal_functional rand rand_like randint randint_like",
    "randn randn_like random uniform",
    any_size=True,
)
declare(aten.bernoulli.default, aten.bernoulli.Tensor, raises=True)
declare(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor, raises=True)
declare(aten.rand_like.default, aten.randn_like.default, layout=like)
declare(aten.rand.default, aten.randn.default, layout=filled)
declare(aten.bernoulli.default, aten.bernoulli.p, aten.bernoulli.Tensor, zero_or_one=True)
declare(
    *(aten.bernoulli.p, aten.bernoulli.Tensor, aten.uniform.default, aten.normal_functional.default),
    *(aten.exponential.default, aten.geometric.default, aten.cauchy.default, aten.log_normal.default),
    redrawn="like",
)
declare(aten.bernoulli.default, aten.multinomial.default, redrawn="from")


@cache
def draws_as_aten() -> bool:
    """Whether `smelt::bernoulli` (native/operators/bernoulli.cpp), some six times faster, draws the same numbers as ATen on
    this CPU: on some CPUs torch draws them with MKL."""
    ours, theirs = torch.Generator(), torch.Generator()
    drawn = torch.ops.smelt.bernoulli.out(torch.empty(0), 0.3, generator=ours, out=torch.empty(1500))
    expected = torch.empty(1500).bernoulli_(0.3, generator=theirs)
    return torch.equal(drawn, expected) and torch.equal(ours.get_state(), theirs.get_state())


declare(aten.bernoulli.p, out_on_cpu=lambda: torch.ops.smelt.bernoulli.out if draws_as_aten() else None)


@operator(aten.native_dropout.default, redrawn="mask")
def native_dropout(b: Builder, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor] | None:
    """(x * mask * 1/(1 - p), mask), of the numbers that ATen draws on a GPU; None for an ATen call."""
    if not _draws(b, x.spec) or train is not True or not 0 < p < 1:
        return None
    if x.dtype not in (*_FLOATS, torch.float64):
        return None
    compute = _computed(x.dtype)
    draws = Draws.near(x.spec, b.costs.draw_blocks)
    mask = _mask(b, draws, _generator_state(b, draws.offsets), p, x.dtype)
    scale = scale_of_dropout(p, x.dtype)

    def dropped(load: Load, at: Index) -> Value:
        chosen = cast(load(mask, at), compute)
        return cast(cast(load(x, at), compute) * chosen * scale, x.dtype)

    return b.map(x.shape, x.dtype, (x, mask), dropped, cost=2.0), mask


def scale_of_dropout(p: float, dtype: torch.dtype) -> float:
    """ATen's factor for retained elements of `dtype`."""
    compute = _computed(dtype)
    return _rounded(1 / _rounded(1 - p, compute), compute)


def dropped_out(make: Make, x: Node, mask: Node, p: float) -> Node:
    """The first result of a dropout with this mask."""
    return make(aten.native_dropout_backward.default, x, mask, scale_of_dropout(p, x.spec.dtype))


def _mask(b: Builder, draws: Draws, state: _GeneratorState, p: float, dtype: torch.dtype) -> Tensor:
    """Which elements a dropout of `dtype` retains."""
    compute = _computed(dtype)
    keep = const(_rounded(1 - p, compute), compute)

    def retained(load: Load, at: Index) -> Value:
        return compare("lt", cast(state.step(draws, load, at).uniform(), compute), keep)

    shape = b.spec[0].shape if isinstance(b.spec, tuple) else b.spec.shape
    return b.map(shape, torch.bool, state.inputs, retained, cost=_COST)


# The mask of a dropout of a tensor laid out like that, by a generator that stood at two numbers, on the CPU.
_LIBRARY = torch.library.Library("smelt", "FRAGMENT")
_LIBRARY.define(
    "dropout_mask(Tensor seed, Tensor offset, int[] size, int[] stride, int start, ScalarType dtype, Device device, "
    "int blocks, float p) -> Tensor"
)


def _mask_by_torch(
    seed: torch.Tensor,
    offset: torch.Tensor,
    size: list[int],
    stride: list[int],
    start: int,
    dtype: torch.dtype,
    device: torch.device,
    blocks: int,
    p: float,
) -> torch.Tensor:
    draws = Draws.near(TensorSpec(tuple(size), tuple(stride), dtype, device, start), blocks)
    grid: Any = torch.meshgrid(*(torch.arange(n, device=device) for n in size), indexing="ij")
    thread, step, lane = (torch.as_tensor(x, device=device).expand(size) for x in draws.position(grid))
    bits = philox(seed.to(device), (offset.to(device) >> 2) + step, thread, lane)
    number = (bits.float() * 2.0**-32 + 2.0**-33).to(_computed(dtype))
    return number < _rounded(1 - p, _computed(dtype))


_LIBRARY.impl("dropout_mask", _mask_by_torch, "CompositeExplicitAutograd")


@operator(torch.ops.smelt.dropout_mask.default)
def dropout_mask(
    b: Builder,
    seed: Tensor,
    offset: Tensor,
    size: list[int],
    stride: list[int],
    start: int,
    dtype: torch.dtype,
    device: torch.device,
    blocks: int,
    p: float,
) -> Tensor:
    """The mask that `native_dropout` draws for a tensor of this layout."""
    spec = TensorSpec(tuple(size), tuple(stride), dtype, device, start)
    return _mask(b, Draws.near(spec, blocks), _GeneratorState(seed, offset), p, dtype)


declare(aten.rand.default, aten.rand_like.default, lowering=lambda b, *_, **__: uniform(b, None))


@operator(aten.uniform.default)
def uniform(
    b: Builder, _: Any, start: float = 0.0, end: float = 1.0, *, generator: object = None
) -> Tensor | None:
    """In [start, end), a result of `end` becomes `start`; in the dtype's own arithmetic, but one product and sum."""
    dtype = b.spec.dtype
    if generator is not None or dtype not in (*_FLOATS, torch.float64):
        return None
    most = torch.finfo(dtype).max
    if not -most <= start <= end <= most or end - start > most:
        return None
    compute = _computed(dtype)
    bounds = torch.tensor([start, end], dtype=torch.float64).to(dtype)
    low, high, span = *bounds.tolist(), (bounds[1] - bounds[0]).item()

    def number(step: Step) -> Value:
        drawn = step.uniform_double() if dtype is torch.float64 else step.uniform()
        value = cast(Value("fma", (drawn, const(span, compute), const(low, compute)), compute), dtype)
        return where(compare("eq", value, const(high, dtype)), const(low, dtype), value)

    return _filled(b, number, 2 if dtype is torch.float64 else 4)


declare(aten.randn.default, aten.randn_like.default, lowering=lambda b, *_, **__: normal(b, None))


@operator(aten.normal_functional.default)
def normal(
    b: Builder, _: Any, mean: float = 0.0, std: float = 1.0, *, generator: object = None
) -> Tensor | None:
    """Scaled in float32."""
    dtype = b.spec.dtype
    centre, deviation = (_rounded(x, torch.float32) for x in (mean, std))
    in_range = 0 <= deviation < math.inf and math.isfinite(centre)
    if generator is not None or dtype not in _FLOATS or not in_range:
        return None

    def number(step: Step) -> Value:
        scaled = (step.normal(), const(deviation, torch.float32), const(centre, torch.float32))
        return cast(Value("fma", scaled, torch.float32), dtype)

    return _filled(b, number)


@operator(aten.bernoulli.p)
def bernoulli(b: Builder, _: Any, p: float = 0.5, *, generator: object = None) -> Tensor | None:
    """1 where a number is below `p`, else 0."""
    dtype = b.spec.dtype
    if generator is not None or not 0 <= p <= 1:
        return None
    double, compute = dtype is torch.float64, _computed(dtype)

    def number(step: Step) -> Value:
        drawn = step.uniform_double() if double else step.uniform()
        return cast(compare("lt", drawn, const(_rounded(p, compute), compute)), dtype)

    return _filled(b, number, 2 if double else 4)


@operator(aten.randint.default, aten.randint_like.default)
def randint(b: Builder, first: Any, second: Any, **options: Any) -> Tensor | None:
    """From 0 to below the number among the first two arguments; the other one is the shape."""
    return between(b, None, 0, first if isinstance(first, (int, Expr)) else second)


declare(aten.randint.low, lowering=lambda b, low, high, size, **_: between(b, None, low, high))
declare(aten.randint_like.low_dtype, lowering=lambda b, x, low, high, **_: between(b, None, low, high))


@operator(getattr(aten.random, "from"))
def between(b: Builder, _: Any, low: int, high: int | None, *, generator: object = None) -> Tensor | None:
    """From `low` to below `high`: a word's remainder by their distance, if below 2**28 (else ATen takes two words)."""
    dtype = b.spec.dtype
    if generator is not None or not (isinstance(low, int) and isinstance(high, int)) or dtype is torch.bool:
        return None  # there are no words for a distance that changes
    if not 0 < high - low < 1 << 28:
        return None
    if dtype.is_floating_point:  # all of which it has
        most = int(2 / torch.finfo(dtype).eps)
        if not -most <= low < high <= most:
            return None
    elif not torch.iinfo(dtype).min <= low < high <= torch.iinfo(dtype).max:
        return None

    def number(step: Step) -> Value:
        rest = call("fmod", step.word(step.lane), const(high - low, torch.int64))
        return cast(rest + low, dtype)

    return _filled(b, number)


@operator(aten.exponential.default)
def exponential(b: Builder, _: Any, lambd: float = 1.0, *, generator: object = None) -> Tensor | None:
    """Of rate `lambd`: -log(u) / lambd, where the logarithm is never 0."""
    dtype = b.spec.dtype
    rate = _rounded(lambd, torch.float32)
    if generator is not None or dtype not in _FLOATS or not 0 < rate < math.inf:
        return None
    scale = (torch.tensor(-1.0) / torch.tensor(rate)).item()

    def number(step: Step) -> Value:
        drawn = step.uniform()
        near_one = compare("ge", drawn, const(1 - 2.0**-24, torch.float32))
        log = where(near_one, const(-(2.0**-24), torch.float32), call("fast_log", drawn))
        return cast(log * scale, dtype)

    return _filled(b, number) if math.isfinite(scale) else None


def _draws(b: Builder, spec: TensorSpec) -> bool:
    """Whether kernels draw the numbers of a tensor."""
    if spec.device != b.device or spec.device.type != "cuda":
        return False
    return b.costs.draw_blocks > 0 and all(type(n) is int for n in spec.shape) and 0 not in spec.shape


def _filled(b: Builder, number: Callable[[Step], Value], numbers: int = 4) -> Tensor | None:
    """A tensor of numbers that `number` computes from its thread's draws, `numbers` of them per step."""
    spec = b.spec
    if not _draws(b, spec) or prod(map(static, spec.shape)) > MOST_APART:
        return None
    draws = Draws.apart(spec, b.costs.draw_blocks, numbers)
    if draws is None:
        return None
    state = _generator_state(b, draws.offsets)

    def body(load: Load, at: Index) -> Value:
        return number(state.step(draws, load, at))

    return b.map(spec.shape, spec.dtype, state.inputs, body, cost=_COST)


@dataclass(frozen=True)
class _GeneratorState:
    """The generator's seed and offset, on the CPU; or on the device, with `within` on the CPU, added to the offset."""

    seed: Tensor
    offset: Tensor
    within: Tensor | None = None

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that are read."""
        return tuple(t for t in (self.seed, self.offset, self.within) if t is not None)

    def step(self, draws: Draws, load: Load, at: Index) -> Step:
        """The draws of an element's thread."""
        offset = load(self.offset, ())
        if self.within is not None:
            offset = offset + load(self.within, ())
        return Step.of(draws, load(self.seed, ()), offset, at)


def _generator_state(b: Builder, offsets: int) -> _GeneratorState:
    """The state of the device's generator, which advances by `offsets`."""
    captured = b.costs.draw_captured
    devices = (b.device, b.device, _CPU) if captured else (_CPU, _CPU)
    results = tuple(
        Tensor(name, TensorSpec((), (), torch.int64, device), Stored(), b.line)
        for name, device in zip(("seed", "offset", "within"), devices)
    )
    op = torch.ops.smelt.philox_in_memory.default if captured else torch.ops.smelt.philox_offset.default
    b.made.append(Extern(op, (offsets, b.device), {}, results, "philox_offset", b.line))
    return _GeneratorState(*results)


def _computed(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a number of `dtype` is computed."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def _rounded(number: float, dtype: torch.dtype) -> float:
    return torch.tensor(number, dtype=torch.float64).to(dtype).item()
