"""Large products whose result is only copied in part: computed in chunks.

An aligned product (`rewrites/aligned_gemm.py`) gives a larger matrix, part of which is copied for the caller: both are
in memory at once. So the product is computed in chunks along its first dimension, rows or matrices of a batch, and
each chunk is copied to its destination before the next:

    clone(mm(A, B)[:m, :n])   ->   out = empty(m, n); out[:r] = mm(A[:r], B)[:, :n]; out[r : 2 * r] = ...

(functional: `slice_scatter`, which `ops/donated_inputs.py` allows to write in place). Only if the copy must be in
memory: kernels read elements of the larger matrix without a copy.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from smelt.cost_model import AlignmentCosts, Costs
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes, free_name, map_nodes
from smelt.ops.registry import row
from smelt.rewrites.aligned_gemm import PRODUCTS, is_view, nbytes
from smelt.shapes.expr import Size, bounds, contiguous_stride, likely, static
from smelt.torch_private import OpOverload

aten = torch.ops.aten


Users = Mapping[Node, set[Node]]


def in_chunks(graph: Graph, costs: Costs) -> Graph:
    """`graph` (aten level) with products chunked where that is profitable; the same object if there are none."""
    if costs.alignment is None:
        return graph
    users: dict[Node, set[Node]] = defaultdict(set)
    for node in graph:
        for argument in argument_nodes(node):
            users[argument].add(node)
    chunks: dict[
        Node, tuple[_CopiedProduct, list[Size]]
    ] = {}  # copy -> its product, and the ends of its chunks
    for node in graph:
        copied = _copied_product(node, users)
        ends = None if copied is None else _ends(copied, costs.alignment)
        if copied is not None and ends is not None:
            chunks[node] = copied, ends
    return _Rewriter(graph, chunks).run() if chunks else graph


@dataclass(frozen=True)
class _CopiedProduct:
    """A product, a chain of `slices` of it, all from the first element on, and `clone`, the copy of the last slice.
    None of them has another reader."""

    product: Node
    slices: tuple[Node, ...]
    clone: Node

    @property
    def operands(self) -> list[tuple[int, Node, bool]]:
        """(position, operand, whether a chunk needs only a chunk of it) of each operand."""
        rank = len(self.product.spec.shape)
        position_of_a, position_of_b, *position_of_addend = PRODUCTS[self.product.target]
        found = [(position_of_a, True), (position_of_b, rank == 3)]
        for position in position_of_addend:
            shape = self.product.args[position].spec.shape
            found.append((position, len(shape) == rank and shape[0] != 1))
        return [(position, self.product.args[position], cut) for position, cut in found]


def _copied_product(clone: Node, users: Users) -> _CopiedProduct | None:
    """The product that the node copies, if its copy must be in memory."""
    if clone.target is not aten.clone.default or not _is_in_memory(clone, users):
        return None
    if clone.spec.stride != contiguous_stride(clone.spec.shape):
        return None
    slices: list[Node] = []
    node: Node = clone.args[0]
    while node.target is aten.slice.Tensor and users[node] == {slices[0] if slices else clone}:
        if len(node.args) != 4 or node.args[2] != 0:
            return None
        slices.insert(0, node)
        node = node.args[0]
    if node.target not in PRODUCTS or not slices or users[node] != {slices[0]}:
        return None
    found = _CopiedProduct(node, tuple(slices), clone)
    by_rows = node.spec.stride == contiguous_stride(node.spec.shape)
    return found if by_rows and _is_cut_where_symbolic(found) else None


def _is_cut_where_symbolic(copied: _CopiedProduct) -> bool:
    """Whether no size is 0, and only the chunked dimension may be symbolic, if it is copied in full."""
    rows, shapes = copied.product.spec.shape[0], [x.spec.shape for x in (copied.product, copied.clone)]
    shapes += [x.spec.shape for _, x, cut in copied.operands if cut]
    others = [n for shape in shapes for n in shape[1:]]
    others += [n for _, x, cut in copied.operands if not cut for n in x.spec.shape]
    if not all(isinstance(n, int) and n > 0 for n in others):
        return False
    if isinstance(rows, int):
        return all(isinstance(shape[0], int) and shape[0] > 0 for shape in shapes)
    return all(shape[0] == rows for shape in shapes)


def _is_in_memory(node: Node, users: Users) -> bool:
    """Whether the node has readers, and all of them read its memory: no kernel, which would read the larger matrix."""
    return bool(users[node]) and all(
        user.op == "output"
        or (_is_in_memory(user, users) if is_view(user) else _is_call(user) and user.target not in PRODUCTS)
        for user in users[node]
    )


def _is_call(user: Node) -> bool:
    """Whether the node is an ATen call. A copy to an input is a kernel."""
    return user.target is not aten.copy_.default and row(user.target).lowering is None


def _ends(copied: _CopiedProduct, limits: AlignmentCosts) -> list[Size] | None:
    """The ends of the chunks along the first dimension. As many chunks as possible, provided that each is bound by its
    multiplications and not by its memory traffic: operands that are not cut are read again for each chunk. None for a
    single one."""
    rows, *rest = copied.product.spec.shape
    total = likely(rows)
    step = limits.chunk_rows if len(rest) == 1 and isinstance(rows, int) else 1
    multiplications = (
        math.prod(map(static, rest)) * static(copied.operands[0][1].spec.shape[-1]) * limits.aligned
    )
    reread = sum(nbytes(x) for _, x, cut in copied.operands if not cut)
    per_row = nbytes(copied.product) / total + sum(nbytes(x) / total for _, x, cut in copied.operands if cut)
    most = min(limits.chunks, nbytes(copied.product) // limits.chunk_bytes, bounds(rows)[0])
    for count in range(most, 1, -1):
        size: int = -(-total // count // step) * step
        memory = (size * per_row + reread) * limits.byte
        if size < total and (not reread or size * multiplications >= memory):
            if isinstance(rows, int):  # some rows of the last chunk may not be copied
                begins = range(0, static(copied.clone.spec.shape[0]), size)
                return [min(begin + size, rows) for begin in begins]
            return [*(rows // count * n for n in range(1, count)), rows]
    return None


class _Rewriter:
    def __init__(self, graph: Graph, chunks: Mapping[Node, tuple[_CopiedProduct, list[Size]]]) -> None:
        self.graph, self.chunks = graph, chunks
        self.removed = {n for copied, _ in chunks.values() for n in (copied.product, *copied.slices)}
        self.names = {node.name for node in graph}
        self.nodes: list[Node] = []
        self.env: dict[Node, Node] = {}

    def run(self) -> Graph:
        for node in self.graph:
            if node in self.chunks:
                self.env[node] = self.copied_by_chunks(*self.chunks[node])
            elif node not in self.removed:
                args, kwargs = (map_nodes(x, self.env.__getitem__) for x in (node.args, node.kwargs))
                self.env[node] = replace(node, args=args, kwargs=kwargs)
                self.nodes.append(self.env[node])
        result_graph = Graph(self.graph.level)
        result_graph.nodes, result_graph.constants = self.nodes, dict(self.graph.constants)
        return result_graph

    def copied_by_chunks(self, copied: _CopiedProduct, ends: Sequence[Size]) -> Node:
        """Emit the chunks; the node with the finished copy."""
        spec = replace(copied.clone.spec, offset=0)
        options = {"dtype": spec.dtype, "device": spec.device}
        result = self.node(copied, aten.empty.memory_format, (list(spec.shape),), "memory", spec, options)
        begin: Size = 0
        for end in ends:
            chunk = self.chunk(copied, begin, end)
            position = 0, begin, begin + chunk.spec.shape[0]
            result = self.node(copied, aten.slice_scatter.default, (result, chunk, *position), "filled", spec)
            begin = end
        result.name = copied.clone.name
        return result

    def chunk(self, copied: _CopiedProduct, begin: Size, end: Size) -> Node:
        """Emit the product from `begin` to `end` along its first dimension; the part of it that is copied."""
        product = copied.product
        args = list(product.args)
        for position, operand, cut in copied.operands:
            args[position] = self.env[operand]
            if cut:
                args[position] = self.slice(copied, args[position], 0, begin, end)
        spec = replace(product.spec, shape=(end - begin, *product.spec.shape[1:]))
        result = self.node(copied, product.target, tuple(args), "piece", spec, product.kwargs)
        for node in copied.slices:
            dim = node.args[1] % len(spec.shape)
            last = node.spec.shape[dim]
            if dim == 0:  # a constant number of rows, as symbolic ones are not rounded up
                last = min(static(last), static(end)) - static(begin)
            result = self.slice(copied, result, dim, 0, last)
        return result

    def slice(self, copied: _CopiedProduct, x: Node, dim: int, begin: Size, end: Size) -> Node:
        shape = (*x.spec.shape[:dim], end - begin, *x.spec.shape[dim + 1 :])
        offset = x.spec.offset + begin * x.spec.stride[dim]
        spec = replace(x.spec, shape=shape, offset=offset)
        return self.node(copied, aten.slice.Tensor, (x, dim, begin, end), "part", spec)

    def node(
        self,
        copied: _CopiedProduct,
        op: OpOverload,
        args: tuple[Any, ...],
        name: str,
        spec: TensorSpec,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Node:
        like = copied.clone
        unique = free_name(f"{like.name}_{name}", self.names)
        spec = replace(spec, requires_grad=False)
        node = Node("call_function", op, args, dict(kwargs or {}), unique, spec, like.line, like.source)
        self.nodes.append(node)
        return node
