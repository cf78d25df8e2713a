"""Programs in files that people may edit: what counts as edited, and of what the file was written.

Each file of a program ends with a fingerprint of what was written. So a file that nobody has touched is known from one that
was edited, also where the program of today is another one; and of an edited file it is known whether it was made from the
program of today.
"""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path

from smelt.errors import ArtifactError

_MARK = "# As written, its fingerprint is "
_WRITTEN = re.compile(re.escape(_MARK) + r"([0-9a-f]+)$", re.MULTILINE)


def mark(program: str) -> str:
    """The comment that says what was written."""
    return f"{_MARK}{fingerprint(program)}\n"


def fingerprint(program: str) -> str:
    """16 hexadecimal digits for what a program defines; equal where comments, layout, and what it does when it is run by
    itself, differ."""
    return _digits(_defines(ast.parse(program)))


def _defines(tree: ast.Module) -> list[str]:
    return [ast.dump(statement) for statement in tree.body if not isinstance(statement, ast.If)]


def _digits(defines: list[str]) -> str:
    return hashlib.sha256("\n".join(defines).encode(errors="surrogatepass")).hexdigest()[:16]


def parsed(path: Path, text: str) -> ast.Module:
    """The syntax of a file. Raises ArtifactError, with the line, for what is no Python."""
    try:
        return ast.parse(text, str(path))
    except SyntaxError as error:
        raise ArtifactError(f"{path}:{error.lineno}: {error.msg}") from error


def is_edited(path: Path, written: str) -> bool:
    """Whether the program of the file is another one than `written`, and than what was written into it.

    Raises ArtifactError for a file that is no Python."""
    text = path.read_text(encoding="utf-8")
    if text == written:
        return False
    own = _digits(_defines(parsed(path, text)))
    return own not in (_mark_in(text), fingerprint(written))


def is_made_from(path: Path, program: str) -> bool:
    """Whether the file is one that was written of this very program, and may have been edited since."""
    return _mark_in(path.read_text(encoding="utf-8")) == fingerprint(program)


def _mark_in(text: str) -> str | None:
    found = _WRITTEN.findall(text)
    return found[-1] if found else None
