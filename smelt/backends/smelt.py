"""smelt's backend: a trace becomes a callable that runs native plans.

`pipeline.compile_graph` compiles each graph. This module decides which graphs a trace consists of:

* without gradients, its aten graph; with gradients, the forward and the backwards that the joint graph is cut into
  (`autograd/compile_joint.py`);
* with unbacked sizes, the subgraphs between the operators that produce such sizes (`unbacked_subgraphs.py`).

Fixed and symbolic sizes take the same way. For symbolic sizes, `size_dispatch.py` selects the plan for the sizes of a call.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from smelt import _native, pipeline, targets
from smelt.autograd.compile_joint import compile_joint
from smelt.autograd.padded_saves import save_padded_results
from smelt.autograd.partition import Partition, level_of, partition
from smelt.autograd.save_costs import Hints
from smelt.backends.eager import eager, eager_beneath_node, eager_joint
from smelt.backends.size_dispatch import Instance, WithEagerFallback, dispatch_by_sizes, eager_fallback
from smelt.backends.unbacked_subgraphs import Run, SplitGraph, check_divisible, devices_of, run_in_parts
from smelt.config import Config
from smelt.errors import ArtifactError, BackendError, NeedsFixedSize, Unsupported
from smelt.graph.graph_callable import Compiled
from smelt.graph.ir import Graph
from smelt.graph.subgraphs import has_kernels
from smelt.graph.unbacked_sizes import is_unbacked
from smelt.recompile_limits import LocalSpecializations
from smelt.runtime import IDLE_ARENAS
from smelt.runtime.fork_locks import sizes_lock
from smelt.schedule.schedule import Schedule
from smelt.shapes.expr import Sym, Values
from smelt.shapes.substitute import substitute
from smelt.targets.target import Target
from smelt.tracing.backward.joint import Joint
from smelt.tracing.record.trace_at_sizes import traced_at, within_bounds
from smelt.tracing.record.traced import MadePlan, Role, SizeInput, Traced
from smelt.tracing.symbolic.symbolic_layouts import ITSELF, SizeSource
from smelt.verify.shadow_execution import ShadowExecution, compiled_of

log = logging.getLogger("smelt")
_running = threading.local()  # `run`: of a joint graph with unbacked sizes, whose last subgraph is to run

CompiledAt = Callable[
    [Values], Compiled
]  # the callable for concrete sizes; for fixed sizes, the argument is empty
RunEagerly = Callable[[Graph, frozenset[int]], Compiled]


def compile_graph(traced: Traced, config: Config) -> Compiled:
    """A callable from a tuple of the graph's input tensors to the tuple of its outputs.

    Raises Unsupported for graphs on a device without a target, NeedsFixedSize where no code is valid for all sizes,
    BackendError (chained) for a failure of the compiler itself.
    """
    if traced.unbacked is not None and traced.needs_grad and traced.joint is None:
        raise NeedsFixedSize("autograd follows a graph call by call, which checks no sizes", frozenset())
    if traced.needs_grad and traced.joint is None:  # autograd records the torch-level graph as it runs
        return eager(traced, config)
    try:
        if traced.unbacked is not None:
            return _with_unbacked_sizes(TraceCompiler(traced, config))
        if traced.sizes:
            return _with_symbolic_sizes(traced, config)
        return compile_trace(TraceCompiler(traced, config))({})
    except (Unsupported, ArtifactError):
        raise
    except Exception as error:
        raise BackendError(f"the smelt backend failed: {type(error).__name__}: {error}") from error


compile_graph.differentiates = True  # type: ignore[attr-defined]
compile_graph.takes_sizes = True  # type: ignore[attr-defined]
compile_graph.takes_data_sizes = True  # type: ignore[attr-defined]


@dataclass(frozen=True)
class TraceCompiler:
    """What the graphs of one trace have in common: the options, the devices, shadow execution (the option `verify`)."""

    traced: Traced
    config: Config

    @cached_property
    def devices(self) -> frozenset[torch.device]:
        """The devices of the graph's tensors."""
        return devices_of(self.traced.aten_graph)

    @cached_property
    def hints(self) -> Hints:
        """The symbols of the trace, and the sizes that it saw."""
        traced = self.traced
        backed = {sym: source.hint for sym, source in traced.sizes.items()}
        return backed if traced.unbacked is None else backed | dict(traced.unbacked.hints)

    def target(self, config: Config | None = None) -> Target:
        """A new target: torch's number of threads may have changed since the last graph."""
        return targets.factory(self.devices)(config or self.config)

    def compilation(self, sizes: Sequence[Sym] = ()) -> pipeline.Compilation:
        """How a graph of the trace with these symbols compiles."""
        is_rewritten = self.traced.joint is not None
        return pipeline.Compilation(self.config, self.target(), tuple(sizes), is_rewritten=is_rewritten)

    def compile(
        self,
        graph: Graph,
        run_eagerly: RunEagerly,
        donated: frozenset[int] = frozenset(),
        sizes: Sequence[Sym] = (),
        role: Role = ("graph",),
    ) -> CompiledAt:
        """Compiles a graph of the trace. `run_eagerly`: runs it at concrete sizes, for shadow execution."""
        report, on_plan = self.traced.on_plan, None
        if report is not None:

            def on_plan(plan: Any, values: Values) -> None:
                report(MadePlan(role, graph, plan, values))

        title = self._title(graph)
        compilation = replace(self.compilation(sizes), donated=donated, title=title, on_plan=on_plan)
        return self._shadow.wrap(pipeline.compile_graph(graph, compilation), graph, run_eagerly, donated)

    def compile_half(
        self, graph: Graph, donated: frozenset[int], sizes: tuple[Sym, ...], role: Role
    ) -> CompiledAt:
        """Compiles a forward or a backward."""
        return self.compile(graph, eager_beneath_node, donated, sizes, role)

    @cached_property
    def _shadow(self) -> ShadowExecution:
        def recompile(graph: Graph, config: Config) -> Compiled:
            compilation = replace(self.compilation(), config=config, target=self.target(config))
            return pipeline.compile_graph(graph, compilation)({})

        return ShadowExecution(self.config, recompile, self.traced.on_mismatch)

    def _title(self, graph: Graph) -> str:
        """The name of the graph in reports."""
        title = self.traced.title
        return title if self.traced.joint is None else f"{title} {level_of(graph)}".strip()


# ---------------------------------------------------------------------------------------- fixed and symbolic sizes


def compile_trace(compiler: TraceCompiler) -> Callable[..., Compiled]:
    """Compiles a trace without unbacked sizes. Returns `at(values, on_load)`: the callable for concrete sizes; `on_load`
    receives each compiled graph of it, those of backwards when a gradient needs them."""
    traced = compiler.traced
    if traced.joint is None:
        compiled_at = compiler.compile(traced.aten_graph, _run_eagerly, sizes=tuple(traced.sizes))

        def at(values: Values, on_load: Callable[[Compiled], object] = lambda compiled: None) -> Compiled:
            compiled = compiled_at(values)
            on_load(compiled)
            return compiled

        return at
    joint, lay_out = _rewritten(compiler, traced.joint)
    target = compiler.target()
    if target.warm_up is not None and not traced.sizes:
        target.warm_up(joint.graph, joint.backward)
    return compile_joint(
        traced,
        joint,
        compiler.config,
        compiler.compile_half,
        eager_beneath_node,
        lay_out,
        compiler.devices,
        compiler.hints,
    )


def _rewritten(compiler: TraceCompiler, joint: Joint) -> tuple[Joint, Callable[[Partition], Partition]]:
    """The joint graph after the passes, and how the saved values of its partition are laid out."""
    compilation = compiler.compilation(tuple(compiler.hints))
    joint = pipeline.run_joint_passes(joint, compilation)
    if compilation.sizes:
        return joint, lambda parts: parts
    return joint, partial(save_padded_results, costs=compilation.target.costs)


def _with_symbolic_sizes(captured: Traced, config: Config) -> Compiled:
    graph = captured.aten_graph if captured.joint is None else captured.joint.graph
    if has_kernels(graph):
        raise NeedsFixedSize("kernels of the program's", frozenset(captured.sizes))
    traced = within_bounds(captured)
    compiler = TraceCompiler(traced, config)
    try:
        compiled_at = compile_trace(compiler)
    except NeedsFixedSize as error:
        names = {sym.name for sym in error.symbols}
        named = frozenset(sym for sym in captured.sizes if sym.name in names)
        error.symbols = named or frozenset(captured.sizes)
        raise

    def run_eagerly(values: Values) -> Compiled:
        concrete = traced_at(traced, values)
        if concrete.joint is None:
            return eager_fallback(concrete.aten_graph)
        return eager_joint(concrete, concrete.joint, config)

    budgets = _Budgets()

    def create(values: Values) -> Instance:
        return (compiled_at(values, budgets.of_instance()),)

    with_fallback = WithEagerFallback(traced.compile_deferred, create, run_eagerly, compiler.hints)
    return dispatch_by_sizes(traced.sizes, with_fallback, budget=budgets.forwards)


class _Budgets:
    """Budgets of the memory that the forwards, or the only plans, and the backwards of one graph hold between calls."""

    def __init__(self) -> None:
        self.forwards = _native.ArenaBudget(IDLE_ARENAS)
        self._backwards = _native.ArenaBudget(IDLE_ARENAS, self.forwards)

    def of_instance(self) -> Callable[[Compiled], object]:
        """A function to call with the forward of an instance, then with its backwards."""
        budgets = itertools.chain((self.forwards,), itertools.repeat(self._backwards))
        return lambda compiled: _add_plan(next(budgets), compiled)


def _add_plan(budget: _native.ArenaBudget, compiled: Compiled) -> bool:
    """Whether `compiled` runs a plan, whose memory then counts in the budget."""
    plan = compiled_of(compiled)
    if not isinstance(plan, _native.Plan):
        return False
    budget.add(plan)
    return True


def _run_eagerly(graph: Graph, donated: frozenset[int]) -> Compiled:
    return eager_fallback(graph)


# ---------------------------------------------------------------------------------------------------- unbacked sizes


def _with_unbacked_sizes(compiler: TraceCompiler) -> Compiled:
    """Raises NeedsFixedSize for graphs that cannot be split at their unbacked sizes."""
    traced = compiler.traced
    if traced.joint is None:
        return run_in_parts(traced, partial(_compile_subgraph, compiler))
    check_divisible(traced)
    return _joint_with_unbacked_sizes(compiler, traced.joint)


def _compile_subgraph(compiler: TraceCompiler, graph: Graph, sizes: Mapping[Sym, SizeInput]) -> Compiled:
    """Compiles a subgraph between operators that produce unbacked sizes.

    These sizes are known only while the graph runs, so capture cannot specialize them. A subgraph without code for all sizes
    is specialized here.
    """
    if not sizes:
        return compiler.compile(graph, _run_eagerly)({})
    specializations = LocalSpecializations(compiler.config)

    def specialize(values: Values) -> Compiled:
        concrete = substitute(graph, values)
        if specializations.allow_another():
            return compiler.compile(concrete, _run_eagerly)({})
        return eager_fallback(concrete)

    try:
        compiled_at = compiler.compile(graph, _run_eagerly, sizes=tuple(sizes))
    except NeedsFixedSize as error:
        log.info("smelt: a graph is compiled for each set of unbacked sizes: %s", error.reason.detail)
        compiled_at = specialize

    budget = _native.ArenaBudget(IDLE_ARENAS)

    def create(values: Values) -> Instance | Compiled:
        compiled = compiled_at(values)
        return (compiled,) if _add_plan(budget, compiled) else compiled

    with_fallback = WithEagerFallback(
        compiler.traced.compile_deferred, create, lambda values: eager_fallback(substitute(graph, values))
    )

    def instance(values: Values) -> Instance | Compiled:
        return with_fallback.eager(values) if _has_excluded_size(values) else with_fallback(values)

    return dispatch_by_sizes(sizes, instance, prepare=False, budget=budget)


def _joint_with_unbacked_sizes(compiler: TraceCompiler, joint: Joint) -> Compiled:
    """The forward runs until all sizes are known; then the autograd node for these sizes runs its remainder."""
    traced, hints = compiler.traced, compiler.hints
    assert traced.unbacked is not None
    unbacked = {
        sym: SizeInput(ITSELF, SizeSource(ITSELF), hint) for sym, hint in traced.unbacked.hints.items()
    }
    splits: list[SplitGraph] = []

    def finish(tensors: tuple[Any, ...]) -> Sequence[Any]:
        run: Run = _running.run
        return splits[0].finish(run)

    def compile_half(graph: Graph, donated: frozenset[int], sizes: tuple[Sym, ...], role: Role) -> CompiledAt:
        if not splits:  # the forward
            splits.append(SplitGraph(traced, graph, partial(_compile_subgraph, compiler)))
            return lambda values: finish
        backward_at = compiler.compile_half(graph, donated, sizes, role)

        def compiled_at(values: Values) -> Compiled:
            if _has_excluded_size(values):
                return eager_beneath_node(substitute(graph, values), donated)
            return backward_at(values)

        return compiled_at

    joint_at = compile_joint(
        replace(traced, sizes={**traced.sizes, **unbacked}),
        joint,
        compiler.config,
        compile_half,
        eager_beneath_node,
        devices=compiler.devices,
        hints=hints,
    )
    (split,) = splits

    budgets = _Budgets()

    def node(numbers: tuple[int, ...]) -> Instance:
        values = {**hints, **dict(zip(split.symbols, numbers, strict=True))}
        return (joint_at(values, budgets.of_instance()),)

    sources = [(0, ITSELF, 1, None, False)] * len(split.symbols)  # nothing is read from inputs
    nodes = _native.SizeDispatch(sources, node, sizes_lock, budgets.forwards)

    def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
        run = split.start(tensors)
        compiled = nodes.prepare(tuple([run.values[s] for s in split.symbols]))
        before = getattr(_running, "run", None)
        _running.run = run
        try:
            return compiled((*tensors, *split.numbers_of(run)))
        finally:
            _running.run = before

    return call


def _has_excluded_size(values: Values) -> bool:
    """Whether an unbacked size is 0 or 1, for which code for all sizes is not valid."""
    return any(number < 2 and is_unbacked(sym) for sym, number in values.items())


# ---------------------------------------------------------------------------------------------------- for reports


def inference_schedules(traced: Traced, config: Config) -> list[Schedule]:
    """The schedules that a trace runs where no gradients are needed, one for each of its subgraphs. Raises Unsupported for
    graphs on a device without a target."""
    graphs = [traced.forward_graph]
    if traced.unbacked is not None:

        def record(graph: Graph, sizes: Mapping[Sym, SizeInput]) -> Compiled:
            graphs.append(graph)
            return eager_fallback(graph)

        SplitGraph(traced, graphs.pop(), record)
    c = replace(TraceCompiler(traced, config).compilation(), is_rewritten=False)
    return [pipeline.fuse_program(pipeline.lower_graph(pipeline.run_passes(g, c), c), c) for g in graphs]


def cut_for_training(traced: Traced, config: Config) -> tuple[Joint, Partition]:
    """The joint graph of `traced`, which must have one, after the passes, and the forward and backward that `compile_graph`
    cuts it into. Raises Unsupported for graphs on a device without a target."""
    assert traced.joint is not None
    compiler = TraceCompiler(traced, config)
    joint, lay_out = _rewritten(compiler, traced.joint)
    return joint, lay_out(partition(joint, config, compiler.hints))
