"""NVIDIA GPUs: kernels by Triton, products and convolutions by ATen (cuBLAS, cuDNN; products and attention by Triton where
`max_autotune` measures them to be faster), and their cost model."""

from __future__ import annotations

import importlib.util
import logging
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakSet

import torch

from smelt import _native, runtime
from smelt.codegen.autotune.autotuner import Tuner
from smelt.codegen.autotune.candidate_plans import Baseline
from smelt.codegen.gpu_launches import THREADS, generate, generate_symbolic
from smelt.codegen.llvm.link import address_of as address_on_cpu
from smelt.codegen.triton.gpu_architectures import Arch
from smelt.codegen.triton.link import kernel_of, load_kernels
from smelt.config import Config
from smelt.cost_model import AlignmentCosts, Costs
from smelt.errors import Unsupported
from smelt.graph.user_kernel_calls import RUN_KERNEL, RUN_KERNEL_FUNCTIONAL
from smelt.ops import cudnn_warm_up
from smelt.ops.philox_order import blocks_that_draw
from smelt.ops.registry import row
from smelt.plan.build_plan import SAME_IN_REPLAYS
from smelt.plan.executable_plan import executable
from smelt.plan.machine_code import Function
from smelt.plan.plan_device import Memory, Sharing
from smelt.plan.schema_aliases import is_foreign
from smelt.plan.steps import Aten, Plan, RunPlans, inner_plans, launches
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.runtime.cuda_graphs import Capture, Replay
from smelt.runtime.disk_cache import Store, store
from smelt.targets.sdpa_backends import attention_kernel
from smelt.targets.target import Target
from smelt.torch_private import OpOverload

log = logging.getLogger("smelt")
OLDEST = (8, 0)  # compute capability
ALIGNMENT = 128  # bytes, of offsets in the arena: a line of the cache

# Not measured yet but for what is said. A GPU adds some 50 times as many numbers as it reads from memory.
COSTS = Costs(
    threads=0,  # replaced by the device's number of multiprocessors
    load=20.0,
    store=40.0,
    launch=50e6,  # 2 us of a whole device
    inline_limit=250.0,
    inline_depth=60,
    concatenated_parts=24,  # not measured
    candidates=6,
    kernel_buffers=64,
    row_kernel_rows=64,
    row_kernel_points=1 << 17,
    # Longer ones are more than registers hold: the row is read again anyway, by a kernel of its own as soon.
    long_row=1 << 14,
    shortest_loop=4,
    scratch_bytes=0,  # what a row keeps would be in memory
    scratch_cost=8.0,
    split_points=1 << 16,
    part_points=1 << 11,
    item_columns=64,
    worker_items=4,  # blocks of 8 warps: so many are on a multiprocessor at once
    splits_further=True,
    row_sums=1 << 14,  # two of each of 8,192 columns: a quarter of a multiprocessor's registers
    least_rows=16,  # what is stored for them is a fraction of what is not read again
    most_rows=256,
    scatters=True,
    parallel_launch_chunks=0,
    draw_blocks=0,  # replaced where the device's generator is ATen's
    draw_captured=False,
    gil_bytes=0,  # the driver makes the caller wait when its queue is full
    depthwise_taps=9,
    depthwise_elements=1 << 20,
    products=None,
    alone=(),
    alignment=AlignmentCosts(
        nbytes=16,
        dtypes=frozenset({torch.float16, torch.bfloat16}),  # and float32 where torch says that it may be TF32
        # 25e12 additions a second, by the cost of a launch above; tensor cores do some 3e14 multiplications of halves, and
        # memory gives some 3e12 bytes.
        aligned=0.08,
        byte=8.0,
        # GPT-2's logits, 4096 x 768 by 768 x 50257, took about 2.4 ms longer on an H200 than padded: 0.38 more. Other
        # products are not measured, so little more than half of that.
        unaligned=0.3,
        # A piece of 8 of GPT-2's logits, 49 MiB, still has 788 tiles of 128 x 256; not measured.
        chunk_bytes=32 << 20,
        chunk_rows=128,
        chunks=8,
    ),
)


def target(devices: Sequence[torch.device], config: Config) -> Target:
    """The GPUs `devices`, which must be of one kind, under `config`. The arena is on the first; temporaries of the others
    have their own allocations. Raises Unsupported for GPUs of different kinds, GPUs that Triton does not compile for, and
    without Triton."""
    device = devices[0]
    if (why_not := unusable(device)) is not None:
        raise unsupported(device, why_not)
    draws = not config.cuda_graphs or torch.ops.smelt.has_philox_in_memory()
    draw_blocks = blocks_that_draw(device) if draws else 0
    major, minor = torch.cuda.get_device_capability(device)
    arch = 10 * major + minor
    costs = replace(COSTS, draw_blocks=draw_blocks, draw_captured=config.cuda_graphs, alignment=_alignment())
    layouts = config.channels_last and _may_choose_layouts()
    baseline = of_arch(devices, config, arch, costs, layouts)
    if config.fused_attention:
        baseline = replace(baseline, attention=attention_kernel)
    tuner = None
    if config.max_autotune and len(devices) == 1:
        tuner = Tuner(Baseline(baseline, baseline.generate, baseline.load), arch, THREADS, store(config))
    return replace(
        baseline,
        generate=partial(generate, arch=arch, config=config, tuner=tuner, device=_only(devices)),
        load=partial(load, devices, store(config), WeakSet() if config.cuda_graphs else None),
        warm_up=partial(cudnn_warm_up.begin, costs=baseline.costs, device=device) if layouts else None,
    )


def of_arch(
    devices: Sequence[torch.device], config: Config, arch: Arch, costs: Costs, channels_last: bool
) -> Target:
    """`target` for processors `arch`, without generated products and CUDA graphs. The device replaces the number of threads
    in `costs`. Raises Unsupported for GPUs of different kinds."""
    device = devices[0]
    properties = torch.cuda.get_device_properties(device)
    if any(_kind(torch.cuda.get_device_properties(d)) != _kind(properties) for d in devices):
        detail = f"tensors on {' and '.join(map(str, devices))}, which are GPUs of different kinds"
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, detail))
    return Target(
        costs=replace(costs, threads=properties.multi_processor_count),
        generate=partial(generate, arch=arch, config=config, device=_only(devices)),
        load=partial(load, devices, store(config), None),
        out_variant=out_variant,
        memory=Memory(device, ALIGNMENT, single=True),
        sharing=Sharing(),
        generate_symbolic=partial(generate_symbolic, arch=arch, config=config, device=_only(devices)),
        channels_last=channels_last,
    )


def unsupported(device: torch.device, why_not: str) -> Unsupported:
    """The error for a graph with a tensor on `device`."""
    return Unsupported(Reason(UNSUPPORTED_OBJECT, f"a tensor on {device}: {why_not}"))


def unusable(device: torch.device) -> str | None:
    """Why smelt does not compile for the GPU, so that calls on it run eagerly; None: smelt compiles for it."""
    if torch.cuda.get_device_capability(device) < OLDEST:
        return "Triton compiles for GPUs of compute capability 8.0 or later"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return None


def _only(devices: Sequence[torch.device]) -> int | None:
    return devices[0].index if len(devices) == 1 else None


def _may_choose_layouts() -> bool:
    """Whether cuDNN computes convolutions, and may use its fastest algorithm."""
    cudnn = torch.backends.cudnn
    return cudnn.enabled and not (cudnn.deterministic or torch.are_deterministic_algorithms_enabled())


def _alignment() -> AlignmentCosts:
    """Alignment costs, for float32 products as well where they may use TF32. They are read when a graph is compiled: a later
    change of the setting makes products slower, or pads them without benefit, but never wrong."""
    known = COSTS.alignment
    assert known is not None
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)  # before torch 2.9 there is only the other
    tf32 = matmul.allow_tf32 if precision is None else precision == "tf32"
    return replace(known, dtypes=known.dtypes | {torch.float32}) if tf32 else known


def _kind(properties: Any) -> tuple[object, ...]:
    """The properties that code, costs and the random numbers of kernels depend on."""
    names = ("name", "major", "minor", "multi_processor_count", "max_threads_per_multi_processor")
    return tuple(getattr(properties, name) for name in names)


def out_variant(op: OpOverload) -> OpOverload | None:
    """The `out=` overload of `op`, or None."""
    return row(op).out


def load(
    devices: Sequence[torch.device], cache: Store | None, graphs: WeakSet[Replay] | None, plan: Plan
) -> _native.Plan:
    """Makes `plan` callable on a tuple of its inputs, with its kernels loaded on `devices`. Raises what the driver raises.

    Args:
        cache: the disk cache of compiled code.
        graphs: where not None, plans that allow it are replayed as CUDA graphs, which are added to the set.
    """
    for device, functions in _by_device(plan).items():
        load_kernels(functions, device.index, cache)
    native = runtime.track(executable(plan, address_of))
    if graphs is not None:
        why_not = cannot_be_replayed(plan) if len(devices) == 1 else "it is one of several GPUs"
        if why_not is None:
            native.use_cuda_graphs(Capture(weakref.ref(native), graphs))
        else:
            log.info("smelt: a plan runs without CUDA graphs: %s", why_not)
    return native


def _by_device(plan: Plan) -> dict[torch.device, set[Function]]:
    """The functions that each GPU runs."""
    functions: dict[torch.device, set[Function]] = {}
    for launch in launches(plan.steps):
        function = plan.kernels[launch.kernel]
        if function.block is not None:
            functions.setdefault(launch.device or plan.device, set()).add(function)
    for inner in inner_plans(plan):
        for device, more in _by_device(inner).items():
            functions.setdefault(device, set()).update(more)
    return functions


def cannot_be_replayed(plan: Plan) -> str | None:
    """What the plan does that replaying its launches would not do; None: replay is equivalent."""
    calls = [step for step in plan.steps if isinstance(step, Aten)]
    known = {out for call in calls if call.op in SAME_IN_REPLAYS for out in call.outs}
    passed = {launch.regs[k] for launch in launches(plan.steps) for k, _ in launch.by_value}
    if plan.numbers or not passed <= known:
        return "its kernels are given numbers"
    if plan.on_host:
        return "it computes on the CPU"
    if any(isinstance(step, RunPlans) for step in plan.steps):
        return "it runs subgraphs (torch.cond, while_loop)"
    for call in calls:
        if call.op in (RUN_KERNEL, RUN_KERNEL_FUNCTIONAL):
            return "it launches a kernel of the program's own"
        if is_foreign(call.op):
            return f"{call.op} may do more than work on the GPU"
    return None


def address_of(function: Function) -> int | _native.DeviceKernel:
    """The code that a launch of `function` names: an address on the CPU, or a kernel of a GPU."""
    return address_on_cpu(function) if function.block is None else kernel_of(function)
