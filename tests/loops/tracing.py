"""Helpers: trace a function on example tensors, lower and schedule it, run it by the reference interpreter."""

import torch

from smelt.config import DEFAULT
from smelt.ops.lower import lower
from smelt.schedule.fuse import fuse
from smelt.schedule.interpret import run
from smelt.schedule.schedule import ExternItem, KernelItem
from smelt.trace.record import Trace


def flatten(result):
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for x in result for t in flatten(x)]


def traced(f, *inputs):
    """(aten graph, the real tensors of its placeholders)"""
    with torch.no_grad():
        trace = Trace()
        with trace:
            fakes = [trace.fake(t) for t in inputs]
            outputs = flatten(f(*fakes))
        record = trace.finish(outputs)
        real = [trace.real(fake) for fake in record.inputs]
    return record.aten_graph, real


def traced_module(module, kwargs, outputs_of=flatten):
    """(aten graph, the real tensors of its placeholders) of a module called with tensors as keyword arguments."""
    stores = [store for m in module.modules() for store in (m._parameters, m._buffers)]
    saved = [dict(store) for store in stores]
    with torch.no_grad():
        trace = Trace()
        with trace:
            fakes = {k: trace.fake(v) for k, v in kwargs.items()}
            for store in stores:
                store.update({k: trace.fake(v) for k, v in store.items() if v is not None})
            try:
                outputs = outputs_of(module(**fakes))
            finally:
                for store, old in zip(stores, saved):
                    store.update(old)
        record = trace.finish(outputs)
        return record.aten_graph, [trace.real(fake) for fake in record.inputs]


def scheduled(f, *inputs):
    graph, real = traced(f, *inputs)
    return fuse(lower(graph, DEFAULT), DEFAULT), real


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
        assert len(names) == n_kernels, f"{names}\n{schedule.refusals}"
    if n_externs is not None:
        assert len(externs(schedule)) == n_externs, externs(schedule)
    return schedule
