"""Programs with graphs inside of graphs: `torch.cond`, `while_loop`, `scan`. Results have the compiled call's bits."""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt import runtime
from tests.harness.exported import results_elsewhere, same, section, with_section
from tests.harness.inner_graphs import MODELS, REFUSED, Gated, made

pytestmark = pytest.mark.skipif(
    REFUSED, reason="torch.cond calls torch.compile there, which breaks the graph"
)


@pytest.mark.parametrize("name", MODELS)
def test_the_bits_of_the_compiled_call(name: str, tmp_path: Path) -> None:
    model, calls, program = made(name)
    run = smelt.compile(model, fullgraph=True)
    with torch.no_grad():
        wanted = [run(*args) for args in calls]
    for args, want in zip(calls, wanted):
        assert same(program(*args), want)
    assert all(map(same, results_elsewhere(program, [(args, {}) for args in calls], tmp_path), wanted))


@pytest.mark.parametrize("name", ["gated", "decoder", "nested", "dynamic", "sized"])
def test_compiled_again_for_another_torch(name: str, tmp_path: Path) -> None:
    """The stored graphs are those that the plans were made from."""
    _, calls, program = made(name)
    program.save(tmp_path / "m.smelt")
    data = (tmp_path / "m.smelt").read_bytes()
    tables, version = section(data, b"tables"), torch.__version__.encode()
    other = tables.replace(version, b"9.9" + b"0" * (len(version) - 3))
    (tmp_path / "m.smelt").write_bytes(with_section(data, b"tables", other))
    with pytest.warns(UserWarning, match="compiled again"):
        again = smelt.load(tmp_path / "m.smelt")
    for args in calls:
        assert same(again(*args), program(*args))


def test_weights_of_branches() -> None:
    """Operands of branches, which `update_weights` replaces."""
    model, calls, program = made("gated")
    other = Gated()
    program.update_weights(dict(other.state_dict()))
    wanted = smelt.export(other, calls[0])
    for args in calls:
        assert same(program(*args), wanted(*args))


def test_results_share_no_memory_with_arguments() -> None:
    _, calls, program = made("unchanged")
    x = -torch.ones(4, 2)
    n, y, copied = program(x)
    assert n == 0 and torch.equal(y, x) and y.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    y += 1
    assert torch.equal(x, -torch.ones(4, 2)) and torch.equal(copied, x)


def test_memory_between_calls() -> None:
    """`release_all` frees the memory of inner plans, too."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: (a @ a).exp() @ a, lambda a: a.cumsum(0).sin() @ a, (x,))

    x = torch.rand(64, 64) / 64
    program = smelt.export(f, (x,))
    wanted = program(x)
    assert runtime.held_bytes() > 0
    runtime.release_all()
    assert runtime.held_bytes() == 0
    assert same(program(x), wanted)


def step(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    result = model(x)
    result.square().sum().backward()
    assert x.grad is not None
    return [result.detach(), x.grad]


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).tanh()
        return (
            torch.cond(x.sum() > 0, lambda a: self.second(a).sigmoid() @ a, lambda a: a.cos() @ a, (h,)) + h
        )


def test_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Trained(), torch.randn(4, 4).abs()
    smelt.export(model, (x.clone().requires_grad_(),), gradients=True).save(tmp_path / "m.smelt")
    compiled, program = smelt.compile(copy.deepcopy(model), fullgraph=True), smelt.load(tmp_path / "m.smelt")
    for given in (x, -x, x * 2):
        assert same(step(program, given), step(compiled, given))
    wanted = {name: p.grad for name, p in compiled.named_parameters()}
    found = {name: p.grad for name, p in program.named_parameters()}
    assert all(same(found[name], gradient) for name, gradient in wanted.items()) and len(found) == 4


ENDLESS = """
import signal, torch, smelt
from torch._higher_order_ops import while_loop

signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background of a shell ignores it

def f(x):
    return while_loop(lambda i, a: a.sum() > 0, lambda i, a: (i + 1, a * 1), (torch.tensor(0), x))

program = smelt.export(f, (torch.ones(4),))
try:
    print("ready", flush=True)
    program(torch.ones(4))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_endless_loop_can_be_interrupted() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ENDLESS)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(1)  # until the loop runs
        process.send_signal(signal.SIGINT)
        try:
            assert process.communicate(timeout=60)[0] == "interrupted\n"
        finally:
            process.kill()


def test_the_graph_as_text() -> None:
    """The inner graphs follow, as functions."""
    text = made("nested")[2].graph
    assert [line.partition("(")[0] for line in text.splitlines() if line.startswith("def ")] == [
        "def forward",
        "def cond_1_0",
        "def while_loop_0",
        "def while_loop_1",
        "def cond_0",
        "def cond_1",
        "def cond_1_1",
    ]
    compile(text, "graph", "exec")
