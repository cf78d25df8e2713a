"""The first compiled call of a fresh process, on the first example of the demo: prints its seconds as JSON.

    python -m benchmarks.first_call smelt | torch.compile

Imports are not counted: torch.compile's modules are imported beforehand, and its caches are an empty folder.
"""

from __future__ import annotations

import json
import sys
import time

import torch

import smelt
from benchmarks import cold  # noqa: F401  (first, its import empties caches)
from benchmarks.demo import A, f


def main() -> None:
    (who,) = sys.argv[1:]
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
