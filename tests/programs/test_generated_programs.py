"""200 random programs: eager and compiled must agree. A failure prints the shortest program that hypothesis finds.

`SMELT_EXAMPLES=5000` runs that many of each kind, and other ones each time.
"""

from __future__ import annotations

import os
from string import Formatter
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness import generate_worlds
from tests.harness.generate import Options, Replayed, Seeded, shrink, write_program
from tests.harness.generated import outcome

EXAMPLES = int(os.environ.get("SMELT_EXAMPLES", "0"))


class Drawn:
    """Choices that hypothesis makes."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def pick(self, n: int) -> int:
        return self._draw(st.integers(0, n - 1))


@st.composite
def programs(draw: Any, options: Options) -> str:
    return write_program(Drawn(draw), options)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


KINDS = [
    pytest.param(Options(), "eager", 60, id="whole"),
    pytest.param(Options(breaks=True), "eager", 80, id="breaks"),
    pytest.param(Options(breaks=True, grad=True), "eager", 30, id="gradients"),
    pytest.param(Options(breaks=True), "smelt", 15, id="smelt"),
    pytest.param(Options(grad=True), "smelt", 15, id="smelt-gradients"),
]


@pytest.mark.parametrize(("options", "backend", "count"), KINDS)
def test_programs_agree_with_eager(options: Options, backend: str, count: int) -> None:
    @settings(
        max_examples=EXAMPLES or count,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(options))
    def agree(source: str) -> None:
        problem = outcome(source, options, backend)
        assert problem is None, f"{problem}\n{source}"

    agree()


def test_programs_are_valid_and_various() -> None:
    """Few of them raise, and together they hold each construct."""
    sources = [write_program(Seeded(seed), Options(breaks=True)) for seed in range(200)]
    for source in sources:
        compile(source, "program", "exec")
    bodies = "\n".join(source.split("def program", 1)[1] for source in sources)
    for text in (
        "for ",
        "while ",
        "try:",
        "finally:",
        "with ",
        "yield ",
        "nonlocal ",
        "lambda",
        "graph_break",
        ".item()",
        "break\n",
    ):
        assert bodies.count(text) > 4, text


def test_every_template_of_a_changing_world_is_written() -> None:
    options = Options(grad=True, worlds=True)
    bodies = "\n".join(write_program(Seeded(seed), options).split("def change", 1)[1] for seed in range(1500))
    for template in (*generate_worlds.EFFECTS, *generate_worlds.HOOKS, *generate_worlds.CHANGES):
        longest = max((text for text, _, _, _ in Formatter().parse(template)), key=len)
        assert longest in bodies, template


def test_shrinking_ends_at_the_simplest_program_that_still_fails() -> None:
    options = Options(breaks=True)
    seed = next(
        s for s in range(1000) if "graph_break" in write_program(Seeded(s), options).split("def program")[1]
    )
    choices = Seeded(seed)
    write_program(choices, options)

    def fails(numbers: list[int]) -> bool:
        return "graph_break" in write_program(Replayed(numbers), options).split("def program")[1]

    small = write_program(Replayed(shrink(choices.made, fails, tries=2000)), options)
    assert len(small.split("def program")[1].splitlines()) <= 4
