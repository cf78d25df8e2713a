"""docs/add-an-operator.md, followed: the row it shows, added to the module that it names, does what it says there."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add-an-operator.md").read_text(encoding="utf-8")
ROW, TEST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MODULE = re.search(r"at the end of `smelt/ops/(\w+)\.py`", PAGE).group(1)

PROGRAM = """
import torch
import smelt.ops.{module} as family
from smelt.autograd.recompute_classes import class_of
from smelt.targets.cpu import out_variant
from smelt.graph.ir import Node
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import Operator, row
from tests.harness.scheduled import check, externs, scheduled

op = torch.ops.aten.special_entr.default
before = externs(scheduled(torch.special.entr, torch.ones(3))[0])
assert (row(op), before) == (Operator(), [op])
exec(compile(open(0).read(), "the row", "exec"), vars(family))

{test}
assert out_variant(op) is torch.ops.aten.special_entr.out
assert class_of(Node("call_function", op, (), {{}}, "entr")) is Class.TRANSCENDENTAL

import smelt
with torch.no_grad():
    assert torch.equal(smelt.compile(entropy)(torch.arange(4)), entropy(torch.arange(4)))
    torch.testing.assert_close(smelt.compile(entropy)(x), entropy(x), equal_nan=True)
"""


def test_the_row_of_the_page():
    """In a process of its own: a registry has no way to forget."""
    program = PROGRAM.format(module=MODULE, test=TEST)
    done = subprocess.run(
        [sys.executable, "-c", program], input=ROW, text=True, capture_output=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
