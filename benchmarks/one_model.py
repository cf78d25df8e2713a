"""One model in a process of its own: prints one line of JSON.

    python -m benchmarks.one_model "ResNet-50"            first calls, steady state side by side, errors
    python -m benchmarks.one_model "ResNet-50" first      seconds of torch.compile's first call

torch.compile's modules are imported beforehand, so its first call counts compilation only; `benchmarks/cold.py` says which
caches it has. smelt keeps nothing on disk. Errors are those against eager in float64, of eager too.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

import smelt
from benchmarks import cold, errors, measure  # noqa: F401  (cold: first, its import sets caches)
from benchmarks.models import build, tensors
from smelt import events


def _first(call: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    out = call()
    return out, time.perf_counter() - start


def first(name: str) -> dict[str, float]:
    """An eager call comes before, so that what torch itself sets up once is not counted."""
    module, inputs = build(name)
    with torch.no_grad():
        module(**inputs)
        return {"first_s": _first(lambda: torch.compile(module)(**inputs))[1]}


def measure_model(name: str, rivals: bool = True, budget_s: float = 6.0) -> dict[str, Any]:
    module, inputs = build(name)
    seen: list[events.Event] = []
    with torch.inference_mode(False), torch.no_grad():
        eager, eager_first = _first(lambda: module(**inputs))
        ours = smelt.compile(module, fullgraph=True)
        with events.subscribed(seen.append):
            got, smelt_first = _first(lambda: ours(**inputs))
        contestants = {"eager": lambda: module(**inputs), "smelt": lambda: ours(**inputs)}
        exact = errors.double_of(module)(**errors.in_double(inputs))
        row: dict[str, Any] = {
            "model": name,
            "first_s": {"eager": eager_first, "smelt": smelt_first},
            "error": {
                "eager": errors.of_lists(tensors(eager), tensors(exact)),
                "smelt": errors.of_lists(tensors(got), tensors(exact)),
            },
            "graphs": {"smelt": sum(e.kind == "entry-installed" for e in seen)},
            "kernels": {"smelt": sum(e.data.get("kernels", 0) for e in seen if e.kind == "plan")},
            "stages_s": {"smelt": {e.name: e.data["seconds"] for e in seen if e.kind == "stage"}},
        }
        if rivals:
            theirs = torch.compile(module)
            got, first = _first(lambda: theirs(**inputs))
            row["first_s"]["torch.compile"] = first
            row["error"]["torch.compile"] = errors.of_lists(tensors(got), tensors(exact))
            counters = torch._dynamo.utils.counters
            row["graphs"]["torch.compile"] = counters["stats"]["unique_graphs"]
            row["kernels"]["torch.compile"] = torch._inductor.metrics.generated_kernel_count
            contestants["torch.compile"] = lambda: theirs(**inputs)
        row["call_s"] = measure.interleaved(contestants, budget_s)
    return row


def main() -> None:
    name, *rest = sys.argv[1:]
    print(json.dumps(first(name) if "first" in rest else measure_model(name, "--no-rivals" not in rest)))


if __name__ == "__main__":
    main()
