"""Programs with machine code for several processors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.codegen.llvm import host_cpu
from smelt.codegen.llvm.host_cpu import LEVELS, processor
from smelt.errors import ExportError
from smelt.exported import program_plans
from smelt.exported.plan_making import best_first
from smelt.exported.processor_features import of_linux
from tests.harness.exported import results_elsewhere, same

ALL = ("host", *LEVELS)


def exported(targets: Any, gradients: bool = False) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    dims = [{0: smelt.Dim("n", min=2, max=9)}]
    return x, smelt.export(model, (x,), dynamic_shapes=dims, gradients=gradients, targets=targets)


def linked(monkeypatch: pytest.MonkeyPatch, lacks: frozenset[str]) -> list[tuple[int, tuple[str, ...]]]:
    """The graphs and features of the plans that programs load, on a processor that lacks some features."""
    found: list[tuple[int, tuple[str, ...]]] = []
    load, refusal = program_plans._linked, program_plans._refusal

    def note(contents: Any, target: Any) -> Any:
        found.append((target.graph, target.needs))
        return load(contents, target)

    monkeypatch.setattr(program_plans, "_linked", note)
    monkeypatch.setattr(
        program_plans, "_refusal", lambda t: refusal(t) or ("it lacks some" if lacks & {*t.needs} else None)
    )
    return found


@pytest.mark.parametrize(
    "lacks, level", [("avx512f", "x86-64-v3"), ("avx2", "x86-64-v2")], ids=["without-avx512", "without-avx"]
)
def test_the_best_that_fits(lacks: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, program = exported(ALL[1:], gradients=True)
    program.save(tmp_path / "m.smelt")
    found = linked(monkeypatch, frozenset((lacks,)))
    other = smelt.load(tmp_path / "m.smelt")
    assert torch.allclose(other(x).detach(), program(x).detach(), atol=1e-6)
    other(x).sum().backward()
    assert {needs for _, needs in found} == {of_linux(processor(LEVELS[level]).needs)}
    assert {graph for graph, _ in found} == {0, 1}  # forward and backward


def test_the_order() -> None:
    order = best_first(("x86-64-v2", "x86-64-v4", "host", "x86-64-v3", "host"))
    assert [t for t in order if t != "host"] == ["x86-64-v4", "x86-64-v3", "x86-64-v2"] and len(order) == 4
    assert best_first(("host",)) == ["host"]


@pytest.mark.parametrize(
    "level",
    [t for t in ALL if t == "host" or not processor(LEVELS[t]).needs - processor(host_cpu.host()).needs],
)
def test_a_target_has_the_bits_of_its_processor(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code for a level is what SMELT_CPU generates."""
    x, program = exported((level,))
    if level != "host":
        monkeypatch.setenv("SMELT_CPU", level)
    host_cpu._host.cache_clear()
    try:
        _, alone = exported(("host",))
    finally:
        monkeypatch.undo()
        host_cpu._host.cache_clear()
    calls: Any = [((x[:n],), {}) for n in (2, 3)]
    assert all(map(same, results_elsewhere(program, calls, tmp_path), [alone(*args) for args, _ in calls]))


def test_other_targets_leave_the_host_alone() -> None:
    """What this process compiles after an export is for its own processor."""
    x, program = exported(("x86-64-v2", "host"))
    assert same(program(x), exported(("host",))[1](x))
    assert host_cpu.host() is host_cpu._host()


def test_unknown_targets() -> None:
    with pytest.raises(
        ExportError, match="unknown target 'znver4'; known: host, x86-64-v2, x86-64-v3, x86-64-v4"
    ):
        exported(("host", "znver4"))
    with pytest.raises(ExportError, match="targets must be one or more of host, x86-64-v2"):
        exported(())


def test_one_target() -> None:
    x, program = exported("x86-64-v2")
    with pytest.raises(ExportError, match="unknown target 'znver4'"):
        exported("znver4")
    assert same(program(x), exported(("x86-64-v2",))[1](x))
