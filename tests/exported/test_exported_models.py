"""The ten models with a dynamic batch, and text with a dynamic length: a program gives the compiled call's bits in another
process, without the compiler."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from tests.harness.exported import larger, results_elsewhere, same, tensors
from tests.harness.models import MODELS


@pytest.fixture(autouse=True)
def _products_of_aten() -> Iterator[None]:
    """A program generates a product only where its code covers all sizes, a compiled call on some hosts more."""
    with smelt.config.set(native_gemm=False):
        yield


@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model = model.eval()
    is_text = "x" not in inputs
    options: dict[str, Any] = {}
    if not is_text:
        inputs = {next(iter(inspect.signature(model.forward).parameters)): inputs["x"]}
    elif "use_cache" in inspect.signature(model.forward).parameters:
        options = {"use_cache": False}
    batch, length = smelt.Dim("batch", min=2, max=8), smelt.Dim("length", min=4, max=12)
    dims = {0: batch, 1: length} if is_text else {0: batch}
    program = smelt.export(model, (), {**inputs, **options}, dynamic_shapes=dict.fromkeys(inputs, dims))
    others = {key: larger(x, is_text) for key, x in inputs.items()}
    calls = [{**inputs, **options}, {**others, **options}]
    with torch.no_grad():
        run = smelt.compile(model, fullgraph=True)
        for x in inputs.values():
            for dim in dims:
                smelt.mark_dynamic(x, dim, min=dims[dim].min, max=dims[dim].max)
        wanted = [run(**call) for call in calls]
    imports = ("torch", "transformers.modeling_outputs") if is_text else ("torch",)
    results = results_elsewhere(program, [((), call) for call in calls], tmp_path, imports)
    for result, want in zip(results, wanted, strict=True):
        assert type(result) is type(want)
        assert tensors(result) and all(map(same, tensors(result), tensors(want)))
    storages = {w.untyped_storage().data_ptr(): w.untyped_storage() for w in program.state.values()}
    weights = sum(storage.nbytes() for storage in storages.values())
    assert (tmp_path / "m.smelt").stat().st_size - weights < 250_000
