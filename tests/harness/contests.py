"""Contests of generated kernels with ATen on the simulated device: kernels are compiled for the CPU by what they mean, times
are made up."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

import smelt
from smelt.codegen.autotune import autotuner, device_timing
from smelt.codegen.autotune.gemm_candidates import Generated
from smelt.codegen.llvm import compile_kernels
from smelt.codegen.llvm.link import address_of
from smelt.codegen.triton.attention_kernel import TiledAttention
from smelt.codegen.triton.block_gemm import Tile
from smelt.codegen.triton.gemm_kernel import as_loops
from smelt.config import Config
from smelt.plan.machine_code import Block, CompiledKernel, Function, Library, Processor
from tests.harness import attention_tiles
from tests.simulated import cuda

ATEN = 100.0  # what a group takes as it is


@dataclass
class Device:
    """What the tuner is told of the device. `times`: by tile and variant; None: such a kernel does not compile."""

    times: Callable[[Tile, int], float | None] = lambda tile, variant: 50.0
    wrong: bool = False
    made: dict[str, tuple[Generated, Tile]] = field(default_factory=dict)  # by the text of the source
    measured: int = 0
    compiled: list[Generated] = field(default_factory=list)


def contested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Device]:
    """For a fixture: the device, which has not measured anything yet."""
    found = Device()
    printed = autotuner.source_of

    def source(generated, tile, unaligned):
        made = printed(generated, tile, unaligned)
        found.made[made.text] = generated, tile
        return made

    def compiled(sources, arch, threads, store=None):
        return {name: one(name, s) for name, s in sources.items()}

    def one(name, source):
        generated, tile = found.made[source.text]
        if found.times(tile, _variant(generated)) is None:
            return RuntimeError("out of shared memory")
        found.compiled.append(generated)
        if isinstance(generated, TiledAttention):
            address, extent, letters = _chain(generated, held), 1, "p" * len(generated.buffers)
        else:
            [code] = compile_kernels([as_loops(generated)], Config())
            held.append(code.function)
            address, extent = address_of(code.function), code.extent
            letters = "p" * len(as_loops(generated).buffers)
        library = Library(Processor("simulated", "simulated", ""), (cuda.image(address, letters),), (name,))
        return CompiledKernel(name, Function(library, name, Block(32, 0)), extent, max(extent, 1))

    def seconds(calls, first, device):
        found.measured += 1
        for call in calls.values():
            call()
        return {
            choice: ATEN if choice is None else found.times(choice.tile, choice.variant) for choice in calls
        }

    held: list[object] = []  # images name it by its address
    monkeypatch.setattr(autotuner, "source_of", source)
    monkeypatch.setattr(autotuner, "compile_products", compiled)
    monkeypatch.setattr(device_timing, "seconds", seconds)
    monkeypatch.setattr(autotuner, "_REMEMBERED", {})
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    agree = autotuner.agree
    monkeypatch.setattr(autotuner, "agree", lambda *args: not found.wrong and agree(*args))
    yield found
    smelt.reset()


def _variant(generated: Generated) -> int:
    """Whether something in front is computed as an operand is read."""
    operands = (
        (generated.q, generated.k, generated.v)
        if isinstance(generated, TiledAttention)
        else (generated.a, generated.b)
    )
    return int(any(operand.value.op != "load" for operand in operands))


def _chain(a: TiledAttention, held: list[object]) -> int:
    """The address of a function that does what `a` means, one kernel behind the other."""
    parts = attention_tiles.as_loops(a)
    codes = compile_kernels([kernel for kernel, _ in parts], Config())
    between = [torch.zeros(a.batch * a.queries * a.keys) for _ in range(2)]
    kind = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int64, ctypes.c_int64)

    @kind
    def run(buffers, begin, end):
        places = [*(buffers[i] for i in range(len(a.buffers))), *(t.data_ptr() for t in between)]
        for code, (_, used) in zip(codes, parts, strict=True):
            function = kind(address_of(code.function))
            function((ctypes.c_void_p * len(used))(*(places[i] for i in used)), 0, code.extent)

    held += [run, codes, between]
    address = ctypes.cast(run, ctypes.c_void_p).value
    assert address is not None
    return address
