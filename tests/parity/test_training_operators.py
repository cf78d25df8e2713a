"""A slice of torch's operator database: gradients of the first samples are eager's. `make sweep` runs all of it; what it
takes for equal in half precision."""

from __future__ import annotations

import pytest
import torch

from benchmarks.sweep_ops import Sweep, nearer, run_operator
from tests.harness.catalogue import DEVICE
from tests.harness.operator_database import op_db

SAMPLES = 4
OPERATORS = [
    "add",
    "mul",
    "div",
    "exp",
    "log",
    "sqrt",
    "tanh",
    "sigmoid",
    "abs",
    "clamp",
    "pow",
    "where",
    "maximum",
    "atan2",
    "sum",
    "mean",
    "amax",
    "var",
    "prod",
    "cumsum",
    "logsumexp",
    "softmax",
    "log_softmax",
    "matmul",
    "bmm",
    "addmm",
    "einsum",
    "linalg.solve",
    "gather",
    "index_add",
    "index_select",
    "scatter_add",
    "cat",
    "split",
    "permute",
    "nn.functional.pad",
    "nn.functional.gelu",
    "nn.functional.layer_norm",
    "nn.functional.conv2d",
    "nn.functional.max_pool2d",
    "nn.functional.cross_entropy",
    "nn.functional.embedding",
    "nn.functional.scaled_dot_product_attention",
]


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients(name: str) -> None:
    found = [op for op in op_db if op.name == name]
    assert found, f"no operator {name} in the database"
    for op in found:
        row = run_operator(op, Sweep("float64", DEVICE, gradients=True, samples=SAMPLES))
        assert not row["wrong"] and row["agree"] == row["samples"] > 0, row
        assert not row["not_ahead"], row


def test_the_nearer_result() -> None:
    exact = torch.tensor([1.0, 1000.0], dtype=torch.float64)
    eager = torch.tensor([1.0625, 1000.0], dtype=torch.bfloat16)
    ours = torch.tensor([1.0, 1000.0], dtype=torch.bfloat16)
    assert nearer(ours, eager, exact)
    assert nearer((ours, eager), (eager, eager), (exact, exact))
    assert not nearer(eager, ours, exact), "the farther one"
    assert not nearer(ours + torch.tensor([0.0, 64.0]), eager, exact), "another element is wrong"
    wide, theirs = ours.float(), eager.float()
    assert nearer(wide, theirs, exact)
    twice = exact.float() + 2 * (theirs - exact.float())
    assert nearer(twice, theirs, exact) and not nearer(twice + (theirs - exact.float()), theirs, exact)
    assert not nearer(ours, eager[:1], exact) and not nearer(ours * torch.nan, eager, exact)
    close = torch.tensor([1.0078125, 1000.0], dtype=torch.bfloat16)  # a unit in the last place of eager's
    assert nearer(close, ours, exact)
