"""Channels-last layouts for images of half precision inside a graph: a pass over an aten graph that changes strides.

A GPU's tensor cores multiply rows of channels. For images in half precision in another layout, cuDNN makes
channels-last copies, of the weight as well, at every convolution, and converts the result back. `to_channels_last`
lays them out so from the beginning: the operands of a convolution are copied to channels-last unless they are so
already, its result is channels-last, and values computed from it keep the layout by eager's own rules (`result_spec`),
up to the next convolution. So there is no change of layout between two of them.

Outputs of the graph have the traced layout, and so do the operands of an operator that mutates memory, draws random
numbers (the layout determines which elements get which) or is not ATen's. Elements are the same everywhere.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from smelt.errors import NeedsFixedSize
from smelt.graph.graph_passes import memory_of_outputs
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes, free_name, map_nodes
from smelt.graph.memory_format import is_channels_last_layout, is_last, last_stride
from smelt.graph.operator_effects import effects
from smelt.ops.convolution_settings import Convolution
from smelt.ops.result_specs import result_spec
from smelt.shapes.expr import Expr, Size, contiguous_stride, likely
from smelt.torch_private import OpOverload

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
VECTOR = 8  # channels of half precision in a load of 16 bytes; cuDNN pads fewer with zeros
GROUPED = 2  # the weight of grouped work against dense work (not measured yet)
_NOTHING: frozenset[Node] = frozenset()


@dataclass(frozen=True)
class ChannelsLastGraph:
    """The result of the pass. `graph`: the new graph, or the original if nothing changes. `backward`: its nodes that
    replace the original's backward nodes."""

    graph: Graph
    backward: frozenset[Node]


def to_channels_last(graph: Graph, backward: frozenset[Node] = _NOTHING) -> ChannelsLastGraph:
    """The aten graph with images channels-last, if that is profitable. `backward`: the nodes that a backward recorded;
    other nodes must not read copies made for those."""
    if not is_profitable(graph):
        return ChannelsLastGraph(graph, backward)
    return _Pass(graph, backward).run()


# ---- which graphs


def is_profitable(graph: Graph) -> bool:
    """Whether a graph's convolutions are faster channels-last in total.

    Dense ones are, from some number of channels on. Those with one input channel per group read little but images, and
    are neutral; so are those of few channels (the first of a network). Other groups are slower channels-last, as each
    is a small product that fills no tile: dense work must outweigh them, and in training, where each has three
    convolutions, there must be none.
    """
    convolutions = [node for node in graph if _is_convolution(node)]
    work = dict.fromkeys(("dense", "grouped", "either"), 0)
    for node in convolutions:
        kind, amount = _work(node)
        work[kind] += amount
    training = any(node.target is aten.convolution_backward.default for node in convolutions)
    return (
        work["dense"] > 0 and work["dense"] > work["grouped"] * GROUPED and not (training and work["grouped"])
    )


def _is_convolution(node: Node) -> bool:
    """Whether the node is a convolution of images in half precision, forward or backward."""
    if node.target not in (aten.convolution.default, aten.convolution_backward.default):
        return False
    original = [a.spec for a in node.args[: _operands(node)]]
    return all(
        s.dtype in HALF and len(s.shape) == 4 and all(isinstance(n, Expr) or n > 0 for n in s.shape)
        for s in original
    )


def _operands(node: Node) -> int:
    """The number of leading tensor operands, the weight being the last: of a forward (image, weight), of a backward
    (gradient, image, weight)."""
    return 2 if node.target is aten.convolution.default else 3


def _work(node: Node) -> tuple[str, int]:
    """The kind of convolution, and its number of multiplications."""
    count = _operands(node)
    x, weight = (a.spec.shape for a in node.args[count - 2 : count])
    c = Convolution(*node.args[count + 1 : count + 7])
    result = node.spec.shape if count == 2 else node.args[0].spec.shape
    pixels = x if c.transposed else result
    amount = prod(map(likely, (pixels[0], *pixels[2:], *weight)))
    channels = min(likely(x[1]), likely(result[1]))
    if c.groups > 1:
        return ("either" if weight[1] == 1 else "grouped"), amount
    return ("dense" if channels >= VECTOR else "either"), amount


# ---- layouts


def _layout(spec: TensorSpec) -> tuple[Any, ...]:
    return spec.shape, spec.stride, spec.dtype


def _format(spec: TensorSpec) -> torch.memory_format | None:
    """The memory format of a copy with exactly the strides of `spec`, or None."""
    if spec.stride == contiguous_stride(spec.shape):
        return torch.contiguous_format
    return torch.channels_last if is_last(spec) else None


# ---- the pass


class _Pass:
    """Writes the new graph. `env`: original node -> new node, in any layout. Copies in the traced layout (`as_traced`)
    and in channels-last (`channels_last_copies`) are made on demand, separately for the forward and for the backward
    (second component of the key), as the forward must not read backward nodes."""

    def __init__(self, graph: Graph, backward: frozenset[Node]) -> None:
        self.original, self.backward = graph, backward
        self.graph = Graph(graph.level)
        self.graph.constants = dict(graph.constants)
        self.names = {node.name for node in graph}
        self.env: dict[Node, Node] = {}
        self.as_traced: dict[tuple[Node, bool], Node] = {}
        self.channels_last_copies: dict[tuple[Node, bool], Node] = {}
        self.in_backward = False  # whether the current node is of the backward
        self.new_backward: set[Node] = set()
        self.cast_for = self._cast_for_convolutions()
        mutated = {node.args[1] for node in graph if node.target is aten.copy_.default}
        self.returned = memory_of_outputs(graph) | mutated  # values that the caller will hold

    def run(self) -> ChannelsLastGraph:
        *nodes, output = self.original
        for node in nodes:
            self.in_backward = node in self.backward
            self.env[node] = self._call(node) if node.op == "call_function" else self._plain(node)
            if node in self.returned:  # at once, so that its operands die early
                self._as_traced(node)
        self.in_backward = True  # it returns the results of both
        returned = map_nodes(output.args, self._as_traced)
        self.in_backward = False
        self._append(replace(output, args=returned))
        return ChannelsLastGraph(self.graph, frozenset(self.new_backward))

    def _cast_for_convolutions(self) -> set[Node]:
        """Conversions (of autocast) that convolutions read: they write their results channels-last at once."""
        found: set[Node] = set()
        for node in self.original:
            if _is_convolution(node):
                count = _operands(node)
                image, weight = node.args[count - 2 : count]
                found.update((image,) if is_channels_last_layout(weight.spec) else (image, weight))
        return {n for n in found if _is_cast(n)}

    # ---- nodes

    def _call(self, node: Node) -> Node:
        if _is_convolution(node):
            return self._attempt(node, self._convolution_arguments) or self._plain(node)
        if node in self.cast_for:
            kwargs = {**node.kwargs, "memory_format": torch.channels_last}
            source, *rest = node.args
            return self._attempt(node, lambda n: (self._current(source), *rest), kwargs) or self._plain(node)
        if node.target is operator.getitem:
            return self._item(node)
        if self._follows(node) and any(map(self._is_changed, argument_nodes(node))):
            return self._attempt(node, self._uniform_arguments) or self._plain(node)
        return self._plain(node)

    def _follows(self, node: Node) -> bool:
        """Whether the node may be computed from arguments in another layout. Returned views are views of returned
        values."""
        return _is_layout_independent(node) and not (_is_view(node) and node in self.returned)

    def _plain(self, node: Node) -> Node:
        """The call in the traced layout, with arguments in theirs."""
        args, kwargs = (map_nodes(a, self._as_traced) for a in (node.args, node.kwargs))
        return self._add(node, args, kwargs, node.spec)

    def _attempt(self, node: Node, arguments: Any, kwargs: dict[str, Any] | None = None) -> Node | None:
        """The call on `arguments(node)`, in layouts that differ from the traced ones; None if the operator refuses
        them, or gives a result that no copy could restore."""
        length, marks = len(self.graph.nodes), (dict(self.as_traced), dict(self.channels_last_copies))
        args = arguments(node)
        kwargs = map_nodes(node.kwargs, self._current) if kwargs is None else kwargs
        try:
            specs = _with_strides(node.spec, result_spec(node.target, args, kwargs))
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, NeedsFixedSize):
            specs = None
        if specs is None or not (_is_view(node) or _is_restorable(node.spec, specs)):
            for new in self.graph.nodes[length:]:
                self.names.discard(new.name)
                self.new_backward.discard(new)
            del self.graph.nodes[length:]
            self.as_traced, self.channels_last_copies = marks
            return None
        return self._add(node, args, kwargs, specs)

    def _item(self, node: Node) -> Node:
        source, index = node.args
        of = self.env[source]
        return self._add(node, (of, index), {}, of.spec[index])

    def _add(self, like: Node, args: Any, kwargs: dict[str, Any], spec: Any, name: str = "") -> Node:
        return self._append(replace(like, args=args, kwargs=kwargs, spec=spec, name=name or like.name))

    def _append(self, node: Node) -> Node:
        self.graph.nodes.append(node)
        if self.in_backward:
            self.new_backward.add(node)
        return node

    # ---- arguments

    def _is_changed(self, node: Node) -> bool:
        """Whether the value's layout differs from the traced one."""
        if not isinstance(node.spec, TensorSpec):
            return False
        return self._current(node).spec.stride != node.spec.stride

    def _current(self, node: Node) -> Node:
        """The value, channels-last if there is such a copy. Values that the caller holds are read in its layout:
        saving them for the backward takes no memory."""
        if self._is_held(node):
            return self._as_traced(node)
        return self._lookup(self.channels_last_copies, node) or self.env[node]

    def _is_held(self, node: Node) -> bool:
        """Whether the caller holds the value: from the beginning, or when the backward runs."""
        base = _base(node)
        if base.op != "call_function":
            return True
        return self.in_backward and base in self.returned and base not in self.backward

    def _lookup(self, copies: dict[tuple[Node, bool], Node], node: Node) -> Node | None:
        early = copies.get((node, False))
        return copies.get((node, True), early) if self.in_backward else early

    def _uniform_arguments(self, node: Node) -> tuple[Any, ...]:
        """Arguments of another operator than a convolution: if one is channels-last, so are the others with as many
        images and pixels."""
        current = {a: self._current(a) for a in argument_nodes(node)}
        sizes = {
            _image(n.spec) for n in current.values() if isinstance(n.spec, TensorSpec) and is_last(n.spec)
        }
        if not _is_view(node):
            for a in current:
                if isinstance(a.spec, TensorSpec) and _image(a.spec) in sizes - {None}:
                    current[a] = self._as_channels_last(a)
        result: tuple[Any, ...] = map_nodes(node.args, current.__getitem__)
        return result

    def _convolution_arguments(self, node: Node) -> tuple[Any, ...]:
        """Arguments of a convolution. The image determines the layout in which ATen calls cuDNN, so a weight with
        channels-last strides is good enough; and for a 1x1 convolution of images of one pixel the layouts are the
        same."""
        count = _operands(node)
        *images, weight = node.args[:count]
        of_pixels = weight.spec.shape[2:] == (1, 1)
        images = [
            self._current(i)
            if is_channels_last_layout(self._current(i).spec) and of_pixels
            else self._as_channels_last(i)
            for i in images
        ]
        weight = (
            self._current(weight)
            if is_channels_last_layout(self._current(weight).spec)
            else self._as_channels_last(weight)
        )
        return (*images, weight, *map_nodes(node.args[count:], self._as_traced))

    def _as_channels_last(self, node: Node) -> Node:
        """The value, channels-last."""
        current = self._current(node)
        if is_last(current.spec):
            return current
        # The backward makes its own copies of values that the caller holds, so that only those are saved.
        found = (
            self.channels_last_copies.get((node, self.in_backward))
            if self._is_held(node)
            else self._lookup(self.channels_last_copies, node)
        )
        if found is None:
            found = self._copy(node, current, torch.channels_last)
            self.channels_last_copies[node, self.in_backward] = found
        return found

    def _as_traced(self, node: Node) -> Node:
        """The value in the traced layout."""
        new = self.env[node]
        if not isinstance(node.spec, TensorSpec) or _layout(new.spec) == _layout(node.spec):
            return new
        found = self._lookup(self.as_traced, node)
        if found is None:
            found = self._restored(node)
            self.as_traced[node, self.in_backward] = found
        return found

    def _restored(self, node: Node) -> Node:
        """A copy of the value in the traced layout. Of a view, the view of its base in the traced layout: results that
        share memory still do."""
        call = node.args[0] if node.target is operator.getitem else node
        if not _is_view(call):
            layout = _format(node.spec)
            assert layout is not None, "`_attempt` checks that the layout can be restored"
            return self._copy(node, self.env[node], layout)
        args, kwargs = (map_nodes(a, self._as_traced) for a in (call.args, call.kwargs))
        base_view = self._add(call, args, kwargs, call.spec, self._name(call.name))
        return (
            base_view
            if call is node
            else self._add(node, (base_view, node.args[1]), {}, node.spec, self._name(node.name))
        )

    def _copy(self, like: Node, source: Node, memory_format: torch.memory_format) -> Node:
        stride = contiguous_stride if memory_format == torch.contiguous_format else last_stride
        spec = replace(like.spec, stride=stride(like.spec.shape), offset=0)
        call = replace(
            like, op="call_function", target=aten.clone.default, spec=spec, name=self._name(like.name)
        )
        return self._append(replace(call, args=(source,), kwargs={"memory_format": memory_format}))

    def _name(self, stem: str) -> str:
        return free_name(f"{stem}_relaid", self.names)


def _image(spec: TensorSpec) -> tuple[Size, ...] | None:
    """The number of images and their pixels, which the operands of one operator must share."""
    return (spec.shape[0], *spec.shape[2:]) if len(spec.shape) == 4 else None


def _is_layout_independent(node: Node) -> bool:
    """Whether the operator computes the same elements for arguments in any layout, and has a rule for its result's
    layout."""
    if (
        not isinstance(node.target, OpOverload)
        or node.target.namespace != "aten"
        or node.target in _BY_STRIDES
    ):
        return False
    if node.target in (aten.convolution.default, aten.convolution_backward.default):
        return False  # not of half precision
    does = effects(node.target)
    return does.pure and not (does.changes_metadata or does.data_dependent or does.dynamic_shape)


# They depend on memory, not on elements.
_BY_STRIDES = frozenset({aten.as_strided.default, aten._reshape_alias.default, aten.view.dtype})


def _is_cast(node: Node) -> bool:
    """Whether the node is a conversion on one device without a requested layout."""
    if node.target is not aten._to_copy.default or "memory_format" in node.kwargs:
        return False
    return bool(node.args[0].spec.device == node.spec.device)


def _is_view(node: Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    return effects(node.target).view or node.target is aten._unsafe_view.default


def _base(node: Node) -> Node:
    """The node that allocates the value's memory."""
    while node.op == "call_function":
        call = node.args[0] if node.target is operator.getitem else node
        if not _is_view(call) or not isinstance(call.args[0], Node):
            break
        node = call.args[0]
    return node


def _with_strides(traced: Any, found: Any) -> Any:
    """`traced` with the strides of `found`; None if they differ in anything else."""
    if isinstance(traced, (tuple, list)):
        if not isinstance(found, (tuple, list)) or len(found) != len(traced):
            return None
        specs = tuple(_with_strides(t, f) if isinstance(t, TensorSpec) else t for t, f in zip(traced, found))
        return None if any(s is None and t is not None for s, t in zip(specs, traced)) else specs
    if not isinstance(traced, TensorSpec) or not isinstance(found, TensorSpec):
        return None
    if (traced.shape, traced.dtype) != (found.shape, found.dtype):
        return None
    return replace(traced, stride=found.stride, offset=found.offset)


def _is_restorable(traced: Any, specs: Any) -> bool:
    """Whether a copy can restore the traced layout."""
    pairs = zip(traced, specs) if isinstance(traced, (tuple, list)) else ((traced, specs),)
    return all(t.stride == s.stride or _format(t) is not None for t, s in pairs if isinstance(t, TensorSpec))
