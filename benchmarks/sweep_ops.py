"""`make sweep`: torch's operator database through the smelt backend, every sample input, against eager.

    python -m benchmarks.sweep_ops [--dtype float32 --dtype int64] [--only NAME] [--out DIR]      forward
    python -m benchmarks.sweep_ops --gradients [--only NAME] [--out DIR]      gradients of random tangents, float64
    python -m benchmarks.sweep_ops --device cuda --dtype bfloat16 --jobs 15   on a GPU, in a file of its own; see docs/gpu.md
    python -m benchmarks.sweep_ops --dynamic [--gradients]   sizes and numbers are symbols; one function for all samples

A result in half precision that is not close to eager's agrees all the same if each element that is not close is at least as
near as eager's to what the same call gives on float64 tensors, or within half a unit in the last place of it, which is as
near as a rounded result can be: eager rounds between the operators that it is composed of, and sums in an order of its own.
One in float32 does if no element is further off than twice what eager's worst one is. It is counted (`nearer`).

A row an operator: samples that agree, which operators ran as generated kernels and which as ATen calls (extern), why
samples ran eagerly, and why the backward of some was not compiled. Workers run in processes of their own, so that a crash is
a row and not the end of the sweep.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import itertools
import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

HALVES = (torch.bfloat16, torch.float16)
ROUNDED = (*HALVES, torch.float32)  # what float64 can tell right from wrong in
# Results are uninitialised memory, or differ from call to call by design: only shapes and dtypes are compared.
UNSPECIFIED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
# Results by operator that are uninitialised memory where there is no dropout: the state of the generator that a dropout
# would have drawn from (native/transformers/cuda/attention.cu).
WITHOUT_DROPOUT = {
    "torch.ops.aten._flash_attention_forward": (2, 3),  # rng_state, unused
    "torch.ops.aten._efficient_attention_forward": (2, 3),  # philox_seed, philox_offset
}
UNUSED = {"torch.ops.aten._flash_attention_forward": (3,)}  # such memory with dropout, too
SAMPLES = 40


def database() -> list[Any]:
    from tests.harness.operator_database import op_db

    return list(op_db)


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def _specified(op: Any, sample: Any, found: Evaluated) -> Evaluated:
    """What `found` has of a sample, without the results that are uninitialised memory."""
    unspecified = WITHOUT_DROPOUT if sample.kwargs.get("dropout_p") == 0 else UNUSED
    without = unspecified.get(op.name, ())
    if not without or not isinstance(found.value, tuple):
        return found
    value = tuple(v for i, v in enumerate(found.value) if i not in without)
    return dataclasses.replace(found, value=value)


def _agree(op: Any, got: Evaluated, want: Evaluated) -> str | None:
    """None when results and gradients agree, else how they differ."""
    try:
        if op.name in UNSPECIFIED:
            assert [(t.shape, t.dtype) for t in tensors(got.value)] == [
                (t.shape, t.dtype) for t in tensors(want.value)
            ]
        else:
            torch.testing.assert_close(got.value, want.value, equal_nan=True, check_stride=True)
    except (AssertionError, TypeError, ValueError) as difference:
        return _first_line(difference)
    try:  # who receives a gradient must not depend on its strides
        torch.testing.assert_close(got.gradients, want.gradients, equal_nan=True, check_stride=False)
    except (AssertionError, TypeError, ValueError) as difference:
        return f"gradients: {_first_line(difference)}"
    return None


def nearer(got: Any, want: Any, exact: Any) -> bool:
    """Whether results differ in rounding alone: in half precision each element that is not close to eager's is at least as
    near to `exact`, the result in float64, as eager's is, or within half a unit in the last place; in float32 none is
    further from it than twice what eager's furthest is."""
    results = [tensors(value) for value in (got, want, exact)]
    if not results[0] or len({len(found) for found in results}) != 1:
        return False
    return all(_is_nearer(g, w, e) for g, w, e in zip(*results))


def _is_nearer(got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor) -> bool:
    if (got.shape, got.dtype, got.stride()) != (want.shape, want.dtype, want.stride()):
        return False
    if torch.equal(got, want):
        return True
    if got.dtype not in ROUNDED or exact.shape != got.shape or not exact.is_floating_point():
        return False
    if got.dtype is torch.float32:
        off, theirs_off = ((r.double() - exact.double()).abs().max() for r in (got, want))
        return bool(off <= 2 * theirs_off)  # false where any is NaN
    tolerance = 1.6e-2 if got.dtype is torch.bfloat16 else 1e-3  # those of `assert_close`
    ours, theirs, exact = got.double(), want.double(), exact.double()
    apart = ~torch.isclose(ours, theirs, rtol=tolerance, atol=1e-5, equal_nan=True)
    unit = torch.finfo(got.dtype).eps * torch.exp2(torch.floor(torch.log2(exact.abs())))
    near = (ours - exact).abs() <= torch.maximum(
        (theirs - exact).abs(), unit / 2
    )  # false where anything is NaN
    return bool((near | ~apart).all())


def _in_double(value: Any) -> Any:
    """A copy whose tensors of less precision, and such dtypes, are float64; so is what is computed from it."""
    if isinstance(value, torch.Tensor):
        copy = _clone(value)
        return copy.double() if value.dtype in ROUNDED else copy
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_in_double(v) for v in value)
    if isinstance(value, dict):
        return {k: _in_double(v) for k, v in value.items()}
    return torch.float64 if value in ROUNDED else value


def _first_line(difference: Exception) -> str:
    return " ".join(line.strip() for line in str(difference).strip().splitlines()[:4])[:200]


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors(v)] if isinstance(value, (list, tuple)) else []


@dataclass
class Evaluated:
    """What one call gave: its result, and the gradients of the arguments that require grad."""

    value: Any
    gradients: list[torch.Tensor | None] = field(default_factory=list)


def _evaluate(call: Any, given: tuple[Any, ...], defined: Any = lambda value: value) -> Evaluated:
    """`call(*given)` on copies; where the result requires grad, also gradients, of random tangents of what is `defined` of
    the result (eigenvectors, say, have a sign that is anybody's choice)."""
    given = _clone(given)
    value = call(*given)
    results = [t for t in tensors(defined(value)) if t.requires_grad]
    if not results:
        return Evaluated(value)
    leaves = [t for t in tensors(given) if t.requires_grad]
    tangents = [torch.randn_like(t) for t in results]
    found = torch.autograd.grad(results, leaves, tangents, allow_unused=True)
    return Evaluated(value, list(found))


def _outcome(call: Any) -> tuple[str, Any]:
    torch.manual_seed(0)
    try:
        return "value", call()
    except Exception as error:
        return "error", error


def _clone(value: Any) -> Any:
    """A copy with its own memory, so that an operator that writes its inputs is run on fresh ones each time."""
    if isinstance(value, torch.Tensor):
        copy = value.detach().clone(memory_format=torch.preserve_format)
        return copy.requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_clone(v) for v in value)
    if isinstance(value, dict):
        return {k: _clone(v) for k, v in value.items()}
    return value


def _row() -> dict[str, Any]:
    """What is found out about one operator: how many samples, for each reason how many, ..."""
    counts: dict[str, Any] = {
        "samples": 0, "agree": 0, "nearer": 0, "kernels": 0, "eager": {}, "not_ahead": {},
    }  # fmt: skip
    return {**counts, "wrong": [], "extern": []}


@dataclass(frozen=True)
class Sweep:
    """What is swept: samples of a dtype on a device, forward or gradients too, at most so many of each operator."""

    dtype: str
    device: str = "cpu"
    gradients: bool = False
    samples: int = SAMPLES
    dynamic: bool = False  # sizes and numbers are symbols, and one compiled function runs all samples

    def takes(self, op: Any) -> bool:
        dtype = getattr(torch, self.dtype)
        if self.gradients:
            return op.supports_autograd and dtype in op.supported_backward_dtypes(self.device)
        return dtype in op.supported_dtypes(self.device)


def run_operator(op: Any, what: Sweep) -> dict[str, Any]:
    """Runs at most `what.samples` samples eager and compiled; compiled twice, so that the cached entry is exercised too."""
    import smelt
    from smelt import events
    from smelt.reasons import BACKEND_FAILED, INTERNAL
    from smelt.report.inspect import reasons

    row = _row()
    externs: set[str] = set()

    def listen(event: events.Event) -> None:
        if event.kind == "plan":
            externs.update(event.data.get("externs", ()))
            row["kernels"] += event.data.get("kernels", 0)
        elif event.kind == "no-joint-graph":
            why = event.data["reason"].detail.removeprefix("no ahead-of-time gradients: ")
            row["not_ahead"][why] = row["not_ahead"].get(why, 0) + 1

    def call(input, args, kwargs):  # type: ignore[no-untyped-def]
        return op.op(input, *args, **kwargs)

    def made() -> Any:
        if not what.dynamic:
            smelt.reset()  # equal compilations share their entries
        how = {"dynamic": True, "options": {"recompile_limit": what.samples}} if what.dynamic else {}
        return smelt.compile(call, **how)

    dtype = getattr(torch, what.dtype)
    samples = op.sample_inputs(what.device, dtype, requires_grad=what.gradients)
    of_all = made()
    for sample in itertools.islice(samples, what.samples):
        compiled = of_all if what.dynamic else made()
        known = len(reasons(compiled))
        given = (sample.input, sample.args, sample.kwargs)
        row["samples"] += 1
        want_kind, want = _outcome(lambda: _evaluate(call, given, sample.output_process_fn_grad))
        with events.subscribed(listen):
            for _ in range(2):
                kind, got = _outcome(lambda: _evaluate(compiled, given, sample.output_process_fn_grad))
        why = reasons(compiled)[known:]
        failure = next((r for r in why if r.kind in (INTERNAL, BACKEND_FAILED)), None)
        if failure is not None:
            row["wrong"].append(f"{failure.kind.id}: {failure.detail:.200}")
        elif kind != want_kind or (kind == "error" and type(got) is not type(want)):
            row["wrong"].append(f"eager: {want_kind} {want!r:.80}, smelt: {kind} {got!r:.200}")
        elif kind == "value" and (
            difference := _agree(op, _specified(op, sample, got), _specified(op, sample, want))
        ):
            exact = _outcome(lambda: call(*_in_double(given)))
            if exact[0] == "value" and not what.gradients and nearer(got.value, want.value, exact[1]):
                row["agree"] += 1
                row["nearer"] += 1
            else:
                row["wrong"].append(difference)
        else:
            row["agree"] += 1
        for reason in why[:1]:
            row["eager"][reason.kind.id] = row["eager"].get(reason.kind.id, 0) + 1
    row["extern"] = sorted(externs)
    return row


def _prepare(device: str) -> None:
    """On a GPU, before smelt is imported and before the first tensor there."""
    if device == "cuda":
        from benchmarks.gpu.device import ready

        ready()


def worker(what: Sweep, indices: list[int]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    _prepare(what.device)
    operators = database()
    with torch.set_grad_enabled(what.gradients):
        for index in indices:
            print(f"BEGIN {index}", flush=True)
            row = {"name": name_of(operators[index]), **run_operator(operators[index], what)}
            print("ROW " + json.dumps(row), flush=True)


def sweep(what: Sweep, only: list[str] | None, jobs: int = 1) -> list[dict[str, Any]]:
    """A row for each operator, in the order of the database; `jobs` processes, each with every so many-th operator."""
    operators = database()
    todo = [
        i
        for i, op in enumerate(operators)
        if what.takes(op) and (not only or name_of(op) in only or op.name in only)
    ]
    rows: dict[int, dict[str, Any]] = {}
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda first: _sweep_part(what, todo[first::jobs], operators, rows), range(jobs)))
    return [rows[index] for index in todo]


def _sweep_part(what: Sweep, todo: list[int], operators: list[Any], rows: dict[int, dict[str, Any]]) -> None:
    """Adds the rows of `todo`; a worker that dies is a row, and another goes on."""
    command = ["benchmarks.sweep_ops", "--worker", json.dumps(dataclasses.asdict(what))]
    for index, found in in_workers(command, todo):
        if isinstance(found, str):
            found = {"name": name_of(operators[index]), **_row(), "wrong": [f"worker died: {found}"]}
        rows[index] = found
        if len(rows) % 25 == 0:
            print(f"{what.dtype}: {len(rows)} operators", file=sys.stderr, flush=True)


def in_workers(command: list[str], todo: list[int]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """The row of each operator of `todo`, as it comes. `command`: a module and its arguments, which receives the numbers
    of operators as one more argument and prints "BEGIN number" before and "ROW json" after each. A worker that dies gives
    its last error as the row of the operator that it had begun; another goes on behind that."""
    while todo:
        said = tempfile.TemporaryFile("w+")  # noqa: SIM115  (a pipe that nobody reads would fill up)
        arguments = [sys.executable, "-m", *command, ",".join(map(str, todo))]
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=said, text=True)
        begun = None
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("BEGIN "):
                begun = int(line[6:])
            elif line.startswith("ROW ") and begun is not None:
                yield begun, json.loads(line[4:])
                todo = todo[todo.index(begun) + 1 :]
        died = process.wait() != 0
        said.seek(0)
        errors = said.read().strip().splitlines()
        if died and todo:
            dead = begun if begun in todo else todo[0]
            yield dead, errors[-1][:200] if errors else f"exit {process.returncode}"
            todo = todo[todo.index(dead) + 1 :]


def _counts(found: dict[str, int]) -> str:
    return "; ".join(f"{what} {count}" for what, count in found.items()).replace("|", "/")


def _total(rows: list[dict[str, Any]], key: str) -> str:
    total: collections.Counter[str] = collections.Counter()
    for r in rows:
        total.update(r[key])
    return (
        f"{sum(1 for r in rows if r[key])} with samples {{}} ({_counts(dict(total.most_common())) or 'none'})"
    )


def table(title: str, rows: list[dict[str, Any]], gradients: bool = False) -> str:
    clean = [r for r in rows if not r["wrong"]]
    generated = [r for r in clean if r["kernels"] and not r["extern"]]
    facts = [
        f"{len(rows)} operators, {sum(r['samples'] for r in rows)} samples: "
        f"{len(clean)} operators without a difference",
        f"{len(generated)} of them entirely in generated kernels",
        f"{sum(1 for r in clean if r['extern'])} with ATen calls; {_total(rows, 'eager').format('run eagerly')}",
    ]
    if count := sum(r["nearer"] for r in rows):
        facts.append(f"{count} samples whose results are not close to eager's, but as near to float64's")
    heads = ["operator", "samples", "agree", "kernels", "extern", "run eagerly"]
    if gradients:
        facts.append(_total(rows, "not_ahead").format("whose backward is autograd's own"))
        heads.append("backward is autograd's")
    heads.append("difference")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for r in rows:
        cells = [
            r["name"],
            r["samples"],
            r["agree"],
            r["kernels"],
            ", ".join(r["extern"]),
            _counts(r["eager"]),
        ]
        cells += [_counts(r["not_ahead"])] if gradients else []
        cells.append("; ".join(r["wrong"][:2]).replace("|", "/"))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return f"## {title}\n\n{', '.join(facts)}.\n\n" + "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", action="append")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--only", action="append")
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, help=f"of an operator, at most (default: {SAMPLES})"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args()


def _file(options: argparse.Namespace) -> str:
    """On a GPU each dtype has a file of its own: so many samples are a command each."""
    name = f"{'sized-' * options.dynamic}{'gradients' if options.gradients else 'operators'}"
    return f"{name}.md" if options.device == "cpu" else f"{'-'.join([name, *(options.dtype or [])])}.md"


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--worker":
        what, indices = sys.argv[2:]
        worker(Sweep(**json.loads(what)), [int(i) for i in indices.split(",")])
        return
    options = _options()
    _prepare(options.device)
    parts, wrong = [], 0
    for dtype in options.dtype or (["float64"] if options.gradients else ["float32", "int64"]):
        what = Sweep(dtype, options.device, options.gradients, options.samples, options.dynamic)
        rows = sweep(what, options.only, options.jobs)
        wrong += sum(1 for r in rows if r["wrong"])
        parts.append(table(dtype, rows, options.gradients))
    gpu = "make gpu-gradients" if options.gradients else "make gpu-operators"
    command = "make sweep" if options.device == "cpu" else gpu
    device = "" if options.device == "cpu" else f", {torch.cuda.get_device_name()}"
    facts = f"{datetime.date.today()}, torch {torch.__version__}{device}. Command: `{command}`."
    kind = "gradients" if options.gradients else "forward"
    kind += ", symbolic sizes" if options.dynamic else ""
    head = f"# Operator database, {kind}, smelt backend\n\n{facts}"
    if options.only:
        print("\n\n".join(parts))
    else:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / _file(options)).write_text("\n\n".join([head, *parts]) + "\n")
    print(f"operators with a difference: {wrong}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
