"""The ten models with a dynamic batch, and text with a dynamic length: a program gives the compiled call's bits in another
process, without the compiler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import smelt
from tests.harness.exported import exported_model, results_elsewhere, same, tensors
from tests.harness.models import MODELS


@pytest.fixture(autouse=True)
def _products_of_aten() -> Iterator[None]:
    """A program generates a product only where its code covers all sizes, a compiled call on some hosts more."""
    with smelt.config.set(native_gemm=False):
        yield


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, tmp_path: Path) -> None:
    made = exported_model(name)
    program, calls = made.program, made.calls
    with torch.no_grad():
        run = smelt.compile(made.model, fullgraph=True)
        for x in made.inputs.values():
            for dim, size in made.dims.items():
                smelt.mark_dynamic(x, dim, min=size.min, max=size.max)
        wanted = [run(**call) for call in calls]
    imports = ("torch", "transformers.modeling_outputs") if made.is_text else ("torch",)
    results = results_elsewhere(program, [((), call) for call in calls], tmp_path, imports)
    for result, want in zip(results, wanted, strict=True):
        assert type(result) is type(want)
        assert tensors(result) and all(map(same, tensors(result), tensors(want)))
    storages = {w.untyped_storage().data_ptr(): w.untyped_storage() for w in program.state.values()}
    weights = sum(storage.nbytes() for storage in storages.values())
    assert (tmp_path / "m.smelt").stat().st_size - weights < 250_000
