"""One model in a process of its own: first calls with cold caches, steady state side by side, largest error.

    python -m benchmarks.one_model "ResNet-50"      prints one line of JSON

torch.compile's modules are imported beforehand, so its first call counts compilation only; its caches are an empty
directory. smelt keeps nothing on disk.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

import smelt
from benchmarks import cold, measure  # noqa: F401  (cold: first, its import empties caches)
from benchmarks.models import build, tensors
from smelt import events


def _first(call: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    out = call()
    return out, time.perf_counter() - start


def largest_error(got: Any, want: Any) -> float:
    """Largest absolute difference, relative to the largest magnitude of the expected tensor (at least 1)."""
    pairs = list(zip(tensors(got), tensors(want), strict=True))
    return max(
        ((g.double() - w.double()).abs().max() / w.double().abs().max().clamp(min=1.0)).item()
        for g, w in pairs
        if w.numel()
    )


def measure_model(name: str, rivals: bool = True, budget_s: float = 6.0) -> dict[str, Any]:
    module, inputs = build(name)
    seen: list[events.Event] = []
    with torch.inference_mode(False), torch.no_grad():
        want, eager_first = _first(lambda: module(**inputs))
        ours = smelt.compile(module, fullgraph=True)
        with events.subscribed(seen.append):
            got, smelt_first = _first(lambda: ours(**inputs))
        contestants = {"eager": lambda: module(**inputs), "smelt": lambda: ours(**inputs)}
        row: dict[str, Any] = {
            "model": name,
            "first_s": {"eager": eager_first, "smelt": smelt_first},
            "error": {"smelt": largest_error(got, want)},
            "graphs": {"smelt": sum(e.kind == "entry-installed" for e in seen)},
            "kernels": {"smelt": sum(e.data.get("kernels", 0) for e in seen if e.kind == "plan")},
            "stages_s": {"smelt": {e.name: e.data["seconds"] for e in seen if e.kind == "stage"}},
        }
        if rivals:
            theirs = torch.compile(module)
            got, first = _first(lambda: theirs(**inputs))
            row["first_s"]["torch.compile"] = first
            row["error"]["torch.compile"] = largest_error(got, want)
            counters = torch._dynamo.utils.counters
            row["graphs"]["torch.compile"] = counters["stats"]["unique_graphs"]
            row["kernels"]["torch.compile"] = torch._inductor.metrics.generated_kernel_count
            contestants["torch.compile"] = lambda: theirs(**inputs)
        row["call_s"] = measure.interleaved(contestants, budget_s)
    return row


if __name__ == "__main__":
    print(json.dumps(measure_model(sys.argv[1], rivals="--no-rivals" not in sys.argv)))
