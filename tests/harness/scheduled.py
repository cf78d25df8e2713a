"""Functions traced on example tensors, lowered and scheduled, and run by the reference interpreter of schedules."""

from dataclasses import replace
from functools import partial

import torch

from smelt.codegen.cpu_launches import Products
from smelt.config import DEFAULT
from smelt.ops.lowering import lower
from smelt.schedule.schedule import ExternItem, KernelItem
from smelt.schedule.schedule_printer import print_schedule
from smelt.schedule.schedule_program import fuse
from smelt.schedule.verify_schedule import verify
from smelt.targets import cpu
from tests.harness.schedule_interpreter import run
from tests.harness.traced import flatten, traced


def costs(**changes):
    """A CPU's costs with torch's number of threads, without generated products, and with `changes`."""
    return replace(cpu.COSTS, **{"threads": torch.get_num_threads()} | changes)


def generating(config=DEFAULT):
    """The target of a measured host that generates all products that it can."""
    products = Products(prefer=lambda product: True, fuse_epilogues=config.fuse)
    return replace(cpu.target(config, "znver5"), generate=partial(cpu.generate_launches, config, products))


def scheduled(f, *inputs, **changes):
    """The schedule of `f` under `costs(**changes)`, and the real tensors of its graph's placeholders."""
    graph, real = traced(f, *inputs)
    weighed = costs(**changes)
    schedule = fuse(lower(graph, weighed), weighed)
    verify(schedule)
    return schedule, real


def kernels(schedule):
    return [item.kernel for item in schedule.items if isinstance(item, KernelItem)]


def externs(schedule):
    return [item.op for item in schedule.items if isinstance(item, ExternItem)]


def check(f, *inputs, n_kernels=None, n_externs=None, **tolerance):
    """`f` compiled and interpreted gives what eager gives: values, strides, and what is written to inputs."""
    copies = [t.clone(memory_format=torch.preserve_format) for t in inputs]
    schedule, real = scheduled(f, *copies)
    with torch.no_grad():
        expected = flatten(f(*inputs))
    got = run(schedule, real)
    assert len(got) == len(expected)
    for a, e in zip(got, expected):
        assert a.stride() == e.stride(), f"strides {a.stride()}, eager has {e.stride()}"
        torch.testing.assert_close(a, e, equal_nan=True, **tolerance)
    for a, e in zip(copies, inputs):
        torch.testing.assert_close(a, e, equal_nan=True, **tolerance)
    if n_kernels is not None:
        names = [k.name for k in kernels(schedule)]
        assert len(names) == n_kernels, print_schedule(schedule)
    if n_externs is not None:
        assert len(externs(schedule)) == n_externs, externs(schedule)
    return schedule
