"""Programs of one graph with `fullgraph=True`, where another compilation breaks the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.errors import Unsupported
from smelt.report.inspect import reasons

A, B, C = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([3.0, float("nan"), -4.0]), torch.arange(3.0)


def _clamped(a: Any, b: Any) -> Any:
    limit = min(max(a.mean(), -1.0), 1.0)
    return a * limit + b


def _largest_norm(a: Any, b: Any) -> Any:
    return max(x.norm() for x in (a, b, a - b))


def _best_of_list(a: Any, b: Any) -> Any:
    scores = [(a * k - b).abs().sum() for k in range(4)]
    return min(scores), max(*scores), min([a.max()])


def _integers(a: Any, b: Any) -> Any:
    return b + max(a.argmax(), b.argmin(), 1)


@pytest.mark.parametrize("f", [_clamped, _largest_norm, _best_of_list, _integers])
@pytest.mark.parametrize("pair", [(A, C), (C, A), (A, B), (B, A), (C, C)])
def test_extremes_of_tensors(f: Callable[..., Any], pair: Any) -> None:
    compiled = smelt.compile(f, fullgraph=True)
    for a, b in (pair, (A * 2, B + 1), pair):
        torch.testing.assert_close(compiled(a, b), f(a, b), equal_nan=True)
    broken = smelt.compile(f)
    torch.testing.assert_close(broken(*pair), f(*pair), equal_nan=True)
    assert reasons(broken)


def test_extremes_that_a_tensor_cannot_hold() -> None:
    """The gradient of the tensor that is not chosen is None in eager, and a number decides the dtype."""
    x = A.clone().requires_grad_()
    with pytest.raises(Unsupported):
        smelt.compile(lambda x: max(x.sum(), x.norm()), fullgraph=True)(x)
    with pytest.raises(Unsupported):
        smelt.compile(lambda x: max(x.argmax(), 0.5), fullgraph=True)(A)
    with pytest.raises(RuntimeError, match="ambiguous"):
        smelt.compile(lambda x: max(x, x + 1), fullgraph=True)(A)
    with pytest.raises(TypeError, match="at least 1 argument"):
        smelt.compile(lambda x: max(), fullgraph=True)(A)


class Attention(torch.nn.Module):
    @functools.lru_cache(maxsize=4)  # noqa: B019
    def mask(self, n: int, like: torch.Tensor) -> torch.Tensor:
        return torch.ones(n, n, dtype=like.dtype).tril()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mask(x.shape[0], x * 2) @ x


def test_cached_functions_of_tensors() -> None:
    @functools.cache
    def shifted(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return x + by

    def f(x: torch.Tensor) -> Any:
        return shifted(x), shifted(x.sin(), by=2.0)

    for program in (f, Attention()):
        compiled = smelt.compile(program, fullgraph=True)
        for x in (torch.ones(3, 2), torch.zeros(4, 2)):
            torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("backend", ["smelt", "eager"])
def test_numbers_in_tensors_where_nothing_is_dynamic(backend: str) -> None:
    def f(x: torch.Tensor, s: torch.Tensor) -> Any:
        return x * float(s + 1) if s > 2 else (x, s.item())

    compiled = smelt.compile(f, fullgraph=True, dynamic=False, backend=backend)
    for value in (1.0, 1.5, 3.0, 4.0):
        for shape in ((), (1,), (1, 1)):
            s = torch.full(shape, value)
            torch.testing.assert_close(compiled(A, s), f(A, s))


def test_whether_a_checkpoint_is_valid() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if torch.autograd._is_checkpoint_valid() else x - 1

    compiled = smelt.compile(f, fullgraph=True)
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: seen.append((compiled(A), f(A))))
    compiled(A)
    y.sum().backward(inputs=[x], retain_graph=True)
    y.sum().backward()
    assert len(seen) == 2 and all(torch.equal(*pair) for pair in seen)
    assert not torch.equal(seen[0][0], seen[1][0])


def _rows(x: torch.Tensor) -> Any:
    return torch.arange(3)[: torch._shape_as_tensor(x)[0]], x + torch._shape_as_tensor(x.T)[1]


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_shapes_as_tensors(dynamic: bool | None) -> None:
    compiled = smelt.compile(_rows, fullgraph=True, dynamic=dynamic)
    for n in (2, 3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(n, 2)), _rows(torch.ones(n, 2)))
