"""Channels-last layouts for images of half precision inside a graph: a pass over an aten graph that changes strides.

    convolution(image, weight)   ->   convolution(channels_last(image), channels_last(weight))
    f(x), of any layout of x     ->   f(x in its present layout), with the strides that eager gives

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
from dataclasses import replace
from math import prod
from typing import Any

import torch

from smelt.errors import NeedsFixedSize
from smelt.graph.graph_passes import base_of, is_view, memory_of_outputs
from smelt.graph.ir import Graph, Node, TensorSpec, argument_nodes, map_nodes
from smelt.graph.memory_format import is_channels_last_layout, is_last, last_stride
from smelt.graph.operator_effects import effects
from smelt.ops.convolution_settings import Convolution
from smelt.ops.result_specs import result_spec
from smelt.rewrites.graph_rewriter import GraphRewriter, Rewritten
from smelt.rewrites.patterns import Call, Capture, Fact, Match, OneOf, Rule, Where, apply_first
from smelt.shapes.expr import Expr, Size, contiguous_stride, likely
from smelt.torch_private import OpOverload

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
VECTOR = 8  # channels of half precision in a load of 16 bytes; cuDNN pads fewer with zeros
GROUPED = 2  # the weight of grouped work against dense work (not measured yet)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def to_channels_last(graph: Graph, backward: frozenset[Node] = frozenset()) -> Rewritten:
    """The aten graph with images channels-last, if that is profitable. `backward`: the nodes that a backward recorded;
    other nodes must not read copies made for those."""
    if not is_profitable(graph):
        return Rewritten(graph, backward)
    return _Pass(graph, backward).run()


# ---- which graphs


def is_profitable(graph: Graph) -> bool:
    """Whether a graph's convolutions are faster channels-last in total.

    Dense ones are, from some number of channels on. Those with one input channel per group read little but images, and
    are neutral; so are those of few channels (the first of a network). Other groups are slower channels-last, as each
    is a small product that fills no tile: dense work must outweigh them, and in training, where each has three
    convolutions, there must be none.
    """
    convolutions = [match for node in graph if (match := CONVOLUTION.first(node)) is not None]
    work = dict.fromkeys(("dense", "grouped", "either"), 0)
    for match in convolutions:
        kind, amount = _work(match)
        work[kind] += amount
    training = any("gradient" in match.bound for match in convolutions)
    dense, grouped = work["dense"], work["grouped"]
    return dense > 0 and dense > grouped * GROUPED and not (training and grouped)


def _half(value: Node, facts: object) -> Node | None:
    """The value, if it is a batch of images, or a weight, in half precision that is not empty."""
    spec = value.spec
    filled = all(isinstance(n, Expr) or n > 0 for n in spec.shape)
    return value if spec.dtype in HALF and len(spec.shape) == 4 and filled else None


_IMAGE_AND_WEIGHT = Fact(_half, "image"), Fact(_half, "weight")
CONVOLUTION = OneOf(
    Call(aten.convolution.default, *_IMAGE_AND_WEIGHT),
    Call(aten.convolution_backward.default, Fact(_half, "gradient"), *_IMAGE_AND_WEIGHT),
)


def _work(match: Match) -> tuple[str, int]:
    """The kind of convolution, and its number of multiplications."""
    node, gradient = match["node"], match.bound.get("gradient")
    x, weight = match["image"].spec.shape, match["weight"].spec.shape
    result = (node if gradient is None else gradient).spec.shape
    c = Convolution(*node.args[_operands(node) + 1 : _operands(node) + 7])
    pixels = x if c.transposed else result
    amount = prod(map(likely, (pixels[0], *pixels[2:], *weight)))
    channels = min(likely(x[1]), likely(result[1]))
    if c.groups > 1:
        return ("either" if weight[1] == 1 else "grouped"), amount
    return ("dense" if channels >= VECTOR else "either"), amount


def _operands(node: Node) -> int:
    """The number of leading tensor operands, the weight being the last: of a forward (image, weight), of a backward
    (gradient, image, weight)."""
    return 2 if node.target is aten.convolution.default else 3


# ---- layouts


def _format(spec: TensorSpec) -> torch.memory_format | None:
    """The memory format of a copy with exactly the strides of `spec`, or None."""
    if spec.stride == contiguous_stride(spec.shape):
        return torch.contiguous_format
    return torch.channels_last if is_last(spec) else None


# ---- the pass


class _Pass(GraphRewriter):
    """`env`: original node -> new node, in any layout. Copies in the traced layout (`as_traced`) and in channels-last
    (`channels_last_copies`) are made on demand, separately for the forward and for the backward (second component of the
    key), as the forward must not read backward nodes."""

    def __init__(self, graph: Graph, backward: frozenset[Node]) -> None:
        super().__init__(graph, "relaid", backward)
        self.as_traced: dict[tuple[Node, bool], Node] = {}
        self.channels_last_copies: dict[tuple[Node, bool], Node] = {}
        self.cast_for = self._cast_for_convolutions()
        mutated = {node.args[1] for node in graph if node.target is aten.copy_.default}
        self.returned = memory_of_outputs(graph) | mutated  # values that the caller will hold

    def run(self) -> Rewritten:
        *nodes, output = self.original
        for node in nodes:
            if not self._write_followed(self.at(node)):
                self.copy(node, self._as_traced)
            if node in self.returned:  # at once, so that its operands die early
                self._as_traced(node)
        self.in_backward = True  # it returns the results of both
        returned = map_nodes(output.args, self._as_traced)
        self.in_backward = False
        self.write(output, args=returned)
        return self.finish()

    def _cast_for_convolutions(self) -> set[Node]:
        """Conversions (of autocast) that convolutions read: they write their results channels-last at once."""
        convolutions = [match for match in map(CONVOLUTION.first, self.original) if match is not None]
        weights = {m["weight"] for m in convolutions if not is_channels_last_layout(m["weight"].spec)}
        return {n for n in weights.union(m["image"] for m in convolutions) if CAST.first(n)}

    def _write_followed(self, node: Node) -> bool:
        """Write the node with arguments whose layouts differ from the traced ones; False if no rule does that, if the
        operator refuses them, or if no copy could restore the layout of the result."""
        if node.target is operator.getitem:
            source, index = self.env[node.args[0]], node.args[1]
            self.write(node, args=(source, index), spec=source.spec[index])
            return True
        length, marks = len(self.nodes), (dict(self.as_traced), dict(self.channels_last_copies))
        arguments = apply_first(_RULES, node, self)
        if arguments is None:
            return False
        args, kwargs = arguments
        try:
            specs = _with_strides(node.spec, result_spec(node.target, args, kwargs))
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, NeedsFixedSize):
            specs = None
        if specs is None or not (is_view(node) or _is_restorable(node.spec, specs)):
            self.undo(length)
            self.as_traced, self.channels_last_copies = marks
            return False
        self.write(node, args=args, kwargs=kwargs, spec=specs)
        return True

    # ---- arguments

    def is_changed(self, node: Node) -> bool:
        """Whether the value's layout differs from the traced one."""
        is_tensor = isinstance(node.spec, TensorSpec)
        return is_tensor and bool(self._current(node).spec.stride != node.spec.stride)

    def _current(self, node: Node) -> Node:
        """The value, channels-last if there is such a copy. Values that the caller holds are read in its layout:
        saving them for the backward takes no memory."""
        if self._is_held(node):
            return self._as_traced(node)
        return self._lookup(self.channels_last_copies, node) or self.env[node]

    def _is_held(self, node: Node) -> bool:
        """Whether the caller holds the value: from the beginning, or when the backward runs."""
        base = base_of(node)
        if base.op != "call_function":
            return True
        return self.in_backward and base in self.returned and base not in self.backward

    def _lookup(self, copies: dict[tuple[Node, bool], Node], node: Node) -> Node | None:
        early = copies.get((node, False))
        return copies.get((node, True), early) if self.in_backward else early

    def uniform_arguments(self, match: Match) -> Arguments:
        """Arguments of another operator than a convolution: if one is channels-last, so are the others with as many
        images and pixels."""
        node = match["node"]
        current = {a: self._current(a) for a in argument_nodes(node)}
        last = [n.spec for n in current.values() if isinstance(n.spec, TensorSpec) and is_last(n.spec)]
        sizes = {_image(spec) for spec in last} - {None}
        for a in () if is_view(node) else current:
            if isinstance(a.spec, TensorSpec) and _image(a.spec) in sizes:
                current[a] = self._as_channels_last(a)
        return map_nodes(node.args, current.__getitem__), map_nodes(node.kwargs, self._current)

    def cast_arguments(self, match: Match) -> Arguments:
        """Arguments of a conversion that writes a channels-last result."""
        source, *others = match["node"].args
        kwargs = {**match["node"].kwargs, "memory_format": torch.channels_last}
        return (self._current(source), *others), kwargs

    def convolution_arguments(self, match: Match) -> Arguments:
        """Arguments of a convolution. The image determines the layout in which ATen calls cuDNN, so a weight with
        channels-last strides is good enough; and for a 1x1 convolution of images of one pixel the layouts are the
        same."""
        node, count = match["node"], _operands(match["node"])
        of_pixels = match["weight"].spec.shape[2:] == (1, 1)
        operands = []
        for position, x in enumerate(node.args[:count]):
            current = self._current(x)
            fits = is_channels_last_layout(current.spec) and (of_pixels or position == count - 1)
            operands.append(current if fits else self._as_channels_last(x))
        args = *operands, *map_nodes(node.args[count:], self._as_traced)
        return args, map_nodes(node.kwargs, self._current)

    def _as_channels_last(self, node: Node) -> Node:
        """The value, channels-last."""
        current = self._current(node)
        if is_last(current.spec):
            return current
        # The backward makes its own copies of values that the caller holds, so that only those are saved.
        copies, key = self.channels_last_copies, (node, self.in_backward)
        found = copies.get(key) if self._is_held(node) else self._lookup(copies, node)
        if found is None:
            found = copies[key] = self._copy(node, current, torch.channels_last)
        return found

    def _as_traced(self, node: Node) -> Node:
        """The value in the traced layout."""
        new = self.env[node]
        if not isinstance(node.spec, TensorSpec) or new.spec.stride == node.spec.stride:
            return new
        found = self._lookup(self.as_traced, node)
        if found is None:
            found = self.as_traced[node, self.in_backward] = self._restored(node)
        return found

    def _restored(self, node: Node) -> Node:
        """A copy of the value in the traced layout. Of a view, the view of its base in the traced layout: results that
        share memory still do."""
        call = node.args[0] if node.target is operator.getitem else node
        if not is_view(call):
            layout = _format(node.spec)
            assert layout is not None, "`_write_followed` checks that the layout can be restored"
            return self._copy(node, self.env[node], layout)
        args, kwargs = (map_nodes(a, self._as_traced) for a in (call.args, call.kwargs))
        view = self.append(replace(call, args=args, kwargs=kwargs, name=self.name(f"{call.name}_relaid")))
        if call is node:
            return view
        return self.append(replace(node, args=(view, node.args[1]), name=self.name(f"{node.name}_relaid")))

    def _copy(self, like: Node, source: Node, memory_format: torch.memory_format) -> Node:
        stride = contiguous_stride if memory_format == torch.contiguous_format else last_stride
        spec = replace(like.spec, stride=stride(like.spec.shape), offset=0)
        name = self.name(f"{like.name}_relaid")
        call = replace(like, op="call_function", target=aten.clone.default, spec=spec, name=name)
        return self.append(replace(call, args=(source,), kwargs={"memory_format": memory_format}))


def _image(spec: TensorSpec) -> tuple[Size, ...] | None:
    """The number of images and their pixels, which the operands of one operator must share."""
    return (spec.shape[0], *spec.shape[2:]) if len(spec.shape) == 4 else None


# ---- rules


# Operators that depend on memory, not on elements; convolutions that are not of half precision.
_BY_STRIDES = frozenset(
    {
        *(aten.as_strided.default, aten._reshape_alias.default, aten.view.dtype),
        *(aten.convolution.default, aten.convolution_backward.default),
    }
)


def _is_layout_independent(op: object) -> bool:
    if not isinstance(op, OpOverload) or op.namespace != "aten" or op in _BY_STRIDES:
        return False
    does = effects(op)
    return does.pure and not (does.changes_metadata or does.data_dependent or does.dynamic_shape)


def _may_follow(match: Match) -> bool:
    """The operator gives the same elements for arguments in any layout, and has a rule for its result's layout. Some
    argument is in another layout than the traced one. (Returned views are views of returned values.)"""
    node, current = match["node"], match.facts
    if not _is_layout_independent(node.target) or (is_view(node) and node in current.returned):
        return False
    return any(map(current.is_changed, argument_nodes(node)))


def _is_plain_cast(match: Match) -> bool:
    """The conversion is on one device, and requests no layout."""
    node = match["node"]
    return "memory_format" not in node.kwargs and bool(match["x"].spec.device == node.spec.device)


CAST = Where(Call(aten._to_copy.default, Capture("x")), _is_plain_cast)
# The facts are the pass itself. A node that matches no rule has the traced layout, and so have its arguments.
_RULES = (
    Rule(CONVOLUTION, lambda m: m.facts.convolution_arguments(m)),
    Rule(Where(CAST, lambda m: m["node"] in m.facts.cast_for), lambda m: m.facts.cast_arguments(m)),
    Rule(Where(Capture(), _may_follow), lambda m: m.facts.uniform_arguments(m)),
)


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
