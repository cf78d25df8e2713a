"""Products whose rows do not begin at multiples of 16 bytes, rewritten to larger matrices whose rows do.

A GPU's tensor cores load 16 bytes at a time: if rows of an operand or of the result have another size (a vocabulary of
50257 in half precision), cuBLAS uses kernels that take several times as long. Sizes along which memory is contiguous
are therefore rounded up:

    mm(A, B)   ->   clone(mm(pad(A), pad(B))[:m, :n])

The padding is zero, along the sum for both operands: 0 * 0 changes no sum, whatever else the matrices hold. Padding a
value that a kernel computes for the product (the cast of a weight, the gradient of logits) is free, as the kernel
writes to the larger matrix; so is the clone if kernels read the result. Otherwise each is a copy, which the rule
(`_pays`) weighs, for likely values of symbolic sizes. Symbolic sizes are not rounded up themselves: a product is
aligned only for concrete sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from smelt.cost_model import AlignmentCosts, Costs
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes
from smelt.graph.operator_effects import effects
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import row
from smelt.rewrites.graph_rewriter import GraphRewriter
from smelt.rewrites.patterns import Call, Capture, Match, Rule, Where, apply_first
from smelt.shapes.expr import Size, contiguous_stride, likely
from smelt.torch_private import OpOverload

aten = torch.ops.aten

PRODUCTS = frozenset({aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default})

Sizes = dict[int, Size]  # dimension, counted from the last one (-1) -> the rounded size


@dataclass(frozen=True)
class Aligned:
    """`graph` with aligned products. `wider`: outputs, by position, that the graph replaces by the larger matrix of a
    product, with the nodes that compute the output from it, in order; the first one reads the matrix."""

    graph: Graph
    wider: dict[int, tuple[Node, ...]]


def align_products(graph: Graph, costs: Costs, first_saved: int | None = None) -> Aligned:
    """`graph` (aten level) with products aligned where that is profitable; the same object if there are none.
    `first_saved`: outputs from this index on may be larger matrices (`Aligned.wider`), which needs no copy."""
    if costs.alignment is None:
        return Aligned(graph, {})
    return _Aligner(graph, costs, costs.alignment, first_saved).run()


@dataclass(frozen=True)
class _Call:
    """A product with rounded sizes. `operands`: A, B, and the addend if there is one, each with its changed sizes;
    `of_result`: the changed sizes of the result."""

    node: Node
    operands: list[tuple[Node, Sizes]]
    of_result: Sizes


class _Aligner(GraphRewriter):
    def __init__(self, graph: Graph, costs: Costs, limits: AlignmentCosts, first_saved: int | None) -> None:
        super().__init__(graph, "aligned")
        self.costs, self.limits = costs, limits
        outputs = graph.output.args[0]
        self.first_saved = len(outputs) if first_saved is None else first_saved
        self.returned = set(outputs[: self.first_saved])  # in their original form
        self.padded: dict[tuple[Node, tuple[tuple[int, Size], ...]], Node] = {}
        self.cut: dict[Node, tuple[Node, ...]] = {}  # product -> the nodes that cut it off the larger matrix

    def run(self) -> Aligned:
        if not any(map(self._paying, self.original)):
            return Aligned(self.original, {})
        for node in self.original.nodes[:-1]:
            if (call := self._paying(self.at(node))) is not None:
                self.env[node] = self._aligned(call)
            else:
                self.copy(node)
        wider = self._wider()
        outputs = [n if n is None else self.env[n] for n in self.original.output.args[0]]
        for position, (first, *_) in wider.items():
            outputs[position] = first.args[0]
        specs = tuple(None if n is None else n.spec for n in outputs)
        self.write(self.original.output, args=(tuple(outputs),), spec=specs)
        return Aligned(self.finish().graph, wider)

    def _wider(self) -> dict[int, tuple[Node, ...]]:
        """`Aligned.wider`: outputs that may be larger matrices and then need no copy."""
        wider = {}
        for position, value in enumerate(self.original.output.args[0]):
            product, views = self._viewed(value) if value is not None else (None, ())
            if position >= self.first_saved and product in self.cut and self._is_read_by_kernels(product):
                wider[position] = (*self.cut[product], *map(self.env.__getitem__, views))
        return wider

    def _viewed(self, value: Node) -> tuple[Node, tuple[Node, ...]]:
        """The base of an output and the chain of views to it, which have no other tensor operands."""
        views: list[Node] = []
        while is_view(value) and list(argument_nodes(value)) == [value.args[0]]:
            views.append(value)
            value = value.args[0]
        return value, tuple(reversed(views))

    # ---- profit

    def _paying(self, node: Node) -> _Call | None:
        """The node as a product whose alignment is profitable, or None."""
        call = apply_first(_RULES, node, self.limits)
        return call if call is not None and self._pays(call) else None

    def _pays(self, call: _Call) -> bool:
        """Whether the copies take less time than the product gains. A product takes the time of its multiplications,
        or of its memory traffic if that is more, in which case alignment gains nothing."""
        operands = [x for x, _ in call.operands]
        sizes: tuple[Size, ...] = (*call.node.spec.shape, operands[0].spec.shape[-1])
        multiplications = math.prod(map(likely, sizes))
        memory = sum(map(nbytes, (call.node, *operands))) * self.limits.byte
        unaligned = max(multiplications * self.limits.unaligned, memory)
        aligned = max(multiplications * self.limits.aligned, memory)
        copies = [x for x, sizes in call.operands if self._is_copied(x, sizes)]
        if call.of_result and not self._is_read_by_kernels(call.node):
            copies.append(call.node)
        cost = sum(2 * nbytes(x) * self.limits.byte + self.costs.launch for x in copies)
        return unaligned - aligned > cost

    def _is_copied(self, operand: Node, sizes: Sizes) -> bool:
        """Whether padding the operand needs a copy: not if an elementwise kernel computes it for products alone, or if
        it is already padded."""
        root, sizes = self._root(operand, sizes)
        if not sizes or (root, tuple(sizes.items())) in self.padded:
            return False
        while True:
            if not all(self._is_product(user) for user in self.users[root]):
                return True
            if not is_view(root):
                return not _is_elementwise(root)
            root = root.args[0]

    def _is_product(self, user: Node) -> bool:
        """Whether a node is a product, or a view that only products read."""
        return user.target in PRODUCTS or (is_view(user) and all(map(self._is_product, self.users[user])))

    def _is_read_by_kernels(self, node: Node) -> bool:
        """Whether no reader needs the original form in memory; an output that may not be `wider` does."""

        def is_kernel(user: Node) -> bool:
            if user.op == "output":
                return node not in self.returned
            if is_view(user):
                return self._is_read_by_kernels(user)
            return user.target not in PRODUCTS and row(user.target).lowering is not None

        return all(map(is_kernel, self.users[node]))

    # ---- what is written instead

    def _aligned(self, call: _Call) -> Node:
        """Emit the larger product; the node with the original product's value, in its layout."""
        node = call.node
        a, b, *added = (self._padded(operand, sizes) for operand, sizes in call.operands)
        spec = _dense(_resized(node.spec, call.of_result), range(len(node.spec.shape)))
        result = self.emit(node.target, (*added, a, b), node.kwargs, spec, f"{node.name}_aligned")
        if not call.of_result:
            return self.rename(result, node.name)
        begin = len(self.nodes)
        for d in call.of_result:
            size = node.spec.shape[d]
            view_spec = replace(result.spec, shape=_resized(result.spec, {d: size}).shape)
            dim = d + len(view_spec.shape)
            result = self.emit(aten.slice.Tensor, (result, dim, 0, size), {}, view_spec, f"{node.name}_seen")
        copy = {"memory_format": torch.contiguous_format}
        result = self.rename(self.emit(aten.clone.default, (result,), copy, node.spec), node.name)
        self.cut[node] = tuple(self.nodes[begin:])
        return result

    def _padded(self, operand: Node, sizes: Sizes) -> Node:
        """The operand padded with zeros, its dimensions in their memory order."""
        root, sizes = self._root(operand, sizes)
        if not sizes:
            return self.env[operand]
        key = root, tuple(sizes.items())
        if key not in self.padded:
            spec = _resized(root.spec, sizes)
            padding = [spec.shape[d] - root.spec.shape[d] for d in range(-1, -1 - len(spec.shape), -1)]
            amounts = [n for pad in padding[: max(-d for d in sizes)] for n in (0, pad)]
            args, dense = (self.env[root], amounts, 0), _dense(spec, _order(root.spec))
            self.padded[key] = self.emit(aten.constant_pad_nd.default, args, {}, dense, f"{root.name}_padded")
        return self._with_views(operand, root, self.padded[key])

    def _with_views(self, operand: Node, root: Node, padded: Node) -> Node:
        """`padded`, which replaces `root`, transposed like `operand`."""
        if operand is root:
            return padded
        source = self._with_views(operand.args[0], root, padded)
        shape, stride = (_transposed(x) for x in (source.spec.shape, source.spec.stride))
        view_spec = replace(source.spec, shape=shape, stride=stride)
        args = source, len(shape) - 2, len(shape) - 1
        return self.emit(aten.transpose.int, args, {}, view_spec, f"{operand.name}_padded")

    def _root(self, operand: Node, sizes: Sizes) -> tuple[Node, Sizes]:
        """The matrix of which `operand` is the transpose, if it is one, and its sizes: a matrix and its transpose are
        padded once."""
        while match := TRANSPOSE.first(operand):
            operand = match["x"]
            sizes = dict(sorted((-3 - d, size) for d, size in sizes.items()))
        return operand, sizes


# ---- patterns


def _is_transposed(match: Match) -> bool:
    source, spec = match["x"].spec, match["node"].spec
    transposed = _transposed(source.shape), _transposed(source.stride)
    return len(spec.shape) >= 2 and (spec.shape, spec.stride) == transposed


def _is_of_tensor_cores(match: Match) -> bool:
    """The product is of dense matrices on a GPU, of one dtype that its tensor cores multiply, and not empty."""
    spec = match["node"].spec
    specs = [spec, *(x.spec for x in match["node"].args)]
    if any(s.device.type == "cpu" or s.dtype is not spec.dtype or 0 in s.shape for s in specs):
        return False
    return spec.dtype in match.facts.dtypes and spec.stride == contiguous_stride(spec.shape)


def _call(match: Match) -> _Call | None:
    """The product with the sizes along which memory is contiguous rounded up; None if there are none to round."""
    node, limits = match["node"], match.facts
    a, b, *added = operands_of(node)
    multiple = limits.nbytes // node.spec.dtype.itemsize
    sizes = {"m": a.spec.shape[-2], "k": a.spec.shape[-1], "n": b.spec.shape[-1]}
    for name in {"n", "k" if _is_by_rows(a.spec) else "m", "n" if _is_by_rows(b.spec) else "k"}:
        size = sizes[name]
        if not isinstance(size, int):
            return None
        sizes[name] = -(-size // multiple) * multiple
    m, k, n = sizes.values()
    of_a, of_b, of_result = _changes(a, m, k), _changes(b, k, n), _changes(node, m, n)
    operands = [(a, of_a), (b, of_b), *((x, _of_addend(x, node, of_result)) for x in added)]
    return _Call(node, operands, of_result) if of_a or of_b else None


def _changes(node: Node, rows: Size, columns: Size) -> Sizes:
    return {d: size for d, size in ((-2, rows), (-1, columns)) if node.spec.shape[d] != size}


def _of_addend(addend: Node, product: Node, of_result: Sizes) -> Sizes:
    """The changed sizes of an addend, which may be broadcast."""
    shape, result = (1, 1, *addend.spec.shape), product.spec.shape
    return {d: size for d, size in of_result.items() if shape[d] == result[d] != 1}


# A matrix, or a batch of them, with rows and columns exchanged.
_PERMUTATIONS = aten.t.default, aten.transpose.int, aten.permute.default
TRANSPOSE = Where(Call(_PERMUTATIONS, Capture("x")), _is_transposed)
_RULES = (Rule(Where(Call(PRODUCTS), _is_of_tensor_cores), _call),)


def operands_of(product: Node) -> list[Node]:
    """A, B, and the addend if there is one."""
    *added, a, b = product.args
    return [a, b, *added]


def _transposed(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*sizes[:-2], sizes[-1], sizes[-2])


def _is_by_rows(spec: TensorSpec) -> bool:
    """Whether the rows of a matrix are contiguous, or will be: ATen copies matrices that are contiguous along neither
    dimension."""
    return spec.stride[-1] == 1 or spec.stride[-2] != 1


def _resized(spec: TensorSpec, sizes: Sizes) -> TensorSpec:
    shape = list(spec.shape)
    for d, size in sizes.items():
        shape[d] = size
    return replace(spec, shape=tuple(shape))


def _order(spec: TensorSpec) -> list[int]:
    """Dimensions from the outermost in memory to the innermost, which is one of the last two for operands."""
    rank = len(spec.shape)
    order = sorted(range(rank), key=lambda d: (spec.stride[d] != 0, -likely(spec.stride[d])))
    return order if order[-1] >= rank - 2 else list(range(rank))


def _dense(spec: TensorSpec, order: Any) -> TensorSpec:
    """The spec of a dense tensor with the dimension order `order` in memory."""
    stride: list[Size] = [0] * len(spec.shape)
    step: Size = 1
    for d in reversed(list(order)):
        stride[d], step = step, step * spec.shape[d]
    return replace(spec, stride=tuple(stride), offset=0, requires_grad=False)


def nbytes(node: Node) -> int:
    """The size in bytes, for likely sizes."""
    return math.prod(map(likely, node.spec.shape)) * node.spec.dtype.itemsize


def is_view(node: Node) -> bool:
    """Whether the node is a view of its first argument."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    return effects(node.target).view or row(node.target).recompute is Class.VIEW


def _is_elementwise(node: Node) -> bool:
    """Whether one kernel computes the node from its operands alone."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    operator = row(node.target)
    pointwise = torch.Tag.pointwise in node.target.tags or operator.recompute in (
        Class.POINTWISE,
        Class.TRANSCENDENTAL,
    )
    return operator.lowering is not None and pointwise
