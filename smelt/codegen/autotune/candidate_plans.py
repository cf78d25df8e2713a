"""One group of a schedule as a plan of its own, by ATen or by a generated product, on made-up inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch

from smelt import _native
from smelt.codegen.autotune.gemm_candidates import Group, Variant
from smelt.graph.ir import TensorSpec
from smelt.graph.pytree import map_leaves
from smelt.graph.tensor_specs import static_sizes
from smelt.plan.build_plan import build_plan
from smelt.plan.machine_code import CompiledKernel
from smelt.plan.plan_device import PlanDevice
from smelt.plan.plan_items import Item, LaunchItem, Role
from smelt.plan.steps import Plan, span_bytes
from smelt.schedule.schedule import BufferSpec, BufRef, ExternItem, KernelItem, Schedule, ViewItem, accesses
from smelt.schedule.schedule import Item as ScheduleItem

Tensors = tuple[torch.Tensor, ...]
Run = Callable[[Tensors], torch.Tensor]  # the group's result


def launch_item(code: CompiledKernel, variant: Variant) -> LaunchItem:
    """The variant's product as an item of a plan."""
    roles: list[Role] = ["in"] * (len(variant.buffers) - 1)
    return LaunchItem(code, variant.buffers, (*roles, "out"), variant.note, joins=False)


@dataclass(frozen=True)
class Baseline:
    """The device without generated products and without CUDA graphs."""

    device: PlanDevice
    generate: Callable[[Schedule], Sequence[Item]]
    load: Callable[[Plan], _native.Plan]

    def run(self, schedule: Schedule, items: Sequence[Item]) -> Run:
        """Runs `items` as a plan. Raises what the driver raises."""
        plan = self.load(build_plan(schedule, items, self.device))

        def run(inputs: Tensors) -> torch.Tensor:
            [result] = plan(inputs)
            assert isinstance(result, torch.Tensor)
            return result

        return run


class Contest:
    """A group of `schedule` alone. Its inputs are numbers between -1/4 and 1/4 that depend on their position alone."""

    def __init__(self, schedule: Schedule, group: Group, baseline: Baseline) -> None:
        items = [schedule.items[p] for p in group.positions]
        self.group, self.baseline = group, baseline
        self.positions = dict(enumerate(group.positions))
        defined = {b for item in items for b in accesses(item)[1]}
        result = group.variants[0].buffers[-1]
        read = [b for item in items for b in accesses(item)[0] if b not in defined]
        buffers = [*dict.fromkeys(read), *sorted(defined)]
        self.numbers = {b: n for n, b in enumerate(buffers)}
        n_inputs = len(buffers) - len(defined)
        specs = [schedule.buffers[b].spec for b in buffers]
        self.schedule = Schedule(
            buffers=[
                BufferSpec(n, spec, "input" if n < n_inputs else "temp") for n, spec in enumerate(specs)
            ],
            constants=(),
            items=[self._item(item) for item in items],
            outputs=(self.numbers[result],),
        )
        self._specs = specs[:n_inputs]
        self._constants = [schedule.constant(b) for b in buffers[:n_inputs]]

    def inputs(self) -> Tensors:
        """Tensors laid out as the schedule's."""
        pairs = zip(self._specs, self._constants, strict=True)
        return tuple(_made_up(spec, n) if c is None else c for n, (spec, c) in enumerate(pairs))

    def by_aten(self) -> Run:
        """The group as it is."""
        return self.baseline.run(self.schedule, self.baseline.generate(self.schedule))

    def by_product(self, variant: Variant, code: CompiledKernel) -> Run:
        """The group with the variant's product. Raises what the driver says."""
        product = replace(launch_item(code, variant), buffers=tuple(self.numbers[b] for b in variant.buffers))
        others = [n for n, p in self.positions.items() if p not in variant.positions]
        before = [n for n in others if self.positions[n] < self.group.last_position]
        kept = replace(self.schedule, items=[self.schedule.items[n] for n in before])
        return self.baseline.run(self.schedule, [*self.baseline.generate(kept), product])

    def _item(self, item: ScheduleItem) -> ScheduleItem:
        def number_of(buffer: int | None) -> int | None:
            return None if buffer is None else self.numbers[buffer]

        if isinstance(item, KernelItem):
            return replace(item, buffers=tuple(map(number_of, item.buffers)))
        if isinstance(item, ViewItem):
            return replace(item, out=self.numbers[item.out], src=self.numbers[item.src], user_visible=False)
        args, kwargs = map_leaves((item.args, item.kwargs), BufRef, lambda ref: BufRef(self.numbers[ref.id]))
        return ExternItem(item.op, args, kwargs, tuple(map(number_of, item.outs)), item.note)


def agree(expected: torch.Tensor, found: torch.Tensor, tolerance: float) -> bool:
    """Whether results are the same but for rounding: `tolerance`, relative to the whole."""
    a, b = expected.double(), found.double()
    finite = a.isfinite() & b.isfinite()
    if int(finite.sum()) < 0.99 * a.numel():
        return bool((a.isfinite() == b.isfinite()).all())
    a, b = a[finite], b[finite]
    return float((a - b).norm()) <= tolerance * float(a.norm()) + 1e-30


def _made_up(spec: TensorSpec, seed: int) -> torch.Tensor:
    """Without a generator of random numbers, whose state is the user's: digits of multiples of an irrational number."""
    shape, stride = static_sizes(spec.shape), static_sizes(spec.stride)
    n = max(span_bytes(shape, stride, spec.dtype) // spec.dtype.itemsize, 1)
    x = torch.arange(1, n + 1, dtype=torch.int32, device=spec.device)
    for shift in (15, 12, 14):
        x = (x ^ (x >> shift)) * (0x2C1B3C6D + 2 * seed)
    x = (x >> 8).to(torch.float32) / (1 << 25)
    if spec.dtype is torch.bool:
        x = x > 0
    elif not spec.dtype.is_floating_point:
        x = x > 0  # 0 and 1 are in the range of all that could be meant
    return x.to(spec.dtype).as_strided(shape, stride)


def contested(positions: Collection[int], schedule: Schedule) -> str:
    """The items at `positions`, told by what they compute, not by which buffers of the schedule they use."""
    names: dict[int, int] = {}

    def named(buffer: int | None) -> str:
        if buffer is None:
            return "-"
        new = names.setdefault(buffer, len(names))
        spec = schedule.buffers[buffer].spec
        return f"{new}:{spec.dtype}{spec.shape}{spec.stride}"

    lines = []
    for position in sorted(positions):
        item = schedule.items[position]
        if isinstance(item, KernelItem):
            lines.append(f"kernel {[named(b) for b in item.buffers]}")
        elif isinstance(item, ViewItem):
            lines.append(f"view {named(item.src)} {named(item.out)} {item.offset}")
        else:
            args = map_leaves((item.args, item.kwargs), BufRef, lambda ref: named(ref.id))
            lines.append(f"{item.op} {args} {[named(o) for o in item.outs]}")
    return "\n".join(lines)
