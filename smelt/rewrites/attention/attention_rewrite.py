"""The pass: replaces matched attention, forward and backward, by kernels.

softmax(q @ k.mT * scale + bias, -1) @ v   ->   kernel(q, k, v, bias, scale)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from smelt.graph.graph_passes import base_of, memory_of_outputs, viewed
from smelt.graph.ir import Graph, Node, TensorSpec
from smelt.rewrites.attention.attention_bias import Bias, bias_of, check_bias, heads_of
from smelt.rewrites.attention.attention_gradients import Gradients, gradients_of
from smelt.rewrites.attention.attention_pattern import ATTENTION, Attention, match_attention
from smelt.rewrites.attention.element_maps import ElementMaps
from smelt.rewrites.graph_rewriter import GraphRewriter, Rewritten
from smelt.rewrites.patterns import Refused

aten = torch.ops.aten
NAN, INF = float("nan"), float("inf")
ALIGNED = 16  # bytes: rows and matrices of operands must be multiples of it

Kernel = Literal["flash", "efficient"]


@dataclass(frozen=True)
class Operands:
    """The operands of a requested kernel: queries, keys, values [b, h, n, d]; the bias; whether there is a backward,
    and whether it computes the gradient of the bias."""

    q: TensorSpec
    k: TensorSpec
    v: TensorSpec
    bias: TensorSpec | None
    backward: bool
    bias_gradient: bool


Choose = Callable[[Operands], Kernel | None]


def fuse_attention(graph: Graph, choose: Choose, backward: frozenset[Node] = frozenset()) -> Rewritten:
    """The aten graph with attention fused into kernels. `backward`: the nodes that a backward recorded. `choose`: the
    device's kernel for operands, or None."""
    return _Pass(graph, choose, backward).run()


@dataclass(frozen=True)
class _Plan:
    attention: Attention
    gradients: Gradients | None
    heads: tuple[int, int]


@dataclass(frozen=True)
class _Call:
    """A kernel's forward, as its backward reads it."""

    kernel: Kernel
    unmasked_q: Node
    q: Node  # 0 in fully masked rows
    k: Node
    v: Node
    bias: Bias
    out: Node
    rows: Node  # the logarithm of the sum of each row, NaN for those whose result is
    state: tuple[Node, Node]  # of the generator; no numbers are drawn
    scale: float


class _Pass(GraphRewriter):
    def __init__(self, graph: Graph, choose: Choose, backward: frozenset[Node]) -> None:
        super().__init__(graph, "fused", backward)
        self.choose = choose
        self.maps = ElementMaps(graph.constants)
        self.products = [node for node in graph if node.target in ATTENTION.operators]
        self.refused: list[tuple[Node, str]] = []
        self.calls: dict[Node, _Call] = {}  # by the result
        self.count = 0

    def run(self) -> Rewritten:
        plans = {p.attention.result: p for p in map(self._planned, self.products) if p is not None}
        starts = {self._start(p.gradients): p for p in plans.values() if p.gradients is not None}
        for node in self.original if plans else ():
            self.at(node)
            call = self.calls.get(starts[node].attention.result) if node in starts else None
            if call is not None:
                self._write_backward(starts[node], call)
            if node in plans and self._write_forward(plans[node]):
                continue
            if node not in self.env:
                self.copy(node)
        if not self.count:
            return Rewritten(self.original, self.backward, tuple(self.refused))
        return self.finish(self.refused)

    def _planned(self, node: Node) -> _Plan | None:
        try:
            found = match_attention(node, self.maps)
            if found is None:
                return None
            gradients = gradients_of(found, self.users, self.maps)
            check_bias(found, self.maps, gradients is not None)
            return _Plan(found, gradients, heads_of(found))
        except Refused as reason:
            self.refused.append((node, str(reason)))
            return None

    def _start(self, gradients: Gradients) -> Node:
        """The first replaced product of the backward: all operands of the kernel's backward are computed before it."""
        return next(n for n in self.products if n in gradients.inside or n is gradients.of_v)

    def _replace(self, node: Node, value: Node, factor: float = 1.0) -> None:
        """Map `node` to `value`, which has the same elements in the same order but for a factor."""
        if not math.isclose(factor, 1, rel_tol=1e-12):
            value = self.call(aten.mul.Tensor, value, factor)
        if value.spec.dtype is not node.spec.dtype:
            value = self.call(aten._to_copy.default, value, dtype=node.spec.dtype)
        dense = self.call(aten.clone.default, value, memory_format=torch.contiguous_format)
        self.write(node, target=aten.view.default, args=(dense, list(node.spec.shape)), kwargs={})

    # ---- operands

    def _operand(
        self, node: Node, heads: tuple[int, int], for_backward: bool, transposed: bool = False
    ) -> Node:
        """The matrices [n, ..] of `node` as [b, h, ..], transposed if `transposed`, in the layout of the kernels: a
        value that the program computes, or a copy. Inputs of the graph are copied: they may begin at any address, and
        kernels load full vectors. `for_backward`: the operand is saved for a backward, so it is not in memory that the
        caller holds, unless the program's own copy is returned too."""
        shape = *heads, *node.spec.shape[1:]
        original_map = self.maps.of(node).with_shape(*shape)
        element_map = original_map.transposed if transposed else original_map
        sources = [n for n in self.maps.chain(node) if self.maps.of(n) == element_map]
        may_be_returned = not for_backward or self._is_returned(node)
        for source in reversed(sources):
            found = is_aligned(source.spec) and base_of(source).op == "call_function"
            if found and (may_be_returned or not self._is_returned(source)):
                return self.env[source]
        if sources:
            made = self.env[sources[-1]]
        else:
            made = self.call(aten.view.default, self.env[node], list(shape))
            made = self.call(aten.transpose.int, made, -2, -1) if transposed else made
            if is_aligned(made.spec) and base_of(node).op == "call_function":
                return made
        return self.call(aten.clone.default, made, memory_format=torch.contiguous_format)

    def _is_returned(self, node: Node) -> bool:
        """Whether the caller holds the value's memory, and may mutate it before the backward."""
        return not self.returned.isdisjoint(viewed(node))

    @cached_property
    def returned(self) -> set[Node]:
        """The nodes whose memory an output may share."""
        return memory_of_outputs(self.original)

    # ---- forward

    def _write_forward(self, plan: _Plan) -> bool:
        """Emit the kernel; False if no kernel takes the operands."""
        attention, heads, for_backward = plan.attention, plan.heads, plan.gradients is not None
        q = self._operand(attention.q, heads, for_backward)
        k = self._operand(attention.k, heads, for_backward, transposed=True)
        v = self._operand(attention.v, heads, for_backward)
        bias = bias_of(attention, heads, self.call, self.env, self.maps)
        bias_spec = None if bias.value is None else bias.value.spec
        of_bias = plan.gradients is not None and bool(plan.gradients.of_scores)
        kernel = self.choose(Operands(q.spec, k.spec, v.spec, bias_spec, for_backward, of_bias))
        if kernel is None:
            self.refused.append((attention.result, "no kernel takes its operands"))
            return False
        unmasked_q = q
        if bias.masked_rows is not None:
            q = self.call(aten.masked_fill.Scalar, q, bias.masked_rows, 0.0)
        if kernel == "flash":
            call = self.call(_FLASH, q, k, v, scale=attention.scale)
        else:
            call = self.call(_EFFICIENT, q, k, v, bias.value, True, scale=attention.scale)
        state = (6, 7) if kernel == "flash" else (2, 3)
        out, rows = self.item(call, 0), self.item(call, 1)
        nan_rows, rows = self._nan_rows(rows, q.spec.shape[2], bias)
        output = self.call(aten.masked_fill.Scalar, out, nan_rows, NAN)
        self._replace(attention.result, output)
        if for_backward:
            random = self.item(call, state[0]), self.item(call, state[1])
            written = _Call(kernel, unmasked_q, q, k, v, bias, out, rows, random, attention.scale)
            self.calls[attention.result] = written
        self.count += 1
        return True

    def _nan_rows(self, rows: Node, length: int, bias: Bias) -> tuple[Node, Node]:
        """(the rows [b, h, l, 1] whose result is NaN, the logarithms of sums with NaN for those). The logarithms may
        have extra rows, which are set to infinity."""
        sums = rows
        padding = rows.spec.shape[-1] - length
        if padding:
            sums = self.call(aten.slice.Tensor, rows, -1, 0, length)
        finite = self.call(aten.lt.Scalar, self.call(aten.abs.default, sums), INF)
        nan_rows = self.call(aten.logical_not.default, finite)
        if bias.nan_rows is not None:
            hidden = self.call(aten.squeeze.dim, bias.nan_rows, -1)
            nan_rows = self.call(aten.logical_or.default, nan_rows, hidden)
        sums = self.call(aten.masked_fill.Scalar, sums, nan_rows, NAN)
        if padding:
            sums = self.call(aten.constant_pad_nd.default, sums, [0, padding], INF)
        return self.call(aten.unsqueeze.default, nan_rows, -1), sums

    # ---- backward

    def _write_backward(self, plan: _Plan, call: _Call) -> None:
        gradients = plan.gradients
        assert gradients is not None
        tangent = self._operand(gradients.tangent, plan.heads, for_backward=False)
        read = tangent, call.q, call.k, call.v
        if call.kernel == "flash":
            lengths = call.q.spec.shape[2], call.k.spec.shape[2]
            others = call.out, call.rows, None, None, *lengths, 0.0, False, *call.state
            made = self.call(_FLASH_BACKWARD, *read, *others, scale=call.scale)
        else:
            gradient_mask = [True, True, True, bool(gradients.of_scores)]
            original = call.bias.value, call.out, call.rows, *call.state
            made = self.call(_EFFICIENT_BACKWARD, *read, *original, 0.0, gradient_mask, scale=call.scale)
        for node, factor in gradients.of_q:
            self._replace(node, self._zero_masked_rows(self.item(made, 0), call), factor / call.scale)
        for node, factor in gradients.of_k:
            of_keys = self._add_masked_rows(self.item(made, 1), tangent, call)
            transposed = self.call(aten.transpose.int, of_keys, -2, -1)
            self._replace(node, transposed, factor / call.scale)
        if gradients.of_v is not None:
            self._replace(gradients.of_v, self.item(made, 2))
        for node, factor in gradients.of_scores:
            self._replace(node, self._zero_masked_rows(self.item(made, 3), call), factor)

    def _zero_masked_rows(self, gradient: Node, call: _Call) -> Node:
        """The gradient with zeros in rows whose scores are filled in."""
        if call.bias.masked_rows is None or not call.bias.filled_in:
            return gradient
        return self.call(aten.masked_fill.Scalar, gradient, call.bias.masked_rows, 0.0)

    def _add_masked_rows(self, of_keys: Node, tangent: Node, call: _Call) -> Node:
        """The gradient of keys, including that of the rows to which a huge number was added; the kernel received zero
        queries for these. All s keys have the same probability in them, P = 1/s, so dS = (T @ v.mT - its mean) / s,
        and

            q.mT @ dS = (q.mT @ T) @ (v - its mean).mT / s
        """
        masked_rows = call.bias.masked_rows
        if masked_rows is None or call.bias.filled_in:
            return of_keys
        s = call.v.spec.shape[-2]
        others = self.call(aten.logical_not.default, masked_rows)
        rows = self.call(aten.masked_fill.Scalar, call.unmasked_q, others, 0.0)
        products = self._product(self.call(aten.transpose.int, rows, -2, -1), tangent)
        mean = self.call(aten.mean.dim, call.v, [-2], True)
        centered = self.call(aten.sub.Tensor, call.v, mean)
        added = self._product(centered, self.call(aten.transpose.int, products, -2, -1))
        return self.call(aten.add.Tensor, of_keys, self.call(aten.mul.Tensor, added, call.scale / s))

    def _product(self, a: Node, b: Node) -> Node:
        """The product of matrices [b, h, m, k] and [b, h, k, n]."""
        heads = a.spec.shape[:2]
        dense = (self.call(aten.clone.default, x, memory_format=torch.contiguous_format) for x in (a, b))
        flat = [self.call(aten.view.default, x, [-1, *x.spec.shape[2:]]) for x in dense]
        made = self.call(aten.bmm.default, *flat)
        return self.call(aten.view.default, made, [*heads, *made.spec.shape[1:]])


_FLASH = aten._scaled_dot_product_flash_attention.default
_FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_backward.default
_EFFICIENT = aten._scaled_dot_product_efficient_attention.default
_EFFICIENT_BACKWARD = aten._scaled_dot_product_efficient_attention_backward.default


def is_aligned(spec: TensorSpec) -> bool:
    """Whether kernels may read the tensor: rows are contiguous, and begin at multiples of 16 bytes."""
    multiple = ALIGNED // spec.dtype.itemsize
    steps = [step for n, step in zip(spec.shape[:-1], spec.stride[:-1]) if n != 1]
    return spec.stride[-1] == 1 and all(s % multiple == 0 for s in (*steps, spec.offset))
