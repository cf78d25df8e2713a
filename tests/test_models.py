"""The ten models: whole model one graph, eager's numbers, and no other process started."""

import pytest
import torch

import smelt
from benchmarks.errors import distance
from benchmarks.models import MODELS, build, tensors
from smelt.report.inspect import entries, reasons
from tests.harness import models as tiny
from tests.harness.processes import start

# Relative to the largest magnitude of a tensor: a fused float32 program sums in another order than eager.
TOLERANCE = 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_model(name):
    module, inputs = build(name)
    compiled = smelt.compile(module, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            want, got = module(**inputs), compiled(**inputs)
            assert type(got) is type(want)
            pairs = list(zip(tensors(got), tensors(want), strict=True))
            assert pairs
            for g, w in pairs:
                assert g.shape == w.shape and g.dtype == w.dtype and g.stride() == w.stride()
                assert distance(g, w) <= TOLERANCE
            inputs = {k: v.flip(0) * 2 if v.is_floating_point() else v.flip(1) for k, v in inputs.items()}
    assert len(entries(compiled)) == 1 and not reasons(compiled)


@pytest.mark.parametrize("name", tiny.MODELS)
def test_every_branch_matters(name):
    """With the weights that errors are measured with, no layer could be a tenth wrong and not be seen."""
    model, inputs = tiny.MODELS[name]()
    model.eval()
    with torch.no_grad():
        want = tensors(model(**inputs))
    noise = torch.Generator().manual_seed(1)
    for path, layer in model.named_modules():
        if any(True for _ in layer.children()) or not any(True for _ in layer.parameters()):
            continue
        reached = []

        def disturb(layer, given, result, reached=reached):
            reached.append(result)
            return result * (1 + 0.1 * torch.randn(result.shape, generator=noise, dtype=result.dtype))

        with torch.no_grad():
            handle = layer.register_forward_hook(disturb)
            got = tensors(model(**inputs))
            handle.remove()
        moved = max(distance(g, w) for g, w in zip(got, want, strict=True))
        assert not reached or moved > 10 * TOLERANCE, f"{path}: {moved}"


WATCH = """
import sys, torch
from benchmarks.models import build
started = []
watched = ("subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "os.startfile")
module, inputs = build("BERT, 4 layers")
before = set(sys.modules)  # transformers itself imports parts of other compilers
sys.addaudithook(lambda event, args: started.append((event, args)) if event in watched else None)
import smelt
with torch.no_grad():
    smelt.compile(module, fullgraph=True)(**inputs)
    smelt.compile(lambda x: x.softmax(-1) + 1)(torch.randn(8, 8))
assert not started, started
loaded = [m for m in set(sys.modules) - before if m.startswith(("torch._inductor", "torch._dynamo"))]
assert not loaded, loaded
print("nothing was started")
"""


def test_no_process_is_started():
    done = start(WATCH)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "nothing was started" in done.stdout
