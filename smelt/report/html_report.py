"""The HTML report: `page.html` (built from page/ by `make page`) with the data of one report inside and no external
references."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

from smelt.report.report_data import as_json
from smelt.runtime.whole_files import write_whole

_MARKER = "@REPORT@"


def write(path: str | PathLike[str], data: dict[str, Any]) -> None:
    """Write `data` (the result of `Explanation.to_dict()`, or data of its form) as one self-contained HTML file.

    Keys may be missing; docs/html-report.md says what the page shows of each. Infinities and NaN, which JSON lacks,
    are shown as unknown. Raises TypeError for values that are not JSON, and OSError if `path` cannot be written.
    """
    before, after = Path(__file__).with_name("page.html").read_text(encoding="utf-8").split(_MARKER)
    write_whole(path, before + _embedded(data) + after)


def _embedded(data: dict[str, Any]) -> str:
    """JSON in ASCII that cannot end or open an HTML element; lone surrogates are preserved."""
    text = json.dumps(as_json(data), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
