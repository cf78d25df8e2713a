"""Where entries are stored: damaged, forged and foreign bytes are refused; a full or read-only disk is no error."""

import random

import pytest
import torch

import smelt
from smelt.config import Config
from smelt.errors import CacheError
from smelt.runtime import disk_cache
from smelt.warm import entry_store, find_entry
from smelt.warm.digests import library_digest
from smelt.warm.found_plans import Plans
from smelt.warm.stored_entry import Damaged, StoredEntry, StoredPlan, from_bytes

KEY = disk_cache.key_of("a program")
ENTRY = StoredEntry(
    {"table": [], "nodes": [[-1, "arg", 0, [], 0]]},
    b"",
    (StoredPlan(("graph",), None, [], b"libraries", b"plan"),),
).to_bytes()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    entry_store.forget()
    yield tmp_path / "cache"
    entry_store.forget()


def found(key=KEY, seen=()):
    return [stored.to_bytes() for _, stored in entry_store.entries_under(key, seen, Config())]


def test_an_entry_is_found_by_its_key_alone():
    digest = entry_store.keep(KEY, ENTRY, Config())
    entry_store.forget()  # what is left is on disk
    assert found() == [ENTRY]
    assert found(seen={digest}) == []
    assert found(disk_cache.key_of("another program")) == []


def test_as_many_entries_as_slots_are_kept():
    for number in range(2 * entry_store.SLOTS):
        entry_store.keep(KEY, StoredEntry({"number": number}, b"", ()).to_bytes(), Config())
    entry_store.keep(KEY, ENTRY, Config())
    entry_store.forget()
    assert len(found()) == entry_store.SLOTS


def test_damaged_files_are_refused(folder):
    entry_store.keep(KEY, ENTRY, Config())
    [path] = folder.iterdir()
    whole = path.read_bytes()
    draw = random.Random(0)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        if draw.random() < 0.2:
            del data[draw.randrange(len(data)) :]
        entry_store.forget()
        path.write_bytes(bytes(data))
        assert found() == ([ENTRY] if bytes(data) == whole else [])


def test_bytes_that_are_no_entry_are_damaged():
    for content in (b"", ENTRY[:10], ENTRY[:-1], ENTRY + b"x", ENTRY.replace(b"{", b"[", 1), b"\xff" * 64):
        with pytest.raises(Damaged):
            from_bytes(content)


def test_a_plan_that_cannot_be_loaded_now_is_not_damaged(monkeypatch):
    plans = Plans(from_bytes(ENTRY), KEY, Config(), False)
    with pytest.raises(Damaged):
        plans.first(("graph",))
    monkeypatch.setattr(StoredPlan, "linked", lambda plan: torch.empty(1 << 60))
    with pytest.raises(RuntimeError, match="memory"):
        plans.first(("graph",))


def test_what_another_user_could_write_is_refused(folder):
    entry_store.keep(KEY, ENTRY, Config())
    entry_store.forget()
    folder.chmod(0o777)
    assert found() == []
    folder.chmod(0o700)
    [path] = folder.iterdir()
    path.chmod(0o666)
    assert found() == []


def test_a_folder_that_cannot_be_made_is_no_error(folder):
    folder.write_text("a file")
    entry_store.keep(KEY, ENTRY, Config())
    entry_store.forget()
    assert found() == []


def test_a_saved_file_is_loaded_without_a_disk_cache(tmp_path):
    off = Config(kernel_cache=False)
    entry_store.keep(KEY, ENTRY, off)
    path = tmp_path / "entries"
    assert smelt.save_cache(path) == 1
    entry_store.forget()
    assert smelt.load_cache(path) == 1
    assert [stored.to_bytes() for _, stored in entry_store.entries_under(KEY, (), off)] == [ENTRY]


def test_a_damaged_or_foreign_file_is_not_loaded(tmp_path):
    entry_store.keep(KEY, ENTRY, Config())
    path = tmp_path / "entries"
    smelt.save_cache(path)
    entry_store.forget()
    whole = path.read_bytes()
    for data in (b"", whole[:-1], whole[:40], whole[:-1] + b"?", b"x" + whole):
        path.write_bytes(data)
        with pytest.raises(CacheError):
            smelt.load_cache(path)
    path.write_bytes(whole)
    path.chmod(0o666)
    with pytest.raises(CacheError, match="written by others"):
        smelt.load_cache(path)
    with pytest.raises(FileNotFoundError):
        smelt.load_cache(tmp_path / "nothing")
    assert found(seen=()) == [ENTRY]  # of the disk cache, which is another place


def test_forged_guards_are_no_entry():
    """Data of any form under a right checksum: nothing is found, nothing is raised."""

    def f(x):
        return x + 1

    forged = [
        {}, {"table": 1}, {"table": [[["name", "os", "system"], ""]], "facts": [], "nodes": [], "collect": 0, "weak": []},
        {"table": [[["at", 5], ""]], "facts": [], "nodes": [], "collect": 0, "weak": [], "frame": {}},
        {"table": [], "facts": [], "nodes": [[-1, "arg", 3, [], -1]], "collect": 0, "weak": [], "frame": {}},
        {"table": [], "facts": [], "nodes": [[-1, "arg", 0, [[0, "no such kind", 1]], -1]], "collect": 0, "weak": []},
        {"table": [], "facts": [], "nodes": [], "collect": 0, "weak": [9], "frame": {}},
        {"table": [], "facts": [], "nodes": [], "collect": 0, "weak": [], "frame": {"scope": {}, "source": "def ("}},
    ]  # fmt: skip
    for data in forged:
        assert (
            find_entry.found(
                StoredEntry(data, b"", ()), f, (torch.ones(2),), KEY, Config(), False, lambda fn: fn
            )
            is None
        )


def test_the_key_ignores_that_torch_wraps_a_function_when_its_compiler_is_imported(monkeypatch):
    known, seed = library_digest(), torch.random.manual_seed
    monkeypatch.setattr(torch, "manual_seed", seed)
    unwrapped = library_digest()
    monkeypatch.setattr(torch, "manual_seed", torch._disable_dynamo(seed))
    assert known == unwrapped == library_digest()
    monkeypatch.setattr(torch, "manual_seed", lambda seed: seed)
    assert library_digest() != known
