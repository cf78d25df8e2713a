"""An operator with a wrong lowering, for the duration of a context or of a script:

python -m tests.harness.wrong_lowering aten.mul.Tensor script.py
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch

import smelt
from smelt.loops.lowering_builder import Builder
from smelt.ops.registry import REGISTRY


@contextmanager
def wrong(name: str) -> Iterator[None]:
    """What the lowering of the operator `name` gives is twice what it should be, in all that is compiled meanwhile."""
    smelt.compile(lambda: None)  # imports the compiler, and with it all rows
    op = attrgetter(name)(torch.ops)
    right = REGISTRY.row(op)
    lowering = right.lowering
    assert lowering is not None, f"{name} has no lowering"
    rows = REGISTRY._rows

    def twice(b: Builder, *args: Any, **kwargs: Any) -> Any:
        return b.pointwise(lambda u: u + u, [lowering(b, *args, **kwargs)])

    rows[op] = replace(right, lowering=twice)
    try:
        yield
    finally:
        rows[op] = right


if __name__ == "__main__":
    _, operator_name, script = sys.argv
    with wrong(operator_name):
        runpy.run_path(script, run_name="__main__")
