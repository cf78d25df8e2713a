"""Stored entries against mutated programs and mutated files: `python -m benchmarks.sweep_warm_starts [--files N]`.

Each program of `tests/harness/mutations.py` is stored, then edited at every place and changed in every way; a stored entry
that accepts a mutated program must do what that does in eager. Files are mutated at random; each must be refused, or whole.
Prints a row for each program and exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from smelt.runtime.disk_cache import Store, key_of
from tests.harness import mutations


def sweep_program(name: str, source: str, way: mutations.Way) -> int:
    """The number of mutations of a program for which an entry is wrong."""
    counts = {"mutations": 0, "hits": 0, "wrong": 0}

    def check(what: str, hits: Callable[[], bool]) -> None:
        counts["mutations"] += 1
        try:
            counts["hits"] += hits()
        except AssertionError as error:
            counts["wrong"] += 1
            print(f"WRONG {name}, {what}: {str(error)[:200]}")

    with mutations.stored(source, way):
        for what, tree in mutations.edits(source):
            check(what, lambda tree=tree: mutations.hits_if_it_runs(tree, way))  # type: ignore[misc]
        for what, change in mutations.CHANGES.items():
            check(
                what, lambda change=change: mutations.hits(lambda: mutations.load(source, way), change, way)
            )  # type: ignore[misc]
    print(name, *(f"{count} {what}" for what, count in counts.items()), sep="  ", flush=True)
    return counts["wrong"]


def sweep_files(count: int) -> int:
    """The number of `count` mutated files that are read as another entry."""
    draw, wrong = random.Random(0), 0
    with tempfile.TemporaryDirectory() as folder:
        store, key = Store(folder, 1 << 30), key_of("an entry")
        content = draw.randbytes(2000)
        store.put(key, content)
        path = Path(folder, key)
        whole = path.read_bytes()
        for _ in range(count):
            data = bytearray(whole)
            for _ in range(draw.randint(1, 8)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            if draw.random() < 0.3:
                del data[draw.randrange(len(data)) :]
            path.write_bytes(data)
            wrong += store.get(key) not in (None, content)
    print(f"{count} mutated files  {wrong} wrong")
    return wrong


def main() -> int:
    """Sweep all programs, then files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=0, help="how many mutated files")
    parser.add_argument(
        "--way", action="append", choices=list(mutations.WAYS), help="how to compile; all if left out"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    wrong = 0
    for way in options.way or mutations.WAYS:
        for name, source in mutations.PROGRAMS.items():
            if way != "gradients" or name not in mutations.WITHOUT_GRADIENTS:
                wrong += sweep_program(f"{name} {way}".strip(), source, mutations.WAYS[way])
    return int(wrong + (sweep_files(options.files) if options.files else 0) > 0)


if __name__ == "__main__":
    sys.exit(main())
