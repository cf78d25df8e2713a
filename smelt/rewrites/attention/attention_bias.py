"""What is added to the scores, as one tensor that the kernel takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from smelt.graph.ir import Node
from smelt.ops.node_builders import Make
from smelt.rewrites.attention.attention_pattern import Attention, Refused, Step
from smelt.rewrites.attention.element_maps import Places
from smelt.rewrites.attention.value_facts import ABSORBS, exact_in, hides_rows, is_moderate

aten = torch.ops.aten
INF = float("inf")
HUGE = 1e38  # kernels compute with powers of two: a number of twice that, times log2(e), would be infinite
MULTIPLE = 16  # elements that rows of a bias in memory are multiples of


@dataclass(frozen=True)
class Bias:
    """`value`, [b, h, l, s] of the dtype of the queries, is added to the scores; None for nothing.

    Attributes:
        blind: rows [.., l or 1, 1] whose scores are all to be 0, as they see nothing; None if none is such.
        cut: whether a mask fills in the scores of those rows, so that they have no gradient; else a huge number is added.
        lost: rows [.., l or 1, 1] to all of whose scores minus infinity is added; None if there are none.
    """

    value: Node | None
    blind: Node | None = None
    cut: bool = True
    lost: Node | None = None


def heads_of(found: Attention) -> tuple[int, int]:
    """(b, h), whose product is the number of matrices: as the program has it where something is added. Raises Refused."""
    matrices = found.probabilities.spec.shape[-2:]
    count = found.q.spec.shape[0]
    wide = [s.node.spec.shape for s in found.steps if s.tensor is not None]
    seen = wide or [n.spec.shape for n in found.inside]
    four = {s[:2] for s in seen if len(s) == 4 and s[2:] == matrices}
    if len(four) == 1 and all(len(s) == 4 for s in wide):
        return four.pop()
    if not wide:
        return count, 1
    if four or any(len(s) != 3 for s in wide):
        raise Refused("scores have other dimensions where something is added")
    return count, 1


def check_bias(found: Attention, places: Places, backward: bool) -> None:
    """Raises Refused for tensors that a kernel would not add as the program does, or less exactly.

    The kernels' backward computes probabilities of what is added and the logarithm of a row's sum: where that is a huge
    number (a row that sees nothing but the lowest float), no digits are left for the sum.
    """
    q = found.q.spec
    for step in found.steps:
        if step.tensor is None:
            continue
        tensor = step.tensor.spec
        if tensor.device != q.device or not all(type(n) is int for n in tensor.shape):
            raise Refused("what is added to the scores is on a CPU")
        if (step.kind == "filled") is not (tensor.dtype is torch.bool):
            raise Refused(f"a mask of {tensor.dtype}")
        if (
            backward
            and step.kind == "added"
            and not (is_moderate(step.tensor, places) or _may_hide_rows(found, step, places))
        ):
            raise Refused("what is added to the scores may hide all of a row, which has gradients")
        if step.kind == "filled" or q.dtype is torch.float32 or is_rounded(found, step):
            continue
        if len(found.added) > 1 or found.weight(step) != 1 or not exact_in(step.tensor, q.dtype, places):
            raise Refused("what is added to the scores has more digits than queries")


def _may_hide_rows(found: Attention, step: Step, places: Places) -> bool:
    """Whether the sum with a step's tensor has rows of equal scores, if it has rows without one that is seen."""
    alone = len(found.added) == 1 and found.filled is None and found.weight(step) == step.number == 1
    return alone and step.tensor is not None and hides_rows(step.tensor, places)


def is_rounded(found: Attention, step: Step) -> bool:
    """Whether the program rounds the sum to the dtype of queries."""
    at = found.steps.index(step)
    sums = [s.node.spec.dtype for s in found.steps[at : at + 2]]
    return sums[0] is found.q.spec.dtype or (
        sums[-1] is found.q.spec.dtype and found.steps[at + 1].kind == "same"
    )


def bias_of(
    found: Attention, heads: tuple[int, int], make: Make, now: Mapping[Node, Node], places: Places
) -> Bias:
    """Writes what is added to the scores. `now`: the nodes that have the values of the given graph's."""
    dtype = found.q.spec.dtype
    total: Node | None = None
    for step in found.added:
        term = _term(_shaped(step, heads, make, now), found, step, make)
        total = term if total is None else make(aten.add.Tensor, total, term)
    filled = found.filled
    if total is not None and _may_hide_rows(found, found.added[0], places):
        most = make(aten.amax.default, total, [-1], True)
        hidden = make(aten.le.Scalar, most, ABSORBS), make(aten.gt.Scalar, most, -INF)
        rows = make(aten.logical_and.default, *hidden)
        total = make(aten.masked_fill.Scalar, total, rows, 0.0)
        nothing = make(aten.eq.Scalar, most, -INF)
        return Bias(_laid_out(total, found, heads, make), rows, cut=False, lost=nothing)
    if filled is None:
        if total is None:
            return Bias(None)
        return Bias(_laid_out(total, found, heads, make), lost=_lost(total, make))
    mask = _shaped(filled, heads, make, now)
    if not filled.where:
        mask = make(aten.logical_not.default, mask)
    if total is None:
        total = make(aten.full.default, list(mask.spec.shape), 0.0, dtype=dtype, device=mask.spec.device)
    total = make(aten.masked_fill.Scalar, total, mask, -INF)
    blind = lost = None
    if filled.number != -INF:  # rows in which nothing is seen: all scores are equal
        blind = make(aten.all.dim, mask, -1, True)
        total = make(aten.masked_fill.Scalar, total, blind, 0.0)
    if found.added or blind is None:
        lost = _lost(total, make)
    return Bias(_laid_out(total, found, heads, make), blind, lost=lost)


def _lost(total: Node, make: Make) -> Node:
    """Kernels give 0 for these rows, and 0 as the logarithm of their sums, which others may have as well."""
    return make(aten.eq.Scalar, make(aten.amax.default, total, [-1], True), -INF)


def _shaped(step: Step, heads: tuple[int, int], make: Make, now: Mapping[Node, Node]) -> Node:
    """The tensor of a step, of four dimensions, so that it is broadcast to [b, h, l, s] as it was to the scores."""
    assert step.tensor is not None
    tensor = now[step.tensor]
    if len(step.node.spec.shape) == 3 and len(tensor.spec.shape) == 3:
        return make(aten.unsqueeze.default, tensor, 1)
    while len(tensor.spec.shape) < 4:
        tensor = make(aten.unsqueeze.default, tensor, 0)
    return tensor


def _term(term: Node, found: Attention, step: Step, make: Make) -> Node:
    """A term in the dtype of the queries, finite where it was, also when multiplied by log2(e).

    Numbers beyond `HUGE` come nearer by half of what they are beyond, which keeps their order.
    """
    dtype = found.q.spec.dtype
    if is_rounded(found, step) and term.spec.dtype is not dtype:
        term = make(aten._to_copy.default, term, dtype=dtype)
    factor = step.number * found.weight(step)
    if factor != 1:
        term = make(aten.mul.Tensor, term, factor)
    if term.spec.dtype is not torch.float16:
        near = make(aten.clamp.default, term, -HUGE, HUGE)
        halves = (make(aten.mul.Tensor, x, 0.5) for x in (term, near))
        term = make(aten.add.Tensor, *halves)
    return term if term.spec.dtype is dtype else make(aten._to_copy.default, term, dtype=dtype)


def _laid_out(total: Node, found: Attention, heads: tuple[int, int], make: Make) -> Node:
    """As kernels read it: rows of a multiple of 16 elements in memory, nothing repeated there but rows and matrices."""
    rows, columns = found.probabilities.spec.shape[-2:]
    if total.spec.shape[-1] != columns:
        total = make(aten.expand.default, total, [*total.spec.shape[:-1], columns])
    total = make(aten.clone.default, total, memory_format=torch.contiguous_format)
    behind = -columns % MULTIPLE
    if behind:
        total = make(aten.constant_pad_nd.default, total, [0, behind])
        total = make(aten.slice.Tensor, total, -1, 0, columns)
    return make(aten.expand.default, total, [*heads, rows, columns])
