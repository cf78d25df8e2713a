"""Compiled functions called, compiled and reset by several threads at once: eager's results, and no thread stands still.

SMELT_STRESS_SECONDS sets how long each test goes on (2; a minute in `make sweep`).
"""

from __future__ import annotations

import faulthandler
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.report.inspect import entries, reasons

SECONDS = float(os.environ.get("SMELT_STRESS_SECONDS", "2"))
SCALE = 2.0


def in_threads(workers: list[Callable[[random.Random], Any]], seconds: float = SECONDS) -> None:
    """Runs each worker in a thread of its own, again and again. The first error is raised, as is standing still."""
    errors: list[BaseException] = []
    turns = [0] * len(workers)
    end = time.monotonic() + seconds

    def run(i: int) -> None:
        rng = random.Random(i)
        try:
            with torch.no_grad():
                while time.monotonic() < end and not errors:
                    workers[i](rng)
                    turns[i] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(workers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 120)
    if any(thread.is_alive() for thread in threads):  # daemons: they do not keep the process
        faulthandler.dump_traceback(sys.__stderr__)
        pytest.fail("a thread stands still; the stacks are on stderr")
    if errors:
        raise errors[0]
    assert all(turns), turns


def shapes(x: Any) -> Any:
    y = F.gelu(x @ x.t()) * SCALE
    return y.softmax(-1) + len(x), x.shape


def large(x: Any) -> Any:
    """Temporaries of a megabyte: the plan gives the interpreter's lock away while it runs."""
    y = (x * 2).sin() + x.t().contiguous()
    z = torch.linalg.norm(y, dim=-1, keepdim=True)
    return (y / (z + 1)).cos().sum(0), (y - z).relu()


def written(x: Any) -> Any:
    x.mul_(0.5).add_(1)
    return x.flip(0) + x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
        self.norm = nn.LayerNorm(8)
        self.power = 1.0

    def forward(self, x: Any) -> Any:
        power = self.power
        for layer in self.layers:
            x = x + torch.tanh(layer(self.norm(x)))
        return x * power, power


def check(
    compiled: Any, fn: Any, make: Callable[[random.Random], torch.Tensor]
) -> Callable[[random.Random], None]:
    def worker(rng: random.Random) -> None:
        x = make(rng)
        got, want = compiled(x.clone()), fn(x.clone())
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)

    return worker


def matrix(*sizes: int) -> Callable[[random.Random], torch.Tensor]:
    return lambda rng: torch.randn(rng.choice(sizes), sizes[0])


def test_one_function_in_several_threads() -> None:
    compiled = smelt.compile(large)
    in_threads([check(compiled, large, lambda rng: torch.randn(512, 512)) for _ in range(4)])
    assert not reasons(compiled)


def test_several_functions_and_shapes() -> None:
    made = [smelt.compile(f, options={"recompile_limit": 20}) for f in (shapes, written)]
    net = Net().eval()
    compiled_net = smelt.compile(net, options={"recompile_limit": 20})
    workers = [check(made[0], shapes, matrix(*range(2, 9))) for _ in range(2)]
    workers += [check(made[1], written, matrix(*range(2, 9))) for _ in range(2)]
    workers += [check(compiled_net, net, matrix(8, 1, 2, 3)) for _ in range(2)]
    in_threads(workers)
    for compiled in (*made, compiled_net):
        assert not reasons(compiled), reasons(compiled)[0]


def test_functions_that_are_made_and_dropped() -> None:
    """Each turn compiles afresh, while others do the same or run what they have."""
    net = Net().eval()

    def fresh(rng: random.Random) -> None:
        k = rng.random()

        def fn(x: Any) -> Any:
            return torch.sin(x) * k + net.layers[rng_choice](x)

        rng_choice = rng.randrange(4)
        compiled = smelt.compile(fn)
        for _ in range(3):
            check(compiled, fn, matrix(8, 2))(rng)

    kept = smelt.compile(net)
    in_threads([fresh, fresh, check(kept, net, matrix(8, 2)), check(kept, net, matrix(8, 2))])


def broken(x: Any) -> Any:
    """Two breaks: the rest of the function is captured as functions of its own."""
    y = torch.sin(x) * SCALE
    if y.sum().item() > 0:
        y = y + 1
    total = float(y.abs().max().item())
    return y / (total + 1), total > 1


def test_functions_that_break() -> None:
    compiled = smelt.compile(broken, options={"recompile_limit": 20})
    in_threads([check(compiled, broken, matrix(*range(2, 6))) for _ in range(4)])


def test_gradients() -> None:
    net = Net()
    compiled = smelt.compile(net, options={"recompile_limit": 20})

    def worker(rng: random.Random) -> None:
        x = torch.randn(rng.choice((1, 2, 3)), 8, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            got = torch.autograd.grad(compiled(x)[0].sum(), x)
            want = torch.autograd.grad(net(y)[0].sum(), y)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)

    in_threads([worker] * 4)


def test_reset_while_others_call() -> None:
    compiled = smelt.compile(shapes, options={"recompile_limit": 20})
    callers = [check(compiled, shapes, matrix(*range(2, 5))) for _ in range(3)]
    in_threads([*callers, lambda rng: (time.sleep(0.05), smelt.reset())])


def test_the_world_changes_while_others_call() -> None:
    """A call sees one of the values that an attribute had meanwhile, and computes with it."""
    net = Net().eval()
    compiled = smelt.compile(net, options={"recompile_limit": 20})
    plain = Net().eval()
    plain.load_state_dict(net.state_dict())

    def change(rng: random.Random) -> None:
        net.power = float(rng.randrange(4))
        time.sleep(0.001)

    def call(rng: random.Random) -> None:
        x = torch.randn(2, 8)
        got, power = compiled(x)
        torch.testing.assert_close(got, plain(x)[0] * power, rtol=1e-4, atol=1e-5)

    in_threads([change, call, call, call])
    assert len(entries(compiled)) <= 4


def test_entries_are_added_while_others_walk_them() -> None:
    """Entries come and go under a walk over them: nothing is freed that is still looked at."""

    def scaled(x: Any, k: int) -> Any:
        return x * k

    compiled = smelt.compile(scaled, backend="eager", options={"recompile_limit": 64})

    def call(rng: random.Random) -> None:
        k = rng.randrange(60)
        assert compiled(torch.ones(2), k).tolist() == [k, k]

    in_threads([call, call, call, lambda rng: (time.sleep(0.2), smelt.reset())])
