"""The disk cache: bytes by key, in one folder of the user, shared by processes.

A key is the hash of everything that the bytes are made from, so an entry never changes.

Invariants: nothing is read from, or written to, a folder or file that is a link, belongs to another user, or is
writable by others. The checked file is the file that is read: the folder is opened once, and files by their names in
it. A file gets its name when it is complete; a file truncated by a crash fails the checksum at its beginning. No
function raises: an unreadable entry counts as absent, an unwritable one is not stored. There is no lock, so processes,
threads and forks are independent.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from smelt.config import Config, defaults

MAGIC = b"kept by smelt 1\n"  # the number is that of this form: magic, checksum, content
CHECKSUM = hashlib.sha256().digest_size
SWEEPS = 16  # per limit: after how much that is written a process looks for what to remove
LEFT = 7 / 8  # of the limit, by a sweep that removes something

_NAME = re.compile(r"[0-9a-f]{64}(\.[0-9a-f]{16}\.new)?")  # nothing else in the folder is touched

log = logging.getLogger("smelt")


class Refused(OSError):
    """A folder or file that another user could have written."""


def key_of(*parts: str | bytes) -> str:
    """The key of what is made from `parts`."""
    whole = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        whole.update(b"%d " % len(content) + content)
    return whole.hexdigest()


class Store:
    """The entries in `folder`, limited to `limit` bytes. Safe for any process and thread."""

    def __init__(self, folder: str, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._until_sweep = 0  # bytes to write; approximate where threads write together

    def get(self, key: str) -> bytes | None:
        """The entry under `key`; None if there is none or it cannot be trusted."""
        with self._quietly(), self._opened() as folder:
            content = _read(folder, key)
            if content is None:
                os.unlink(key, dir_fd=folder)  # damaged, or of another version
            return content
        return None

    def put(self, key: str, content: bytes) -> None:
        """Store `content` if possible."""
        with self._quietly():
            os.makedirs(self.folder, 0o700, exist_ok=True)
            with self._opened() as folder:
                _write(folder, key, content)
                self._until_sweep -= len(content)
                if self._until_sweep < 0:
                    self._until_sweep = self.limit // SWEEPS
                    _sweep(folder, self.limit)

    def drop(self, key: str) -> None:
        """Remove the entry under `key`."""
        with self._quietly(), self._opened() as folder:
            os.unlink(key, dir_fd=folder)

    def size(self) -> int:
        """Bytes of all entries."""
        with self._quietly(), self._opened() as folder:
            return sum(size for _, size, _ in _files(folder))
        return 0

    def clear(self) -> int:
        """Remove all entries and return their bytes."""
        with self._quietly(), self._opened() as folder:
            return _remove(folder, list(_files(folder)), 0)
        return 0

    def why_not(self) -> str | None:
        """Why nothing can be stored; None if it can."""
        try:
            with self._opened():
                return None
        except FileNotFoundError:
            return None  # made when there is something to keep
        except OSError as error:
            return str(error)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The folder's descriptor. Raises OSError."""
        descriptor = _open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _check(descriptor, self.folder)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Suppress errors of the file system, which end the block."""
        try:
            yield
        except OSError as error:
            if isinstance(error, Refused):
                _say_once(str(error))
            elif not isinstance(error, FileNotFoundError):
                log.debug("smelt: %s", error)
            # Else it stays in a cycle with the frames that it went through, which hold the caller's tensors.
            error.__traceback__ = None


# ---------------------------------------------------------------------------------------------------------- files


def _open(path: str, flags: int, mode: int = 0o600, folder: int | None = None) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Refused(f"{path} is a link, or not what it should be") from error
        raise


def _check(descriptor: int, path: str) -> None:
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        raise Refused(f"{path} belongs to user {found.st_uid}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Refused(f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):o})")


def read_own(path: str) -> bytes:
    """The content of a file. Raises OSError, and Refused if another user could have written it."""
    folder = os.path.dirname(os.path.abspath(path))
    opened = _open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        mode = os.fstat(opened).st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
            raise Refused(f"{folder} can be written by others (mode {stat.S_IMODE(mode):o})")
        with open(_open(os.path.basename(path), os.O_RDONLY | os.O_NONBLOCK, folder=opened), "rb") as file:
            _check(file.fileno(), path)
            return file.read()
    finally:
        os.close(opened)


def _read(folder: int, key: str) -> bytes | None:
    """The content of a file of this user alone, which counts as used now; None if its checksum is wrong."""
    flags = os.O_RDONLY | os.O_NONBLOCK  # a pipe would wait for its writer
    with open(_open(key, flags, folder=folder), "rb") as file:
        _check(file.fileno(), key)
        content = file.read()
        with suppress(OSError):
            os.utime(file.fileno())
    head = len(MAGIC) + CHECKSUM
    return content[head:] if content[:head] == _head(key, content[head:]) else None


def _write(folder: int, key: str, content: bytes) -> None:
    new = f"{key}.{secrets.token_hex(8)}.new"
    with open(_open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=folder), "wb") as file:
        try:
            file.write(_head(key, content) + content)
            file.close()  # which writes too
            os.replace(new, key, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(new, dir_fd=folder)
            raise


def _head(key: str, content: bytes) -> bytes:
    """The header of an entry. It includes the key, so that an entry under another key does not match."""
    return MAGIC + hashlib.sha256(key.encode() + content).digest()


def _files(folder: int) -> Iterator[tuple[int, int, str]]:
    """(time of last use, size, name) of each entry, including those being written."""
    with os.scandir(folder) as found:
        for entry in found:
            if _NAME.fullmatch(entry.name):
                with suppress(FileNotFoundError):  # another process sweeps too
                    status = entry.stat(follow_symlinks=False)
                    yield status.st_mtime_ns, status.st_size, entry.name


def _sweep(folder: int, limit: int) -> None:
    """Remove the least recently used entries beyond `limit` bytes."""
    files = list(_files(folder))
    if sum(size for _, size, _ in files) > limit:
        _remove(folder, files, int(limit * LEFT))


def _remove(folder: int, files: list[tuple[int, int, str]], limit: int) -> int:
    """Remove the least recently used entries until `limit` bytes are left, and return the removed bytes."""
    size = left = sum(size for _, size, _ in files)
    for _, bytes_, name in sorted(files):
        if left <= limit:
            break
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        left -= bytes_
    return size - left


# ------------------------------------------------------------------------------------------------- the user's store


def folder() -> str | None:
    """The cache folder: `SMELT_CACHE_DIR`, else `smelt` in the system's cache folder. None if the user has no home."""
    if configured := os.environ.get("SMELT_CACHE_DIR"):
        return os.path.abspath(configured)
    for directory in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(directory):  # the convention: others are to be ignored
            return os.path.join(directory, "smelt")
    return None


def store(config: Config | None = None) -> Store | None:
    """The cache that the options (None: the defaults) ask for; None if they turn it off or there is no folder."""
    config = config or defaults()
    directory = folder()
    return _store(directory, config.kernel_cache_bytes) if config.kernel_cache and directory else None


_store = functools.cache(Store)


def size() -> int:
    """Bytes on disk."""
    found = store()
    return found.size() if found else 0


def clear() -> int:
    """Remove all entries and return their bytes. Loaded kernels stay loaded."""
    found = store()
    return found.clear() if found else 0


_said: dict[str, object] = {}


def _say_once(why: str) -> None:
    token = object()
    if _said.setdefault(why, token) is token:
        log.warning("smelt: kernels on disk are left alone: %s", why)
