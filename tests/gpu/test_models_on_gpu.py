"""The ten models of benchmarks/models.py on a GPU in float32: results and gradients are eager's."""

import pytest
import torch

import smelt
from smelt.report import inspect

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from benchmarks import errors
from benchmarks.gpu.models import Work, drop_nothing
from benchmarks.models import MODELS, build, tensors

# Kernels sum in another order; so many layers deep, what a gradient is rounded to can differ more.
FORWARD, GRADIENT = 1e-3, 2e-2


@pytest.fixture(autouse=True)
def _exact_products(monkeypatch):
    """cuDNN takes other kernels, with shorter factors, as it likes."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def on_gpu(name):
    model, inputs = build(name)
    return model.cuda(), {k: v.cuda() for k, v in inputs.items()}


def whole(compiled):
    assert not inspect.reasons(compiled) and inspect.graph_count(compiled) == 1


@pytest.mark.parametrize("name", MODELS)
def test_forward(name):
    model, inputs = on_gpu(name)
    compiled = smelt.compile(model)
    with torch.no_grad():
        want = tensors(model(**inputs))
        for _ in range(2):
            assert errors.of_lists(tensors(compiled(**inputs)), want) < FORWARD
    whole(compiled)


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name):
    model, inputs = on_gpu(name)
    drop_nothing(model.train())

    def step(call):
        before = {k: b.clone() for k, b in model.named_buffers()}
        model.zero_grad(set_to_none=True)
        result = tensors(call(**inputs))[0]
        tangent = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).cuda()
        result.backward(tangent)
        for k, b in model.named_buffers():
            b.copy_(before[k])
        return {k: p.grad for k, p in model.named_parameters() if p.grad is not None}

    want, compiled = step(model), smelt.compile(model)
    for _ in range(2):
        assert errors.overall(step(compiled), want) < GRADIENT
    whole(compiled)


@pytest.mark.parametrize("name", MODELS)
def test_half_precision_in_training(name):
    """Results and gradients under bf16 autocast are as near float64's as eager's."""
    built = on_gpu(name)
    drop_nothing(built[0])
    exact = Work(built, training=True, exact=True)
    want = exact.outcome(exact.module)
    work = Work(built, training=True)
    eager = errors.overall(work.outcome(work.module), want)
    assert errors.overall(work.outcome(smelt.compile(work.module)), want) < 1.25 * eager
