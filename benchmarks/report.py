"""The HTML report of a large model: seconds to save it, its size, and seconds to open it and each of its views.

    python -m benchmarks.report [--layers 24] [--out FOLDER]

The model is a BERT in training: one step under `smelt.explain`. Chromium is what the tests find (tests/harness/browser.py);
a view is open when it has drawn and the browser can take the next event.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers

import smelt
from benchmarks import measure
from smelt.report.explanation import Explanation
from tests.harness.browser import chromium, opened, visit

RESULTS = Path(__file__).parent / "results"
VIEWS = ("source", "breaks", "fallbacks", "recompiles", "entries", "graphs", "kernels", "memory", "overview")


def explained(layers: int) -> Explanation:
    """What `smelt.explain` says of a forward and backward of a BERT with a loss."""
    config = transformers.BertConfig(
        hidden_size=256, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=1024, num_labels=2
    )
    model = transformers.BertForSequenceClassification(config).train()
    batch = {"input_ids": torch.randint(0, 1000, (4, 64)), "labels": torch.randint(0, 2, (4,))}

    def step(**inputs: Any) -> Any:
        loss = model(**inputs).loss
        loss.backward()
        return loss

    return smelt.explain(step)(**batch)


def main(layers: int, out: Path) -> None:
    """Measure, print, and write `report.md`."""
    explanation = explained(layers)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        path = Path(folder) / "report.html"
        start = time.perf_counter()
        explanation.save(path)
        rows = [("save", time.perf_counter() - start)]
        start = time.perf_counter()
        with opened(browser, path) as page:
            rows.append(("open", time.perf_counter() - start))
            for view in VIEWS:
                start = time.perf_counter()
                visit(page, view)
                rows.append((view, time.perf_counter() - start))
        size = path.stat().st_size
    host = measure.machine()
    lines = [
        "# The report of a large model",
        "",
        f"{date.today()}, {host['cpu']}, torch {host['torch']}; `python -m benchmarks.report --layers {layers}`. "
        f"A BERT of {layers} layers in training; the file has {size / 1e6:.1f} MB.",
        "",
        "| | seconds |",
        "| --- | --- |",
        *(f"| {name} | {seconds:.2f} |" for name, seconds in rows),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    (out / "report.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    main(options.layers, options.out)
