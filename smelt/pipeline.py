"""The compiler below capture and autograd: an aten graph becomes native plans.

    graph -> passes -> lower -> fuse -> codegen -> plan -> load

`compile_graph` calls the stages in order. Each stage takes the value of the stage before it and a `Compilation`, which no
stage changes, and returns a new value. Inference graphs, forwards, backwards and subgraphs all compile here, for fixed and
for symbolic sizes: fixed sizes are the case without symbols.

| stage | value that it returns |
| --- | --- |
| passes | `Graph`: the device's attention kernels and image layouts |
| lower | `Program`: loops and ATen calls |
| fuse | `Schedule`: kernels, their order, and what is materialized |
| codegen | `Launches`: machine code in place of kernels |
| plan | `Plan`, or a `Template` of plans for symbolic sizes |
| load | `PlansAt`: the native plan for concrete sizes |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from smelt import _native, events
from smelt.config import Config
from smelt.graph.free_symbols import symbols_in
from smelt.graph.ir import Graph, NumberSpec
from smelt.graph.verify_graph import verify as verify_graph
from smelt.loops.lazy_tensor import Program
from smelt.ops.lowering import lower
from smelt.plan.build_plan import build_plan
from smelt.plan.plan_items import Item
from smelt.plan.plan_template import LaunchesAt, Loader, SymbolicLaunches, Template
from smelt.plan.steps import Plan, extern_names, kernel_names
from smelt.plan.subplans import with_subplans
from smelt.plan.symbolic_plan import SymbolicPlan
from smelt.plan.verify_plan import verify as verify_plan
from smelt.rewrites.aligned_gemm import align_products
from smelt.rewrites.attention.attention_rewrite import fuse_attention
from smelt.rewrites.channels_last import to_channels_last
from smelt.rewrites.chunked_gemm import in_chunks
from smelt.rewrites.graph_rewriter import Rewritten
from smelt.schedule.schedule import Schedule
from smelt.schedule.schedule_program import fuse
from smelt.schedule.verify_schedule import verify as verify_schedule
from smelt.shapes.expr import Sym, Values
from smelt.targets.target import Target
from smelt.tracing.backward.joint import Joint

Launches = Sequence[Item] | SymbolicLaunches | LaunchesAt
OnPlan = Callable[[Plan | SymbolicPlan, Values], None]
PlansAt = Callable[[Values], _native.Plan]  # for fixed sizes, the argument is empty


@dataclass(frozen=True)
class Compilation:
    """How one graph compiles.

    Args:
        target: the device, with its costs.
        sizes: the symbols of the graph; none where its sizes are fixed.
        donated: the indices of the inputs whose memory the plan may reuse or free.
        title: the name of the graph in reports and profiles.
        is_rewritten: the passes have run, on the joint graph that this graph is cut from.
        on_plan: receives each plan that is made, and the sizes that it is made for.
    """

    config: Config
    target: Target
    sizes: tuple[Sym, ...] = ()
    donated: frozenset[int] = frozenset()
    title: str = ""
    is_rewritten: bool = False
    on_plan: OnPlan | None = None


def compile_graph(graph: Graph, c: Compilation) -> PlansAt:
    """The plans of `graph`. Raises NeedsFixedSize where no code is valid for all sizes."""
    return load_plan(make_plan(graph, c), c)


def make_plan(graph: Graph, c: Compilation) -> Plan | Template:
    """The plan of `graph`, not loaded; a template if sizes are symbols. Raises NeedsFixedSize as `compile_graph`."""
    graph = compile_subgraphs(run_passes(graph, c), c)
    with stage("lower"):
        program = lower_graph(graph, c)
    with stage("fuse"):
        schedule = fuse_program(program, c)
    events.emit("schedule", graph=graph, schedule=schedule)
    with stage("codegen"):
        launches = generate_code(schedule, c)
        return plan_launches(schedule, launches, number_inputs(graph), c)


# ---------------------------------------------------------------------------------------------------- stages


def run_passes(graph: Graph, c: Compilation) -> Graph:
    """Replaces attention patterns by the device's kernels, and chooses image layouts."""
    return graph if c.is_rewritten else _rewritten(Rewritten(graph, frozenset()), c).graph


def run_joint_passes(joint: Joint, c: Compilation) -> Joint:
    """The passes on a joint graph. They run before it is cut, so that the backward reads what the kernels save for it."""
    made = _rewritten(Rewritten(joint.graph, joint.backward), c)
    return replace(joint, graph=made.graph, backward=made.backward)


def _rewritten(made: Rewritten, c: Compilation) -> Rewritten:
    if c.target.attention is not None and not c.sizes:
        made = fuse_attention(made.graph, c.target.attention, made.backward)
    return to_channels_last(made.graph, made.backward) if c.target.channels_last else made


def compile_subgraphs(graph: Graph, c: Compilation) -> Graph:
    """Compiles the subgraphs of higher-order operators to plans, or to templates over the symbols of the graph."""
    inner = Compilation(c.config, c.target, title=c.title, is_rewritten=True)

    def plan_of(subgraph: Graph) -> Plan | Template:
        is_sized = bool(c.sizes) and any(symbols_in(subgraph.nodes))
        plan = make_plan(subgraph, replace(inner, sizes=c.sizes) if is_sized else inner)
        if isinstance(plan, Plan):
            _announce(plan, inner)
        return plan

    return with_subplans(graph, plan_of)


def lower_graph(graph: Graph, c: Compilation) -> Program:
    """Lowers each operator to loops or an ATen call. Matrix products are aligned and split into chunks first."""
    if c.config.verify_stages:
        verify_graph(graph, functional=True, sizes=c.sizes)
    costs = c.target.costs
    return lower(in_chunks(align_products(graph, costs).graph, costs), costs)


def fuse_program(program: Program, c: Compilation) -> Schedule:
    """Groups loops into kernels and orders them."""
    schedule = fuse(program, c.target.costs, c.config.fuse)
    schedule = replace(schedule, donated=c.donated, title=c.title)
    if c.config.verify_stages:
        verify_schedule(schedule)
    return schedule


def generate_code(schedule: Schedule, c: Compilation) -> Launches:
    """Compiles kernels, and the ATen calls that the target generates, to machine code."""
    if c.sizes and c.target.generate_symbolic is not None:
        return c.target.generate_symbolic(schedule)
    return c.target.generate(schedule)


def plan_launches(
    schedule: Schedule, launches: Launches, numbers: tuple[int, ...], c: Compilation
) -> Plan | Template:
    """Orders allocations, launches and ATen calls as steps. `numbers`: the indices of inputs that are Python numbers."""
    if isinstance(launches, Sequence):
        return build_plan(schedule, launches, c.target, numbers)
    return Template(schedule, launches, c.target, numbers)


def load_plan(plan: Plan | Template, c: Compilation) -> PlansAt:
    """Links machine code and makes plans callable: for fixed sizes at once, else when a call brings new sizes."""
    if isinstance(plan, Plan):
        loaded = _load(plan, c, {})
        return lambda values: loaded
    template, loader = plan, None
    if isinstance(plan.launches, SymbolicLaunches) and c.target.load_symbolic is not None:
        loader = Loader(plan, c.target.load_symbolic, c.sizes, c.on_plan)

    def plan_at(values: Values) -> _native.Plan:
        with events.compiling(c.title), stage("instance"):
            return _load(template.at(values), c, values) if loader is None else instantiate(loader, values, c)

    return plan_at


def instantiate(loader: Loader, values: Values, c: Compilation) -> _native.Plan:
    """The plan for concrete sizes, from a symbolic plan that is loaded."""
    with stage("load"):
        loaded, plan = loader(values)
    events.emit("plan", kernels=plan.kernels, externs=plan.externs, plan=plan.plan)
    if c.config.verify_stages:
        with stage("verify"):
            loader.check(loaded, plan, values)
    return loaded


def _announce(plan: Plan, c: Compilation) -> None:
    events.emit("plan", kernels=len(kernel_names(plan)), externs=extern_names(plan), plan=plan)
    if c.config.verify_stages:
        with stage("verify"):
            verify_plan(plan)


def _load(plan: Plan, c: Compilation, values: Values) -> _native.Plan:
    _announce(plan, c)
    with stage("load"):
        loaded = c.target.load(plan)
    if c.on_plan is not None:
        c.on_plan(plan, values)
    return loaded


def number_inputs(graph: Graph) -> tuple[int, ...]:
    """The indices of the inputs that are Python numbers."""
    return tuple(i for i, p in enumerate(graph.placeholders) if isinstance(p.spec, NumberSpec))


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Emits how long the stage takes."""
    start = time.perf_counter()
    yield
    events.emit("stage", name, seconds=time.perf_counter() - start)
