"""Whether images are channels-last, for specs whose sizes may be symbols."""

from __future__ import annotations

from smelt.graph.ir import TensorSpec
from smelt.shapes.expr import Size


def last_stride(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """The strides of a channels-last tensor of four dimensions."""
    _, c, h, w = shape
    return h * w * c, 1, w * c, c


def is_last(spec: TensorSpec) -> bool:
    """Whether ATen considers it channels-last, which includes strides of dimensions of size 1."""
    return len(spec.shape) == 4 and spec.stride == last_stride(spec.shape)


def is_channels_last_layout(spec: TensorSpec) -> bool:
    """Whether its elements have the order of a channels-last tensor."""
    pairs = zip(spec.shape, spec.stride, last_stride(spec.shape))
    return all(size == 1 or stride == want for size, stride, want in pairs)
