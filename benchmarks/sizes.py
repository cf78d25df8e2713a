"""Models whose inputs change in size from call to call: small ones with random weights, and what a call may be given.

`CASES[name]` builds a model; `draw(random)` gives the keyword arguments of one call. Sizes are drawn anew for each: batches
from 1 to 5, lengths from 2 on, images of any height and width that the network takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import timm
import torch
import torch.nn.functional as F
import transformers as hf
from torch import nn

Inputs = dict[str, Any]
VOCABULARY = 100


@dataclass(frozen=True)
class Case:
    """A model in eval mode, and random inputs for it."""

    build: Callable[[], nn.Module]
    draw: Callable[[Random], Inputs]


def _tokens(batch: int, length: int, draw: Random) -> torch.Tensor:
    """Token ids, (batch, length), int64."""
    generator = torch.Generator().manual_seed(draw.getrandbits(30))
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


def _mask(batch: int, length: int, draw: Random) -> torch.Tensor:
    """(batch, length), int64: the texts end somewhere in the second half."""
    ends = torch.tensor([draw.randint((length + 1) // 2, length) for _ in range(batch)])
    return (torch.arange(length) < ends[:, None]).long()


def _text(draw: Random) -> Inputs:
    batch, length = draw.randint(1, 5), draw.randint(2, 40)
    return {"input_ids": _tokens(batch, length, draw)}


def _masked_text(draw: Random) -> Inputs:
    inputs = _text(draw)
    return {**inputs, "attention_mask": _mask(*inputs["input_ids"].shape, draw)}


def _two_texts(draw: Random) -> Inputs:
    batch = draw.randint(1, 5)
    inputs = {"input_ids": _tokens(batch, draw.randint(2, 40), draw)}
    mask = _mask(*inputs["input_ids"].shape, draw)
    return {**inputs, "attention_mask": mask, "decoder_input_ids": _tokens(batch, draw.randint(2, 30), draw)}


def _image(draw: Random, name: str, least: int, most: int, step: int = 1) -> Inputs:
    """Pictures, (batch, 3, height, width), float32. Height and width are multiples of `step` between `least` and `most`."""
    height, width = (step * draw.randint(least // step, most // step) for _ in range(2))
    generator = torch.Generator().manual_seed(draw.getrandbits(30))
    return {name: torch.randn(draw.randint(1, 4), 3, height, width, generator=generator)}


def _bert() -> nn.Module:
    return hf.BertModel(
        hf.BertConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            vocab_size=VOCABULARY,
            max_position_embeddings=64,
        )
    )


def _gpt2() -> nn.Module:
    config = hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=64)
    return hf.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    """Two layers of 32, two heads for keys."""
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            vocab_size=VOCABULARY,
            pad_token_id=0,
        )
    )


def _t5() -> nn.Module:
    return hf.T5ForConditionalGeneration(
        hf.T5Config(
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_decoder_layers=2,
            num_heads=4,
            vocab_size=VOCABULARY,
            decoder_start_token_id=0,
        )
    )


class _InterpolatingViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vit = hf.ViTModel(
            hf.ViTConfig(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
                image_size=32,
                patch_size=8,
            )
        )

    def forward(self, pixel_values: torch.Tensor) -> Any:
        return self.vit(pixel_values, interpolate_pos_encoding=True)


def _timm_vit() -> nn.Module:
    made: nn.Module = timm.models.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4, num_classes=10, dynamic_img_size=True
    )
    return made


def _resnet50() -> nn.Module:
    """Its 50 layers, narrower."""
    return hf.ResNetForImageClassification(
        hf.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32, 64, 128], depths=[3, 4, 6, 3], num_labels=10)
    )


def _timm_resnet50() -> nn.Module:
    made: nn.Module = timm.models.ResNet(
        timm.models.resnet.Bottleneck, (3, 4, 6, 3), num_classes=10, stem_width=8, base_width=8
    )
    return made


class _Twice(nn.Sequential):
    """Two convolutions, normalized."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
        )  # fmt: skip


class UNet(nn.Module):
    """Down by pooling and up by transposed convolutions (`how="transposed"`), `nn.Upsample` by a factor ("factor") or
    `F.interpolate` to the size of what it is joined with ("size"). What comes up is padded where the size is no multiple."""

    def __init__(self, how: str) -> None:
        super().__init__()
        widths = (8, 16, 32)
        self.how = how
        self.first = _Twice(3, widths[0])
        self.down = nn.ModuleList(_Twice(a, b) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(self._up(b, a) for a, b in itertools.pairwise(widths))
        self.joined = nn.ModuleList(_Twice(2 * a, a) for a in widths[:-1])
        self.last = nn.Conv2d(widths[0], 2, 1)

    def _up(self, before: int, after: int) -> nn.Module:
        if self.how == "transposed":
            return nn.ConvTranspose2d(before, after, 2, stride=2)
        smaller = nn.Conv2d(before, after, 1)
        if self.how == "size":
            return smaller
        mode = "bilinear" if before > 16 else "nearest"
        return nn.Sequential(
            nn.Upsample(scale_factor=2, mode=mode, align_corners=True if mode == "bilinear" else None),
            smaller,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x`: (batch, 3, height, width). Two numbers for each pixel."""
        kept = [self.first(x)]
        for block in self.down:
            kept.append(block(F.max_pool2d(kept[-1], 2)))
        y = kept.pop()
        for up, joined in zip(reversed(self.up), reversed(self.joined)):
            beside = kept.pop()
            if self.how == "size":
                y = F.interpolate(up(y), size=beside.shape[2:], mode="nearest")
            else:
                y = up(y)
                missing = [n - m for n, m in zip(beside.shape[2:], y.shape[2:])]
                y = F.pad(
                    y,
                    [
                        missing[1] // 2,
                        missing[1] - missing[1] // 2,
                        missing[0] // 2,
                        missing[0] - missing[0] // 2,
                    ],
                )
            y = joined(torch.cat([beside, y], 1))
        result: torch.Tensor = self.last(y)
        return result


def _pictures(least: int, most: int, step: int = 1, name: str = "pixel_values") -> Callable[[Random], Inputs]:
    return lambda draw: _image(draw, name, least, most, step)


CASES: dict[str, Case] = {
    "BERT": Case(_bert, _masked_text),
    "GPT-2": Case(_gpt2, _text),
    "Llama": Case(llama, _masked_text),
    "T5": Case(_t5, _two_texts),
    "ViT, transformers": Case(_InterpolatingViT, _pictures(16, 72, 8)),
    "ViT, timm": Case(_timm_vit, _pictures(16, 72, 8, "x")),
    "ResNet-50, transformers": Case(_resnet50, _pictures(33, 90)),
    "ResNet-50, timm": Case(_timm_resnet50, _pictures(33, 90, 1, "x")),
    "U-Net, transposed convolutions": Case(lambda: UNet("transposed"), _pictures(16, 60, 1, "x")),
    "U-Net, nn.Upsample": Case(lambda: UNet("factor"), _pictures(16, 60, 1, "x")),
    "U-Net, interpolate to a size": Case(lambda: UNet("size"), _pictures(16, 60, 1, "x")),
}
