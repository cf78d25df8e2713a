"""Guards on tensors some of whose sizes may be any: the native check and the Python one agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt import _native
from smelt.capture.environment.dynamic_sizes import with_any
from smelt.guards.changed_numbers import changed_sizes, size_source, stride_source
from smelt.guards.guard import Guard, first_failing
from smelt.guards.guard_failures import explain
from smelt.guards.source import Source
from smelt.guards.tensor_facts import ANY, tensor_facts
from smelt.guards.tree_layout import build

X = Source("arg", "x", None, 0)


def guard(tensor: torch.Tensor, *dims: int) -> Guard:
    return Guard("tensor", X, with_any(tensor_facts(tensor), dict.fromkeys(dims)))


# The dimensions that may be of any size, of a tensor of 4×6×8; then tensors, and whether the guard accepts them.
CALLS: dict[str, tuple[tuple[int, ...], torch.Tensor, bool]] = {
    "as before": ((0,), torch.empty(4, 6, 8), True),
    "longer": ((0,), torch.empty(9, 6, 8), True),
    "two": ((0,), torch.empty(2, 6, 8), True),
    "one": ((0,), torch.empty(1, 6, 8), False),
    "none": ((0,), torch.empty(0, 6, 8), False),
    "another fixed size": ((0,), torch.empty(9, 6, 7), False),
    "fewer dimensions": ((0,), torch.empty(9, 48), False),
    "more dimensions": ((0,), torch.empty(9, 6, 8, 1), False),
    "turned": ((0, 1), torch.empty(6, 4, 8).transpose(0, 1), False),
    "gaps between rows": ((0, 1), torch.empty(4, 6, 16)[:, :, :8], False),
    "gaps between matrices": ((0,), torch.empty(4, 12, 8)[:, :6], False),
    "in the middle": ((1,), torch.empty(4, 3, 8), True),
    "in the middle, gaps": ((1,), torch.empty(4, 5, 8)[:, :3], False),
    "the last": ((2,), torch.empty(4, 6, 5), True),
    "all": ((0, 1, 2), torch.empty(3, 5, 7), True),
    "all, one of them one": ((0, 1, 2), torch.empty(3, 1, 7), False),
    "another dtype": ((0,), torch.empty(9, 6, 8, dtype=torch.float64), False),
    "gradients": ((0,), torch.empty(9, 6, 8, requires_grad=True), False),
}


@pytest.mark.parametrize("name", CALLS)
def test_which_tensors_are_accepted(name: str) -> None:
    dims, tensor, accepted = CALLS[name]
    guards = [guard(torch.empty(4, 6, 8), *dims)]
    tree: Any = _native.GuardTree(build(guards, []).native)
    for _ in range(3):  # the first look is a complete one, later ones are at a few words
        assert tree.check(torch.empty(4, 6, 8)) is not None
        assert (tree.check(tensor) is not None) is accepted
        assert (first_failing(guards, [tensor]) is None) is accepted


def test_a_tensor_that_changes_its_layout_is_looked_at_again() -> None:
    guards = [guard(torch.empty(4, 6), 0)]
    tree: Any = _native.GuardTree(build(guards, []).native)
    x = torch.empty(5, 6)
    assert all(tree.check(x) is not None for _ in range(3))
    x.resize_(7, 6)
    assert tree.check(x) is not None
    x.t_()
    assert tree.check(x) is None
    x.t_().resize_(1, 6)
    assert tree.check(x) is None


def test_texts_show_which_sizes_may_be_any() -> None:
    wanted = guard(torch.empty(4, 6, 8), 0, 1)
    assert "shape=[*, *, 8], stride=[*, 8, 1]" in wanted.text
    text = str(explain([wanted], [torch.empty(1, 6, 8)]))
    assert "expected [*, *, 8], found [1, *, 8]" in text


def test_sizes_that_changed_are_found() -> None:
    before = torch.empty(4, 6, 8)
    sizes = {(size_source(X, 1).path, 6), (size_source(X, 2).path, 8)}
    strides = {(stride_source(X, 0).path, 48), (stride_source(X, 1).path, 8)}
    assert changed_sizes([guard(before)], [torch.empty(4, 5, 9)]) == sizes | strides
    assert changed_sizes([guard(before, 1)], [torch.empty(4, 5, 8)]) == {
        (size_source(X, 1).path, ANY),
        (stride_source(X, 0).path, ANY),
    }
    for other in (torch.empty(4, 48), torch.empty(9, 6, 8, dtype=torch.int64), 3):
        assert changed_sizes([guard(before)], [other]) == set()
