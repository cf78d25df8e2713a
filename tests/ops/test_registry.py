"""The registry of operators: rows name operators of torch, and each stands in one module."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch._ops import OpOverload

from smelt.cli import operator_listing
from smelt.ops.registry import REGISTRY, Facts, Operator, Registry
from tests.harness import generated_pages

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operators.md"
aten = torch.ops.aten
FACTS = list(REGISTRY.declared())


def test_facts_are_the_fields_of_a_row():
    assert list(Facts.__annotations__) == [f.name for f in dataclasses.fields(Operator)]


@pytest.mark.parametrize("name", [key for key, _ in FACTS if isinstance(key, str)])
def test_names_are_those_of_operators(name):
    assert hasattr(aten, name.removeprefix("aten::"))


def test_rows_say_something():
    assert [key for key, facts in FACTS if not facts] == []


def test_out_variants_take_the_arguments_and_write_one():
    for op, facts in FACTS:
        if "out" in facts:
            arguments = [a.name for a in facts["out"]._schema.arguments if not a.is_out]
            assert arguments == [a.name for a in op._schema.arguments]


def test_linear_arguments_are_arguments():
    for key, facts in FACTS:
        packet = getattr(aten, key.removeprefix("aten::")) if isinstance(key, str) else key.overloadpacket
        known = {a.name for n in packet.overloads() for a in getattr(packet, n)._schema.arguments}
        assert {n for names in facts.get("linear", ()) for n in names.split()} <= known, key


def test_a_fact_of_an_overload_goes_before_one_of_the_name():
    registry = Registry()
    registry.declare(("sort topk",), {"linear": ("self",)}, "here")
    registry.declare((aten.sort.stable,), {"linear": ()}, "here")
    assert registry.row(aten.sort.stable).linear == ()
    assert registry.row(aten.sort.default).linear == registry.row(aten.topk.default).linear == ("self",)
    assert registry.row(aten.add.Tensor) == registry.row(len) == Operator()


def test_a_fact_is_declared_once():
    registry = Registry()
    registry.declare((aten.sort.default,), {"takes_numbers": True}, "here")
    with pytest.raises(ValueError, match="takes_numbers declared twice"):
        registry.declare((aten.sort.default,), {"takes_numbers": False}, "here")


def test_an_operator_has_one_module():
    registry = Registry()
    registry.declare(("sort",), {"linear": ("self",)}, "here")
    with pytest.raises(ValueError, match="aten::sort is declared in here and in there"):
        registry.declare((aten.sort.default,), {"takes_numbers": True}, "there")
    assert REGISTRY.module(aten.sort.default) == "smelt.ops.sorting"


@pytest.mark.skipif(
    f"torch {torch.__version__.split('+')[0]};" not in PAGE.read_text(), reason="written for another torch"
)
def test_what_becomes_of_each_operator():
    text = PAGE.read_text(encoding="utf-8")
    assert generated_pages.operators() == text, "python -m tests.harness.generated_pages writes it"


def test_each_operator_has_a_fate():
    found = operator_listing.fates()
    assert set(found.values()) == set(operator_listing.FATES)
    assert all(isinstance(op, OpOverload) for op in found)
