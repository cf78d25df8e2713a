"""Several processes store and find entries in one folder at once, some of which are killed while they write."""

import json
import os
import random
import signal
import subprocess
import sys
import time

from smelt.config import Config
from smelt.runtime import disk_cache
from smelt.warm import entry_store
from smelt.warm.stored_entry import StoredEntry, StoredPlan, from_bytes

PROGRAM = """
import json, random, sys
import torch
import smelt
from smelt import config

def f(x, k):
    return (x * k).softmax(-1) @ x.T + k

draw = random.Random(int(sys.argv[1]))
wrong = 0
with torch.no_grad():
    for _ in range(int(sys.argv[2])):
        compiled = smelt.compile(f, dynamic=draw.choice([None, True]))
        for n in draw.sample(range(2, 9), 3):
            x, k = torch.randn(n, 4 * n), draw.randrange(2, 5)
            wrong += not torch.allclose(compiled(x, k), f(x, k), atol=1e-4)
        if draw.random() < 0.3:
            smelt.reset()
print(json.dumps(wrong))
"""


def start(folder, seed, rounds):
    env = {**os.environ, "SMELT_CACHE_DIR": str(folder), "SMELT_WARM_START": "1"}
    command = [sys.executable, "-c", PROGRAM, str(seed), str(rounds)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_share_a_folder(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    draw = random.Random(0)
    others = [start(folder, seed, 1000) for seed in range(100, 102)]  # killed in the middle of something
    processes = [start(folder, seed, 6) for seed in range(2)]
    time.sleep(draw.uniform(5, 8))
    for other in others:
        other.send_signal(signal.SIGKILL)
    for process in processes:
        out, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
        assert json.loads(out.splitlines()[-1]) == 0
    for other in others:
        other.communicate()
    assert any(folder.iterdir())
    monkeypatch.setenv("SMELT_CACHE_DIR", str(folder))
    store = disk_cache.Store(str(folder), 1 << 30)
    for path in folder.iterdir():
        if not path.name.endswith(".new"):  # what a killed process was writing
            assert store.get(path.name) is not None, path.name
    last = start(folder, 7, 2)
    out, errors = last.communicate(timeout=200)
    assert last.returncode == 0 and json.loads(out.splitlines()[-1]) == 0, errors


def test_a_process_that_dies_while_it_writes_leaves_no_damaged_entry(tmp_path):
    store = disk_cache.Store(str(tmp_path / "cache"), 1 << 30)
    key = disk_cache.key_of("an entry")
    store.put(key, b"first" * 100)
    code = (
        "import os, sys\n"
        "from smelt.runtime import disk_cache\n"
        "real = os.replace\n"
        "os.replace = lambda *a, **k: os.kill(os.getpid(), 9)\n"
        f"disk_cache.Store({str(tmp_path / 'cache')!r}, 1 << 30).put({key!r}, b'second' * 100)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL
    assert store.get(key) == b"first" * 100
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert store.clear() and not list((tmp_path / "cache").iterdir())


def test_entries_grow_with_the_plans_of_several_processes(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    first = start(folder, 3, 3)
    assert first.communicate(timeout=200)[0].splitlines()[-1] == "0"
    monkeypatch.setenv("SMELT_CACHE_DIR", str(folder))
    entry_store.forget()
    stored = [path.read_bytes() for path in folder.iterdir()]
    head = len(disk_cache.MAGIC) + disk_cache.CHECKSUM
    entries = []
    for content in stored:
        try:
            entries.append(from_bytes(content[head:]))
        except ValueError:  # kernels
            continue
    assert entries and all(entry.plans for entry in entries)


def test_the_folder_stays_within_its_limit(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("SMELT_CACHE_DIR", str(folder))
    entry_store.forget()
    limit = 1 << 20
    config = Config(kernel_cache_bytes=limit)
    content = random.Random(0).randbytes(limit // 40)
    for number in range(100):
        plan = StoredPlan(("graph",), None, [], content, content)
        entry_store.keep(
            disk_cache.key_of(str(number)), StoredEntry({"n": number}, b"", (plan,)).to_bytes(), config
        )
        assert sum(path.stat().st_size for path in folder.iterdir()) <= limit * 9 // 8
    entry_store.forget()
    kept = [n for n in range(100) if list(entry_store.entries_under(disk_cache.key_of(str(n)), (), config))]
    assert kept and kept[-1] == 99 and kept == list(range(kept[0], 100))  # the oldest are gone
    entry_store.forget()
