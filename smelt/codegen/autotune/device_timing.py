"""Seconds per call on a GPU, by its own clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

FINALISTS = 4
ROUNDS = 7
ROUND_S = 2e-3  # of the device, about
MOST_CALLS = 40
FILLERS = 64

Key = TypeVar("Key")
Call = Callable[[], object]


def seconds(calls: Mapping[Key, Call], first: Key, device: torch.device) -> dict[Key, float]:
    """Seconds of one call of each, on the current stream of `device`, which has run them once. `first`, and the
    fastest few, are measured several times in turns; the others once."""
    with torch.cuda.device(device):
        clock = _Clock(device)
        once = {key: clock.time(call, clock.count(call)) for key, call in calls.items()}
        best = sorted((key for key in calls if key != first), key=lambda key: once[key])[:FINALISTS]
        finalists = [first, *best]
        counts = {key: max(1, min(MOST_CALLS, int(ROUND_S / max(once[key], 1e-7)))) for key in finalists}
        rounds: dict[Key, list[float]] = {key: [] for key in finalists}
        for _ in range(ROUNDS):
            for key in finalists:
                rounds[key].append(clock.time(calls[key], counts[key]))
    return once | {key: statistics.median(found) for key, found in rounds.items()}


class _Clock:
    """Events around calls, behind other work: the device begins when everything is queued, so that the host's time
    does not count. That work overwrites the device's cache."""

    def __init__(self, device: torch.device) -> None:
        cached = torch.cuda.get_device_properties(device).L2_cache_size
        self.memory = torch.empty(max(2 * cached, 1 << 26), dtype=torch.uint8, device=device)
        self.fillers = 4

    def count(self, call: Call) -> int:
        """The number of calls in the first round."""
        return max(1, min(10, int(ROUND_S / max(self.time(call, 1), 1e-7))))

    def time(self, call: Call, count: int) -> float:
        """Seconds of a call, of `count`."""
        while True:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            for _ in range(self.fillers):
                self.memory.zero_()
            begin.record()
            for _ in range(count):
                call()
            is_idle = begin.query()  # the device was waiting for the host
            end.record()
            end.synchronize()
            if not is_idle or self.fillers >= FILLERS:
                return begin.elapsed_time(end) / 1e3 / count
            self.fillers *= 2
