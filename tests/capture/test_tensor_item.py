"""`item()` of environment tensors of one element, and of simple arithmetic on them: one graph for all values, without a
break.

Each program runs eagerly and compiled over several values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.report import inspect

X = torch.arange(4.0)
VALUES = (1.5, -2.25, 0.1, 3.0)


def _scaled(x: Any, s: Any) -> Any:
    return x * s.item()


def _after_writes(x: Any, s: Any) -> Any:
    s.mul_(0.3)
    s.add_(1e-3)
    return x * s.item(), s


def _counted(x: Any, s: Any) -> Any:
    s += 1
    return x * 0.5 ** s.item(), s


def _copied(x: Any, s: Any) -> Any:
    y = torch.tensor(0.0)
    y.copy_(s)
    y.mul_(3)
    return x + y.item(), y


def _computed(x: Any, s: Any) -> Any:
    rate = (s / 3 - 0.1) * 0.7
    return torch.add(x, x, alpha=-rate), x.item() if x.dim() == 0 else rate.item()


def _returned(x: Any, s: Any) -> Any:
    return s.item(), s.item() * 2


def _detached(x: Any, s: Any) -> Any:
    total = torch.zeros(()).detach()
    total += 2
    return x * total.item() * s.item()


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    f.__name__.strip("_"): f
    for f in (_scaled, _after_writes, _counted, _copied, _computed, _returned, _detached)
}


def _run(f: Any, dtype: torch.dtype) -> list[Any]:
    seen = []
    for value in VALUES:
        s = torch.tensor(value, dtype=dtype)
        seen.append((f(X.to(dtype), s), s))
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "smelt"])
def test_numbers_in_tensors(name: str, dtype: torch.dtype, backend: str) -> None:
    """The number that Python reads is equal to eager's, bit for bit."""
    compiled = smelt.compile(PROGRAMS[name], backend=backend)
    tolerance = {"rtol": 0, "atol": 0} if backend == "eager" else {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(_run(compiled, dtype), _run(PROGRAMS[name], dtype), **tolerance)
    assert inspect.reasons(compiled) == ()
    assert len(inspect.entries(compiled)) <= 2  # adding integers is exact, or it is not


def test_branches_are_guarded() -> None:
    def f(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x + 1 if s.item() > 0 else x - 1

    compiled = smelt.compile(f, backend="eager")
    torch.testing.assert_close(_run(compiled, torch.float32), _run(f, torch.float32))
    assert inspect.reasons(compiled) == () and len(inspect.entries(compiled)) == 2


def _warmed_up(x: Any, s: Any) -> Any:
    s.add_(1)
    return x * 2 if s > 2 else x - s


def _scaled_in_between(x: Any, s: Any) -> Any:
    s.mul_(2).sub_(0.5)
    is_large = (s > 2).logical_and(s * 3 < 100)
    return (x * 2 if is_large else x), s


def _contained(x: Any, s: Any) -> Any:
    s.sub_(0.5)
    return x + 1 if 1 in [s] else x


@pytest.mark.parametrize("f", [_warmed_up, _scaled_in_between, _contained])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_conditions_on_tensors_that_were_written(f: Any, shape: tuple[int, ...]) -> None:
    """Both branches are compiled once, for all values."""
    compiled = smelt.compile(f, fullgraph=True)
    for value in (*VALUES, *VALUES):
        s, t = torch.full(shape, value), torch.full(shape, value)
        torch.testing.assert_close(compiled(X, s), f(X, t))
        assert torch.equal(s, t)
    assert len(inspect.entries(compiled)) == 2


def _written_after(x: Any, s: Any) -> Any:
    is_large = s > 2
    s.mul_(3)
    return x * 2 if is_large else x


def _written_by_itself(x: Any, s: Any) -> Any:
    s.add_(s)
    return x * 2 if s > 2 else x


def _written_in_part(x: Any, s: Any) -> Any:
    s[0] += 1
    return x * 2 if s > 2 else x


@pytest.mark.parametrize("f", [_written_after, _written_by_itself, _written_in_part])
def test_conditions_on_writes_that_are_not_followed(f: Any) -> None:
    compiled = smelt.compile(f, options={"control_flow": "break"})
    for value in VALUES:
        s, t = torch.full((1,), value), torch.full((1,), value)
        torch.testing.assert_close(compiled(X, s), f(X, t))
        assert torch.equal(s, t)
    assert inspect.reasons(compiled)


def _shaped(x: Any, s: Any) -> Any:
    return x.repeat(abs(int(s.item())) + 1)


def _shown(x: Any, s: Any) -> Any:
    return x + float(f"{s.item():.2f}")


def _data(x: Any, s: Any) -> Any:
    return x * (x.sum() * s).item()


def _viewed(x: Any, s: Any) -> Any:
    s.view(1).mul_(2)
    return x * s.item()


def _read_before_a_write(x: Any, s: Any) -> Any:
    half = s * 0.5
    s.mul_(3)
    return x * half.item(), x * s.item()


def _in_a_list_of_floats(x: Any, s: Any) -> Any:
    return torch.ops.aten.upsample_nearest2d(x.view(1, 1, 1, -1), None, [1.0, abs(s.item()) + 1])


@pytest.mark.parametrize("f", [_data, _viewed, _read_before_a_write])
def test_numbers_that_the_graph_computes(f: Any) -> None:
    """The graph does not break, and another value does not recompile."""
    compiled = smelt.compile(f, backend="eager")
    torch.testing.assert_close(_run(compiled, torch.float32), _run(f, torch.float32))
    assert inspect.reasons(compiled) == ()
    assert len(inspect.entries(compiled)) == 1


@pytest.mark.parametrize("f", [_shaped, _shown, _in_a_list_of_floats])
def test_unknown_numbers_break_the_graph(f: Any) -> None:
    """The graph breaks, and another value does not recompile."""
    compiled = smelt.compile(f, backend="eager")
    torch.testing.assert_close(_run(compiled, torch.float32), _run(f, torch.float32))
    assert inspect.reasons(compiled) != ()
    assert len(inspect.entries(compiled)) == 1


def test_an_unknown_integer_is_unbacked() -> None:
    def f(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x * s.long().item()

    compiled = smelt.compile(f, backend="eager")
    torch.testing.assert_close(_run(compiled, torch.float32), _run(f, torch.float32))
    assert inspect.reasons(compiled) == () and len(inspect.entries(compiled)) == 1


def _inverse_count(x: Any, n: Any) -> Any:
    n.add_(1)
    return x * (1.0 / float(n))


def _compared_count(x: Any, n: Any) -> Any:
    n += 2
    y = x if float(n) > 6 else -x
    n.add_(3)
    return y * float(n)


def _count_written_by_a_view(x: Any, n: Any) -> Any:
    n.view(1).add_(1)
    return x * float(n)


def _doubled_count(x: Any, n: Any) -> Any:
    n.mul_(2)
    return x + float(n) / 3


@pytest.mark.parametrize(
    "f, n_entries",
    [(_inverse_count, 1), (_compared_count, 2), (_count_written_by_a_view, 1), (_doubled_count, 1)],
)
def test_counts_as_floats(f: Any, n_entries: int) -> None:
    """A count of the environment as a float: no break, and exact where a float cannot hold it."""
    compiled = smelt.compile(f, fullgraph=True)
    without_fullgraph = smelt.compile(f)
    for value in (3, 4, 12, 5, 7, 40, 2**53 + 1):
        expected, found = torch.tensor(value), torch.tensor(value)
        count = compiled if value < 2**53 else without_fullgraph
        torch.testing.assert_close(count(X, found), f(X, expected))
        assert torch.equal(found, expected)
    assert len(inspect.entries(compiled)) == n_entries


def _averaged(x: Any, n: Any) -> Any:
    running = torch.zeros(3), torch.ones(3)
    out = torch.nn.functional.batch_norm(x, *running, None, None, True, 1 / float(n))
    return out, running


def _average_of_unknown(x: Any, n: Any) -> Any:
    return _averaged(x, n * 2)


def _dropped(x: Any, n: Any) -> Any:
    torch.manual_seed(0)
    return torch.nn.functional.dropout(x, 1 / float(n * 3)), x * float(n)


@pytest.mark.parametrize("f", [_averaged, _average_of_unknown, _dropped])
def test_counts_as_parameters(f: Any) -> None:
    """Functions of torch whose parameter is computed from a count take it as it is, also where it is unbacked."""
    compiled = smelt.compile(f, fullgraph=True)
    for value in (2, 3, 9):
        x = torch.rand(4, 3, 5, requires_grad=True)
        torch.testing.assert_close(compiled(x, torch.tensor(value)), f(x, torch.tensor(value)))
    assert len(inspect.entries(compiled)) == 1


@pytest.mark.parametrize(
    "kind, shape", [(torch.nn.BatchNorm1d, (6, 3)), (torch.nn.BatchNorm2d, (2, 3, 5, 4))]
)
def test_a_batch_norm_with_cumulative_averages(kind: Any, shape: tuple[int, ...]) -> None:
    eager = torch.nn.Sequential(kind(3, momentum=None), torch.nn.Tanh())
    with torch.no_grad():
        eager[0].weight.uniform_(), eager[0].bias.uniform_()
    copied = copy.deepcopy(eager)
    compiled = smelt.compile(copied, fullgraph=True)
    for step in range(5):
        if step == 3:
            eager.eval(), compiled.eval()
        x = torch.randn(shape) * 3 + 1
        results = []
        for module in (eager, compiled):
            module.zero_grad()
            results.append(module(x))
            results[-1].square().sum().backward()
        torch.testing.assert_close(*results)
        torch.testing.assert_close(dict(copied.named_buffers()), dict(eager.named_buffers()))
        for a, b in zip(copied.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    assert inspect.reasons(compiled) == ()
