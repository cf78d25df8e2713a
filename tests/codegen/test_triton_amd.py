"""Printed Triton kernels compiled to code objects for AMD's GPUs: without one, without ROCm, by Triton's own assembler and
linker."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
import triton
import triton.compiler.code_generator  # while the interpreter is on, if it is: later it refuses

if "amd" not in triton.backends.backends:
    pytest.skip("this Triton has no backend for AMD's processors", allow_module_level=True)

from smelt.codegen.autotune.tile_configs import TILES
from smelt.codegen.triton import Request, Source, compile_kernels, device_images, triton_passes, triton_source
from smelt.codegen.triton.block_gemm import Tile
from smelt.codegen.triton.device_images import to_image
from smelt.codegen.triton.gemm_kernel import product_source
from smelt.codegen.triton.gpu_architectures import lanes
from smelt.codegen.triton.kernel_source import batched_source
from smelt.codegen.triton.value_expressions import FUNCTIONS
from smelt.loops.kernel_ir import Kernel
from smelt.plan.machine_code import Block
from smelt.runtime.disk_cache import Store
from smelt.targets.amd import ARCHS
from tests.harness.kernels import (
    dropped,
    flat,
    layer_norm,
    op,
    reduction,
    rows_written,
    scaled,
    softmax,
    transpose,
)
from tests.harness.printed import KERNELS, scheduled
from tests.harness.processes import run
from tests.harness.products import Case

f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16
MI300 = "gfx942"
MANY = 1 << 22  # elements: fewer are spread over more threads


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled here, also where other tests use the interpreter."""
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)


def printed(kernel: Kernel, host: frozenset[int] = frozenset()) -> Source:
    return triton_source(kernel, host, "libdevice")


def assembly(source: Source, arch: str = MI300) -> str:
    """What the assembler is given, without what debuggers read."""
    text, _ = triton_passes.run(source, arch, "amdgcn")
    return text.partition("\t.section\t.debug_abbrev")[0] + text[text.index(".amdgpu_metadata") :]


def parameters(text: str) -> list[tuple[str, int]]:
    """Of the kernel, as its metadata has them: what kind, and how many bytes."""
    told = text[text.index(".amdgpu_metadata") :]
    return [
        (kind, int(size))
        for size, kind in re.findall(r"\.size:\s+(\d+)\s+\.value_kind:\s+(\w+)", told)
        if not kind.startswith("hidden_")
    ]


@pytest.mark.parametrize("name", KERNELS)
def test_compiles(name: str) -> None:
    source = printed(KERNELS[name])
    assert "inline_asm" not in source.text
    made = to_image(source, MI300, "some_name")
    assert made.code.startswith(b"\x7fELF") and made.name == "some_name" and b"some_name.kd" in made.code
    assert made.threads == max(32 * source.warps, 64) and made.shared <= device_images.SHARED


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ("bf16", "softmax", "sum of rows", "sums beside rows", "scan in blocks"))
def test_a_launch_gives_what_the_code_takes(name: str, arch: str) -> None:
    """Buffers, the number of points and two pointers; as many threads of 64 a warp as `to_image` says."""
    source = printed(KERNELS[name])
    text = assembly(source, arch)
    pointers = [("global_buffer", 8) for b in KERNELS[name].buffers if b.role != "local"]
    assert parameters(text) == [*pointers, ("by_value", 8), *[("global_buffer", 8)] * 2]
    assert f"amdgcn-amd-amdhsa--{arch}\n" in text and ".wavefront_size: 64" in text
    assert f".max_flat_workgroup_size: {to_image(source, arch).threads}\n" in text
    assert ".vgpr_spill_count: 0" in text and ".amdhsa_float_denorm_mode_32 3" in text


def test_processors_with_warps_of_32() -> None:
    assert (lanes(MI300), lanes("gfx1100"), lanes(90)) == (64, 32, 32)
    source = printed(softmax(64, 1000))
    assert ".wavefront_size: 32" in assembly(source, "gfx1100")
    assert to_image(source, "gfx1100").threads == 32 * source.warps


@pytest.mark.parametrize("dtype", (f64, f32, torch.int64, torch.int16, torch.bool, bf16))
def test_numbers_are_passed_by_value(dtype: torch.dtype) -> None:
    text = assembly(printed(scaled(4096, dtype), frozenset((1,))))
    assert parameters(text)[1] == ("by_value", dtype.itemsize)


@pytest.mark.parametrize("dtype", (f32, f64, bf16))
def test_functions(dtype: torch.dtype) -> None:
    """Each has a form for this dialect, by a name that AMD's library knows."""
    pairs = ("pow", "atan2", "copysign", "fmod")
    names = FUNCTIONS if dtype is f32 else FUNCTIONS - {"device_log", "fast_log", "fast_sin", "fast_cos"}

    def body(x: Any, y: Any) -> Any:
        return reduce(lambda a, b: a + b, (op(n, x, y) if n in pairs else op(n, x) for n in sorted(names)))

    assert to_image(printed(flat(4096, [dtype, dtype], dtype, body)), MI300).code


def adamw(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    m, v = m.lerp(g, 0.1), v * 0.999 + g * g * 0.001
    return p - 1e-3 * m / (v.sqrt() + 1e-8), m, v


def empty(*shape: int, dtype: torch.dtype = bf16) -> torch.Tensor:
    """Not looked into."""
    return torch.empty(shape, dtype=dtype)


PROGRAMS: dict[str, tuple[Callable, tuple[torch.Tensor, ...]]] = {
    "gelu": (lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), (empty(64, 512),)),
    "silu and sigmoid": (lambda x: F.silu(x) * x.sigmoid(), (empty(64, 512),)),
    "softmax": (lambda x: x.softmax(-1), (empty(64, 1000),)),
    "a long row's softmax": (lambda x: x.float().log_softmax(-1), (empty(16, 70_000),)),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (768,), w, b),
        (empty(64, 768), empty(768), empty(768)),
    ),
    "cross entropy": (F.cross_entropy, (empty(64, 5000, dtype=f32), torch.zeros(64, dtype=torch.int64))),
    "adamw": (adamw, tuple(empty(4099, dtype=f32) for _ in range(4))),
    "remainders": (lambda x, y: (x % y, x // y, torch.fmod(x, y)), (empty(99), empty(99))),
    "of integers": (
        lambda x: (x % 7, x >> 2, x.abs().clamp(max=9)),
        (torch.zeros(99, dtype=torch.int64),),
    ),
    "indices": (lambda x, i: x[i] * 2, (empty(50, 64), torch.zeros(70, dtype=torch.int64))),
    "layouts": (lambda x: x.contiguous(memory_format=torch.channels_last), (empty(2, 17, 9, 9),)),
    "variances": (lambda x: torch.var_mean(x, (0, 2, 3)), (empty(8, 16, 30, 30, dtype=f32),)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """Also what is cheaper as it is rounded to half precision at once (`rounded.py`)."""
    f, inputs = PROGRAMS[name]
    kernels = scheduled(f, *inputs)
    assert kernels
    for kernel in kernels:
        made = to_image(printed(kernel), MI300)
        assert made.code.startswith(b"\x7fELF") and made.threads <= 1024


def test_contiguous_memory_is_read_and_written_in_vectors() -> None:
    """16 bytes by each thread, although warps are twice as wide."""
    text = assembly(printed(flat(MANY, [f32, f32], f32, lambda a, b: op("add", a, b))))
    assert text.count("global_load_dwordx4") == 2 and text.count("global_store_dwordx4") == 1
    assert "global_load_dwordx4" in assembly(printed(layer_norm(64, 1024, bf16)))
    turned = assembly(printed(transpose(4096, 4096)))
    assert turned.count("global_load_dwordx4") == turned.count("global_store_dwordx4") == 4


def test_products_and_sums_are_not_contracted() -> None:
    kernel = flat(MANY, [f32, f32, f32], f32, lambda a, b, c: a * b + c)
    text = assembly(printed(kernel))
    assert re.search(r"v_(pk_)?mul_f32", text) and re.search(r"v_(pk_)?add_f32", text)
    assert not re.search(r"v_\w*(fma|mad|mac)", text)


def test_quotients_and_roots_are_rounded_correctly() -> None:
    """By the steps that follow the processor's approximations."""
    text = assembly(printed(flat(MANY, [f32, f32], f32, lambda a, b: a / b)))
    assert "v_div_fixup_f32" in text and "v_div_scale_f32" in text
    text = assembly(printed(flat(MANY, [f32], f32, lambda a: op("sqrt", a))))
    assert re.search(r"v_(rsq|sqrt)_f32", text) and len(re.findall(r"v_(?:pk_)?fma_f32", text)) >= 4


def test_a_place_out_of_range_ends_the_kernel() -> None:
    assert "s_trap 2" in assembly(printed(rows_written(5, 512, 100, bf16)))


@pytest.mark.parametrize("rows, columns", ((1, 4096), (64, 512)))
def test_random_bits(rows: int, columns: int) -> None:
    text = assembly(printed(dropped(rows, columns), frozenset((0, 1))))
    assert "v_mul_hi_u32" in text or "v_mad_u64_u32" in text


@pytest.mark.parametrize("dtype", (torch.float16, bf16))
def test_products(dtype: torch.dtype) -> None:
    """By the units for matrices."""
    source = product_source(
        Case(256, 256, 256, dtype=dtype).product(), Tile(128, 128, 64, 8, 2), dialect="libdevice"
    )
    assert "v_mfma_f32" in assembly(source)
    made = to_image(source, MI300)
    assert made.threads == 256 and made.shared <= device_images.SHARED


def test_code_that_needs_more_shared_memory_than_there_is_is_refused() -> None:
    largest = max((Tile(*row) for row in TILES), key=lambda t: (t.x + t.r) * t.k * t.stages)
    source = product_source(Case(512, 512, 512, dtype=bf16).product(), largest, dialect="libdevice")
    with pytest.raises(Exception, match="shared memory|out of resource|LDS"):
        to_image(source, MI300)


def test_several_launches_by_one_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="a table as a parameter"):
        to_image(batched_source(scaled(4096), dialect="libdevice"), MI300)


def test_what_a_launch_needs_is_said_and_kept(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "smelt"), 1 << 30)
    request = Request(reduction("sum", 100, 200, f32, "rows"))
    (compiled,) = compile_kernels([request], MI300, 1, store)
    function = compiled.function
    assert function.name == function.library.exports[0] and function.name.startswith("smelt_")
    processor = function.library.processor
    assert (processor.triple, processor.name) == ("amdgcn-amd-amdhsa", MI300)
    assert function.block == Block(32 * request.printed().warps, function.block.shared)
    assert compile_kernels([request], 90, 1)[0].function is not function
    told = function.library.objects
    del compiled, function
    (again,) = compile_kernels([request], MI300, 1, store)
    assert again.function.library.objects == told


ALONE = """
import json, os
os.environ["PATH"] = ""
os.environ["HOME"] = "/nonexistent"
os.environ.pop("TRITON_INTERPRET", None)
from smelt.codegen.triton import Request, compile_kernels
from tests.harness.kernels import layer_norm
(kernel,) = compile_kernels([Request(layer_norm(8, 64))], "gfx942", 1)
print(json.dumps(kernel.function.name))
"""


def test_no_other_program_is_needed() -> None:
    assert run(ALONE) == "smelt_layer_norm"
