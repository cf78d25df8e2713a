"""docs/frameworks.md: each form runs, compiles what the framework calls, and leaves what eager leaves."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt import events
from tests.harness import pages

PAGE = Path(__file__).parents[1] / "docs" / "frameworks.md"
# Each section with the package that it needs, and the values of its block that are compared.
SECTIONS = {
    "Trainer": ("accelerate", ("loss", "loaded")),
    "generate and pipelines": ("transformers", ("tokens",)),
    "accelerate": ("accelerate", ("loss", "unwrapped")),
    "Lightning": ("lightning", ("loss",)),
    "diffusers": ("diffusers", ("pictures", "loaded")),
    "peft": ("peft", ("loss", "merged")),
    "DistributedDataParallel": ("torch", ("loss", "net")),
}


def test_every_section_with_a_block_is_run():
    assert [section for section, _ in _blocks()] == list(SECTIONS)


@pytest.mark.parametrize("section", SECTIONS)
def test_form_leaves_what_eager_leaves(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    package, names = SECTIONS[section]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: requirements/libraries.txt")
    body = dict(_blocks())[section]
    seen: list[events.Event] = []
    with events.subscribed(seen.append):
        compiled = _left(body, names, tmp_path / "compiled", monkeypatch)
    assert any(event.kind == "entry-installed" for event in seen)
    assert not [str(event.data["reason"]) for event in seen if event.kind == "eager-fallback"]
    monkeypatch.setattr(smelt, "compile", lambda model: model)
    eager = _left(body, names, tmp_path / "eager", monkeypatch)
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
    assert _saved(tmp_path / "compiled") == _saved(tmp_path / "eager")


def test_unwrapped_models_are_the_original_after_compilation_in_place():
    accelerate = pytest.importorskip("accelerate", reason="requirements/libraries.txt")
    accelerator, net = accelerate.Accelerator(cpu=True), torch.nn.Sequential(torch.nn.Linear(2, 2))
    compiled = accelerator.prepare(smelt.compile(net))
    for keep in (True, False):
        unwrapped = accelerator.unwrap_model(compiled, keep_torch_compile=keep)
        assert unwrapped is compiled and unwrapped._orig_mod is net
        assert list(unwrapped.state_dict()) == list(net.state_dict())
    smelt.compile_(net)
    assert accelerator.unwrap_model(accelerator.prepare(net), keep_torch_compile=False) is net


def _blocks() -> list[tuple[str, str]]:
    """(section, block of Python) of the page."""
    sections = PAGE.read_text().split("\n## ")[1:]
    found = [(text.partition("\n")[0], pages.BLOCK.search(text)) for text in sections]
    return [(title, match["body"]) for title, match in found if match]


def _left(body: str, names: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The named values after a run of the block in `folder`."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    torch.manual_seed(0)
    values: dict[str, Any] = {"__name__": "page"}
    exec(compile(body, str(PAGE), "exec"), values)
    return {name: _comparable(values[name]) for name in names}


def _comparable(value: Any) -> Any:
    if isinstance(value, torch.nn.Module):
        return {**value.state_dict(), f"class {type(value).__qualname__}": 0.0}
    return _comparable(value.unet) if hasattr(value, "unet") else value


def _saved(folder: Path) -> dict[str, Any]:
    """The names of the saved files; the values of configurations."""
    files = [p for p in (folder / "saved").rglob("*") if p.is_file()]
    return {
        str(p.relative_to(folder)): json.loads(p.read_text()) if p.suffix == ".json" else None for p in files
    }
