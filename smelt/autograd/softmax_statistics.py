"""Results of operators on long rows, such as the logarithm of a softmax, recomputed from statistics of the rows.

A backward needs the logarithms again (eager saves them), and those of a language model's classes are many: they are
recomputed from the logits. That takes each row's maximum and the sum of its exponentials, two passes before the one
that the backward makes; both are two numbers per row, which the forward has.
"""

from __future__ import annotations

from smelt.autograd.recompute_formulas import NodeBuilder, Provision, arguments
from smelt.config import Config
from smelt.graph.ir import Node
from smelt.ops.node_builders import converted
from smelt.ops.registry import row

LONG = 1024  # elements: for shorter rows, two numbers are not negligible, and another pass is cheap
WHY = "statistics: two numbers a row that the forward has; its logarithms come back from them"


def statistics(node: Node, make: NodeBuilder, config: Config) -> Provision | None:
    """How the result of an operator on rows follows from its input and statistics of each row. None for operators
    without statistics, and where memory matters more than work."""
    known = row(node.target)
    if known.statistics is None or known.from_statistics is None or config.activation_memory_budget < 1:
        return None
    x, dim, *_ = node.args
    shape = x.spec.shape
    if not shape or any(type(n) is not int or not n for n in shape) or shape[dim] < LONG:
        return None
    make.begin(node)
    saved = known.statistics(make, *node.args)
    state = tuple(make.nodes)
    make.begin(node)
    result = known.from_statistics(make, arguments(node), dict(enumerate(saved, 1)))
    formula = None if result is None else make.formula(converted(make, result, node.spec.dtype), node)
    return None if formula is None else Provision(state, saved, {node: formula}, WHY)
