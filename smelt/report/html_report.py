"""The HTML report: `page.html` (built from page/ by `make page`) with the data of one report inside, and nothing outside."""

from __future__ import annotations

import json
import math
from os import PathLike
from pathlib import Path
from typing import Any

_PLACE = "@REPORT@"


def write(path: str | PathLike[str], data: dict[str, Any]) -> None:
    """Writes `data` (what `Explanation.to_dict()` gives, or anything of its form) as one HTML file that needs no network.

    Keys may be missing; docs/html-report.md says what is shown of each. Numbers that JSON does not know (infinities and
    NaN) are shown as unknown. Raises TypeError for values that are not JSON, and OSError where `path` cannot be written.
    """
    before, after = Path(__file__).with_name("page.html").read_text(encoding="utf-8").split(_PLACE)
    Path(path).write_text(before + _embedded(data) + after, encoding="utf-8")


def _embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end or open an element, in ASCII: also what stands for a half of a character is kept."""
    text = json.dumps(_finite(data), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
