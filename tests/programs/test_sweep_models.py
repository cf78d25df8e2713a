"""The sweep of models: the verdicts of rows, and what it finds in calls after the first."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import smelt
from benchmarks import measure, sweep_models

AGREEING = {
    "error": 0.0,
    "eager": [],
    "breaks": [],
    "graphs": 1,
    "ms": {"eager": 2.0, "smelt": 1.0},
    "ran_out": [],
}


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        ({}, "ok"),
        ({"ms": {"eager": 2.0, "smelt": 2.3}}, "ok"),
        ({"ms": {"eager": 2.0, "smelt": 2.5}}, "slower"),
        ({"ran_out": ["recompile-limit (8 times) at a.py:1"]}, "ran out"),
        ({"error": 1.0, "float64": {"eager": 0.1, "smelt": 1.0}, "ran_out": ["recompile-limit"]}, "differs"),
        ({"eager": ["internal-error (smelt failed) at a.py:1"]}, "raised"),
        ({"skipped": "too large"}, "skipped"),
    ],
)
def test_verdict_of_a_row(result: dict[str, Any], verdict: str):
    assert sweep_models.verdict({"name": "a", "eval": {**AGREEING, **result}}) == verdict


def test_a_function_that_runs_out_of_entries_is_reported():
    for settings, count in (({"options": {"recompile_limit": 2}, "dynamic": False}, 1), ({}, 0)):
        compiled, sizes = smelt.compile(lambda x: x.sin() + 1, **settings), itertools.cycle(range(2, 9))
        found = sweep_models.after_ten_calls(
            compiled,
            lambda: torch.ones(4).sin(),
            lambda compiled=compiled, n=sizes: compiled(torch.ones(next(n))),
        )
        assert len(found["ran_out"]) == count


def test_the_lowest_ratio_counts_and_ends_the_measuring():
    pairs = iter([(1.0, 2.0), (1.0, 1.1), (1.0, 0.5)])
    assert measure.beside_eager(pairs) == {"eager": 1000.0, "smelt": 1100.0}
    assert next(pairs) == (1.0, 0.5)
    assert measure.beside_eager([(1.0, 2.0), (1.0, 1.5), (1.0, 3.0)]) == {"eager": 1000.0, "smelt": 1500.0}
