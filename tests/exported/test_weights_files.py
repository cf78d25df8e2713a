"""Weights beside a program, in a file of safetensors: found by name, checked, mapped."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.errors import ProgramError
from smelt.exported.program import Program
from smelt.exported.weights_file import DTYPES, write_weights
from tests.harness.exported import same


class Model(nn.Module):
    """Tied weights, a channels-last convolution, a buffer that calls write, a part of another tensor, a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("tied", self.first.weight.detach())  # another tensor, of the same memory
        self.image = nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("whole", torch.arange(10.0))
        self.register_buffer("part", self.whole[2:4])

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> Any:
        self.calls += 1
        table = torch.tensor([[1.0, 2], [3, 4]]) @ self.part
        return (
            self.second(self.first(x)) @ self.tied,
            self.image(image),
            table + self.whole.sum() + self.calls,
        )


ARGUMENTS = torch.randn(3, 8), torch.randn(2, 4, 5, 5)


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def program(model: Model) -> Program:
    with torch.no_grad():
        return smelt.export(model, ARGUMENTS)


def saved(program: Program, folder: Path) -> tuple[Path, Path]:
    paths = folder / "m.smelt", folder / "m.safetensors"
    program.save(*paths)
    return paths


def test_a_program_and_its_weights(program: Program, tmp_path: Path) -> None:
    paths = saved(program, tmp_path)
    loaded = smelt.load(*paths)
    assert list(loaded.state) == list(program.state)
    for name, tensor in program.state.items():
        assert same(loaded.state[name], tensor) and loaded.state[name].stride() == tensor.stride(), name
    for _ in range(2):
        assert same(loaded(*ARGUMENTS), program(*ARGUMENTS))
    assert loaded.state["calls"] == 2 and smelt.load(*paths).state["calls"] == 0  # the file stays
    program.save(tmp_path / "whole.smelt")
    assert paths[0].stat().st_size < (tmp_path / "whole.smelt").stat().st_size
    loaded.save(tmp_path / "again.smelt")
    assert same(smelt.load(tmp_path / "again.smelt")(*ARGUMENTS), program(*ARGUMENTS))


def test_weights_are_mapped(tmp_path: Path) -> None:
    layer = nn.Linear(1024, 2048)
    paths = saved(smelt.export(layer, (torch.ones(1, 1024),)), tmp_path)
    assert paths[0].stat().st_size < 1 << 20 < layer.weight.nbytes
    weight = smelt.load(*paths).state["weight"]
    maps = [
        line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "m.safetensors" in line
    ]
    ends = [tuple(int(n, 16) for n in row[0].split("-")) for row in maps]
    assert any(low <= weight.data_ptr() < high for low, high in ends)


def test_the_library_reads_and_writes_them(model: Model, program: Program, tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    paths = saved(program, tmp_path)
    found = library.load_file(paths[1])
    assert found.keys() == {"first.weight", "first.bias", "image.weight", "image.bias", "calls"}
    for name, tensor in found.items():
        assert torch.equal(tensor, model.state_dict()[name])
    other = {name: tensor + 1 for name, tensor in found.items()}
    other["tied"] = other.pop("first.weight").clone()  # a name of tied weights suffices
    library.save_file({**other, "more": torch.ones(2)}, paths[1], metadata={"of": 'a "model"'})
    loaded = smelt.load(*paths)
    program.update_weights(other)
    assert same(loaded(*ARGUMENTS), program(*ARGUMENTS))


@pytest.mark.parametrize(
    "change, what",
    [
        (
            {"first.bias": torch.zeros(9)},
            r"the weight first\.bias must be torch\.float32 of \(8,\).* has torch\.float32 of \(9,\)",
        ),
        (
            {"calls": torch.zeros((), dtype=torch.int64)},
            r"the weight calls must be .*, the file of weights .*/m\.safetensors has torch\.int64 of \(\)",
        ),
        ({"image.bias": None}, r"the file of weights .*/m\.safetensors has no image\.bias"),
        (
            {"tied": torch.zeros(8, 8)},
            r"first\.weight and tied are one tensor in the program, and differ",
        ),
    ],
    ids=["shape", "dtype", "missing", "tied"],
)
def test_weights_that_do_not_fit(program: Program, tmp_path: Path, change: Any, what: str) -> None:
    paths = saved(program, tmp_path)
    weights = {
        n: program.state[n] for n in ("first.weight", "first.bias", "image.weight", "image.bias", "calls")
    } | change
    write_weights(paths[1], {name: tensor for name, tensor in weights.items() if tensor is not None})
    with pytest.raises(ProgramError, match=what):
        smelt.load(*paths)


def test_where_the_weights_are(program: Program, tmp_path: Path) -> None:
    paths = saved(program, tmp_path)
    with pytest.raises(ProgramError, match="its weights are in another file: pass the path"):
        smelt.load(paths[0])
    with pytest.raises(FileNotFoundError, match="none.safetensors"):
        smelt.load(paths[0], tmp_path / "none.safetensors")
    with pytest.raises(ProgramError, match="a program and its weights are two files"):
        program.save(paths[0], tmp_path / "." / "m.smelt")
    undecodable = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.safetensors")  # no UTF-8
    os.rename(paths[1], undecodable)
    assert same(smelt.load(paths[0], undecodable)(*ARGUMENTS), program(*ARGUMENTS))
    os.rename(undecodable, paths[1])
    program.save(tmp_path / "whole.smelt")
    with pytest.raises(ProgramError, match="this file holds its weights"):
        smelt.load(tmp_path / "whole.smelt", paths[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", torch.arange(6).view(2, 3).to(dtype))

        def forward(self, x: torch.Tensor) -> Any:
            return self.held.clone(), x + 1

    paths = saved(smelt.export(Holder(), (torch.ones(1),)), tmp_path)
    held = smelt.load(*paths).state["held"]
    assert held.dtype == dtype and torch.equal(held.view(torch.uint8), Holder().held.view(torch.uint8))


def header(text: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(text)) + text + data


def test_names_and_spaces(tmp_path: Path) -> None:
    """The header is JSON as any writer may write it; data need no alignment."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer('a"ß\u2028😀', torch.tensor([1.0, 2.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + dict(self.named_buffers())['a"ß\u2028😀']

    paths = saved(smelt.export(Named(), (torch.zeros(2),)), tmp_path)
    entry = {"shape": [2], "data_offsets": [0, 8], "more": [1, {"a": None}, -2.5e3], "dtype": "F32"}
    text = json.dumps({"__metadata__": {"a": "{\\"}, 'a"ß\u2028😀': entry}, indent=3).encode()
    text += b" " * (1 - len(text) % 2)  # an odd length
    paths[1].write_bytes(header(text, struct.pack("<2f", 3, 4)))
    assert smelt.load(*paths)(torch.zeros(2)).tolist() == [3, 4]


def test_damaged_files(tmp_path: Path) -> None:
    """Refused, or other numbers: no check of the data, but nothing outside of the file is read."""
    paths = saved(smelt.export(nn.Linear(4, 8), (torch.ones(2, 4),)), tmp_path)
    data = paths[1].read_bytes()
    chosen = random.Random(0)
    (length,) = struct.unpack("<Q", data[:8])
    outcomes = set()
    for _ in range(600):
        damaged = bytearray(data)
        damaged[chosen.randrange(8 + length)] = chosen.randrange(256)
        paths[1].write_bytes(damaged[: chosen.choice((len(data), chosen.randrange(len(data))))])
        try:
            smelt.load(*paths)(torch.ones(2, 4))
            outcomes.add("read")
        except ProgramError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}
    for text in (b"", b"{", b"[]", b"{}x", b'{"a":', b'{"\\ud800":{}}', b'{"a":{"dtype":"F32"}}', b"{" * 500):
        paths[1].write_bytes(header(text))
        with pytest.raises(ProgramError, match=r"m\.smelt: .*m\.safetensors is not a safetensors file"):
            smelt.load(*paths)
    paths[1].write_bytes(header(b'{"__metadata__":' + b"[" * 5000))
    with pytest.raises(ProgramError, match="nested too deep"):
        smelt.load(*paths)
