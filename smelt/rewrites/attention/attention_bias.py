"""The bias of attention: all tensors added to the scores, as one tensor that the kernel takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from smelt.graph.ir import Node
from smelt.ops.node_builders import Make
from smelt.rewrites.attention.attention_pattern import Attention, Step
from smelt.rewrites.attention.element_maps import ElementMaps
from smelt.rewrites.attention.value_facts import DOMINATES, exact_in, hides_rows, is_moderate
from smelt.rewrites.patterns import Refused

aten = torch.ops.aten
INF = float("inf")
HUGE = 1e38  # kernels compute with powers of two: a number of twice that, times log2(e), would be infinite
ROW_MULTIPLE = 16  # rows of a bias in memory are multiples of this many elements


@dataclass(frozen=True)
class Bias:
    """`value`, [b, h, l, s] of the dtype of the queries, is added to the scores; None for no bias.

    Attributes:
        masked_rows: rows [.., l or 1, 1] that are fully masked, whose scores are all set to 0; None if there are none.
        filled_in: whether a mask fills in the scores of those rows, so that they have no gradient; else a huge number
            is added.
        nan_rows: rows [.., l or 1, 1] to all of whose scores minus infinity is added; None if there are none.
    """

    value: Node | None
    masked_rows: Node | None = None
    filled_in: bool = True
    nan_rows: Node | None = None


def heads_of(attention: Attention) -> tuple[int, int]:
    """(b, h), whose product is the number of matrices: the batch and heads that the program uses where it adds a
    tensor. Raises Refused."""
    matrices = attention.probabilities.spec.shape[-2:]
    count = attention.q.spec.shape[0]
    wide = [s.node.spec.shape for s in attention.steps if s.tensor is not None]
    candidates = wide or [n.spec.shape for n in attention.inside]
    four = {s[:2] for s in candidates if len(s) == 4 and s[2:] == matrices}
    if len(four) == 1 and all(len(s) == 4 for s in wide):
        return four.pop()
    if not wide:
        return count, 1
    if four or any(len(s) != 3 for s in wide):
        raise Refused("scores have other dimensions where something is added")
    return count, 1


def check_bias(attention: Attention, maps: ElementMaps, backward: bool) -> None:
    """Raise Refused for tensors that a kernel would add differently, or less exactly.

    The kernels' backward recomputes probabilities from the bias and the logarithm of a row's sum: for a huge bias (a
    row that sees nothing but the lowest float), no digits are left for the sum.
    """
    q = attention.q.spec
    for step in attention.steps:
        if step.tensor is None:
            continue
        tensor = step.tensor.spec
        if tensor.device != q.device or not all(type(n) is int for n in tensor.shape):
            raise Refused("a tensor added to the scores is on a CPU or symbolic")
        if (step.kind == "filled") is not (tensor.dtype is torch.bool):
            raise Refused(f"a mask of {tensor.dtype}")
        if (
            backward
            and step.kind == "added"
            and not (is_moderate(step.tensor, maps) or _may_hide_rows(attention, step, maps))
        ):
            raise Refused("a tensor added to the scores may mask an entire row, which has gradients")
        if step.kind == "filled" or q.dtype is torch.float32 or is_rounded(attention, step):
            continue
        if (
            len(attention.added) > 1
            or attention.weight(step) != 1
            or not exact_in(step.tensor, q.dtype, maps)
        ):
            raise Refused("a tensor added to the scores has more precision than queries")


def _may_hide_rows(attention: Attention, step: Step, maps: ElementMaps) -> bool:
    """Whether a step's tensor may mask entire rows, whose scores are then all equal."""
    alone = (
        len(attention.added) == 1 and attention.filled is None and attention.weight(step) == step.number == 1
    )
    return alone and step.tensor is not None and hides_rows(step.tensor, maps)


def is_rounded(attention: Attention, step: Step) -> bool:
    """Whether the program rounds the sum to the dtype of queries."""
    at = attention.steps.index(step)
    sums = [s.node.spec.dtype for s in attention.steps[at : at + 2]]
    return sums[0] is attention.q.spec.dtype or (
        sums[-1] is attention.q.spec.dtype and attention.steps[at + 1].kind == "same"
    )


def bias_of(
    attention: Attention, heads: tuple[int, int], make: Make, env: Mapping[Node, Node], maps: ElementMaps
) -> Bias:
    """Emit the bias. `env`: original node -> new node."""
    dtype = attention.q.spec.dtype
    total: Node | None = None
    for step in attention.added:
        term = _term(_shaped(step, heads, make, env), attention, step, make)
        total = term if total is None else make(aten.add.Tensor, total, term)
    filled = attention.filled
    if total is not None and _may_hide_rows(attention, attention.added[0], maps):
        most = make(aten.amax.default, total, [-1], True)
        hidden = make(aten.le.Scalar, most, DOMINATES), make(aten.gt.Scalar, most, -INF)
        rows = make(aten.logical_and.default, *hidden)
        total = make(aten.masked_fill.Scalar, total, rows, 0.0)
        nothing = make(aten.eq.Scalar, most, -INF)
        return Bias(_laid_out(total, attention, heads, make), rows, filled_in=False, nan_rows=nothing)
    if filled is None:
        if total is None:
            return Bias(None)
        return Bias(_laid_out(total, attention, heads, make), nan_rows=_nan_rows(total, make))
    mask = _shaped(filled, heads, make, env)
    if not filled.where:
        mask = make(aten.logical_not.default, mask)
    if total is None:
        total = make(aten.full.default, list(mask.spec.shape), 0.0, dtype=dtype, device=mask.spec.device)
    total = make(aten.masked_fill.Scalar, total, mask, -INF)
    masked_rows = nan_rows = None
    if filled.number != -INF:  # fully masked rows: all scores are equal
        masked_rows = make(aten.all.dim, mask, -1, True)
        total = make(aten.masked_fill.Scalar, total, masked_rows, 0.0)
    if attention.added or masked_rows is None:
        nan_rows = _nan_rows(total, make)
    return Bias(_laid_out(total, attention, heads, make), masked_rows, nan_rows=nan_rows)


def _nan_rows(total: Node, make: Make) -> Node:
    """Rows to all of whose scores minus infinity is added. Kernels give 0 for them, and 0 as the logarithm of their
    sums, which other rows may have too."""
    return make(aten.eq.Scalar, make(aten.amax.default, total, [-1], True), -INF)


def _shaped(step: Step, heads: tuple[int, int], make: Make, env: Mapping[Node, Node]) -> Node:
    """The tensor of a step with four dimensions, which broadcasts to [b, h, l, s] as the original did to the scores."""
    assert step.tensor is not None
    tensor = env[step.tensor]
    if len(step.node.spec.shape) == 3 and len(tensor.spec.shape) == 3:
        return make(aten.unsqueeze.default, tensor, 1)
    while len(tensor.spec.shape) < 4:
        tensor = make(aten.unsqueeze.default, tensor, 0)
    return tensor


def _term(term: Node, attention: Attention, step: Step, make: Make) -> Node:
    """A term in the dtype of the queries, finite if it was, also when multiplied by log2(e).

    The part of a number beyond `HUGE` is halved, which preserves the order.
    """
    dtype = attention.q.spec.dtype
    if is_rounded(attention, step) and term.spec.dtype is not dtype:
        term = make(aten._to_copy.default, term, dtype=dtype)
    factor = step.number * attention.weight(step)
    if factor != 1:
        term = make(aten.mul.Tensor, term, factor)
    if term.spec.dtype is not torch.float16:
        near = make(aten.clamp.default, term, -HUGE, HUGE)
        halves = (make(aten.mul.Tensor, x, 0.5) for x in (term, near))
        term = make(aten.add.Tensor, *halves)
    return term if term.spec.dtype is dtype else make(aten._to_copy.default, term, dtype=dtype)


def _laid_out(total: Node, attention: Attention, heads: tuple[int, int], make: Make) -> Node:
    """The bias in the layout of the kernels: rows of a multiple of 16 elements in memory; only rows and matrices are
    broadcast."""
    rows, columns = attention.probabilities.spec.shape[-2:]
    if total.spec.shape[-1] != columns:
        total = make(aten.expand.default, total, [*total.spec.shape[:-1], columns])
    total = make(aten.clone.default, total, memory_format=torch.contiguous_format)
    padding = -columns % ROW_MULTIPLE
    if padding:
        total = make(aten.constant_pad_nd.default, total, [0, padding])
        total = make(aten.slice.Tensor, total, -1, 0, columns)
    return make(aten.expand.default, total, [*heads, rows, columns])
