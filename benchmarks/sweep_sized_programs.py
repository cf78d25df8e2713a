"""Random programs that are valid for all sizes, eager against compiled with `dynamic=True`.

    python -m benchmarks.sweep_sized_programs [--programs N] [--seed FIRST] [--verify] [--jobs N]

Every program is decided by its seed; those of odd seeds are called with gradients. It is compiled once and called with six
sets of sizes, among them 0, 1, equal and prime ones, and inputs that lie in memory in any order, with gaps, or expanded.
Differences are shrunk and printed; benchmarks/results/programs-sizes.md says how many programs ran, how many entries they
have, what was needed as a number, why calls ran eagerly, and how many differed. `--verify` runs smelt's verifiers as well.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import os
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

import smelt
from benchmarks import measure, new_processes
from tests.harness.generate_sizes import SizedOptions
from tests.harness.generated_sizes import CALLS, outcome_of, shrunk, sized

RESULTS = Path(__file__).parent / "results"
AT_ONCE = 20  # programs in one task of a process


@dataclass
class Found:
    """What came of some programs: of each kind (False, True: with gradients) the number of them, and how many have how many
    entries; why captures began again, and calls ran eagerly, each counted once for a program; and what differed."""

    ran: Counter[bool] = field(default_factory=Counter)
    entries: dict[bool, Counter[int]] = field(default_factory=lambda: {False: Counter(), True: Counter()})
    raised: int = 0  # calls that raise in eager
    fixed: Counter[str] = field(default_factory=Counter)
    eager: Counter[str] = field(default_factory=Counter)
    different: list[tuple[int, str, str]] = field(
        default_factory=list
    )  # seed, what differs, program and calls

    def add(self, part: Found) -> None:
        self.ran += part.ran
        for grad, counted in part.entries.items():
            self.entries[grad] += counted
        self.raised += part.raised
        self.fixed += part.fixed
        self.eager += part.eager
        self.different += part.different


def run(seeds: Iterable[int], verify: bool) -> Found:
    """What came of the programs of these seeds."""
    torch.set_num_threads(1)
    logging.getLogger("smelt").setLevel(logging.ERROR)
    found = Found()
    for seed in seeds:
        grad = seed % 2 == 1
        program, calls, _ = sized(seed, SizedOptions(grad))
        made = outcome_of(program, calls, verify=verify)
        found.ran[grad] += 1
        found.entries[grad][made.entries] += 1
        found.raised += made.raised
        found.fixed.update({_kind(text) for text in made.fixed})
        found.eager.update({_kind(text) for text in made.eager})
        if made.problem is not None:
            smaller, fewer = shrunk(seed, SizedOptions(grad), made.problem)
            text = f"{smaller.source}\n# {'; '.join(map(str, fewer))}"
            found.different.append((seed, made.problem, text))
            print(f"\nseed {seed}: {made.problem}\n{text}", flush=True)
    return found


def _kind(text: str) -> str:
    """A reason without its numbers, and without the end of a long one."""
    return re.sub(r"\bs?\d+\b", "N", text.split("\n")[0])[:80]


def run_all(first: int, programs: int, jobs: int, verify: bool) -> Found:
    """`programs` programs, seeds from `first`, in `jobs` processes."""
    work = [range(at, min(at + AT_ONCE, first + programs)) for at in range(first, first + programs, AT_ONCE)]
    total, start = Found(), time.perf_counter()
    for part in new_processes.results(run, [(seeds, verify) for seeds in work], jobs):
        total.add(part)
        ran, seconds = total.ran.total(), time.perf_counter() - start
        print(f"\r{ran} programs, {len(total.different)} different, {seconds:.0f} s", end="", flush=True)
    total.different.sort()
    return total


def report(found: Found, command: str) -> str:
    ran = found.ran.total()
    lines = [
        "# Random programs whose sizes change",
        "",
        f"{datetime.date.today()}, {measure.machine()['cpu']}, smelt {smelt.__version__}, torch "
        f"{torch.__version__}, CPython {platform.python_version()}. Command: `{command}`; the programs come from "
        "tests/harness/generate_sizes.py.",
        "",
        f"{ran} programs, each compiled with `dynamic=True` and called with {CALLS} sets of sizes (0, 1, equal and prime "
        f"ones among them); {found.raised} of the calls raise in eager. {len(found.different)} differ from eager.",
        "",
        "| programs | number | entries: 1 | 2 | 3 | 4 | 5 | 6 | none |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for grad, name in ((False, "without gradients"), (True, "with gradients")):
        counted = found.entries[grad]
        columns = " | ".join(str(counted[n]) for n in (1, 2, 3, 4, 5, 6, 0))
        lines.append(f"| {name} | {found.ran[grad]} | {columns} |")
    for title, counter in (
        ("Why captures began again with numbers for sizes", found.fixed),
        ("Why calls ran eagerly, or graphs broke", found.eager),
    ):
        lines += ["", f"{title}:", "", "| programs | reason |", "| --- | --- |"]
        lines += [f"| {n} | {text.replace('|', '/')} |" for text, n in counter.most_common(20)]
    for seed, problem, source in found.different:
        lines += ["", f"Seed {seed}: {problem}", "", "```python", source.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verify", action="store_true")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes (default: one for each CPU)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = run_all(given.seed, given.programs, given.jobs or 1, given.verify)
    print()
    verify = " --verify" if given.verify else ""
    command = (
        f"python -m benchmarks.sweep_sized_programs --programs {given.programs} --seed {given.seed}{verify}"
    )
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "programs-sizes.md").write_text(report(found, command), encoding="utf-8")
    sys.exit(bool(found.different))


if __name__ == "__main__":
    main()
