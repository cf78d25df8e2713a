"""Kernels of one graph in several LLVM modules, which threads emit side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from smelt.codegen.llvm import compile_kernels
from smelt.codegen.llvm import object_files as module
from smelt.codegen.llvm.host_cpu import host
from smelt.codegen.llvm.ir_builder import Module
from smelt.codegen.llvm.link import address_of
from smelt.loops.kernel_ir import Kernel
from smelt.plan.machine_code import Function
from tests.harness.kernels import CHECKED, run, softmax, softmax_columns


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each function is a module, four threads emit; the texts of the modules."""
    texts: list[str] = []
    emit = module._emitted

    def noted(text: str, *rest: object) -> bytes:
        texts.append(text)
        return emit(text, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "MODULE_CHARACTERS", 1)
    monkeypatch.setattr(module, "_emitted", noted)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    return texts


def check(rows: int, columns: int) -> None:
    x, y = torch.randn(rows, columns), torch.empty(rows, columns)
    run(softmax(rows, columns), [x, y])
    torch.testing.assert_close(y, x.softmax(1), rtol=1e-6, atol=1e-7)
    run(softmax_columns(rows, columns), [x, y])
    torch.testing.assert_close(y, x.softmax(0), rtol=1e-6, atol=1e-7)


def kernels(rows: int) -> list[Kernel]:
    return [make(rows, columns) for columns in range(201, 213) for make in (softmax, softmax_columns)]


def test_each_module_is_complete(emitted: list[str]) -> None:
    """All of these need exp, which is a function of its own in each module."""
    compiled = compile_kernels(kernels(5), CHECKED)
    assert len(emitted) == len(set(emitted)) == len(compiled) == 24
    for columns in range(201, 213):
        check(5, columns)
    assert len(emitted) == 24
    del compiled


def test_several_threads_compile(emitted: list[str]) -> None:
    with ThreadPoolExecutor(3) as pool:
        owners = list(pool.map(lambda rows: compile_kernels(kernels(rows), CHECKED), (6, 7, 8)))
    for rows in (6, 7, 8):
        check(rows, 207)
    assert len(emitted) == 72
    del owners


def test_one_thread_gives_one_module(emitted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    owner = compile_kernels(kernels(9), CHECKED)
    assert len(emitted) == 1
    check(9, 205)
    del owner


def test_an_error_in_one_module_is_raised(emitted: list[str]) -> None:
    def good(module: Module) -> str:
        return "define void @good() {\n  ret void\n}"

    def bad(module: Module) -> str:
        return "define void @bad() {\n  ret i32 %nothing\n}"

    with pytest.raises(RuntimeError, match="nothing"):
        module.assemble_functions({"good": good, "bad": bad}, host())
    assert address_of(Function(module.assemble_functions({"good": good}, host()), "good"))
