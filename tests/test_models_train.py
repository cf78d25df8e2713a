"""The ten benchmark models in train mode, tiny: 20 steps with SGD and with AdamW go where eager's go.

The tolerances are those of float32 sums taken in another order, carried through 20 steps: LOSS relative to the loss, MOVED
relative to how far the parameter that moved most has moved (at least FLOOR). AdamW's `eps` is above the rounding errors of
gradients, or it would make whole steps of gradients that are exactly zero but for rounding (biases before a batch norm).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from benchmarks import models
from smelt import events
from smelt.report.inspect import graph_count, reasons

Built = tuple[nn.Module, dict[str, Any]]

STEPS = 20
LOSS = 2e-5
MOVED = 1e-3


def text(model: Callable[[Any], nn.Module], config: Any, *names: str) -> Callable[[], Built]:
    """A model of transformers and its token inputs: 2 sequences of 8."""
    return lambda: (model(config), {name: torch.randint(0, config.vocab_size, (2, 8)) for name in names})


def image(name: str, size: int = 64, **options: Any) -> Callable[[], Built]:
    return lambda: (
        models.timm.create_model(name, num_classes=10, **options),
        {"x": torch.randn(4, 3, size, size)},
    )


def quarter_mobilenet() -> Built:
    """MobileNetV3-L with a quarter of the channels. In float64: its steps multiply rounding errors by tens."""
    model = models.timm.models.mobilenetv3._gen_mobilenet_v3(
        "mobilenetv3_large_100", 0.25, num_classes=10, drop_rate=0.2
    )
    return model.double(), {"x": torch.randn(4, 3, 64, 64, dtype=torch.float64)}


def tiny_mixer() -> Built:
    model = models.timm.models.MlpMixer(
        img_size=64, patch_size=16, num_blocks=2, embed_dim=32, num_classes=10
    )
    return model, {"x": torch.randn(4, 3, 64, 64)}


hf = models.hf
MODELS: dict[str, Callable[[], Built]] = {
    "BERT": text(
        hf.BertModel,
        hf.BertConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=16,
        ),
        "input_ids",
    ),
    "GPT-2": text(
        hf.GPT2LMHeadModel,
        hf.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=16),
        "input_ids",
    ),
    "Llama": text(
        hf.LlamaForCausalLM,
        hf.LlamaConfig(
            vocab_size=50,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        ),
        "input_ids",
    ),
    "T5": text(
        hf.T5ForConditionalGeneration,
        hf.T5Config(
            vocab_size=50,
            d_model=32,
            d_kv=16,
            d_ff=64,
            num_layers=2,
            num_decoder_layers=2,
            num_heads=2,
            decoder_start_token_id=0,
        ),
        "input_ids",
        "decoder_input_ids",
    ),
    "ResNet-50": image("resnet50", layers=(1, 2, 1, 1), channels=(8, 16, 24, 32), stem_width=8),
    "ViT-tiny": image(
        "vit_tiny_patch16_224",
        img_size=64,
        depth=2,
        embed_dim=32,
        num_heads=2,
        proj_drop_rate=0.1,
        drop_path_rate=0.1,
    ),
    "ConvNeXt-atto": image("convnext_atto", depths=(1, 1, 2, 1), dims=(8, 16, 24, 32), drop_path_rate=0.1),
    "Swin-tiny": image(
        "swin_tiny_patch4_window7_224",
        img_size=56,
        size=56,
        embed_dim=16,
        depths=(2, 2),
        num_heads=(2, 2),
        drop_path_rate=0.1,
    ),
    "MobileNetV3-L": quarter_mobilenet,
    "Mixer-S/32": tiny_mixer,
}

OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, 1e-3, eps=1e-5),
}


def loss_of(output: object) -> torch.Tensor:
    """Of the first output, towards a fixed wave, so that nothing that a norm divides out is all of the loss."""
    found = next(t for t in models.tensors(output) if t.requires_grad)
    wave = torch.arange(found.numel(), dtype=found.dtype).sin().view(found.shape)
    return (found - wave).square().mean()


def train(call: Callable[..., Any], model: nn.Module, inputs: dict[str, Any], optimizer: Any) -> list[float]:
    """The losses of the steps."""
    losses = []
    torch.manual_seed(1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(call(**inputs))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", MODELS)
def test_training(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.train()
    twin, start = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    compiled, backwards = smelt.compile(twin), []

    def listen(event: events.Event) -> None:
        if event.kind in ("backward-compiled", "no-joint-graph"):
            backwards.append(event.kind)

    for make_optimizer in OPTIMIZERS.values():
        for m in (model, twin):
            m.load_state_dict(start)
            m.zero_grad()
        want = train(model, model, inputs, make_optimizer(model.parameters()))
        state = torch.get_rng_state()
        with events.subscribed(listen):
            got = train(compiled, twin, inputs, make_optimizer(twin.parameters()))
        assert torch.equal(torch.get_rng_state(), state)
        torch.testing.assert_close(got, want, rtol=LOSS, atol=0)
        assert want[-1] < want[0]
        same_state(twin, model, start)
    assert not reasons(compiled) and graph_count(compiled) == 1
    assert backwards == ["backward-compiled"]


def same_state(got: nn.Module, want: nn.Module, start: dict[str, torch.Tensor]) -> None:
    """Parameters, buffers and which parameters have a gradient."""
    for (path, p), q in zip(want.named_parameters(), got.parameters(), strict=True):
        assert (p.grad is None) is (q.grad is None), path
    for kind in ("named_parameters", "named_buffers"):
        tensors = zip(getattr(want, kind)(), getattr(got, kind)(), strict=True)
        pairs = {path: (t.detach(), other.detach()) for (path, t), (_, other) in tensors if path in start}
        moved = max(((t - start[path]).abs().max().item() for path, (t, _) in pairs.items()), default=0.0)
        for path, (t, other) in pairs.items():
            torch.testing.assert_close(other, t, rtol=0, atol=MOVED * moved, msg=lambda m: f"{path}: {m}")
