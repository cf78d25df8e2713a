"""How much memory calls take at most on a GPU: large products of which the caller gets a copy are computed in pieces."""

import pytest
import torch
import torch.nn.functional as F

import smelt
from benchmarks import errors
from benchmarks.gpu.models import Work, build
from benchmarks.gpu.timing import peak_above
from benchmarks.models import tensors

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

MIB = 1 << 20


def test_gpt2_takes_no_more_memory_than_eager():
    """Its logits, of 50257 columns, are computed in rows of 50264."""
    work = Work(build("GPT-2, 8×512"), training=False)
    compiled = smelt.compile(work.module)
    got, want = tensors(work.run(compiled)), tensors(work.run(work.module))
    assert errors.of_lists(got, want) < 0.05
    del got, want
    peaks = [peak_above(lambda call=call: work.run(call)) for call in (compiled, work.module)]
    assert peaks[0] <= peaks[1]


@pytest.mark.parametrize("left", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("m", [4096, 3001])
def test_a_product_in_pieces(m, left):
    """The memory of the result, of the padded weight, and of a piece; each piece is eager's within rounding."""
    x = torch.randn(*((768, m) if left else (m, 768)), device="cuda", dtype=torch.bfloat16)
    w = torch.randn(50257, 768, device="cuda", dtype=torch.bfloat16) / 28
    x = x.t() if left else x
    compiled = smelt.compile(F.linear, fullgraph=True)
    with torch.no_grad():
        exact, scale = x.float() @ w.float().t(), 2**-8
        for _ in range(2):
            got = compiled(x, w)
            assert got.is_contiguous()
            assert ((got.float() - exact).abs() <= scale * exact.abs() + 0.01).all()
        del got, exact
        peak = peak_above(lambda: compiled(x, w))
    result, copies = m * 50257 * 2, w.nbytes + x.nbytes
    assert peak <= result + result // 7 + copies + 40 * MIB  # cuBLAS's own


def test_memory_that_is_filled():
    """As eager: the parts are not in memory all at once."""

    def fn(a, b, w):
        out = torch.empty(8192, 4096, device="cuda")
        out[:4096] = (a @ w).relu()
        out[4096:] = b @ w
        return out

    a, b, w = (torch.randn(4096, 4096, device="cuda") / 64 for _ in range(3))
    compiled = smelt.compile(fn, fullgraph=True)
    torch.testing.assert_close(compiled(a, b, w), fn(a, b, w), atol=1e-3, rtol=1e-3)
    assert peak_above(lambda: compiled(a, b, w)) <= peak_above(lambda: fn(a, b, w))
