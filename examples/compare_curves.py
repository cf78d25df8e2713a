"""Runs train_gpt.py eager and compiled, each in a process of its own, and compares and plots the two loss curves.

    python examples/compare_curves.py [--plot docs/train_gpt.png] [options of train_gpt.py]

Needs matplotlib (requirements/examples.txt).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

SCRIPT = Path(__file__).parent / "train_gpt.py"
Curve = list[dict[str, Any]]


def run(compiler: str, folder: Path, arguments: list[str]) -> Curve:
    out = folder / f"{compiler}.jsonl"
    command = [sys.executable, str(SCRIPT), *arguments, "--compile", compiler, "--out", str(out)]
    print(" ".join(command[1:]), flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in out.read_text().splitlines()]


def column(curve: Curve, name: str) -> list[float]:
    return [row[name] for row in curve if name in row]


def differences(eager: Curve, compiled: Curve) -> list[float]:
    """How far the losses lie apart at each step."""
    return [abs(a - b) for a, b in zip(column(eager, "loss"), column(compiled, "loss"), strict=True)]


def plot(eager: Curve, compiled: Curve, path: Path) -> None:
    steps = column(eager, "step")
    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(8, 5), height_ratios=(3, 1), layout="constrained"
    )
    above.plot(steps, column(eager, "loss"), color="#888888", linewidth=3, label="eager")
    above.plot(steps, column(compiled, "loss"), color="#c0392b", linewidth=1, label="smelt")
    evaluated = [row["step"] for row in compiled if "evaluation" in row]
    above.plot(evaluated, column(eager, "evaluation"), "o", color="#888888", label="eager, evaluation")
    above.plot(evaluated, column(compiled, "evaluation"), "+", color="#c0392b", label="smelt, evaluation")
    above.set_ylabel("loss per character")
    above.legend(frameon=False)
    below.semilogy(steps, [max(d, 1e-9) for d in differences(eager, compiled)], color="#c0392b", linewidth=1)
    below.set_ylabel("difference")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=80)


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--plot", type=Path, default=SCRIPT.parents[1] / "docs" / "train_gpt.png")
    own, passed_on = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        eager, compiled = (run(compiler, Path(folder), passed_on) for compiler in ("none", "smelt"))
    apart = differences(eager, compiled)
    step = max(range(len(apart)), key=apart.__getitem__)
    for name, curve in (("eager", eager), ("smelt", compiled)):
        ms = statistics.median(column(curve, "ms"))
        print(f"{name}: last loss {curve[-1]['loss']:.4f}, median {ms:.1f} ms per step")
    print(f"largest difference of the losses: {apart[step]:.1e}, at step {step} of {len(apart)}")
    print(f"graphs after each step: {sorted(set(column(compiled, 'graphs')))}")
    plot(eager, compiled, own.plot)
    print(f"plotted to {own.plot}")


if __name__ == "__main__":
    main()
