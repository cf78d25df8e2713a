"""Timing: contestants interleaved call by call, medians, and facts about the machine that a figure belongs to."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def interleaved(
    contestants: Mapping[str, Callable[[], Any]], budget_s: float = 3.0, least: int = 7
) -> dict[str, float]:
    """Median seconds per call of each contestant, calls taken in turn so that drift hits all alike."""
    for run in contestants.values():
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    end = time.perf_counter() + budget_s
    while time.perf_counter() < end or len(times[next(iter(times))]) < least:
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
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


def process(module: str, *arguments: str) -> Any:
    """The JSON that a benchmark module run in a process of its own prints last; {"failed": ...}, and its stderr shown, when
    it fails."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr[-4000:])
        said = done.stderr.strip().splitlines()
        return {"failed": said[-1] if said else f"exit {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def machine() -> dict[str, str]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        cpu = f"{len(names)}-core {names[0]}" if names else cpu
    return {
        "cpu": cpu,
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def geomean(values: list[float]) -> float:
    return statistics.geometric_mean(values) if values else float("nan")
