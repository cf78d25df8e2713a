"""The ten benchmark models, tiny: the same layers, few and narrow, with weights that all matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks import errors, models, weights

Built = tuple[nn.Module, dict[str, Any]]


def text(model: Callable[[Any], nn.Module], config: Any, *names: str) -> Callable[[], Built]:
    """A model of transformers and its token inputs: 2 sequences of 8."""
    return lambda: (model(config), {name: torch.randint(0, config.vocab_size, (2, 8)) for name in names})


def image(name: str, size: int = 64, **options: Any) -> Callable[[], Built]:
    return lambda: (
        models.timm.create_model(name, num_classes=10, **options),
        {"x": torch.randn(4, 3, size, size)},
    )


def in_float64(build: Callable[[], Built]) -> Callable[[], Built]:
    """The same in float64: training steps of these multiply rounding errors by tens."""

    def build_double() -> Built:
        model, inputs = build()
        return model.double(), errors.in_double(inputs)

    return build_double


def quarter_mobilenet() -> Built:
    """MobileNetV3-L with a quarter of the channels."""
    model = models.timm.models.mobilenetv3._gen_mobilenet_v3(
        "mobilenetv3_large_100", 0.25, num_classes=10, drop_rate=0.2
    )
    return model, {"x": torch.randn(4, 3, 64, 64)}


def tiny_mixer() -> Built:
    model = models.timm.models.MlpMixer(
        img_size=64, patch_size=16, num_blocks=2, embed_dim=32, num_classes=10
    )
    return model, {"x": torch.randn(4, 3, 64, 64)}


def filled(build: Callable[[], Built]) -> Callable[[], Built]:
    """The same model with weights with which every branch matters."""

    def build_filled() -> Built:
        model, inputs = build()
        weights.fill(model)
        return model, inputs

    return build_filled


hf = models.hf
AS_INITIALISED: dict[str, Callable[[], Built]] = {
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
    "ResNet-50": in_float64(image("resnet50", layers=(1, 2, 1, 1), channels=(8, 16, 24, 32), stem_width=8)),
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
    "MobileNetV3-L": in_float64(quarter_mobilenet),
    "Mixer-S/32": tiny_mixer,
}

MODELS = {name: filled(build) for name, build in AS_INITIALISED.items()}
