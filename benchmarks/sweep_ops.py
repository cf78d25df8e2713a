"""`make sweep`: torch's operator database through the smelt backend, forward, every sample input, against eager.

    python -m benchmarks.sweep_ops [--dtype float32 --dtype int64] [--only NAME] [--out DIR]

A row an operator: samples that agree, which operators ran as generated kernels and which as ATen calls (extern), and why
samples ran eagerly. Workers run in processes of their own, so that a crash is a row and not the end of the sweep.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

# Results are uninitialised memory, or differ from call to call by design: only shapes and dtypes are compared.
UNSPECIFIED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
SAMPLES = 40


def _database() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def _name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def _agree(op: Any, got: Any, want: Any) -> str | None:
    """None when the results agree, else how they differ."""
    try:
        if op.name in UNSPECIFIED:
            assert [(t.shape, t.dtype) for t in _tensors(got)] == [(t.shape, t.dtype) for t in _tensors(want)]
        else:
            torch.testing.assert_close(got, want, equal_nan=True, check_stride=True)
    except (AssertionError, TypeError, ValueError) as difference:
        return str(difference).strip().splitlines()[0][:200]
    return None


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []


def _outcome(call: Any) -> tuple[str, Any]:
    torch.manual_seed(0)
    try:
        return "value", call()
    except Exception as error:
        return "error", error


def _clone(value: Any) -> Any:
    """A copy with its own memory, so that an operator that writes its inputs is run on fresh ones each time."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone(memory_format=torch.preserve_format)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_clone(v) for v in value)
    if isinstance(value, dict):
        return {k: _clone(v) for k, v in value.items()}
    return value


def run_operator(op: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Runs every sample eager and compiled; compiled twice, so that the cached entry is exercised as well."""
    import smelt
    from smelt import events
    from smelt.report.inspect import reasons

    row: dict[str, Any] = {"samples": 0, "agree": 0, "eager": {}, "wrong": [], "extern": [], "kernels": 0}
    externs: set[str] = set()

    def listen(event: events.Event) -> None:
        if event.kind == "plan":
            externs.update(event.data.get("externs", ()))
            row["kernels"] += event.data.get("kernels", 0)

    samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))[:SAMPLES]
    for sample in samples:

        def call(input, args, kwargs):  # type: ignore[no-untyped-def]
            return op.op(input, *args, **kwargs)

        compiled = smelt.compile(call)
        given = (sample.input, sample.args, sample.kwargs)
        row["samples"] += 1
        want_kind, want = _outcome(lambda: call(*_clone(given)))
        with events.subscribed(listen):
            for _ in range(2):
                kind, got = _outcome(lambda: compiled(*_clone(given)))
        if kind != want_kind or (kind == "error" and type(got) is not type(want)):
            row["wrong"].append(f"eager: {want_kind} {want!r:.80}, smelt: {kind} {got!r:.200}")
        elif kind == "value" and (difference := _agree(op, got, want)):
            row["wrong"].append(difference)
        else:
            row["agree"] += 1
        for reason in reasons(compiled)[:1]:
            row["eager"][reason.kind.id] = row["eager"].get(reason.kind.id, 0) + 1
    row["extern"] = sorted(externs)
    return row


def worker(dtype: torch.dtype, indices: list[int]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    database = _database()
    with torch.no_grad():
        for index in indices:
            print(f"BEGIN {index}", flush=True)
            row = {"name": _name(database[index]), **run_operator(database[index], dtype)}
            print("ROW " + json.dumps(row), flush=True)


def sweep(dtype_name: str, only: list[str] | None) -> list[dict[str, Any]]:
    dtype = getattr(torch, dtype_name)
    database = _database()
    todo = [
        i
        for i, op in enumerate(database)
        if dtype in op.dtypes and (not only or _name(op) in only or op.name in only)
    ]
    rows = []
    while todo:
        command = [
            sys.executable,
            "-m",
            "benchmarks.sweep_ops",
            "--worker",
            dtype_name,
            ",".join(map(str, todo)),
        ]
        said = tempfile.TemporaryFile("w+")  # noqa: SIM115  (a pipe that nobody reads would fill up)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
        begun = None
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("BEGIN "):
                begun = int(line[6:])
            elif line.startswith("ROW "):
                rows.append(json.loads(line[4:]))
                todo = todo[todo.index(begun) + 1 :]
                if len(rows) % 25 == 0:
                    print(
                        f"{dtype_name}: {len(rows)} operators, {len(todo)} to go", file=sys.stderr, flush=True
                    )
        died = process.wait() != 0
        said.seek(0)
        errors = said.read().strip().splitlines()
        if died and todo:
            dead = begun if begun in todo else todo[0]
            last = errors[-1][:200] if errors else f"exit {process.returncode}"
            rows.append({"name": _name(database[dead]), "samples": 0, "agree": 0, "eager": {}, "extern": [], "kernels": 0,
                         "wrong": [f"worker died: {last}"]})  # fmt: skip
            todo = todo[todo.index(dead) + 1 :]
    return rows


def table(dtype: str, rows: list[dict[str, Any]]) -> str:
    clean = [r for r in rows if not r["wrong"]]
    generated = [r for r in clean if r["kernels"] and not r["extern"]]
    eager: collections.Counter[str] = collections.Counter()
    for r in rows:
        eager.update(r["eager"])
    lines = [
        f"## {dtype}",
        f"{len(rows)} operators, {sum(r['samples'] for r in rows)} samples: {len(clean)} operators without a difference, "
        f"{len(generated)} of them entirely in generated kernels, {sum(1 for r in clean if r['extern'])} with ATen calls; "
        f"{sum(1 for r in rows if r['eager'])} with samples run eagerly ({dict(eager)}).",
        "| operator | samples | agree | kernels | extern | run eagerly | difference |",
        "| --- " * 7 + "|",
    ]
    for r in rows:
        lines.append(
            f"| {r['name']} | {r['samples']} | {r['agree']} | {r['kernels']} | {', '.join(r['extern'])} "
            f"| {', '.join(f'{k} {v}' for k, v in r['eager'].items())} | {'; '.join(r['wrong'][:2]).replace('|', '/')} |"
        )
    return "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:])


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--worker":
        worker(getattr(torch, sys.argv[2]), [int(i) for i in sys.argv[3].split(",")])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", action="append")
    parser.add_argument("--only", action="append")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    parts, wrong = [], 0
    for dtype in options.dtype or ["float32", "int64"]:
        rows = sweep(dtype, options.only)
        wrong += sum(1 for r in rows if r["wrong"])
        parts.append(table(dtype, rows))
    facts = f"{datetime.date.today()}, torch {torch.__version__}. Command: `make sweep`."
    head = f"# Operator database, forward, smelt backend\n\n{facts}"
    if options.only:
        print("\n\n".join(parts))
    else:
        (options.out / "operators.md").write_text("\n\n".join([head, *parts]) + "\n")
    print(f"operators with a difference: {wrong}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
