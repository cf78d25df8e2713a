"""docs/graph-breaks.md says what `smelt/reasons.py` says."""

from __future__ import annotations

from pathlib import Path

from smelt.reasons import REASONS
from smelt.report.reasons_page import markdown

PAGE = Path(__file__).parents[2] / "docs" / "graph-breaks.md"


def test_the_page_is_up_to_date() -> None:
    hint = "run: python -m smelt.report.reasons_page > docs/graph-breaks.md"
    assert PAGE.read_text(encoding="utf-8") == markdown(), hint


def test_each_kind_has_a_row_of_four_cells() -> None:
    rows = markdown().splitlines()[-len(REASONS) :]
    assert [row.split("`")[1] for row in rows] == list(REASONS)
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)
