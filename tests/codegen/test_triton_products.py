"""Products printed as Triton, run by its interpreter on CPU tensors and compiled to PTX."""

from __future__ import annotations

import os
import re

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.compiler.code_generator  # while the interpreter is on, if it is: later it refuses

from smelt.codegen.autotune.tile_configs import TILES, tiles
from smelt.codegen.llvm.gemm.epilogue import COL, ROW
from smelt.codegen.triton.block_gemm import Tile
from smelt.codegen.triton.gemm_kernel import as_loops, product_source
from smelt.codegen.triton.ptx import to_ptx
from smelt.loops.kernel_ir import Value
from smelt.loops.verify_kernel import verify
from tests.harness import kernel_interpreter
from tests.harness.kernels import const, op
from tests.harness.products import Case, cast
from tests.harness.triton_launcher import launch_product

bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="compiled here: tests/gpu")

SMALL = Tile(16, 16, 16, 4, 2, group=2)
ODD = dict(m=37, n=21, k=19)


def check(case: Case, tile: Tile = SMALL, tolerance: float = 1e-5) -> list[torch.Tensor]:
    """The interpreter gives what the loops mean, and writes nothing else."""
    torch.manual_seed(0)
    tensors = case.tensors()
    want = [t.clone() for t in tensors]
    product = case.product()
    kernel_interpreter.run(as_loops(product), want)
    launch_product(product, tile, *tensors)
    torch.testing.assert_close(tensors, want, rtol=tolerance, atol=tolerance * case.k**0.5)
    return tensors


@interpreted
@pytest.mark.parametrize("dtype", (bf16, f16))
@pytest.mark.parametrize("form", ("NN", "NT", "TN", "TT"))
def test_layouts_and_dtypes(form: str, dtype: torch.dtype) -> None:
    case = Case(**ODD, form=form, dtype=dtype)
    *_, out = tensors = check(case)
    torch.testing.assert_close(
        out[: 37 * 21].view(1, 37, 21).double(), case.exact(tensors), rtol=1e-5, atol=1e-5
    )


@interpreted
@pytest.mark.parametrize(
    "m, n, k", ((1, 1, 1), (1, 33, 5), (33, 1, 40), (16, 16, 16), (64, 32, 48), (17, 16, 15), (100, 70, 3))
)
def test_sizes(m: int, n: int, k: int) -> None:
    check(Case(m, n, k))
    check(Case(m, n, k, form="TT"), Tile(32, 16, 32, 4, 2, group=3))


@interpreted
@pytest.mark.parametrize("shared", (False, True))
@pytest.mark.parametrize("form", ("NN", "TT"))
def test_batches(form: str, shared: bool) -> None:
    check(Case(**ODD, batch=5, form=form, shared=shared))


def bias(sums, load):
    return sums + load(f32, COL)


def bias_gelu(sums, load):
    x = sums + load(f32, COL)
    return x * 0.5 * (op("erf", x * 0.5**0.5) + 1.0)


def rounded_bias_relu_residual(sums, load):
    """As eager's linear layer of bfloat16, then relu, then a residual."""
    x = cast(sums + cast(load(bf16, COL), f32), bf16)
    x = op("maximum", x, const(0.0, bf16))
    return cast(cast(x, f32) + cast(load(bf16, ROW * 21 + COL), f32), bf16)


def gate(sums, load):
    return sums * op("sigmoid", sums) * load(f32, ROW * 21 + COL)


def by_row(sums, load):
    return op("where", op("gt", load(f32, ROW), const(0.0), dtype=torch.bool), sums, const(-1.0))


def masked(sums, load):
    return op("where", load(torch.bool, ROW * 21 + COL), sums, const(float("-inf")))


def below_the_diagonal(sums, load):
    row, column = (Value("index", (s,), torch.int64) for s in (ROW, COL))
    return op("where", op("ge", row, column, dtype=torch.bool), sums, const(0.0))


def to_bool(sums, load):
    return op("gt", sums, const(0.0), dtype=torch.bool)


def to_half(sums, load):
    return cast(op("tanh", sums), f16)


def elsewhere(sums, load):
    """Reads what divisions place: every second row, groups of three columns."""
    return sums + load(f32, ROW // 2 * 7 + COL // 3)


TAILS = (
    bias,
    bias_gelu,
    rounded_bias_relu_residual,
    gate,
    by_row,
    masked,
    below_the_diagonal,
    to_bool,
    to_half,
    elsewhere,
)


@interpreted
@pytest.mark.parametrize("tail", TAILS, ids=lambda tail: tail.__name__)
@pytest.mark.parametrize("batch", (1, 3))
def test_epilogues(tail, batch: int) -> None:
    rounds = tail in (rounded_bias_relu_residual, to_half)
    check(Case(**ODD, batch=batch, tail=tail), tolerance=1e-2 if rounds else 1e-5)


@interpreted
@pytest.mark.parametrize("form", ("NN", "NT", "TN", "TT"))
@pytest.mark.parametrize("k", (19, 32))
def test_operands_are_converted_as_they_are_read(form: str, k: int) -> None:
    check(Case(37, 21, k, form=form, given=f32, dtype=f16))
    check(Case(37, 21, k, form=form, given=f32, dtype=bf16), tolerance=4e-2)  # the interpreter cuts bits off


@interpreted
@pytest.mark.parametrize("k", (19, 32))
def test_what_lies_beyond_an_operand_is_zero_whatever_is_computed(k: int) -> None:
    check(Case(37, 21, k, given=f32, head=lambda x: x * 2.0 + 1.0))
    check(Case(37, 21, k, given=f32, head=lambda x: op("exp", x), batch=2, form="TT"), tolerance=4e-3)
    check(
        Case(37, 21, k, given=f32, head=lambda x: op("log", op("abs", x)), form="NT"), tolerance=4e-3
    )  # of zero: -inf


@interpreted
@pytest.mark.parametrize("group", (1, 2, 3, 8))
def test_every_tile_is_computed_once(group: int) -> None:
    counted = Case(16 * 5 + 1, 16 * 3 + 2, 16, batch=2)
    check(counted, Tile(16, 16, 16, 4, 2, group=group))


@pytest.mark.parametrize("tail", TAILS, ids=lambda tail: tail.__name__)
def test_what_products_mean_are_valid_loops(tail) -> None:
    verify(as_loops(Case(**ODD, batch=3, form="TN", tail=tail).product()))


# ---- compiled


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("form", ("NN", "NT", "TN", "TT"))
@pytest.mark.parametrize("dtype", (bf16, f16))
def test_tensor_cores_read_shared_memory_that_is_filled_meanwhile(dtype: torch.dtype, form: str) -> None:
    source = product_source(
        Case(256, 256, 256, dtype=dtype, form=form, tail=bias_gelu).product(), Tile(128, 128, 64, 4, 4)
    )
    ptx = to_ptx(source, 90)
    assert "wgmma.mma_async" in ptx.text and "cp.async.cg.shared.global" in ptx.text
    assert ".target sm_90a" in ptx.text and 48 << 10 < ptx.shared <= 227 << 10
    assert re.search(r"st\.global\.v4", ptx.text)
    older = to_ptx(source, 80).text
    assert "mma.sync" in older and "cp.async" in older and ".target sm_80\n" in older


@pytest.mark.usefixtures("compiled")
def test_a_cast_of_an_operand_is_pipelined_too() -> None:
    case = Case(256, 256, 256, form="NT", given=f32, dtype=bf16)
    text = to_ptx(product_source(case.product(), Tile(128, 128, 32, 8, 3)), 90).text
    assert "wgmma.mma_async" in text and "cp.async.cg" in text


@pytest.mark.usefixtures("compiled")
def test_the_tiles_compile_and_fit() -> None:
    case = Case(512, 512, 512, dtype=bf16, form="NT")
    for tile in (Tile(*row) for row in TILES):
        ptx = to_ptx(product_source(case.product(), tile), 90)
        assert ptx.shared <= 227 << 10 and ptx.threads == 32 * tile.warps


def test_tiles_cover_small_sizes_without_waste() -> None:
    for case in (
        Case(1, 5000, 4096, dtype=bf16),
        Case(7, 3, 5),
        Case(4096, 64, 64, dtype=f16),
        Case(64, 64, 8, given=f32),
    ):
        found = tiles(case.product(), 132)
        assert found and all(t.x <= max(16, 2 * case.m) and t.r <= max(16, 2 * case.n) for t in found)
        assert all(t.k <= max(16, 2 * case.k) for t in found)


def test_small_products_are_cut_into_enough_tiles() -> None:
    small, large = (Case(n, n, 1024, dtype=bf16).product() for n in (512, 4096))
    assert any(t.x * t.r <= 64 * 32 for t in tiles(small, 132)) and tiles(small, 132)[0].x <= 64
    assert tiles(large, 132)[0] == Tile(*TILES[0])


@pytest.mark.usefixtures("compiled")
def test_large_matrices_are_indexed_by_64_bits() -> None:
    assert "int64" in product_source(Case(1 << 17, 1 << 15, 64, dtype=bf16).product(), SMALL).text
    assert "int64" in product_source(Case(64, 64, 1 << 26, dtype=bf16).product(), SMALL).text
    assert "int64" not in product_source(Case(1 << 14, 1 << 14, 64, dtype=bf16).product(), SMALL).text
