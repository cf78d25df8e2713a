"""Triton's form of printed kernels by running their text (`codegen/triton/traced_frontend.py`): what Triton's own code
generator gives, after the first of its passes, which inline functions and drop what nothing reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")
import triton
import triton.compiler.code_generator  # while the interpreter is on, if it is: later it refuses

from smelt.codegen.triton import Source, traced_frontend, triton_passes, triton_source
from smelt.codegen.triton.gpu_architectures import Arch, dialect
from smelt.codegen.triton.kernel_source import KERNEL, batched_source
from smelt.codegen.triton.ptx import to_ptx
from smelt.codegen.triton.triton_import import KERNELS_OF_CONTEXT, library
from smelt.loops.kernel_ir import POINTWISE, Kernel, Value
from tests.harness.kernels import const, dropped, flat, op, reduction, rows_written, scaled, scan
from tests.harness.printed import KERNELS, add, scheduled

f16, bf16, f32, f64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
DTYPES = (
    f32, bf16, f16, f64, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint32,
)  # fmt: skip
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf")
MI300 = "gfx942"
_CONSTANT = re.compile(r"^ +(%\w+) = (arith\.constant .*)\n", re.M)
_NAME = re.compile(r"%\w+")


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled here, also where other tests use the interpreter."""
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)


def executed_form(source: Source, arch: Arch = 90) -> str:
    """The form of what is executed; raises what that raises."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(library(), "generator", None)
        changed.setattr("smelt.codegen.triton.triton_import.function_of", _refuses)
        return _form(source, arch)


def _refuses(source: Source) -> None:
    raise NotImplementedError("the text was not executed")


def _form(source: Source, arch: Arch) -> str:
    """Constants stand in place of their names: those of an inlined function may come in another order."""
    text = str(triton_passes.run(source, arch, "ttir")[0].str_nodebug())
    constants = dict(_CONSTANT.findall(text))
    return _NAME.sub(lambda m: constants.get(m[0], m[0]), _CONSTANT.sub("", text))


def own_form(source: Source, arch: Arch = 90) -> str:
    """By Triton's generator."""
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(traced_frontend, "form_of", _refuses)
        return _form(source, arch)


def check(source: Source, arch: Arch = 90) -> None:
    assert executed_form(source, arch) == own_form(source, arch), source.text


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_each_kind(name: str) -> None:
    check(triton_source(KERNELS[name]))


@pytest.mark.skipif("amd" not in triton.backends.backends, reason="this Triton has no backend for AMD")
@pytest.mark.parametrize("name", ("layer norm", "softmax of columns", "scan in blocks", "argmax of rows"))
def test_kernels_for_amd(name: str) -> None:
    source = triton_source(KERNELS[name], dialect=dialect(MI300))
    if "libdevice" in source.text:  # that is left to Triton's generator
        with pytest.raises(NotImplementedError, match="not executed"):
            executed_form(source, MI300)
    else:
        check(source, MI300)


OTHERS = {
    "random numbers": triton_source(dropped(64, 1000)),
    "random numbers and sums": triton_source(dropped(64, 1000, bf16, sums=True)),
    "rows that are looked up": triton_source(rows_written(64, 100, 1000, bf16)),
    "several by one": batched_source(add(4096, bf16)),
    "several by one, unaligned": batched_source(add(4097), unaligned=frozenset((1,))),
    **{f"a number of {d}": triton_source(scaled(4096, d), frozenset((1,))) for d in (f64, bf16, torch.bool)},
    **{f"several by one, {d}": batched_source(scaled(64, d), frozenset((1,))) for d in (f64, bf16, torch.bool)},
    **{f"{kind} of {d}": triton_source(reduction(kind, 100, 20_000, d))
       for kind in ("sum", "prod", "max", "argmin", "any") for d in (bf16, f64, torch.int64, torch.bool)
       if d is not torch.bool or kind in ("max", "any")},
    "sum of a row in parts": triton_source(reduction("sum", 3, 300_007, f32)),
    **{f"scan of {kind}": triton_source(scan(kind, 100, 64, "rows")) for kind in ("prod", "max")},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_else_is_printed(name: str) -> None:
    check(OTHERS[name])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_operations(dtype: torch.dtype) -> None:
    """On blocks, and on a block and a number from either side. What Triton refuses is no kernel."""
    compared = 0
    for source in _operations(dtype):
        try:
            want = own_form(source)
        except Exception:
            continue
        assert executed_form(source) == want, source.text
        compared += 1
    assert compared > 30


def _operations(dtype: torch.dtype) -> Iterator[Source]:
    for name, operands in POINTWISE.items():
        if name in ("div", "fma", "pow") and not dtype.is_floating_point:
            continue
        given = torch.bool if name in COMPARISONS or name.startswith("logical") else dtype
        dtypes = (torch.bool, dtype, dtype) if name == "where" else (dtype,) * operands
        bodies = [lambda *xs, name=name, given=given: op(name, *xs, dtype=given)]
        if operands == 2:
            two = const(3 if dtype is not torch.bool else True, dtype)
            bodies.append(lambda a, b, name=name, given=given, two=two: op(name, a, two, dtype=given))
            bodies.append(lambda a, b, name=name, given=given, two=two: op(name, two, b, dtype=given))
        for body in bodies:
            try:
                source = triton_source(flat(4096, dtypes, given, body))
            except (KeyError, NotImplementedError, TypeError):
                continue  # no operation of this dtype
            if "libdevice" not in source.text:
                yield source


@pytest.mark.parametrize("target", DTYPES, ids=str)
def test_all_conversions(target: torch.dtype) -> None:
    for dtype in DTYPES:
        if dtype is not target:
            check(triton_source(flat(4096, [dtype], target, lambda a: Value("cast", (a,), target))))


def block(x: torch.Tensor, weight: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
    """A part of a transformer, with what a GPU's costs make one kernel of."""
    normed = F.layer_norm(x, (x.shape[-1],), weight)
    scores = (normed @ projection).view(4, 32, 8, 16).transpose(1, 2)
    weights = torch.softmax(scores.float() @ scores.float().transpose(2, 3) / 4, -1)
    return F.gelu(x + weights.to(x.dtype).mean((1, 2))[..., None] * normed)


def convolved(x: torch.Tensor, weight: torch.Tensor, running: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of images: a batch norm that trains, a pool, a shift and an index."""
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
    normed = F.hardswish((x - mean[:, None, None]) * torch.rsqrt(variance + 1e-5)[:, None, None])
    return (
        normed.mean((2, 3)),
        torch.roll(normed, (1, 2), (2, 3)),
        running * 0.9 + mean * 0.1,
        weight.argmax(1),
    )


@pytest.mark.parametrize("dtype", (f32, bf16))
def test_kernels_of_programs(dtype: torch.dtype) -> None:
    made = {"device": "cpu", "dtype": dtype}
    kernels: list[Kernel] = [
        *scheduled(
            block, torch.empty(4, 32, 128, **made), torch.empty(128, **made), torch.empty(128, 128, **made)
        ),
        *scheduled(
            convolved, torch.empty(8, 16, 14, 14, **made), torch.empty(16, 9, **made), torch.empty(16, **made)
        ),
    ]
    assert len(kernels) > 5
    for kernel in kernels:
        check(triton_source(kernel))


def test_the_ptx_is_the_same() -> None:
    source = triton_source(KERNELS["layer norm of bf16"])
    ptx = to_ptx(source, 90)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(traced_frontend, "form_of", _refuses)
        assert to_ptx(source, 90) == ptx


@pytest.mark.parametrize(
    "statement", ("y = x if 1 else x", "y = tl.cumsum(x, 0)", "y = x.T", "y = x and x", "if x: pass")
)
def test_what_is_not_printed_is_left_to_triton(statement: str) -> None:
    source = triton_source(add(4096))
    changed = replace(source, text=f"{source.text}    {statement}\n")
    if statement.startswith("y = x if 1"):
        check(changed)
    else:
        with pytest.raises(NotImplementedError, match="not executed"):
            executed_form(changed)


def test_a_name_that_changes_its_type_in_a_loop_is_left_to_triton() -> None:
    source = triton_source(KERNELS["long rows"])
    head, body = source.text.split("    for start in", 1)
    loop = f"    wide = x + 0.5\n    for start in{body}        wide = wide.to(tl.float64)\n"
    assert KERNEL in head
    with pytest.raises(NotImplementedError, match="not executed"):
        executed_form(replace(source, text=head + loop))


def test_products_are_triton_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_frontend, "form_of", lambda *_: pytest.fail("a product was executed"))
    to_ptx(replace(triton_source(add(4096)), stages=2), 90)


def test_a_context_is_one_kernel_s_at_a_time_and_handed_on() -> None:
    triton_ = library()
    backend = triton_.compiler.make_backend(triton_.backends.GPUTarget("cuda", 90, 32))
    with triton_.context(backend) as one, triton_.context(backend) as other:
        assert one is not other
    with triton_.context(backend) as again:
        assert again in (one, other)
    with pytest.raises(ZeroDivisionError), triton_.context(backend) as failed:
        raise ZeroDivisionError
    with triton_.context(backend) as one, triton_.context(backend) as other:
        assert failed not in (one, other)
        one.kernels = KERNELS_OF_CONTEXT
    with triton_.context(backend) as again:
        assert again is other
