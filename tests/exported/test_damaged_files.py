"""A damaged file is refused, or runs as before: no flipped bit and no missing byte changes a result or ends the process."""

from __future__ import annotations

import os
import random
import struct
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.errors import ProgramError
from smelt.exported import program_file
from smelt.exported.program import Program
from tests.harness.exported import same, section, with_section

X = torch.randn(3, 4)


@pytest.fixture(scope="module", params=[False, True], ids=["inference", "gradients"])
def program(request: pytest.FixtureRequest) -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    dims = [{0: smelt.Dim("n", min=2, max=9)}]
    return smelt.export(model, (X,), dynamic_shapes=dims, gradients=request.param)


@pytest.fixture(scope="module")
def data(program: Program, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "m.smelt"
    program.save(path)
    return path.read_bytes()


def refused(path: Path, data: bytes, program: Program) -> bool:
    """Whether a program of these bytes is refused; if not, it must compute the same."""
    path.write_bytes(data)
    try:
        loaded = smelt.load(path)
    except ProgramError:
        return True
    assert same(loaded(X), program(X)) and loaded.graph == program.graph
    return False


def test_flipped_bits(program: Program, data: bytes, tmp_path: Path) -> None:
    chosen = random.Random(0)
    accepted = 0
    for _ in range(1500):
        damaged = bytearray(data)
        for _ in range(chosen.choice((1, 1, 1, 2, 8))):
            damaged[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        accepted += not refused(tmp_path / "m.smelt", bytes(damaged), program)
    assert accepted < 200  # bytes between sections


def test_every_byte_of_the_header(program: Program, data: bytes, tmp_path: Path) -> None:
    for at in range(program_file.HEADER.size + 3 * program_file.ENTRY.size):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        assert refused(tmp_path / "m.smelt", bytes(damaged), program), at


def test_missing_and_added_bytes(program: Program, data: bytes, tmp_path: Path) -> None:
    chosen = random.Random(1)
    for length in (0, 1, 8, 31, *(chosen.randrange(len(data)) for _ in range(300))):
        assert refused(tmp_path / "m.smelt", data[:length], program), length
    assert refused(tmp_path / "m.smelt", data + b"\0", program)
    at = len(data) // 2
    assert refused(tmp_path / "m.smelt", data[:at] + b"\0" * 64 + data[at:-64], program)


@pytest.mark.parametrize("name", [b"tables", b"state"])
def test_forged_tables_are_refused_or_harmless(
    program: Program, data: bytes, tmp_path: Path, name: bytes
) -> None:
    """Checksums hold, values do not: reading ends in an error of smelt, or gives a program."""
    chosen = random.Random(2)
    content = section(data, name)
    assert with_section(data, name, content) == data
    outcomes = set()
    for _ in range(400):
        forged = bytearray(content)
        forged[chosen.randrange(len(content))] = chosen.randrange(256)
        (tmp_path / "m.smelt").write_bytes(with_section(data, name, bytes(forged)))
        try:
            with warnings.catch_warnings(action="ignore"):  # plans that seem to be for another processor
                smelt.load(tmp_path / "m.smelt")
            outcomes.add("read")
        except smelt.errors.SmeltError as error:
            outcomes.add(type(error).__name__)
    assert "ProgramError" in outcomes


@pytest.mark.parametrize(
    "shape, stride", [((0,), (1 << 65,)), ((1 << 70, 0), (1, 1)), ((1 << 40,) * 2, (0, 0))]
)
def test_weights_that_cannot_be(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: Any, stride: Any
) -> None:
    stored = program_file._stored

    def forged(state: Any) -> Any:
        storages, weights = stored(state)
        return storages, [replace(w, shape=shape, stride=stride) for w in weights]

    monkeypatch.setattr(program_file, "_stored", forged)
    program.save(tmp_path / "m.smelt")
    with pytest.raises(ProgramError, match="a weight that cannot be"):
        smelt.load(tmp_path / "m.smelt")


def test_another_file(tmp_path: Path) -> None:
    for content, what in (
        (b"", "not a program of smelt"),
        (os.urandom(4096), "not a program of smelt"),
        (b"smeltprg" + struct.pack("<I", 9) + bytes(100), "a program of format 9"),
    ):
        (tmp_path / "m.smelt").write_bytes(content)
        with pytest.raises(ProgramError, match=what):
            smelt.load(tmp_path / "m.smelt")
    with pytest.raises(FileNotFoundError):
        smelt.load(tmp_path / "none.smelt")


def test_a_failed_save_leaves_the_earlier_file(
    program: Program, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.smelt"
    program.save(path)

    def fail(storage: object) -> memoryview:
        raise MemoryError

    monkeypatch.setattr(program_file, "_memory", fail)
    with pytest.raises(MemoryError):
        program.save(path)
    assert path.read_bytes() == data and list(tmp_path.iterdir()) == [path]


def test_the_message_names_the_section(program: Program, data: bytes, tmp_path: Path) -> None:
    for name in (b"tables", b"code.0", b"plan.0.0", b"graph.0", b"state", b"weights"):
        at = data.index(section(data, name))
        damaged = bytearray(data)
        damaged[at + 1] ^= 4
        (tmp_path / "m.smelt").write_bytes(bytes(damaged))
        with pytest.raises(ProgramError, match=f"the section {name.decode()} is damaged"):
            smelt.load(tmp_path / "m.smelt")


def test_an_operator_that_the_process_lacks(tmp_path: Path) -> None:
    with torch.library._scoped_library("smelt_test_exported", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        smelt.export(lambda x: torch.ops.smelt_test_exported.twice(x), (X,)).save(tmp_path / "m.smelt")
        assert same(smelt.load(tmp_path / "m.smelt")(X), X * 2)
    with (
        pytest.warns(UserWarning, match="compiled again"),
        pytest.raises(ProgramError, match="unknown operator, smelt_test_exported::twice.default: is its lib"),
    ):
        smelt.load(tmp_path / "m.smelt")
