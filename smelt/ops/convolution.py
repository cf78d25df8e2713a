"""The settings of a convolution: everything but its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Convolution(NamedTuple):
    """The arguments that `aten.convolution` and `aten.convolution_backward` share, in their order."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int

    def over(self, n: int) -> Convolution:
        """The same settings with a number for each of `n` dimensions: a single number stands for all of them."""
        stride, padding, dilation, extra = (
            list(v) * n if len(v) == 1 else v
            for v in (self.stride, self.padding, self.dilation, self.output_padding)
        )
        return Convolution(stride, padding, dilation, self.transposed, extra, self.groups)
