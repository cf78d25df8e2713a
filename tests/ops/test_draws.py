"""What fills a tensor with random numbers on a GPU, beside ATen's kernel, written out thread by thread in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from smelt.graph.ir import TensorSpec
from smelt.loops.kernel_ir import Kernel, MapStage, Store, Value
from smelt.loops.lazy_tensor import Extern, Map, Tensor
from smelt.loops.lowering_builder import Builder
from smelt.ops.random_numbers import MOST_APART
from smelt.ops.registry import row
from smelt.shapes.expr import contiguous_stride
from smelt.targets.cpu import COSTS
from tests.harness import kernel_interpreter
from tests.harness.kernels import buffers, loop
from tests.harness.random_words import reference

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
SEED, OFFSET = 1234, 28
f32, f64, f16, bf16, i64 = torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64
Words = np.ndarray  # the four of a step


# ---- ATen: native/cuda/DistributionTemplates.h, and what it takes from cuRAND


def filled_by_aten(count: int, numbers: int, blocks: int, draw: Callable[[Words], list]) -> tuple[list, int]:
    """The elements in the order of memory, and how far the generator goes on."""
    grid = min(blocks, -(-count // 256))
    threads = 256 * grid
    out = [None] * count
    rounded = ((count - 1) // (threads * numbers) + 1) * threads * numbers
    for idx in range(threads):
        step = OFFSET // 4
        for linear in range(idx, rounded, threads * numbers):
            if linear >= count:
                break
            rand = draw(reference(SEED, np.array([step], np.uint64), np.array([idx], np.uint64))[0])
            step += 1
            for ii in range(numbers):
                li = linear + threads * ii
                if li < count:
                    out[li] = rand[ii]
    return out, ((count - 1) // (256 * grid * numbers) + 1) * 4


def uniform4(words: Words) -> list:
    scale = np.float32(2.3283064e-10)
    return [np.float32(w) * scale + scale / np.float32(2) for w in words]


def uniform2_double(words: Words) -> list:
    x, y, z, w = map(int, words)
    return [
        (a ^ (b << 21)) * 1.1102230246251565e-16 + 1.1102230246251565e-16 / 2 for a, b in ((x, y), (z, w))
    ]


def normal4(words: Words) -> list:
    turn, found = np.float32(np.float32(2.3283064e-10) * np.float32(6.2831855)), []
    for x, y in ((0, 1), (2, 3)):
        u = uniform4(words)[x]
        v = np.float32(words[y]) * turn + turn / np.float32(2)
        s = np.sqrt(np.float32(-2) * np.log(u))
        found += [np.sin(v) * s, np.cos(v) * s]
    return found


def to(dtype: torch.dtype, numbers: list) -> torch.Tensor:
    return torch.tensor(numbers, dtype=f64).to(f64 if dtype is f64 else f32).to(dtype)


# ---- smelt: what a kernel gives


def lowered(op: object, spec: TensorSpec, blocks: int, *args: object) -> tuple[Tensor | None, list]:
    b = Builder("draw", spec, CUDA, None, replace(COSTS, draw_blocks=blocks))
    return row(op).lowering(b, *args), b.made


def drawn(op: object, spec: TensorSpec, blocks: int, *args: object) -> tuple[torch.Tensor, int]:
    """As `filled_by_aten`."""
    tensor, made = lowered(op, spec, blocks, *args)
    (place,) = (m for m in made if isinstance(m, Extern))
    assert tensor is not None and isinstance(tensor.definition, Map)
    loops = [loop(f"i{d}", n) for d, n in enumerate(spec.shape)]
    numbers = {place.results[0]: 0, place.results[1]: 1}
    value = tensor.definition.body(
        lambda t, at: Value("load", (numbers[t], 0, None), i64), tuple(s for s, _ in loops)
    )
    to = sum((s * step for (s, _), step in zip(loops, spec.stride)), start=0)
    specs = buffers((i64, "in"), (i64, "in"), (spec.dtype, "out"))
    kernel = Kernel("draw", specs, tuple(l for _, l in loops), (MapStage((), (Store(2, to, value),)),))
    out = torch.empty(int(np.prod(spec.shape)), dtype=spec.dtype)
    kernel_interpreter.run(kernel, [torch.tensor([SEED]), torch.tensor([OFFSET]), out])
    return out, place.args[0]


def dense(*shape: int, dtype: torch.dtype = f32) -> TensorSpec:
    return TensorSpec(shape, contiguous_stride(shape), dtype, CUDA)


COUNTS = (1, 7, 255, 256, 257, 1000, 2048, 2049, 5000)


@pytest.mark.parametrize("dtype", (f32, f64, f16, bf16))
@pytest.mark.parametrize("count", COUNTS)
def test_uniform(count, dtype):
    numbers, draw = (2, uniform2_double) if dtype is f64 else (4, uniform4)
    want, offsets = filled_by_aten(count, numbers, 2, draw)
    want = to(dtype, want)
    got, moved = drawn(aten.rand.default, dense(count, dtype=dtype), 2, [count])
    assert torch.equal(got, torch.where(want == 1, 0, want)) and moved == offsets


def test_uniform_between_bounds():
    want, _ = filled_by_aten(1000, 4, 2, uniform4)
    got, _ = drawn(aten.uniform.default, dense(1000), 2, None, -2.0, 3.0)
    torch.testing.assert_close(got, torch.tensor(want) * 5 - 2, rtol=0, atol=3e-7)


def test_what_would_be_the_end_is_the_start():
    got, _ = drawn(aten.uniform.default, dense(5000, dtype=f16), 2, None, 1.0, 1.002)
    low, high = torch.tensor([1.0, 1.002], dtype=f16)
    assert (got == low).any() and (got == low + 2**-10).any() and not (got >= high).any()


@pytest.mark.parametrize("dtype", (f32, f16, bf16))
@pytest.mark.parametrize("count", COUNTS)
def test_normal(count, dtype):
    want, offsets = filled_by_aten(count, 4, 2, normal4)
    got, moved = drawn(aten.normal_functional.default, dense(count, dtype=dtype), 2, None, 1.0, 2.0)
    close = {} if dtype is not f32 else dict(rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got, to(dtype, [w * np.float32(2) + np.float32(1) for w in want]), **close)
    assert moved == offsets


@pytest.mark.parametrize("dtype", (f32, f64, f16, bf16, i64, torch.bool, torch.uint8))
def test_bernoulli(dtype):
    numbers, draw = (2, uniform2_double) if dtype is f64 else (4, uniform4)
    want, offsets = filled_by_aten(3000, numbers, 2, draw)
    below = torch.tensor(want) < torch.tensor(0.3, dtype=f64 if dtype is f64 else f32)
    got, moved = drawn(aten.bernoulli.p, dense(3000, dtype=dtype), 2, None, 0.3)
    assert torch.equal(got, below.to(dtype)) and moved == offsets


@pytest.mark.parametrize("low, high", ((0, 2), (-5, 1000), (3, (1 << 28) + 2)))
def test_integers(low, high):
    want, offsets = filled_by_aten(3000, 4, 2, list)
    got, moved = drawn(aten.randint.low, dense(3000, dtype=i64), 2, low, high, [3000])
    assert got.tolist() == [int(w) % (high - low) + low for w in want] and moved == offsets
    floats, _ = drawn(getattr(aten.random, "from"), dense(3000, dtype=f32), 2, None, 0, 1000)
    assert floats.tolist() == [int(w) % 1000 for w in want]


def test_arguments_of_integers():
    for op, args in ((aten.randint.default, (9, [50])), (aten.randint_like.default, (None, 9)),
                     (aten.randint_like.low_dtype, (None, 0, 9))):  # fmt: skip
        want, _ = filled_by_aten(50, 4, 2, list)
        assert drawn(op, dense(50, dtype=i64), 2, *args)[0].tolist() == [int(w) % 9 for w in want]


def test_exponential():
    want, offsets = filled_by_aten(3000, 4, 2, uniform4)
    got, moved = drawn(aten.exponential.default, dense(3000), 2, None, 3.0)
    torch.testing.assert_close(got, -torch.tensor(want).log() / 3)
    assert moved == offsets and got.min() > 0


def test_elements_are_counted_as_they_lie_in_memory():
    """`drawn` gives memory: the same numbers, whatever the layout."""
    images = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    spec = TensorSpec((2, 3, 4, 5), images.stride(), f32, CUDA)
    assert torch.equal(
        drawn(aten.rand_like.default, spec, 1, None)[0], drawn(aten.rand.default, dense(120), 1, [120])[0]
    )


@pytest.mark.parametrize(
    "op, spec, args",
    (
        (aten.rand.default, TensorSpec((4, 4), (8, 1), f32, CUDA), ([4, 4],)),  # gaps
        (aten.rand.default, dense(MOST_APART + 1), ([MOST_APART + 1],)),
        (aten.uniform.default, dense(4), (None, 1.0, 0.0)),
        (aten.uniform.default, dense(4), (None, 0.0, 1e39)),
        (aten.uniform.default, dense(4, dtype=f16), (None, -5e4, 5e4)),
        (aten.normal_functional.default, dense(4), (None, 0.0, -1.0)),
        (aten.normal_functional.default, dense(4, dtype=f64), (None, 0.0, 1.0)),
        (aten.bernoulli.p, dense(4), (None, 1.5)),
        (aten.randint.low, dense(4, dtype=i64), (0, (1 << 28), [4])),
        (aten.randint.low, dense(4, dtype=i64), (5, 5, [4])),
        (aten.randint.low, dense(4, dtype=f16), (0, 4096, [4])),
        (aten.randint.low, dense(4, dtype=torch.int8), (0, 200, [4])),
        (aten.exponential.default, dense(4), (None, 0.0)),
        (aten.exponential.default, dense(4, dtype=f64), (None, 1.0)),
    ),
)
def test_what_aten_draws(op, spec, args):
    tensor, made = lowered(op, spec, 8, *args)
    assert tensor is None and not made
    assert lowered(op, dense(4), 0, *args) == (None, [])


def test_a_generator_of_the_callers():
    for op in (
        aten.uniform.default,
        aten.normal_functional.default,
        aten.bernoulli.p,
        aten.exponential.default,
    ):
        b = Builder("draw", dense(4), CUDA, None, replace(COSTS, draw_blocks=8))
        assert row(op).lowering(b, None, generator=object()) is None
