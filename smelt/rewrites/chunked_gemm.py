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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from smelt.cost_model import AlignmentCosts, Costs
from smelt.graph.ir import Graph, Node
from smelt.ops.registry import row
from smelt.rewrites.aligned_gemm import PRODUCTS, is_view, nbytes, operands_of
from smelt.rewrites.graph_rewriter import GraphRewriter
from smelt.rewrites.patterns import Call, Capture, Match, Rule, Through, Where, apply_first
from smelt.shapes.expr import Size, bounds, contiguous_stride, likely, static

aten = torch.ops.aten


Users = Mapping[Node, Sequence[Node]]


def in_chunks(graph: Graph, costs: Costs) -> Graph:
    """`graph` (aten level) with products chunked where that is profitable; the same object if there are none."""
    if costs.alignment is None:
        return graph
    rewriter = _Rewriter(graph, "part")  # its `users` are facts that few graphs need
    copied = [found for node in graph if (found := apply_first(_RULES, node, rewriter)) is not None]
    ends = {c: _ends(c, costs.alignment) for c in copied if _is_cut_where_symbolic(c)}
    chunks = {c.clone: (c, at) for c, at in ends.items() if at is not None}
    return rewriter.run(chunks) if chunks else graph


@dataclass(frozen=True)
class _CopiedProduct:
    """A product, a chain of `slices` of it, all from the first element on, and `clone`, the copy of the last slice.
    None of them has another reader."""

    product: Node
    slices: tuple[Node, ...]
    clone: Node

    @property
    def operands(self) -> list[tuple[Node, bool]]:
        """Each operand, and whether a chunk needs only a chunk of it."""
        rank = len(self.product.spec.shape)
        a, b, *added = operands_of(self.product)
        cut = (len(x.spec.shape) == rank and x.spec.shape[0] != 1 for x in added)
        return [(a, True), (b, rank == 3), *zip(added, cut)]


def _is_read_once_without_steps(match: Match) -> bool:
    return len(match["node"].args) == 4 and len(match.facts.users[match["node"]]) == 1


def _is_dense_copy_in_memory(match: Match) -> bool:
    product, copy = match["product"], match["node"]
    dense = all(n.spec.stride == contiguous_stride(n.spec.shape) for n in (product, copy))
    if not dense or not match["slices"]:
        return False
    users = match.facts.users
    return len(users[product]) == 1 and _is_in_memory(copy, users)


def _is_cut_where_symbolic(copied: _CopiedProduct) -> bool:
    """Whether no size is 0, and only the chunked dimension may be symbolic, if it is copied in full."""
    rows, shapes = copied.product.spec.shape[0], [x.spec.shape for x in (copied.product, copied.clone)]
    shapes += [x.spec.shape for x, cut in copied.operands if cut]
    others = [n for shape in shapes for n in shape[1:]]
    others += [n for x, cut in copied.operands if not cut for n in x.spec.shape]
    if not all(isinstance(n, int) and n > 0 for n in others):
        return False
    if isinstance(rows, int):
        return all(isinstance(shape[0], int) and shape[0] > 0 for shape in shapes)
    return all(shape[0] == rows for shape in shapes)


def _is_in_memory(node: Node, users: Users) -> bool:
    """Whether the node has readers, and all of them read its memory: no kernel, which would read the larger matrix. A copy
    to an input is a kernel."""

    def reads_memory(user: Node) -> bool:
        if user.op == "output" or is_view(user):
            return user.op == "output" or _is_in_memory(user, users)
        return user.target not in (*PRODUCTS, aten.copy_.default) and row(user.target).lowering is None

    return bool(users[node]) and all(map(reads_memory, users[node]))


def _ends(copied: _CopiedProduct, limits: AlignmentCosts) -> list[Size] | None:
    """The ends of the chunks along the first dimension. As many chunks as possible, provided that each is bound by its
    multiplications and not by its memory traffic: operands that are not cut are read once per chunk. None for a
    single one."""
    rows, *rest = copied.product.spec.shape
    total = likely(rows)
    step = limits.chunk_rows if len(rest) == 1 and isinstance(rows, int) else 1
    summed = copied.operands[0][0].spec.shape[-1]
    multiplications = math.prod(map(static, (*rest, summed))) * limits.aligned
    reread = sum(nbytes(x) for x, cut in copied.operands if not cut)
    per_row = nbytes(copied.product) / total + sum(nbytes(x) / total for x, cut in copied.operands if cut)
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


# The slices begin at the first element.
_SLICE = Where(Call(aten.slice.Tensor, Capture("x"), Capture(), 0, Capture()), _is_read_once_without_steps)
_PRODUCT = Call(PRODUCTS, name="product")
_COPY = Where(
    Call(aten.clone.default, Through((Rule(_SLICE, lambda m: m["node"]),), _PRODUCT, "slices")),
    _is_dense_copy_in_memory,
)
_RULES = (Rule(_COPY, lambda m: _CopiedProduct(m["product"], m["slices"], m["node"])),)


class _Rewriter(GraphRewriter):
    def run(self, chunks: Mapping[Node, tuple[_CopiedProduct, list[Size]]]) -> Graph:
        for node in self.original:
            if self.at(node) in chunks:
                self.env[node] = self.copied_by_chunks(*chunks[node])
            else:
                self.copy(node)
        return self.finish().graph

    def copied_by_chunks(self, copied: _CopiedProduct, ends: Sequence[Size]) -> Node:
        """Emit the chunks; the node with the finished copy."""
        name, spec = copied.clone.name, replace(copied.clone.spec, offset=0, requires_grad=False)
        options = {"dtype": spec.dtype, "device": spec.device}
        memory = aten.empty.memory_format, (list(spec.shape),), options, spec, f"{name}_memory"
        result = self.emit(*memory)
        begin: Size = 0
        for end in ends:
            chunk = self.chunk(copied, begin, end)
            args = result, chunk, 0, begin, begin + chunk.spec.shape[0]
            result = self.emit(aten.slice_scatter.default, args, {}, spec, f"{name}_filled")
            begin = end
        return self.rename(result, name)

    def chunk(self, copied: _CopiedProduct, begin: Size, end: Size) -> Node:
        """Emit the product from `begin` to `end` along its first dimension; the part of it that is copied."""
        product, name = copied.product, copied.clone.name
        read = [(self.env[x], cut) for x, cut in copied.operands]
        a, b, *added = (self.slice(x, 0, begin, end, name) if cut else x for x, cut in read)
        spec = replace(product.spec, shape=(end - begin, *product.spec.shape[1:]), requires_grad=False)
        result = self.emit(product.target, (*added, a, b), product.kwargs, spec, f"{name}_piece")
        for node in copied.slices:
            dim = node.args[1] % len(spec.shape)
            last = node.spec.shape[dim]
            if dim == 0:  # a constant number of rows, as symbolic ones are not rounded up
                last = min(static(last), static(end)) - static(begin)
            result = self.slice(result, dim, 0, last, name)
        return result

    def slice(self, x: Node, dim: int, begin: Size, end: Size, name: str) -> Node:
        shape = (*x.spec.shape[:dim], end - begin, *x.spec.shape[dim + 1 :])
        offset = x.spec.offset + begin * x.spec.stride[dim]
        spec = replace(x.spec, shape=shape, offset=offset, requires_grad=False)
        return self.emit(aten.slice.Tensor, (x, dim, begin, end), {}, spec, f"{name}_part")
