"""Random Python programs, eager against compiled.

    python -m benchmarks.sweep_programs [--programs N] [--seed FIRST] [--gradients | --branches] [--kernels] [--jobs N]

Every program is decided by its seed and kind. Differences are shrunk and printed; benchmarks/results/programs.md says how
many programs of each kind ran, under which versions, and how many differed. With `--gradients` all tensors require
gradients, which are compared too; the file is programs-gradients.md, and says also how many backwards were compiled. With
`--branches` most conditions are on tensors, and sizes change at each call; the file is programs-branches.md. In the kinds
with changing worlds programs change objects around them through native functions, and between their calls the arguments, the
module's state, methods and classes change. With SMELT_DEVICE=cuda the worlds' tensors are on a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import os
import platform
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

import smelt
from benchmarks import new_processes
from smelt import events
from tests.harness.catalogue import DEVICE
from tests.harness.generate import Options, Replayed, Seeded, prelude, shrink, write_program
from tests.harness.generated import kind_of, outcome
from tests.simulated import compiled

RESULTS = Path(__file__).parent / "results"
AT_ONCE = 50  # programs in one task of a process


@dataclass
class Kind:
    name: str
    options: Options
    backend: str
    share: float  # of all programs
    ran: int = 0
    ahead: int = 0  # backward graphs compiled
    own: int = 0  # captures whose backward is autograd's own
    different: list[tuple[int, str, str]] = field(
        default_factory=list
    )  # seed, what differs, the shrunk source

    def share_of(self, programs: int) -> int:
        """How many of `programs` are of this kind: at least one."""
        return max(1, round(programs * self.share))

    def add(self, part: Kind) -> None:
        self.ran += part.ran
        self.ahead += part.ahead
        self.own += part.own
        self.different += part.different


def kinds() -> list[Kind]:
    return [
        Kind("whole", Options(), "eager", 0.2),
        Kind("whole, changing worlds", Options(worlds=True), "eager", 0.15),
        Kind("graph breaks", Options(breaks=True), "eager", 0.2),
        Kind("graph breaks, changing worlds", Options(breaks=True, worlds=True), "eager", 0.15),
        Kind("graph breaks, larger", Options(breaks=True, statements=25), "eager", 0.05),
        Kind("graph breaks and gradients", Options(breaks=True, grad=True), "eager", 0.1),
        Kind("graph breaks, kernels", Options(breaks=True), "smelt", 0.05),
        Kind("graph breaks, changing worlds, kernels", Options(breaks=True, worlds=True), "smelt", 0.05),
        Kind("gradients, kernels", Options(grad=True), "smelt", 0.05),
    ]


def branch_kinds() -> list[Kind]:
    small = Options(branches=True, statements=5)
    return [
        Kind("branches on tensors", small, "eager", 0.3),
        Kind("branches on tensors, kernels", small, "smelt", 0.3),
        Kind("branches on tensors, larger", Options(branches=True), "eager", 0.2),
        Kind("branches on tensors, gradients, kernels", replace(small, grad=True), "smelt", 0.2),
    ]


def gradient_kinds() -> list[Kind]:
    small = Options(grad=True, statements=5)
    return [
        Kind("gradients, kernels", small, "smelt", 0.2),
        Kind("gradients, hooks, changing worlds, kernels", replace(small, worlds=True), "smelt", 0.15),
        Kind("gradients, kernels, larger", Options(grad=True), "smelt", 0.15),
        Kind("gradients, operators", small, "aot_eager", 0.2),
        Kind("graph breaks and gradients, kernels", replace(small, breaks=True), "smelt", 0.15),
        Kind(
            "graph breaks, gradients, hooks, changing worlds",
            replace(small, breaks=True, worlds=True),
            "smelt",
            0.15,
        ),
    ]


def run(kind: Kind, seeds: Iterable[int]) -> Kind:
    """What the programs of these seeds gave, of `kind`."""
    kind = replace(kind, ran=0, ahead=0, own=0, different=[])
    torch.set_num_threads(1)
    if DEVICE == "cuda" and not torch.cuda.is_available():
        compiled.activate()
    logging.getLogger("smelt").setLevel(logging.ERROR)

    def listen(event: events.Event) -> None:
        kind.ahead += event.kind == "backward-compiled"
        kind.own += event.kind == "no-joint-graph"

    for seed in seeds:
        choices = Seeded(seed)
        source = write_program(choices, kind.options)
        with events.subscribed(listen):
            problem = outcome(source, kind.options, kind.backend)
        kind.ran += 1
        if problem is not None:
            kind.different.append((seed, problem, _shrunk(kind, choices.made, problem)))
            print(f"\n{kind.name}, seed {seed}: {problem}\n{kind.different[-1][2]}", flush=True)
    return kind


def run_all(kinds: list[Kind], first: int, programs: int, jobs: int) -> list[Kind]:
    """Each kind with its share of `programs` (at least one), seeds from `first`, in `jobs` processes."""
    work = [
        (kind, range(first, first + kind.share_of(programs))[at : at + AT_ONCE])
        for kind in kinds
        for at in range(0, kind.share_of(programs), AT_ONCE)
    ]
    done, start = {kind.name: kind for kind in kinds}, time.perf_counter()
    for part in new_processes.results(run, work, jobs):
        done[part.name].add(part)
        ran, found = sum(k.ran for k in kinds), sum(len(k.different) for k in kinds)
        seconds = time.perf_counter() - start
        print(f"\r{ran} programs, {found} different, {seconds:.0f} s", end="", flush=True)
    for kind in kinds:
        kind.different.sort()
    return kinds


def _shrunk(kind: Kind, numbers: list[int], problem: str) -> str:
    def fails(candidate: list[int]) -> bool:
        found = outcome(write_program(Replayed(candidate), kind.options), kind.options, kind.backend)
        return found is not None and kind_of(found) == kind_of(problem)

    return write_program(Replayed(shrink(numbers, fails)), kind.options).removeprefix(prelude(kind.options))


def report(done: list[Kind], first: int) -> str:
    ran, different = sum(k.ran for k in done), sum(len(k.different) for k in done)
    lines = [
        "# Random programs",
        "",
        f"{datetime.date.today()}, smelt {smelt.__version__}, torch {torch.__version__}, "
        f"CPython {platform.python_version()}: {ran} programs (seeds from {first}), each called six times; "
        f"{different} differ from eager. Written by `python -m benchmarks.sweep_programs`; the programs come "
        "from tests/harness/generate.py.",
        "",
        "| kind | backend | programs | different | backward graphs compiled | backward autograd's own |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {k.name} | {k.backend} | {k.ran} | {len(k.different)} | {k.ahead} | {k.own} |" for k in done
    ]
    for kind in done:
        for seed, problem, source in kind.different:
            lines += ["", f"{kind.name}, seed {seed}: {problem}", "", "```python", source.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--branches", action="store_true", help="most conditions are on tensors")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes (default: one for each CPU)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--kernels", action="store_true", help="every kind on the smelt backend")
    arguments = parser.parse_args()
    kinds_of = gradient_kinds() if arguments.gradients else branch_kinds() if arguments.branches else kinds()
    if arguments.kernels:
        kinds_of = [replace(kind, backend="smelt") for kind in kinds_of]
    done = run_all(kinds_of, arguments.seed, arguments.programs, arguments.jobs)
    print()
    what = "-gradients" * arguments.gradients or "-branches" * arguments.branches
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"programs{what}.md").write_text(report(done, arguments.seed), encoding="utf-8")
    sys.exit(any(k.different for k in done))


if __name__ == "__main__":
    main()
