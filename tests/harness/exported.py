"""Programs in a process of their own, which has not imported the compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from smelt.exported.program import Program
from tests.harness.processes import start

_PROGRAM = """
import sys, torch, smelt
folder = {folder!r}
program = smelt.load(folder + "/m.smelt")
results = [program(*args, **kwargs) for args, kwargs in torch.load(folder + "/calls.pt", weights_only=False)]
compiler = "smelt.callables smelt.capture smelt.codegen smelt.guards smelt.ops smelt.tracing llvmlite sympy"
assert [m for m in sys.modules if m.startswith(tuple(compiler.split()))] == []
torch.save(results, folder + "/results.pt")
"""


def results_elsewhere(
    program: Program,
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]],
    folder: Path,
    imports: tuple[str, ...] = ("torch",),
) -> list[Any]:
    """The results of these calls of the program, saved to `folder` and loaded by another process without the compiler."""
    program.save(folder / "m.smelt")
    torch.save(calls, folder / "calls.pt")
    done = start(_PROGRAM.format(folder=str(folder)), imports=imports)
    assert done.returncode == 0, done.stderr
    results: list[Any] = torch.load(folder / "results.pt", weights_only=False)
    return results


def same(a: Any, b: Any) -> bool:
    """Whether two nests are equal, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        return (
            type(b) is torch.Tensor and a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
        )
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(map(same, a.values(), b.values()))
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b
