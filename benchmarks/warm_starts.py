"""Time of a model's first call in a second process, whose disk cache holds the compiled result.

    python -m benchmarks.warm_starts [--rivals] [--device cuda] [--only MODEL] [--out FILE]

Each figure comes from a process of its own, which builds the model, calls it eagerly, then imports the compiler,
compiles and calls the model twice. The figure is the time from that import to the first result, less the time of the
second call. CPU seconds count all threads and ended child processes. The first process of a compiler starts with an
empty cache, the second with the cache of the first: smelt's with `warm_start`, torch.compile's with its defaults
(`--rivals`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import torch
from torch.utils._pytree import tree_map_only

from benchmarks import measure
from benchmarks.models import MODELS, build

RESULTS = Path(__file__).parent / "results"
COMPILERS = ("smelt", "torch.compile")


def _cpu() -> float:
    return sum(os.times()[:4])


def one(name: str, compiler: str, device: str) -> dict[str, float]:
    """Seconds and CPU seconds of the first call in this process, and whether smelt captured anything."""
    module, inputs = build(name)
    module.eval().to(device)
    inputs = tree_map_only(torch.Tensor, lambda x: x.to(device), inputs)
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    with torch.no_grad():
        expected = module(**inputs)
        synchronize()
        start, cpu = time.perf_counter(), _cpu()
        if compiler == "smelt":
            import smelt

            compiled = smelt.compile(module)
        else:
            compiled = torch.compile(module)
        result = compiled(**inputs)
        synchronize()
        first, first_cpu = time.perf_counter(), _cpu()
        compiled(**inputs)
        synchronize()
        second, second_cpu = time.perf_counter(), _cpu()
    assert type(result) is type(expected)
    return {
        "seconds": (first - start) - (second - first),
        "cpu": (first_cpu - cpu) - (second_cpu - first_cpu),
        "hit": float("smelt.capture.driver.frame_compiler" not in sys.modules),
    }


def _in_a_process(name: str, compiler: str, device: str, folder: str) -> dict[str, float]:
    caches = {
        "SMELT_WARM_START": "1",
        "SMELT_CACHE_DIR": f"{folder}/smelt",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.warm_starts", "--one", name, compiler, device],
        env=os.environ | caches, check=True, capture_output=True, text=True,
    )  # fmt: skip
    row: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return row


def row_of(name: str, compilers: Sequence[str], device: str) -> str:
    """A row of the table."""
    cells = [name]
    for compiler in compilers:
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = (_in_a_process(name, compiler, device, folder) for _ in range(2))
        cells += [f"{cold['seconds']:.2f}", f"{warm['seconds']:.3f}", f"{warm['cpu']:.3f}"]
        if compiler == "smelt":
            cells.append("yes" if warm["hit"] else "no")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rivals", action="store_true", help="torch.compile too")
    parser.add_argument("--only", action="append", help="a model's name; may be repeated")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(*options.one)))
        return
    host = measure.machine()
    is_gpu = options.device == "cuda"
    where = f"{torch.cuda.get_device_name()}, " if is_gpu else ""
    compilers = COMPILERS if options.rivals else COMPILERS[:1]
    heads = [f"{c}: cold, s | warm, s | warm, CPU s" + (" | hit" if c == "smelt" else "") for c in compilers]
    lines = [
        "# First calls in a second process",
        "",
        f"{date.today()}, {where}{host['cpu']}, {host['threads']} threads, torch {host['torch']}, Python {host['python']}; "
        f"`python -m benchmarks.warm_starts{' --rivals' * options.rivals}{' --device cuda' * is_gpu}`",
        "",
        f"| model | {' | '.join(heads)} |",
        "| --- " * (1 + sum(h.count("|") + 1 for h in heads)) + "|",
    ]
    for name in options.only or MODELS:
        lines.append(row_of(name, compilers, options.device))
        print(lines[-1], flush=True)
    out = options.out or RESULTS / ("gpu/warm-starts.md" if is_gpu else "warm-starts.md")
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
