"""Pages name files that exist.

A path in backticks is relative to the repository's root, to `smelt/`, to the folder that the page is about, or to a folder
that the heading of its section names (also by a file in it).
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ABOUT = {
    "docs/autograd.md": "smelt/autograd",
    "docs/capture.md": "smelt/capture",
    "docs/codegen.md": "smelt/codegen",
    "docs/native.md": "smelt/native",
    "docs/plan.md": "smelt/plan",
    "docs/tracing.md": "smelt/tracing",
}
PAGES = [
    "ARCHITECTURE.md",
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
]

FENCE = re.compile(r"^```.*?^```", re.M | re.S)
SECTION = re.compile(r"^#+ ", re.M)
PATH = re.compile(r"`([\w./-]+(?:\.(?:py|pyi|cpp|h|md)|/))`")
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def missing(page: str, text: str) -> list[str]:
    """What `text`, of the page at this path, names in backticks or links to and that does not exist."""
    prose = FENCE.sub("", text)
    places = [ROOT, ROOT / "smelt", *([ROOT / ABOUT[page]] if page in ABOUT else [])]
    found = [p for section in SECTION.split(prose) for p in _missing_in(section, places)]
    return found + [
        p for p in LINK.findall(CODE.sub("", prose)) if not (ROOT / page).parent.joinpath(p).exists()
    ]


def _missing_in(section: str, places: list[Path]) -> list[str]:
    heading, _, _ = section.partition("\n")
    named = [place / p for p in PATH.findall(heading) for place in places]
    nearer = [p if p.is_dir() else p.parent for p in named if p.exists()]
    return [p for p in PATH.findall(section) if not any((place / p).exists() for place in [*places, *nearer])]


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page):
    assert missing(page, (ROOT / page).read_text()) == []


def test_a_file_that_does_not_exist_is_found():
    assert missing("README.md", "`smelt/gone.py` and `gone/`, [gone](docs/gone.md)") == [
        "smelt/gone.py",
        "gone/",
        "docs/gone.md",
    ]
    assert missing("docs/plan.md", "`steps.py`, `plan/steps.py`, `smelt/plan/`, [graphs](tracing.md)") == []
    assert missing("README.md", "`steps.py`") == ["steps.py"]
