"""The rows of jagged nested tensors and of their ragged sizes, which belong to offsets or lengths."""

from __future__ import annotations

from typing import cast

import torch

from smelt.capture.reconstruction.reconstruction_kind import Expressions, ReconstructionKind, unsupported
from smelt.torch_private import NestedTensor
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.nested_tensors import Parts, is_view, source_of_size


def _nested_text(x: torch.Tensor, text: Expressions) -> str:
    return f"nested_tensor({', '.join(map(text, Parts.of(x)))}, {is_view(x)})"


def _source(x: torch.SymInt) -> FakeTensor:
    source = source_of_size(x)
    if source is None:
        raise unsupported(x, "a symbolic number that no trace knows")
    return source


NESTED: dict[type, ReconstructionKind] = {
    cast(type, NestedTensor): ReconstructionKind(Parts.of, _nested_text),
    torch.SymInt: ReconstructionKind(
        lambda x: (_source(x), x.node.coeff),
        lambda x, text: f"ragged_size({text(_source(x))}, {text(x.node.coeff)})",
    ),
}
