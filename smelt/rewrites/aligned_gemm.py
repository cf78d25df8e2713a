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
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import torch

from smelt.cost_model import AlignmentCosts, Costs
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes, free_name, map_nodes
from smelt.graph.operator_effects import effects
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import row
from smelt.shapes.expr import Size, contiguous_stride, likely
from smelt.torch_private import OpOverload

aten = torch.ops.aten

# Positions of A, B and the addend.
PRODUCTS: dict[Any, tuple[int, ...]] = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2, 0),
    aten.baddbmm.default: (1, 2, 0),
}
_TRANSPOSES = frozenset({aten.t.default, aten.transpose.int, aten.permute.default})

Sizes = dict[int, Size]  # dimension, counted from the last one (-1) -> the rounded size


@dataclass(frozen=True)
class Aligned:
    """`graph` with aligned products.

    Attributes:
        wider: outputs, by position, that the graph replaces by the larger matrix of a product, with the nodes that
            compute
            the output from it, in order; the first one reads the matrix.
    """

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
    """A product: its operands, [..., m, k] and [..., k, n], and the new values of m, k and n."""

    node: Node
    a: Node
    b: Node
    added: Node | None
    m: Size
    k: Size
    n: Size

    @property
    def of_a(self) -> Sizes:
        """The changed sizes of A."""
        return _changes(self.a.spec, self.m, self.k)

    @property
    def of_b(self) -> Sizes:
        """The changed sizes of B."""
        return _changes(self.b.spec, self.k, self.n)

    @property
    def of_added(self) -> Sizes:
        """The changed sizes of the addend, which may be broadcast."""
        if self.added is None:
            return {}
        shape, result = (1, 1, *self.added.spec.shape), self.node.spec.shape
        return {d: size for d, size in self.of_result.items() if shape[d] == result[d] != 1}

    def operands(self) -> list[tuple[Node, Sizes]]:
        """All operands with their changed sizes."""
        added = [] if self.added is None else [(self.added, self.of_added)]
        return [(self.a, self.of_a), (self.b, self.of_b), *added]

    @property
    def of_result(self) -> Sizes:
        """The changed sizes of the result."""
        return _changes(self.node.spec, self.m, self.n)


def _changes(spec: TensorSpec, rows: Size, columns: Size) -> Sizes:
    return {d: size for d, size in ((-2, rows), (-1, columns)) if spec.shape[d] != size}


class _Aligner:
    def __init__(self, graph: Graph, costs: Costs, limits: AlignmentCosts, first_saved: int | None) -> None:
        self.graph, self.costs, self.limits = graph, costs, limits
        outputs = graph.output.args[0]
        self.first_saved = len(outputs) if first_saved is None else first_saved
        self.returned = set(outputs[: self.first_saved])  # in their original form
        self.users: dict[Node, set[Node]] = defaultdict(set)
        for node in graph:
            for argument in argument_nodes(node):
                self.users[argument].add(node)
        self.names = {node.name for node in graph}
        self.env: dict[Node, Node] = {}  # node of `graph` -> the node that has its value
        self.padded: dict[tuple[Node, tuple[tuple[int, Size], ...]], Node] = {}
        self.nodes: list[Node] = []
        self.cut: dict[
            Node, tuple[Node, ...]
        ] = {}  # product -> the nodes that compute its value from the larger matrix

    def run(self) -> Aligned:
        if not any(map(self._paying, self.graph)):
            return Aligned(self.graph, {})
        for node in self.graph.nodes[:-1]:
            if (call := self._paying(node)) is not None:
                self.env[node] = self._aligned(call)
            else:
                self._copied(node)
        self._copied(self.graph.output)
        wider = self._give_wider(self.nodes[-1])
        result_graph = Graph(self.graph.level)
        result_graph.nodes, result_graph.constants = self.nodes, dict(self.graph.constants)
        return Aligned(result_graph, wider)

    def _copied(self, node: Node) -> None:
        args, kwargs = (map_nodes(x, self.env.__getitem__) for x in (node.args, node.kwargs))
        self.env[node] = replace(node, args=args, kwargs=kwargs)
        self.nodes.append(self.env[node])

    def _give_wider(self, output: Node) -> dict[int, tuple[Node, ...]]:
        """Replace outputs that may be larger matrices and then need no copy."""
        outputs: list[Node | None] = list(output.args[0])
        wider = {}
        for position in range(self.first_saved, len(outputs)):
            value = self.graph.output.args[0][position]
            product, views = self._viewed(value) if value is not None else (None, ())
            if product in self.cut and self._is_read_by_kernels(product):
                wider[position] = (*self.cut[product], *map(self.env.__getitem__, views))
                outputs[position] = wider[position][0].args[0]
        specs = tuple(None if n is None else n.spec for n in outputs)
        self.nodes[-1] = replace(output, args=(tuple(outputs),), spec=specs)
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
        call = _call(node, self.limits)
        return call if call is not None and self._pays(call) else None

    def _pays(self, call: _Call) -> bool:
        """Whether the copies take less time than the product gains. A product takes the time of its multiplications,
        or of its memory traffic if that is more, in which case alignment gains nothing."""
        operands = [x for x, _ in call.operands()]
        multiplications = math.prod(map(likely, (*call.node.spec.shape, call.a.spec.shape[-1])))
        memory = sum(map(nbytes, (call.node, *operands))) * self.limits.byte
        unaligned = max(multiplications * self.limits.unaligned, memory)
        aligned = max(multiplications * self.limits.aligned, memory)
        copies = [x for x, sizes in call.operands() if self._is_copied(x, sizes)]
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
        args = list(node.args)
        for position, (operand, sizes) in zip(PRODUCTS[node.target], call.operands(), strict=True):
            args[position] = self._padded(operand, sizes, node)
        spec = _dense(_resized(node.spec, call.of_result), range(len(node.spec.shape)))
        result = self._node(node.target, tuple(args), f"{node.name}_aligned", spec, node, node.kwargs)
        begin = len(self.nodes)
        for d in call.of_result:
            size = node.spec.shape[d]
            view_spec = replace(result.spec, shape=_resized(result.spec, {d: size}).shape)
            dim = d + len(view_spec.shape)
            result = self._node(
                aten.slice.Tensor, (result, dim, 0, size), f"{node.name}_seen", view_spec, node
            )
        if not call.of_result:
            result.name = node.name
            return result
        copy = {"memory_format": torch.contiguous_format}
        result = self._node(aten.clone.default, (result,), node.name, node.spec, node, copy)
        self.cut[node] = tuple(self.nodes[begin:])
        return result

    def _padded(self, operand: Node, sizes: Sizes, like: Node) -> Node:
        """The operand padded with zeros, its dimensions in their memory order."""
        root, sizes = self._root(operand, sizes)
        if not sizes:
            return self.env[operand]
        key = root, tuple(sizes.items())
        if key not in self.padded:
            spec = _resized(root.spec, sizes)
            padding = [spec.shape[d] - root.spec.shape[d] for d in range(-1, -1 - len(spec.shape), -1)]
            amounts = [n for pad in padding[: max(-d for d in sizes)] for n in (0, pad)]
            self.padded[key] = self._node(
                aten.constant_pad_nd.default,
                (self.env[root], amounts, 0),
                f"{root.name}_padded",
                _dense(spec, _order(root.spec)),
                like,
            )
        return self._with_views(operand, root, self.padded[key], like)

    def _with_views(self, operand: Node, root: Node, padded: Node, like: Node) -> Node:
        """`padded`, which replaces `root`, transposed like `operand`."""
        if operand is root:
            return padded
        source = self._with_views(operand.args[0], root, padded, like)
        shape, stride = (_transposed(x) for x in (source.spec.shape, source.spec.stride))
        view_spec = replace(source.spec, shape=shape, stride=stride)
        dims = len(shape) - 2, len(shape) - 1
        return self._node(aten.transpose.int, (source, *dims), f"{operand.name}_padded", view_spec, like)

    def _root(self, operand: Node, sizes: Sizes) -> tuple[Node, Sizes]:
        """The matrix of which `operand` is the transpose, if it is one, and its sizes: a matrix and its transpose are
        padded once."""
        while _is_transpose(operand):
            operand = operand.args[0]
            sizes = dict(sorted((-3 - d, size) for d, size in sizes.items()))
        return operand, sizes

    def _node(
        self,
        op: OpOverload,
        args: tuple[Any, ...],
        name: str,
        spec: TensorSpec,
        like: Node,
        kwargs: dict[str, Any] | None = None,
    ) -> Node:
        unique = name if name == like.name else free_name(name, self.names)
        node = Node("call_function", op, args, kwargs or {}, unique, spec, like.line, like.source)
        self.nodes.append(node)
        return node


def _call(node: Node, limits: AlignmentCosts) -> _Call | None:
    """The node as a product with sizes to align; None otherwise."""
    positions = PRODUCTS.get(node.target)
    if positions is None:
        return None
    a, b, *added = (node.args[position] for position in positions)
    specs: list[TensorSpec] = [x.spec for x in (node, a, b, *added)]
    if any(s.device.type == "cpu" or s.dtype is not node.spec.dtype or 0 in s.shape for s in specs):
        return None
    if node.spec.dtype not in limits.dtypes or node.spec.stride != contiguous_stride(node.spec.shape):
        return None
    multiple = limits.nbytes // node.spec.dtype.itemsize
    sizes = {"m": a.spec.shape[-2], "k": a.spec.shape[-1], "n": b.spec.shape[-1]}
    for name in {"n", "k" if _is_by_rows(a.spec) else "m", "n" if _is_by_rows(b.spec) else "k"}:
        size = sizes[name]
        if not isinstance(size, int):
            return None
        sizes[name] = -(-size // multiple) * multiple
    call = _Call(node, a, b, added[0] if added else None, **sizes)
    return call if call.of_a or call.of_b else None


def _is_transpose(node: Node) -> bool:
    """Whether the node is a view of a matrix, or a batch of them, with rows and columns exchanged."""
    if node.target not in _TRANSPOSES:
        return False
    source, spec = node.args[0].spec, node.spec
    return len(spec.shape) >= 2 and (spec.shape, spec.stride) == (
        _transposed(source.shape),
        _transposed(source.stride),
    )


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
