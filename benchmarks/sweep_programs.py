"""Random Python programs, eager against compiled: `python -m benchmarks.sweep_programs [--programs N] [--seed FIRST]`.

Every program is decided by its seed and kind. Differences are shrunk and printed; benchmarks/results/programs.md says how
many programs of each kind ran, under which versions, and how many differed.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import platform
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

import smelt
from tests.programs.check import kind_of, outcome
from tests.programs.generate import PRELUDE, Options, Replayed, Seeded, shrink, write_program

RESULTS = Path(__file__).parent / "results" / "programs.md"


@dataclass
class Kind:
    name: str
    options: Options
    backend: str
    share: float  # of all programs
    ran: int = 0
    seconds: float = 0.0
    different: list[tuple[int, str, str]] = field(
        default_factory=list
    )  # seed, what differs, the shrunk source


def kinds() -> list[Kind]:
    return [
        Kind("whole", Options(), "eager", 0.3),
        Kind("graph breaks", Options(breaks=True), "eager", 0.4),
        Kind("graph breaks, larger", Options(breaks=True, statements=25), "eager", 0.05),
        Kind("graph breaks and gradients", Options(breaks=True, grad=True), "eager", 0.1),
        Kind("graph breaks, kernels", Options(breaks=True), "smelt", 0.1),
        Kind("gradients, kernels", Options(grad=True), "smelt", 0.05),
    ]


def run(kind: Kind, seed: int) -> None:
    choices = Seeded(seed)
    source = write_program(choices, kind.options)
    start = time.perf_counter()
    problem = outcome(source, kind.options, kind.backend)
    kind.seconds += time.perf_counter() - start
    kind.ran += 1
    if problem is not None:
        kind.different.append((seed, problem, _shrunk(kind, choices.made, problem)))
        print(f"\n{kind.name}, seed {seed}: {problem}\n{kind.different[-1][2]}", flush=True)


def _shrunk(kind: Kind, numbers: list[int], problem: str) -> str:
    def fails(candidate: list[int]) -> bool:
        found = outcome(write_program(Replayed(candidate), kind.options), kind.options, kind.backend)
        return found is not None and kind_of(found) == kind_of(problem)

    return write_program(Replayed(shrink(numbers, fails)), kind.options).removeprefix(PRELUDE)


def report(done: list[Kind], first: int) -> str:
    ran, different = sum(k.ran for k in done), sum(len(k.different) for k in done)
    lines = [
        "# Random programs",
        "",
        f"{datetime.date.today()}, smelt {smelt.__version__}, torch {torch.__version__}, "
        f"CPython {platform.python_version()}: {ran} programs (seeds from {first}), each called three times with each of "
        f"two inputs; {different} differ from eager. Written by `python -m benchmarks.sweep_programs`; the programs come "
        "from tests/programs/generate.py.",
        "",
        "| kind | backend | programs | different |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| {k.name} | {k.backend} | {k.ran} | {len(k.different)} |" for k in done]
    for kind in done:
        for seed, problem, source in kind.different:
            lines += ["", f"{kind.name}, seed {seed}: {problem}", "", "```python", source.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("smelt").setLevel(logging.ERROR)
    done, start = kinds(), time.perf_counter()
    for kind in done:
        for seed in range(arguments.seed, arguments.seed + round(arguments.programs * kind.share)):
            run(kind, seed)
            if kind.ran % 20 == 0:
                total, found = sum(k.ran for k in done), sum(len(k.different) for k in done)
                print(
                    f"\r{total} programs, {found} different, {time.perf_counter() - start:.0f} s",
                    end="",
                    flush=True,
                )
    print()
    RESULTS.write_text(report(done, arguments.seed), encoding="utf-8")
    sys.exit(any(k.different for k in done))


if __name__ == "__main__":
    main()
