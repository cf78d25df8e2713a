"""Processes that import while another one measures: a fresh process for each figure, without waiting for its imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

READY = "ready"  # what such a process says once it has imported all that it needs


class Waiting:
    """`python -m module ...`, which says `READY` after its imports and begins with its work when `go` sends it a line."""

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  (a pipe that nobody reads would fill up)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**os.environ, **environment},
        )

    def ready(self) -> None:
        """Waits until its imports, or the process, are over: what is measured from then on, it does not disturb."""
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def go(self, timeout_s: float) -> dict[str, Any]:
        """The JSON that it prints last; {"failed": ...}, and its stderr shown, where it fails or takes longer."""
        try:
            out, _ = self._process.communicate("go\n", timeout_s)
        except subprocess.TimeoutExpired:
            self.stop()
            return {"failed": f"more than {timeout_s:.0f} s"}
        if self._process.returncode:
            return {"failed": self._why()}
        return json.loads(out.strip().splitlines()[-1])

    def stop(self) -> None:
        """Ends it, whatever it does."""
        self._process.kill()
        self._process.wait()

    def _why(self) -> str:
        self._said.seek(0)
        text = self._said.read()
        sys.stderr.write(text[-4000:])
        lines = text.strip().splitlines()
        return lines[-1][:300] if lines else f"exit {self._process.returncode}"
