"""Pages and the source name files that exist.

A path in backticks is relative to the repository's root, or the end of one path of a file or folder below `smelt/`.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    "ARCHITECTURE.md",
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
]

FENCE = re.compile(r"^```.*?^```", re.M | re.S)
PATH = re.compile(r"`([\w/-]+(?:\.(?:py|pyi|cpp|h|md)|/))`")
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def _ends(path: Path) -> list[str]:
    """The ends of a path by which it may be named: `smelt/plan/steps.py`, `plan/steps.py`, `steps.py`."""
    parts = path.relative_to(ROOT).parts
    slash = "/" if path.is_dir() else ""
    return ["/".join(parts[i:]) + slash for i in range(len(parts))]


NAMED = Counter(
    end for path in (ROOT / "smelt").rglob("*") if "__pycache__" not in path.parts for end in _ends(path)
)


WRITTEN_BY_THE_BUILD = {"_built.py"}  # not there where smelt was built elsewhere, or from another copy


def missing_paths(text: str) -> list[str]:
    """The paths in backticks that name no file, or several."""
    return [
        p
        for p in PATH.findall(text)
        if NAMED[p] != 1
        and p not in WRITTEN_BY_THE_BUILD
        and not any((root / p).exists() for root in (ROOT, ROOT / "smelt"))
    ]


def missing(page: str, text: str) -> list[str]:
    """What `text`, of the page at this path, names in backticks or links to and that does not exist."""
    prose = FENCE.sub("", text)
    folder = (ROOT / page).parent
    return missing_paths(prose) + [
        p for p in LINK.findall(CODE.sub("", prose)) if not folder.joinpath(p).exists()
    ]


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
    assert missing_paths("`compile.py`, `triton/compile.py`, `gone.py`") == ["compile.py", "gone.py"]


SOURCES = sorted(p for p in (ROOT / "smelt").rglob("*") if p.suffix in (".py", ".cpp", ".h"))


def test_files_that_the_source_names_exist():
    found = {str(p.relative_to(ROOT)): missing_paths(p.read_text()) for p in SOURCES}
    assert {path: names for path, names in found.items() if names} == {}
