"""`make sweep`: errors of float32 results and gradients against float64, beside eager's.

    python -m benchmarks.accuracy [--torch-compile] [--only NAME] [--out DIR]

A row an operator of torch's operator database, with its sample inputs; a row a function of one or two arguments, over all
magnitudes; and a row a reduction on inputs that are hard for it. An error is the largest difference from the result of the
same call on float64 tensors, relative to the largest value of the result; of functions over all magnitudes, relative to each
value. Ratios are to eager's error, or to one unit in the last place where that is less: beyond 2 a row fails. What eager and
float64 do not agree on (random draws, signs of eigenvectors) is not compared. The largest of a few rounding errors is
chance: inputs whose ratio is beyond 1.5 are drawn 40 times more, and their errors are the means of those draws.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import measure
from benchmarks.sweep_ops import UNSPECIFIED

EPS = torch.finfo(torch.float32).eps
SAMPLES = 12
PARTS = 6  # processes, one after the other: a crash costs the rest of one part
AGREES = 0.01  # an error of eager's beyond this says that float64 computes something else
WORST = 2.0
CLOSE, DRAWS = 1.5, 40
EXPLAINED = {
    "signal.windows.nuttall": "0.07% remains of four constants: eager's order rounds nothing, others a unit of the constants"
}
Call = Callable[..., Any]
Samples = list[tuple[tuple[Any, ...], dict[str, Any]]]

# ---- what is called


def _functions() -> dict[str, tuple[Call, tuple[torch.Tensor, ...]]]:
    """Elementary functions where they are finite, over all magnitudes."""
    size = torch.logspace(-30, 30, 20_011)
    small, unit = torch.logspace(-20, 2, 20_011), torch.rand(20_011)
    both, near = torch.cat([-size, size]), torch.cat([-small, small])
    angles, positive = (
        torch.cat([near, torch.randn(20_011) * 1e4]),
        torch.cat([size, 1 + small, 1 - unit * 1e-3]),
    )
    inside = torch.cat([near[near.abs() < 1], 1 - small[small < 1], small[small < 1] - 1])
    found: dict[str, tuple[Call, tuple[torch.Tensor, ...]]] = {}
    for name in ("exp", "exp2", "expm1", "sinh", "cosh", "tanh", "erf", "sigmoid", "asinh", "atan"):
        found[name] = (getattr(torch, name), (near,))
    for name in ("sin", "cos", "tan", "sinc"):
        found[name] = (getattr(torch, name), (angles,))
    for name in ("log", "log2", "log10", "sqrt", "rsqrt", "lgamma", "digamma"):
        found[name] = (getattr(torch, name), (positive,))
    for name in ("asin", "acos", "atanh", "erfinv"):
        found[name] = (getattr(torch, name), (inside,))
    for name in (
        "gelu",
        "silu",
        "mish",
        "softplus",
        "elu",
        "selu",
        "celu",
        "logsigmoid",
        "tanhshrink",
        "hardswish",
    ):
        found[name] = (getattr(F, name), (near,))
    found["gelu, tanh"] = (lambda x: F.gelu(x, approximate="tanh"), (near,))
    found["log1p"] = (torch.log1p, (torch.cat([size, -unit, -small[small < 1]]),))
    found["acosh"] = (torch.acosh, (torch.cat([1 + small, size[size > 1]]),))
    found["erfc"] = (torch.erfc, (near[near < 9],))
    found["logit"] = (torch.logit, (torch.cat([unit, 1 - small[small < 1], small[small < 1]]),))
    found["reciprocal"] = (torch.reciprocal, (both,))
    pairs = torch.logspace(-4, 4, 20_011), torch.randn(20_011) * 4
    for name in ("pow", "atan2", "fmod", "remainder", "hypot", "logaddexp", "xlogy", "floor_divide"):
        found[name] = (getattr(torch, name), pairs)
    for power in (0.5, -0.5, 2.5, 3, -2, 1 / 3):
        found[f"pow {power:.3g}"] = (lambda x, power=power: x**power, (torch.logspace(-6, 6, 20_011),))
    return found


HARD: dict[str, Callable[..., torch.Tensor]] = {
    "one number": lambda *shape: torch.full(shape, 0.1),
    "in 0..1": lambda *shape: torch.rand(shape),
    "mean 1e3": lambda *shape: torch.randn(shape) + 1e3,
    "mean 1e5": lambda *shape: torch.randn(shape) + 1e5,
    "denormal": lambda *shape: torch.rand(shape) * 1e-40,
    "1e17": lambda *shape: torch.randn(shape) * 1e17,
}
SHAPE = (10, 20_003)
REDUCTIONS: dict[str, Call] = {
    "sum": lambda x: x.sum(-1), "sum of columns": lambda x: x.t().sum(-1), "sum of all": lambda x: x.sum(),
    "mean": lambda x: x.mean(-1), "var": lambda x: x.var(-1), "std": lambda x: x.std(0), "var_mean": torch.var_mean,
    "norm": lambda x: x.norm(dim=-1), "norm 1": lambda x: x.norm(1, dim=0), "norm 3": lambda x: x.norm(3, dim=-1),
    "logsumexp": lambda x: x.logsumexp(-1), "softmax": lambda x: x.softmax(-1), "log_softmax": lambda x: x.log_softmax(0),
    "cumsum": lambda x: x.cumsum(-1), "cumsum of columns": lambda x: x.cumsum(0),
    "cumprod": lambda x: (1 + x.tanh() * 1e-4).cumprod(-1), "prod": lambda x: (1 + x.tanh() * 1e-4).prod(0),
    "logcumsumexp": lambda x: x.logcumsumexp(-1), "nansum": lambda x: x.nansum(0), "trace": lambda x: x.trace(),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]), "rms_norm": lambda x: F.rms_norm(x, x.shape[1:], eps=1e-6),
    "group_norm": lambda x: F.group_norm(x[None], 5), "instance_norm": lambda x: F.instance_norm(x[None]),
    "batch_norm": lambda x: F.batch_norm(x.t(), None, None, training=True), "normalize": lambda x: F.normalize(x, dim=-1),
    "mse_loss": lambda x: F.mse_loss(x, x.flip(0) * 0.9), "cosine": lambda x: F.cosine_similarity(x, x.flip(0)),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(len(x))), "pool": lambda x: F.avg_pool1d(x[None], 100),
    "dot": lambda x: x[0] @ x[1], "mv": lambda x: x @ x[0], "mm": lambda x: x[:, :3000] @ x[:, :3000].t(),
    "products": lambda x: (x[:, None] * x[None]).sum(-1),
}  # fmt: skip
LONG: dict[str, tuple[Call, int]] = {
    "sum of 1e6": (lambda x: x.sum(), 10**6), "cumsum of 1e6": (lambda x: x.cumsum(0), 10**6),
    "var of 1e6": (lambda x: x.var(), 10**6), "norm of 1e6": (lambda x: x.norm(), 10**6),
    "sum of 1e8": (lambda x: x.sum(), 10**8),
}  # fmt: skip


def _rows() -> Iterator[tuple[str, str, Call, Callable[[bool], Samples], bool]]:
    """(table, name, function, lists of arguments (other ones `again`), whether errors are relative to each value)"""
    for name, (f, values) in _functions().items():
        yield "functions", name, f, lambda again, values=values: [(values, {})], True
    for name, f in REDUCTIONS.items():
        for kind, make in HARD.items():
            yield "reductions", f"{name}, {kind}", f, lambda again, make=make: [((make(*SHAPE),), {})], False
    for name, (f, size) in LONG.items():
        yield "reductions", name, f, lambda again, size=size: [((torch.rand(size),), {})], False
    from tests.harness.operator_database import op_db

    for op in op_db:
        if op.name not in UNSPECIFIED and {torch.float32, torch.float64} <= set(op.dtypes):
            name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
            yield "operators", name, op.op, lambda again, op=op: _samples(op, again), False


def _samples(op: Any, again: bool) -> Samples:
    try:
        samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=False, set_seed=not again))
    except Exception:  # some need a library
        return []
    return [((s.input, *s.args), s.kwargs) for s in samples[:: max(1, len(samples) // SAMPLES)][:SAMPLES]]


# ---- errors


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []


def _converted(value: Any, dtype: torch.dtype, leaves: list[torch.Tensor] | None) -> Any:
    """A copy with float tensors in `dtype`; they require gradients, and are noted, if there are `leaves`."""
    if isinstance(value, torch.Tensor):
        if value.dtype is not torch.float32:
            return value.clone()
        copy = value.detach().to(dtype, copy=True)
        if leaves is not None:
            leaves.append(copy.requires_grad_())
        return copy
    if type(value) in (list, tuple):
        return type(value)(_converted(v, dtype, leaves) for v in value)
    if isinstance(value, dict):
        return {k: _converted(v, dtype, leaves) for k, v in value.items()}
    return dtype if value is torch.float32 else value


def _run(f: Call, given: Any, dtype: torch.dtype, gradients: bool, draw: int) -> list[torch.Tensor | None]:
    """The results; or the gradients, of tangents that do not depend on the dtype, but on the draw."""
    leaves: list[torch.Tensor] | None = [] if gradients else None
    args, kwargs = _converted(given[0], dtype, leaves), _converted(given[1], dtype, leaves)
    torch.manual_seed(0)
    results = _tensors(f(*args, **kwargs))
    if leaves is None:
        return list(results)
    results = [t for t in results if t.requires_grad]
    torch.manual_seed(1 + draw)
    tangents = [torch.randn(t.shape).to(t.dtype) for t in results]
    return list(torch.autograd.grad(results, leaves, tangents, allow_unused=True)) if results else []


def _error(got: list[torch.Tensor | None], exact: list[torch.Tensor | None], each: bool) -> float:
    """NaN where there is nothing to compare."""
    worst, limits = math.nan, torch.finfo(torch.float32)
    for a, e in zip(got, exact, strict=True):
        if a is None or e is None or not e.is_floating_point() or not e.numel():
            continue
        a, e = a.detach().double(), e.detach().double()
        fits = e.isfinite() & (e.abs() < limits.max)
        if each:
            fits &= e.abs() >= limits.tiny
        if fits.any():
            difference, size = (a - e).abs()[fits], e.abs()[fits]
            scale = size if each else size.max()
            found = torch.where(difference == 0, difference, difference / scale).max().item()
            worst = found if not found <= worst else worst
    return worst


def _errors(
    f: Call, given: Any, gradients: bool, each: bool, torch_compile: bool, draw: int = 0
) -> dict[str, float] | None:
    """The error of each rival; None where nothing can be compared."""
    import smelt

    def call(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs)

    rivals: dict[str, Call] = {"eager": call, "smelt": smelt.compile(call)}
    if torch_compile:
        rivals["torch.compile"] = torch.compile(call)
    try:
        exact = _run(call, given, torch.float64, gradients, draw)
        results = {n: _run(g, given, torch.float32, gradients, draw) for n, g in rivals.items()}
        found = {n: _error(r, exact, each) for n, r in results.items()}
    except Exception:  # eager raises, or has no gradient
        return None
    return found if found["eager"] <= AGREES else None


def _with_ratio(errors: dict[str, float]) -> dict[str, float]:
    return {**errors, "ratio": errors["smelt"] / max(errors["eager"], EPS)}


def _row(
    f: Call, samples: Callable[[bool], Samples], gradients: bool, each: bool, torch_compile: bool
) -> dict[str, float]:
    """The errors of the sample with the worst ratio; empty where nothing can be compared."""
    rows = {}
    for i, given in enumerate(samples(False)):
        errors = _errors(f, given, gradients, each, torch_compile)
        if errors is not None:
            rows[i] = _with_ratio(errors)
    close = [i for i, row in rows.items() if not row["ratio"] <= CLOSE]
    drawn: dict[int, list[dict[str, float]]] = {i: [] for i in close}
    for draw in range(1, 1 + DRAWS * bool(close)):
        torch.manual_seed(draw)
        more = samples(True)
        for i in close:
            errors = _errors(f, more[i], gradients, each, torch_compile, draw) if i < len(more) else None
            if errors is not None:
                drawn[i].append(errors)
    for i, found in drawn.items():
        if found:
            rows[i] = _with_ratio({n: sum(e[n] for e in found) / len(found) for n in found[0]})
    return max(rows.values(), key=lambda row: row["ratio"], default={})


# ---- processes and tables


def worker(part: int, parts: int, only: list[str], torch_compile: bool) -> None:
    """Prints the rows of one part, each as JSON."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for i, (table, name, f, samples, each) in enumerate(_rows()):
        if i % parts != part or (only and not any(name.startswith(o) for o in only)):
            continue
        for gradients in (False, True)[: 1 + (table == "operators")]:
            torch.manual_seed(0)
            row = _row(f, samples, gradients, each, torch_compile)
            kind = "gradients" if gradients else table
            print("ROW " + json.dumps({"table": kind, "name": name, **row}), flush=True)


def _collect(parts: int, only: list[str], torch_compile: bool) -> list[dict[str, Any]]:
    rows = []
    for part in range(parts):
        command = [sys.executable, "-m", "benchmarks.accuracy", "--worker", f"{part}/{parts}"]
        command += ["--torch-compile"] * torch_compile + [x for o in only for x in ("--only", o)]
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.run(command, stdout=said, stderr=subprocess.PIPE, text=True)
            said.seek(0)
            rows += [json.loads(line[4:]) for line in said if line.startswith("ROW ")]
        if process.returncode:
            last = (process.stderr.strip().splitlines() or [f"exit {process.returncode}"])[-1]
            rows.append({"table": "operators", "name": f"part {part} died: {last[:100]}", "ratio": math.inf})
    return rows


def _fails(row: dict[str, Any]) -> bool:
    return not row["ratio"] <= WORST and row["name"] not in EXPLAINED


def _table(title: str, rows: list[dict[str, Any]]) -> str:
    compared = [r for r in rows if "ratio" in r]
    worse = sum(map(_fails, compared))
    columns = ["eager", "smelt", *["torch.compile"] * any("torch.compile" in r for r in rows), "ratio"]
    head = [f"| | {' | '.join(columns)} |", "| --- " * (len(columns) + 1) + "|"]
    lines = [
        f"## {title}",
        "",
        f"{len(compared)} compared; beyond {WORST:g} times eager's: {worse}.",
        "",
        *head,
    ]
    for r in sorted(compared, key=lambda r: -r["ratio"]):
        reason = EXPLAINED.get(r["name"]) if not r["ratio"] <= WORST else None
        name = f"{r['name']} ({reason})" if reason else r["name"]
        lines.append(f"| {name} | {' | '.join(f'{r[c]:.2g}' if c in r else '' for c in columns)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch-compile", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--worker")
    options = parser.parse_args()
    if options.worker:
        part, parts = map(int, options.worker.split("/"))
        worker(part, parts, options.only, options.torch_compile)
        return 0
    rows = _collect(1 if options.only else PARTS, options.only, options.torch_compile)
    titles = ("functions", "reductions", "operators", "gradients")
    tables = [_table(t, [r for r in rows if r["table"] == t]) for t in titles]
    facts = f"{datetime.date.today()}, torch {torch.__version__}, {measure.machine()['cpu']}. Command: `make sweep`."
    explained = (__doc__ or "").split("\n\n")[2].strip()
    text = "\n\n".join(["# Errors of float32 against float64", facts, explained, *tables])
    if options.only:
        print(text)
    else:
        (options.out / "accuracy.md").write_text(text + "\n")
    worse = sum(_fails(r) for r in rows if "ratio" in r)
    print(f"rows beyond {WORST:g} times eager's error: {worse}")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
