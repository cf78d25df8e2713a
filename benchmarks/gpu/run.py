"""The ten models on a GPU, bf16 autocast: first call, steady state, peak memory, errors.

    python -m benchmarks.gpu.run [--training] [--only NAME] [--contestants eager,torch.compile,smelt] [--firsts 3] [--resume]

Writes inference.json and .md (training.json and .md) into `--out` after each part of each model, and begins no part after
`--seconds-budget`: what is missing, `--resume` measures. First calls are those of fresh processes with empty caches, smelt's
with an empty PATH besides; torch.compile's is the one in the process of the steady state, as compiling twice takes long. A
contestant may name a mode: `torch.compile:reduce-overhead`. With `--firsts`, a first call is the median of as many
processes, the contestants in turn. Processes import beside each other, and then work alone, one after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import contestants, device
from benchmarks.gpu.contestants import is_compiler
from benchmarks.gpu.models import MODELS, MORE
from benchmarks.gpu.processes import Waiting
from benchmarks.gpu.tables import report
from benchmarks.run import write

PART_S = 240.0  # a part that takes longer has failed
PARTS = ("first", "steady", "errors")
AHEAD = 6  # processes that import together
Rows = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Job:
    """A process: `part` of a model, for these contestants."""

    part: str
    model: str
    who: tuple[str, ...]
    nth: int = 0  # of several that are alike

    @property
    def name(self) -> str:
        return f"{self.part} of {self.model}, {', '.join(self.who)}"

    def is_done(self, row: dict[str, Any]) -> bool:
        if self.part == "first":
            return self.nth < len(row.get("firsts_s", {}).get(self.who[0], ()))
        key = {"steady": "call_s", "errors": "error"}[self.part]
        return set(self.who) <= row.get(key, {}).keys()

    def start(self, options: argparse.Namespace, caches: Path) -> Waiting:
        arguments = [self.part, self.model, ",".join(self.who)]
        arguments += ["--training"] if options.training else []
        arguments += ["--batch", str(options.batch)] if options.batch else []
        arguments += ["--seconds", str(options.seconds)] if self.part == "steady" else []
        return Waiting("benchmarks.gpu.one_model", arguments, self._environment(caches))

    def _environment(self, caches: Path) -> dict[str, str]:
        """First calls find nothing that was kept."""
        place = caches / self.model.replace("/", "-") / self.part / self.who[0] / str(self.nth)
        found = {
            "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
            "TRITON_CACHE_DIR": str(place / "triton"),
            "SMELT_CACHE_DIR": str(place / "smelt"),
        }
        alone = self.part == "first" and is_compiler(self.who[0], "smelt")
        return found | ({"PATH": ""} if alone else {})


def jobs(options: argparse.Namespace, rows: Rows) -> list[Job]:
    """What is to be measured and is not in `rows`."""
    found = []
    # torch.compile's errors would cost another compilation: smelt's are told from eager's.
    checked = tuple(who for who in options.contestants if not is_compiler(who, "torch.compile"))
    once = {
        who for who in options.contestants if is_compiler(who, "torch.compile") and "steady" in options.parts
    }
    compilers = [who for who in options.contestants if who != "eager" and who not in once]
    for model in options.only or MODELS:
        of = {
            "first": [Job("first", model, (who,), n) for n in range(options.firsts) for who in compilers],
            "steady": [Job("steady", model, tuple(options.contestants))],
            "errors": [Job("errors", model, checked)],
        }
        found += [job for part in options.parts for job in of[part]]
    return [job for job in found if not job.is_done(rows.get(job.model, {}))]


def merge(row: dict[str, Any], job: Job, found: dict[str, Any]) -> None:
    """Puts what a job found into the row of its model."""
    failed = row.setdefault("failed", {})
    failed.pop(job.name, None)
    if "failed" in found:
        failed[job.name] = found["failed"]
        return
    for key, values in found.items():
        row[key] = {**row.get(key, {}), **values}
    if job.part == "first":
        firsts = row.setdefault("firsts_s", {})
        for who, seconds in found["first_s"].items():
            firsts.setdefault(who, []).append(seconds)
            row["first_s"][who] = statistics.median(firsts[who])
    if job.part == "steady":
        firsts = {who: s for who, s in found["again_s"].items() if is_compiler(who, "torch.compile")}
        row["first_s"] = {**row.get("first_s", {}), **firsts}


def _ready(todo: list[Job], options: argparse.Namespace, caches: Path) -> Iterator[tuple[Job, Waiting]]:
    """Each job and its process, whose imports are over, as are those of all that run. Those that are left are ended."""
    for first in range(0, len(todo), AHEAD):
        together = todo[first : first + AHEAD]
        started = [job.start(options, caches) for job in together]
        try:
            for process in started:
                process.ready()
            yield from zip(together, started)
        finally:
            for process in started:
                process.stop()


def measure(options: argparse.Namespace, rows: Rows, save: Any) -> bool:
    """Does the jobs in turn; whether all were done."""
    todo, end = jobs(options, rows), time.monotonic() + options.seconds_budget
    with (
        tempfile.TemporaryDirectory(prefix="smelt-gpu-", ignore_cleanup_errors=True) as folder,
        closing(_ready(todo, options, Path(folder))) as processes,
    ):
        for number, (job, process) in enumerate(processes):
            begin = time.monotonic()
            if begin > end:
                print(f"{len(todo) - number} parts are left: run it again with --resume", file=sys.stderr)
                return False
            merge(rows.setdefault(job.model, {"model": job.model}), job, process.go(PART_S))
            print(f"{job.name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
            save()
    return True


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=[*MODELS, *MORE], help="a model; may be repeated")
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--contestants", type=contestants.names, default=list(contestants.USUAL))
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--firsts", type=int, default=1, help="first calls of each contestant (default: 1)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of timing a model (default: 5)")
    parser.add_argument(
        "--seconds-budget", type=float, default=470.0, help="no part begins later (default: 470)"
    )
    parser.add_argument("--batch", type=int, help="another than that of the figures, to try the script")
    parser.add_argument("--resume", action="store_true", help="keep what is there and measure the rest")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu"))
    return parser.parse_args()


def main() -> None:
    options = _options()
    device.ready()
    kind = "training" if options.training else "inference"
    saved = options.out / f"{kind}.json"
    old = json.loads(saved.read_text())["models"] if saved.exists() else []
    rows: Rows = {row["model"]: row for row in old}
    if not options.resume:  # what is measured again; other rows stay
        rows = {name: row for name, row in rows.items() if options.only and name not in options.only}
    facts = device.facts("benchmarks.gpu.run")

    def save() -> None:
        ordered = [rows[name] for name in MODELS | MORE if name in rows]
        write(saved, {"facts": facts, "models": ordered}, report(kind, facts, ordered))

    all_done = measure(options, rows, save)
    save()
    print(saved.with_suffix(".md").read_text())
    sys.exit(0 if all_done else 3)


if __name__ == "__main__":
    main()
