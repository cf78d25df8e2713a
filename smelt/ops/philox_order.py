"""The order in which ATen's GPU kernels assign random numbers to elements.

ATen gives each thread of at most `blocks` blocks a Philox stream of its own. Its kernels walk a tensor in one of two
ways (`near`: native/cuda/Dropout.cu, `apart`: native/cuda/DistributionTemplates.h): a thread takes adjacent elements,
one for each number of a step; or elements with a stride of all threads' reach. Dtypes, roundings and the order of
operations follow these kernels and cuRAND.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from smelt.graph.ir import TensorSpec
from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import Index
from smelt.loops.loop_values import call, cast, compare, const, index, where
from smelt.shapes.expr import Size, contiguous_stride, static

THREADS = 256  # of a block of ATen's
_WORDS = 4  # that a step of Philox gives
_VECTOR_BYTES = 16
_INDEXED_BYTES = (1 << 31) - 1  # beyond, ATen draws for the parts of a tensor one after the other
_TWO_PI = torch.tensor(2.3283064e-10) * torch.tensor(6.2831855)  # over 2**32, of float32


def blocks_that_draw(device: torch.device) -> int:
    """The number of blocks of ATen's kernels that draw at once on a GPU; 0 if unknown."""
    if not torch.cuda.default_generators:
        return 0
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count * (properties.max_threads_per_multi_processor // THREADS)


@dataclass(frozen=True)
class Draws:
    """`stride`: the order of elements; at most `threads` draw; a thread takes `vector` adjacent elements at a time,
    and `numbers` per step. `offsets`: the generator's advance."""

    stride: tuple[Size, ...]
    vector: int
    threads: int
    numbers: int
    offsets: int

    @classmethod
    def near(cls, spec: TensorSpec, blocks: int) -> Draws:
        """Dropout's order: in vectors through memory if the tensor is dense and they divide it; else by its indices."""
        count = prod(map(static, spec.shape))
        stride, vector = contiguous_stride(spec.shape), 1
        if is_dense(spec):
            stride, vector = spec.stride, _VECTOR_BYTES // spec.dtype.itemsize
            while count % vector or spec.offset % vector:
                vector //= 2
            if vector == 1:
                stride = contiguous_stride(spec.shape)
        return cls._counted(count, stride, vector, blocks, _WORDS)

    @classmethod
    def apart(cls, spec: TensorSpec, blocks: int, numbers: int) -> Draws | None:
        """The order of operators that fill a tensor, through memory. None for gaps or 64-bit indices."""
        count = prod(map(static, spec.shape))
        if not is_dense(spec) or count * spec.dtype.itemsize > _INDEXED_BYTES:
            return None
        return cls._counted(count, spec.stride, 1, blocks, numbers)

    @classmethod
    def _counted(cls, count: int, stride: tuple[Size, ...], vector: int, blocks: int, numbers: int) -> Draws:
        threads = THREADS * min(blocks, -(-count // THREADS))
        return cls(stride, vector, threads, numbers, ((count - 1) // (threads * numbers) + 1) * _WORDS)

    def position(self, at: Index) -> tuple[Size, Size, Size]:
        """The thread that draws for an element, its step, and the element's number in that step."""
        position: Size = 0
        for i, step in zip(at, self.stride):
            position = position + i * step
        if self.vector == 1:  # the numbers of a step are for as many turns
            turn = position // self.threads
            return position % self.threads, turn // self.numbers, turn % self.numbers
        if self.vector == 2:  # ATen means to use a step for two turns, but draws anew in each
            group, lane = position // 2, position % 2
            return group % self.threads, group // self.threads, lane
        step, lane = (
            position // _WORDS,
            position % _WORDS,
        )  # neighbours have one: kernels draw it once for all four
        group, steps = step // (self.vector // _WORDS), self.vector // _WORDS
        return group % self.threads, group // self.threads * steps + step % steps, lane


@dataclass(frozen=True)
class Step:
    """The words that an element's thread draws in its step, and the index of the element's own."""

    seed: Value
    counter: Value
    thread: Value
    lane: Size

    @classmethod
    def of(cls, draws: Draws, seed: Value, offset: Value, at: Index) -> Step:
        """The step of the element at an index, for a generator at `seed` and `offset`."""
        thread, step, lane = draws.position(at)
        counter = call("shift_right", offset, const(2, torch.int64)) + index(step)
        return cls(seed, counter, index(thread), lane)

    def word(self, lane: Size) -> Value:
        """32 random bits, from 0 on."""
        return call("philox", self.seed, self.counter, self.thread, index(lane))

    def uniform(self) -> Value:
        """In (0, 1], float32, of one word (`curand_uniform4`)."""
        return _fraction(self.word(self.lane))

    def uniform_double(self) -> Value:
        """In (0, 1), float64, of 53 bits of two words (`curand_uniform2_double`)."""
        low, high = self._pair(self.lane)
        bits = call("bitwise_xor", low, call("shift_left", high, const(21, torch.int64)))
        return cast(bits, torch.float64) * 2.0**-53 + 2.0**-54

    def normal(self) -> Value:
        """Of mean 0 and deviation 1, float32: the sine or the cosine of an angle, by a radius (`curand_normal4`)."""
        first, second = self._pair(self.lane // 2)
        turn = const(_TWO_PI.item(), torch.float32)
        angle = Value(
            "fma",
            (cast(second, torch.float32), turn, const(_TWO_PI.item() / 2, torch.float32)),
            torch.float32,
        )
        radius = call("sqrt", call("device_log", _fraction(first)) * -2.0)
        even = compare("lt", index(self.lane % 2), const(1, torch.int64))
        return where(even, call("fast_sin", angle), call("fast_cos", angle)) * radius

    def _pair(self, half: Size) -> tuple[Value, Value]:
        return self.word(half * 2), self.word(half * 2 + 1)


def _fraction(word: Value) -> Value:
    return cast(word, torch.float32) * 2.0**-32 + 2.0**-33


def is_dense(spec: TensorSpec) -> bool:
    """Whether its elements fill their memory without overlap or gaps."""
    expected: Size = 1
    for step, size in sorted((step, size) for step, size in zip(spec.stride, spec.shape) if size != 1):  # type: ignore[type-var]
        if step != expected:
            return False
        expected = expected * size
    return True
