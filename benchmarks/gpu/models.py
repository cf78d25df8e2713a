"""The ten models that smelt is measured on with a GPU: sizes of the published figures, random weights, bf16 autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks import errors, weights
from benchmarks.models import Built, bert, decoding_step, gpt2, llama, t5, tensors, timm_model

# For each, the batch of the figures, and the model with its inputs for a batch.
MODELS: dict[str, tuple[int, Callable[[int], Built]]] = {
    "BERT base, 32×128": (32, lambda batch: bert(layers=12, batch=batch)),
    "Llama 8 layers of 2048, 4×1024": (
        4,
        lambda batch: llama(layers=8, width=2048, batch=batch, length=1024, heads=16, vocabulary=32_000),
    ),
    "ResNet-50, 64": (64, lambda batch: timm_model("resnet50", batch)()),
    "ViT-B/16, 64": (64, lambda batch: timm_model("vit_base_patch16_224", batch)()),
    "ConvNeXt-T, 64": (64, lambda batch: timm_model("convnext_tiny", batch)()),
    "MobileNetV3-L, 128": (128, lambda batch: timm_model("mobilenetv3_large_100", batch)()),
    "GPT-2, 8×512": (8, lambda batch: gpt2(layers=12, batch=batch, length=512)),
    "T5 6 layers, 16×128": (16, lambda batch: t5(layers=6, batch=batch, length=128)),
    "Swin-T, 64": (64, lambda batch: timm_model("swin_tiny_patch4_window7_224", batch)()),
    "Mixer-B/16, 64": (64, lambda batch: timm_model("mixer_b16_224", batch)()),
}

# Measured when it is asked for by name: there is no training of it, and its errors are those of Llama above.
MORE: dict[str, tuple[int, Callable[[int], Built]]] = {"Llama, a step of decoding": (1, decoding_step)}

# How modules call the share of what they drop: nn.Dropout, attention of T5, of the others, timm's DropPath.
SHARES = ("p", "dropout", "attention_dropout", "drop_prob")

Call = Callable[..., Any]


def drop_nothing(module: nn.Module) -> None:
    """The forward of `module` in train mode then draws no random numbers: those depend on dtype and kernel."""
    for part in module.modules():
        for name in SHARES:
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)


def build(name: str, batch: int | None = None) -> Built:
    """The model on the GPU, with weights that all matter, and its inputs; `batch`: another than that of the figures."""
    usual, make = (MODELS | MORE)[name]
    torch.manual_seed(0)
    with torch.device("cuda"):
        module, inputs = make(batch or usual)
    weights.fill(module)
    return module, {k: v.cuda() for k, v in inputs.items()}


class Work:
    """A model and what is measured of it: `run(call)`, where `call` is the module or what was compiled from it."""

    def __init__(self, built: Built, training: bool, exact: bool = False) -> None:
        """`exact`: in float64 instead of bf16 autocast, with the same numbers."""
        module, inputs = built
        self.module = (errors.double_of(module) if exact else module).train(training)
        self.inputs = errors.in_double(inputs) if exact else inputs
        self.training = training
        self._autocast = not exact
        self._tangent: torch.Tensor | None = None

    def run(self, call: Call) -> Any:
        """A forward without gradients; in training a step: forward, and backward from a fixed random tangent."""
        return self._step(call) if self.training else self._forward(call)

    def outcome(self, call: Call) -> dict[str, torch.Tensor]:
        """What errors are told from, in float64: all results, or in training the first one and all gradients. Buffers are
        put back."""
        before = {k: b.clone() for k, b in self.module.named_buffers()}
        if self.training:
            found = {"result": self._step(call)}
            found |= {k: p.grad for k, p in self.module.named_parameters() if p.grad is not None}
        else:
            found = {str(place): t for place, t in enumerate(tensors(self._forward(call)))}
        for k, b in self.module.named_buffers():
            b.copy_(before[k])
        return errors.in_double(found)

    def _forward(self, call: Call) -> Any:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=self._autocast):
            return call(**self.inputs)

    def _step(self, call: Call) -> torch.Tensor:
        self.module.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=self._autocast):
            result = tensors(call(**self.inputs))[0]
        if self._tangent is None:
            drawn = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
            self._tangent = drawn.bfloat16().to(result)  # the same numbers in float64
        result.backward(self._tangent)
        return result.detach()
