"""What mkdocs does beside mkdocs.yml: pages link to files outside of docs/, those that are programs show their lines."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path, PurePosixPath

from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.harness import pages  # noqa: E402

OUTSIDE = "repository"  # the folder of the site in which pages from outside of docs/ are
LINK = re.compile(
    r"(?P<text>\[(?:[^\[\]]|\[[^\[\]]*\])*\])\((?P<path>(?!\w+:|#)[^)#\s]+)(?P<anchor>#[^)\s]*)?\)"
)
FENCED = re.compile(r"(^```.*?^```$)", re.M | re.S)


def on_config(config):  # type: ignore[no-untyped-def]
    """Pages that mkdocs.yml does not name stand behind those of the reference."""
    [reference] = [section["Reference"] for section in config.nav if "Reference" in section]
    named = {
        page
        for section in config.nav
        for pages in section.values()
        if isinstance(pages, list)
        for row in pages
        for page in row.values()
    }
    found = sorted(page.name for page in (ROOT / "docs").glob("*.md") if page.name != "index.md")
    reference += [page for page in found if page not in named]
    return config


def on_files(files: Files, config) -> Files:  # type: ignore[no-untyped-def]
    """Adds the pages outside of docs/ that the site's pages link to, and those that they link to in turn."""
    waiting = [ROOT / "docs" / file.src_uri for file in files.documentation_pages()] + [
        ROOT / "ARCHITECTURE.md"
    ]
    seen = set(waiting[:-1])
    while waiting:
        page = waiting.pop()
        if page not in seen:
            seen.add(page)
            uri = _in_site(page)
            files.append(
                File.generated(config, uri, abs_src_path=str(page), inclusion=InclusionLevel.NOT_IN_NAV)
            )
        waiting += [target for target in _linked(page) if target.suffix == ".md" and target not in seen]
    return files


def on_page_markdown(markdown: str, page: Page, config, files: Files) -> str:  # type: ignore[no-untyped-def]
    """Links as they are in the site; line numbers beside blocks that are run."""
    markdown = _numbered(markdown)
    here = _in_repository(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        target = _target(here, match["path"])
        if not target.exists():
            return match[0]  # mkdocs says so
        if target.is_dir() or (OUTSIDE in _in_site(target) and target.suffix != ".md"):
            return match["text"][1:-1]
        path = os.path.relpath(_in_site(target), PurePosixPath(page.file.src_uri).parent)
        return f"{match['text']}({path}{match['anchor'] or ''})"

    parts = FENCED.split(markdown)
    return "".join(part if index % 2 else LINK.sub(link, part) for index, part in enumerate(parts))


def _linked(page: Path) -> list[Path]:
    text = FENCED.sub("", page.read_text())
    found = [_target(page, match["path"]) for match in LINK.finditer(text)]
    return [target for target in found if target.is_file()]


def _target(page: Path, path: str) -> Path:
    return Path(os.path.normpath(page.parent / path))


def _in_site(path: Path) -> str:
    docs = ROOT / "docs"
    return (
        path.relative_to(docs) if path.is_relative_to(docs) else OUTSIDE / path.relative_to(ROOT)
    ).as_posix()


def _in_repository(uri: str) -> Path:
    path = PurePosixPath(uri)
    return ROOT / path.relative_to(OUTSIDE) if path.is_relative_to(OUTSIDE) else ROOT / "docs" / path


def _numbered(markdown: str) -> str:
    lines = iter([block.first for block in pages.blocks(markdown)])

    def numbered(match: re.Match[str]) -> str:
        if match["language"] == "text" or match["mark"] == "not run":
            return match[0]
        return match[0].replace("```python", f'```{{.python linenums="{next(lines)}"}}', 1)

    return pages.BLOCK.sub(numbered, markdown)
