"""Random numbers of a GPU's generator, as kernels draw them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smelt.graph.ir import TensorSpec
from smelt.loops.kernel_ir import Value
from smelt.loops.philox import philox
from smelt.ops.philox_order import Draws, Step
from smelt.shapes.expr import contiguous_stride
from tests.harness import kernel_interpreter
from tests.harness.kernels import TARGETS, flat, loop, run
from tests.harness.random_words import reference

i64 = torch.int64


def words(seed: int, counters: torch.Tensor, subsequences: torch.Tensor) -> torch.Tensor:
    found = reference(seed, counters.numpy().astype(np.uint64), subsequences.numpy().astype(np.uint64))
    return torch.from_numpy(found.astype(np.int64))


SEED = 0x9E3779B97F4A7C15


def inputs() -> list[torch.Tensor]:
    counters = torch.randint(0, 1 << 40, (64,))
    subsequences = torch.cat([torch.randint(0, 1 << 20, (60,)), torch.tensor([0, 1, 2**32, 2**40 + 7])])
    return [torch.tensor(SEED - 2**64).expand(64).clone(), counters, subsequences, torch.arange(64) % 4]


def test_known_answers():
    """Of the authors' own tests of philox4x32-10 (Random123, kat_vectors)."""
    zero = torch.zeros(4, dtype=i64)
    got = philox(zero, zero, zero, torch.arange(4))
    assert [f"{w:08x}" for w in got.tolist()] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    ones = torch.full((4,), -1, dtype=i64)
    got = philox(ones, ones, ones, torch.arange(4))
    assert [f"{w:08x}" for w in got.tolist()] == ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]


def test_the_reference_and_the_function_agree():
    seed, counters, subsequences, lanes = inputs()
    want = words(SEED, counters, subsequences).gather(1, lanes[:, None])[:, 0]
    assert torch.equal(philox(seed, counters, subsequences, lanes), want)


@pytest.mark.parametrize("target", TARGETS)
def test_machine_code_draws_the_same(target):
    given = inputs()
    out = torch.empty(64, dtype=i64)
    run(flat(64, [i64] * 4, i64, lambda *v: Value("philox", v, i64)), [*given, out], target=target)
    assert torch.equal(out, philox(*given))


# ---- dropout: what ATen's kernel draws for an element, written out thread by thread


def mask_of_aten(count: int, keep: float, seed: int, offset: int, vector: int, blocks: int) -> np.ndarray:
    blocks = min(blocks, -(-count // 256))
    threads = 256 * blocks
    mask = np.zeros(count, dtype=bool)
    for thread in range(threads):
        step = offset // 4
        state: list[float] = []
        drawn = thread * vector
        if vector == 1:
            place = thread
            while place < -(-count // (threads * 4)) * threads * 4:
                state = uniform(seed, step, thread)
                step += 1
                for i in range(4):
                    at = place + i * threads
                    if at < count:
                        mask[at] = state[i] < keep
                place += 4 * threads
            continue
        while drawn < count:
            numbers: list[float] = []
            for _ in range(max(vector // 4, 1)):  # its switch for using both halves of a step is never set
                numbers += uniform(seed, step, thread)
                step += 1
            for lane in range(vector):
                mask[drawn + lane] = numbers[lane] < keep
            drawn += threads * vector
    return mask


def uniform(seed: int, step: int, thread: int) -> list[float]:
    bits = reference(seed, np.array([step], dtype=np.uint64), np.array([thread], dtype=np.uint64))[0]
    scale = np.float32(2.0**-32)
    return [np.float32(b) * scale + scale / np.float32(2) for b in bits]  # type: ignore[misc]


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("count", (1, 7, 1000, 1001, 1002, 4096, 6144))
def test_elements_have_atens_numbers(count, dtype):
    blocks, seed, offset = 2, 1234, 28
    spec = TensorSpec((count,), (1,), dtype, torch.device("cuda", 0))
    draws = Draws.near(spec, blocks)
    got = evaluated(draws, count, seed, offset) < np.float32(0.7)
    want = mask_of_aten(count, np.float32(0.7), seed, offset, draws.vector, blocks)
    assert torch.equal(got, torch.from_numpy(want))


def evaluated(draws: Draws, count: int, seed: int, offset: int) -> torch.Tensor:
    """The numbers of the elements, by a kernel."""
    place, _ = loop("i", count)
    kernel = flat(count, [i64, i64], torch.float32, lambda s, o: Step.of(draws, s, o, (place,)).uniform())
    out = torch.empty(count)
    kernel_interpreter.run(kernel, [torch.full((count,), seed), torch.full((count,), offset), out])
    return out


def test_images_are_counted_by_their_memory_and_gaps_by_sizes():
    shape = (2, 3, 4, 5)
    channels_last = torch.empty(shape).to(memory_format=torch.channels_last).stride()
    draws = Draws.near(TensorSpec(shape, channels_last, torch.float32, torch.device("cuda", 0)), 100)
    assert draws.stride == channels_last and draws.vector == 4 and draws.offsets == 4
    gaps = Draws.near(TensorSpec(shape, (120, 40, 10, 2), torch.float32, torch.device("cuda", 0)), 100)
    assert gaps.stride == contiguous_stride(shape) and gaps.vector == 1
