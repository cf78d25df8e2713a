"""smelt's own backend: an aten graph becomes loops, kernels, machine code and a plan."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch

from smelt import _native, events, targets
from smelt.autograd.compile_joint import CompileGraph, compile_joint, joint_by_sizes
from smelt.autograd.padded_saves import save_padded_results
from smelt.autograd.partition import Partition, level_of, partition
from smelt.backends.eager import beneath_a_node, eager
from smelt.backends.size_dispatch import (
    LOCK,
    MOST_COMPILED,
    EachCompiled,
    Instance,
    OrByOperators,
    by_sizes,
    eager_fallback,
)
from smelt.backends.unbacked_subgraphs import CompilePart, Parts, Run
from smelt.config import Config
from smelt.errors import ArtifactError, BackendError, NeedsFixedSize, Unsupported
from smelt.graph import subgraphs
from smelt.graph.graph_callable import Compiled
from smelt.graph.ir import Graph, NumberSpec, TensorSpec
from smelt.graph.substitute_sizes import at_sizes, depends_inside
from smelt.graph.unbacked_sizes import is_unbacked
from smelt.graph.verify_graph import verify as verify_graph
from smelt.ops.lowering import lower
from smelt.plan.build_plan import build_plan
from smelt.plan.plan_template import Loader, Template
from smelt.plan.steps import CPU, Plan, extern_names, kernel_names
from smelt.plan.target import Decided, Target
from smelt.plan.verify_plan import verify as verify_plan
from smelt.rewrites.aligned_gemm import align_products
from smelt.rewrites.attention.attention_rewrite import fuse_attention
from smelt.rewrites.channels_last import to_channels_last
from smelt.rewrites.chunked_gemm import in_chunks
from smelt.schedule.schedule import Schedule
from smelt.schedule.schedule_program import fuse
from smelt.schedule.verify_schedule import verify as verify_schedule
from smelt.shapes.expr import Sym, Values
from smelt.tracing.backward.joint import Joint
from smelt.tracing.fake.returned_views import allow_inplace_writes
from smelt.tracing.record.trace_at_sizes import traced_at, within_bounds
from smelt.tracing.record.traced import SizeInput, Traced
from smelt.tracing.symbolic.symbolic_layouts import ITSELF, SizeSource
from smelt.verify.shadow_execution import Watching, compiled_of

log = logging.getLogger("smelt")


def compile_graph(traced: Traced, config: Config) -> Compiled:
    """A callable from a tuple of the graph's input tensors to the tuple of its outputs.

    Raises Unsupported for graphs on a device without a target, NeedsFixedSize for those that cannot be for any sizes,
    BackendError (chained) for a failure of the compiler itself.
    """
    if traced.unbacked is not None and traced.needs_grad and traced.joint is None:
        raise NeedsFixedSize("autograd follows a graph call by call, which checks no sizes", frozenset())
    if traced.needs_grad and traced.joint is None:  # autograd records the torch-level graph as it runs
        return eager(traced, config)
    try:
        if traced.unbacked is not None:
            return _in_parts(traced, config)
        if traced.sizes:
            return _for_any_sizes(traced, config)
        return _for_fixed_sizes(traced, config)
    except (Unsupported, ArtifactError):
        raise
    except Exception as error:
        raise BackendError(f"the smelt backend failed: {type(error).__name__}: {error}") from error


compile_graph.differentiates = True  # type: ignore[attr-defined]
compile_graph.takes_sizes = True  # type: ignore[attr-defined]
compile_graph.takes_data_sizes = True  # type: ignore[attr-defined]


def _for_fixed_sizes(traced: Traced, config: Config, plans: list[_native.Plan] | None = None) -> Compiled:
    """`plans`: where all plans go, those of backwards when they are made."""
    devices = _devices(traced)
    maker = targets.maker(devices)
    target = maker(config)

    def compile_part(graph: Graph, given: frozenset[int], target: Target) -> _native.Plan:
        plan = _compile(graph, config, target, given, _title(traced, graph))
        if plans is not None:
            plans.append(plan)
        return plan

    watch = _watching(traced, config)
    if traced.joint is None:
        plan = compile_part(_prepared(traced.aten_graph, target), frozenset(), target)
        return watch.beside(plan, traced.aten_graph, eager_fallback)
    joint = _prepared_joint(traced.joint, target)
    if target.warm_up is not None:
        target.warm_up(joint.graph, joint.backward)

    # A new target for each graph: torch's number of threads may have changed.
    def compile_graph(graph: Graph, given: frozenset[int]) -> Compiled:
        plan = compile_part(graph, given, maker(config))
        return watch.beside(plan, graph, partial(beneath_a_node, given=given), given)

    lay_out = partial(save_padded_results, costs=target.costs)
    return compile_joint(traced, joint, config, compile_graph, beneath_a_node, lay_out, devices)


def _watching(traced: Traced, config: Config) -> Watching:
    """What has graphs of the trace compared with eager, where the options ask for it."""
    devices = _devices(traced)

    def recompile(graph: Graph, config: Config) -> Compiled:
        target = targets.maker(devices)(config)
        return _compile(_prepared(graph, target) if traced.joint is None else graph, config, target)

    return Watching(config, recompile, traced.on_mismatch)


def _title(traced: Traced, graph: Graph) -> str:
    """What people call a graph of the trace, or a part of it."""
    return traced.title if traced.joint is None else f"{traced.title} {level_of(graph)}".strip()


def _prepared(graph: Graph, target: Target) -> Graph:
    """The graph with the device's kernels for attention, and the layouts that its convolutions are fast in."""
    if target.attention is not None:
        graph = fuse_attention(graph, target.attention).graph
    return _laid_out(graph, target)


def _laid_out(graph: Graph, target: Target) -> Graph:
    return to_channels_last(graph).graph if target.channels_last else graph


def _prepared_joint(joint: Joint, target: Target) -> Joint:
    """The same of a joint graph, before it is cut: so what is saved is what the kernels' backwards read."""
    if target.attention is not None:
        fused = fuse_attention(joint.graph, target.attention, joint.backward)
        joint = replace(joint, graph=fused.graph, backward=fused.backward)
    return _joint_laid_out(joint, target)


def _joint_laid_out(joint: Joint, target: Target) -> Joint:
    if not target.channels_last:
        return joint
    made = to_channels_last(joint.graph, joint.backward)
    return replace(joint, graph=made.graph, backward=made.backward)


def _compile(
    graph: Graph, config: Config, target: Target, given: frozenset[int] = frozenset(), title: str = ""
) -> _native.Plan:
    """`given`: inputs that are left to what is compiled; `title`: what people call the graph."""
    graph = subgraphs.compiled(graph, lambda inside: _compile(inside, config, target, title=title))
    schedule = replace(_scheduled(graph, config, target), given=given, title=title)
    with _stage("codegen"):
        plan = build_plan(schedule, target)
        plan = replace(plan, numbers=_numbers(graph))
    return _loaded(plan, config, target)


def _numbers(graph: Graph) -> tuple[int, ...]:
    """The inputs that are Python numbers."""
    return tuple(i for i, p in enumerate(graph.placeholders) if isinstance(p.spec, NumberSpec))


def _loaded(plan: Plan, config: Config, target: Target) -> _native.Plan:
    events.emit("plan", kernels=len(kernel_names(plan)), externs=extern_names(plan), plan=plan)
    if config.verify_stages:
        with _stage("verify"):
            verify_plan(plan)
    with _stage("load"):
        return target.load(plan)


def _for_any_sizes(traced: Traced, config: Config) -> Compiled:
    """The graph with symbols: plans of one template, or each set of sizes compiled."""
    graph = traced.aten_graph if traced.joint is None else traced.joint.graph
    if depends_inside(graph):
        raise NeedsFixedSize("graphs inside of a graph, or kernels of the program's", frozenset(traced.sizes))
    traced = within_bounds(traced)

    def compile_at(values: Values) -> Instance:
        plans: list[_native.Plan] = []
        return _for_fixed_sizes(traced_at(traced, values), config, plans), plans

    def run_at(values: Values) -> Compiled:
        given = traced_at(traced, values)
        if given.joint is None:
            return eager_fallback(given.aten_graph)
        return compile_joint(given, given.joint, config, beneath_a_node, beneath_a_node)

    try:
        make: Callable[[Values], Instance | Compiled] = _instances(traced, config)
    except NeedsFixedSize as why:
        log.info("smelt: a graph is compiled for each set of sizes: %s", why.reason.detail)
        make = EachCompiled(compile_at, run_at, why)
    hints = {sym: place.hint for sym, place in traced.sizes.items()}
    return by_sizes(traced.sizes, OrByOperators(traced, make, run_at, hints))


def _in_parts(traced: Traced, config: Config) -> Compiled:
    """The graph with sizes that data decide. Raises NeedsFixedSize where it cannot be cut."""
    devices = _devices(traced)
    if devices != {CPU} or depends_inside(traced.aten_graph):
        raise NeedsFixedSize("graphs inside of a graph, or on a GPU", frozenset())

    def compile_part(graph: Graph, sizes: Mapping[Sym, SizeInput]) -> Compiled:
        return _part(traced, graph, sizes, config, devices, _watching(traced, config))

    if traced.joint is None:
        parts = Parts(traced, traced.aten_graph, compile_part)

        def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
            results = parts.finish(parts.start(tensors))
            return allow_inplace_writes(results, tensors) if torch.is_grad_enabled() else results

        return call
    return _joint_in_parts(traced, traced.joint, config, compile_part)


def _joint_in_parts(traced: Traced, joint: Joint, config: Config, compile_part: CompilePart) -> Compiled:
    """The same where gradients are needed: a node of autograd's is made when all sizes are known, for these. Then its
    forward is what is left to run."""
    assert traced.unbacked is not None
    devices = _devices(traced)
    target = _target_for_sizes(config, devices)
    watch = _watching(traced, config)
    found: list[Parts] = []
    symbols = (*traced.sizes, *traced.unbacked.hints)

    def prepare(graph: Graph, given: frozenset[int]) -> Callable[[Values], Compiled]:
        if found:
            template = _template(graph, given, config, target, symbols, _title(traced, graph))
            return watch.loaded(template, graph, beneath_a_node, given)
        found.append(Parts(traced, graph, compile_part))
        return lambda values: finish

    def finish(tensors: tuple[Any, ...]) -> Sequence[Any]:
        run: Run = _running.run
        return found[0].finish(run)

    hints = traced.unbacked.hints
    of_data = {sym: SizeInput(ITSELF, SizeSource(ITSELF), hint) for sym, hint in hints.items()}
    sized = replace(traced, sizes={**traced.sizes, **of_data})
    joint_at = joint_by_sizes(sized, joint, config, prepare, beneath_a_node, devices)
    (parts,) = found
    compile_graph = _some_compiled(traced, config, watch)

    @lru_cache(_KEPT)
    def instance(numbers: tuple[int, ...]) -> Compiled:
        values = {**hints, **dict(zip(parts.symbols, numbers, strict=True))}
        if any(_is_small(sym, n) for sym, n in values.items()):
            return joint_at(values, lambda loaded: loaded(values), beneath_a_node, False)
        return traced.compile_deferred(
            lambda: joint_at(values, lambda loaded: loaded(values), compile_graph),
            lambda: joint_at(values, lambda loaded: loaded(values), beneath_a_node, False),
        )

    def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
        run = parts.start(tensors)
        with LOCK:
            made = instance(tuple([run.values[s] for s in parts.symbols]))
        before = getattr(_running, "run", None)
        _running.run = run
        try:
            return made((*tensors, *parts.numbers_of(run)))
        finally:
            _running.run = before

    return call


_KEPT = 16  # nodes of autograd for different sizes
_running = threading.local()  # `run`: of a joint graph, of which the last part is to run


def _part(
    traced: Traced,
    graph: Graph,
    sizes: Mapping[Sym, SizeInput],
    config: Config,
    devices: set[torch.device],
    watch: Watching,
) -> Compiled:
    title = _title(traced, graph)
    if not sizes:
        plan = _compile(graph, config, targets.maker(devices)(config), title=title)
        return watch.beside(plan, graph, eager_fallback)
    try:
        make: Callable[[Values], Instance | Compiled] = _plans(graph, config, devices, sizes, watch, title)
    except NeedsFixedSize as why:

        def compile_at(values: Values) -> Instance:
            at = at_sizes(graph, values)
            plan = _compile(at, config, targets.maker(devices)(config), title=title)
            return watch.beside(plan, at, eager_fallback), [plan]

        make = EachCompiled(compile_at, lambda values: eager_fallback(at_sizes(graph, values)), why)

    made = OrByOperators(traced, make, lambda values: eager_fallback(at_sizes(graph, values)))

    def instance(values: Values) -> Instance | Compiled:
        small = any(_is_small(sym, n) for sym, n in values.items())
        return made.eager_fallback(values) if small else made(values)

    return by_sizes(sizes, instance, prepare=False)


def _is_small(sym: Sym, number: int) -> bool:
    """Whether data have decided a size that code for any sizes is not made for."""
    return number < 2 and is_unbacked(sym)


def _instances(traced: Traced, config: Config) -> Callable[[Values], Instance]:
    """What makes plans for given sizes. Raises NeedsFixedSize where there is no code for all sizes."""
    devices, watch = _devices(traced), _watching(traced, config)
    target = _target_for_sizes(config, devices)
    if traced.joint is None:
        graph = _laid_out(traced.aten_graph, target)
        return _plans(graph, config, devices, traced.sizes, watch, traced.title)
    joint = _joint_laid_out(traced.joint, target)

    def prepare(graph: Graph, given: frozenset[int]) -> Callable[[Values], Compiled]:
        template = _template(graph, given, config, target, traced.sizes, _title(traced, graph))
        return watch.loaded(template, graph, beneath_a_node, given)

    joint_at = joint_by_sizes(replace(traced, joint=joint), joint, config, prepare, beneath_a_node, devices)
    compile_graph = _some_compiled(traced, config, watch)

    def instance_of_joint(values: Values) -> Instance:
        plans: list[_native.Plan] = []

        def kept(made: Compiled) -> Compiled:
            plan = compiled_of(made)
            if isinstance(plan, _native.Plan):
                plans.append(plan)
            return made

        made = joint_at(
            values,
            lambda loaded: kept(loaded(values)),
            lambda graph, given: kept(compile_graph(graph, given)),
        )
        return made, plans

    return instance_of_joint


def _plans(
    graph: Graph,
    config: Config,
    devices: set[torch.device],
    sizes: Iterable[Sym],
    watch: Watching,
    title: str,
) -> Callable[[Values], Instance]:
    """What makes plans of a graph without a backward for given `sizes`."""
    template = _template(graph, frozenset(), config, _target_for_sizes(config, devices), sizes, title)
    loaded = watch.loaded(template, graph, lambda at, given: eager_fallback(at))

    def instance(values: Values) -> Instance:
        made = loaded(values)
        return made, [compiled_of(made)]

    return instance


def _target_for_sizes(config: Config, devices: set[torch.device]) -> Target:
    """On a GPU without generated products, which are measured for numbers."""
    return targets.maker(devices)(config if devices == {CPU} else replace(config, native_gemm=False))


def _some_compiled(traced: Traced, config: Config, watch: Watching) -> CompileGraph:
    """Compiles the first backwards of a trace, as many as forwards would be (`EachCompiled`); others run operator by
    operator."""
    count = itertools.count()
    maker = targets.maker(_devices(traced))

    def compile_graph(graph: Graph, given: frozenset[int]) -> Compiled:
        if next(count) < MOST_COMPILED:
            plan = _compile(graph, config, maker(config), given, _title(traced, graph))
            return watch.beside(plan, graph, partial(beneath_a_node, given=given), given)
        return beneath_a_node(graph, given)

    return compile_graph


def _template(
    graph: Graph, given: frozenset[int], config: Config, target: Target, sizes: Iterable[Sym], title: str
) -> Callable[[Values], _native.Plan]:
    """What makes the plans of a graph for given `sizes`; its code is compiled here. `title`: what people call the graph."""
    graph = subgraphs.compiled(graph, lambda inside: _compile(inside, config, target, title=title))
    schedule = replace(_scheduled(graph, config, target, sizes), given=given, title=title)
    with _stage("codegen"):
        template = Template.of(schedule, target, _numbers(graph))
    loader = None
    if target.load_sized is not None and isinstance(template.items, Decided):
        loader = Loader(template, target.load_sized, tuple(sizes))

    def loaded(values: Values) -> _native.Plan:
        with _stage("instance"):
            if loader is None:
                return _loaded(template.at(values), config, target)
            return _instance(loader, values, config)

    return loaded


def _instance(loader: Loader, values: Values, config: Config) -> _native.Plan:
    with _stage("load"):
        made, plan = loader(values)
    events.emit("plan", kernels=plan.kernels, externs=plan.externs, plan=plan.plan)
    if config.verify_stages:
        with _stage("verify"):
            loader.check(made, plan, values)
    return made


def _scheduled(graph: Graph, config: Config, target: Target, sizes: Iterable[Sym] = ()) -> Schedule:
    if config.verify_stages:
        verify_graph(graph, functional=True, sizes=sizes)
    with _stage("lower"):
        cut = in_chunks(align_products(graph, target.costs).graph, target.costs)
        program = lower(cut, target.costs)
    with _stage("fuse"):
        schedule = fuse(program, target.costs, config.fuse)
        if config.verify_stages:
            verify_schedule(schedule)
    events.emit("schedule", graph=graph, schedule=schedule)
    return schedule


def inference_schedules(traced: Traced, config: Config) -> list[Schedule]:
    """What a traced graph runs where no gradients are needed, before it is machine code: of each of its parts. Raises
    Unsupported for graphs on a device without a target."""
    target = targets.maker(_devices(traced))(config)
    graphs = [traced.forward_graph]
    if traced.unbacked is not None:

        def note(graph: Graph, sizes: Mapping[Sym, SizeInput]) -> Compiled:
            graphs.append(graph)
            return eager_fallback(graph)

        Parts(traced, graphs.pop(), note)
    return [_scheduled(_prepared(graph, target), config, target) for graph in graphs]


def cut_for_training(traced: Traced, config: Config) -> tuple[Joint, Partition]:
    """The joint graph of `traced`, which must have one, as it is cut, and the forward and backward that it is cut into: what
    `compile_graph` compiles under `config`. Raises Unsupported for graphs on a device without a target."""
    joint = traced.joint
    assert joint is not None
    target = targets.maker(_devices(traced))(config)
    if traced.sizes or traced.unbacked is not None:
        joint = _joint_laid_out(joint, target)
        hints: dict[Sym, int] = {sym: place.hint for sym, place in traced.sizes.items()}
        return joint, partition(joint, config, hints | dict(traced.unbacked.hints if traced.unbacked else {}))
    joint = _prepared_joint(joint, target)
    return joint, save_padded_results(partition(joint, config), target.costs)


def _devices(traced: Traced) -> set[torch.device]:
    specs = (node.spec for node in traced.aten_graph)
    return {
        s.device
        for spec in specs
        for s in (spec if isinstance(spec, tuple) else (spec,))
        if isinstance(s, TensorSpec)
    }


@contextmanager
def _stage(name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    events.emit("stage", name, seconds=time.perf_counter() - start)
