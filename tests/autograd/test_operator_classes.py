"""The table of operator classes: what it says of operators, and that docs/autograd.md says the same."""

from pathlib import Path

import pytest
import torch

from smelt.autograd import classes
from smelt.autograd.classes import OperatorClass, class_of, viewed
from smelt.graph.ir import Node

PAGE = Path(__file__).parents[2] / "docs" / "autograd.md"
aten = torch.ops.aten
CLASSES = [c for c in vars(classes).values() if isinstance(c, OperatorClass) and c is not classes.INPUT]


def call(op, *args):
    return Node("call_function", op, args, {}, "call")


def test_the_page_has_the_table():
    rows = [f"| {c.name} | {c.recompute} | {c.reason} |" for c in CLASSES]
    assert "\n".join(rows) in PAGE.read_text(encoding="utf-8"), "\n".join(rows)


@pytest.mark.parametrize("name", sorted(classes._BY_NAME))
def test_names_are_those_of_operators(name):
    assert hasattr(aten, name)


X = Node("placeholder", "x", (), {}, "x")


@pytest.mark.parametrize(
    "node, kind",
    [
        (call(aten.add.Tensor, X, X), classes.POINTWISE),
        (call(aten.max.other, X, X), classes.POINTWISE),
        (call(aten.max.dim, X, 0), classes.REDUCTION),
        (call(aten.pow.Tensor_Scalar, X, 2), classes.POINTWISE),
        (call(aten.pow.Tensor_Scalar, X, 2.5), classes.TRANSCENDENTAL),
        (call(aten.pow.Tensor_Tensor, X, X), classes.TRANSCENDENTAL),
        (call(aten.gelu.default, X), classes.TRANSCENDENTAL),
        (call(aten._unsafe_view.default, X, [2]), classes.VIEW),
        (call(aten.t.default, X), classes.VIEW),
        (call(aten.mm.default, X, X), classes.PRODUCT),
        (call(aten.bernoulli.p, X, 0.5), classes.RANDOM),
        (call(aten.native_dropout.default, X, 0.5, True), classes.RANDOM),
        (call(aten.copy_.default, X, X), classes.EFFECT),
        (call(aten.nonzero.default, X), classes.VALUE_DEPENDENT),
        (call(aten.linalg_qr.default, X), classes.OTHER),
        (call(torch.ops.quantized.add.default, X, X), classes.OPAQUE),
    ],
)
def test_classes(node, kind):
    assert class_of(node) is kind


def test_what_views_look_at():
    import operator

    split = call(aten.split.Tensor, X, 2)
    assert viewed(call(operator.getitem, split, 1)) is X
    assert viewed(call(aten._unsafe_view.default, X, [2])) is X
    assert viewed(call(operator.getitem, call(aten.max.dim, X, 0), 1)) is None
    assert viewed(call(aten.clone.default, X)) is None
