"""Walks over nested arguments keep the classes of containers and never look into leaves."""

import collections

import pytest
import torch

from smelt.graph.ir import Node
from smelt.graph.pytree import leaves, map_leaves

Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "tree, doubled",
    [
        (3, 6),
        ([1, (2, [3])], [2, (4, [6])]),
        ({"a": 1, "b": [2]}, {"a": 2, "b": [4]}),
        (Pair(1, "x"), Pair(2, "x")),
        (torch.Size([2, 3]), torch.Size([4, 6])),
        (slice(1, None, 2), slice(2, None, 4)),
        ((None, 1.5, "ab"), (None, 1.5, "ab")),
    ],
)
def test_map_keeps_containers(tree, doubled):
    found = map_leaves(tree, int, lambda n: 2 * n)
    assert found == doubled
    assert type(found) is type(doubled)


def test_results_of_torch_are_containers():
    found = map_leaves(torch.ones(2, 2).max(0), torch.Tensor, lambda t: t.to("meta"))
    assert type(found) is torch.return_types.max
    assert found.values.device.type == "meta"


def test_leaves_are_in_order_and_not_looked_into():
    node = Node("placeholder", "x", ([1, 2],), {}, "x")
    assert leaves([{"a": node}, slice(None, node), (node, 7)], Node) == [node, node, node]
    assert leaves([1, (2.0, True), {"k": 3}], int) == [1, True, 3]
    assert leaves([1, (2.0, "x")], (int, float)) == [1, 2.0]
    assert leaves("text", Node) == []
