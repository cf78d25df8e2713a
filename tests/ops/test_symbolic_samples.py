"""Samples of torch's operator database with a symbol for each size: no lowering compares symbols, or decides for one size
what is different for another: with the numbers back in their place, programs give what those of fixed sizes give."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch.utils import _pytree as pytree

from smelt.errors import NeedsFixedSize
from smelt.graph.ir import Graph, Node, TensorSpec, map_nodes
from smelt.ops.lowering import lower
from smelt.ops.registry import row
from smelt.schedule.schedule_program import fuse
from smelt.shapes.expr import Sym, contiguous_stride
from smelt.torch_private import OpOverload
from tests.harness.lowered_at import program_at
from tests.harness.operator_database import op_db
from tests.harness.schedule_interpreter import run
from tests.harness.scheduled import costs
from tests.harness.traced import traced

SAMPLES = 1  # of each operator; `benchmarks.sweep_ops --dynamic` runs all
PARTS = 6
# what is in memory is what they give, they are slow, or shapes that a kernel does not keep to (of a bag of embeddings)
LEFT_OUT = re.compile(
    r"(new_)?empty|lu|qr|triangular|linalg|fft|signal|.*svd|.*lobpcg|masked\.|special\.|i?stft|.*grid_sample|.*embedding_bag"
)


def symbol(n):
    """For each number its symbol, for 0 and 1 themselves."""
    return Sym(f"size_{n}", 2) if type(n) is int and n > 1 else n


def with_symbols(graph):
    """A copy with symbols for the sizes of tensors, and of what operators are to make."""
    made, nodes = Graph(graph.level), {}
    made.constants = graph.constants
    for node in graph:
        args, kwargs = (map_nodes(tree, nodes.__getitem__) for tree in (node.args, node.kwargs))
        if isinstance(node.target, OpOverload):
            sizes = [a.name for a in node.target._schema.arguments if is_sizes(node.target, a.name)]
            names = [a.name for a in node.target._schema.arguments]
            args = tuple(
                type(x)(map(symbol, x)) if name in sizes and x is not None else x
                for name, x in zip(names, args)
            )
        nodes[node] = replace(node, args=args, kwargs=kwargs, spec=specs(node.spec), source=None)
        made.nodes.append(nodes[node])
    return made


def is_sizes(op, name):
    return re.search(rf"SymInt\[\d*\]\?? {name}\b", str(op._schema)) is not None


def specs(spec):
    if isinstance(spec, (tuple, list)):
        return type(spec)(map(specs, spec))
    if not isinstance(spec, TensorSpec):
        return spec
    shape = tuple(map(symbol, spec.shape))
    dense = spec.stride == contiguous_stride(spec.shape)
    return replace(spec, shape=shape, stride=contiguous_stride(shape) if dense else spec.stride)


def graphs(op):
    """(graph, real tensors) of the first samples."""
    for sample in islice(op.sample_inputs("cpu", torch.float32), SAMPLES):
        leaves, tree = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def f(*tensors, leaves=leaves, tree=tree, places=places):
            given = list(leaves)
            for k, tensor in zip(places, tensors):
                given[k] = tensor
            first, args, kwargs = pytree.tree_unflatten(given, tree)
            return op(first, *args, **kwargs)

        try:
            graph, real = traced(f, *[leaves[k].detach() for k in places])
        except Exception:  # a trace breaks off where values are asked for, in many ways
            continue
        if any(row(node.target).lowering is not None for node in graph):
            yield graph, real


def results(program, weighed, real):
    torch.manual_seed(0)
    return run(fuse(program, weighed), [t.clone() for t in real])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(0, PARTS, 3))  # the sweep runs all
def test_samples(part):
    weighed, seen = costs(), Counter()
    chosen = [op for op in op_db if torch.float32 in op.dtypes and not LEFT_OUT.match(op.name)]
    for op in chosen[part::PARTS]:
        for graph, real in graphs(op):
            values = {symbol(n): n for node in graph for n in sizes_of(node) if n > 1}
            expected = results(lower(graph, weighed), weighed, real)
            try:
                program = lower(with_symbols(graph), weighed)
            except NeedsFixedSize:
                seen["fixed"] += 1
                continue
            seen["symbols"] += 1
            for mine, theirs in zip(
                results(program_at(program, values), weighed, real), expected, strict=True
            ):
                torch.testing.assert_close(
                    mine, theirs, equal_nan=True, msg=lambda m, op=op: f"{op.name}: {m}"
                )
    assert seen["symbols"] > 30 and seen["symbols"] > 10 * seen["fixed"], seen


def sizes_of(node: Node):
    """The sizes of what a node gives, and those among its arguments."""
    found = node.spec if isinstance(node.spec, (tuple, list)) else [node.spec]
    yield from (n for spec in found if isinstance(spec, TensorSpec) for n in spec.shape)
    for argument in node.args:
        if isinstance(argument, (tuple, list)):
            yield from (n for n in argument if type(n) is int)
