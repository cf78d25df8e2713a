"""`make sweep`: programs of frameworks (`frameworks/`), compiled the way their users compile, against eager.

    python -m benchmarks.sweep_frameworks [--only PART-OF-A-NAME ...] [--short] [--limit SECONDS] [--out DIR]

Each program runs eager and compiled, each in a process of its own, with equal seeds on one thread. Compared are what the
program returns (losses, results, names of classes), the files that it saves (names, keys, tensors, JSON), and the states of
the random generators. Saved files must not need smelt. After ten calls of the program's step its calls are
timed, in CPU time; where smelt is slower, both are measured again, and the lower ratio counts. A row says whether
a function ended eager for want of entries. The table keeps the rows of programs that `--only` leaves out. `--short`: one
program of each package, without a table.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import importlib.metadata
import json
import os
import pickle
import platform
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy
import torch

from benchmarks import errors, measure, sweep_models
from benchmarks.frameworks import programs

TOLERANCE = 1e-3  # of the largest magnitude of a tensor, after a few steps of training
LIMIT = 120.0  # seconds of CPU time a run
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
UNSTABLE = (
    "time",
    "runtime",
    "per_second",
    "output_dir",
    "logging_dir",
    "_name_or_path",
    "timestamp",
    "date",
)


# ---------------------------------------------------------------------------------------------------------- a run


def _run(name: str, is_compiled: bool, folder: str, limit: float) -> None:
    """In a process of its own: leaves `facts.pickle` beside the program's folder."""
    signal.setitimer(signal.ITIMER_PROF, limit)
    signal.setitimer(signal.ITIMER_REAL, 4 * limit)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    work = Path(folder, "files")
    work.mkdir()
    os.chdir(work)
    with open(Path(folder, "output"), "wb") as output:  # progress bars and logs
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    found: dict[str, Any] = {}
    try:
        with _collected(found) if is_compiled else contextlib.nullcontext():
            _seed()
            facts, step = programs.PROGRAMS[name](programs.Run(is_compiled))
            found["facts"] = _plain(
                {**facts, "generators": _generators()}
            )  # before the step changes what they hold
            found["seconds"] = measure.after_ten(step)
    except Exception as error:
        found["raised"] = f"{type(error).__name__}: {error}"[:400]
    Path(folder, "facts.pickle").write_bytes(pickle.dumps(_plain(found)))


def _seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)


def _generators() -> dict[str, Any]:
    return {"torch": torch.get_rng_state(), "random": hash(random.getstate()), "numpy": numpy.random.random()}


@contextlib.contextmanager
def _collected(found: dict[str, Any]) -> Iterator[None]:
    """Counts entries, and keeps why calls ran eagerly and graphs broke."""
    from smelt import events

    found.update(entries=0, eager=[], breaks=[])
    kinds = {"eager-fallback": "eager", "graph-break": "breaks"}

    def on_event(event: events.Event) -> None:
        if event.kind == "entry-installed":
            found["entries"] += 1
        elif event.kind in kinds:
            why = sweep_models.why(event.data["reason"]).replace(f"{ROOT}/", "")
            if why not in found[kinds[event.kind]]:
                found[kinds[event.kind]].append(why)

    with events.subscribed(on_event):
        yield


def _plain(value: Any) -> Any:
    """Containers, tensors, numbers and texts; other objects by their class and fields."""
    if isinstance(value, torch.Tensor):
        return value.detach().as_subclass(torch.Tensor).clone()
    if isinstance(value, numpy.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, numpy.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, torch.nn.Module):
        return {"class": _class_of(value), "training": value.training, "state": _plain(value.state_dict())}
    return _class_of(value)


def _class_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _fork(name: str, is_compiled: bool, folder: Path, limit: float) -> dict[str, Any]:
    folder.mkdir()
    process = get_context("fork").Process(target=_run, args=(name, is_compiled, str(folder), limit))
    process.start()
    process.join()
    written = folder / "facts.pickle"
    if written.exists():
        found: dict[str, Any] = pickle.loads(written.read_bytes())
        return found
    late = -(process.exitcode or 0) in (signal.SIGPROF, signal.SIGALRM)
    return {"raised": f"longer than {limit:g} s" if late else f"died: exit code {process.exitcode}"}


# ------------------------------------------------------------------------------------------------------ saved files


def _saved(folder: Path) -> dict[str, Any]:
    """The contents of the files that a program left, by name."""
    return {str(p.relative_to(folder)): _contents(p) for p in sorted(folder.rglob("*")) if p.is_file()}


def _contents(path: Path) -> Any:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        if path.suffix == ".json":
            return _stable(json.loads(path.read_text()))
        if path.suffix in (".pt", ".bin", ".ckpt", ".pth"):
            needs = {"needs smelt": True} if b"smelt" in path.read_bytes() else {}
            return _stable(_plain(torch.load(path, weights_only=False))) | needs
        if path.suffix in (".md", ".txt"):
            return path.read_text()
    except Exception as error:
        return f"cannot be read: {type(error).__name__}: {error}"
    return "a file"


def _stable(value: Any) -> Any:
    """Without what differs from one run to the next."""
    if isinstance(value, dict):
        return {k: _stable(v) for k, v in value.items() if not any(part in k for part in UNSTABLE)}
    return [_stable(v) for v in value] if isinstance(value, list) else value


# ------------------------------------------------------------------------------------------------------ comparison


def differences(got: Any, want: Any, path: str = "") -> list[str]:
    """Where two facts differ."""
    if isinstance(want, dict) and isinstance(got, dict):
        other = [f"{path}: {k} only in {w}" for k, w in _only(got, want)]
        return other + [d for k in want if k in got for d in differences(got[k], want[k], f"{path}/{k}")]
    if isinstance(want, list) and isinstance(got, list):
        if len(got) != len(want):
            return [f"{path}: {len(got)} in place of {len(want)}"]
        return [d for i, (g, w) in enumerate(zip(got, want)) for d in differences(g, w, f"{path}/{i}")]
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        apart = errors.distance(got, want, floor=1e-3)
        exact = not want.is_floating_point()
        return [f"{path}: {apart:.1e} apart"] if apart > (0 if exact else TOLERANCE) else []
    if isinstance(want, float) and isinstance(got, float):
        near = (
            abs(got - want) <= TOLERANCE * max(abs(want), 1e-2)
            or got == want
            or (got != got and want != want)
        )
        return [] if near else [f"{path}: {got!r} in place of {want!r}"]
    return [] if type(got) is type(want) and got == want else [f"{path}: {got!r} in place of {want!r}"[:300]]


def _only(got: dict[str, Any], want: dict[str, Any]) -> list[tuple[str, str]]:
    return [(k, "smelt") for k in got if k not in want] + [(k, "eager") for k in want if k not in got]


def measured(name: str, limit: float) -> dict[str, Any]:
    """The row of a program."""
    row: dict[str, Any] = {"name": name}
    if not programs.is_installed(name):
        return {**row, "skipped": f"no {programs.package_of(name)}", "measured": _circumstances()}
    start = time.perf_counter()
    _import(name)
    with tempfile.TemporaryDirectory() as top:
        eager = _fork(name, False, Path(top, "eager"), limit)
        if "raised" in eager:
            return {**row, "skipped": f"in eager: {eager['raised']}", "measured": _circumstances()}
        compiled = _fork(name, True, Path(top, "smelt"), limit)
        row |= {k: compiled[k] for k in ("entries", "eager", "breaks", "raised") if k in compiled}
        if "raised" not in compiled:
            row["differs"] = differences(compiled["facts"], eager["facts"], "facts")
            got, want = (_saved(Path(top, who, "files")) for who in ("smelt", "eager"))
            row |= {"differs": row["differs"] + differences(got, want, "files"), "files": len(want)}
            seconds = eager["seconds"], compiled["seconds"]
            row["ms"] = measure.beside_eager(_times(name, limit, Path(top), *seconds))
    return {
        **row,
        "seconds": round(time.perf_counter() - start, 1),
        "package": _version(name),
        "measured": _circumstances(),
    }


# What a package imports at its first use.
LATER = {
    "transformers": ("trainer", "models.gpt2.modeling_gpt2", "pipelines"),
    "lightning": ("pytorch", "fabric"),
}


def _import(name: str) -> None:
    """Import the package of a program before the forks: once for all."""
    package = programs.package_of(name)
    warnings.simplefilter("ignore")
    for module in (package, *(f"{package}.{part}" for part in LATER.get(package, ()))):
        importlib.import_module(module)


def _times(
    name: str, limit: float, top: Path, eager: float, compiled: float
) -> Iterator[tuple[float, float]]:
    """CPU seconds of a call, eager and compiled: those given, then measured again."""
    yield eager, compiled
    for turn in range(2):
        again = [_fork(name, who, top / f"{turn}{who}", limit).get("seconds", 0.0) for who in (False, True)]
        if all(again):
            yield again[0], again[1]


def _circumstances() -> str:
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{datetime.date.today()}, {versions}, {os.cpu_count()} CPU cores, smelt at `{sweep_models.code_version()}`."


def _version(name: str) -> str:
    package = programs.package_of(name)
    for distribution in importlib.metadata.packages_distributions().get(package, [package]):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{distribution} {importlib.metadata.version(distribution)}"
    return package


# ------------------------------------------------------------------------------------------------------- the table


def verdict(row: dict[str, Any]) -> str:
    """ok, differs, raised, ran out, slower or skipped."""
    if "skipped" in row:
        return "skipped"
    if "raised" in row or any(why.startswith(("internal-error", "backend-failed")) for why in row["eager"]):
        return "raised"
    if row["differs"]:
        return "differs"
    if ran_out(row):
        return "ran out"
    return "slower" if measure.is_slower(**row["ms"]) else "ok"


def ran_out(row: dict[str, Any]) -> list[str]:
    """The reasons of functions that ended eager for want of entries."""
    return [why for why in row.get("eager", ()) if why.startswith("recompile-limit")]


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of results/frameworks.md."""
    kinds = ("ok", "slower", "ran out", "differs", "raised", "skipped")
    counts = {v: sum(verdict(r) == v for r in rows) for v in kinds}
    versions = sorted({r["package"] for r in rows if "package" in r})
    head = [
        "# Sweep of frameworks' programs",
        "",
        "`python -m benchmarks.sweep_frameworks`. Each program runs eager and compiled, in processes of their own; what it "
        "returns, the files that it saves and the random generators are compared. Times: CPU milliseconds of a step after "
        f"ten, one thread. Slower: by more than {measure.SLOWER - 1:.0%}. Ran out: a function ended eager for want of "
        "entries.",
        "",
        *(f"* {where}" for where in sorted({r["measured"] for r in rows})),
        "",
        f"{', '.join(versions)}.",
        "",
        ", ".join(f"{k}: {v}" for k, v in counts.items()) + ".",
        "",
        "| program | | files | entries | eager ms | smelt ms | remarks |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*head, *map(_line, rows)]) + "\n"


def _line(row: dict[str, Any]) -> str:
    times = row.get("ms", {})
    cells = [f"`{row['name']}`", verdict(row), row.get("files", ""), row.get("entries", "")]
    cells += [*(f"{times[w]:.2f}" if times else "" for w in ("eager", "smelt")), "; ".join(remarks(row))]
    return "| " + " | ".join(str(c).replace("|", "\\|").replace("\n", " ") for c in cells) + " |"


def remarks(row: dict[str, Any]) -> list[str]:
    """What differs, why calls ran eagerly, and what broke graphs."""
    found = [row[k] for k in ("skipped", "raised") if k in row] + row.get("differs", [])[:3]
    found += [why.split(" at ")[0][:100] for why in (*row.get("eager", ()), *row.get("breaks", ()))]
    return list(dict.fromkeys(found))


def selected(only: list[str], short: bool) -> list[str]:
    """The names of the programs to run."""
    names = [n for n in programs.PROGRAMS if not only or any(part in n for part in only)]
    return list({programs.package_of(n): n for n in reversed(names)}.values()) if short else names


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--short", action="store_true", help="one program of each package")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of CPU time a run")
    parser.add_argument("--out", default=str(RESULTS))
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    names = selected(args.only, args.short)
    for name in names:
        rows.append(row := measured(name, args.limit))
        about = f"{row.get('seconds', 0)} s): {verdict(row)} {row.get('ms', '')}"
        print(f"{len(rows)}/{len(names)} {name} ({about}", *remarks(row), sep="\n    ", flush=True)
        if not args.short:
            write(row, Path(args.out, "frameworks.json"))
    return int(any(verdict(r) in ("differs", "raised", "ran out", "slower") for r in rows))


def write(row: dict[str, Any], table: Path) -> None:
    """Put the row into the table, which keeps the rows of programs that are not run."""
    table.parent.mkdir(parents=True, exist_ok=True)
    rows = {r["name"]: r for r in json.loads(table.read_text())} if table.exists() else {}
    rows[row["name"]] = row
    ordered = [rows[name] for name in programs.PROGRAMS if name in rows]
    table.write_text(json.dumps(ordered, indent=1) + "\n")
    table.with_suffix(".md").write_text(markdown(ordered))


if __name__ == "__main__":
    sys.exit(main())
