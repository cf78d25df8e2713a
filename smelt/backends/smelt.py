"""smelt's own backend: an aten graph becomes loops, kernels, machine code and a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from smelt import events, runtime
from smelt.codegen import plan as plans
from smelt.codegen.build import build_plan
from smelt.codegen.llvm import compile_kernels
from smelt.config import Config
from smelt.errors import BackendError, Unsupported
from smelt.loops.lower import lower
from smelt.reasons import NEEDS_AUTOGRAD, Reason
from smelt.schedule.fuse import fuse
from smelt.trace.graphs import Traced

Compiled = Callable[[tuple[torch.Tensor, ...]], tuple[Any, ...]]


def compile_graph(traced: Traced, config: Config) -> Compiled:
    """A callable from a tuple of the graph's input tensors to the tuple of its outputs.

    Raises Unsupported for graphs that need gradients, BackendError (chained) for a failure of the compiler itself.
    """
    if traced.needs_grad:
        raise Unsupported(Reason(NEEDS_AUTOGRAD, ""))
    try:
        return _compile(traced, config)
    except Unsupported:
        raise
    except Exception as error:
        raise BackendError(f"the smelt backend failed: {type(error).__name__}: {error}") from error


def _compile(traced: Traced, config: Config) -> Compiled:
    with _stage("lower"):
        program = lower(traced.aten_graph, config)
    with _stage("fuse"):
        schedule = fuse(program, config)
    with _stage("codegen"):
        plan = build_plan(schedule, config, compile_kernels)
    if config.verify:
        with _stage("verify"):
            plans.verify(plan)
    with _stage("load"):
        return runtime.track(plan.to_native())


@contextmanager
def _stage(name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    events.emit("stage", name, seconds=time.perf_counter() - start)
