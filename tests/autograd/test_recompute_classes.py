"""The table of operator classes, and that docs/autograd.md contains it."""

from pathlib import Path

import pytest
import torch

from smelt.autograd.recompute_classes import class_of, view_source
from smelt.graph.ir import Node
from smelt.ops.recompute_rules import Class, OperatorClass

PAGE = Path(__file__).parents[2] / "docs" / "autograd.md"
aten = torch.ops.aten
CLASSES = [c for c in vars(Class).values() if isinstance(c, OperatorClass) and c is not Class.INPUT]


def call(op, *args):
    return Node("call_function", op, args, {}, "call")


def test_the_page_contains_the_table():
    rows = [f"| {c.name} | {c.recompute} | {c.reason} |" for c in CLASSES]
    assert "\n".join(rows) in PAGE.read_text(encoding="utf-8"), "\n".join(rows)


X = Node("placeholder", "x", (), {}, "x")


@pytest.mark.parametrize(
    "node, kind",
    [
        (call(aten.add.Tensor, X, X), Class.POINTWISE),
        (call(aten.max.other, X, X), Class.POINTWISE),
        (call(aten.max.dim, X, 0), Class.REDUCTION),
        (call(aten.pow.Tensor_Scalar, X, 2), Class.POINTWISE),
        (call(aten.pow.Tensor_Scalar, X, 2.5), Class.TRANSCENDENTAL),
        (call(aten.pow.Tensor_Tensor, X, X), Class.TRANSCENDENTAL),
        (call(aten.gelu.default, X), Class.TRANSCENDENTAL),
        (call(aten._unsafe_view.default, X, [2]), Class.VIEW),
        (call(aten.t.default, X), Class.VIEW),
        (call(aten.mm.default, X, X), Class.PRODUCT),
        (call(aten.bernoulli.p, X, 0.5), Class.RANDOM),
        (call(aten.native_dropout.default, X, 0.5, True), Class.RANDOM),
        (call(aten.copy_.default, X, X), Class.EFFECT),
        (call(aten.nonzero.default, X), Class.VALUE_DEPENDENT),
        (call(aten.linalg_qr.default, X), Class.OTHER),
        (call(torch.ops.quantized.add.default, X, X), Class.OPAQUE),
    ],
)
def test_classes(node, kind):
    assert class_of(node) is kind


def test_view_sources():
    import operator

    split = call(aten.split.Tensor, X, 2)
    assert view_source(call(operator.getitem, split, 1)) is X
    assert view_source(call(aten._unsafe_view.default, X, [2])) is X
    assert view_source(call(operator.getitem, call(aten.max.dim, X, 0), 1)) is None
    assert view_source(call(aten.clone.default, X)) is None
