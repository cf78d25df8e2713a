"""A slice of torch's operator database: gradients of the first samples are eager's. `make sweep` runs all of it."""

from __future__ import annotations

import pytest
from torch.testing._internal.common_methods_invocations import op_db

from benchmarks.sweep_ops import Sweep, run_operator
from tests.harness.catalogue import DEVICE

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
