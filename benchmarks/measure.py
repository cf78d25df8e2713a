"""Timing: contestants interleaved call by call, medians, and facts about the machine that a figure belongs to."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

CACHES = "SMELT_BENCHMARK_CACHES"  # a folder for torch.compile's caches, for `benchmarks/cold.py`


def interleaved(
    contestants: Mapping[str, Callable[[], Any]],
    budget_s: float = 3.0,
    least: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds per call of each contestant by `clock`, calls taken in turn so that drift hits all alike."""
    for run in contestants.values():
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    end = time.perf_counter() + budget_s
    while time.perf_counter() < end or len(times[next(iter(times))]) < least:
        for name, run in contestants.items():
            start = clock()
            run()
            times[name].append(clock() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def per_call(
    contestants: Mapping[str, Callable[[], Any]], calls: int = 2000, rounds: int = 15
) -> dict[str, float]:
    """Microseconds per call in tight loops: the best round of each contestant, rounds interleaved."""
    best = dict.fromkeys(contestants, float("inf"))
    for run in contestants.values():
        run()
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            for _ in range(calls):
                run()
            best[name] = min(best[name], (time.perf_counter() - start) / calls * 1e6)
    return best


SLOWER = 1.2  # beyond noise
WARM_UP = 10
LONG_S = 5.0  # seconds of CPU time after which a warm-up ends
BLOCKS = 4
BLOCK_S = 0.25  # seconds of CPU time
LEAST_CALLS = 2


def after_ten(call: Callable[[], Any]) -> float:
    """CPU seconds of a call after ten: the best of several blocks, as the clock of CPU time may be coarse. Where calls take
    seconds, it makes fewer."""
    begin, best = time.process_time(), float("inf")
    for _ in range(WARM_UP):
        call()
        if time.process_time() - begin > LONG_S:
            break
    for _ in range(BLOCKS):
        calls, start = 0, time.process_time()
        while calls < LEAST_CALLS or time.process_time() - start < BLOCK_S:
            call()
            calls += 1
        best = min(best, (time.process_time() - start) / calls)
        if time.process_time() - begin > 2 * LONG_S:
            break
    return best


def beside_eager(pairs: Iterable[tuple[float, float]]) -> dict[str, float]:
    """Milliseconds of a call of eager and of smelt, whose seconds each of `pairs` measures anew: up to the first in which
    smelt is not slower beyond noise. The lowest ratio counts."""
    best = (1.0, float("inf"))
    for pair in pairs:
        best = min(best, pair, key=lambda p: p[1] / p[0])
        if not is_slower(*best):
            break
    return {"eager": round(best[0] * 1e3, 3), "smelt": round(best[1] * 1e3, 3)}


def is_slower(eager: float, smelt: float) -> bool:
    """Whether smelt is slower than eager beyond noise."""
    return smelt > SLOWER * eager


def process(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Any:
    """The JSON that a benchmark module run in a process of its own prints last; {"failed": ...}, and its stderr shown, when
    it fails. `environment`: variables beside this process's."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environment or {})})
    if done.returncode:
        sys.stderr.write(done.stderr[-4000:])
        said = done.stderr.strip().splitlines()
        return {"failed": said[-1] if said else f"exit {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def machine() -> dict[str, str]:
    """What figures depend on: the CPU by name and model, and what smelt and torch choose on it."""
    return {
        "cpu": _cpu(),
        "threads": str(torch.get_num_threads()),
        "choices": _choices(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


# `compare_checkouts` times other checkouts, whose modules may have other names: what describes the machine imports smelt's.


def _cpu() -> str:
    from smelt.codegen.llvm.host_cpu import host

    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or platform.machine()
    lines = [line.partition(":") for line in info.read_text().splitlines() if ":" in line]
    facts = {key.strip(): value.strip() for key, _, value in lines}
    count = sum(key.strip() == "processor" for key, _, _ in lines)
    known = [f"{key} {facts[key]}" for key in ("cpu family", "model", "stepping") if key in facts]
    return f"{count}-core {facts.get('model name', platform.machine())} ({', '.join([host().cpu, *known])})"


def _choices() -> str:
    """Whether products are generated, how wide vectors are, options that are not the default, and torch's own kernels."""
    from smelt.codegen.llvm.host_cpu import host
    from smelt.config import DEFAULT, Config
    from smelt.targets import cpu

    chosen = cpu.target(DEFAULT).costs.products
    products = f"products generated as for {host().cpu}" if chosen else "products ATen's"
    other = [
        f"SMELT_{f.name.upper()}={getattr(DEFAULT, f.name)}"
        for f in fields(Config)
        if getattr(DEFAULT, f.name) != f.default
    ]
    torchs = f"torch's kernels {torch.backends.cpu.get_cpu_capability()}"
    onednn = "oneDNN on" if torch.backends.mkldnn.is_available() else "no oneDNN"
    return "; ".join([products, f"vectors of {host().bits} bits", *other, torchs, onednn])


def geomean(values: list[float]) -> float:
    return statistics.geometric_mean(values) if values else float("nan")
