"""Targets: hosts without measurements, and a second device from its costs to a plan."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from smelt import targets
from smelt.codegen.cpu_launches import generate
from smelt.codegen.plan_loading import load
from smelt.codegen.triton import triton_source
from smelt.config import DEFAULT, Config
from smelt.errors import Unsupported
from smelt.ops.lowering import lower
from smelt.plan.build_plan import build_plan
from smelt.plan.machine_code import CompiledKernel, Function, Library, Processor
from smelt.plan.plan_device import Memory, Sharing
from smelt.plan.steps import Alloc, Aten, Launch
from smelt.plan.verify_plan import verify
from smelt.schedule.schedule import KernelItem
from smelt.schedule.schedule_program import fuse
from smelt.targets import cpu
from smelt.targets.target import Target
from tests.harness.scheduled import costs
from tests.harness.traced import traced

aten = torch.ops.aten


def planned(target, f, *inputs, graph=None):
    """The plan of `f`, or of a graph, on `target`."""
    graph = graph or traced(f, *inputs)[0]
    schedule = fuse(lower(graph, target.costs), target.costs)
    plan = build_plan(schedule, target.generate(schedule), target)
    verify(plan)
    return plan


# ---- products

r = torch.randn
PRODUCTS = {
    "matrices": (torch.mm, r(8, 16), r(16, 32)),
    "one row": (lambda x, w: x @ w.t(), r(1, 64), r(32, 64)),
    "one row and a bias": (lambda b, x, w: torch.addmm(b, x, w.t()), r(32), r(1, 64), r(32, 64)),
    "batches": (torch.bmm, r(2, 8, 16), r(2, 16, 8)),
    "1x1 convolution": (F.conv2d, r(2, 24, 6, 5), r(40, 24, 1, 1)),
    "one pixel": (F.conv2d, r(1, 24, 1, 1), r(40, 24, 1, 1), r(40)),
    "patches": (partial(F.conv2d, stride=4), r(1, 3, 32, 32), r(24, 3, 4, 4), r(24)),
    "one pixel in four": (partial(F.conv2d, stride=2), r(1, 16, 32, 32), r(24, 16, 1, 1)),
    "3x3 convolution": (partial(F.conv2d, padding=1), r(1, 4, 9, 9), r(8, 4, 3, 3)),
    "depthwise": (partial(F.conv2d, padding=1, groups=8), r(1, 8, 9, 9), r(8, 1, 3, 3)),
    "backward of a 1x1 convolution": (
        lambda g, x, w: aten.convolution_backward(
            g, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
        )[:2],
        *(r(2, 24, 4, 4), r(2, 32, 4, 4), r(24, 32, 1, 1)),
    ),
    "max pooling": (partial(F.max_pool2d, kernel_size=3, stride=2), r(1, 8, 20, 20)),
    "mean pooling": (partial(F.avg_pool2d, kernel_size=2), r(1, 8, 20, 20)),
}
UNMEASURED = {
    "a host without measurements": lambda: cpu.target(DEFAULT, "mystery"),
    "native_gemm=False": lambda: cpu.target(Config(native_gemm=False), "znver5"),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("target", UNMEASURED)
def test_products_convolutions_and_pooling_are_atens(name, target):
    plan = planned(UNMEASURED[target](), *PRODUCTS[name])
    assert not any(isinstance(step, Launch) for step in plan.steps)
    assert sum(isinstance(step, Aten) for step in plan.steps) == 1


@pytest.mark.parametrize("name", [name for name in PRODUCTS if name != "3x3 convolution"])
@pytest.mark.parametrize("host", cpu.PRODUCT_COSTS)
def test_on_hosts_that_were_measured_they_are_not(name, host):
    plan = planned(cpu.target(DEFAULT, host), *PRODUCTS[name])
    assert any(isinstance(step, Launch) for step in plan.steps)


# ---- a second device


def printed(kernels):
    """Kernels as text, in place of machine code."""
    processor = Processor("second", "device", "")
    code = [Library(processor, (triton_source(k).text.encode(),), (k.name,)) for k in kernels]
    return [CompiledKernel(k.name, Function(c, k.name), 1, 1) for k, c in zip(kernels, code)]


def second_target(config=DEFAULT):
    """A device whose kernels are only printed, with many workers and little memory for each; no products, no `out=`."""
    return Target(
        costs=costs(threads=132, launch=1e6, scratch_bytes=0, products=None),
        generate=partial(generate, compile_kernels=printed, products=None),
        load=load,
        out_variant=lambda op: None,
        memory=Memory(torch.device("cuda", 0), 256),
        sharing=Sharing(),
    )


def on_second_device(f, *inputs):
    """The graph of `f`, its tensors said to be on the second device."""
    graph, _ = traced(f, *inputs)
    for node in graph:
        node.spec = moved(node.spec)
    return graph


def moved(spec):
    """A spec, or a tuple of them, on the second device."""
    if isinstance(spec, tuple):
        return tuple(map(moved, spec))
    return replace(spec, device=torch.device("cuda", 0)) if hasattr(spec, "device") else spec


def test_a_second_device_has_a_plan(monkeypatch):
    def f(x, w):
        return torch.softmax(torch.relu(x * 2) @ w, -1)

    monkeypatch.setitem(targets.TARGETS, "cuda", lambda device: second_target)
    graph = on_second_device(f, r(6, 5), r(5, 3))
    target = targets.factory({node.spec.device for node in graph if node.op != "output"})(DEFAULT)
    plan = planned(target, f, graph=graph)
    assert [type(s).__name__ for s in plan.steps if not isinstance(s, Alloc)] == [
        "Launch",
        "Free",
        "Aten",
        "Free",
        "Launch",
        "Free",
    ]
    (product,) = [s for s in plan.steps if isinstance(s, Aten)]
    assert product.op is aten.mm.default  # neither generated nor its `out=`
    offsets = [s.arena for s in plan.steps if isinstance(s, Alloc)]
    assert offsets == [0, None]  # the result is not in the arena
    assert plan.arena_bytes == 256


def test_its_costs_decide_its_kernels():
    graph = on_second_device(lambda x: torch.softmax(x, -1), r(64, 64))
    for target, expected in ((second_target(), ["in", "out"]), (cpu.target(DEFAULT), ["in", "local", "out"])):
        schedule = fuse(lower(graph, target.costs), target.costs)
        (item,) = [i for i in schedule.items if isinstance(i, KernelItem)]
        assert [b.role for b in item.kernel.buffers] == expected


def test_dropout_draws_within_a_kernel_where_the_devices_numbers_are_known():
    def f(x, w):
        return torch.native_dropout((x * 2).relu(), 0.1, True)[0] @ w

    graph = on_second_device(f, r(64, 64), r(64, 64))
    for blocks, expected in (
        (0, ["mul_relu", aten.native_dropout.default, aten.mm.default]),
        (1056, [torch.ops.smelt.philox_offset.default, "mul_relu_native_dropout", aten.mm.default]),
    ):
        costs = replace(second_target().costs, draw_blocks=blocks)
        items = fuse(lower(graph, costs), costs).items
        assert [i.kernel.name if isinstance(i, KernelItem) else i.op for i in items] == expected


def test_a_device_without_a_target_is_refused():
    with pytest.raises(Unsupported, match=r"a tensor on meta; .* for CPUs and CUDA"):
        targets.factory({torch.device("meta"), torch.device("cpu")})
    assert targets.factory(())(DEFAULT).memory.device == torch.device("cpu")


# ---- threads


def test_the_option_bounds_the_workers_of_a_launch():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert cpu.target(DEFAULT).costs.threads == 4 and cpu.target(Config(threads=2)).costs.threads == 2
    finally:
        torch.set_num_threads(before)
    assert Sharing(2).grain(100, 10) == 50 and Sharing(2).grain(10, 30) == 30
    assert Sharing(0).grain(100, 10) == 10 and Sharing(0).grain(100, 0) == 1
