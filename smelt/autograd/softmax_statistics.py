"""Results of operators on long rows, such as the logarithm of a softmax, recomputed from statistics of the rows.

A backward needs the logarithms again (eager saves them), and those of a language model's classes are many: they are
recomputed from the logits. That takes each row's maximum and the sum of its exponentials, two passes before the one
that the backward makes; both are two numbers per row, which the forward has.
"""

from __future__ import annotations

from smelt.autograd.recompute_formulas import Provision, arguments, formula_from
from smelt.config import Config
from smelt.graph.ir import Node
from smelt.ops.node_builders import converted
from smelt.ops.registry import REGISTRY, row
from smelt.rewrites.graph_rewriter import NodeBuilder
from smelt.rewrites.patterns import Call, Capture, Match, Where

LONG = 1024  # elements: for shorter rows, two numbers are not negligible, and another pass is cheap
WHY = "statistics: two numbers a row that the forward has; its logarithms come back from them"


def _has_long_rows(match: Match) -> bool:
    shape = match["x"].spec.shape
    return bool(shape) and all(type(n) is int and n for n in shape) and shape[match["dim"]] >= LONG


_OPERATORS = {op for op, facts in REGISTRY.declared() if "statistics" in facts}
OF_LONG_ROWS = Where(Call(_OPERATORS, Capture("x"), Capture("dim")), _has_long_rows)


def statistics(node: Node, make: NodeBuilder, config: Config) -> Provision | None:
    """How the result of an operator on long rows follows from its input and statistics of each row. None for operators
    without statistics, and where memory matters more than work."""
    if config.activation_memory_budget < 1 or OF_LONG_ROWS.first(node) is None:
        return None
    known = row(node.target)
    assert known.statistics is not None and known.from_statistics is not None
    make.begin(node)
    saved = known.statistics(make, *node.args)
    state = tuple(make.nodes)
    make.begin(node)
    result = known.from_statistics(make, arguments(node), dict(enumerate(saved, 1)))
    formula = None if result is None else formula_from(make, converted(make, result, node.spec.dtype), node)
    return None if formula is None else Provision(state, saved, {node: formula}, WHY)
