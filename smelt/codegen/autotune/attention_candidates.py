"""Attention candidates: a product, a softmax of its elements, and a second product of a schedule that one generated
kernel may replace.

The kernel between the products may apply any elementwise function to the scores (`softmax_pattern.py`): masks, biases
computed from indices or read from memory, soft caps. Scores and probabilities must have no other readers. Elementwise
kernels before an operand or after the second product are fused too, as for products (`gemm_candidates.py`).

Scores are not rounded to half precision, as eager rounds them between its kernels: the result is closer to the exact one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from smelt.codegen.autotune.attention_mask_structure import key_bound
from smelt.codegen.autotune.gemm_candidates import DTYPES, OPERATORS, Group, Variant, elementwise, on_gpu
from smelt.codegen.autotune.score_functions import exact, with_constants
from smelt.codegen.autotune.softmax_pattern import Softmax, softmax_of
from smelt.codegen.call_selection.call_requests import as_dtype, in_schema_order
from smelt.codegen.call_selection.epilogue_fusion import (
    EpilogueKernel,
    epilogue_kernel,
    epilogue_value,
    only_index,
    point_at,
    readers_of,
    writes_held,
)
from smelt.codegen.call_selection.gemm_calls import MATRIX_CALLS, MatrixCall
from smelt.codegen.call_selection.prologue_fusion import Prologue, memory_index, plain, prologue
from smelt.codegen.llvm.gemm.epilogue import BATCH, COL, NO_EPILOGUE, ROW, Epilogue, product_value, rewrite
from smelt.codegen.llvm.gemm.gemm_spec import Matrix, Product
from smelt.codegen.triton.attention_kernel import ATTENTION, SCORE, TiledAttention
from smelt.codegen.triton.block_gemm import Operand
from smelt.codegen.triton.gemm_kernel import PRODUCT
from smelt.graph.ir import TensorSpec
from smelt.loops.kernel_ir import Buffer, Value
from smelt.plan.schema_aliases import written_values
from smelt.schedule.schedule import BufRef, ExternItem, Item, KernelItem, Schedule, ViewItem, accesses
from smelt.shapes.expr import Size, Sym, affine, subs

LARGEST = 256  # head size: a block of keys of larger heads does not fit
f32 = torch.float32


def attention_groups(schedule: Schedule) -> list[Group]:
    """All attention candidates, in order."""
    finder = _Finder(schedule)
    claimed: set[int] = set()
    groups = []
    for position, item in enumerate(schedule.items):
        if isinstance(item, KernelItem) and not any(b is None for b in item.buffers):
            group = finder.group(position, item)
            if group is not None and claimed.isdisjoint(group.positions):
                claimed.update(group.positions)
                groups.append(group)
    return groups


@dataclass(frozen=True)
class _Call:
    """A product of the schedule, of the buffers `operands`: two matrices, and a bias if there is one. `value`: the
    stored value in terms of the `result` "product"."""

    position: int
    product: Product
    operands: tuple[int, ...]
    result: int
    spec: TensorSpec  # of the result, as matrices
    value: Value


@dataclass(frozen=True)
class _Scores:
    """The score function, over BATCH, ROW (a query) and COL (a key), and the buffers that it loads."""

    value: Value
    inputs: tuple[Buffer, ...]
    buffers: tuple[int, ...]


class _Refused(Exception):
    """Raised during the search for a candidate; its text is the reason."""


class _Finder:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.readers = readers_of(schedule)
        self.makers = {b: n for n, item in enumerate(schedule.items) for b in accesses(item)[1]}

    def group(self, position: int, item: KernelItem) -> Group | None:
        """The group around the kernel at `position`, if it is a softmax between two products."""
        softmax = softmax_of(item.kernel)
        if isinstance(softmax, str):
            return None
        for score_buffer, formal in enumerate(item.kernel.buffers):
            if formal.role == "in":
                try:
                    return self._around(position, item, softmax, score_buffer)
                except _Refused:
                    continue
        return None

    def _around(self, position: int, item: KernelItem, softmax: Softmax, score_buffer: int) -> Group:
        """The group whose scores are the kernel's buffer `score_buffer`. Raises _Refused."""
        first, before = self._product_that_gives(item.buffers[score_buffer], position)
        probabilities = item.buffers[softmax.out]
        assert probabilities is not None
        second, between = self._product_that_reads(probabilities)
        p, q = first.product, second.product
        keys = _number(softmax.keys.size)
        _require(p.batch[0] * p.batch[1] == q.batch[0] * q.batch[1] and p.m == q.m, "other rows")
        _require(2 <= keys <= p.n and q.k == keys, "other keys")
        _require(p.k <= LARGEST and q.n <= LARGEST, "larger heads")
        _require(softmax.score.dtype is f32 and q.dtype in DTYPES, "other dtypes")
        scores = self._scores(item, softmax, score_buffer, first)
        _require(_is_read_as_stored(softmax, score_buffer, p, q), "the second product reads in another order")
        final_epilogue = self._final_epilogue(second)
        held = {first.position, *before, position, *between, second.position}
        if final_epilogue is not None:
            held.add(final_epilogue.position)
        return self._group(item, softmax, scores, first, second, final_epilogue, held)

    # ---- the products

    def _product_that_gives(self, buffer: int | None, reader: int) -> tuple[_Call, set[int]]:
        """The producer of a buffer that only the item at `reader` reads, and the views between."""
        views: set[int] = set()
        while True:
            _require(buffer is not None and self.readers.get(buffer) == [reader], "others read the scores")
            assert buffer is not None
            reader = self.makers.get(buffer, -1)
            _require(reader >= 0, "the scores are an input")
            producer = self.schedule.items[reader]
            if not isinstance(producer, ViewItem):
                break
            _require(producer.offset == 0, "a part of the scores")
            views.add(reader)
            buffer = producer.src
        call = self._call(reader)
        _require(call.result == buffer, "another result")
        return call, views

    def _product_that_reads(self, buffer: int) -> tuple[_Call, set[int]]:
        """The product whose first operand is the buffer, if it has no other readers, and the views between."""
        views: set[int] = set()
        while True:
            users = self.readers.get(buffer, [])
            _require(len(users) == 1 and users[0] >= 0, "others read the probabilities")
            item = self.schedule.items[users[0]]
            if not isinstance(item, ViewItem):
                break
            _require(item.offset == 0, "a part of the probabilities")
            views.add(users[0])
            buffer = item.out
        call = self._call(users[0])
        _require(call.operands.count(buffer) == 1 and call.operands[0] == buffer, "no first operand")
        _require(len(call.operands) == 2, "a bias")
        return call, views

    def _call(self, position: int) -> _Call:
        item = self.schedule.items[position]
        _require(isinstance(item, ExternItem) and item.op in OPERATORS, "no product")
        assert isinstance(item, ExternItem)
        _require(item.outs[0] is not None, "no result")
        call = MATRIX_CALLS[item.op](self.schedule, item, in_schema_order(item))
        _require(isinstance(call, MatrixCall), "no product")
        assert isinstance(call, MatrixCall) and item.outs[0] is not None
        call, beta, alpha = call.without_factors()
        _require(isinstance(beta, int | float) and isinstance(alpha, int | float), "other factors")
        request = call.plan(call.result, "attention", NO_EPILOGUE, _refused)
        _require(not isinstance(request, str) and isinstance(request.product, Product), "no product")
        assert not isinstance(request, str) and isinstance(request.product, Product)
        operands = [call.buffers[i] for i in request.operands]
        _require(all(b is not None for b in operands) and request.product.k > 0, "no product")
        operand_buffers = tuple(b for b in operands if b is not None)
        value = _scaled(request.product.epilogue.value, beta, alpha)
        value = value or as_dtype(product_value(f32), call.result.dtype)
        return _Call(position, request.product, operand_buffers, item.outs[0], call.result, value)

    # ---- between them

    def _scores(self, item: KernelItem, softmax: Softmax, score_buffer: int, call: _Call) -> _Scores:
        """The kernel's function of an element of the product."""
        p = call.product
        at, names = _score_coordinates(item, softmax, score_buffer, p)
        read = [n for n, b in enumerate(item.kernel.buffers) if b.role == "in" and n != score_buffer]
        bias = p.epilogue.inputs
        number = {n: len(bias) + k for k, n in enumerate(read)}
        value = epilogue_value(softmax.score, score_buffer, number, lambda e: subs(subs(e, at), names))
        value = rewrite(value, lambda b, e: (b, e), call.value)
        value = rewrite(value, lambda b, e: (b, e), Value("result", (SCORE,), f32))
        buffers = (*call.operands[2:], *(b for n in read if (b := item.buffers[n]) is not None))
        constants = {n: c for n, b in enumerate(buffers) if (c := self._constant(b)) is not None}
        value = exact(with_constants(value, constants))
        _require(elementwise(value, SCORE) and on_gpu(self.schedule, buffers), "scores of another kind")
        return _Scores(value, (*bias, *(item.kernel.buffers[n] for n in read)), buffers)

    def _constant(self, buffer: int) -> float | None:
        """The value of a constant of one float, if no item writes it."""
        held = self.schedule.constant(buffer)
        if held is None or held.shape != () or not held.dtype.is_floating_point:
            return None
        if any(_writes(item, buffer) for item in self.schedule.items):
            return None
        return float(held.item())

    def _final_epilogue(self, call: _Call) -> EpilogueKernel | None:
        """The elementwise kernel after a product, if it can be an epilogue."""
        fused = epilogue_kernel(self.schedule, call.position, call.spec, self.readers)
        if isinstance(fused, str) or fused.epilogue.value is None:
            return None
        computed = elementwise(fused.epilogue.value, PRODUCT) and on_gpu(self.schedule, fused.inputs)
        return fused if computed else None

    # ---- the group

    def _group(
        self,
        item: KernelItem,
        softmax: Softmax,
        scores: _Scores,
        first: _Call,
        second: _Call,
        final_epilogue: EpilogueKernel | None,
        held: set[int],
    ) -> Group:
        p, q = first.product, second.product
        last_position = max(held)
        batch = p.batch[0] * p.batch[1]
        keys = q.k
        sides = (
            (first, first.operands[0], p.a, p.batch, (batch, p.m, p.k)),
            (first, first.operands[1], p.b, p.batch, (batch, p.k, keys)),
            (second, second.operands[1], q.b, q.batch, (batch, keys, q.n)),
        )
        read = [self._operands(last_position, *side) for side in sides]
        value = as_dtype(Value("result", (ATTENTION,), f32), q.dtype)
        inputs: tuple[Buffer, ...] = ()
        epilogue_inputs: tuple[int, ...] = ()
        index, out = memory_index(q.c, q.batch), second.result
        if final_epilogue is not None and final_epilogue.epilogue.value is not None:
            value = exact(rewrite(final_epilogue.epilogue.value, lambda b, e: (b, e), value))
            inputs, epilogue_inputs = final_epilogue.epilogue.inputs, final_epilogue.inputs
            index, out = final_epilogue.index, final_epilogue.out
        _require(on_gpu(self.schedule, [out]), "the result is elsewhere")
        variants: list[Variant] = []
        notes = [getattr(self.schedule.items[n], "note", "") for n in sorted(held)]
        note = "; ".join(dict.fromkeys(n for n in notes if n))
        for choice in dict.fromkeys((tuple(0 for _ in read), tuple(len(r) - 1 for r in read))):
            a, b, c = (options[n] for options, n in zip(read, choice, strict=True))
            candidate = TiledAttention(
                name=f"attention_{item.kernel.name}",
                batch=batch,
                queries=p.m,
                keys=keys,
                head=p.k,
                width=q.n,
                q=a.operand,
                k=b.operand,
                v=c.operand,
                scores=scores.inputs,
                score=scores.value,
                inputs=inputs,
                value=value,
                index=index,
                empty=softmax.empty,
                key_bound=key_bound(scores.value),
            )
            _require(a.operand.value.dtype is b.operand.value.dtype, "operands of two dtypes")
            buffers = (*a.buffers, *b.buffers, *c.buffers, *scores.buffers, *epilogue_inputs, out)
            positions = frozenset(held | a.positions | b.positions | c.positions)
            variants.append(Variant(candidate, buffers, positions, note))
        positions = frozenset().union(*(v.positions for v in variants))
        passed = self.schedule.items[min(positions) : last_position + 1]
        _require(not any(writes_held(self.schedule, i) for i in passed), "an input is written meanwhile")
        return Group(tuple(sorted(positions)), last_position, tuple(variants))

    def _operands(
        self,
        last_position: int,
        call: _Call,
        buffer: int,
        matrix: Matrix,
        batch: tuple[int, int],
        sizes: tuple[int, int, int],
    ) -> list[_Read]:
        """The ways to read an operand: from memory, and with its kernel fused. Raises _Refused if there are none."""
        index = memory_index(matrix, batch)
        dtype = self.schedule.buffers[buffer].spec.dtype
        candidates = []
        if dtype in DTYPES and on_gpu(self.schedule, [buffer]):
            candidates.append(_Read(Operand(*plain(dtype, index)), (buffer,), frozenset()))
        front = prologue(
            self.schedule, self.readers, call.position, last_position, buffer, index, sizes, masks=True
        )
        if isinstance(front, Prologue) and on_gpu(self.schedule, front.buffers):
            value = front.value
            if value.op == "cast" and value.dtype is f32 and value.args[0].dtype in DTYPES:
                (value,) = value.args  # products of these are exact in float32
            if value.dtype in DTYPES:
                read = Operand(front.inputs, value)
                candidates.append(_Read(read, front.buffers, frozenset(front.positions)))
        _require(bool(candidates), "an operand that is not half precision")
        return candidates


@dataclass(frozen=True)
class _Read:
    """An operand, the buffers that it loads, and the positions of the items fused into it."""

    operand: Operand
    buffers: tuple[int, ...]
    positions: frozenset[int]


def _scaled(value: Value | None, beta: float, alpha: float) -> Value | None:
    """The sum of a product and a bias, both scaled, rounded as `value` is. A bias scaled by 0 is not read."""
    if value is None or (beta == 1 and alpha == 1):
        return value
    total = value.args[0] if value.op == "cast" else value
    product, bias = total.args
    scaled = product * float(alpha)
    return as_dtype(scaled if beta == 0 else scaled + bias * float(beta), value.dtype)


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise _Refused(why)


def _number(size: Size) -> int:
    _require(isinstance(size, int), "a dynamic size")
    assert isinstance(size, int)
    return size


def _refused(specs: Sequence[TensorSpec], epilogue: Epilogue) -> str | None:
    """Why a product of A, B and this result cannot be part of attention, or None."""
    if specs[0].dtype not in (*DTYPES, f32) or specs[1].dtype is not specs[0].dtype:
        return f"dtypes {[s.dtype for s in specs]}"
    return None if all(s.device.type == "cuda" for s in specs) else "devices"


def _dense(rows: int, columns: int) -> Size:
    """The offset of an element in contiguous stacks of matrices."""
    return BATCH * (rows * columns) + ROW * columns + COL


def _is_dense(matrix: Matrix, p: Product, rows: int, columns: int) -> bool:
    one = {s: 0 for s, n in ((BATCH, p.batch[0] * p.batch[1]), (ROW, rows), (COL, columns)) if n == 1}
    return subs(memory_index(matrix, p.batch), one) == subs(_dense(rows, columns), one)


def _rows(index: Size, key: Sym, width: int) -> Size:
    """The row of an index that walks rows of `width` by `key`. Raises _Refused for others."""
    split = affine(index, key)
    _require(split is not None and split[0] == 1, "scores that do not lie along rows")
    assert split is not None
    _require(split[1] % width == 0, "scores that do not lie in rows")
    return split[1] // width


def _score_coordinates(
    item: KernelItem, softmax: Softmax, score_buffer: int, p: Product
) -> tuple[dict[Sym, Size], dict[Sym, Size]]:
    """The kernel's symbols in terms of bounded batch, query and key symbols, and the names of those. `score_buffer`:
    the kernel's buffer with the result of `p`. Raises _Refused unless each score is read once."""
    index = only_index(softmax.score, score_buffer)
    _require(index is not None and _is_dense(p.c, p, p.m, p.n), "scores that are read at several indices")
    assert index is not None
    batch = p.batch[0] * p.batch[1]
    sizes = (batch, p.m, _number(softmax.keys.size))
    b, query, key = syms = [Sym(f"attention_{s}", 0, n - 1) for s, n in zip("bqk", sizes, strict=True)]
    row = _rows(index, softmax.keys.sym, p.n)
    at = point_at(item.kernel.outer, row, b * p.m + query, batch * p.m)
    _require(at is not None, "scores that are not read once")
    assert at is not None
    return at | {softmax.keys.sym: key}, dict(zip(syms, (BATCH, ROW, COL), strict=True))


def _is_read_as_stored(softmax: Softmax, score_buffer: int, p: Product, reads: Product) -> bool:
    """Whether the rows of probabilities in `reads` are the rows of scores of `p`."""
    index = only_index(softmax.score, score_buffer)
    _require(index is not None, "scores that are read at several indices")
    assert index is not None
    stored = _rows(softmax.index, softmax.keys.sym, reads.k)
    return stored == _rows(index, softmax.keys.sym, p.n) and _is_dense(reads.a, reads, reads.m, reads.k)


def _writes(item: Item, buffer: int) -> bool:
    """Whether the item may change the buffer's contents; a view is assumed to."""
    if isinstance(item, KernelItem):
        return any(b == buffer and f.role != "in" for b, f in zip(item.buffers, item.kernel.buffers))
    if isinstance(item, ExternItem):
        return BufRef(buffer) in written_values(item.op, item.args, item.kwargs)
    return item.src == buffer
