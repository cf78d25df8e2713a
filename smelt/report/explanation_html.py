"""An explanation for a notebook: a compact, self-contained piece of HTML for light and dark backgrounds."""

from __future__ import annotations

from html import escape
from typing import Any

from smelt.report.explanation_text import sections, summary

_STYLE = "font-size:13px;line-height:1.4;color:inherit;border-left:3px solid #8888;padding:2px 0 2px 10px;max-width:120ch"
_CODE = "margin:2px 0 6px 0;white-space:pre-wrap;font-family:monospace;background:transparent;color:inherit"
_OPEN = {"breaks", "ran eagerly", "recompiles", "saved for the backward", "time"}  # what is acted on


def fragment(data: dict[str, Any]) -> str:
    """The HTML, in the page's colours; all text of the program is escaped."""
    parts = [f'<div style="{_STYLE}"><b>{escape(summary(data))}</b>']
    for title, rows in sections(data):
        body = "".join(f'<pre style="{_CODE}">{escape(row)}</pre>' for row in rows)
        state = " open" if title in _OPEN else ""
        parts.append(f"<details{state}><summary>{escape(title)} ({len(rows)})</summary>{body}</details>")
    return "".join([*parts, "</div>"])
