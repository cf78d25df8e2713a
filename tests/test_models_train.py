"""The ten benchmark models in train mode, small: losses, gradients, buffers and random numbers are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from benchmarks import models
from smelt.report.inspect import entries, reasons

Built = tuple[nn.Module, dict[str, Any]]


def image(name: str, size: int = 64, **options: Any) -> Callable[[], Built]:
    return lambda: (
        models.timm.create_model(name, num_classes=10, **options),
        {"x": torch.randn(2, 3, size, size)},
    )


MODELS: dict[str, Callable[[], Built]] = {
    "BERT": lambda: models.bert(layers=1, batch=1, length=16),
    "GPT-2": lambda: models.gpt2(layers=1, batch=1, length=16),
    "Llama": lambda: models.llama(layers=2, width=64, batch=2, length=16),
    "T5": lambda: models.t5(layers=1, batch=1, length=8),
    "ResNet-50": image("resnet50"),
    "ViT-tiny": image("vit_tiny_patch16_224", img_size=64, depth=2, proj_drop_rate=0.1, drop_path_rate=0.1),
    "ConvNeXt-atto": image("convnext_atto", drop_path_rate=0.1),
    "Swin-tiny": image("swin_tiny_patch4_window7_224", img_size=64, depths=(1, 1, 2, 1)),
    "MobileNetV3-L": image("mobilenetv3_large_100", drop_rate=0.2),
    "Mixer-S/32": image("mixer_s32_224", img_size=64),
}


def loss_of(output: object) -> torch.Tensor:
    return sum((t.float().pow(2).mean() for t in models.tensors(output) if t.requires_grad), torch.zeros(()))


def step(call: Callable[..., Any], inputs: dict[str, Any], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, backpropagated, and where it leaves the random generator."""
    torch.manual_seed(seed)
    loss = loss_of(call(**inputs))
    loss.backward()
    return loss.detach(), torch.get_rng_state()


@pytest.mark.parametrize("name", MODELS)
def test_training(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.train()
    twin = copy.deepcopy(model)
    compiled = smelt.compile(twin)
    for seed in (1, 2):
        loss, state = step(model, inputs, seed)
        got, got_state = step(compiled, inputs, seed)
        torch.testing.assert_close(got, loss, rtol=0, atol=0)
        assert torch.equal(got_state, state)
    assert not reasons(compiled) and len(entries(compiled)) == 1
    for (path, want), found in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (found.grad is None) is (want.grad is None), path
        if want.grad is not None:
            torch.testing.assert_close(found.grad, want.grad, rtol=0, atol=0, msg=lambda m: f"{path}: {m}")
    for (path, want), found in zip(model.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(found, want, rtol=0, atol=0, msg=lambda m: f"{path}: {m}")
