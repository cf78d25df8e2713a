"""Product candidates: an ATen call of a schedule, the elementwise kernel after it, and those before it, as one
generated product.

No item belongs to two candidates. A product may replace a candidate's items at the position of the last one,
independently of the other candidates.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import torch

from smelt.codegen.call_selection.call_requests import Request, as_dtype, in_schema_order
from smelt.codegen.call_selection.epilogue_fusion import DenseEpilogue, dense_epilogue, readers_of
from smelt.codegen.call_selection.gemm_calls import MATRIX_CALLS, MatrixCall
from smelt.codegen.call_selection.prologue_fusion import Prologue, memory_index, plain, prologue
from smelt.codegen.llvm.gemm.epilogue import BATCH, COL, NO_EPILOGUE, ROW, Epilogue, product_value, rewrite
from smelt.codegen.llvm.gemm.gemm_spec import Product
from smelt.codegen.triton.attention_kernel import TiledAttention
from smelt.codegen.triton.block_gemm import Operand
from smelt.codegen.triton.gemm_kernel import PRODUCT, TiledProduct
from smelt.graph.ir import TensorSpec
from smelt.loops.kernel_ir import POINTWISE, Value, walk
from smelt.schedule.schedule import ExternItem, Schedule
from smelt.shapes.expr import free_syms
from smelt.torch_private import OpOverload

# Operands. Generated products of float32 had 2.7 to 6.5 times cuBLAS's relative error on an H100, of TF32 2.63 times.
DTYPES = (torch.float16, torch.bfloat16)
OPERATORS: frozenset[OpOverload] = frozenset(MATRIX_CALLS)


Generated = TiledProduct | TiledAttention


@dataclass(frozen=True)
class Variant:
    """`product` in place of the items at `positions`; `buffers` in the order of its parameters, the result last."""

    product: Generated
    buffers: tuple[int, ...]
    positions: frozenset[int]
    note: str = field(compare=False)


@dataclass(frozen=True)
class Group:
    """Items at `positions`, in order, with equivalent variants, perhaps fewer; the product is at `last_position`."""

    positions: tuple[int, ...]
    last_position: int
    variants: tuple[Variant, ...]


def groups(schedule: Schedule, without: Collection[int] = ()) -> list[Group]:
    """All product candidates, in order, except for the items at some positions."""
    readers = readers_of(schedule)
    claimed = set(without)
    found = []
    for position, item in enumerate(schedule.items):
        if not isinstance(item, ExternItem) or item.op not in OPERATORS or item.outs[0] is None:
            continue
        if position in claimed:
            continue
        if any(readers.get(o) for o in item.outs[1:] if o is not None):
            continue
        call = MATRIX_CALLS[item.op](schedule, item, in_schema_order(item))
        if not isinstance(call, str):
            group = _group(schedule, readers, position, item, call, claimed)
            if group is not None:
                claimed.update(group.positions)
                found.append(group)
    return found


def refused_on_gpu(specs: Sequence[TensorSpec], epilogue: Epilogue) -> str | None:
    """Why a GPU has no code for a product of A, B and this result; None if it has."""
    if specs[0].dtype not in DTYPES or specs[1].dtype is not specs[0].dtype:
        return f"dtypes {[s.dtype for s in specs]}"
    if any(s.device.type != "cuda" for s in specs):
        return f"devices {[s.device for s in specs]}"
    if epilogue.value is not None and not elementwise(epilogue.value, PRODUCT):
        return "the epilogue draws numbers, computes in float64, or is not elementwise"
    return None


def elementwise(value: Value, product: str) -> bool:
    """Whether a generated product can compute this from its element, the `result` called `product`."""
    for v in walk([value]):
        if v.op not in ("load", "const", "cast", "index", "result") and v.op not in POINTWISE:
            return False
        if v.op == "philox" or v.dtype is torch.float64 or (v.op == "result" and v.args[0] != product):
            return False
        if v.op in ("load", "index"):
            index = v.args[1] if v.op == "load" else v.args[0]
            if not free_syms(index) <= {BATCH, ROW, COL}:
                return False
    return True


def _group(
    schedule: Schedule,
    readers: dict[int, list[int]],
    position: int,
    item: ExternItem,
    call: MatrixCall,
    claimed: set[int],
) -> Group | None:
    fused = dense_epilogue(schedule, position, call.result, readers)
    name = str(item.op).split(".")[1]
    request: Request | str = "no epilogue"
    # If one kernel reads two products (a gate and its operand), the first fuses it.
    if isinstance(fused, DenseEpilogue) and fused.position not in claimed and on_gpu(schedule, fused.inputs):
        request = call.plan(fused.out_spec, f"{name}_{fused.name}", fused.epilogue, refused_on_gpu)
    if isinstance(request, str):
        fused = "not fused"
        request = call.plan(call.result, name, NO_EPILOGUE, refused_on_gpu)
    if isinstance(request, str) or not isinstance(request.product, Product) or request.product.k < 1:
        return None
    operands = [call.buffers[i] for i in request.operands]
    out, positions, note = item.outs[0], {position}, item.note
    inputs: tuple[int, ...] = ()
    if isinstance(fused, DenseEpilogue):
        inputs, out = fused.inputs, fused.out
        positions.add(fused.position)
        note = "; ".join(dict.fromkeys(n for n in (item.note, fused.note) if n))
    a, b, *bias = operands
    if not on_gpu(schedule, [x for x in bias if x is not None]):
        return None
    assert a is not None and b is not None and out is not None
    kernel = _tiled(request.product)
    outer_buffers: tuple[int, ...] = (*bias, *inputs, out)  # type: ignore[arg-type]
    variants = [Variant(kernel, (a, b, *outer_buffers), frozenset(positions), note)]
    last_position = max(positions)
    with_prologues = _with_prologues(
        schedule, readers, position, last_position, request.product, kernel, (a, b), claimed
    )
    if with_prologues is not None:
        product, read, before = with_prologues
        variants.append(Variant(product, (*read, *outer_buffers), frozenset(positions | before), note))
        positions |= before
    return Group(tuple(sorted(positions)), last_position, tuple(variants))


def on_gpu(schedule: Schedule, buffers: Sequence[int]) -> bool:
    """Whether all buffers are on the GPU: CPU scalars are passed in other ways."""
    return all(schedule.buffers[b].spec.device.type == "cuda" for b in buffers)


def _tiled(p: Product) -> TiledProduct:
    """Products are summed as float32 and rounded once."""
    sums = product_value(torch.float32)
    value = p.epilogue.value or product_value(p.dtype)
    if any(v.op == "result" and v.dtype is not torch.float32 for v in walk([value])):
        value = rewrite(value, lambda b, e: (b, e), as_dtype(sums, p.dtype))
    operands = [Operand(*plain(p.dtype, memory_index(matrix, p.batch))) for matrix in (p.a, p.b)]
    return TiledProduct(
        name=p.name,
        batch=p.batch[0] * p.batch[1],
        m=p.m,
        n=p.n,
        k=p.k,
        a=operands[0],
        b=operands[1],
        inputs=p.epilogue.inputs,
        value=value,
        index=memory_index(p.c, p.batch),
    )


def _with_prologues(
    schedule: Schedule,
    readers: dict[int, list[int]],
    position: int,
    last_position: int,
    p: Product,
    kernel: TiledProduct,
    operands: tuple[int, int],
    claimed: set[int],
) -> tuple[TiledProduct, list[int], set[int]] | None:
    """The product with fused prologues, the buffers that it then reads for its operands, and the positions of the
    fused items; None without a prologue."""
    sizes = (kernel.batch, p.m, p.k), (kernel.batch, p.k, p.n)
    sides, read, positions = [kernel.a, kernel.b], [[operands[0]], [operands[1]]], set[int]()
    for side, matrix in enumerate((p.a, p.b)):
        index = memory_index(matrix, p.batch)
        found = prologue(schedule, readers, position, last_position, operands[side], index, sizes[side])
        if not isinstance(found, Prologue) or not claimed.isdisjoint(found.positions):
            continue
        if not on_gpu(schedule, found.buffers):
            continue
        sides[side] = Operand(found.inputs, found.value)
        read[side] = list(found.buffers)
        positions |= set(found.positions)
    if not positions:
        return None
    return replace(kernel, a=sides[0], b=sides[1]), read[0] + read[1], positions
