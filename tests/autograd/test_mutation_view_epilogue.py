"""Results that are views: the autograd graph that a caller sees behind them is eager's."""

import pytest
import torch

import smelt


def two_views_of_one(c):
    parts = torch.view_as_real(c * 2)
    return parts[..., 0], parts[..., 1]


def views_at_several_depths(x):
    rows = (x * 3).view(2, 6)
    columns = rows.t()
    return columns[0], columns[1:3], rows[0].view(3, 2)


def two_calls(x):
    y = x * 3
    return y.view(2, 6)[0], y.view(2, 6)[1]


def a_view_of_an_input_and_its_parts(x):
    rows = x.view(3, 4)
    return rows[0], rows[1], x + 1


def parts_of_an_input(x):
    return x.unbind()


def parts_of_a_part(x):
    first, second = (x * 3).view(2, 6).unbind()
    return *first.split(2), *second.split(3)


def graph_of(results):
    """The autograd nodes behind `results` by name and by which of them are one node."""
    numbers = {}

    def of(node, depth):
        if node is None or depth == 0:
            return None
        number = numbers.setdefault(node, len(numbers))
        return node.name(), number, [of(parent, depth - 1) for parent, _ in node.next_functions]

    return [of(result.grad_fn, 2) for result in results[:2]]


@pytest.mark.parametrize(
    ("f", "x"),
    [
        (two_views_of_one, torch.randn(3, dtype=torch.complex64)),
        (two_views_of_one, torch.randn(0, dtype=torch.complex64)),
        (views_at_several_depths, torch.randn(12)),
        (two_calls, torch.randn(12)),
        (a_view_of_an_input_and_its_parts, torch.randn(12)),
        (parts_of_an_input, torch.randn(12)),
        (parts_of_a_part, torch.randn(12)),
    ],
)
def test_results_share_the_views_that_eager_shares(f, x):
    def run(f):
        leaf = x.clone().requires_grad_()
        results = f(leaf)
        graph = graph_of(results)
        sum(r.sum() * (i + 1) for i, r in enumerate(results)).backward()
        return graph, [r.detach() for r in results], leaf.grad

    eager, compiled = run(f), run(smelt.compile(f, fullgraph=True))
    assert compiled[0] == eager[0]
    torch.testing.assert_close(compiled[1:], eager[1:], equal_nan=True, rtol=0, atol=0)
