"""PTX kept on disk: a second process finds it and imports nothing of Triton; what changes the code changes the key."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.compiler.code_generator  # while the interpreter is on, if it is: later it refuses

from smelt.codegen.triton import Request, Source, compile_kernels, kernel_cache, triton_source
from smelt.codegen.triton.device_images import Image
from smelt.runtime.disk_cache import Store
from tests.harness.kernels import layer_norm, scaled, softmax
from tests.harness.processes import run

SOURCE = triton_source(softmax(8, 64))
PTX = Image(b"text\nof two lines\n", "smelt_softmax", 128, 16)
ELF = Image(b"\x7fELF\n\xff\0", "smelt_softmax", 128, 16)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "smelt"), 1 << 30)


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled here, also where other tests use the interpreter."""
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)


def test_ptx_is_kept_as_it_is(store: Store) -> None:
    assert kernel_cache.read(store, SOURCE, 90) is None
    kernel_cache.write(store, SOURCE, 90, PTX)
    assert kernel_cache.read(store, SOURCE, 90) == PTX
    assert kernel_cache.read(store, replace(SOURCE, points=9), 90) == PTX  # which it is not compiled for
    kernel_cache.write(store, SOURCE, "gfx942", ELF)
    assert kernel_cache.read(store, SOURCE, "gfx942") == ELF and kernel_cache.read(store, SOURCE, 90) == PTX


OTHERS: dict[str, Source] = {
    "text": replace(SOURCE, text=SOURCE.text + "\n"),
    "warps": replace(SOURCE, warps=SOURCE.warps + 1),
    "alignment": replace(SOURCE, aligned=SOURCE.aligned - {"p0"}),
    "types": replace(SOURCE, signature={**SOURCE.signature, "p0": "*fp64"}),
    "constants": replace(SOURCE, constants={**SOURCE.constants, "XBLOCK": 99}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_changes_the_code_is_part_of_the_key(store: Store, what: str) -> None:
    kernel_cache.write(store, SOURCE, 90, PTX)
    assert kernel_cache.read(store, OTHERS[what], 90) is None


def test_so_are_processor_versions_and_variables(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel_cache.write(store, SOURCE, 90, PTX)
    assert kernel_cache.read(store, SOURCE, 80) is None
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")  # changes no code
    assert kernel_cache.read(store, SOURCE, 90) == PTX
    monkeypatch.setenv("DISABLE_LLVM_OPT", "1")
    assert kernel_cache.read(store, SOURCE, 90) is None
    monkeypatch.undo()
    monkeypatch.setattr(kernel_cache, "_OURS", "of another text")
    assert kernel_cache.read(store, SOURCE, 90) is None
    monkeypatch.undo()
    monkeypatch.setattr(kernel_cache, "_version", lambda: "triton 0.0")
    assert kernel_cache.read(store, SOURCE, 90) is None


def test_without_a_version_of_triton_nothing_is_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", unknown)
    kernel_cache._version.cache_clear()
    try:
        kernel_cache.write(store, SOURCE, 90, PTX)
        assert store.size() == 0 and kernel_cache.read(store, SOURCE, 90) is None
    finally:
        kernel_cache._version.cache_clear()


def test_alignment_and_arguments_by_value_are_told_apart(store: Store) -> None:
    kernel = scaled(4096, torch.float32)
    requests = [Request(kernel), Request(kernel, unaligned=frozenset((0,))), Request(kernel, frozenset((1,)))]
    compile_kernels(requests, 90, 1, store)
    assert len(list(Path(store.folder).iterdir())) == 3


PROGRAM = """
import json, os, sys
os.environ.pop("TRITON_INTERPRET", None)
from smelt.codegen.triton import Request, compile_kernels
from smelt.runtime.disk_cache import store
from tests.harness.kernels import layer_norm, softmax
kernels = compile_kernels([Request(layer_norm(8, 64)), Request(softmax(8, 64))], 90, 1, store())
found = [(k.function.name, k.function.block.shared, k.function.library.objects[0].decode()) for k in kernels]
print(json.dumps([found, "triton" in sys.modules]))
"""


def test_a_second_process_imports_nothing_of_triton(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "smelt"))
    first, imported = run(PROGRAM)
    assert imported and [name for name, *_ in first] == ["smelt_layer_norm", "smelt_softmax"]
    assert run(PROGRAM) == [first, False]
    next((tmp_path / "smelt").iterdir()).write_bytes(b"damaged")
    assert run(PROGRAM) == [first, True]
    assert run(PROGRAM) == [first, False]


def test_nothing_is_kept_unless_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "smelt"))
    compile_kernels([Request(layer_norm(9, 65))], 90, 1)
    monkeypatch.setenv("SMELT_KERNEL_CACHE", "0")
    assert run(PROGRAM)[1] and run(PROGRAM)[1]
    assert not (tmp_path / "smelt").exists()
