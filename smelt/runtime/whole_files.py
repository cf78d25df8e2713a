"""Files that are written whole or not at all: a failure leaves the earlier file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write into, which becomes `path` at the end of the context, if that does not raise.

    What is not a regular file, such as a pipe, is written directly. Raises OSError if `path` cannot be written.
    """
    target = Path(path).resolve()  # a link stays a link
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    aside = _new_file(target)
    try:
        with aside.open("wb") as file:
            yield file
        if target.exists():
            aside.chmod(target.stat().st_mode & 0o7777)
        aside.replace(target)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a file of text. Raises OSError if it cannot be written."""
    data = text.encode("utf-8")
    with written_whole(path) as file:
        file.write(data)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the OSError that writing `path` would raise, except for a full disk. The file does not change."""
    target = Path(path).resolve()
    if target.is_dir():
        raise IsADirectoryError(21, "Is a directory", str(path))
    if target.is_file() or not target.exists():
        _new_file(target).unlink()


def _new_file(target: Path) -> Path:
    """An empty file in the folder of `target`, with the permissions of a new file."""
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(13, "Permission denied", str(target))
    aside = target.with_name(f".smelt-{secrets.token_hex(8)}")
    try:
        os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except OSError as error:
        why = (
            "; the new file is made in this folder before it replaces the old one" if target.exists() else ""
        )
        raise OSError(error.errno, f"{error.strerror}: {target.parent}{why}", str(target)) from None
    return aside
