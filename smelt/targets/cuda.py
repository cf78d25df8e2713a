"""GPUs of NVIDIA: kernels by Triton, products and convolutions by ATen (cuBLAS, cuDNN; products and attention by Triton
where `max_autotune` finds them faster), and what things cost there."""

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
from smelt.codegen.gpu_launches import THREADS, for_sizes, generate
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
from smelt.plan.schema_aliases import is_foreign
from smelt.plan.steps import Aten, Plan, launches
from smelt.plan.target import Memory, Sharing, Target
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.runtime.cuda_graphs import Capture, Replay
from smelt.runtime.disk_cache import Store, store
from smelt.targets.sdpa_backends import attention_kernel
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
    joined_parts=24,  # not measured
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
    together_pieces=0,
    draw_blocks=0,  # replaced where the device's generator is ATen's
    draw_captured=False,
    gil_bytes=0,  # the driver makes the caller wait when its queue is full
    depthwise_taps=9,
    depthwise_elements=1 << 20,
    products=None,
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
        piece_bytes=32 << 20,
        piece_rows=128,
        pieces=8,
    ),
)


def target(devices: Sequence[torch.device], config: Config) -> Target:
    """The GPUs `devices`, alike, under `config`: temporaries of the first are in the arena, what is on others is of their
    allocators. Raises Unsupported for GPUs that Triton does not compile for, or that differ, or without Triton."""
    device = devices[0]
    if (why_not := unusable(device)) is not None:
        raise unsupported(device, why_not)
    draws = not config.cuda_graphs or torch.ops.smelt.has_philox_in_memory()
    draw_blocks = blocks_that_draw(device) if draws else 0
    major, minor = torch.cuda.get_device_capability(device)
    arch = 10 * major + minor
    costs = replace(COSTS, draw_blocks=draw_blocks, draw_captured=config.cuda_graphs, alignment=_alignment())
    layouts = config.channels_last and _may_choose_layouts()
    plain = of_arch(devices, config, arch, costs, layouts)
    if config.fused_attention:
        plain = replace(plain, attention=attention_kernel)
    tunes = config.max_autotune and len(devices) == 1
    tuner = Tuner(plain, arch, THREADS, store(config)) if tunes else None
    return replace(
        plain,
        compile=partial(generate, arch=arch, config=config, tuner=tuner, device=_only(devices)),
        load=partial(load, devices, store(config), WeakSet() if config.cuda_graphs else None),
        warm_up=partial(cudnn_warm_up.begin, costs=plain.costs, device=device) if layouts else None,
    )


def of_arch(
    devices: Sequence[torch.device], config: Config, arch: Arch, costs: Costs, channels_last: bool
) -> Target:
    """As `target`, for processors `arch`, without generated products and without CUDA graphs. `costs`: but for the number of
    multiprocessors. Raises Unsupported for GPUs that differ."""
    device = devices[0]
    properties = torch.cuda.get_device_properties(device)
    if any(_kind(torch.cuda.get_device_properties(d)) != _kind(properties) for d in devices):
        detail = f"tensors on {' and '.join(map(str, devices))}, which are GPUs of different kinds"
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, detail))
    return Target(
        costs=replace(costs, threads=properties.multi_processor_count),
        compile=partial(generate, arch=arch, config=config, device=_only(devices)),
        for_sizes=partial(for_sizes, arch=arch, config=config, device=_only(devices)),
        load=partial(load, devices, store(config), None),
        out_variant=out_variant,
        memory=Memory(device, ALIGNMENT, single=True),
        sharing=Sharing(),
        channels_last=channels_last,
    )


def unsupported(device: torch.device, why_not: str) -> Unsupported:
    """A tensor is there."""
    return Unsupported(Reason(UNSUPPORTED_OBJECT, f"a tensor on {device}: {why_not}"))


def unusable(device: torch.device) -> str | None:
    """Why nothing is compiled for it: calls on it run eagerly."""
    if torch.cuda.get_device_capability(device) < OLDEST:
        return "Triton compiles for GPUs of compute capability 8.0 or later"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return None


def _only(devices: Sequence[torch.device]) -> int | None:
    return devices[0].index if len(devices) == 1 else None


def _may_choose_layouts() -> bool:
    """Whether convolutions are cuDNN's, by whichever of its algorithms is the fastest."""
    cudnn = torch.backends.cudnn
    return cudnn.enabled and not (cudnn.deterministic or torch.are_deterministic_algorithms_enabled())


def _alignment() -> AlignmentCosts:
    """Of products of float32, too, where they may be TF32. Asked when a graph is compiled: a change later on makes products
    slower, or padded for nothing, but not wrong."""
    known = COSTS.alignment
    assert known is not None
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)  # before torch 2.9 there is only the other
    tf32 = matmul.allow_tf32 if precision is None else precision == "tf32"
    return replace(known, dtypes=known.dtypes | {torch.float32}) if tf32 else known


def _kind(properties: Any) -> tuple[object, ...]:
    """What code, costs and the numbers that kernels draw depend on."""
    names = ("name", "major", "minor", "multi_processor_count", "max_threads_per_multi_processor")
    return tuple(getattr(properties, name) for name in names)


def out_variant(op: OpOverload) -> OpOverload | None:
    """The operator that computes what `op` does, in memory given as `out`."""
    return row(op).out


def load(
    devices: Sequence[torch.device], kept: Store | None, graphs: WeakSet[Replay] | None, plan: Plan
) -> _native.Plan:
    """`plan` made callable on a tuple of its inputs, its kernels loaded on `devices`, as code that is `kept` if it is.
    `graphs`: it is replayed as CUDA graphs where it can be, which are counted among these. Raises what the driver says."""
    for place, functions in _by_device(plan).items():
        load_kernels(functions, place.index, kept)
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
    found: dict[torch.device, set[Function]] = {}
    for launch in launches(plan.steps):
        function = plan.kernels[launch.kernel]
        if function.block is not None:
            found.setdefault(launch.device or plan.device, set()).add(function)
    return found


def cannot_be_replayed(plan: Plan) -> str | None:
    """What the plan does that a replay would not: it only repeats what was launched."""
    calls = [step for step in plan.steps if isinstance(step, Aten)]
    known = {out for call in calls if call.op in SAME_IN_REPLAYS for out in call.outs}
    passed = {launch.regs[k] for launch in launches(plan.steps) for k, _ in launch.by_value}
    if plan.numbers or not passed <= known:
        return "its kernels are given numbers"
    if plan.on_host:
        return "it computes on the CPU"
    for call in calls:
        if call.op in (RUN_KERNEL, RUN_KERNEL_FUNCTIONAL):
            return "it launches a kernel of the program's own"
        if is_foreign(call.op):
            return f"{call.op} may do more than work on the GPU"
    return None


def address_of(function: Function) -> int | _native.DeviceKernel:
    """What a launch of it names: an address on the CPU, or a GPU's kernel."""
    return address_on_cpu(function) if function.block is None else kernel_of(function)
