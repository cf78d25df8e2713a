"""A small BERT over sizes that change: how long the first pass over them takes, compiling included, and a second one; and
what a set of sizes adds to its first call once all is compiled.

    python -m benchmarks.dynamic [--sets 14] [--seed 1] [--out DIR]

Random pairs of batch and length, the same for each contestant: eager, smelt as it is, with `dynamic=True` and with fixed
sizes, and torch.compile with `dynamic=True`. Each result is compared with eager's. Writes dynamic.md. Run it on an
otherwise idle machine; nothing is asserted of times.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import smelt
from benchmarks import measure
from smelt.report.inspect import entries, reasons

Sizes = list[tuple[int, int]]


def bert() -> torch.nn.Module:
    """Four layers of 256, with random weights."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=1000
    )
    return transformers.BertModel(config).eval()


def inputs(sizes: Sizes) -> list[dict[str, torch.Tensor]]:
    """Token ids and masks, (batch, length) each; the last token of the first text is padding."""
    made = []
    for batch, length in sizes:
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[0, -1] = 0
        made.append({"input_ids": torch.randint(1000, (batch, length)), "attention_mask": mask})
    return made


def seconds(model: Callable[..., Any], calls: list[dict[str, torch.Tensor]]) -> float:
    """Of one call with each."""
    start = time.perf_counter()
    for call in calls:
        model(**call)
    return time.perf_counter() - start


def added(model: Callable[..., Any]) -> float:
    """Milliseconds of CPU time by which a call with new sizes takes longer than others with these: the median of twelve
    small sets."""
    found = []
    for call in inputs([(10, length) for length in range(3, 15)]):
        times = []
        for _ in range(5):
            start = time.process_time()
            model(**call)
            times.append(time.process_time() - start)
        found.append(times[0] - statistics.median(times[1:]))
    return statistics.median(found) * 1e3


def row(name: str, model: Callable[..., Any], wanted: list[Any], calls: list[dict[str, torch.Tensor]]) -> str:
    """A line of the table."""
    first = seconds(model, calls)
    again = min(seconds(model, calls) for _ in range(5))
    for call, want in zip(calls, wanted):
        torch.testing.assert_close(model(**call).last_hidden_state, want, rtol=1e-3, atol=1e-4)
    smelts = name.startswith("smelt")
    count = f"{len(entries(model))}{', then eager' if reasons(model) else ''}" if smelts else "–"
    new = added(model)
    return f"| {name} | {first:.2f} | {again * 1e3 / len(calls):.1f} | {new:.2f} | {count} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=14, help="how many sets of sizes (default: 14)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()  # what earlier runs left there would be found
    draw = random.Random(options.seed)
    sizes = [(draw.randint(2, 9), draw.randint(2, 128)) for _ in range(options.sets)]
    model, calls = bert(), inputs(sizes)
    contestants: dict[str, Callable[..., Any]] = {
        "eager": model,
        "smelt": smelt.compile(model),
        "smelt, dynamic=True": smelt.compile(model, dynamic=True),
        "smelt, fixed sizes": smelt.compile(model, dynamic=False),
        "torch.compile, dynamic=True": torch.compile(model, dynamic=True),
    }
    with torch.no_grad():
        wanted = [model(**call).last_hidden_state for call in calls]
        rows = [row(name, contestant, wanted, calls) for name, contestant in contestants.items()]
    facts = [
        str(datetime.date.today()),
        measure.machine()["cpu"],
        f"{torch.get_num_threads()} threads",
        f"torch {torch.__version__}",
    ]
    text = "\n".join(
        [
            "# Sizes that change",
            "",
            f"{', '.join(facts)}. Command: `python -m benchmarks.dynamic --sets {options.sets} --seed {options.seed}`.",
            f"BERT, 4 layers of 256, inference, {len(set(sizes))} pairs of batch and length.",
            "",
            "| | first pass, s | a call of a later pass, ms | a new set of sizes adds, ms | entries |",
            "| --- | --- | --- | --- | --- |",
            *rows,
        ]
    )
    print(text)
    (options.out / "dynamic.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
