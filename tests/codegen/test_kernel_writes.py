"""Which pointers kernels of the user's write, read off Triton's form of them; compiled without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")
import triton
import triton.compiler.code_generator  # while the interpreter is on, if it is: later it refuses
import triton.language as tl
from triton.runtime.jit import JITFunction

from smelt.codegen.triton.pointer_writes import WritesElsewhere, mutated_parameters

BLOCK = tl.constexpr(16)


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled here, also where other tests use the interpreter."""
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)


def jit(**options: Any) -> Callable[[Any], Any]:
    return lambda fn: JITFunction(fn, **options)


@jit()
def stores(x, y, n):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@jit()
def stores_in_a_loop(x, y, n):
    i = tl.arange(0, BLOCK)
    p, q = x + i, y + i
    for _ in range(n):
        tl.store(q, tl.load(p))
        p += BLOCK
        q += BLOCK


@jit()
def changes_places_in_a_loop(x, y, n):
    i = tl.arange(0, BLOCK)
    p, q = x + i, y + i
    for _ in range(n):
        tl.store(q, tl.load(p))
        p, q = q, p


@jit()
def chooses(x, y, z, n):
    i = tl.arange(0, BLOCK)
    if n > 3:
        p = x + i
    else:
        p = y + i
    tl.store(p, tl.load(z + i))


@jit()
def selects(x, y, z, n):
    p = tl.where(n > 3, x, y)
    tl.store(p, tl.load(z))


@jit()
def goes_on_while(x, y, n):
    p = x
    while tl.load(p) > 0:
        p += 1
    tl.store(y, tl.load(p))


@jit()
def adds(x, y, n):
    tl.atomic_add(y, tl.load(x))


@jit()
def exchanges(x, y, n):
    tl.store(y, tl.atomic_xchg(x, 2.0))


@jit()
def helper(p, value):
    tl.store(p, value)


@jit()
def by_a_helper(x, y, n):
    helper(y, tl.load(x))


@jit(noinline=True)
def apart(p, value):
    tl.store(p, value)


@jit()
def by_a_function_apart(x, y, n):
    apart(y, tl.load(x))


@jit()
def by_block_pointers(x, y, n):
    p = tl.make_block_ptr(x, (n,), (1,), (0,), (16,), (0,))
    q = tl.make_block_ptr(y, (n,), (1,), (0,), (16,), (0,))
    for _ in range(3):
        tl.store(q, tl.load(p))
        p, q = tl.advance(p, (16,)), tl.advance(q, (16,))


@jit()
def casts(x, y, n):
    tl.store(y.to(tl.pointer_type(tl.int32)), tl.load(x).to(tl.int32))


@jit()
def returns_early(x, y, n):
    if n > 3:
        return
    tl.store(y, tl.load(x))


@jit()
def writes_nothing(x, y, n):
    tl.device_print("x", tl.load(x) + tl.load(y))


@jit()
def by_assembly(x, y, n):
    tl.inline_asm_elementwise("mov.u64 $0, $1;", "=l,l", [y], dtype=tl.int64, is_pure=False, pack=1)
    tl.load(x)


@jit()
def by_an_address(x, y, n):
    address = tl.load(x.to(tl.pointer_type(tl.int64)))
    tl.store(address.to(tl.pointer_type(tl.float32)), tl.load(y))


@jit()
def unless_constant(x, y, n, FLAG: tl.constexpr, bias):
    if FLAG:
        tl.store(y, tl.load(x))
    if bias is not None:
        tl.store(bias, 0.0)


KERNELS = (
    (stores, "y"), (stores_in_a_loop, "y"), (changes_places_in_a_loop, "xy"), (chooses, "xy"), (selects, "xy"),
    (goes_on_while, "y"), (adds, "y"), (exchanges, "xy"), (by_a_helper, "y"), (by_a_function_apart, "y"),
    (by_block_pointers, "y"), (casts, "y"), (returns_early, "y"), (writes_nothing, ""), (by_assembly, "y"),
)  # fmt: skip


@pytest.mark.parametrize(
    "kernel, written", KERNELS, ids=lambda k: getattr(getattr(k, "fn", None), "__name__", "")
)
def test_written(kernel: Any, written: str) -> None:
    signature = {name: "i32" if name == "n" else "*fp32" for name in kernel.arg_names}
    assert mutated_parameters(kernel, signature, {}) == frozenset(written)


def test_constants_decide() -> None:
    kinds = dict(x="*fp32", y="*fp32", n="i32", FLAG="constexpr", bias="*fp32")
    assert mutated_parameters(unless_constant, kinds, {"FLAG": True}) == {"y", "bias"}
    assert mutated_parameters(unless_constant, kinds, {"FLAG": False}) == {"bias"}
    kinds["bias"] = "constexpr"
    assert mutated_parameters(unless_constant, kinds, {"FLAG": False, "bias": None}) == frozenset()


def test_an_address_from_memory_points_anywhere() -> None:
    with pytest.raises(WritesElsewhere):
        mutated_parameters(by_an_address, dict(x="*fp32", y="*fp32", n="i32"), {})


def test_what_does_not_compile_is_not_known() -> None:
    assert mutated_parameters(stores, dict(x="*fp32", y="i32", n="i32"), {}) is None
