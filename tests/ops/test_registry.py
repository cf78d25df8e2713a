"""The registry of operators: rows name operators of torch, each stands in one module, and nothing else names any."""

import ast
import dataclasses
from pathlib import Path

import pytest
import torch
from torch._ops import OpOverload

from smelt.ops.registry import REGISTRY, Facts, Operator, Registry
from smelt.report import operator_table
from tests.harness import sources

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
    assert operator_table.page() == PAGE.read_text(encoding="utf-8"), (
        "python -m smelt.report.operator_table writes it"
    )


def test_each_operator_has_a_fate():
    found = operator_table.fates()
    assert set(found.values()) == set(operator_table.FATES)
    assert all(isinstance(op, OpOverload) for op in found)


# Modules outside of smelt/ops that name operators. What a module makes nodes of, or calls, it has to name; what it knows of
# operators that it meets belongs into their rows.
MAKES = "makes nodes of it"
CALLS = "calls it"
WRITES = "the one write that a functional graph may end with"
NAMED = {
    "smelt.autograd.unsegmented_backward": MAKES,
    "smelt.autograd.save_costs": WRITES,
    "smelt.autograd.defensive_copies": MAKES,
    "smelt.autograd.partition": MAKES,
    "smelt.autograd.rng_replay": MAKES,
    "smelt.autograd.recompute_formulas": MAKES,
    "smelt.autograd.softmax_statistics": MAKES,
    "smelt.autograd.undefined_tangents": f"{MAKES}, and takes sums apart",
    "smelt.autograd.double_backward": "batch norm does not read the statistics that it writes; writes that are repeated",
    "smelt.backends.eager": WRITES,
    "smelt.capture.torch_calls.subgraph_capture": MAKES,
    "smelt.capture.torch_calls.tensor_methods": CALLS,
    "smelt.capture.torch_calls.tensor_item": "repeats them in Python's arithmetic, of numbers that guards read",
    "smelt.capture.semantics.calls.torchscript": "operators of TorchScript on numbers and containers",
    "smelt.codegen.out_variants": "smelt's own operator draws its numbers",
    "smelt.codegen.call_selection.gemm_calls": "the products that this target generates",
    "smelt.codegen.call_selection.window_calls": "the windows that this target generates",
    "smelt.graph.operator_effects": "schemas and tags that are wrong; lies below the rows",
    "smelt.graph.conj_neg_bits": "views of which only a bit differs; lies below the rows",
    "smelt.graph.graph_passes": "what autograd leaves in graphs, memory without values; lies below the rows",
    "smelt.graph.verify_graph": WRITES,
    "smelt.report.operator_table": "the beginning of every name, which people leave out",
    "smelt.plan.build_plan": CALLS,
    "smelt.plan.inplace_kernels": "copies, which it adds and leaves out",
    "smelt.report.edited_joints": WRITES,
    "smelt.report.edited_graphs": "what printed graphs call, which is recorded again",
    "smelt.verify.result_comparison": "results that nobody reads, of calls that are not compared",
    "smelt.verify.subgraph_extraction": CALLS,
    "smelt.verify.float64_reference": "views as another dtype, which in float64 are no such",
    "smelt.torch_private": "any one, to see that operators have the attributes that are read",
    "smelt.tracing.composites.symbolic_sdpa": CALLS,
    "smelt.tracing.symbolic.unbacked_operators": f"{MAKES}, with sizes that only the graph knows",
    "smelt.tracing.record.finish_trace": MAKES,
    "smelt.tracing.symbolic.integer_tensors": "those that it computes in Python's integers",
    "smelt.tracing.record.user_kernel_recorder": MAKES,
    "smelt.tracing.functionalize.functionalize": MAKES,
    "smelt.tracing.record.aten_call_recorder": MAKES,
    "smelt.tracing.record.trace_outputs": "of a view that does not count writes with its base",
    "smelt.tracing.composites.packed_sequences": CALLS,
    "smelt.tracing.composites.symbolic_matmul": CALLS,
    "smelt.tracing.composites.symbolic_rnn": CALLS,
    "smelt.tracing.composites.symbolic_resize": CALLS,
    "smelt.tracing.composites.row_indexing": CALLS,
    "smelt.tracing.composites.symbolic_size_functions": CALLS,
    "smelt.tracing.record.recording_rules": MAKES,
}


def named(m):
    """The operators that a module names, by attribute or in a string, each with its line."""
    for node in m.nodes:
        name = sources.dotted(node, m.aliases) if isinstance(node, ast.Attribute) else None
        if name is not None and name.startswith("torch.ops.aten."):
            yield node.lineno, name
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith(("aten::", "aten."))
        ):
            yield node.lineno, node.value


IN = ("smelt.ops", "smelt.rewrites")


def test_operators_are_named_in_ops_and_rewrites_only():
    found = {name: list(named(m)) for name, m in sources.modules(ROOT / "smelt").items()}
    outside = {name: where for name, where in found.items() if where and not name.startswith(IN)}
    assert {name: where for name, where in outside.items() if name not in NAMED} == {}
    assert NAMED.keys() - outside.keys() == set()
