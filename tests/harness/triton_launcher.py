"""Kernels as callables by Triton's own launcher, for tests: on a GPU or, in Triton's interpreter, on CPU tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from smelt.codegen.triton.attention_kernel import TiledAttention, attention_source
from smelt.codegen.triton.block_gemm import Tile
from smelt.codegen.triton.gemm_kernel import TiledProduct, product_source
from smelt.codegen.triton.kernel_source import BEYOND, Source, batched_source, triton_source
from smelt.codegen.triton.symbolic_kernels import Variant, numbered, sized_source, variant
from smelt.codegen.triton.triton_import import function_of, library
from smelt.codegen.triton.value_expressions import Dialect
from smelt.loops.kernel_ir import Kernel
from smelt.shapes.expr import evaluate, static


@functools.lru_cache(1024)
def load_kernel(kernel: Kernel, host: frozenset[int] = frozenset()) -> Callable[..., None]:
    """`launch(*tensors)` of the kernel, on the tensors' device and the current stream; those of `host` are passed by value.
    Needs triton."""
    source = triton_source(kernel, host, _dialect())
    function = function_of(source)
    if not source.points:
        return lambda *tensors: None
    return functools.partial(_launch, function, source, host)


def launch_sized(
    kernel: Kernel, sizes: Sequence[int], *tensors: torch.Tensor, chosen: Variant | None = None
) -> Source:
    """Launch a kernel that `takes_sizes` with these values of its sizes, in the order of `Kernel.sizes`. `chosen`:
    overrides the variant. Returns the launched source."""
    general = numbered(kernel)
    source = sized_source(general, chosen or variant(general, sizes), dialect=_dialect())
    points = evaluate(source.points, dict(zip(source.sizes, sizes, strict=True)))
    _launch(function_of(source), replace(source, points=points), frozenset(), *tensors, sizes=sizes)
    return source


def launch_product(product: TiledProduct, tile: Tile, *tensors: torch.Tensor) -> None:
    """`product` in tiles of `tile`, on its buffers."""
    source = product_source(product, tile, dialect=_dialect())
    _launch(function_of(source), source, frozenset(), *tensors)


def launch_attention(attention: TiledAttention, tile: Tile, *tensors: torch.Tensor) -> None:
    """`attention` in tiles of `tile`, on its buffers."""
    source = attention_source(attention, tile, dialect=_dialect())
    _launch(function_of(source), source, frozenset(), *tensors)


def launch_batched(
    kernel: Kernel, parts: Sequence[Sequence[torch.Tensor]], host: frozenset[int] = frozenset()
) -> None:
    """One launch, in Triton's interpreter, of `kernel` on the tensors of each member, the first of which has as many
    elements as the member has points."""
    source = batched_source(kernel, host, dialect=_dialect())
    assert source.table is not None
    blocks = [-(-tensors[0].numel() // source.block) for tensors in parts]
    starts = [sum(blocks[:part]) for part in range(len(parts))]
    starts += [BEYOND] * (source.table.steps - len(parts))
    fields: list[int] = []
    for tensors in parts:
        fields.append(tensors[0].numel())
        fields += [_bits(t) if i in host else t.data_ptr() for i, t in enumerate(tensors)]
    function_of(source)[(sum(blocks),)](torch.tensor([*starts, *fields]), **source.constants)


def _bits(number: torch.Tensor) -> int:
    """The bytes of a tensor of one element, zero-extended to a 64-bit integer."""
    data = bytes(number.reshape(1).view(torch.uint8).tolist())
    return int.from_bytes(data.ljust(8, b"\0"), "little", signed=True)


def _dialect() -> Dialect:
    if library().interprets:
        return "torch"
    return "libdevice" if torch.version.hip else "ptx"


def _launch(
    function: Callable,
    source: Source,
    host: frozenset[int],
    *tensors: torch.Tensor,
    sizes: Sequence[int] = (),
) -> None:
    arguments = [t.item() if i in host else t for i, t in enumerate(tensors)]
    options = {} if library().interprets else library().options(source, library().target().warp_size)
    grid = (-(-static(source.points) // source.block),)
    function[grid](*arguments, *sizes, source.points, **source.constants, **options)  # type: ignore[index]
