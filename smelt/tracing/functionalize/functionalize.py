"""Functionalization of aten graphs with in-place writes.

The recorded operators are processed in order. Every storage has a *base* (the tensor that owns it: an input, or the
result of an operator) and the base a *current value*: a node. A write through a view gives the base a new value,
scattered back view by view; other views of that storage are recomputed from the new base when they are next read. At
the end, each input whose storage was written gets a `copy_`, and outputs that are views of such inputs are recomputed
from the input itself.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch

from smelt.errors import Unsupported
from smelt.graph.input_writes import COPY_INPUTS, WRITE_INPUT
from smelt.graph.ir import Graph, Line, Node, argument_nodes, map_nodes
from smelt.graph.operator_effects import Effects, effects
from smelt.graph.pytree import leaves
from smelt.graph.sample_sizes import syms_of
from smelt.graph.tensor_specs import empty_like_spec
from smelt.ops.functional_variants import pure_of
from smelt.ops.node_builders import CLONE, COPY, FULL, PERMUTE, STRIDED_SCATTER, Emitter
from smelt.ops.registry import row
from smelt.ops.result_specs import result_spec
from smelt.ops.symbolic_rules import STRIDED
from smelt.reasons import UNSUPPORTED_EFFECT, Reason
from smelt.shapes.expr import static
from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction, OpOverload
from smelt.tracing.backward.not_differentiable import refuse
from smelt.tracing.fake.fake_tensor import FakeTensor, wrap
from smelt.tracing.fake.memory_overlap import (
    extent,
    is_dense_row_major,
    may_overlap,
    overlaps_itself,
    partly_overlap,
)
from smelt.tracing.fake.random_fill_order import draw_order, inverse
from smelt.tracing.functionalize.view_scatter import View, scatter_back
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.record.opaque_call_recorder import OpaqueCall
from smelt.tracing.record.tape import Tape
from smelt.tracing.record.trace_parts import TraceParts

_SHARED = "inputs share memory and one of them is written"


@dataclass(slots=True)
class _Storage:
    """`value` is the current value of `base`; `version` counts the writes."""

    base: FakeTensor
    value: Node
    version: int = 0
    inputs: int = 0  # the number of inputs in this storage


class Functional(NamedTuple):
    """A functional aten graph without its placeholders and output. `written`: ids of the input fakes that are written;
    `backward`: the nodes of tape entries from `start` on."""

    graph: Graph
    outputs: list[Node | None]
    written: set[int]
    backward: frozenset[Node]


def functionalize(
    parts: TraceParts,
    outputs: Sequence[FakeTensor],
    start: tuple[int, int] | None = None,
    by_caller: Sequence[FakeTensor] = (),
) -> Functional:
    """The recorded operators in functional form, and the nodes of `outputs`. `start`: numbers of tape entries and aten
    nodes before the backward. `by_caller`: inputs whose writes the graph's caller performs, with their values at the
    end.

    Raises Unsupported.
    """
    tape = parts.tape
    if not parts.writes.happened:
        nodes = tape.aten.graph.nodes
        backward = frozenset(nodes[start[1] :] if start else ())
        _copy_returned_constants(tape, outputs)
        return Functional(tape.aten.graph, [f.aten_node for f in outputs], set(), backward)
    return _Functionalizer(parts).run(outputs, len(tape.entries) if start is None else start[0], by_caller)


def _in_checkpoint(node: Node) -> bool:
    target = None if node.source is None else node.source.target
    return type(target) is OpaqueCall and target.is_checkpoint


def _flat(fakes: Any) -> list[FakeTensor]:
    return fakes if isinstance(fakes, list) else [] if fakes is None else [fakes]


def _copy_returned_constants(tape: Tape, outputs: Sequence[FakeTensor]) -> None:
    """Copy constants that outputs share memory with: the caller may write its results."""
    if not tape.aten.graph.constants:
        return
    returned = {f.storage_key for f in outputs}
    copies: dict[Node, Node] = {}
    nodes: list[Node] = []
    constants = (entry for entry in tape.entries if entry.node.op == "get_attr")
    shared = {entry.node for entry in constants if entry.out.storage_key in returned}
    for node in tape.aten.graph.nodes:
        if copies:
            node.args = map_nodes(node.args, lambda n: copies.get(n, n))
            node.kwargs = map_nodes(node.kwargs, lambda n: copies.get(n, n))
        nodes.append(node)
        if node in shared:
            name = tape.aten.name("clone")
            copies[node] = Node("call_function", CLONE, (node,), {}, name, node.spec, node.line, node.source)
            nodes.append(copies[node])
    tape.aten.graph.nodes[:] = nodes
    for fake in outputs:
        if fake.aten_node is not None:
            fake.aten_node = copies.get(fake.aten_node, fake.aten_node)


class _Functionalizer(Emitter):
    """`nodes` grows to the functional graph; `fake_of` maps recorded nodes to the fakes they returned."""

    def __init__(self, parts: TraceParts) -> None:
        self.inputs = parts.inputs
        self.tape = parts.tape
        self.has_backward = bool(parts.backward.tangents)
        self.nodes: list[Node] = []
        self.fake_of: dict[Node, FakeTensor] = {}
        self.storages: dict[int, _Storage] = {}
        self.views: dict[int, View] = {}
        self.values: dict[int, tuple[int, Node]] = {}  # id(fake) -> (version of its storage, node)
        self.bases: list[FakeTensor] = []  # of regions; kept alive, as ids of fakes are keys
        self.regions: dict[int, int] = {}  # id(fake) -> key of its part of a storage that inputs share
        # line and source of the operator being rewritten
        self.at: tuple[Line | None, Node | None] = (None, None)
        for storage in parts.writes.storages:
            if len(parts.inputs.in_storage(storage)) > 1:
                self._divide(parts.inputs.in_storage_with_offsets(storage))
        for fake in (*parts.inputs, *parts.backward.tangents):
            if fake.aten_node is not None and id(fake) not in self.regions:
                self._define(fake, fake.aten_node)

    def run(self, outputs: Sequence[FakeTensor], start: int, by_caller: Sequence[FakeTensor]) -> Functional:
        n_forward = 0
        before: list[int] = []
        for i, entry in enumerate(self.tape.entries):
            if i == start:
                n_forward = len(self.nodes)
                before = self._versions()
            self.at = (entry.node.line, entry.node.source)
            self._rewrite(entry.node, entry.out)
        if before and before != self._versions():  # the forward would write it
            raise refuse("its backward writes an input tensor")
        backward = set(self.nodes[n_forward:] if start < len(self.tape.entries) else ())
        by_caller_ids = {id(f) for f in by_caller}
        written = [
            f
            for f in self.inputs
            if self._storage(f).version and f.aten_node is not None and id(f) not in by_caller_ids
        ]
        self.at = (None, None)
        originals = {id(f): f.aten_node for f in written}
        for fake in written:
            self.emit(WRITE_INPUT, (fake.aten_node, self.current(fake)))
        for fake in written:  # from here on, read from the input itself
            self._storage(fake).version += 1
        for fake in written:
            storage, original = self._storage(fake), cast(Node, originals[id(fake)])
            self.values[id(fake)] = storage.version, original
            if fake is storage.base:
                storage.value = original
        n_recorded = len(self.nodes)
        nodes: list[Node | None] = [self._returned(f) for f in outputs]
        for node in self.nodes[
            n_recorded:
        ]:  # gradients that are views, recomputed after the backward's writes
            if not backward.isdisjoint(argument_nodes(node)):
                backward.add(node)
        graph = Graph("aten")
        graph.constants = self.tape.aten.graph.constants
        graph.nodes = self.nodes
        return Functional(graph, nodes, set(originals), frozenset(backward))

    def _versions(self) -> list[int]:
        return [self._storage(f).version for f in self.inputs if f.aten_node is not None]

    def _returned(self, fake: FakeTensor) -> Node:
        storage = self._storage(fake)
        if storage.value.op == "get_attr":  # the caller may write its results
            storage.value = self.emit(CLONE, (storage.value,))
            storage.version += 1
        return self.current(fake)

    # ---- inputs that share a storage

    def _divide(self, inputs: Sequence[FakeTensor]) -> None:
        """Divide a storage that is written into regions, each the memory of inputs that overlap."""
        regions: list[list[FakeTensor]] = []
        for fake in inputs:
            region, apart = [fake], []
            for fakes in regions:
                if any(may_overlap(fake.spec, f.spec) for f in fakes):
                    region += fakes
                else:
                    apart.append(fakes)
            regions = [*apart, region]
        for fakes in regions:
            key = -1 - len(self.regions)  # no storage has a negative one
            self.regions |= {id(f): key for f in fakes}
            if len(fakes) == 1:
                self._define(fakes[0], self.inputs.aten_node(fakes[0]))
            else:
                self._define_region(key, fakes)

    def _define_region(self, key: int, fakes: Sequence[FakeTensor]) -> None:
        """Make a copy of a region the base of `fakes`, which are views of it."""
        specs = [f.spec for f in fakes]
        if self.has_backward or any(f.requires_grad for f in fakes) or len({s.dtype for s in specs}) > 1:
            raise self.refuse(_SHARED)
        nodes = [self.inputs.aten_node(f) for f in fakes]
        start = min(static(s.offset) for s in specs)
        end = max(static(s.offset) + extent(s) for s in specs)
        copies = self.emit(COPY_INPUTS, (nodes,))
        options = {"dtype": specs[0].dtype, "device": specs[0].device}
        empty = region = self.emit(FULL, ([end - start], 0), options)
        views = [(list(s.shape), list(s.stride), static(s.offset) - start) for s in specs]
        for i, view in enumerate(views):
            region = self.emit(STRIDED_SCATTER, (region, self.item(copies, i), *view))
        with DisableTorchFunction(), DisableTorchDispatch():
            base = wrap(empty_like_spec(empty.spec, torch.device("meta")), specs[0].device)
        self.regions[id(base)] = key
        self.storages[key] = _Storage(base, region, inputs=1)
        self.bases.append(base)
        for fake, node, view in zip(fakes, nodes, views):
            self.fake_of[node] = fake
            self.views[id(fake)] = View(base, STRIDED, (empty, *view), {}, empty, fake.spec, None)
            self.values[id(fake)] = -1, node

    # ---- values

    def _storage(self, fake: FakeTensor) -> _Storage:
        key = self._key(fake)
        if key not in self.storages:
            self._define(fake, self.inputs.aten_node(fake))
        return self.storages[key]

    def _key(self, fake: FakeTensor) -> int:
        return self.regions.get(id(fake), fake.storage_key)

    def _define(self, fake: FakeTensor, node: Node) -> None:
        """Make `fake` the base of its storage, with value `node`."""
        self.fake_of[node] = fake
        storage = self.storages.setdefault(self._key(fake), _Storage(fake, node))
        self.values[id(fake)] = (storage.version, node)
        storage.inputs += self.inputs.holds(fake)

    def current(self, fake: FakeTensor) -> Node:
        """The node that holds the current value of `fake`."""
        storage = self._storage(fake)
        if fake is storage.base:
            return storage.value
        version, node = self.values[id(fake)]
        if version != storage.version:
            node = self._recomputed_view(fake)
            self.values[id(fake)] = (storage.version, node)
        return node

    def _recomputed_view(self, fake: FakeTensor) -> Node:
        """The view `fake`, applied to the current value of its source."""
        view = self.views.get(id(fake))
        if view is None:
            raise self.refuse(_SHARED)
        source = self.current(view.source)
        args = map_nodes(view.args, lambda n: source if n is view.source_node else self._read(n))
        result = self.emit(view.target, args, map_nodes(view.kwargs, self._read), view.spec)
        if view.item is None:
            return result
        return self.emit(operator.getitem, (result, view.item), spec=fake.spec)

    def _read(self, node: Node) -> Node:
        fake = self.fake_of.get(node)
        return node if fake is None else self.current(fake)

    def refuse(self, detail: str) -> Unsupported:
        return Unsupported(Reason(UNSUPPORTED_EFFECT, detail, self.at[0]))

    # ---- operators

    def _rewrite(self, node: Node, out: Any) -> None:
        if type(node.target) is OpOverload and effects(node.target).writes:
            self._rewrite_write(node, effects(node.target), out)
            return
        args, kwargs = node.args, node.kwargs
        node.args = map_nodes(args, self._read)
        node.kwargs = map_nodes(kwargs, self._read)
        self.nodes.append(node)
        source_node = (
            self._view_source(node.target, args, kwargs) if type(node.target) is OpOverload else None
        )
        for item, fake in _results(out):
            if fake.aten_node is None or fake.aten_node in self.fake_of:
                continue  # a returned argument
            if item is not None:
                self.nodes.append(fake.aten_node)
            source = self.fake_of[source_node] if source_node is not None else None
            if source_node is not None and source is not None and source.storage_key == fake.storage_key:
                self._enter_region(fake, source, node.target)
                self.fake_of[fake.aten_node] = fake
                self.views[id(fake)] = View(source, node.target, args, kwargs, source_node, node.spec, item)
                self.values[id(fake)] = (self._storage(fake).version, fake.aten_node)
            else:
                self._define(fake, fake.aten_node)

    def _enter_region(self, view: FakeTensor, source: FakeTensor, op: Any) -> None:
        """A view is in the region of its source, unless it may reach beyond it."""
        key = self.regions.get(id(source))
        if key is not None:
            if op is STRIDED:
                raise self.refuse(_SHARED)
            self.regions[id(view)] = key

    def _view_source(self, op: OpOverload, args: Args, kwargs: Kwargs) -> Node | None:
        """The recorded node that a view operator is applied to."""
        info = effects(op)
        if not info.view:
            return None
        name = next(r.arg for r in info.results if r.kind == "view")
        argument = info.argument(name, args, kwargs)
        return argument if isinstance(argument, Node) else None

    def _rewrite_write(self, node: Node, info: Effects, out: Any) -> None:
        """Rewrite a mutating operator: compute what it would write, then store that in the bases."""
        written = {name: self._written_fakes(info, node, name) for name in info.writes}
        fakes_written = [f for fs in written.values() for f in _flat(fs)]
        pure = pure_of(node.target)
        self._check_operands(fakes_written, node, pure is not None and pure.copies)
        if self.has_backward and _in_checkpoint(node) and any(self._storage(f).inputs for f in fakes_written):
            # for example the statistics of a batch norm
            raise refuse("a checkpoint writes an input tensor, and again when it is recomputed")
        if pure is None:
            raise self.refuse(f"{node.target} writes memory and has no pure form")
        arguments = {**dict(zip(info.names, node.args)), **node.kwargs}
        positional, keywords = _call_arguments(pure.op, arguments, node.target)
        filled = written[info.writes[0]]
        if info.random and type(filled) is FakeTensor and not is_dense_row_major(filled.spec):
            self._draw(node, pure.op, filled, positional[1:], keywords)
            return
        call = self.emit(pure.op, map_nodes(positional, self._read), map_nodes(keywords, self._read))
        has_several = isinstance(call.spec, tuple)
        if pure.n_results and has_several and isinstance(node.spec, tuple):
            call.spec = node.spec[: pure.n_results] + call.spec[pure.n_results :]
        has_one = len(pure.op._schema.returns) == 1  # which may be a list
        for name, fakes in written.items():
            value = call if has_one else self.item(call, pure.value_of[name])
            if isinstance(fakes, list):
                for i, fake in enumerate(fakes):
                    self._store(fake, self.item(value, i))
            elif fakes is not None:
                self._store(fakes, value)
        for item, fake in _results(out):  # results other than the written arguments
            if fake.aten_node is not None and fake.aten_node not in self.fake_of:
                fresh = self.item(call, item or 0) if has_several else call
                self._define(fake, fake.aten_node)
                self._storage(fake).value = fresh

    def _draw(
        self,
        node: Node,
        pure: OpOverload,
        fake: FakeTensor,
        trailing: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        """Draw random numbers into a tensor that is not contiguous."""
        order = None
        if not any(isinstance(a, Node) for a in (*trailing, *keywords.values())):
            order = draw_order(node.target, pure, fake.spec, trailing, keywords)
        if order is None:
            raise self.refuse("random numbers are drawn into a tensor that is not contiguous")
        permuted = self.emit(PERMUTE, (self.current(fake), list(order)))
        drawn = self.emit(pure, (permuted, *trailing), keywords)
        self._store(fake, self.emit(PERMUTE, (drawn, list(inverse(order)))))

    def _check_operands(self, written: Sequence[FakeTensor], node: Node, distinct: bool) -> None:
        """Raise Unsupported where a written tensor partly overlaps another operand, which eager refuses; or, if they must
        be `distinct`, is another operand."""
        fakes = [self.fake_of[n] for n in leaves((node.args, node.kwargs), Node) if n in self.fake_of]
        for target in written:
            others = [f for f in fakes if f.storage_key == target.storage_key]
            if any(partly_overlap(f.spec, target.spec, self.inputs.numbers.symbols) for f in others):
                raise self.refuse("operands share memory in part and one of them is written")
            if distinct and sum(_layout(f) == _layout(target) for f in others) > 1:
                raise self.refuse("operands of a custom operator share memory and one of them is written")

    def _written_fakes(self, info: Effects, node: Node, name: str) -> Any:
        argument = info.argument(name, node.args, node.kwargs)
        if isinstance(argument, (list, tuple)):
            return [self.fake_of[n] for n in argument]
        return None if argument is None else self.fake_of[argument]

    def _store(self, fake: FakeTensor, value: Node) -> None:
        """Set the value of `fake` to `value`, converted to its dtype and shape as by `copy_`."""
        storage = self._storage(fake)
        if storage.inputs > 1:
            raise self.refuse(_SHARED)
        if overlaps_itself(storage.base.spec) or self._overlaps_itself(fake):
            raise self.refuse("a write to a tensor whose elements share memory")
        spec = fake.spec
        if value.spec.shape != spec.shape or value.spec.dtype != spec.dtype:
            value = self.emit(COPY, (self.current(fake), value))
        while fake is not storage.base:
            view = self.views.get(id(fake))
            if view is None:
                raise self.refuse(_SHARED)
            value = scatter_back(self, view, self.current(view.source), value)
            fake = view.source
        storage.value = self._with_base_layout(value, storage)
        storage.version += 1

    def _overlaps_itself(self, fake: FakeTensor) -> bool:
        """`overlaps_itself`, without guards for views that preserve the absence of overlap."""
        source = fake
        while syms_of(source.spec) and (view := self.views.get(id(source))):
            if row(view.target).elements not in ("same", "once"):
                break
            source = view.source
        return source is not self._storage(fake).base and overlaps_itself(fake.spec)

    def _with_base_layout(self, value: Node, storage: _Storage) -> Node:
        """`value` with exactly the strides of the base, which later views rely on."""
        spec = storage.base.spec
        if value.spec.stride == spec.stride and value.spec.shape == spec.shape:
            return value
        return self.emit(COPY, (storage.value, value))

    # ---- nodes

    def emit(
        self, op: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None, spec: Any = None
    ) -> Node:
        """Append a node with the line and source of the operator being rewritten."""
        kwargs = kwargs or {}
        if spec is None:
            spec = result_spec(op, args, kwargs)
        stem = op.__name__ if op is operator.getitem else op._schema.name.split("::")[1].strip("_")
        node = Node("call_function", op, tuple(args), kwargs, self.tape.aten.name(stem), spec, *self.at)
        self.nodes.append(node)
        return node

    def item(self, node: Node, index: int) -> Node:
        return self.emit(operator.getitem, (node, index), spec=node.spec[index])


def _layout(fake: FakeTensor) -> tuple[Any, ...]:
    return fake.spec.offset, fake.spec.shape, fake.spec.stride


def _results(out: Any) -> Iterator[tuple[int | None, FakeTensor]]:
    """(index or None, fake) for each tensor that an operator returned."""
    if type(out) is FakeTensor:
        yield None, out
    elif isinstance(out, (list, tuple)):
        for i, value in enumerate(out):
            if type(value) is FakeTensor:
                yield i, value


def _call_arguments(op: OpOverload, arguments: dict[str, Any], original: OpOverload) -> tuple[Args, Kwargs]:
    """Named `arguments` as positional and keyword arguments of `op`. Missing ones have the default of `original`, the
    operator called at first."""
    defaults = {a.name: a.default_value for a in original._schema.arguments if a.has_default_value()}
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    skipped = False
    for argument in op._schema.arguments:
        name = argument.name
        if name not in arguments and argument.has_default_value():
            skipped = True
        elif argument.kwarg_only or skipped:
            keywords[name] = arguments.get(name, defaults.get(name))
        else:
            positional.append(arguments.get(name, defaults.get(name)))
    return tuple(positional), keywords
