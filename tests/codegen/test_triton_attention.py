"""Generated attention printed as Triton, run by its interpreter on CPU tensors and compiled to PTX."""

from __future__ import annotations

import math
import os
import re

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.compiler.code_generator  # while the interpreter is on, if it is: later it refuses

from smelt.codegen.autotune.tile_configs import ATTENTION_TILES, attention_tiles
from smelt.codegen.llvm.gemm.epilogue import BATCH, COL, ROW
from smelt.codegen.triton.attention_kernel import attention_source, power
from smelt.codegen.triton.block_gemm import Tile
from smelt.codegen.triton.ptx import to_ptx
from smelt.loops.kernel_ir import Value
from smelt.loops.verify_kernel import verify
from tests.harness.attention_tiles import KEYS, QUERIES, WIDTH, Case, as_loops, interpret_loops
from tests.harness.kernels import const, op
from tests.harness.products import cast
from tests.harness.triton_launcher import launch_attention

bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="compiled here: tests/gpu")

SMALL = Tile(16, 16, 0, 4, 2)
INF = math.inf


def check(case: Case, tile: Tile = SMALL, tolerance: float = 2e-3) -> torch.Tensor:
    """The interpreter gives what the loops mean, NaN where these do, and writes nothing else."""
    torch.manual_seed(0)
    tensors = case.tensors()
    want = [t.clone() for t in tensors]
    attention = case.attention()
    interpret_loops(attention, want)
    launch_attention(attention, tile, *tensors)
    if case.dtype is bf16:
        tolerance *= 8
    torch.testing.assert_close(tensors, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    return tensors[-1]


def place(sym) -> Value:
    return Value("index", (sym,), torch.int64)


def scaled(s, load):
    return s * 0.25


def soft_cap(s, load):
    return op("tanh", s * 0.05) * 20.0


def bias(s, load):
    return s * 0.25 + cast(load(f16, BATCH * (QUERIES * KEYS) + ROW * KEYS + COL), f32)


def bias_of_a_head(s, load):
    return s + load(f32, BATCH % 2)


def alibi(s, load):
    return s - load(f32, BATCH) * cast(place(ROW - COL), f32)


def mask(s, load):
    return op("where", load(torch.bool, ROW * KEYS + COL), s, const(-INF))


def lowest(s, load):
    return op("where", load(torch.bool, ROW * KEYS + COL), s, const(-3.4e38))


def causal(s, load):
    return op("where", op("ge", place(ROW), place(COL), dtype=torch.bool), s, const(-INF))


def far_behind(s, load):
    """The first rows see nothing."""
    return op("where", op("ge", place(ROW), place(COL + 9), dtype=torch.bool), s, const(-INF))


def constant(s, load):
    return const(1.5)


def of_a_query(s, load):
    return load(f32, ROW)


SCORES = (scaled, soft_cap, bias, bias_of_a_head, alibi, mask, lowest, causal, constant, of_a_query)


@interpreted
@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.__name__)
def test_score_functions(score) -> None:
    check(Case(score=score))


@interpreted
@pytest.mark.parametrize("dtype", (bf16, f16))
@pytest.mark.parametrize("packed", (False, True))
def test_layouts_and_dtypes(packed: bool, dtype: torch.dtype) -> None:
    check(Case(dtype=dtype, packed=packed, batch=4, groups=2))
    check(Case(dtype=dtype, given=f32, packed=packed), tolerance=4e-3)
    check(Case(dtype=dtype, out=f32))


@interpreted
@pytest.mark.parametrize(
    "queries, keys, head, width",
    ((1, 2, 16, 16), (1, 40, 8, 16), (16, 16, 16, 16), (33, 17, 1, 1), (32, 32, 32, 64), (20, 70, 40, 24)),
)
def test_sizes(queries: int, keys: int, head: int, width: int) -> None:
    for tile in (SMALL, Tile(32, 64, 0, 4, 2)):
        check(Case(1, queries, keys, head, width), tile)


@interpreted
def test_keys_that_are_not_seen_are_not_read() -> None:
    """The loops read them, and multiply with zero."""
    for score, key_bound, empty in ((causal, 0, math.nan), (far_behind, -9, 0.0)):
        for tile in (SMALL, Tile(32, 16, 0, 4, 2)):
            check(Case(1, score=score, key_bound=key_bound, empty=empty), tile)
        check(Case(1, score=score, key_bound=key_bound, empty=empty, queries=40, keys=20), SMALL)


@interpreted
@pytest.mark.parametrize("empty", (0.0, math.nan))
def test_rows_that_see_nothing(empty: float) -> None:
    out = check(Case(1, score=far_behind, empty=empty))[: QUERIES * WIDTH].view(QUERIES, WIDTH)
    assert bool((out[:9] == 0).all() if empty == 0 else out[:9].isnan().all())
    assert not out[9:].isnan().any()


@interpreted
@pytest.mark.parametrize("empty", (0.0, math.nan))
@pytest.mark.parametrize("number", (math.nan, INF, -INF))
def test_infinite_scores_and_nan(number: float, empty: float) -> None:
    """One of a row; a whole row; in the first block of keys and in a later one."""

    def score(s, load):
        return s + load(f32, BATCH * (QUERIES * KEYS) + ROW * KEYS + COL)

    case = Case(score=score, empty=empty)
    tensors = case.tensors()
    added = tensors[3].view(2, QUERIES, KEYS)
    added[0, 3, 5] = added[0, 4, 20] = added[1, 5] = added[1, 20, :16] = number
    want = [t.clone() for t in tensors]
    interpret_loops(case.attention(), want)
    launch_attention(case.attention(), SMALL, *tensors)
    torch.testing.assert_close(tensors[-1], want[-1], rtol=2e-3, atol=2e-3, equal_nan=True)
    assert bool(tensors[-1].isnan().any()) == (number != -INF or empty != 0)


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.__name__)
def test_what_attention_means_is_valid_loops(score) -> None:
    for kernel, _ in as_loops(Case(batch=4, score=score).attention()):
        verify(kernel)


# ---- compiled


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)


def large(**changes) -> Case:
    return Case(**dict(batch=16, queries=1024, keys=1024, head=64, width=64, dtype=bf16) | changes)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", (bf16, f16))
def test_tensor_cores_read_shared_memory_that_is_filled_meanwhile(dtype: torch.dtype) -> None:
    source = attention_source(large(dtype=dtype, score=alibi).attention(), Tile(128, 64, 64, 4, 3))
    ptx = to_ptx(source, 90)
    assert "wgmma.mma_async" in ptx.text and "cp.async.cg.shared.global" in ptx.text
    assert re.search(r"st\.global\.v4", ptx.text) and ptx.shared <= 227 << 10
    older = to_ptx(source, 80).text
    assert "mma.sync" in older and "cp.async" in older


@pytest.mark.usefixtures("compiled")
def test_places_are_compared_in_32_bits() -> None:
    source = attention_source(large(score=causal, key_bound=0).attention(), Tile(128, 64, 64, 4, 3))
    assert "int64" not in source.text and "setp.lt.s64" not in to_ptx(source, 90).text


@pytest.mark.usefixtures("compiled")
def test_large_tensors_are_indexed_by_64_bits() -> None:
    assert "int64" in attention_source(large(batch=1 << 16).attention(), SMALL).text
    assert "int64" not in attention_source(large().attention(), SMALL).text


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("head", (16, 64, 80, 128, 256))
def test_the_first_tile_compiles_and_some_fit(head: int) -> None:
    case = large(head=head, width=head)
    tiles = attention_tiles(case.attention(), 132)
    first = to_ptx(attention_source(case.attention(), tiles[0]), 90)
    assert first.threads == 32 * tiles[0].warps
    smallest = min(tiles, key=lambda t: (t.x + t.r) * t.stages)
    assert to_ptx(attention_source(case.attention(), smallest), 90).shared <= 227 << 10


def test_tiles_suit_the_sizes() -> None:
    assert attention_tiles(large().attention(), 132)[0] == Tile(
        *ATTENTION_TILES[0][:2], 64, *ATTENTION_TILES[0][2:]
    )
    for case in (large(queries=1), large(keys=3), Case(1, 5, 7, 3, 3)):
        found = attention_tiles(case.attention(), 132)
        assert found and all(
            t.x <= max(16, 2 * case.queries) and t.r <= max(16, 2 * case.keys) for t in found
        )
    assert power(1) == 16 and power(64) == 64 and power(65) == 128
    assert any(t.x == 16 for t in attention_tiles(large(batch=1, queries=64).attention(), 132))
