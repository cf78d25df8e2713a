"""The settings of a convolution: all arguments except its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from smelt.shapes.expr import Size

N = TypeVar("N", int, Size)


class Convolution(NamedTuple):
    """The arguments that `aten.convolution` and `aten.convolution_backward` share, in their order."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int

    def over(self, n: int) -> Convolution:
        """The same settings with a number for each of `n` dimensions, repeating a single number."""
        stride, padding, dilation, extra = (
            list(v) * n if len(v) == 1 else v
            for v in (self.stride, self.padding, self.dilation, self.output_padding)
        )
        return Convolution(stride, padding, dilation, self.transposed, extra, self.groups)

    def frozen(self) -> Convolution:
        """The same settings, hashable."""
        return Convolution(*(tuple(v) if isinstance(v, list) else v for v in self))  # type: ignore[arg-type]

    @property
    def has_numbers(self) -> bool:
        """Whether all settings are concrete: only then can torch be asked which library computes."""
        lists = (self.stride, self.padding, self.dilation, self.output_padding)
        return all(isinstance(n, int) for n in (self.groups, *(n for v in lists for n in v)))

    def shape(self, images: Sequence[N], weight: Sequence[N]) -> list[N]:
        """The result's shape, for images and a weight of these shapes."""
        made = [images[0], self.channels(weight)]
        return made + self._pixels(images, weight)

    def channels(self, weight: Sequence[N]) -> N:
        """The result's number of channels, for a weight of this shape."""
        return weight[1] * self.groups if self.transposed else weight[0]

    def _pixels(self, images: Sequence[N], weight: Sequence[N]) -> list[N]:
        """The sizes of the result's images, for images of shape `images`."""
        reach = [(k - 1) * d + 1 for d, k in zip(self.dilation, weight[2:])]
        each = zip(images[2:], self.stride, self.padding, reach, self.output_padding)
        if self.transposed:
            return [(m - 1) * s - 2 * p + r + e for m, s, p, r, e in each]
        return [(m + 2 * p - r) // s + 1 for m, s, p, r, _ in each]
