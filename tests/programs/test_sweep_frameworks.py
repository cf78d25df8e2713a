"""The sweep of frameworks' programs: what it reports as a difference, and the verdicts of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks import sweep_frameworks


@pytest.mark.parametrize(
    ("got", "want", "said"),
    [
        ({"a": [1.0, 2.0]}, {"a": [1.0, 2.1]}, "/a/1: 2.0 in place of 2.1"),
        ({"a": 1}, {"a": 1, "b": 2}, ": b only in eager"),
        ({"a": torch.ones(2)}, {"a": torch.ones(3)}, "/a: inf apart"),
        ({"a": torch.tensor([1, 2])}, {"a": torch.tensor([1, 3])}, "/a: 3.3e-01 apart"),
        ({"class": "CompiledNet"}, {"class": "Net"}, "/class: 'CompiledNet' in place of 'Net'"),
        ([1, 2], [1], ": 2 in place of 1"),
        (True, 1, ": True in place of 1"),
    ],
)
def test_difference_is_reported(got: Any, want: Any, said: str):
    assert sweep_frameworks.differences(got, want) == [said]
    assert sweep_frameworks.differences(want, want) == []


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        ({"eager": ["recompile-limit (8 times) at a.py:1"]}, "ran out"),
        ({"eager": ["internal-error (smelt failed) at a.py:1"]}, "raised"),
        ({"differs": ["/class: 'A' in place of 'B'"]}, "differs"),
        ({"ms": {"eager": 1.0, "smelt": 2.0}}, "slower"),
        ({"skipped": "no lightning"}, "skipped"),
        ({}, "ok"),
    ],
)
def test_verdict_of_a_row(row: dict[str, Any], verdict: str):
    agreeing = {"name": "torch: x", "eager": [], "differs": [], "ms": {"eager": 2.0, "smelt": 1.0}}
    assert sweep_frameworks.verdict({**agreeing, **row}) == verdict
