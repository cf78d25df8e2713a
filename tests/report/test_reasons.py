"""docs/graph-breaks.md says what `smelt/reasons.py` says."""

from __future__ import annotations

from pathlib import Path

from smelt.reasons import REASONS
from tests.harness.generated_pages import graph_breaks

PAGE = Path(__file__).parents[2] / "docs" / "graph-breaks.md"


def test_the_page_is_up_to_date() -> None:
    hint = "run: python -m tests.harness.generated_pages"
    assert PAGE.read_text(encoding="utf-8") == graph_breaks(), hint


def test_each_kind_has_a_row_of_four_cells() -> None:
    rows = graph_breaks().splitlines()[-len(REASONS) :]
    assert [row.split("`")[1] for row in rows] == list(REASONS)
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)
