"""What is kept on disk: who may have written it, what damages it, how much there may be, who writes at once."""

from __future__ import annotations

import errno
import gc
import os
import stat
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from smelt.config import Config
from smelt.errors import OptionError
from smelt.runtime import disk_cache
from smelt.runtime.disk_cache import Store, key_of
from tests.harness.processes import run

KEY, OTHER = key_of("one"), key_of("other")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One that does not exist yet."""
    return tmp_path / "above" / "smelt"


@pytest.fixture
def store(folder: Path) -> Store:
    """With an entry."""
    made = Store(str(folder), 1 << 20)
    made.put(KEY, b"content")
    assert made.get(KEY) == b"content"
    return made


@pytest.fixture(autouse=True)
def _nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "_said", {})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_was_put_is_got(store: Store, folder: Path) -> None:
    assert store.get(OTHER) is None
    store.put(OTHER, b"")
    assert store.get(OTHER) == b"" and store.get(KEY) == b"content"
    assert Store(str(folder), 0).get(KEY) == b"content"
    assert names(folder) == sorted([KEY, OTHER])
    store.drop(OTHER)
    assert store.get(OTHER) is None and names(folder) == [KEY]


def test_keys_are_of_parts() -> None:
    assert len({key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of("ab", "c", "")}) == 4
    assert key_of("ab", "c") == key_of(b"ab", "c")


def test_a_folder_that_is_not_there_keeps_no_frame(tmp_path: Path) -> None:
    """CPython 3.12 makes a cycle of an error and the frames of a context manager that swallows it."""

    class Held:
        pass

    def caller(held: Held) -> None:
        assert Store(str(tmp_path / "nothing"), 1 << 20).get("0" * 64) is None

    held = Held()
    known = weakref.ref(held)
    gc.disable()
    try:
        caller(held)
        del held
        assert known() is None
    finally:
        gc.enable()


def test_only_the_owner_reads(store: Store, folder: Path) -> None:
    assert mode(folder) == 0o700 and mode(folder / KEY) == 0o600


# ------------------------------------------------------------------------------------------- who may have written it


@pytest.mark.parametrize("place", ("", KEY))
@pytest.mark.parametrize("bit", (0o020, 0o002))
def test_what_others_can_write_is_refused(
    store: Store, folder: Path, place: str, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / place).chmod(mode(folder / place) | bit)
    assert store.get(KEY) is None and store.get(KEY) is None
    [said] = caplog.messages
    assert "can be written by others (mode" in said
    store.put(KEY, b"new")
    assert store.get(KEY) == (b"new" if place else None)  # a new file takes the name of a file
    assert store.why_not() == (
        None if place else f"{folder} can be written by others (mode 7{bit >> 3}{bit & 7})"
    )


def test_what_another_user_owns_is_refused(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert store.get(KEY) is None
    store.put(OTHER, b"more")
    assert store.size() == store.clear() == 0
    assert caplog.messages == [f"smelt: kernels on disk are left alone: {folder} belongs to user {owner}"]
    monkeypatch.undo()
    assert store.get(KEY) == b"content" and names(folder) == [KEY]


def test_links_are_refused(
    store: Store, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    linked = Store(str(link), 1 << 20)
    assert linked.get(KEY) is None and "is a link" in str(linked.why_not())
    outside = tmp_path / "outside"
    outside.write_bytes((folder / KEY).read_bytes())
    (folder / KEY).unlink()
    (folder / KEY).symlink_to(outside)
    assert store.get(KEY) is None
    assert len(caplog.messages) == 2
    store.put(KEY, b"new")
    assert store.get(KEY) == b"new" and not (folder / KEY).is_symlink()
    assert outside.exists()


def test_a_pipe_does_not_wait(store: Store, folder: Path) -> None:
    (folder / KEY).unlink()
    os.mkfifo(folder / KEY, 0o600)
    assert store.get(KEY) is None


# ------------------------------------------------------------------------------------------------- what damages it


DAMAGE = {
    "a bit": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "its end is missing": lambda content: content[:-1],
    "it is empty": lambda content: b"",
    "of another version": lambda content: content.replace(b"smelt 1", b"smelt 0"),
    "something follows": lambda content: content + b"!",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_entries_are_removed(store: Store, folder: Path, damage: str) -> None:
    path = folder / KEY
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert store.get(KEY) is None and not path.exists()


def test_an_entry_of_another_key_is_no_answer(store: Store, folder: Path) -> None:
    (folder / KEY).rename(folder / OTHER)
    assert store.get(OTHER) is None


# ------------------------------------------------------------------------------------------------------- how much


def test_what_was_used_longest_ago_goes(folder: Path) -> None:
    store = Store(str(folder), 10_000)
    keys = [key_of(str(i)) for i in range(9)]
    for i, key in enumerate(keys):
        store.put(key, b"x" * 1000)
        os.utime(folder / key, (i, i))
    assert len(names(folder)) == 9
    store.get(keys[0])
    store.put(OTHER, b"x" * 1000)
    left = [key for key in keys if (folder / key).exists()]
    assert keys[0] in left and keys[1] not in left and (folder / OTHER).exists()
    assert 7000 < store.size() <= 8750


def test_a_sweep_is_rare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps: list[int] = []
    monkeypatch.setattr(disk_cache, "_sweep", lambda folder, limit: sweeps.append(limit))
    store = Store(str(folder), 16_000)
    for i in range(32):
        store.put(key_of(str(i)), b"x" * 100)
    assert len(sweeps) == 3  # at the first, and after a thousand bytes each


def test_the_size_is_told_and_all_is_cleared(store: Store, folder: Path) -> None:
    (folder / "foreign").write_text("stays")
    (folder / f"{OTHER}.{'0' * 16}.new").write_text("of a process that was killed")
    size = sum((folder / name).stat().st_size for name in names(folder) if name != "foreign")
    assert store.size() == store.clear() == size
    assert names(folder) == ["foreign"] and store.size() == 0


# ------------------------------------------------------------------------------------------------ what never fails


def test_without_a_folder_there_is_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "none"), 100)
    assert store.get(KEY) is None and store.size() == store.clear() == 0 and store.why_not() is None
    store.drop(KEY)
    assert names(tmp_path) == []


def test_where_no_folder_can_be_made_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(str(tmp_path / "file" / "smelt"), 100)
    store.put(KEY, b"content")
    assert store.get(KEY) is None


def test_what_cannot_be_written_is_read(store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def read_only(path: str, flags: int, *args: int, **kwargs: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(path, flags, *args, **kwargs)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "utime", refuse)
    store.put(OTHER, b"new")
    assert store.get(KEY) == b"content" and store.get(OTHER) is None and names(folder) == [KEY]


def test_a_full_disk_leaves_nothing_behind(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    store.put(OTHER, b"new")
    assert names(folder) == [KEY]


# --------------------------------------------------------------------------------------------------- who writes at once


def test_threads_write_and_read_the_same(folder: Path) -> None:
    contents = {key_of(str(i)): bytes([i]) * 50_000 for i in range(4)}
    start = threading.Barrier(8)

    def work(_: int) -> bool:
        store = Store(str(folder), 150_000)  # so that sweeps run among them
        start.wait()
        fine = True
        for _ in range(20):
            for key, content in contents.items():
                store.put(key, content)
                fine &= store.get(key) in (content, None)
        return fine

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert not [name for name in names(folder) if name.endswith(".new")]


# ----------------------------------------------------------------------------------------------------------- options


def test_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", "/given")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/me")
    assert disk_cache.folder() == "/given"
    monkeypatch.setenv("SMELT_CACHE_DIR", "relative")
    assert disk_cache.folder() == str(Path.cwd() / "relative")
    monkeypatch.delenv("SMELT_CACHE_DIR")
    assert disk_cache.folder() == "/xdg/smelt"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert disk_cache.folder() == "/home/me/.cache/smelt"


def test_an_option_turns_it_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    found = disk_cache.store(Config(kernel_cache_bytes=7))
    assert found is not None and (found.folder, found.limit) == (str(tmp_path), 7)
    assert disk_cache.store(Config(kernel_cache_bytes=7)) is found
    assert disk_cache.store(Config(kernel_cache=False)) is None
    with pytest.raises(OptionError, match="kernel_cache"):
        Config().with_options({"kernel_cache": 1})


OFF = """
import json, os
os.environ["SMELT_KERNEL_CACHE"] = "0"
from smelt.runtime import disk_cache
print(json.dumps([disk_cache.store() is None, disk_cache.size(), disk_cache.clear()]))
"""


def test_a_variable_turns_it_off() -> None:
    assert run(OFF) == [True, 0, 0]


def test_the_users_store_is_told_and_cleared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "own"))
    found = disk_cache.store()
    assert found is not None
    found.put(KEY, b"content")
    assert disk_cache.size() == disk_cache.clear() > len(b"content")
    assert disk_cache.size() == 0
