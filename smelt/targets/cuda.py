"""GPUs of NVIDIA: kernels by Triton, products and convolutions by ATen (cuBLAS, cuDNN), and what things cost there."""

from __future__ import annotations

import logging
import weakref
from dataclasses import replace
from functools import partial

import torch

from smelt import _native, runtime
from smelt.codegen.gpu import generate
from smelt.codegen.llvm.link import address_of as address_on_cpu
from smelt.codegen.triton.link import kernel_of, load_kernels
from smelt.config import Config
from smelt.costs import Costs
from smelt.errors import Unsupported
from smelt.ops.random import THREADS_THAT_DRAW
from smelt.ops.registry import row
from smelt.plan.aliases import is_foreign
from smelt.plan.code import Function
from smelt.plan.executable import executable
from smelt.plan.steps import Aten, Plan, launches
from smelt.plan.target import Memory, Sharing, Target
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.runtime.graphs import Capture
from smelt.runtime.kept import Store, store
from smelt.torch_private import OpOverload

log = logging.getLogger("smelt")
ALIGNMENT = 128  # bytes, of offsets in the arena: a line of the cache
SINGLE = 1 << 18  # bytes; the host needs about a microsecond for an allocation (not measured yet)

# Not measured yet but for what is said. A GPU adds some 50 times as many numbers as it reads from memory.
COSTS = Costs(
    threads=0,  # replaced by the device's number of multiprocessors
    load=20.0,
    store=40.0,
    launch=50e6,  # 2 us of a whole device
    inline_limit=250.0,
    inline_depth=60,
    candidates=6,
    kernel_buffers=64,
    row_kernel_rows=64,
    row_kernel_points=1 << 17,
    shortest_loop=4,
    scratch_bytes=0,  # what a row keeps would be in memory
    scratch_cost=8.0,
    split_points=1 << 16,
    part_points=1 << 11,
    item_columns=64,
    worker_items=2,
    together_pieces=0,
    draw_blocks=0,  # replaced where the device's generator is ATen's
    gil_bytes=0,  # the driver makes the caller wait when its queue is full
    products=None,
)


def target(device: torch.device, config: Config) -> Target:
    """The GPU `device`, under `config`. Raises Unsupported where that does not say `gpu`."""
    if not config.gpu:
        detail = f"a tensor on {device}; smelt compiles for GPUs only where options say gpu=True"
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, detail))
    properties = torch.cuda.get_device_properties(device)
    workers = properties.multi_processor_count
    resident = workers * (properties.max_threads_per_multi_processor // THREADS_THAT_DRAW)
    major, minor = torch.cuda.get_device_capability(device)
    # A replay would repeat the numbers of a kernel's own.
    draws = bool(torch.cuda.default_generators) and not config.cuda_graphs
    return Target(
        costs=replace(COSTS, threads=workers, draw_blocks=resident if draws else 0),
        compile=partial(generate, arch=10 * major + minor, config=config),
        load=partial(load, device, store(config), config.cuda_graphs),
        out_variant=out_variant,
        memory=Memory(device, ALIGNMENT, SINGLE),
        sharing=Sharing(),
    )


def out_variant(op: OpOverload) -> OpOverload | None:
    """The operator that computes what `op` does, in memory given as `out`."""
    return row(op).out


def load(device: torch.device, kept: Store | None, graphs: bool, plan: Plan) -> _native.Plan:
    """`plan` made callable on a tuple of its inputs, its kernels loaded on `device`, as code that is `kept` if it is.
    `graphs`: it is replayed as CUDA graphs where it can be. Raises what the driver says."""
    load_kernels((f for f in plan.kernels.values() if f.block is not None), device.index, kept)
    native = runtime.track(executable(plan, address_of))
    if graphs:
        why_not = cannot_be_replayed(plan)
        if why_not is None:
            native.use_graphs(Capture(weakref.ref(native)))
        else:
            log.info("smelt: a plan runs without CUDA graphs: %s", why_not)
    return native


def cannot_be_replayed(plan: Plan) -> str | None:
    """What the plan does that a replay would not: it only repeats what was launched."""
    if plan.numbers or any(launch.by_value for launch in launches(plan.steps)):
        return "its kernels are given numbers"
    if plan.on_host:
        return "it computes on the CPU"
    for step in plan.steps:
        if isinstance(step, Aten) and is_foreign(step.op):
            return f"{step.op} may do more than work on the GPU"
    return None


def address_of(function: Function) -> int | _native.DeviceKernel:
    """What a launch of it names: an address on the CPU, or a GPU's kernel."""
    return address_on_cpu(function) if function.block is None else kernel_of(function)
