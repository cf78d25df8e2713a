"""`Builder`, with which lowerings build lazy tensors; it promotes and broadcasts as torch does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.cost_model import Costs
from smelt.graph.ir import Line, TensorSpec
from smelt.loops.compute_dtypes import opmath, result_type
from smelt.loops.kernel_ir import ReductionKind, Value
from smelt.loops.lazy_tensor import (
    Definition,
    Extern,
    Index,
    Insert,
    Load,
    Map,
    Number,
    Reduce,
    RuntimeIndex,
    Scan,
    Stored,
    Tensor,
)
from smelt.loops.loop_values import cast, const
from smelt.shapes.expr import Size, all_static, contiguous_stride
from smelt.torch_private import OpOverload

Operand = Tensor | int | float | bool


class Builder:
    """Builds the tensors of one aten node. `spec`: the node's own (a tuple for several results); intermediate tensors
    get a contiguous layout. `costs.products`: None if products and convolutions are ATen calls; otherwise the size
    from which a lowering gains by writing products."""

    def __init__(self, name: str, spec: Any, device: torch.device, line: Line | None, costs: Costs) -> None:
        self.name, self.spec, self.device, self.line = name, spec, device, line
        self.costs = costs
        self.made: list[Tensor | Extern] = []

    def tensor(self, shape: Sequence[Size], dtype: torch.dtype, definition: Definition) -> Tensor:
        """A tensor of the operator, contiguous until it takes the trace's layout."""
        shape = tuple(shape)
        spec = TensorSpec(shape, contiguous_stride(shape), dtype, self.device)
        tensor = Tensor(self.name, spec, definition, self.line)
        self.made.append(tensor)
        return tensor

    def call(self, op: OpOverload, args: Sequence[Any], spec: TensorSpec | None = None) -> Tensor:
        """The result of another ATen operator on earlier tensors, with the node's own spec unless another is passed."""
        spec = spec or self.spec
        result = Tensor(self.name, spec, Stored(), self.line)
        self.made.append(Extern(op, tuple(args), {}, (result,), self.name, self.line))
        return result

    def call_for(self, op: OpOverload, args: Sequence[Any], wanted: int) -> Tensor:
        """Like `call`, for an operator of several results, all of which the node has: the one that is `wanted`."""
        result = Tensor(self.name, self.spec[wanted], Stored(), self.line)
        results = tuple(result if k == wanted else None for k in range(len(self.spec)))
        self.made.append(Extern(op, tuple(args), {}, results, self.name, self.line))
        return result

    def check(self, by: OpOverload, holds: Tensor, message: str) -> None:
        """Call `by`, an assertion, which fails if `holds`, a 0-d bool, is false. On a GPU the failure surfaces later."""
        self.made.append(Extern(by, (holds, message), {}, (None,), "check", self.line, raises=True))

    def view(self, source: Tensor, shape: Sequence[Size], index: Callable[[Index], Index]) -> Tensor:
        """`result[i] = source[index(i)]`, sharing source's memory."""
        return self._gather(source, shape, index, view=True)

    def copy(
        self, source: Tensor, shape: Sequence[Size], index: Callable[[Index], Index], cost: float = 0.0
    ) -> Tensor:
        """`result[i] = source[index(i)]`, in memory of its own. `cost`: of reading at that index instead of in order."""
        return self._gather(source, shape, index, False, cost)

    def _gather(
        self,
        source: Tensor,
        shape: Sequence[Size],
        index: Callable[[Index], Index],
        view: bool,
        cost: float = 0.0,
    ) -> Tensor:
        def body(load: Load, i: Index) -> Value:
            return load(source, index(i))

        return self.tensor(shape, source.dtype, Map((source,), body, cost, view))

    def map(
        self,
        shape: Sequence[Size],
        dtype: torch.dtype,
        inputs: Sequence[Tensor],
        body: Callable[[Load, Index], Value],
        cost: float = 1.0,
    ) -> Tensor:
        """A tensor whose element at an index is `body(load, index)`; `cost` in additions of one element."""
        return self.tensor(shape, dtype, Map(tuple(inputs), body, cost))

    def pointwise(
        self,
        f: Callable[..., Value],
        operands: Sequence[Operand],
        compute: torch.dtype | Sequence[torch.dtype] | None = None,
        out: torch.dtype | None = None,
        cost: float = 1.0,
        shape: Sequence[Size] | None = None,
        scalars: Sequence[Operand] = (),
        unrounded: Sequence[int] = (),
    ) -> Tensor:
        """`f` over broadcast operands converted to `compute` (one for all or one each; default: the dtype ATen
        promotes to, and from there to its compute dtype), converted to `out` (default: the node's dtype). `scalars`
        (`alpha`) take no part in promotion: they come last, in the dtype of the first operand's computation.
        `unrounded`: the operands that are not rounded to the promoted dtype if they are numbers or, on a CPU, single
        elements; on a GPU, if they are on the CPU."""
        promoted = None
        if compute is None:
            promoted = result_type(operands)
            compute = opmath(promoted)
        each = [compute] * len(operands) if isinstance(compute, torch.dtype) else compute
        out = out or self.spec.dtype
        shape = self.spec.shape if shape is None else tuple(shape)
        readers = [
            _reader(x, len(shape), None if i in unrounded and self.is_scalar(x) else promoted, dtype)
            for i, (x, dtype) in enumerate(zip(operands, each))
        ]
        readers += [_reader(scalar, len(shape), None, each[0]) for scalar in scalars]

        def body(load: Load, index: Index) -> Value:
            return cast(f(*[read(load, index) for read in readers]), out)

        inputs = tuple(operand for operand in (*operands, *scalars) if isinstance(operand, Tensor))
        return self.tensor(shape, out, Map(inputs, body, cost))

    def is_scalar(self, x: Operand) -> bool:
        """Whether ATen reads the operand once, before its loop: a number or one element, on a GPU one of the CPU."""
        if not isinstance(x, Tensor) or self.device.type != "cuda":
            return is_single(x)
        return isinstance(x, Number) or x.spec.device.type == "cpu"

    def insert(
        self,
        target: Tensor,
        shape: Sequence[Size],
        inputs: Sequence[Tensor],
        body: Callable[[Load, Index], Value],
        at: Callable[[Index], Index],
        runtime_indices: tuple[RuntimeIndex, ...] = (),
    ) -> Insert:
        """`target[at(i)] = body(load, i)` for the indices `i` of `shape`, in the dtype of `target`; see `Insert`.
        `inputs`: the inputs of `body` and `runtime_indices`."""
        source = self.map(shape, target.dtype, inputs, lambda load, i: cast(body(load, i), target.dtype), 0.0)
        return Insert(target, source, at, runtime_indices, self.line)

    def constant(self, value: Callable[[Index], Value]) -> Tensor:
        """A tensor computed from its indices alone, with the node's shape and dtype."""
        dtype = self.spec.dtype
        return self.tensor(
            self.spec.shape, dtype, Map((), lambda load, index: cast(value(index), dtype), 0.5)
        )

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """`x` converted as ATen converts; `x` itself if it has the dtype."""
        return x if x.dtype is dtype else self.pointwise(lambda v: v, [x], dtype, dtype, 0.5, x.shape)

    def reduce(
        self,
        kind: ReductionKind,
        source: Tensor,
        dims: Sequence[int],
        keepdim: bool = False,
        compute: torch.dtype | None = None,
        f: Callable[[Value], Value] = lambda v: v,
    ) -> Tensor:
        """Reduce `f(source)` over `dims`, with an accumulator of `compute`."""
        compute = compute or opmath(source.dtype)
        kept = tuple(d for d in range(len(source.shape)) if d not in dims)
        reduced = tuple(sorted(dims))
        shape = tuple(1 if d in dims else s for d, s in enumerate(source.shape) if keepdim or d not in dims)

        def body(load: Load, index: Index, position: Index) -> Value:
            full: list[Size] = [0] * len(source.shape)
            for d, i in zip(kept, [index[d] for d in kept] if keepdim else index):
                full[d] = i
            for d, i in zip(reduced, position):
                full[d] = i
            return f(cast(load(source, tuple(full)), compute))

        sizes = tuple(source.shape[d] for d in reduced)
        dtype = torch.int64 if kind in ("argmax", "argmin") else compute
        return self.reduction(kind, shape, dtype, (source,), sizes, body)

    def reduction(
        self,
        kind: ReductionKind,
        shape: Sequence[Size],
        dtype: torch.dtype,
        inputs: Sequence[Tensor],
        sizes: tuple[Size, ...],
        body: Callable[[Load, Index, Index], Value],
        cost: float = 1.0,
    ) -> Tensor:
        """The reduction of `body` over `sizes`; a map of one element, since fusion relies on reductions having loops."""
        if not all(s == 1 for s in sizes):
            return self.tensor(shape, dtype, Reduce(tuple(inputs), kind, sizes, body, cost))

        def only(load: Load, index: Index) -> Value:
            position = kind in ("argmax", "argmin")
            return const(0, dtype) if position else body(load, index, (0,) * len(sizes))

        return self.map(shape, dtype, inputs, only, cost)

    def scan(self, kind: ReductionKind, source: Tensor, dim: int) -> Tensor:
        """The inclusive scan of `source` along `dim`, of its shape and dtype."""
        return self.tensor(source.shape, source.dtype, Scan((source,), kind, dim))


def is_single(x: Operand) -> bool:
    """Whether an operand is a number, or a tensor of one element."""
    return not isinstance(x, Tensor) or all(size == 1 for size in x.shape)


def broadcast_shape(shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
    """The shape to which broadcastable shapes broadcast. Raises NeedsFixedSize if that depends on symbols."""
    rank = max(map(len, shapes))
    padded = [(*[1] * (rank - len(shape)), *shape) for shape in shapes]
    wide = [dict.fromkeys(size for size in sizes if size != 1) for sizes in zip(*padded)]
    return tuple([next(iter(sizes), 1) if len(sizes) < 2 else all_static(*sizes)[0] for sizes in wide])


def broadcast(index: Index, shape: Sequence[Size]) -> Index:
    """`index` of a tensor as an index of an operand of `shape` broadcast to it."""
    skip = len(index) - len(shape)
    return tuple(0 if s == 1 else i for i, s in zip(index[skip:], shape))


def _reader(
    operand: Operand, rank: int, promoted: torch.dtype | None, compute: torch.dtype
) -> Callable[[Load, Index], Value]:
    """Elements of an operand broadcast to `rank` dimensions, rounded through `promoted` if that is narrower."""
    if not isinstance(operand, Tensor):
        number = const(operand if promoted is None else _rounded(operand, promoted), compute)
        return lambda load, index: number
    tensor, picks = operand, None
    if len(tensor.shape) != rank or 1 in tensor.shape:
        picks = [d if s != 1 else -1 for d, s in enumerate(tensor.shape, rank - len(tensor.shape))]
    narrow = promoted if promoted is not compute else None

    def read(load: Load, index: Index) -> Value:
        value = load(tensor, index if picks is None else tuple([index[d] if d >= 0 else 0 for d in picks]))
        return cast(value if narrow is None else cast(value, narrow), compute)

    return read


def _rounded(number: float, dtype: torch.dtype) -> float:
    """A Python number as `dtype` represents it."""
    if dtype in (torch.bfloat16, torch.float16):
        return torch.tensor(number, dtype=dtype).item()
    return number
