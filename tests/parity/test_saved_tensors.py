"""Backwards of custom functions that are compiled by themselves, and what they read of their ctx."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.autograd import Function

import smelt
from smelt.report.inspect import reasons
from tests.harness.agreement import same
from tests.harness.training import leaf


def function_of(backward):
    class Doubled(Function):
        @staticmethod
        def forward(ctx, x):
            y = x + x
            ctx.save_for_backward(y, x)
            ctx.factor = 3.0
            return y

    Doubled.backward = staticmethod(backward)
    return Doubled


def of_one_read(ctx, g):
    y, x = ctx.saved_tensors
    return g * y.sin() * x * ctx.factor if ctx.needs_input_grad[0] else None


def of_two_reads(ctx, g):
    y, x = ctx.saved_tensors
    again, other = ctx.saved_tensors
    return g * y.sin() * again.cos() * (2.0 if again is y else 3.0) * (5.0 if x is other else 7.0)


def of_a_write(ctx, g):
    ctx.saved_tensors[0].add_(1)
    return g * ctx.saved_tensors[1]


class Hooks:
    """Hooks that count how often they pack and unpack."""

    def __init__(self):
        self.packed = self.unpacked = 0

    def pack(self, t):
        self.packed += 1
        return t * 1

    def unpack(self, t):
        self.unpacked += 1
        return t

    def __call__(self):
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)


def observed(backward, with_hooks):
    torch.manual_seed(0)
    hooks, double, seen = Hooks(), function_of(backward), []
    for _ in range(3):
        x = leaf(3)
        with hooks() if with_hooks else contextlib.nullcontext():
            y = double.apply(x)
        try:
            y.sum().backward()
        except RuntimeError as error:
            seen.append(str(error).partition(":")[0])
        seen += [x.grad, hooks.packed, hooks.unpacked]
    return seen


@pytest.mark.parametrize("with_hooks", [False, True])
@pytest.mark.parametrize("backward", [of_one_read, of_two_reads, of_a_write])
def test_backwards_compiled_by_themselves(backward, with_hooks):
    compiled = smelt.compile(backward)
    same(observed(compiled, with_hooks), observed(backward, with_hooks), "")
    if backward is of_one_read and not with_hooks:
        assert not reasons(compiled)


def test_hooks_after_a_call_without_them():
    """The guards call no hook before they refuse the entry."""
    compiled = smelt.compile(of_one_read)
    observed(compiled, False)
    same(observed(compiled, True), observed(of_one_read, True), "")
    same(observed(compiled, False), observed(of_one_read, False), "")


def test_properties_of_objects_of_cpp():
    def fn(x, info):
        return x.cos() if info.result else x.sin()

    compiled = smelt.compile(fn, fullgraph=True)
    x = torch.ones(3)
    for result in (True, False, True):
        info = torch._C._dynamo.guards.GuardDebugInfo(result, ["a"], 0)
        assert torch.allclose(compiled(x, info), fn(x, info))
