"""Every operator of torch's database by itself: smelt beside eager in one run, slowest rows first.

    python -m benchmarks.operators_speed [--only NAME ...] [--dtype float32 ...] [--size 1kB ...] [--large] [--resume]
    python -m benchmarks.operators_speed --threads 8 --out DIR

A row is an operator on one dtype, size and layout, forward or with its backward. Its function calls the operator once, on a
sample input of the database whose dimensions are tiled until the largest tensor, argument or result, has about that size;
`transposed` tensors have their last two dimensions the other way round in memory. The last result is held while the next
call runs, as in a user's loop. Blocks of calls of both alternate; a time is the best block's (CPU time, or with several
threads time passed), and a ratio is eager's time over smelt's: below 1, smelt is slower. Rows below 0.95 are measured again
by longer blocks, and the better ratio counts.

Left out: operators that cannot be tiled so (a shape is an argument), or whose call takes longer than a second. Each row is
kept in `build/operators-speed-THREADS.jsonl` as it comes: `--resume` goes on from there, and adds other dtypes and sizes.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import itertools
import json
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import measure
from benchmarks.sweep_ops import database, in_workers, name_of, tensors

DTYPES = ("float32", "float64", "bfloat16", "int64")
SIZES = {"1kB": 1 << 10, "1MB": 1 << 20, "64MB": 64 << 20}
BELOW = 0.95
LONGEST_S = 1.0  # of a call
MEMORY = 12 << 30  # of a worker: what tiling makes too large raises
SAMPLES, TRIED = 40, 4
ROUNDS, BLOCK_S = 5, 0.004
HOPELESS = 0.6  # a ratio that is no noise
AGAIN = ((15, 0.004), (15, 0.01))
Call = Callable[..., Any]


@dataclass(frozen=True)
class Measured:
    """What is measured of each operator."""

    dtypes: tuple[str, ...] = DTYPES
    sizes: tuple[str, ...] = ("1kB", "1MB")
    threads: int = 1


# ---- functions of one operator and their arguments


@dataclass(frozen=True)
class Single:
    """A function that calls one operator, and its tensors."""

    call: Call
    given: tuple[torch.Tensor, ...]

    def with_tensors(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Single:
        return Single(self.call, tuple(map(change, self.given)))


def single(op: Any, sample: Any) -> Single:
    """The sample's call with its tensors as parameters and everything else as literals or globals, as users write it."""
    given: list[torch.Tensor] = []
    names: dict[str, Any] = {"op": op.op}

    def text(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            given.append(value)
            return f"t{len(given) - 1}"
        if type(value) in (list, tuple):
            inner = "".join(f"{text(v)}, " for v in value)
            return f"[{inner}]" if type(value) is list else f"({inner})"
        if value is None or type(value) in (bool, int, str):
            return repr(value)
        names[f"c{len(names)}"] = value
        return f"c{len(names) - 1}"

    parts = [text(sample.input), *map(text, sample.args)]
    parts += [f"{key}={text(value)}" for key, value in sample.kwargs.items()]
    parameters = ", ".join(f"t{i}" for i in range(len(given)))
    exec(f"def call({parameters}):\n    return op({', '.join(parts)})\n", names)
    return Single(names["call"], tuple(given))


def _tiled(x: torch.Tensor, times: dict[int, int]) -> torch.Tensor:
    """`x` repeated along some dimensions; those of one element are broadcast, and remain."""
    repeats = [times.get(d, 1) if n > 1 else 1 for d, n in enumerate(x.shape)]
    return x.detach().repeat(repeats).requires_grad_(x.requires_grad) if x.dim() else x


def _tilings(first: Single, factor: float) -> Iterator[Single]:
    """Ways to repeat the tensors until they have `factor` times as many elements: all dimensions, or the first, or the last
    one of those tensors that are as long there as the largest."""
    largest = max(first.given, key=torch.Tensor.numel)
    if factor < 2:
        yield first
        return
    long = sum(n > 1 for n in largest.shape)
    each = _rounded(factor ** (1 / max(long, 1)))
    yield first.with_tensors(lambda x: _tiled(x, dict.fromkeys(range(x.dim()), each)))
    for place in (0, -1):

        def along(x: torch.Tensor, place: int = place) -> torch.Tensor:
            like = x.dim() and x.shape[place] == largest.shape[place]
            return _tiled(x, {place % x.dim(): _rounded(factor)}) if like else x

        yield first.with_tensors(along)


def _rounded(factor: float) -> int:
    """Near `factor`, and a multiple of 16 where it is large: users' sizes mostly are."""
    return max(1, round(factor) if factor < 24 else 16 * round(factor / 16))


def _bytes(values: Any) -> int:
    return max((t.numel() * t.element_size() for t in tensors(values)), default=0)


def tiled(first: Single, nbytes: int) -> Single | None:
    """The function on tensors of about `nbytes`, results included; None where eager raises, or takes too long."""
    for asked in (nbytes, nbytes >> 3, nbytes >> 6, nbytes >> 9):
        for made in _tilings(first, asked / max(_bytes(first.given), 1)):
            try:
                start = time.perf_counter()
                found = max(_bytes(made.given), _bytes(made.call(*made.given)))
            except Exception:  # sizes that do not fit each other, or too much memory
                continue
            if time.perf_counter() - start < LONGEST_S and nbytes / 8 <= found <= 4 * nbytes:
                return made
    return None


def _transposed(x: torch.Tensor) -> torch.Tensor:
    if x.dim() < 2:
        return x
    return x.detach().mT.contiguous().mT.requires_grad_(x.requires_grad)


def _samples(op: Any, dtype: torch.dtype, gradients: bool) -> list[Single]:
    """Functions on the samples that suit best: matrices without empty or broadcast dimensions."""

    def unsuitable(one: Single) -> tuple[bool, int, int]:
        largest = max(one.given, key=torch.Tensor.numel)
        thin = any(n < 2 for n in largest.shape) or largest.dtype is not dtype
        return thin, sum(t.dim() == 0 for t in one.given), abs(largest.dim() - 2)

    samples = op.sample_inputs("cpu", dtype, requires_grad=gradients)
    found = [single(op, s) for s in itertools.islice(samples, SAMPLES) if "out" not in s.kwargs]
    found = [one for one in found if one.given and max(t.numel() for t in one.given)]
    return sorted(found, key=unsuitable)[:TRIED]


def with_backward(made: Single, call: Call) -> Call:
    """`call` with the gradients of all tensors that require them, for tangents of one."""
    tangents = [torch.ones_like(t) for t in tensors(made.call(*made.given)) if t.requires_grad]
    leaves = [t for t in made.given if t.requires_grad]

    def step(*given: torch.Tensor) -> Any:
        results = [t for t in tensors(call(*given)) if t.requires_grad]
        return torch.autograd.grad(results, leaves, tangents, allow_unused=True)

    return step


# ---- times


def _block(call: Call, given: tuple[torch.Tensor, ...], count: int, clock: Callable[[], float]) -> float:
    kept = None
    start = clock()
    for _ in range(count):
        kept = call(*given)
    took = (clock() - start) / count
    del kept
    return took


def times(eager: Call, smelt: Call, given: tuple[torch.Tensor, ...], threads: int) -> tuple[float, float]:
    """Seconds of a call of each: the best of alternating blocks; again where smelt is slower."""
    clock = time.process_time if threads == 1 else time.perf_counter
    best = (1.0, float("inf"))
    for rounds, block_s in ((ROUNDS, BLOCK_S), *AGAIN):
        count = max(1, int(block_s / max(_block(eager, given, 1, time.perf_counter), 1e-7)))
        found = [[_block(f, given, count, clock) for f in (eager, smelt)] for _ in range(rounds)]
        pair = min(e for e, _ in found), min(s for _, s in found)
        best = min(best, pair, key=lambda p: p[1] / max(p[0], 1e-9))
        if (
            not HOPELESS * best[1] < best[0] < BELOW * best[1]
            or sum(map(sum, found)) * count > 10 * LONGEST_S
        ):
            break
    return best


def _rows(op: Any, what: Measured) -> Iterator[dict[str, Any]]:
    for name, gradients in itertools.product(what.dtypes, (False, True)):
        dtype = getattr(torch, name)
        if dtype not in (op.supported_backward_dtypes("cpu") if gradients else op.supported_dtypes("cpu")):
            continue
        if gradients and not op.supports_autograd:
            continue
        with torch.set_grad_enabled(gradients):
            samples = _samples(op, dtype, gradients)
            for size in what.sizes:
                for layout in ("contiguous", "transposed"):
                    row = _row(samples, SIZES[size], layout == "transposed", gradients, what.threads)
                    if row:
                        yield {"dtype": name, "size": size, "layout": layout, "backward": gradients, **row}


def _row(
    samples: list[Single], nbytes: int, transposed: bool, gradients: bool, threads: int
) -> dict[str, Any]:
    """Times of the first sample that can be so large; empty where none can."""
    import smelt
    from smelt import events

    made = next(filter(None, (tiled(one, nbytes) for one in samples)), None)
    if made is None or (transposed and all(t.dim() < 2 for t in made.given)):
        return {}
    if transposed:
        made = made.with_tensors(_transposed)
    plans: list[Any] = []
    smelt.reset()
    eager, ours = made.call, smelt.compile(made.call)
    try:
        if gradients:
            eager, ours = with_backward(made, eager), with_backward(made, ours)
        eager(*made.given)
        with events.subscribed(lambda event: plans.append(event.data) if event.kind == "plan" else None):
            for _ in range(3):
                ours(*made.given)
        found = times(eager, ours, made.given, threads)
    except Exception:  # no gradient, or not of these layouts
        return {}
    return {
        "shapes": [list(t.shape) for t in made.given],
        "eager": found[0],
        "smelt": found[1],
        "kernels": sum(p.get("kernels", 0) for p in plans),
        "externs": sorted({x for p in plans for x in p.get("externs", ())}),
    }


def worker(what: Measured, indices: list[int]) -> None:
    """Prints the rows of each operator."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(what.threads)
    operators = database()
    gc.freeze()  # `smelt.reset` collects garbage, which takes 0.2 s with the database's objects
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for index in indices:
        print(f"BEGIN {index}", flush=True)
        torch.manual_seed(0)
        try:
            rows = list(_rows(operators[index], what))
        except Exception as error:
            rows = [{"failed": f"{type(error).__name__}: {error}"[:200]}]
        print("ROW " + json.dumps({"name": name_of(operators[index]), "rows": rows}), flush=True)


# ---- tables


def ratio(row: dict[str, Any]) -> float:
    """Eager's time over smelt's."""
    return float(row["eager"] / max(row["smelt"], 1e-9))


def _flat(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": f["name"], **row} for f in found for row in f["rows"] if "eager" in row]


def _summary(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| dtype | size | | rows | geomean | below 0.95 | least |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    keys = sorted({(r["dtype"], r["size"], r["backward"]) for r in rows}, key=str)
    for dtype, size, backward in keys:
        part = [ratio(r) for r in rows if (r["dtype"], r["size"], r["backward"]) == (dtype, size, backward)]
        below = sum(x < BELOW for x in part)
        kind = "with backward" if backward else "forward"
        lines.append(
            f"| {dtype} | {size} | {kind} | {len(part)} | {measure.geomean(part):.2f} | {below} | {min(part):.2f} |"
        )
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    made = f"{row['kernels']} kernels" if row["kernels"] else ""
    cells = [
        row["name"], row["dtype"], row["size"], row["layout"], "with backward" if row["backward"] else "forward",
        " ".join("x".join(map(str, s)) or "()" for s in row["shapes"][:3]),
        f"{row['eager'] * 1e6:.1f}", f"{row['smelt'] * 1e6:.1f}", f"{ratio(row):.2f}",
        ", ".join(filter(None, [made, *row["externs"]])),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def table(rows: list[dict[str, Any]]) -> str:
    """A line a row, the lowest ratio first."""
    heads = (
        "operator",
        "dtype",
        "size",
        "layout",
        "",
        "shapes",
        "eager, us",
        "smelt, us",
        "ratio",
        "smelt runs",
    )
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    return "\n".join(lines + [_line(r) for r in sorted(rows, key=ratio)])


def report(found: list[dict[str, Any]], shown: float) -> str:
    """The page: facts, counts by dtype and size, and the rows below `shown`."""
    rows = _flat(found)
    slow = [r for r in rows if ratio(r) < BELOW]
    facts = ", ".join(f"{k} {v}" for k, v in measure.machine().items())
    failed = [f"{f['name']}: {r['failed']}" for f in found for r in f["rows"] if "failed" in r]
    counts = (
        f"{len({r['name'] for r in rows})} operators, {len(rows)} rows: geomean {measure.geomean([*map(ratio, rows)]):.2f}, "
        f"{len(slow)} below {BELOW} ({len({r['name'] for r in slow})} operators)."
    )
    parts = [
        "# Operators by themselves, smelt beside eager",
        f"{datetime.date.today()}, {facts}. Command: `python -m benchmarks.operators_speed`.",
        (__doc__ or "").split("\n\n")[2].strip(),
        counts,
        _summary(rows),
        f"## Rows below {shown:g}",
        table([r for r in rows if ratio(r) < shown]),
        *(["## Not measured", "\n".join(f"- {line}" for line in failed)] if failed else []),
    ]
    return "\n\n".join(parts) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", help="names of operators")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--size", nargs="+", choices=SIZES, default=("1kB", "1MB"))
    parser.add_argument("--large", action="store_true", help="all three sizes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="keep the rows of a run that was interrupted")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args()


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--worker":
        worker(Measured(**json.loads(sys.argv[2])), [int(i) for i in sys.argv[3].split(",")])
        return
    options = _options()
    what = Measured(tuple(options.dtype), tuple(SIZES if options.large else options.size), options.threads)
    kept = Path(f"build/operators-speed-{options.threads}.jsonl")
    kept.parent.mkdir(exist_ok=True)
    found = [json.loads(line) for line in kept.read_text().splitlines()] if options.resume else []
    how = json.dumps(asdict(what))
    known = {f["name"] for f in found if f["what"] == json.loads(how)}
    named = [(i, name_of(op)) for i, op in enumerate(database())]
    todo = [i for i, name in named if name not in known and (not options.only or name in options.only)]
    with kept.open("a" if options.resume else "w") as file:
        command = ["benchmarks.operators_speed", "--worker", how]
        for index, row in in_workers(command, todo):
            if isinstance(row, str):
                row = {"name": dict(named)[index], "rows": [{"failed": f"worker died: {row}"}]}
            found.append({**row, "what": json.loads(how)})
            file.write(json.dumps(found[-1]) + "\n")
            file.flush()
    torch.set_num_threads(options.threads)
    if options.only:
        print(report(found, float("inf")))
    else:
        options.out.mkdir(parents=True, exist_ok=True)
        name = "operators-speed.md" if options.threads == 1 else f"operators-speed-{options.threads}.md"
        (options.out / name).write_text(report(found, 1.0))


if __name__ == "__main__":
    main()
