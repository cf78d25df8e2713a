"""Maximum flows equal minimum cuts, found by trying all cuts."""

import itertools
import random

import pytest

from smelt.autograd.max_flow import Network


def cut(edges, side):
    return sum(c for tail, head, c in edges if tail in side and head not in side)


@pytest.mark.parametrize("seed", range(40))
def test_flow_equals_the_minimum_cut(seed):
    choose = random.Random(seed)
    n = choose.randint(2, 8)
    edges = [
        (choose.randrange(n), choose.randrange(n), choose.choice([0, 1, 2, 5, 1 << 70]))
        for _ in range(choose.randint(0, 24))
    ]
    network = Network(n)
    for edge in edges:
        network.add(*edge)
    flow = network.maximize(0, n - 1)
    inner = range(1, n - 1)
    sides = [{0, *some} for k in range(n - 1) for some in itertools.combinations(inner, k)]
    assert flow == min(cut(edges, side) for side in sides)
    side = {i for i, is_reachable in enumerate(network.reachable(0)) if is_reachable}
    assert 0 in side and n - 1 not in side and cut(edges, side) == flow


def test_a_long_network_needs_no_recursion():
    network = Network(100_001)
    for i in range(100_000):
        network.add(i, i + 1, 2 + i % 7)
    assert network.maximize(0, 100_000) == 2
