"""One model in a process of its own, which imports, says that it is ready, waits for a line on stdin, and prints one line
of JSON.

    python -m benchmarks.gpu.one_model first "BERT base, 32×128" smelt          seconds of the first call or step
    python -m benchmarks.gpu.one_model steady "BERT base, 32×128" eager,smelt   calls side by side, memory, graphs
    python -m benchmarks.gpu.one_model errors "BERT base, 32×128" eager,smelt   against eager in float64

With `--training`, steps. `benchmarks/gpu/processes.py` starts such a process while another one measures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks import errors
from benchmarks.gpu import contestants, device, timing
from benchmarks.gpu.models import Work, build, drop_nothing
from benchmarks.gpu.processes import READY
from smelt import events

Options = argparse.Namespace


def first(options: Options) -> dict[str, Any]:
    """An eager call comes before, so that what torch and CUDA set up once is not counted."""
    (who,) = options.contestants
    work = Work(build(options.model, options.batch), options.training)
    work.run(work.module)
    compiled = contestants.made(who, work.module)
    stages: dict[str, float] = {}

    def listen(event: events.Event) -> None:
        if "seconds" in event.data:
            key = event.name if event.kind == "stage" else event.kind
            stages[key] = stages.get(key, 0.0) + event.data["seconds"]

    with events.subscribed(listen):
        _, seconds = timing.first_call(lambda: work.run(compiled))
    return {"first_s": {who: seconds}, "stages_s": {who: stages}}


def steady(options: Options) -> dict[str, Any]:
    """Each contestant is compiled and its memory measured before the next one comes, then all run in turn."""
    work = Work(build(options.model, options.batch), options.training)
    work.run(work.module)
    given = timing.allocated()
    row: dict[str, Any] = {"graphs": {}, "kernels": {}, "peak_bytes": {}, "again_s": {}}
    calls: dict[str, Callable[[], Any]] = {}
    for who in options.contestants:
        before = timing.allocated()
        seen: list[events.Event] = []
        call = partial(work.run, contestants.made(who, work.module))
        with events.subscribed(seen.append):
            row["again_s"][who] = timing.first_call(call)[1]
            call()
        held = timing.allocated() - before  # what the contestant keeps from call to call
        row["peak_bytes"][who] = given + held + timing.peak_above(call)
        row["graphs"][who], row["kernels"][who] = _compiled(who, seen)
        calls[who] = call
    times = timing.interleaved(calls, options.seconds)
    return {**row, "call_s": times["device"], "host_s": times["host"]}


def _compiled(who: str, seen: list[events.Event]) -> tuple[list[int], int]:
    """How many graphs, of smelt those of backwards too, and how many kernels were generated."""
    if contestants.is_compiler(who, "smelt"):
        graphs = [sum(e.kind == kind for e in seen) for kind in ("entry-installed", "backward-compiled")]
        return graphs, sum(e.data.get("kernels", 0) for e in seen if e.kind == "plan")
    if contestants.is_compiler(who, "torch.compile"):
        return [torch._dynamo.utils.counters["stats"]["unique_graphs"]], (
            torch._inductor.metrics.generated_kernel_count
        )
    return [], 0


def against_float64(options: Options) -> dict[str, Any]:
    """Errors of all results, or in training of the first and of all gradients, by contestant; without dropout."""
    built = build(options.model, options.batch)
    drop_nothing(built[0])
    largest = errors.of_gradients if options.training else errors.largest
    exact = Work(built, options.training, exact=True)
    want = exact.outcome(exact.module)
    del exact
    work = Work(built, options.training)
    row: dict[str, Any] = {"error": {}, "overall_error": {}}
    for who in options.contestants:
        got = work.outcome(contestants.made(who, work.module))
        row["error"][who], row["overall_error"][who] = largest(got, want), errors.overall(got, want)
    return row


PARTS = {"first": first, "steady": steady, "errors": against_float64}


def _options() -> Options:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("model")
    parser.add_argument("contestants", type=contestants.names)
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--seconds", type=float, default=6.0, help="of timing (default: 6)")
    return parser.parse_args()


def main() -> None:
    options = _options()
    contestants.prepare(options.contestants)
    print(READY, flush=True)
    if not sys.stdin.readline():
        return  # whoever started this has gone
    device.ready()
    print(json.dumps(PARTS[options.part](options)))


if __name__ == "__main__":
    main()
