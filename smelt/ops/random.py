"""Random numbers.

On a GPU, dropout draws within a kernel the numbers that ATen's own kernel draws there (native/cuda/Dropout.cu of ATen).
ATen gives each thread of at most `draw_blocks` blocks a stream of Philox of its own; a thread takes `vector` neighbouring
elements at a time, and in its next turn those that are as far on as all threads reach together.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from smelt.graph.ir import TensorSpec
from smelt.graph.sizes import Size, contiguous_stride, static
from smelt.loops.builder import Builder
from smelt.loops.ir import Value
from smelt.loops.tensor import Extern, Index, Load, Stored, Tensor
from smelt.loops.values import call, cast, compare, const, index
from smelt.ops.layouts.meta import filled, like
from smelt.ops.registry import declare, operator

aten = torch.ops.aten
THREADS_THAT_DRAW = 256  # of a block of ATen's
_UNROLLED = 4  # numbers that a step of Philox gives
_VECTOR_BYTES = 16
_CPU = torch.device("cpu")

# for a probability, a rate or a deviation out of range
declare("multinomial poisson binomial _standard_gamma _sample_dirichlet", raises=True)
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


@operator(aten.native_dropout.default)
def native_dropout(b: Builder, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor] | None:
    """(x * mask * 1/(1 - p), mask), of the numbers that ATen draws on a GPU; None where ATen's call is to draw them."""
    sizes = x.spec.shape
    if not b.costs.draw_blocks or train is not True or not 0 < p < 1:
        return None
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16) or any(
        type(n) is not int for n in sizes
    ):
        return None
    keep = torch.tensor(1 - p, dtype=torch.float32).item()
    scale = torch.tensor(1 / keep, dtype=torch.float32).item()
    draws = _Draws.of(x.spec, b.costs.draw_blocks)
    seed, offset = _place_of_generator(b, draws.offsets)

    def kept(load: Load, at: Index) -> Value:
        return compare("lt", draws.number(load(seed, ()), load(offset, ()), at), const(keep, torch.float32))

    mask = b.map(sizes, torch.bool, (seed, offset), kept, cost=64.0)

    def dropped(load: Load, at: Index) -> Value:
        chosen = cast(load(mask, at), torch.float32)
        return cast(cast(load(x, at), torch.float32) * chosen * scale, x.dtype)

    return b.map(sizes, x.dtype, (x, mask), dropped, cost=2.0), mask


def _place_of_generator(b: Builder, offsets: int) -> tuple[Tensor, Tensor]:
    """(seed, offset) of the device's generator, numbers on the CPU; the generator goes on by `offsets`."""
    spec = TensorSpec((), (), torch.int64, _CPU)
    results = tuple(Tensor(name, spec, Stored(), b.line) for name in ("seed", "offset"))
    op = torch.ops.smelt.philox_place.default
    b.made.append(Extern(op, (offsets, b.device), {}, results, "philox_place", b.line))
    return results[0], results[1]


class _Draws:
    """Which of ATen's numbers belongs to an element. `stride`: how elements are counted; `offsets`: how far the generator
    goes on."""

    def __init__(self, count: int, stride: tuple[Size, ...], vector: int, blocks: int) -> None:
        blocks = min(blocks, -(-count // THREADS_THAT_DRAW))
        self.stride, self.vector, self.threads = stride, vector, THREADS_THAT_DRAW * blocks
        self.offsets = ((count - 1) // (self.threads * _UNROLLED) + 1) * _UNROLLED

    @classmethod
    def of(cls, spec: TensorSpec, blocks: int) -> _Draws:
        """As ATen's kernel goes through a tensor: by its memory, in vectors, if that is dense, else by its sizes."""
        count = prod(map(static, spec.shape))
        if not _is_dense(spec):
            return cls(count, contiguous_stride(spec.shape), 1, blocks)
        vector = _VECTOR_BYTES // spec.dtype.itemsize
        while count % vector or spec.offset % vector:
            vector //= 2
        return cls(count, spec.stride, vector, blocks)

    def number(self, seed: Value, offset: Value, at: Index) -> Value:
        """The number of an element, uniform in (0, 1], as `curand_uniform` makes it."""
        place: Any = sum((i * step for i, step in zip(at, self.stride)), start=0)
        if self.vector == 1:  # the four numbers of a step are for four turns
            thread, turn = place % self.threads, place // self.threads
            step, lane = turn // _UNROLLED, turn % _UNROLLED
        else:
            group, lane = place // self.vector, place % self.vector
            thread, turn = group % self.threads, group // self.threads
            if self.vector == 2:
                step, lane = turn // 2, lane + turn % 2 * 2
            else:
                step = turn * (self.vector // _UNROLLED) + lane // _UNROLLED
                lane = lane % _UNROLLED
        counter = call("shift_right", offset, const(2, torch.int64)) + index(step)
        bits = call("philox", seed, counter, index(thread), index(lane))
        return cast(bits, torch.float32) * 2.0**-32 + 2.0**-33


def _is_dense(spec: TensorSpec) -> bool:
    """Whether its elements fill their memory, each place once."""
    expected: Size = 1
    for step, size in sorted((step, size) for step, size in zip(spec.stride, spec.shape) if size != 1):  # type: ignore[type-var]
        if step != expected:
            return False
        expected = expected * size
    return True
