"""Programs in a process of their own, which has not imported the compiler."""

from __future__ import annotations

import inspect
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import smelt
from smelt.exported import program_file
from smelt.exported.program import Program
from tests.harness.models import MODELS
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


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a nest, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for v in values for tensor in tensors(v)]


def larger(x: torch.Tensor, is_text: bool) -> torch.Tensor:
    """The same with one more in the batch, and half as long again if it is text."""
    x = torch.cat([x, x[:1]])
    return torch.cat([x, x[:, : x.shape[1] // 2]], 1) if is_text else x


def with_section(data: bytes, name: bytes, content: bytes) -> bytes:
    """The file with another section of the same length, and checksums that hold."""
    magic, version, count, length, _ = program_file.HEADER.unpack_from(data)
    start = program_file.HEADER.size
    rows = [
        list(program_file.ENTRY.unpack_from(data, start + i * program_file.ENTRY.size)) for i in range(count)
    ]
    made = bytearray(data)
    for row in rows:
        if row[0].rstrip(b"\0") == name:
            assert len(content) == row[2]
            made[row[1] : row[1] + row[2]] = content
            row[3] = zlib.crc32(content)
    table = b"".join(program_file.ENTRY.pack(*row) for row in rows)
    header = program_file.HEADER.pack(magic, version, count, length, 0)
    checksum = zlib.crc32(header + table)
    made[: start + len(table)] = program_file.HEADER.pack(magic, version, count, length, checksum) + table
    return bytes(made)


def section(data: bytes, name: bytes) -> bytes:
    """The content of a section of a program's file."""
    start, count = program_file.HEADER.size, program_file.HEADER.unpack_from(data)[2]
    for i in range(count):
        found, at, length, _ = program_file.ENTRY.unpack_from(data, start + i * program_file.ENTRY.size)
        if found.rstrip(b"\0") == name:
            return data[at : at + length]
    raise KeyError(name)


@dataclass
class ExportedModel:
    """One of the ten models, and its program with a dynamic batch (text: also length). `calls`: the keyword arguments of two
    calls, the example's `inputs` and larger ones."""

    model: nn.Module
    inputs: dict[str, torch.Tensor]
    dims: dict[int, smelt.Dim]
    is_text: bool
    program: Program
    calls: list[dict[str, Any]]


def model_call(name: str) -> tuple[nn.Module, dict[str, torch.Tensor], dict[str, Any]]:
    """The model called `name`, and its inputs and options as keyword arguments."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    parameters = inspect.signature(model.forward).parameters
    if "x" in inputs:
        return model, {next(iter(parameters)): inputs["x"]}, {}
    return model, inputs, {"use_cache": False} if "use_cache" in parameters else {}


def exported_model(name: str) -> ExportedModel:
    """Export the model called `name`."""
    model, inputs, options = model_call(name)
    model = model.eval()
    is_text = not any(x.is_floating_point() for x in inputs.values())
    batch, length = smelt.Dim("batch", min=2, max=8), smelt.Dim("length", min=4, max=12)
    dims = {0: batch, 1: length} if is_text else {0: batch}
    program = smelt.export(model, (), {**inputs, **options}, dynamic_shapes=dict.fromkeys(inputs, dims))
    others = {key: larger(x, is_text) for key, x in inputs.items()}
    return ExportedModel(
        model, inputs, dims, is_text, program, [{**inputs, **options}, {**others, **options}]
    )
