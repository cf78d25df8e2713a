"""Editable program files: whether a file was edited, and which program it was written from.

Each file ends with a fingerprint of its written program. An unedited file is thus recognized even if the program has
changed, and an edited file tells whether it was written from the current program.
"""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path
from types import CodeType
from typing import Any

from smelt.errors import ArtifactError

_MARK = "# As written, its fingerprint is "
_WRITTEN = re.compile(re.escape(_MARK) + r"([0-9a-f]+)$", re.MULTILINE)


def mark(program: str) -> str:
    """The comment with the fingerprint of the written program."""
    return f"{_MARK}{fingerprint(program)}\n"


def fingerprint(program: str) -> str:
    """16 hexadecimal digits for a program's definitions. Comments, layout, and the main block do not count."""
    return _digits(_defines(ast.parse(program)))


def _defines(tree: ast.Module) -> list[str]:
    return [ast.dump(statement) for statement in tree.body if not isinstance(statement, ast.If)]


def _digits(defines: list[str]) -> str:
    return hashlib.sha256("\n".join(defines).encode(errors="surrogatepass")).hexdigest()[:16]


def parsed(path: Path, text: str) -> ast.Module:
    """The syntax tree of a file. Raises ArtifactError, with the line, for invalid Python."""
    try:
        return ast.parse(text, str(path))
    except SyntaxError as error:
        raise ArtifactError(f"{path}:{error.lineno}: {error.msg}") from error


def compiled(path: Path, flags: int = 0) -> CodeType:
    """The code of a file. Raises ArtifactError, with the line, for invalid Python."""
    return compile(
        parsed(path, path.read_text(encoding="utf-8")), str(path), "exec", flags, dont_inherit=True
    )


def run(path: Path, code: CodeType, scope: dict[str, Any]) -> None:
    """Run the code of a file in `scope`. Raises ArtifactError, with the line, for an exception."""
    try:
        exec(code, scope)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise ArtifactError(f"{path}{where_raised(error, path)}: running it failed: {what}") from error


def where_raised(error: BaseException, path: Path) -> str:
    """`:12`, the line of the file that raised `error`; empty if none did."""
    found, traceback = "", error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(path):
            found = f":{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found


def is_edited(path: Path, written: str) -> bool:
    """Whether the file's program differs from `written` and from its own fingerprint.

    Raises ArtifactError for invalid Python.
    """
    text = path.read_text(encoding="utf-8")
    if text == written:
        return False
    own = _digits(_defines(parsed(path, text)))
    return own not in (_mark_in(text), fingerprint(written))


def is_made_from(path: Path, program: str) -> bool:
    """Whether the file was written from this program, and possibly edited since."""
    return _mark_in(path.read_text(encoding="utf-8")) == fingerprint(program)


def _mark_in(text: str) -> str | None:
    found = _WRITTEN.findall(text)
    return found[-1] if found else None
