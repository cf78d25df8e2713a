"""A new user's first hour on a clean clone: `make demo`, the README's first program, a timm model, a report.

    python .ci/first_hour.py [CLONE]

CLONE: where to put the clone (default: a temporary folder, removed at the end). Fails where a step fails, shows nothing for
more than `SILENCE` seconds, or takes more than twice as long as the text that announces it says. Needs Python, git, g++ and
make.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SILENCE = 20.0
SECONDS = {
    "half a minute": 30,
    "a minute": 60,
    "about a minute": 60,
    "a minute and a half": 90,
    "two minutes": 120,
}
# "== what: estimate"; the longest estimate first, as others are parts of it.
ESTIMATE = re.compile(rf"== .*: .*?({'|'.join(sorted(SECONDS, key=len, reverse=True))})")

TIMM = """
import timm, torch, torchvision, smelt
model = timm.create_model("resnet18", num_classes=10).eval()
x = torch.randn(2, 3, 96, 96)
compiled = smelt.compile(model)
with torch.no_grad():
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)
print("timm's resnet18: as eager")
"""


class Failed(Exception):
    """A step failed, was silent, or took longer than it said."""


def shown(*command: str, cwd: Path) -> str:
    """What a command prints, also shown here, with seconds. Raises Failed."""
    start = last = time.monotonic()
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    text, said, began = "", "", start
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while True:
            ready.select()
            read = os.read(process.stdout.fileno(), 65536).decode(errors="replace")
            now = time.monotonic()
            if now - last > SILENCE:
                process.kill()
                raise Failed(f"{' '.join(command)}: silent for {now - last:.0f} s after {text[-200:]!r}")
            last = now
            if said and (not read or "== " in read):
                check_estimate(said, now - began)
                said = ""
            if not read:
                break
            text += read
            print(f"{now - start:6.1f} {read}", end="", flush=True)
            if found := ESTIMATE.search(read):
                said, began = found[1], now
    if process.wait():
        raise Failed(f"{' '.join(command)}: status {process.returncode}")
    return text


def check_estimate(said: str, seconds: float) -> None:
    """Raise Failed for a step that took more than twice as long as it said. Quicker ones had less to download."""
    print(f"       said {said}, took {seconds:.0f} s", flush=True)
    if seconds > 2 * SECONDS[said]:
        raise Failed(f"a step that says {said!r} took {seconds:.0f} s")


def main(clone: Path) -> None:
    """Do it in a clone at this path."""
    shown("git", "clone", "--quiet", str(ROOT), str(clone), cwd=ROOT)
    shown("make", "demo", cwd=clone)
    python = str(clone / ".venv/bin/python")
    program = re.search(r"```python\n(.*?)```", (clone / "README.md").read_text(), re.S)
    assert program is not None
    shown(python, "-c", program[1], cwd=clone)
    shown(python, "-c", TIMM, cwd=clone)
    (clone / "first.py").write_text(program[1])
    shown(str(clone / ".venv/bin/smelt"), "report", "-o", "first.html", "first.py", cwd=clone)
    page = (clone / "first.html").read_text()
    if not page.startswith("<!DOCTYPE html>") or "Sequential" not in page:
        raise Failed("the report is no page about the model")
    print("the first hour: all right")


if __name__ == "__main__":
    try:
        if len(sys.argv) > 1:
            main(Path(sys.argv[1]).absolute())
        else:
            with tempfile.TemporaryDirectory() as folder:
                main(Path(folder) / "smelt")
    except Failed as failed:
        sys.exit(f"FAILED: {failed}")
