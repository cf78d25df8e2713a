"""Compilation of a program's graph to serialized plans for the processor of this machine.

A graph with fixed sizes has one plan. One with symbolic sizes has several, best first: for the sizes of the example, for
other likely sizes with other outcomes of decisions, and last one for all sizes (`UniversalDecisions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch

from smelt import config as options
from smelt import pipeline, targets
from smelt.backends.unbacked_subgraphs import devices_of
from smelt.codegen.llvm.host_cpu import LEVELS, generating_for, host, processor
from smelt.codegen.triton.link import machine_code
from smelt.config import Config
from smelt.errors import ExportError, PlanError
from smelt.exported.aten_graphs import restored
from smelt.exported.input_checks import SizeRule
from smelt.exported.processor_features import of_linux
from smelt.exported.program_file import Contents, Method, TargetData
from smelt.graph.ir import Graph
from smelt.plan.machine_code import Library
from smelt.plan.plan_template import SymbolicLaunches, Template
from smelt.plan.serialization import packed, plans_to_bytes
from smelt.plan.steps import Plan
from smelt.plan.symbolic_plan import SymbolicPlan
from smelt.runtime import disk_cache
from smelt.shapes.expr import INFINITE, Sym, Values, evaluate
from smelt.shapes.substitute import substitute

MOST_PLANS = 6  # symbolic plans of a program, besides the one for all sizes


@dataclass(frozen=True)
class Part:
    """A graph of a program, by its number. `is_rewritten`: it is a forward or backward, and the passes have run on the joint
    graph. `donated`: the inputs whose memory its plan may reuse or free."""

    number: int
    graph: Graph
    is_rewritten: bool = False
    donated: frozenset[int] = frozenset()


HOST = "host"
TARGETS = (HOST, *LEVELS)


def compiling_for(target: str) -> AbstractContextManager[None]:
    """A context in which plans are for a target: the processor of this machine, or a level of x86-64."""
    return nullcontext() if target == HOST else generating_for(target)


def best_first(targets: Iterable[str]) -> list[str]:
    """Targets in the order in which a processor should try them: wider vectors first, then more features."""

    def rank(target: str) -> tuple[int, int]:
        with compiling_for(target):
            return host().bits, len(processor(host()).needs)

    return sorted(dict.fromkeys(targets), key=rank, reverse=True)


def compile_again(contents: Contents, method: Method, number: int) -> tuple[TargetData, dict[str, bytes]]:
    """Compile a stored graph to plans for this machine. Raises the exceptions of the compiler."""
    symbols = {
        size.symbol: Sym(size.symbol.name, size.symbol.lo, size.symbol.hi, likely=example)
        for size, example in zip(method.sizes, method.examples)
    }
    graph = substitute(restored(contents.graph(number), contents.state), symbols)
    sizes = [replace(size, symbol=symbols[size.symbol]) for size in method.sizes]
    values = dict(zip(symbols.values(), method.examples))
    names = {id(tensor): name for name, tensor in contents.state.items()}
    backwards = method.gradients.backwards if method.gradients is not None else ()
    donated = next((frozenset(b.donated) for b in backwards if b.graph == number), frozenset[int]())
    part = Part(number, graph, method.gradients is not None, donated)
    return target_of(part, sizes, values, lambda t: names[id(t)], options.defaults())


def target_of(
    part: Part,
    sizes: Sequence[SizeRule],
    values: Values,
    name_of: Callable[[torch.Tensor], str],
    config: Config,
    suffix: str = "",
) -> tuple[TargetData, dict[str, bytes]]:
    """Compile a graph to plans for this machine; also return the sections that hold the plans and their machine code, whose
    names end in `suffix`."""
    made = _plans(part, sizes, values, config)
    inner = [plan.plan if isinstance(plan, SymbolicPlan) else plan for plan in made]
    constants = tuple(tuple(map(name_of, plan.constants)) for plan in inner)
    bare = [
        replace(plan, plan=replace(plan.plan, constants=()))
        if isinstance(plan, SymbolicPlan)
        else replace(plan, constants=())
        for plan in made
    ]
    code_for = processor(host())
    gpus = [device.index for device in devices_of(part.graph) if device.type != "cpu"]
    try:
        code, plans = plans_to_bytes(bare, [size.symbol for size in sizes], partial(_images, gpus, config))
    except PlanError as error:
        raise ExportError(f"the program's plan has no form in a file: {error}") from error
    target = TargetData(
        part.number,
        code_for.triple,
        (*of_linux(code_for.needs), *map(_capability, gpus)),
        str(torch.__version__),
        f"code.{part.number}{suffix}",
        tuple(f"plan.{part.number}.{i}{suffix}" for i in range(len(plans))),
        constants,
    )
    return target, {name: packed(data) for name, data in zip((target.code, *target.plans), (code, *plans))}


def _images(gpus: Sequence[int], config: Config, library: Library) -> tuple[bytes, ...]:
    """The images of a kernel, best first: machine code for this GPU, and PTX for drivers that refuse it."""
    [ptx] = library.objects
    return tuple(dict.fromkeys((machine_code(ptx, gpus[0], disk_cache.store(config)), ptx)))


def _capability(gpu: int) -> str:
    """The compute capability of a GPU as a feature of a target, such as "sm_90" (native/exported/processor.cpp)."""
    major, minor = torch.cuda.get_device_capability(gpu)
    return f"sm_{10 * major + minor}"


def _plans(
    part: Part, sizes: Sequence[SizeRule], values: Values, config: Config
) -> list[Plan | SymbolicPlan]:
    devices = devices_of(part.graph)
    gpus = {device for device in devices if device.type != "cpu"}
    if len(gpus) > 1 or any(device.type != "cuda" or torch.version.hip for device in gpus):
        raise ExportError(
            f"a program runs on CPUs, and on at most one NVIDIA GPU; this one uses {', '.join(map(str, devices))}"
        )
    if gpus and values:
        raise ExportError("programs on GPUs have fixed sizes: leave dynamic_shapes out")
    syms = tuple(values)
    plan = _template(part, syms, config)
    if isinstance(plan, Plan):
        return [plan]
    if not isinstance(
        plan.launches, SymbolicLaunches
    ):  # generated products and windows are for concrete sizes
        plan = _template(part, syms, replace(config, native_gemm=False))
    assert isinstance(plan, Template) and isinstance(plan.launches, SymbolicLaunches)
    found = [plan.symbolic(values)]
    for other in _probes(sizes, values):
        if len(found) >= MOST_PLANS:
            break
        if not any(_covers(p, other) for p in found):
            found.append(plan.symbolic(other))
    if any(p.conditions for p in found) and all(p.conditions for p in found):
        without = (
            plan if not config.native_gemm else _template(part, syms, replace(config, native_gemm=False))
        )
        assert isinstance(without, Template)
        found.append(without.universal(values))
    return list(found)


def _template(part: Part, syms: tuple[Sym, ...], config: Config) -> Plan | Template:
    """Run the pipeline (`pipeline.compile_graph`) up to the plan."""
    graph = part.graph
    target = targets.factory(devices_of(graph))(config)
    c = pipeline.Compilation(config, target, syms, part.donated, is_rewritten=part.is_rewritten)
    graph = pipeline.compile_subgraphs(pipeline.run_passes(graph, c), c)
    schedule = pipeline.fuse_program(pipeline.lower_graph(graph, c), c)
    return pipeline.plan_launches(
        schedule, pipeline.generate_code(schedule, c), pipeline.number_inputs(graph), c
    )


def _covers(plan: SymbolicPlan, values: Values) -> bool:
    return all((evaluate(size, values) >= 0) is holds for size, holds in plan.conditions)


def _probes(sizes: Sequence[SizeRule], values: Values) -> list[Values]:
    """Likely sizes: for each symbol alone, its bounds and the powers of two between them, then the bounds of all symbols."""
    found: list[Values] = []
    for rule in sizes:
        most = min(rule.high, 4096)
        numbers = [n for n in (1 << k for k in range(13)) if rule.low <= n <= most]
        for n in dict.fromkeys((*numbers, rule.low, *([rule.high] if rule.high < INFINITE else []))):
            found.append({**values, rule.symbol: n})
    for end in ("low", "high"):
        ends = {rule.symbol: getattr(rule, end) for rule in sizes}
        if all(n < INFINITE for n in ends.values()):
            found.append({**values, **ends})
    return found
