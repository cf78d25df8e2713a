"""The ten models that smelt is measured on, with random weights and the inputs they are measured with.

Nothing is downloaded. `build(name)` returns `(module in eval mode, keyword arguments of its forward)`; sizes are those
of the published figures: small batches on a CPU.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import timm
import torch
import transformers as hf
from torch import nn

from benchmarks import weights

Built = tuple[nn.Module, dict[str, Any]]


def _tokens(vocabulary: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length))


def bert(layers: int = 4, batch: int = 2, length: int = 128) -> Built:
    config = hf.BertConfig(num_hidden_layers=layers)
    return hf.BertModel(config), {
        "input_ids": _tokens(config.vocab_size, batch, length),
        "attention_mask": torch.ones(batch, length, dtype=torch.long),
    }


def gpt2(layers: int = 4, batch: int = 2, length: int = 128) -> Built:
    config = hf.GPT2Config(n_layer=layers)
    return hf.GPT2LMHeadModel(config), {"input_ids": _tokens(config.vocab_size, batch, length)}


def llama(
    layers: int = 4,
    width: int = 512,
    batch: int = 2,
    length: int = 128,
    heads: int = 8,
    vocabulary: int = 8000,
) -> Built:
    config = hf.LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=heads,
        num_key_value_heads=4,
        vocab_size=vocabulary,
    )
    return hf.LlamaForCausalLM(config), {"input_ids": _tokens(config.vocab_size, batch, length)}


class DecodingStep(nn.Module):
    """A token's forward beside a static cache of `length` places, all but one of them taken. The last place is given back
    afterwards, so that every call does the same."""

    def __init__(self, model: nn.Module, length: int, batch: int) -> None:
        super().__init__()
        self.model = model
        self.cache = hf.StaticCache(config=model.config, max_cache_len=length)
        # How later versions of transformers call it.
        parameters = inspect.signature(type(model).forward).parameters
        self.argument = "cache" if "cache" in parameters else "past_key_values"
        with torch.no_grad():
            self.model(torch.zeros(batch, length - 1, dtype=torch.long), **{self.argument: self.cache})

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """`input_ids`: (batch, 1), int64. The logits: (batch, 1, vocabulary)."""
        logits = self.model(input_ids, **{self.argument: self.cache}).logits
        for layer in self.cache.layers:
            layer.cumulative_length.sub_(1)
        return logits


def decoding_step(batch: int, layers: int = 8, width: int = 2048, places: int = 1024) -> Built:
    """Llama in bfloat16 with a cache of `places`."""
    model, inputs = llama(layers, width, batch, length=1, heads=16, vocabulary=32_000)
    return DecodingStep(model.bfloat16().eval(), places, batch), inputs


def t5(layers: int = 2, batch: int = 2, length: int = 64) -> Built:
    config = hf.T5Config(num_layers=layers, num_decoder_layers=layers, decoder_start_token_id=0)
    return hf.T5ForConditionalGeneration(config), {
        "input_ids": _tokens(config.vocab_size, batch, length),
        "decoder_input_ids": _tokens(config.vocab_size, batch, length),
    }


def timm_model(name: str, batch: int = 1, size: int = 224) -> Callable[[], Built]:
    """Makes a model of timm and a batch of square images."""

    def build() -> Built:
        return timm.create_model(name), {"x": torch.randn(batch, 3, size, size)}

    return build


MODELS: dict[str, Callable[[], Built]] = {
    "BERT, 4 layers": bert,
    "GPT-2, 4 layers": gpt2,
    "Llama, 4 layers of 512": llama,
    "T5, 2 layers": t5,
    "ResNet-50": timm_model("resnet50"),
    "ViT-tiny": timm_model("vit_tiny_patch16_224"),
    "ConvNeXt-atto": timm_model("convnext_atto"),
    "Swin-tiny": timm_model("swin_tiny_patch4_window7_224"),
    "MobileNetV3-L": timm_model("mobilenetv3_large_100"),
    "Mixer-S/32": timm_model("mixer_s32_224"),
}

DEMO: dict[str, Callable[[], Built]] = {
    "BERT, 4 layers": bert,
    "ResNet-18": timm_model("resnet18"),
    "Llama, 2 layers of 256": lambda: llama(layers=2, width=256, length=64),
}

LARGE: dict[str, Callable[[], Built]] = {"BERT base": lambda: bert(layers=12)}


def build(name: str) -> Built:
    """The model called `name` in eval mode with weights that all matter (`weights.py`) and inputs from seed 0."""
    torch.manual_seed(0)
    module, inputs = {**DEMO, **MODELS, **LARGE}[name]()
    weights.fill(module)
    return module.eval(), inputs


def tensors(value: object) -> list[torch.Tensor]:
    """All tensors in a model's output, in order; containers, ModelOutputs and key/value caches are searched."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    if hasattr(value, "__dict__"):
        return [t for v in vars(value).values() for t in tensors(v)]
    return []
