"""Functions traced on example tensors and compiled by the smelt backend, without capture."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from smelt.backends.smelt import compile_graph
from smelt.config import Config
from smelt.graph.graph_callable import Compiled
from tests.harness.traced import flatten, trace


def compiled(
    fn: Callable[..., Any], *args: torch.Tensor, **options: Any
) -> tuple[Compiled, tuple[torch.Tensor, ...]]:
    """The compiled graph of `fn`, and the tensors that it is to be called with."""
    recording, traced = trace(fn, args, grad=True)
    run = compile_graph(traced, Config(**({"verify_stages": True} | options)))
    return run, tuple(recording.real(f) for f in traced.inputs)


def check(
    fn: Callable[..., Any], *args: torch.Tensor, tolerance: float = 1e-5, strides: bool = True, **options: Any
) -> Compiled:
    """Same values, strides, dtypes, and the same change to the arguments, twice in a row."""
    ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
    run, inputs = compiled(fn, *ours, **options)
    for _ in range(2):
        got, want = run(inputs), flatten(fn(*theirs))
        for g, w in zip((*got, *ours), (*want, *theirs), strict=True):
            torch.testing.assert_close(g, w, atol=tolerance, rtol=tolerance, check_stride=strides)
    return run
