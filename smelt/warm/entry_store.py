"""Where entries are stored: the disk cache, and files of `smelt.save_cache`.

An entry lies in one of `SLOTS` slots of its key. Each process fills a free slot, else the one that a hash selects; two that
fill one at once leave the later entry. An entry that gets another plan replaces itself. What is read or made in this
process stays in memory, for `save_cache`.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Container, Iterator
from contextlib import suppress

from smelt.config import Config
from smelt.errors import CacheError
from smelt.runtime import disk_cache
from smelt.runtime.whole_files import written_whole
from smelt.warm.stored_entry import Damaged, StoredEntry, entry_digest, from_bytes, merged

SLOTS = 8  # entries of one key
_MAGIC = b"smelt entries 1\n"
_HEAD = struct.Struct("<32s64sQ")  # digest of the remainder, key, bytes of the entry

_known: dict[str, dict[bytes, bytes]] = {}  # by key: contents by digest


def entries_under(key: str, seen: Container[bytes], config: Config) -> Iterator[tuple[bytes, StoredEntry]]:
    """The entries of a key and their digests, without those in `seen`: those of loaded files first, then those on disk."""
    for digest, known in list(_known.get(key, {}).items()):
        if digest not in seen:
            yield from _decoded(digest, known)
    for _, digest, content in _on_disk(key, disk_cache.store(config)):
        if digest not in seen and digest not in _known.get(key, {}):
            _known.setdefault(key, {})[digest] = content
            yield from _decoded(digest, content)


def _decoded(digest: bytes, content: bytes) -> Iterator[tuple[bytes, StoredEntry]]:
    try:
        yield digest, from_bytes(content)
    except Damaged:
        return


def keep(key: str, content: bytes, config: Config, *, is_new: bool = True) -> bytes:
    """Store an entry, if possible, with the plans that it had before, and return its digest. Unless `is_new`, only add its
    plans where the entry still is. Raises Damaged."""
    digest = entry_digest(content)
    known = _known.setdefault(key, {})
    if digest in known:
        known[digest] = content = merged(known[digest], content)
    elif is_new:
        known[digest] = content
    store = disk_cache.store(config)
    if store is not None:
        kept = list(_on_disk(key, store))
        for slot, other, earlier in kept:
            if other == digest:
                content = merged(earlier, content)
                if content != earlier:
                    store.put(_slot_key(key, slot), content)
                return digest
        if is_new:
            free = set(range(SLOTS)) - {slot for slot, *_ in kept}
            store.put(_slot_key(key, min(free, default=digest[0] % SLOTS)), content)
    return digest


def drop(key: str, digest: bytes, config: Config) -> None:
    """Remove an entry, also from the disk."""
    _known.get(key, {}).pop(digest, None)
    store = disk_cache.store(config)
    for slot, other, _ in _on_disk(key, store):
        if store is not None and other == digest:
            store.drop(_slot_key(key, slot))


def _on_disk(key: str, store: disk_cache.Store | None) -> Iterator[tuple[int, bytes, bytes]]:
    """Slot, digest and content of the entries of a key on disk. A damaged one counts as absent."""
    if store is not None:
        for slot in range(SLOTS):
            content = store.get(_slot_key(key, slot))
            if content is not None:
                with suppress(Damaged):
                    yield slot, entry_digest(content), content


def save(path: str | os.PathLike[str]) -> int:
    """Write the entries that this process has found or made to a file; return their number. Raises OSError."""
    rows = [(key, content) for key, contents in list(_known.items()) for content in list(contents.values())]
    with written_whole(path) as file:
        file.write(_MAGIC)
        for key, content in rows:
            head = key.encode()
            file.write(_HEAD.pack(hashlib.sha256(head + content).digest(), head, len(content)) + content)
    return len(rows)


def load(path: str | os.PathLike[str]) -> int:
    """Read the entries of a file; return their number. Raises OSError, and CacheError for a file that is damaged, or that
    another user could have written."""
    try:
        data = disk_cache.read_own(os.fspath(path))
    except disk_cache.Refused as error:
        raise CacheError(str(error)) from None
    if not data.startswith(_MAGIC):
        raise CacheError(f"{os.fspath(path)} is no file of smelt.save_cache of this version")
    found: list[tuple[str, bytes, bytes]] = []
    at = len(_MAGIC)
    while at < len(data):
        if len(data) - at < _HEAD.size:
            raise CacheError(f"{os.fspath(path)} is damaged")
        digest, key, length = _HEAD.unpack_from(data, at)
        content = data[at + _HEAD.size : at + _HEAD.size + length]
        if hashlib.sha256(key + content).digest() != digest:
            raise CacheError(f"{os.fspath(path)} is damaged")
        try:
            found.append((key.decode(), entry_digest(content), content))
        except Damaged:
            raise CacheError(f"{os.fspath(path)} is damaged") from None
        at += _HEAD.size + length
    for name, of_entry, content in found:
        _known.setdefault(name, {})[of_entry] = content
    return len(found)


def known() -> Iterator[str]:
    """The keys of the entries that this process has found, made or loaded."""
    return iter([key for key, contents in list(_known.items()) if contents])


def forget() -> None:
    """Forget what this process has found, made or loaded; the disk cache stays."""
    _known.clear()


def _slot_key(key: str, slot: int) -> str:
    return disk_cache.key_of("entry", key, str(slot))
