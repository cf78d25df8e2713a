"""Lowering: from an aten graph to lazy tensors and ATen calls. It decides nothing about loops or memory.

Lowerings come from the registry. An operator without one, or with a dtype that loops do not compute in, stays an ATen
call (`Extern`). Dead operators disappear.
"""

from __future__ import annotations

import operator
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from smelt.cost_model import Costs
from smelt.graph.input_writes import WRITE_INPUT
from smelt.graph.ir import Graph, Node, NumberSpec, TensorSpec, argument_nodes
from smelt.graph.operator_effects import is_effectful
from smelt.graph.pytree import leaves, map_leaves
from smelt.graph.user_kernel_calls import RUN_KERNEL_FUNCTIONAL
from smelt.loops.compute_dtypes import LOWERABLE
from smelt.loops.lazy_tensor import GAP, CopyBack, Extern, Insert, Map, Number, Program, Step, Stored, Tensor
from smelt.loops.loop_values import index as index_value
from smelt.loops.lowering_builder import Builder
from smelt.ops.conj_neg_outputs import is_part, only_returned, with_signs_apart
from smelt.ops.donated_inputs import is_empty, overwriting
from smelt.ops.linalg_fft import only_values
from smelt.ops.lone_operators import WHY as LONE
from smelt.ops.lone_operators import is_better_alone, readers
from smelt.ops.may_raise import may_raise, must_run, numbers_to_fit
from smelt.ops.node_builders import CLONE, FULL
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import row
from smelt.shapes.expr import Expr, Size, bounds, contiguous_stride, numel, proves_le
from smelt.torch_private import OpOverload

aten = torch.ops.aten


def lower(graph: Graph, costs: Costs) -> Program:
    """The program of an aten-level, functionalized graph (in-place operators only as final `copy_` to inputs)."""
    return _Lowerer(with_signs_apart(graph), costs).run()


class _Lowerer:
    def __init__(self, graph: Graph, costs: Costs) -> None:
        self.graph, self.costs = graph, costs
        self.inputs: list[Tensor] = []
        self.constants: list[tuple[Tensor, torch.Tensor]] = []
        self.steps: list[Step] = []
        self.outputs: tuple[Tensor | None, ...] = ()
        self.values: dict[Node, Any] = {}
        self.uses = _live_uses(graph)
        self.readers = readers(graph)
        self.overwriting = overwriting(graph, frozenset(n for n in graph if self.runs(n)))
        self.held: set[Tensor] = set()  # inputs and constants
        self.empty: set[Tensor] = set()  # nothing is in their memory yet
        self.filled: set[Tensor] = set()  # but in parts of theirs
        self.results_used = self._results_used()
        self.copies: list[CopyBack] = []
        self.calls_last: list[Extern] = []  # overwrite inputs whose dtype loops do not compute in
        self.order = 0

    def run(self) -> Program:
        for node in self.graph:
            if node.op == "placeholder":
                self.inputs.append(self.input(node))
            elif node.op == "get_attr":
                tensor = self.stored(node)
                self.constants.append((tensor, self.graph.constants[node.target]))
            elif node.op == "output":
                self.outputs = tuple([self.value(x) for x in node.args[0]])
                self.finish()
            elif node.target is operator.getitem:
                self.values[node] = (
                    self.values.get(node.args[0], ())[node.args[1]] if self.uses[node] else None
                )
            elif self.runs(node):
                self.values[node] = self.call(node)
        return Program(tuple(self.inputs), tuple(self.constants), tuple(self.steps), self.outputs)

    def runs(self, node: Node) -> bool:
        """Whether a node's result has a reader, or the node has other effects."""
        return bool(node.op == "output" or self.uses[node] or must_run(node))

    def input(self, node: Node) -> Tensor:
        if not isinstance(node.spec, NumberSpec):
            return self.stored(node)
        spec = TensorSpec((), (), node.spec.dtype, torch.device("cpu"))
        number = self.values[node] = Number(node.name, spec, Stored(), node.line, self.next())
        return number

    def stored(self, node: Node) -> Tensor:
        tensor = self.values[node] = Tensor(node.name, node.spec, Stored(), node.line, self.next())
        self.held.add(tensor)
        return tensor

    def next(self) -> int:
        self.order += GAP
        return self.order

    def value(self, tree: Any) -> Any:
        return map_leaves(tree, Node, self.values.__getitem__)

    def call(self, node: Node) -> Any:
        args, kwargs = self.value(node.args), self.value(node.kwargs)
        if not self.uses[node] and self.is_idle(node, args, kwargs):
            return None
        if node.target is WRITE_INPUT:
            return args[0] if args[0] is args[1] else self.copy_back(node, *args[:2])
        if node in self.overwriting and self.overwrite(node, args, kwargs):
            return args[0]
        entry = row(node.target).lowering
        if node.target is aten._neg_view.default and not only_returned(self.graph, node):
            entry = row(aten.neg.default).lowering  # kernels read memory, which is not negated yet
        arguments = args, kwargs
        if (
            entry is not None
            and isinstance(node.target, OpOverload)
            and torch.Tag.pointwise in node.target.tags
        ):
            args, kwargs = self.constants_on_device(node, args, kwargs)
        numbers: list[Tensor] = []
        if entry is not None and not row(node.target).takes_sizes:
            args, kwargs, numbers = self.sizes_as_numbers(node, args, kwargs)
        why = _no_loops(node, entry is not None, args, kwargs)
        if is_better_alone(node, arguments, self.readers[node], self.costs):
            why = LONE
        if entry is not None and not why:
            builder = Builder(_short(node), node.spec, _device(node.spec), node.line, self.costs)
            result = entry(builder, *args, **kwargs)
            if result is not None and self.gives_what_is_used(node, result):
                self.check_numbers(node, *arguments)
                self.steps += numbers
                return self.adopt(node, builder, result)
            why = _left_to_aten(node)
        return self.extern(node, *arguments, why)

    def is_idle(self, node: Node, args: Any, kwargs: Any) -> bool:
        """Whether a node without readers was retained only because it might raise, and cannot."""
        safe = row(node.target).safe
        return safe is not None and not is_effectful(node.target) and safe(*args, **kwargs)

    def constants_on_device(self, node: Node, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of an elementwise operator, with constants on its device in place of CPU constants that the
        graph creates (`torch.vmap` makes them of Python's numbers): they need not be materialized."""

        def moved(x: Tensor) -> Tensor:
            made = isinstance(x.definition, Map) and not x.inputs and x.spec.shape == ()
            if not made or x.spec.device.type != "cpu" or _device(node.spec) == x.spec.device:
                return x
            spec = replace(x.spec, device=_device(node.spec))
            here = Tensor(x.name, spec, x.definition, x.line, self.next())
            self.steps.append(here)
            return here

        changed: tuple[Any, Any] = map_leaves((args, kwargs), Tensor, moved)
        return changed

    def sizes_as_numbers(self, node: Node, args: Any, kwargs: Any) -> tuple[Any, Any, list[Tensor]]:
        """The arguments with a `Number` in place of each symbolic size that stands for a number, and those numbers."""
        made: list[Tensor] = []

        def number(size: Expr) -> Number:
            spec, value = TensorSpec((), (), torch.int64, _device(node.spec)), index_value(size)
            tensor = Number("size", spec, Map((), lambda load, index: value, 0.0), node.line, self.next())
            made.append(tensor)
            return tensor

        takes = _numbers(node.target) if leaves([args, kwargs], Expr) else frozenset()
        args = [number(x) if isinstance(x, Expr) and k in takes else x for k, x in enumerate(args)]
        kwargs = {k: number(x) if isinstance(x, Expr) and k in takes else x for k, x in kwargs.items()}
        return tuple(args), kwargs, made

    def gives_what_is_used(self, node: Node, result: Any) -> bool:
        """Whether a lowering returned all results that are used; it returns None for results that are normally dead."""
        if not isinstance(result, tuple) or None not in result:
            return True
        used = self.results_used[node]
        return all(r is not None or i not in used for i, r in enumerate(result))

    def _results_used(self) -> dict[Node, set[int]]:
        """The results that have readers, for each node with several."""
        used: dict[Node, set[int]] = defaultdict(set)
        for node in self.graph:
            if node.target is operator.getitem and self.uses[node]:
                used[node.args[0]].add(node.args[1])
        return used

    def output_mask(self, node: Node, args: Any) -> tuple[Any, list[bool] | None]:
        """The arguments of a call with an output mask, restricted to the used results, and which those are."""
        at = _output_mask(node.target)
        if at is None or at >= len(args) or not isinstance(node.spec, tuple | list):
            return args, None
        used = self.results_used[node]
        mask = [bool(wanted) and i in used for i, wanted in enumerate(args[at])]
        return (*args[:at], mask, *args[at + 1 :]), mask

    def adopt(self, node: Node, builder: Builder, result: Any) -> Any:
        """Give the results the trace's layout, and every new tensor its position in the program."""
        results = result if isinstance(result, tuple) else (result,)
        specs = node.spec if isinstance(result, tuple) else (node.spec,)
        fresh = {
            id(r) for step in builder.made for r in (step.results if isinstance(step, Extern) else (step,))
        }
        results = tuple(
            _renamed(r if r is None or id(r) in fresh else self.own_copy(builder, r), builder.name)
            for r in results
        )
        for tensor, spec in zip(results, specs):
            if tensor is not None:
                tensor.spec = replace(spec, requires_grad=False) if spec.requires_grad else spec
        for step in builder.made:
            for made in (*step.results, step) if isinstance(step, Extern) else (step,):
                if made is not None:
                    made.order = self.next()
            self.steps.append(step)
        return results if isinstance(result, tuple) else results[0]

    def own_copy(self, builder: Builder, tensor: Tensor) -> Tensor:
        """A copy of a result that the lowering did not create, such as a returned argument."""
        return builder.copy(tensor, tensor.shape, lambda index: index)

    def overwrite(self, node: Node, args: Any, kwargs: Any) -> bool:
        """Let a call write an input or memory to fill, its first argument (`ops/donated_inputs.py`); whether it does."""
        is_input, is_filled = args[0] in self.inputs, args[0] in self.filled
        if not (is_input or is_filled or args[0] in self.empty) or leaves([args, kwargs], Number):
            return False
        entry = row(node.target)
        if entry.insert is not None and _lowerable(node, args, kwargs):
            builder = Builder(_short(node), node.spec, _device(node.spec), node.line, self.costs)
            insert = entry.insert(builder, *args, **kwargs)
            if insert is not None and (is_input or is_filled or self.may_begin(insert)):
                for step in (*builder.made, insert):
                    step.order = self.next()
                    self.steps.append(step)
                if not is_input:
                    self.filled.add(args[0])
                return True
        if entry.in_place is None or not is_input:
            return False
        call = Extern(entry.in_place, tuple(args), kwargs, (None,), _short(node), node.line, self.next())
        call.raises = may_raise(node)
        self.steps.append(call)
        return True

    def may_begin(self, insert: Insert) -> bool:
        """Whether to fill memory segment by segment, starting with this one: if it is large and each segment comes
        from one result of an ATen call, which is then freed early. Otherwise one kernel computes all."""
        source = insert.source
        while isinstance(source.definition, Map) and len(source.inputs) == 1:
            source = source.inputs[0]
        is_result = isinstance(source.definition, Stored) and source not in self.held
        work = bounds(numel(insert.source.shape))[1] * (self.costs.load + self.costs.store)
        return is_result and work > self.costs.launch

    def extern(self, node: Node, args: Any, kwargs: Any, why: str) -> Any:
        specs = node.spec if isinstance(node.spec, tuple | list) else (node.spec,)
        args, mask = self.output_mask(node, args)
        if mask is not None:
            specs = tuple(spec if wanted else None for spec, wanted in zip(specs, mask, strict=True))
        op = with_number(node.target, args)
        narrowed = only_values(op, args, self.results_used[node])
        if narrowed is not None:
            op, args = narrowed
            specs = tuple(spec if i in self.results_used[node] else None for i, spec in enumerate(specs))
        results = tuple(
            Tensor(_short(node), spec, Stored(), node.line, self.next())
            if isinstance(spec, TensorSpec)
            else None
            for spec in specs
        )
        returned = results if narrowed is None else results[: len(op._schema.returns)]
        step = Extern(
            op, tuple(args), kwargs, returned, _short(node), node.line, self.next(), may_raise(node), why
        )
        self.steps.append(step)
        if is_empty(node):
            self.empty.update(r for r in results if r is not None)
        return results if isinstance(node.spec, tuple | list) else results[0]

    def check_numbers(self, node: Node, args: Any, kwargs: Any) -> None:
        """Add an ATen call for each number that may not fit the dtype it is converted to: it raises, loops cannot."""
        for number, dtype in numbers_to_fit(node, args, kwargs):
            call = Extern(
                FULL,
                ([2], number),
                {"dtype": dtype},
                (None,),
                "fits",
                node.line,
                self.next(),
                True,
            )
            self.steps.append(call)

    def copy_back(self, node: Node, target: Tensor, source: Any) -> Tensor:
        """Add the final copy to an input. Inputs are overwritten at the end, so all readers see old values. `held`:
        where the new value can wait if it is needed in memory before."""
        unlike = target.dtype not in LOWERABLE or getattr(source, "dtype", target.dtype) not in LOWERABLE
        if unlike or _is_written_by_kernel(node.args[1]):
            return self.copy_call(node, target, source)
        builder = Builder("copy_", node.spec, target.spec.device, node.line, self.costs)
        held = builder.pointwise(
            lambda v: v, [source], getattr(source, "dtype", target.dtype), target.dtype, 0.5, target.shape
        )
        held.order = self.next()
        self.steps.append(held)
        final = builder.copy(held, held.shape, lambda index: index)
        final.spec = replace(target.spec, requires_grad=False)
        self.copies.append(CopyBack(target, final, node.line))
        return target

    def copy_call(self, node: Node, target: Tensor, source: Any) -> Tensor:
        """The copy as an ATen call. If `source` shares memory with an input, its old value is read at this point."""
        if _may_alias_input(node.args[1]):
            spec = replace(source.spec, stride=contiguous_stride(source.shape), offset=0, requires_grad=False)
            held = Tensor("clone", spec, Stored(), node.line, self.next())
            kwargs: dict[str, object] = {"memory_format": torch.contiguous_format}
            self.steps.append(Extern(CLONE, (source,), kwargs, (held,), "clone", node.line, self.next()))
            source = held
        self.calls_last.append(Extern(WRITE_INPUT, (target, source), {}, (None,), "copy_", node.line))
        return target

    def finish(self) -> None:
        for copy in self.copies:
            copy.source.order, copy.order = self.next(), self.next()
            self.steps += [copy.source, copy]
        for call in self.calls_last:
            call.order = self.next()
            self.steps.append(call)


def _is_written_by_kernel(node: Any) -> bool:
    """Whether a value is a user kernel's result: only a copy of such a value may be elided (`plan/inplace_kernels.py`)."""
    return (
        isinstance(node, Node)
        and node.target is operator.getitem
        and node.args[0].target is RUN_KERNEL_FUNCTIONAL
    )


def _may_alias_input(node: object) -> bool:
    """Whether a value is an input or constant, or a view of one."""
    while isinstance(node, Node) and is_part(node):
        node = node.args[0]
    return isinstance(node, Node) and node.op in ("placeholder", "get_attr")


def _live_uses(graph: Graph) -> Counter[Node]:
    """The number of live uses of each node."""
    uses: Counter[Node] = Counter()
    for node in reversed(graph.nodes):
        if node.op == "output" or uses[node] or (node.op == "call_function" and must_run(node)):
            uses.update(argument_nodes(node))
    return uses


def with_number(op: Any, args: tuple[Any, ...]) -> Any:
    """The overload that takes a number where the call passes one for a tensor operand."""
    if not isinstance(op, OpOverload):
        return op
    numbers = frozenset(
        i for i, (x, a) in enumerate(zip(args, op._schema.arguments))
        if isinstance(x, int | float | complex | Expr) and isinstance(a.type, torch.TensorType)
    )  # fmt: skip
    return _number_overload(op, numbers) if numbers else op


@cache
def _numbers(op: Any) -> frozenset[int | str]:
    """Positions and names of the arguments that accept a number which is not a size."""
    arguments = op._schema.arguments if isinstance(op, OpOverload) else ()
    found = [(k, a) for k, a in enumerate(arguments) if _NUMBER.fullmatch(str(a.type))]
    return frozenset(key for k, a in found for key in (k, a.name))


_NUMBER = re.compile(r"(Optional\[)?(number|float|Tensor)\]?")


@cache
def _output_mask(op: Any) -> int | None:
    """The position of the argument that selects the computed results."""
    names = [a.name for a in op._schema.arguments] if isinstance(op, OpOverload) else []
    return names.index("output_mask") if "output_mask" in names else None


@cache
def _number_overload(op: OpOverload, numbers: frozenset[int]) -> OpOverload:
    names = [a.name for a in op._schema.arguments]
    for name in op.overloadpacket.overloads():
        other = getattr(op.overloadpacket, name)
        arguments = other._schema.arguments
        if [a.name for a in arguments] != names:
            continue
        if all(isinstance(a.type, torch.TensorType) is not (i in numbers) for i, a in enumerate(arguments)
               if isinstance(op._schema.arguments[i].type, torch.TensorType)):  # fmt: skip
            return other
    return op


def _lowerable(node: Node, args: Any, kwargs: Any) -> bool:
    """Whether loops can compute the node: known dtypes, one device, and elements (components of a larger tensor may be
    empty). CPU scalars beside GPU tensors are allowed if they are already in memory: the kernel receives their values.
    """
    specs = (
        [node.spec] if isinstance(node.spec, TensorSpec) else [s for s in node.spec or () if s is not None]
    )
    first = specs[0]
    found = leaves([args, kwargs], (Tensor, complex))
    read = [t for t in found if isinstance(t, Tensor)]
    tensors = [t.spec for t in read]
    empty = any(_may_be_empty(s.shape) for s in specs[:1] + tensors)
    if empty and (node.target is not aten.cat.default or _may_be_empty(first.shape)):
        return False
    if len(tensors) < len(found):
        return False
    numbers = {id(t.spec) for t in read if _is_number_on_cpu(t)}
    return all(
        s.dtype in LOWERABLE and (s.device == first.device or id(s) in numbers) for s in specs[:1] + tensors
    )


def _no_loops(node: Node, has_lowering: bool, args: Any, kwargs: Any) -> str:
    """Why an operator is an ATen call, for display; empty if its lowering may be asked."""
    if not has_lowering:
        return "it has no lowering to loops: ATen's kernel does it"
    if not _lowerable(node, args, kwargs):
        return "loops do not compute these dtypes, tensors without elements, or tensors of two devices"
    if not _takes_numbers(node, args, kwargs):
        return "a number that a call brings stands where its lowering, or the dtype, needs to know it"
    return ""


def _left_to_aten(node: Node) -> str:
    """Why an operator whose lowering was asked is an ATen call."""
    if row(node.target).recompute is Class.PRODUCT:
        return "a product or convolution: ATen's library does it, where no code is generated for these sizes"
    return "for these arguments, or results, its lowering leaves the work to ATen's kernel"


def _may_be_empty(shape: Sequence[Size]) -> bool:
    return 0 in shape or any(not isinstance(n, int) and not proves_le(1, n) for n in shape)


def _is_number_on_cpu(tensor: Tensor) -> bool:
    return (
        isinstance(tensor.definition, Stored) and tensor.spec.shape == () and tensor.spec.device.type == "cpu"
    )


def _takes_numbers(node: Node, args: Any, kwargs: Any) -> bool:
    """Whether a lowering accepts the unknown numbers among its arguments. If a number may not fit the dtype to which
    it is converted, ATen computes, which checks that."""
    numbers = leaves([args, kwargs], Number)
    if not numbers:
        return True
    if not row(node.target).takes_numbers:
        return False
    dtypes = {t.dtype for t in leaves([args, kwargs], Tensor)} | {node.spec.dtype}
    truncates = node.spec.dtype is torch.int64 and any(n.type is float for n in numbers)
    return dtypes.isdisjoint(_NARROW) and not truncates


_NARROW = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32})


def _device(spec: Any) -> torch.device:
    """The device of the first result that is present; a backward's first result may be None."""
    found = spec if isinstance(spec, TensorSpec) else next(s for s in spec if s is not None)
    return found.device  # type: ignore[no-any-return]


def _short(node: Node) -> str:
    """`native_layer_norm` of `aten.native_layer_norm.default`."""
    op = node.target
    name = op._schema.name.split("::")[-1] if isinstance(op, OpOverload) else getattr(op, "__name__", str(op))
    return str(name).strip("_")


def _renamed(tensor: Tensor | None, name: str) -> Tensor | None:
    if tensor is not None:
        tensor.name = name
    return tensor
