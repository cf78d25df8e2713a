"""What smelt adds to `import torch`: seconds of processor time (user and system), of fresh processes.

    python -m benchmarks.import_time [rounds]

Each row does what the rows above it do, and a bit more; the rows take turns, and the least of all rounds counts.
"""

from __future__ import annotations

import subprocess
import sys

ROWS = {
    "import torch": "",
    "import smelt": "import smelt",
    "smelt.compile(model), which imports the compiler": "compiled = smelt.compile(model)",
    "the first call of a small model": "compiled(torch.randn(4, 8))",
}
MODEL = "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))"
TELL = "import os; used = os.times(); print(used.user + used.system)"


def seconds(steps: list[str]) -> float:
    """Of a process that imports torch, makes a model, and does `steps`."""
    program = "\n".join(["import torch", MODEL, *steps, TELL])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    steps = list(ROWS.values())
    taken = [[seconds(steps[: row + 1]) for row in range(len(steps))] for _ in range(rounds)]
    least = [min(times) for times in zip(*taken)]
    for name, total, before in zip(ROWS, least, [0.0, *least]):
        print(f"{total:.2f} s, {total - before:+.2f} s  {name}")


if __name__ == "__main__":
    main()
