"""Printed Triton kernels compiled to PTX: without a GPU, and without any program beside Python."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy
import pytest
import torch

pytest.importorskip("triton")
import triton
import triton._C.libtriton as native
import triton.compiler.code_generator  # while the interpreter is on, if it is: later it refuses

from smelt.codegen.triton import (
    Request,
    compile_kernels,
    llvm_lowering,
    ptx_functions,
    triton_passes,
    triton_source,
)
from smelt.codegen.triton.kernel_source import TABLE, batched_source, joins
from smelt.codegen.triton.ptx import to_ptx
from smelt.codegen.triton.triton_import import Library, library
from smelt.loops.kernel_ir import Kernel
from smelt.loops.philox import philox
from smelt.plan.machine_code import Block
from tests.harness.kernels import (
    bias_gelu,
    dropped,
    flat,
    kept,
    layer_norm,
    op,
    reduction,
    rows_written,
    scaled,
    scaled_and_summed,
    softmax,
    transpose,
)
from tests.harness.printed import KERNELS, add, scheduled
from tests.harness.processes import run

f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled here, also where other tests use the interpreter."""
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)


@pytest.mark.parametrize("arch", (80, 90))
@pytest.mark.parametrize("name", KERNELS)
def test_compiles(name: str, arch: int) -> None:
    source = triton_source(KERNELS[name])
    ptx = to_ptx(source, arch, "some_name")
    assert f".target sm_{arch}\n" in ptx.text and ".visible .entry some_name(" in ptx.text
    assert ptx.threads == 32 * source.warps and f".reqntid {ptx.threads}" in ptx.text
    assert not re.search(r"__nv_|\.extern \.func|\.loc|\.debug|\.file", ptx.text)
    parameters = re.findall(r"\.param .*some_name_param_\d", ptx.text)
    passed = [b for b in KERNELS[name].buffers if b.role != "local"]
    assert len(parameters) == len(passed) + 3  # points and two pointers that Triton adds


@pytest.mark.parametrize(
    "name", ("gelu", "softmax", "softmax of columns", "scan in blocks", "transpose", "argmax of rows")
)
def test_all_of_tritons_passes_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def instructions() -> Counter[str]:
        text = to_ptx(triton_source(KERNELS[name]), 90).text
        return Counter(line.split()[0] for line in text.splitlines() if line.strip())

    few = instructions()
    monkeypatch.setattr(Library, "to_threads", lambda self, module, found, arch, own: own(module, found))
    assert few == instructions()


@pytest.mark.parametrize("name", ("layer norm", "softmax of columns", "all of it", "several by one"))
def test_tritons_own_front_gives_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the source to Triton's form there are two shorter ways (`executed.py`, `front.py`)."""
    source = batched_source(add(4096)) if name == "several by one" else triton_source(KERNELS[name])
    ptx = to_ptx(source, 90)
    monkeypatch.setattr("smelt.codegen.triton.traced_frontend.form_of", None)
    with monkeypatch.context() as changed:
        changed.setattr(
            "smelt.codegen.triton.triton_import.function_of", None
        )  # the copy of Triton's generator is taken
        assert ptx == to_ptx(source, 90)
    monkeypatch.setattr(library(), "generator", None)
    assert ptx == to_ptx(source, 90)


@pytest.mark.parametrize("arch", (80, 90))
def test_the_form_of_llvm_is_tritons(arch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done once for all kernels (`llvm_form.py`) is in each of them; the first is as Triton makes it."""
    sources = [
        triton_source(KERNELS[name]) for name in ("gelu", "transpose", "long rows", "softmax of columns")
    ]
    texts = [triton_passes.run(source, arch, "llir")[0] for source in (*sources, sources[0])]
    monkeypatch.setattr(llvm_lowering, "shorten", lambda backend, ir, arch: None)
    assert texts == [triton_passes.run(source, arch, "llir")[0] for source in (*sources, sources[0])]
    assert all("target datalayout" in text for text in texts)


def test_first_forms_of_llvm_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread finds the layout out while the first kernel has none yet: of a processor that no other test has."""
    source, own, others = triton_source(add(4096)), native.llvm.to_module, []

    def to_module(module: object, context: object) -> object:
        made = own(module, context)
        if not others:
            others.append("")
            with ThreadPoolExecutor(1) as pool:
                others[0] = pool.submit(triton_passes.run, source, 86, "llir").result()[0]
        return made

    monkeypatch.setattr(native.llvm, "to_module", to_module)
    text = triton_passes.run(source, 86, "llir")[0]
    assert "target datalayout" in text and others == [text]


def shifted_back(
    windows: torch.Tensor, residual: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What windows of 7x7 positions of 8 images of 56x56 are to these, rolled by 3; with a residual; that normed."""
    images = windows.view(8, 8, 8, 7, 7, 96).transpose(2, 3).reshape(8, 56, 56, 96)
    rolled = torch.roll(images, (3, 3), (1, 2))
    added = residual + rolled
    return rolled, added, torch.nn.functional.layer_norm(added, (96,))


def test_launches_that_are_one_have_blocks_of_one_size() -> None:
    """Of small ones, alone, there are more programs, of fewer points each."""
    sizes = (16, 1 << 16, 1 << 24)
    assert len({batched_source(add(n)).block for n in sizes}) == 1
    few, small, large = (triton_source(add(n)).block for n in sizes)
    assert small < few == large


def test_no_packed_sums_of_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's assemblers lose what these add."""
    inputs = torch.empty(512, 49, 96, dtype=bf16), torch.empty(8, 56, 56, 96)
    [kernel] = scheduled(shifted_back, *inputs)
    text = to_ptx(triton_source(kernel), 90).text
    assert "s16x2" not in text and "add.s16 " in text
    monkeypatch.setattr("smelt.codegen.triton.ptx._without_pairs", lambda text: text)
    assert "add.s16x2" in to_ptx(triton_source(kernel), 90).text


def test_the_programs_code_generator_stays_as_it_is() -> None:
    own = triton.compiler.code_generator
    to_ptx(replace(triton_source(add(4096)), stages=2), 90)
    assert library().generator.CodeGenerator is not own.CodeGenerator
    assert own.CodeGenerator.visit.__module__ == own.__name__ and own.inspect.__name__ == "inspect"


def test_what_cannot_be_compiled_is_said_in_tritons_words() -> None:
    source = triton_source(add(4096))
    wrong = replace(source, text=source.text.replace("XBLOCK + tl.arange(", "XBLOCK + tl.nothing("))
    with pytest.raises(Exception, match="nothing") as raised:
        to_ptx(wrong, 90)
    assert type(raised.value).__name__ == "CompilationError"


@pytest.mark.parametrize("arch", (80, 90))
@pytest.mark.parametrize("rows", (1, 5))
def test_a_place_out_of_range_is_an_assertion(rows: int, arch: int) -> None:
    text = to_ptx(triton_source(rows_written(rows, 512, 100, bf16)), arch).text
    assert text.count("call.uni __assertfail") == 1 and ".extern .func __assertfail" in text
    assert not re.search(r"\.loc|\.debug", text)
    stores = [line for line in text.splitlines() if "st.global" in line]
    assert stores and all(re.search(r"\.v[24]\.b32", line) for line in stores)


def test_contiguous_memory_is_read_and_written_in_vectors() -> None:
    text = to_ptx(triton_source(add(4096)), 90).text
    assert text.count("ld.global.v4.b32") == 2 and text.count("st.global.v4.b32") == 1
    assert "ld.global.v4" in to_ptx(triton_source(layer_norm(64, 1024)), 90).text
    assert "v4" not in to_ptx(triton_source(add(4097)), 90).text


def test_turned_tiles_are_read_and_written_in_vectors() -> None:
    """A tile of 64 by 64 floats, 16 for each of 256 threads."""
    text = to_ptx(triton_source(transpose(4096, 4096)), 90).text
    assert text.count("ld.global.v4.b32") == text.count("st.global.v4.b32") == 4
    assert "ld.global.b32" not in text and "st.global.b32" not in text


def test_columns_are_read_in_vectors() -> None:
    text = to_ptx(triton_source(reduction("sum", 4096, 4096, f32, "rows")), 90).text
    assert "ld.global.v4.b32" in text and "ld.global.b32" not in text


def test_rows_with_sums_beside_them_are_read_once_and_ahead() -> None:
    """4,096 elements of bfloat16 by 256 threads: of a row each loads two vectors, before the loop and again in it, where it
    loads the next row; the weight's it loads in the loop."""
    text = to_ptx(triton_source(scaled_and_summed(1024, 4096, 16, bf16)), 90).text
    label = re.search(r"(\$L__BB0_\d+):(.*?)bra\s+\1", text, re.S)
    assert label is not None
    before, loop = text[: label.start()], label[2]
    assert before.count("ld.global.v4.b32") == 2 and loop.count("ld.global.v4.b32") == 4
    assert loop.count("st.global.v4.b32") == 2 and loop.index("ld.global") < loop.index("bar.sync")
    assert ".maxnreg 128\n" in text  # two such programs on a multiprocessor


def test_products_and_sums_are_not_contracted() -> None:
    kernel = flat(4096, [f32, f32, f32], f32, lambda a, b, c: a * b + c)
    text = to_ptx(triton_source(kernel), 90).text
    assert "mul.rn.f32" in text and "add.rn.f32" in text and "fma" not in text


def test_elementwise_kernels_of_all_sizes_are_few() -> None:
    sizes = (16, 4096, 1 << 20, 17, 4097, 1 << 40, 1 << 16, 1 << 17)
    one, two, three, odd, prime, huge, *some = compile_kernels([Request(add(n)) for n in sizes], 90, 1)
    assert len({k.function for k in some}) == 1 and some[0].grain < one.grain  # more programs
    assert one.function is two.function is three.function
    assert odd.function is prime.function and odd.function is not one.function
    assert huge.function is not one.function  # its indices are wider
    assert [k.extent for k in (one, two, prime)] == [16, 4096, 4097] and one.grain == prime.grain
    assert "4096" not in triton_source(add(4096)).text


def test_equal_kernels_are_compiled_once() -> None:
    first, other, again = compile_kernels(
        [Request(softmax(8, 64)), Request(layer_norm(8, 64)), Request(softmax(8, 64))], 90, threads=2
    )
    assert first.function is again.function is not other.function
    assert compile_kernels([Request(softmax(8, 64))], 90, 1)[0].function is first.function
    assert compile_kernels([Request(softmax(8, 64))], 80, 1)[0].function is not first.function


def test_what_a_launch_needs_is_said() -> None:
    kernel = softmax(100, 1000)
    (compiled,) = compile_kernels([Request(kernel)], 90, 1)
    function, source = compiled.function, triton_source(kernel)
    assert function.block == Block(source.warps * 32, function.block.shared) and function.block.shared > 0
    assert function.name == "smelt_softmax" == function.library.exports[0]
    assert function.library.processor.name == "sm_90"
    assert (compiled.extent, compiled.grain) == (100, source.block)
    assert dict(source.signature) == dict(
        p0="*fp32", p1="*fp32", points="i64", XBLOCK="constexpr", RBLOCK="constexpr"
    )


@pytest.mark.parametrize("dtype", (f64, f32, torch.int64, torch.bool, bf16))
def test_numbers_are_passed_by_value(dtype: torch.dtype) -> None:
    source = triton_source(scaled(4096, dtype), host=frozenset((1,)))
    assert not source.signature["p1"].startswith("*") and "p1 +" not in source.text
    text = to_ptx(source, 90).text
    assert text.count("cvta.to.global") == 0 and text.count("ld.global.v4") == 1
    assert "kernel_param_1" in text


def test_several_launches_by_one_have_one_body_and_vectors() -> None:
    source = batched_source(add(4096))
    assert source.table is not None and source.table.slots <= TABLE and source.table.parts == 93
    assert source.text.count("tl.load") == 2 and source.text.count("tl.store") == 1
    text = to_ptx(source, 90, "joined").text
    assert f".param .align 8 .b8 joined_param_0[{8 * source.table.slots}]" in text
    assert text.count("ld.global.v4.b32") == 2 and text.count("st.global.v4.b32") == 1
    assert (
        len(re.findall(r"\.param .*joined_param_\d", text)) == 3
    )  # the table and two pointers that Triton adds
    assert "v4" not in to_ptx(batched_source(add(4097)), 90).text
    assert to_ptx(batched_source(add(4096), unaligned=frozenset((1,))), 90).text.count("ld.global.v4") == 1


@pytest.mark.parametrize("dtype", (f64, f32, torch.int64, torch.bool, bf16))
def test_numbers_in_the_table(dtype: torch.dtype) -> None:
    text = to_ptx(batched_source(scaled(4096, dtype), host=frozenset((1,))), 90).text
    assert text.count("ld.global.v4") == 1 and text.count("ld.global") == 1


def test_launches_by_one_share_code_and_are_not_launched_alone() -> None:
    alone, one, two, odd = compile_kernels(
        [Request(add(64)), *(Request(add(n), batched=True) for n in (64, 4096, 7))], 90, 1
    )
    assert one.function is two.function and len({alone.function, one.function, odd.function}) == 3
    assert [k.extent for k in (one, two, odd)] == [64, 4096, 7] and one.grain == alone.grain
    assert alone.function.block.parts == 0 and one.function.block.parts == 93


def test_which_kernels_may_be_launched_by_one() -> None:
    assert joins(add(7)) and joins(scaled(7))
    assert not joins(softmax(8, 64)) and not joins(bias_gelu(8, 64))
    assert not joins(add(1 << 30))  # its indices need more than 32 bits
    assert not joins(flat(8, [f32] * 300, f32, lambda *xs: xs[0] + xs[1]))  # its arguments fill the table


def test_what_is_kept_stays_in_registers() -> None:
    source = triton_source(kept(64, 1000))
    assert source.text.count("tl.load") == source.text.count("tl.store") == 1
    with pytest.raises(NotImplementedError, match="kept in kept are not in registers"):
        triton_source(kept(64, 1000, shift=1))
    with pytest.raises(NotImplementedError, match="do not fit into registers"):
        triton_source(kept(4, 20_000))


ALONE = """
import json, os
os.environ["PATH"] = ""
os.environ["HOME"] = "/nonexistent"
os.environ.pop("TRITON_INTERPRET", None)
from smelt.codegen.triton import Request, compile_kernels
from tests.harness.kernels import layer_norm
(kernel,) = compile_kernels([Request(layer_norm(8, 64))], 90, 1)
print(json.dumps(kernel.function.name))
"""


def test_no_other_program_is_needed() -> None:
    assert run(ALONE) == "smelt_layer_norm"


MISSING = """
import json, sys
sys.modules["triton"] = None
from smelt.codegen.triton import Request, compile_kernels
from tests.harness.kernels import softmax
try:
    compile_kernels([Request(softmax(8, 64))], 90, 1)
except ImportError as error:
    print(json.dumps(str(error)))
"""


def test_without_triton_the_error_says_what_to_install() -> None:
    assert "pip install triton" in run(MISSING)


# ---- the assembly of functions, interpreted

FLOATS = {
    "f32": numpy.float32,
    "f64": numpy.float64,
    "s32": numpy.int32,
    "s64": numpy.int64,
    "b32": numpy.int32,
    "b64": numpy.int64,
}
COMPARISONS: dict[str, Callable] = dict(
    lt=numpy.less, le=numpy.less_equal, gt=numpy.greater, ge=numpy.greater_equal, eq=numpy.equal,
    ne=lambda a, b: (a != b) & (a == a) & (b == b), nan=lambda a, b: (a != a) | (b != b),
)  # fmt: skip
ROUND: dict[str, Callable] = dict(rni=numpy.rint, rmi=numpy.floor, rpi=numpy.ceil, rzi=numpy.trunc)


def fused(a: numpy.ndarray, b: numpy.ndarray, c: numpy.ndarray) -> numpy.ndarray:
    """a * b + c; of float32 exact enough in float64, of float64 in what is wider."""
    wide = numpy.float64 if a.dtype == numpy.float32 else numpy.longdouble
    return a.astype(wide) * b.astype(wide) + c.astype(wide)


def arithmetic(parts: list[str], kind: type, args: list[numpy.ndarray]) -> numpy.ndarray:
    """The result of an instruction whose opcode has these parts."""
    opcode, *modes = parts
    if opcode == "fma":
        value = fused(*args)
        if "sat" in modes:
            value = numpy.nan_to_num(numpy.clip(value, 0, 1), nan=0.0)
        rounded = value.astype(kind)
        lower = numpy.nextafter(rounded, kind(-math.inf))
        return numpy.where(rounded > value, lower, rounded) if "rm" in modes else rounded
    if opcode == "cvt":
        round_to = ROUND.get("".join(modes[:1]), lambda x: x)
        return numpy.nan_to_num(round_to(args[0])).astype(kind) if kind in (numpy.int32, numpy.int64) else (
            round_to(args[0]).astype(kind)
        )  # fmt: skip
    return ARITHMETIC[opcode](*args).astype(kind)


ARITHMETIC: dict[str, Callable] = {
    "add": numpy.add, "sub": numpy.subtract, "mul": numpy.multiply, "div": numpy.divide, "neg": numpy.negative,
    "abs": numpy.abs, "copysign": lambda sign, x: numpy.copysign(x, sign), "min": numpy.minimum, "shr": numpy.right_shift,
    "shl": numpy.left_shift, "and": numpy.bitwise_and, "or": numpy.bitwise_or, "xor": numpy.bitwise_xor,
    "not": numpy.logical_not, "selp": lambda a, b, p: numpy.where(p, a, b), "sqrt": numpy.sqrt,
    "ex2": lambda x: numpy.exp2(x.astype(float)), "rcp": lambda x: 1 / x.astype(float),
    "rsqrt": lambda x: 1 / numpy.sqrt(x.astype(float)),
}  # fmt: skip


def interpreted(text: str, *inputs: numpy.ndarray) -> numpy.ndarray:
    """What a block of assembly gives for its operands; approximations are exact here."""
    known = {f"${i + 1}": x for i, x in enumerate(inputs)}
    kinds: dict[str, str] = {}
    for line in filter(None, (part.strip() for part in text.strip("{} ").split(";"))):
        opcode, _, rest = line.partition(" ")
        names = [name.strip() for name in rest.split(",")]
        if opcode == ".reg":
            kind, first = names[0].split()
            kinds.update(dict.fromkeys([first, *names[1:]], kind[1:]))
            continue
        parts = opcode.split(".")
        source = FLOATS.get(parts[-1], numpy.bool_)
        args = [operand(name, known, source) for name in names[1:]]
        target = FLOATS.get(kinds.get(names[0], parts[-1]), numpy.bool_)
        if parts[0] == "setp":
            known[names[0]] = COMPARISONS[parts[1]](*args)
        elif parts[0] == "mov":
            known[names[0]] = args[0].view(target)
        else:
            known[names[0]] = arithmetic(parts[: -1 - (parts[0] == "cvt")], target, args)
    return known["$0"]


def operand(name: str, known: dict[str, numpy.ndarray], kind: type) -> numpy.ndarray:
    if name in known:
        return known[name]
    if name[:2] == "0f":
        return numpy.uint32(int(name[2:], 16)).view(numpy.float32)
    if name[:2] == "0d":
        return numpy.uint64(int(name[2:], 16)).view(numpy.float64)
    return kind(int(name))


def units(got: numpy.ndarray, want: torch.Tensor) -> float:
    """The largest error in units of the last place of `got`'s dtype; both must have the same infinities and NaNs."""
    exact = want.double().numpy()
    rounded = exact.astype(got.dtype)
    finite = numpy.isfinite(rounded)
    assert numpy.array_equal(got[~finite], rounded[~finite], equal_nan=True)
    spacing = numpy.spacing(numpy.abs(rounded[finite])).astype(float)
    return float((numpy.abs(got[finite].astype(float) - exact[finite]) / spacing).max())


EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, 1e-6, -1e-6, 1e-40, 87.0, 88.8, -87.5, -100.0, -110.0, 300.0, -300.0,
         3e38, -3e38, math.inf, -math.inf, math.nan]  # fmt: skip
BOUNDED = {"sin": 1e9, "cos": 1e9, "tan": 1e3}


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in ptx_functions.FUNCTIONS["float"]
        if n not in ("pow", "copysign") and not n.startswith(("fast_", "one_plus_"))
    ],
)
def test_functions_of_float32(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.cat(
        [torch.randn(20_000, generator=generator) * s for s in (1e-3, 1, 5, 40)] + [torch.tensor(EDGES)]
    )
    if name in BOUNDED:
        x = x[~(x.abs() > BOUNDED[name])]
    if name == "sigmoid":
        x = x[~(x < -88)]  # where e**-x is infinite it is 0, as eager's
    text, constraints = ptx_functions.block(name, "float")
    assert constraints == "=f,f"
    with numpy.errstate(all="ignore"):
        got = interpreted(text, x.numpy())
    assert units(got, getattr(torch, name)(x.double())) < (3.5 if name == "tan" else 2.5)


# What is rounded to half precision at once (`codegen/triton/approximate_math.py`): exactly, and the assembly for some of it.
HALF: dict[str, tuple[Callable, Callable]] = {
    "gelu": (
        lambda x: x * 0.5 * torch.erfc(-x / 2**0.5),
        lambda x: x * 0.5 * approximately("one_plus_erf", x * numpy.float32(math.sqrt(0.5))),
    ),
    "gelu by tanh": (
        lambda x: x * torch.sigmoid(2 * inner(x)),
        lambda x: x * 0.5 * approximately("one_plus_tanh", inner(x).astype(numpy.float32)),
    ),
    "silu": (lambda x: x * torch.sigmoid(x), lambda x: x * approximately("fast_sigmoid", x)),
    "sigmoid": (torch.sigmoid, lambda x: approximately("fast_sigmoid", x)),
    "exp": (torch.exp, lambda x: approximately("fast_exp", x)),
}  # fmt: skip


EAGER: dict[str, Callable] = {
    "gelu": torch.nn.functional.gelu,
    "gelu by tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
}


def inner(x):
    return (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)


def approximately(name: str, x: numpy.ndarray) -> numpy.ndarray:
    return interpreted(ptx_functions.block(name, "float")[0], x)


@pytest.mark.parametrize("dtype", (bf16, torch.float16))
@pytest.mark.parametrize("name", HALF)
def test_functions_that_are_rounded_to_half_precision(name: str, dtype: torch.dtype) -> None:
    """Of all 65,536 numbers: within 0.55 units of the last place, but for what float32 loses where 1 + erf(x) is near 0
    (eager as much), and for results that float32 has no normal number for. Infinities and NaNs are eager's."""
    x = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    if name == "gelu":
        # Where torch calls oneDNN for it, as depends on the CPU, eager's gelu of infinity is NaN, and that of numbers beyond
        # half of float32's range is infinite. The next test has infinities.
        x = x[~(x.float().abs() >= 2.0**127)]
    exactly, cheaply = HALF[name]
    with numpy.errstate(all="ignore"):
        got = torch.from_numpy(cheaply(x.float().numpy()).astype(numpy.float32)).to(dtype)
    want = exactly(x.double())
    eager = EAGER[name](x.float()).to(dtype)
    finite = torch.isfinite(eager)
    assert torch.equal(torch.nan_to_num(got[~finite], nan=1.0), torch.nan_to_num(eager[~finite], nan=1.0))
    info = torch.finfo(dtype)
    last_place = torch.exp2(torch.floor(torch.log2(want.abs().clamp(min=info.tiny)))) * info.eps
    lost = x.double().abs() * (2.0**-24 if name == "gelu" else 2.0**-125)
    error = (got.double() - want).abs()
    assert bool((error <= 0.55 * last_place + lost + 2.0**-125)[finite].all())


def test_a_sign_is_kept_by_gelu() -> None:
    x = numpy.array([-0.0, 0.0, -30.0, -math.inf, math.inf, math.nan], dtype=numpy.float32)
    with numpy.errstate(all="ignore"):
        got = HALF["gelu"][1](x)
    assert list(numpy.signbit(got[:3])) == [True, False, True] and got[2] == 0
    assert numpy.isnan(got[3]) and got[4] == math.inf and numpy.isnan(got[5])


@pytest.mark.parametrize("name", [n for n in ptx_functions.FUNCTIONS["double"] if n != "copysign"])
def test_functions_of_float64(name: str) -> None:
    x = torch.cat(
        [torch.randn(20_000, dtype=f64) * s for s in (1e-3, 1, 40)] + [torch.tensor(EDGES, dtype=f64)]
    )
    text, _ = ptx_functions.block(name, "double")
    with numpy.errstate(all="ignore"):
        got = interpreted(text, x.numpy())
    assert units(got, getattr(torch, name)(x)) < 4


@pytest.mark.parametrize("name", ("pow", "copysign"))
def test_functions_of_two_operands(name: str) -> None:
    edges = torch.cartesian_prod(
        *[torch.tensor([e for e in EDGES if abs(e) != 1e-40] + [2.0, 3.0, -3.0])] * 2
    )
    x = torch.cat([torch.rand(20_000) * 20, edges[:, 0]])
    y = torch.cat([torch.randn(20_000) * 3, edges[:, 1]])
    text, _ = ptx_functions.block(name, "float")
    with numpy.errstate(all="ignore"):
        got = interpreted(text, x.numpy(), y.numpy())
    assert units(got, getattr(torch, name)(x.double(), y.double())) < 2


# ---- random bits: words without a sign

WORDS: dict[str, Callable] = {
    "shr.u64": lambda a, n: a >> n, "cvt.u32.u64": lambda a: a & 0xFFFFFFFF, "mul.hi.u32": lambda a, b: a * b >> 32,
    "mul.lo.u32": lambda a, b: a * b & 0xFFFFFFFF, "add.u32": lambda a, b: a + b & 0xFFFFFFFF,
    "xor.b32": lambda a, b: a ^ b, "mov.s32": lambda a: a,
}  # fmt: skip


def test_random_bits() -> None:
    text, constraints = ptx_functions.block("philox", "i64")
    assert constraints == "=r,=r,=r,=r,l,l,l"
    generator = torch.Generator().manual_seed(0)
    given = [int(torch.randint(1 << 62, (), generator=generator)) for _ in range(3)]
    known = {f"${i}": x for i, x in enumerate(given, 4)}
    for line in filter(None, (part.strip() for part in text.strip("{} ").split(";"))):
        opcode, _, rest = line.partition(" ")
        names = [name.strip() for name in rest.split(",")]
        if opcode != ".reg":
            args = [known[n] if n in known else int(n) for n in names[1:]]
            known[names[0]] = WORDS[opcode](*args)
    want = philox(*(torch.tensor([x] * 4) for x in given), torch.arange(4))
    assert [known[f"${i}"] for i in range(4)] == want.tolist()


def test_a_kernel_that_draws() -> None:
    i64 = torch.int64
    kernel = flat(4096, [i64] * 3, f32, lambda s, c, t: op("cast", op("philox", s, c, t, t), dtype=f32))
    text = to_ptx(triton_source(kernel, host=frozenset({0})), 90).text
    assert "mul.hi.u32" in text and "__nv_" not in text


def drawn(kernel: Kernel) -> tuple[int, str]:
    """How many steps a thread computes, and its PTX."""
    text = to_ptx(triton_source(kernel, host=frozenset((0, 1))), 90).text
    return text.count("mul.hi.u32") // 20, text


@pytest.mark.parametrize("dtype", (f32, bf16))
@pytest.mark.parametrize(
    "rows, columns, sums", ((1, 1 << 20, 0), (64, 1024, 1), (64, 512, 1), (64, 64, 1), (8, 20_000, 1))
)
def test_four_neighbours_draw_one_step(rows: int, columns: int, sums: int, dtype: torch.dtype) -> None:
    """Each thread has the elements of a vector, and computes their numbers itself, those of four at once."""
    kernel = dropped(rows, columns, dtype, bool(sums))
    source = triton_source(kernel, host=frozenset((0, 1)))
    steps, text = drawn(kernel)
    block = source.constants["XBLOCK"] * source.constants["RBLOCK"]
    assert 4 * steps * 32 * source.warps == block and text.count("st.global.v4.b32") == steps
    assert "cvt.rn.f32.s64" not in text and (sums or not re.search("shared|shfl", text))


def test_far_elements_draw_a_step_each() -> None:
    assert drawn(dropped(1, (1 << 20) + 1))[0] == 4


def test_normal_numbers_are_curands() -> None:
    """The functions that cuRAND names, of ATen's own compiler: logf of libdevice, the processor's sine and cosine."""
    kernel = flat(
        4096, [f32, f32], f32, lambda u, v: op("device_log", u) * op("fast_sin", v) * op("fast_cos", v)
    )
    text = to_ptx(triton_source(kernel), 90).text
    assert "sin.approx.f32" in text and "cos.approx.f32" in text and "lg2.approx" not in text
    assert text.count("fma.rn.f32") >= 4 * 10  # of the polynomial, of four elements
    text = to_ptx(triton_source(flat(4096, [f32], f32, lambda u: op("fast_log", u))), 90).text
    assert "lg2.approx.f32" in text and "0f3F317218" in text


# ---- instructions for each element: a processor that reads and writes half precision as fast as memory does has some 30


def instructions(kernel: Kernel) -> tuple[float, list[float]]:
    """For each element of a block, the instructions of the PTX, and of each of its loops."""
    source = triton_source(kernel)
    text = to_ptx(source, 90).text.partition("{")[2]
    points = source.constants["XBLOCK"] * source.constants["RBLOCK"] / (32 * source.warps)
    parts = re.findall(r"^\$L\w+:|(?:@!?%p\d+\s+)?\b[a-z][a-z0-9]*(?:\.[\w:]+)*\s[^;]*;", text, re.M)
    parts = [part for part in parts if not part.startswith((".", "reg", "shared"))]
    loops = []
    for first, label in enumerate(parts):
        if label.startswith("$"):
            back = [
                k
                for k, part in enumerate(parts)
                if k > first and re.search(rf"\bbra\S*\s+{re.escape(label[:-1])};", part)
            ]
            loops += [(k - first) / points for k in back]
    return sum(not part.startswith("$") for part in parts) / points, loops


def meanwhile(*shape: int, dtype: torch.dtype = bf16) -> torch.Tensor:
    """Not looked into."""
    return torch.empty(shape, dtype=dtype)


def gradient(
    x: torch.Tensor, t: torch.Tensor, g: torch.Tensor, n: torch.Tensor, top: torch.Tensor, log: torch.Tensor
):
    y = x.float() - top - log
    slope = torch.ops.aten.nll_loss_backward(g, y, t, None, 1, -100, n)
    return torch.ops.aten._log_softmax_backward_data(slope, y, 1, f32).to(bf16)


def test_instructions_of_softmax() -> None:
    (kernel,) = scheduled(lambda x: x.softmax(-1), meanwhile(65_536, 4096))
    whole, _ = instructions(kernel)
    text = to_ptx(triton_source(kernel), 90).text
    assert whole < 15 and text.count("ex2.approx.ftz") == 32 and "div." not in text


@pytest.mark.parametrize("columns", [768, 4096])
def test_means_of_a_layer_norm_are_products(columns: int) -> None:
    """Divisions that are rounded correctly took a third of the registers, and a sixth of the time."""
    (kernel,) = scheduled(lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]), meanwhile(8192, columns))
    assert "div." not in to_ptx(triton_source(kernel), 90).text


def test_instructions_of_gelu() -> None:
    (kernel,) = scheduled(
        lambda x, b: torch.nn.functional.gelu(x + b), meanwhile(65_536, 4096), meanwhile(4096)
    )
    whole, _ = instructions(kernel)
    assert whole < 26


def test_instructions_of_a_long_rows_maximum_and_sum() -> None:
    """Each vector of eight has one exponential more than elements."""
    (kernel,) = scheduled(lambda x: x.float().log_softmax(-1).amax(-1), meanwhile(4096, 128_256))
    _, loops = instructions(kernel)
    assert len(loops) == 2 and max(loops) < 13
    text = to_ptx(triton_source(kernel), 90).text
    assert text.count("ex2.approx.ftz") == 16 + 2 + 2 and text.count("ld.global.v4.b32") == 4


def test_instructions_of_a_cross_entropys_gradient() -> None:
    """One pass; a row's division is behind its loads, and its target is compared in 32 bits."""
    shapes = dict(dtype=f32)
    given = (meanwhile(4096, 128_256), meanwhile(4096, dtype=torch.int64), meanwhile(**shapes), meanwhile(**shapes),
             meanwhile(4096, 1, **shapes), meanwhile(4096, 1, **shapes))  # fmt: skip
    kernel = scheduled(gradient, *given)[-1]
    whole, loops = instructions(kernel)
    text = to_ptx(triton_source(kernel), 90).text
    assert whole < 18 and not loops and "setp.eq.s64" not in text
    assert text.rindex("ld.global") < text.index("div.rn.f32")
