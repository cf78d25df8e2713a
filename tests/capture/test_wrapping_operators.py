"""Higher-order operators that call a function, which torch's compiler sees: `wrap`, `strict_mode`, `out_dtype`, ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.foreach_map import foreach_map
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.strict_mode import strict_mode
from torch._higher_order_ops.wrap import wrap

import smelt
from smelt.report.inspect import reasons
from tests.harness.agreement import compare, observe

X = torch.arange(6.0).reshape(3, 2)
BYTES = torch.arange(9, dtype=torch.int8).reshape(3, 3) * 20
torch.manual_seed(0)
LAYER = nn.Linear(2, 2).requires_grad_(False)

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "wrap": lambda x: wrap(lambda y: y * 2 + 1, x),
    "wrap of ints and tuples": lambda x: wrap(lambda a, b, n: ((a * n).sum(), [b]), x, x + 1, x.shape[1]),
    "wrap by keyword": lambda x: wrap(lambda d, n=2: d["a"] * n + n, {"a": x}, n=3),
    "wrap of a module": lambda x: wrap(LAYER, x),
    "wrap in wrap": lambda x: wrap(lambda y: wrap(lambda z: z * x, y + 1), x),
    "wrap that raises": lambda x: wrap(lambda y: y @ y, x),
    "strict mode": lambda x: strict_mode(lambda y, z: (y * 2, z + 1), (x, x * 3)),
    "hints": lambda x: hints_wrapper(lambda y: y * 2 + 1, (x,), {}, hints={"outer": True}),
    "wrong hints": lambda x: hints_wrapper(lambda y: y * 2 + 1, (x,), {"a": 1}, hints={}),
    "product of another type": lambda x: out_dtype(torch.ops.aten.mul.Tensor, torch.float64, x, x),
    "bytes": lambda x: out_dtype(torch.ops.aten.mm.default, torch.int32, BYTES, BYTES) * x[0, 0],
    "map over lists": lambda x: foreach_map(torch.add, [x, x * 2], [x + 1, x]),
    "map of a function": lambda x: foreach_map(lambda a, b: a * b + 1, [x, x * 2], [x + 1, x]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_operators_that_call_a_function(name: str) -> None:
    program = PROGRAMS[name]
    compiled = smelt.compile(program, fullgraph=True)
    for x in (X, X + 1, torch.ones(4, 2), torch.ones(5, 2)):
        compare(observe(compiled, (x,), 0), observe(program, (x,), 0))


def test_side_effects_and_gradients_of_wrap() -> None:
    def program(x):
        calls = []
        y = wrap(lambda z: (calls.append(z.shape), z * z.sin())[1], x)
        y.sum().backward()
        return y, x.grad, calls

    eager, ours = (X.clone().requires_grad_() for _ in range(2))
    compare(observe(smelt.compile(program, fullgraph=True), (ours,), 0), observe(program, (eager,), 0))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: strict_mode(lambda y: y * y, (x,)),
        lambda x: out_dtype(torch.ops.aten.mul.Tensor, torch.float64, x, x),
        lambda x: hints_wrapper(lambda y: y * y, (x,), {}, hints={}),
    ],
)
def test_operators_without_a_backward_break_where_gradients_are_wanted(program: Callable[..., Any]) -> None:
    compiled = smelt.compile(program)
    results = [fn(X.clone().requires_grad_()) for fn in (program, compiled)]
    assert torch.equal(*results)
    assert "the higher-order operator" in str(reasons(compiled))
    for result in results:
        with pytest.raises(RuntimeError, match="Autograd not implemented"):
            result.sum().backward()
