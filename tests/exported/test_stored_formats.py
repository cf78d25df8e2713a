"""Files that earlier versions wrote load and compute the same, also where their plans do not fit any more."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.errors import ProgramError
from smelt.exported import program_file
from tests.harness import stored_programs
from tests.harness.exported import section, tensors, with_section
from tests.harness.inner_graphs import REFUSED
from tests.harness.stored_programs import FOLDER, MODELS, SINCE

NAMES = [(version, name) for name in MODELS for version in range(SINCE[name], program_file.VERSION + 1)]


def check(name: str, program: Any) -> None:
    """The results of a program, and those of its model with the weights of the program."""
    torch.manual_seed(0)
    model = MODELS[name]()
    if isinstance(model, torch.nn.Module):
        with torch.no_grad():
            model.load_state_dict(
                {n: t.detach().clone() for n, t in program.state.items() if not n.startswith("constant")}
            )
    methods = {} if name != "coder" else {m: program.method(m) for m in program.methods}
    with torch.set_grad_enabled(name == "trained"):
        found = stored_programs.results(name, program, **methods)
        wanted = stored_programs.results(name, model)
    assert tensors(found) and len(tensors(found)) == len(tensors(wanted))
    for a, b in zip(tensors(found), tensors(wanted), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("version, name", NAMES)
def test_files_of_every_format(version: int, name: str) -> None:
    if name == "chosen" and REFUSED:
        pytest.skip("torch.cond calls torch.compile there")
    path = FOLDER / f"{version}-{name}.smelt"
    assert path.read_bytes()[8] == version
    with warnings.catch_warnings(action="ignore"):  # of another torch: compiled again
        program = smelt.load(path)
        check(name, program)
        assert "run_graphs" in program.graph or name != "chosen"


@pytest.mark.parametrize("version, name", NAMES)
def test_compiled_again(version: int, name: str, tmp_path: Path) -> None:
    data = (FOLDER / f"{version}-{name}.smelt").read_bytes()
    tables = section(data, b"tables")
    at = tables.index(b"+cpu") if b"+cpu" in tables else -1
    assert at > 0  # a text such as 2.13.0+cpu
    other = tables.replace(tables[at - 6 : at + 4], b"9.99.0+cpu")
    assert other != tables
    (tmp_path / "m.smelt").write_bytes(with_section(data, b"tables", other))
    with pytest.warns(UserWarning, match="its plans are for torch 9.99"):
        check(name, smelt.load(tmp_path / "m.smelt"))


@pytest.mark.parametrize("version", range(4, program_file.VERSION + 1))
def test_weights_files_of_every_format(version: int) -> None:
    with warnings.catch_warnings(action="ignore"):
        check(
            "scorer",
            smelt.load(FOLDER / f"{version}-weights.smelt", FOLDER / f"{version}-weights.safetensors"),
        )


def test_there_is_a_file_of_each_format() -> None:
    assert {path.name for path in FOLDER.glob("*.smelt")} >= {
        f"{version}-{name}.smelt" for version, name in NAMES
    }


def test_newer_and_older_formats(tmp_path: Path) -> None:
    data = (FOLDER / f"{program_file.VERSION}-scorer.smelt").read_bytes()
    present = program_file.VERSION
    for version, what in (
        (
            present + 1,
            f"format {present + 1}; this smelt reads formats 3 to {present}: load it with the smelt that wrote it",
        ),
        (2, f"format 2; this smelt reads formats 3 to {present}: export the model again"),
    ):
        (tmp_path / "m.smelt").write_bytes(data[:8] + bytes([version]) + data[9:])
        with pytest.raises(ProgramError, match=what):
            smelt.load(tmp_path / "m.smelt")
