"""Reports of real programs, as `smelt.explain(...).save` writes them, opened in Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import torch

import smelt
from benchmarks.models import tensors
from smelt.report.explanation import Explanation
from tests.harness.browser import chromium, has, opened, says
from tests.harness.models import MODELS


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def view(page: Any, title: str) -> str:
    """The text of a view, once it is there."""
    page.click(f"nav >> text={title}")
    page.wait_for_selector(f"main[aria-label={title}]")
    return page.inner_text("main").replace("\u00a0", " ")


def counts(page: Any) -> dict[str, int]:
    """The numbers beside the views' names."""
    return {name: int(n) for name, n in re.findall(r"(\w+) (\d+)", page.inner_text("nav"))}


def function(inputs):
    x = inputs["x"]
    y = inputs["y"]
    x = x.cos().cos()
    if x.mean() > 0.5:
        print("scaled")
        x = x / 1.1
    return x * y


def test_the_example_of_the_walkthrough(browser: Any, tmp_path: Path):
    calls = [{name: torch.randn(size, requires_grad=True) for name in "xy"} for size in (10, 8)]
    explanation = smelt.explain(function)(calls[0])
    explanation.call(calls[1])
    path = explanation.save(tmp_path / "example.html")
    line = function.__code__.co_firstlineno + 4
    with opened(browser, path, scheme="dark") as page:
        assert page.title().startswith("function")
        assert counts(page)["Breaks"] == 1 and counts(page)["Recompiles"] >= 1
        assert "capture" in view(page, "Overview")
        assert "if x.mean() > 0.5:" in view(page, "Breaks")
        page.click(f"text={Path(__file__).name}:{line}")
        says(page, "aside h2", f"{Path(__file__).name}:{line}")
        assert "torch.where" in page.inner_text("aside")
        assert "shape" in view(page, "Recompiles") and "def " in view(page, "Entries")
        assert "cos" in view(page, "Kernels")
        view(page, "Graphs")
        has(page, "canvas", "data-drawn", re.compile("[1-9]"))


def trained(model: torch.nn.Module, inputs: dict[str, Any]) -> Explanation:
    """The model compiled, called once with a gradient."""
    call = smelt.explain(model)
    explanation = call(**inputs)
    with explanation.watching():
        sum(t.sum() for t in tensors(explanation.result) if t.requires_grad).backward()
    return explanation


def test_bert_in_training(browser: Any, tmp_path: Path):
    model, inputs = MODELS["BERT"]()
    path = trained(model.train(), inputs).save(tmp_path / "bert.html")
    assert path.stat().st_size < 1_000_000
    with opened(browser, path) as page:
        found = counts(page)
        assert found["Breaks"] == found["Fallbacks"] == 0 and found["Kernels"] > 10
        assert (
            "guards" in view(page, "Entries") and page.locator("main table tr").count() < 300
        )  # drawn as they are seen
        assert "No graph breaks" in view(page, "Breaks")
        assert "Saved for backward" in view(page, "Memory") and page.locator(".chart .area").count() >= 1
        assert "native_layer_norm" in view(page, "Kernels")
        assert page.locator(".roofline circle").count() > 5
        graphs = view(page, "Graphs")
        assert "backward of" in graphs and "joint of" in graphs
        has(page, "canvas", "data-drawn", re.compile("[1-9]"))
        assert page.locator(".tree button[title='encoder.layer.1.attention']").count() == 1
        page.fill("input[type=search]", "gelu")
        page.press("input[type=search]", "Enter")
        says(page, "aside h2", re.compile("gelu"))


BREAKING = """\
import torch


def breaking(x):
"""


def ten_breaks(folder: Path) -> Any:
    """A function in a file of its own with ten lines that break its graph."""
    gate = "    x = x * (print(end='') or 1.5) if x.sum() > {0} else torch.sin(x)  # number {0}"
    lines = map(gate.format, range(10))
    path = folder / "breaking.py"
    path.write_text(BREAKING + "\n".join(lines) + "\n    return x\n")
    code = compile(path.read_text(), str(path), "exec")
    namespace: dict[str, Any] = {"__name__": "breaking"}
    exec(code, namespace)
    return namespace["breaking"]


def test_a_program_with_ten_breaks(browser: Any, tmp_path: Path):
    path = smelt.explain(ten_breaks(tmp_path))(torch.rand(8) + 1).save(tmp_path / "breaks.html")
    file = quote(str(tmp_path / "breaking.py"), safe="")
    with opened(browser, path) as page:
        assert counts(page)["Breaks"] == 10
        view(page, "Breaks")
        assert page.locator(".reasons li article").count() == 10
        assert "number 7" in view(page, "Source")
        assert page.locator(".mark.break[title]").count() == 10
        page.goto(f"{path.as_uri()}#source/{file}/9")
        says(page, "aside h2", "breaking.py:9")
        assert "broke the graph" in page.inner_text("aside")
