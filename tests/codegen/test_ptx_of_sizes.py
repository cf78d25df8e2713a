"""Kernels with symbols for sizes, compiled to PTX: what they take, what they load, and how often Triton is asked."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
import triton
import triton.compiler.code_generator  # noqa: F401  while the interpreter is on, if it is: later it refuses

from smelt.codegen.triton import Request, compile_kernels, traced_frontend
from smelt.codegen.triton import compile as triton_compile
from smelt.codegen.triton.compile import General
from smelt.codegen.triton.symbolic_kernels import numbered
from smelt.loops.kernel_ir import Kernel
from smelt.loops.kernel_sizes import at_sizes
from tests.harness.sized_kernels import Once
from tests.harness.sized_programs import ELEMENTWISE, REDUCED, ROWS
from tests.harness.symbolic import S0, S1

f32, bf16 = torch.float32, torch.bfloat16


@pytest.fixture(autouse=True)
def _compiled(monkeypatch):
    """Kernels are compiled here, also where other tests use the interpreter. By the shortest way alone."""
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    form_of = traced_frontend.form_of
    failures = []

    def noting(*given):
        try:
            return form_of(*given)
        except Exception as error:
            failures.append(error)
            raise

    monkeypatch.setattr(traced_frontend, "form_of", noting)
    yield
    assert not failures


def kernel_of(f, *shapes, dtype=bf16) -> Kernel:
    return Once(f, *shapes, dtype=dtype).kernels[0]


def request(kernel, s0, s1):
    made = numbered(kernel)
    return Request(made, general=General(made, tuple({S0: s0, S1: s1}[s] for s in kernel.sizes)))


def ptx(asked):
    [compiled] = compile_kernels([asked], 90, 1)
    return compiled, compiled.function.library.objects[0].decode()


def instructions(text, *beginnings):
    """Those that begin so, in order; all if none is named."""
    found = [line.strip() for line in text.splitlines() if re.match(r"\t(@%p\d+ )?[a-z]", line)]
    found = [re.sub(r"^@%p\d+ ", "", line).split()[0] for line in found]
    return [name for name in found if not beginnings or name.startswith(beginnings)]


@pytest.mark.parametrize(
    "case",
    [
        ELEMENTWISE["a row for all"],
        ELEMENTWISE["lower triangle"],
        ELEMENTWISE["transposed"],
        ELEMENTWISE["by heads"],
        REDUCED["softmax"],
        REDUCED["rows"],
        REDUCED["product"],
    ],
)
def test_compiles(case):
    f, *shapes = case
    kernel = kernel_of(f, *shapes, dtype=f32)
    for sizes in ((3, 17), (16, 64), (70_000, 40_000)):
        compiled, text = ptx(request(kernel, *sizes))
        parameters = re.findall(r"\.param .*_param_\d+", text)
        assert len(parameters) == len(kernel.buffers) + len(kernel.sizes) + 3  # points, and two of Triton's
        assert len(compiled.sizes) == len(kernel.sizes) and not re.search(r"__nv_|\.extern \.func", text)


def test_rows_of_a_fixed_size_have_the_instructions_of_the_kernel_for_numbers():
    kernel = kernel_of(lambda x, w, b: F.layer_norm(x, (768,), w, b), (S0, S1, 768), (768,), (768,))
    _, ours = ptx(request(kernel, 16, 512))
    _, theirs = ptx(Request(at_sizes(kernel, {S0: 16, S1: 512})))
    assert instructions(ours) == instructions(theirs)
    assert "ld.global.v4.b32" in instructions(ours, "ld.global")


def test_vectors_are_read_where_lengths_are_multiples_of_16():
    kernel = kernel_of(*ELEMENTWISE["a row for all"])
    (_, even), (_, odd) = ptx(request(kernel, 5, 64)), ptx(request(kernel, 5, 61))
    assert any(".v4" in name or ".v2" in name for name in instructions(even, "ld.global"))
    assert not any(".v4" in name or ".v2" in name for name in instructions(odd, "ld.global"))


def test_one_compilation_for_all_numbers_of_rows(monkeypatch):
    made = []
    to_image = triton_compile.to_image
    monkeypatch.setattr(triton_compile, "to_image", lambda *given: made.append(given[2]) or to_image(*given))
    kernel = kernel_of(*ROWS["softmax of long rows"][:1], (S0, S1, 333))
    codes = [ptx(request(kernel, a, b))[0] for a, b in ((2, 3), (17, 5), (64, 128), (31, 1000))]
    assert len(made) == 1 and len({code.function for code in codes}) == 1
    assert [code.extent for code in codes] == [6, 85, 8192, 31_000]
    assert [dict(zip(kernel.sizes, code.sizes)) for code in codes][1] == {S0: 17, S1: 5}
