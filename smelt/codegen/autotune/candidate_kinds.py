"""The interface of each kind of generated candidate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from smelt.codegen.autotune.gemm_candidates import Generated
from smelt.codegen.autotune.tile_configs import attention_tiles, tiles
from smelt.codegen.triton.attention_kernel import TiledAttention, attention_source
from smelt.codegen.triton.block_gemm import Tile
from smelt.codegen.triton.gemm_kernel import TiledProduct, product_source
from smelt.codegen.triton.kernel_source import Source


@dataclass(frozen=True)
class Kind:
    """`source`: the source in a tile, with the buffers that may be unaligned; `tiles`: the tiles to try on a GPU of so
    many multiprocessors. `tolerances`: the accepted deviation from ATen's result, relative to the largest element, by
    the operands' dtype in the product."""

    name: str
    source: Callable[[Any, Tile, frozenset[int]], Source]
    tiles: Callable[[Any, int], list[Tile]]
    tolerances: Mapping[torch.dtype, float]


KINDS: dict[type[Generated], Kind] = {
    TiledProduct: Kind("product", product_source, tiles, {torch.float16: 3e-3, torch.bfloat16: 2e-2}),
    # ATen's scores are rounded to half precision: by one in 2**11, that of a score of 100 is 5% of its weight.
    TiledAttention: Kind(
        "attention", attention_source, attention_tiles, {torch.float16: 3e-2, torch.bfloat16: 1e-1}
    ),
}


def kind_of(candidate: Generated) -> Kind:
    """Its kind."""
    return KINDS[type(candidate)]


def tolerance_of(candidate: Generated) -> float:
    """The accepted deviation from ATen's result."""
    return kind_of(candidate).tolerances[candidate.dtype]


def source_of(candidate: Generated, tile: Tile, unaligned: frozenset[int]) -> Source:
    """Its source."""
    return kind_of(candidate).source(candidate, tile, unaligned)
