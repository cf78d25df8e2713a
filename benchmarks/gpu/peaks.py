"""How much memory calls take at most beyond weights and inputs, told without a GPU: by eager, and by smelt's plans.

    python -m benchmarks.gpu.peaks                                      all ten models, inference and training
    python -m benchmarks.gpu.peaks --only "BERT base, 32×128" --largest 8    and what is in memory then

Eager's operators run on fakes, whose lives are counted; of smelt the plans are built for the simulated device, and walked.
Attention is the kernel that CUDA takes. What cuBLAS and cuDNN allocate for themselves is not known here: on an H100 that was
35 to 75 MiB more, with smelt as in eager. `least` is what is in use at once in the order of the plan, without waste;
`allocations` are those of a call's plans, the arena one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

os.environ["SMELT_SIMULATED"] = "1"

from benchmarks.gpu import device  # first: it says that smelt compiles for GPUs

# isort: split
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import smelt
from benchmarks.gpu.models import MODELS, Built, Work
from benchmarks.models import tensors
from smelt import pipeline
from smelt.autograd.partition import Partition, partition
from smelt.backends import smelt as backend
from smelt.plan.arena_allocation import shares
from smelt.plan.build_plan import build_plan
from smelt.plan.plan_device import PlanDevice
from smelt.plan.plan_items import Item
from smelt.plan.steps import Alloc, Free, Plan, defines, span_bytes
from smelt.schedule.schedule import Schedule, accesses
from tests.simulated import cuda

MIB = 1 << 20
BLOCK = 512  # bytes: torch's allocator gives multiples


@dataclass(frozen=True, order=True)
class Peak:
    """The most that is in memory at once, and what: bytes and a name of each."""

    nbytes: int = 0
    live: tuple[tuple[int, str], ...] = ()


class Memory:
    """What is in memory, by some key, and the most that there was."""

    def __init__(self) -> None:
        self.live: dict[int, tuple[int, str]] = {}
        self.nbytes = 0
        self.peak = Peak()

    def add(self, key: int, nbytes: int, name: str) -> None:
        """Comes into memory; does nothing for what is there already."""
        if key in self.live:
            return
        nbytes = -(-nbytes // BLOCK) * BLOCK
        self.live[key] = nbytes, name
        self.nbytes += nbytes
        if self.nbytes > self.peak.nbytes:
            self.peak = Peak(self.nbytes, tuple(self.live.values()))

    def drop(self, key: int) -> None:
        """Is gone."""
        self.nbytes -= self.live.pop(key)[0]


# ------------------------------------------------------------------------------------------------------------- eager


class Counted(TorchDispatchMode):
    """Counts the storages of all that operators give, while they live."""

    def __init__(self, held: list[torch.Tensor]) -> None:
        super().__init__()
        self.memory = Memory()
        for t in held:
            self.memory.add(t.untyped_storage()._cdata, 0, "given")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for t in tree_leaves(results):
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata not in self.memory.live:
                storage = t.untyped_storage()
                self.memory.add(storage._cdata, storage.nbytes(), f"{func} {_layout(t.dtype, t.shape)}")
                weakref.finalize(storage, self.memory.drop, storage._cdata)
        return results


def eager(name: str, training: bool) -> Peak:
    """Of eager, on fakes."""
    made = _described(name)
    with FakeTensorMode(allow_non_fake_inputs=True):
        module, inputs = _empty(made)
        module.train(training)
        held = [*module.parameters(), *module.buffers(), *inputs.values()]
        with Counted(held) as counted, torch.set_grad_enabled(training):
            with torch.autocast("cuda", torch.bfloat16):
                result = tensors(module(**inputs))[0]
            if training:
                result.backward(torch.empty_like(result))
    return counted.memory.peak


# ------------------------------------------------------------------------------------------------------------- smelt


class _Seen(Exception):
    """All plans are there: nothing needs to run."""


Planned = tuple[Schedule, Plan]


def smelt_peaks(name: str, training: bool) -> tuple[Peak, Peak, int]:
    """Of smelt's plans: as they are, and without what their arenas waste; how often they allocate."""
    planned: list[Planned] = []
    cuts: list[Partition] = []

    def plan_of(schedule: Schedule, items: Sequence[Item], device: PlanDevice, *further: Any) -> Plan:
        planned.append((schedule, build_plan(schedule, items, device, *further)))
        if not training:
            raise _Seen
        return planned[-1][1]

    def both(
        traced: Any, joint: Any, config: Any, compile_graph: Any, run_eagerly: Any, lay_out: Any, *_: Any
    ) -> Any:
        cuts.append(lay_out(partition(joint, config)))
        compile_graph(cuts[0].forward, frozenset(), ())
        compile_graph(cuts[0].backward, cuts[0].given(cuts[0].backward), ())
        raise _Seen

    module, inputs = _empty(_described(name))
    work = Work((module, inputs), training)
    with (
        mock.patch.object(pipeline, "build_plan", plan_of),
        mock.patch.object(backend, "compile_joint", both),
        contextlib.suppress(smelt.errors.BackendError),
    ):
        work.run(smelt.compile(module, fullgraph=True))
    peaks = [walked(planned[0], {})]
    if training:
        peaks.append(walked(planned[1], _kept(planned[0], cuts[0])))
    return max(p for p, _ in peaks), max(p for _, p in peaks), sum(_allocations(plan) for _, plan in planned)


def _allocations(plan: Plan) -> int:
    alone = (isinstance(s, Alloc) and s.arena is None and s.over is None for s in plan.steps)
    return sum(alone) + (plan.arena_bytes > 0)


def _kept(forward: Planned, cut: Partition) -> dict[int, tuple[int, str]]:
    """What is there when the backward begins, by register: the result and its tangent (none), and what was saved."""
    schedule, plan = forward
    assert plan.outputs[0] is not None
    result = _nbytes(schedule, plan.outputs[0])
    saved = {i: (s.nbytes, f"saved {s.name}") for i, s in enumerate(cut.saved) if s.kind == "temporary"}
    return {-1: (result, "result"), -2: (result, "tangent"), **saved}


def walked(planned: Planned, kept: Mapping[int, tuple[int, str]]) -> tuple[Peak, Peak]:
    """The peak of a plan with its arena, and the peak of what is in use."""
    schedule, plan = planned
    names = {b: item.note for item in schedule.items for b in accesses(item)[1] if hasattr(item, "note")}
    whole, used = Memory(), Memory()
    owner: dict[int, int] = {}
    sharing: dict[int, set[int]] = {}
    in_arena: set[int] = set()

    def begin(register: int, nbytes: int, name: str) -> None:
        owner[register], sharing[register] = register, {register}
        used.add(register, nbytes, name)
        if register not in in_arena:
            whole.add(register, nbytes, name)

    for register, (nbytes, name) in kept.items():
        begin(register, nbytes, name)
    for step in plan.steps:
        shared = dict(shares(step))
        if isinstance(step, Alloc) and step.over is not None:
            shared[step.out] = step.over
        elif isinstance(step, Alloc) and step.arena is not None:
            in_arena.add(step.out)
            whole.add(-3, plan.arena_bytes, "arena")
        for out in defines(step):
            if out not in shared and out < len(schedule.buffers):
                spec = schedule.buffers[out].spec
                begin(out, _nbytes(schedule, out), f"{_layout(spec.dtype, spec.shape)} {names.get(out, '')}")
            elif shared.get(out) in owner:
                owner[out] = owner[shared[out]]
                sharing[owner[out]].add(out)
        for register in step.regs if isinstance(step, Free) else ():
            if register in owner:
                sharing[owner[register]].discard(register)
                if not sharing[owner[register]]:
                    used.drop(owner[register])
                    if owner[register] not in in_arena:
                        whole.drop(owner[register])
    return whole.peak, used.peak


def _nbytes(schedule: Schedule, buffer: int) -> int:
    spec = schedule.buffers[buffer].spec
    return span_bytes(spec.shape, spec.stride, spec.dtype)


# ------------------------------------------------------------------------------------------------------------- report


def _described(name: str) -> Built:
    """A model and its inputs, without memory."""
    usual, make = MODELS[name]
    with torch.device("meta"):
        return make(usual)


def _empty(described: Built) -> Built:
    """The model on the device, with whatever is in its memory."""
    module, inputs = described
    module = module.to_empty(device="cuda")
    getattr(module, "tie_weights", lambda: None)()
    return module, {k: torch.empty_like(v, device="cuda") for k, v in inputs.items()}


def _layout(dtype: torch.dtype, shape: Iterable[Any]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _print_largest(who: str, peak: Peak, count: int) -> None:
    print(f"  {who}, at its peak")
    for nbytes, name in sorted(peak.live, reverse=True)[:count]:
        print(f"    {nbytes / MIB:8.1f}  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=MODELS, help="one model")
    parser.add_argument("--largest", type=int, default=0, help="print so many of what is in memory")
    options = parser.parse_args()
    device.ready()
    cuda.simulated().simulated_use_fused_attention(ctypes.c_bool(True))
    print(f"{'MiB beyond weights and inputs':44} {'eager':>8} {'smelt':>8} {'least':>8} allocations")
    for name in [options.only] if options.only else MODELS:
        for training in (False, True):
            by_eager, (by_smelt, least, allocations) = eager(name, training), smelt_peaks(name, training)
            figures = [f"{p.nbytes / MIB:8.1f}" for p in (by_eager, by_smelt, least)] + [f"{allocations:11}"]
            worse = "  more than eager" if by_smelt.nbytes > by_eager.nbytes else ""
            print(f"{name:34} {'training' if training else 'inference':9}", *figures, worse, flush=True)
            if options.largest:
                _print_largest("eager", by_eager, options.largest)
                _print_largest("smelt", by_smelt, options.largest)


if __name__ == "__main__":
    main()
