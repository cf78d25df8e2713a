"""The kernels of a compiled function, as its user sees them."""

import torch

import smelt
from smelt.report.inspect import kernels


def test_every_graph_is_shown_with_its_calls_and_what_was_not_fused():
    @smelt.compile
    def f(x, w):
        y = torch.relu(x)
        z = y + y @ w
        if z.amax() > 1e9:  # a graph break
            return z
        return z.prod()

    assert kernels(f) == ""
    f(torch.randn(4, 8), torch.randn(8, 8))
    first, second = kernels(f).split("\n\n")
    assert "kernel relu(in p0: float32, out p1: float32)" in first and "aten.mm.default(b2, b1)" in first
    assert "\nnot fused: add with relu: what it needs is computed after the other" in first
    assert "r0 = prod(p0[i0])" in second


def test_a_function_that_is_trained_shows_what_inference_runs():
    f = smelt.compile(lambda x: torch.tanh(x) * 2)
    f(torch.randn(3, requires_grad=True)).sum().backward()
    assert "tanh(p0[o0]) * 2.0" in kernels(f)
