"""Time and memory of calls on the GPU, contestants interleaved round by round."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch

Calls = Mapping[str, Callable[[], Any]]


class HasName(Protocol):
    """A case of a table."""

    @property
    def name(self) -> str:
        """As its row is called."""


Named = TypeVar("Named", bound=HasName)


def in_time(cases: Iterable[Named], only: Sequence[str] | None, seconds: float) -> Iterator[Named]:
    """Those in whose names a part of `only` is (None: all), until so many seconds are over; says how far it is."""
    begin = time.monotonic()
    for case in cases:
        if only and not any(part in case.name for part in only):
            continue
        if time.monotonic() - begin > seconds:
            print(f"{case.name}: not measured, the time is over", file=sys.stderr)
            continue
        yield case
        print(f"{case.name}: after {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


def first_call(call: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and seconds until the GPU is done with it."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = call()
    torch.cuda.synchronize()
    return result, time.perf_counter() - start


def _round(call: Callable[[], Any], count: int) -> tuple[float, float]:
    """Seconds per call on the device, and until the host has asked for the work; `count` calls one behind the other."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin = time.perf_counter()
    start.record()
    for _ in range(count):
        call()
    stop.record()
    host = time.perf_counter() - begin
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / 1e3 / count, host / count


def interleaved(
    calls: Calls, budget_s: float, round_s: float = 0.05, least: int = 5
) -> dict[str, dict[str, float]]:
    """Medians of rounds that last about `round_s` each: {"device": {contestant: seconds per call}, "host": ...}."""
    counts = {}
    for who, call in calls.items():
        _round(call, 2)
        device, host = _round(call, 1)
        counts[who] = max(1, min(500, int(round_s / max(device, host))))
    rounds: dict[str, list[tuple[float, float]]] = {who: [] for who in calls}
    end = time.perf_counter() + budget_s
    while time.perf_counter() < end or min(map(len, rounds.values())) < least:
        for who, call in calls.items():
            rounds[who].append(_round(call, counts[who]))
    return {
        kind: {who: statistics.median(r[place] for r in found) for who, found in rounds.items()}
        for place, kind in enumerate(("device", "host"))
    }


def allocated() -> int:
    """Bytes, after what nobody refers to has gone."""
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def peak_above(call: Callable[[], Any]) -> int:
    """Bytes that a call allocates at most, beyond what is there before it. The allocator gives free blocks back before, as
    it hands one out whole where no more than a MiB would be left, and which ones there are depends on who ran before."""
    before = allocated()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def host_microseconds(calls: Calls, count: int = 300, rounds: int = 25) -> dict[str, float]:
    """Per call, the best round of each: until the host has asked for the work. A round is short enough for the queue of
    launches, so that the host never waits for the device."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(rounds):
        for who, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(count):
                call()
            best[who] = min(best[who], (time.perf_counter() - start) / count * 1e6)
    return best
