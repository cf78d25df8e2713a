"""Which files outside `smelt/ops` and `smelt/rewrites` name ATen operators, and why.

What smelt knows of an operator stands in its row (`smelt/ops/registry.py`), which others read as `row(op)`; memory effects,
which the graph passes below the rows read as well, in `smelt/graph/operator_effects.py`. Operators that several stages
insert in graphs have names in `smelt/ops/node_builders.py` and `smelt/graph/input_writes.py`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import sources
from tests.harness.sources import Module, module

SMELT = Path(__file__).parents[2] / "smelt"
FREE = ("smelt.ops", "smelt.rewrites")  # the rows; patterns of graphs and what replaces them

# Files that may name operators, with the reason.
REASONS = {
    "graph/structural_equality.py": "operators that return their argument for a size of 1",
    "autograd/recompute_formulas.py": "inserts zeros like a tangent, and masked gradients",
    "capture/semantics/calls/torchscript.py": "operators of TorchScript on numbers and containers, which have no rows",
    "codegen/call_selection/gemm_calls.py": "implements matrix products, by operator",
    "codegen/call_selection/window_calls.py": "implements windows over images, by operator",
    "graph/conj_neg_bits.py": "the views that set these bits, for passes below the rows",
    "graph/input_writes.py": "the write that a functional graph may contain, for stages below the rows",
    "graph/operator_effects.py": "corrects schemas and tags, for passes below the rows",
    "plan/row_views.py": "replaces an index by a view of a row, after lowering",
    "report/edited_graphs.py": "checks writes of edited graphs, and copies results that share memory",
    "report/edited_joints.py": "checks writes of edited graphs",
    "cli/operator_listing.py": "the prefix of all names",
    "torch_private.py": "an arbitrary one, to check that operators have the attributes that smelt reads",
    "tracing/record/nested_tensors.py": "operators on nested tensors, which have no rows",
    "tracing/composites/packed_sequences.py": "implements packing and padding by indexing",
    "tracing/backward/conditional_gradients.py": "the conditions under which gradients are defined",
    "tracing/record/changed_defaults.py": "lists what computes the same under a changed dtype or determinism",
    "tracing/composites/symbolic_parameters.py": "implements functions whose parameters are symbolic floats",
    "tracing/composites/row_indexing.py": "implements the selection of rows by indexing",
    "tracing/composites/symbolic_matmul.py": "implements matmul and linear, which programs call by these names too",
    "tracing/composites/symbolic_resize.py": "implements interpolation, by mode",
    "tracing/composites/symbolic_rnn.py": "implements a layer of an LSTM by oneDNN's operator",
    "tracing/composites/symbolic_sdpa.py": "implements attention, which programs call by these names too",
    "tracing/composites/symbolic_size_functions.py": "implements STFT by an FFT",
    "tracing/symbolic/integer_tensors.py": "elements of a stack are those of other tensors: no row says which",
    "tracing/symbolic/unbacked_operators.py": "implements selection by masks: indexing by their nonzero elements",
}


def named(m: Module) -> Iterator[tuple[int, str]]:
    """Line and name of the operators that a module names: an attribute of `torch.ops.aten`, or a string."""
    for node in m.nodes:
        if isinstance(node, ast.Attribute) or (isinstance(node, ast.Call) and len(node.args) > 1):
            name = sources.dotted(node if isinstance(node, ast.Attribute) else node.args[0], m.aliases)
            if name is not None and name.startswith("torch.ops.aten."):
                yield node.lineno, name
            elif name == "torch.ops.aten" and isinstance(node, ast.Call):  # getattr(aten, "add")
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.startswith(("aten::", "aten.")):
                yield node.lineno, node.value


def file_of(m: Module) -> str:
    return "/".join(m.parts) + ".py"


FOUND = {
    file_of(m): list(named(m))
    for name, m in sources.modules(SMELT).items()
    if not name.startswith(FREE) and any(named(m))
}


def test_facts_of_operators_stand_in_their_rows() -> None:
    lines = [
        f"{file}:{line} {name}"
        for file, names in FOUND.items()
        if file not in REASONS
        for line, name in names
    ]
    assert lines == [], (
        "a fact of an operator goes in its row: a field of `Operator` (smelt/ops/registry.py), declared with its "
        "lowering; a memory effect in smelt/graph/operator_effects.py. An operator that several stages insert in graphs "
        "is one of smelt/ops/node_builders.py. A file that implements an operator gets a line in REASONS"
    )


def test_each_reason_has_a_file_that_names_operators() -> None:
    assert sorted(REASONS.keys() - FOUND.keys()) == [], "these name no operator, and need no reason"


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.ops.aten.add.Tensor",
        "import torch\naten = torch.ops.aten\nSUM = aten.add",
        "from torch import ops\nops.aten.add.Tensor",
        "import torch\ngetattr(torch.ops.aten, 'add')",
        "x = 'aten::add'",
        "x = 'aten.add.Tensor'",
    ],
)
def test_a_name_is_found(text: str) -> None:
    assert list(named(module("p.a", text)))


def test_other_operators_are_not_meant() -> None:
    assert not list(named(module("p.a", "import torch\ntorch.ops.smelt.run.default\nlevel = 'aten'")))
