"""The ten models with a dynamic batch, and text with a dynamic length: a program gives the compiled call's bits in another
process, without the compiler. And with gradients: their gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import smelt
from tests.harness.exported import exported_model, model_call, results_elsewhere, same, tensors
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


@pytest.mark.parametrize("name", MODELS)
def test_training_step(name: str, tmp_path: Path) -> None:
    """Two steps in training mode: results, accumulated gradients and buffers."""
    model, inputs, options = model_call(name)
    call = {**inputs, **options}
    ref = copy.deepcopy(model.train())
    smelt.export(model, (), call, gradients=True).save(tmp_path / "m.smelt")
    program = smelt.load(tmp_path / "m.smelt")
    results = []
    for run in (smelt.compile(ref, fullgraph=True), program):
        torch.manual_seed(1)
        for _ in range(2):
            found = [t for t in tensors(run(**call)) if t.requires_grad]
            torch.stack([t.square().mean() for t in found]).sum().backward()
        results.append(found)
    assert results[0] and all(map(same, *results))
    found_parameters = dict(program.named_parameters())
    assert set(found_parameters) == {name for name, p in ref.named_parameters() if p.requires_grad}
    for name, p in found_parameters.items():
        wanted = ref.get_parameter(name).grad
        assert p.grad is None if wanted is None else p.grad is not None and same(p.grad, wanted), name
    assert all(same(b, program.state[name]) for name, b in ref.named_buffers() if name in program.state)
