"""The HTML report: `page.html` (built from page/ by `make page`) with the data of one report inside and no external
references."""

from __future__ import annotations

import base64
import zlib
from os import PathLike
from pathlib import Path
from typing import Any

from smelt.report.report_data import Report, json_text
from smelt.runtime.whole_files import write_whole

_MARKER = "@REPORT@"
_PLAIN = 1 << 18  # characters of JSON that stay readable in the file; longer text is compressed


def write(path: str | PathLike[str], data: Report | dict[str, Any]) -> None:
    """Write `data` (a report, the result of `Explanation.to_dict()`, or data of its form) as one self-contained HTML file.

    Keys may be missing; docs/html-report.md says what the page shows of each. Infinities and NaN, which JSON lacks,
    are shown as unknown. Raises TypeError for values that are not JSON, and OSError if `path` cannot be written.
    """
    before, after = Path(__file__).with_name("page.html").read_text(encoding="utf-8").split(_MARKER)
    write_whole(path, before + _embedded(data) + after)


def _embedded(data: Report | dict[str, Any]) -> str:
    """JSON in ASCII that cannot end or open an HTML element; lone surrogates are preserved. Long JSON is an object with
    its gzip in base64."""
    text = json_text(data)
    if len(text) > _PLAIN:
        packed = zlib.compressobj(wbits=31)
        compressed = packed.compress(text.encode("ascii")) + packed.flush()
        return f'{{"gzip":"{base64.b64encode(compressed).decode()}"}}'
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
