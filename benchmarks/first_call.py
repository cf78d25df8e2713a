"""The first compiled call of a fresh process, on the first example of the demo: prints its seconds as JSON.

    python -m benchmarks.first_call smelt | torch.compile

Imports are not counted: torch.compile's modules are imported beforehand, and its caches are an empty folder.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="first-call-")

import torch

import smelt
from benchmarks.demo import A, f


def main() -> None:
    (who,) = sys.argv[1:]
    if who == "torch.compile":
        importlib.import_module("torch._dynamo")
        importlib.import_module("torch._inductor.compile_fx")
    compiled = {"smelt": smelt.compile, "torch.compile": torch.compile}[who](f)
    x, module = torch.randn(5, 5, 5), A()
    with torch.no_grad():
        start = time.perf_counter()
        got = compiled(x, module)
        seconds = time.perf_counter() - start
        torch.testing.assert_close(got, f(x, module))
    print(json.dumps({"first_s": seconds}))


if __name__ == "__main__":
    main()
