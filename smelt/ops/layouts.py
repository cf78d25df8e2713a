"""Shape functions: what an operator returns for meta tensors, without torch's Python shape functions where possible.

torch registers Python functions over the C++ shape functions of most operators. They take 0.1 to 1 ms, and the first of
them that runs in a process imports torch's own compiler and sympy, for a second. `on_metas` therefore asks, in this order:

1. torch's C++ shape functions (`native/shapes.cpp`);
2. `_LAYOUTS`, for a few operators that every model uses and that have none;
3. the operator itself on real tensors of zeros, if they are few and it would otherwise be a Python function;
4. torch's function.

The answers of 2 and 3 are those of a CPU. Which dtypes a CPU has kernels for is no matter of shapes: after 1 the
operator is tried on tensors of one element. A function of `_LAYOUTS` that returns NotImplemented, and an operator that
refuses zeros, hand on to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from smelt import _native
from smelt.ops.kinds import Effects, effects

aten = torch.ops.aten
_META = torch.device("meta")
_CPU = torch.device("cpu")
_PYTHON = torch._C.DispatchKey.Meta  # among an operator's `py_kernels`: its shape function is Python
_FEW = 1 << 16  # elements, at least as many as an operator that is tried on zeros may touch

_CPP: dict[OpOverload, Callable[..., Any] | None] = {}


def on_metas(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], cpu: bool) -> Any:
    """What `func` returns for meta tensors; `cpu` says that they stand for tensors on a CPU. Raises what `func` raises."""
    out = _of_cpp(func, args, kwargs)
    if out is not NotImplemented and (not cpu or _accepts(func, args, kwargs)):
        return out
    if cpu and out is NotImplemented:
        out = _of_table(func, args, kwargs)
        if out is NotImplemented:
            out = _of_zeros(func, args, kwargs)
        if out is not NotImplemented:
            return out
    return func(*args, **kwargs)


def _of_cpp(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if func not in _CPP:
        schema = func._schema
        _CPP[func] = (
            _native.shape_function(schema.name.removeprefix("aten::"), schema.overload_name)
            if schema.name.startswith("aten::")
            else None
        )
    function = _CPP[func]
    if function is None:
        return NotImplemented
    try:
        return function(*args, **kwargs)
    except NotImplementedError:  # no argument is a meta tensor
        return NotImplemented


def _of_table(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    function = _LAYOUTS.get(func)
    return NotImplemented if function is None else function(*args, **kwargs)


# ---- by trying


def _accepts(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the operator runs on a CPU when every dimension is cut down to one element. Raises RuntimeError where it has
    no kernel for the dtypes."""
    for fill in (0, 1):  # neither a division by zero nor an index out of range counts
        try:
            func(*(_cut(a, fill) for a in args), **{k: _cut(v, fill) for k, v in kwargs.items()})
            return True
        except NotImplementedError as error:
            raise RuntimeError(*error.args) from error
        except (RuntimeError, ValueError, IndexError, TypeError):
            if func in _NEED_ROOM:
                return True
    return False


def _cut(value: Any, fill: int) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.full([min(n, 1) for n in value.size()], fill, dtype=value.dtype, device=_CPU)
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return [_cut(v, fill) for v in value]
    return _CPU if value == _META and isinstance(value, torch.device) else value


def _of_zeros(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if _PYTHON not in func.py_kernels or not _may_be_tried(effects(func)):
        return NotImplemented
    if _size((*args, *kwargs.values())) > _FEW:
        return NotImplemented
    try:
        return tried(func, args, kwargs)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return NotImplemented


def _may_be_tried(info: Effects) -> bool:
    return not (
        info.random or info.view or info.data_dependent or info.dynamic_shape or info.changes_metadata
    )


def _size(values: Any) -> int:
    """A bound for the elements of the arguments and of what they describe: all their sizes multiplied."""
    size = 1
    for value in _leaves(values):
        if isinstance(value, torch.Tensor):
            size *= max(value.numel(), 1)
        elif isinstance(value, (int, float)) and math.isfinite(value):
            size *= max(int(abs(value)), 1)
    return size


def _leaves(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value


def tried(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Layouts of what `func` gives on real tensors of zeros, as meta tensors; NotImplemented if it gives an argument back
    that its schema does not name."""
    real_args, real_kwargs = [_zeros(a) for a in args], {k: _zeros(v) for k, v in kwargs.items()}
    out = func(*real_args, **real_kwargs)
    if not effects(func).writes:
        given = {id(v) for v in _leaves((*real_args, *real_kwargs.values())) if isinstance(v, torch.Tensor)}
        if any(id(v) in given for v in _leaves((out,))):
            return NotImplemented
    return _to_meta(out)


def _zeros(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _uninitialized(value).zero_()
    if isinstance(value, (list, tuple)):
        return [_zeros(v) for v in value]
    return _CPU if value == _META and isinstance(value, torch.device) else value


def _uninitialized(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=_CPU)


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=_META)
    if isinstance(value, (list, tuple)):
        return type(value)(_to_meta(v) for v in value)
    return value


# ---- operators without a C++ shape function that models use


def _fresh(shape: Sequence[int], dtype: torch.dtype | None) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=_META)


def _embedding(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> Any:
    if weight.dim() != 2 or indices.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    return _fresh((*indices.shape, weight.shape[1]), weight.dtype)


def _convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """The memory format depends on which library computes; torch is asked, with uninitialized tensors."""
    n = x.dim() - 2
    if n not in (1, 2, 3) or x.dtype != weight.dtype or x.numel() == 0 or weight.numel() == 0:
        return NotImplemented
    real, real_weight = _uninitialized(x), _uninitialized(weight)
    real_bias = None if bias is None else _uninitialized(bias)
    stride, padding, dilation, extra = (_each(v, n) for v in (stride, padding, dilation, output_padding))
    backend = torch._C._select_conv_backend(  # type: ignore[call-arg]
        real, real_weight, real_bias, stride, padding, dilation, transposed, extra, groups
    )
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:])]
    if transposed:
        sizes = [
            (m - 1) * s - 2 * p + r + e for m, s, p, r, e in zip(x.shape[2:], stride, padding, reach, extra)
        ]
    else:
        sizes = [(m + 2 * p - r) // s + 1 for m, s, p, r in zip(x.shape[2:], stride, padding, reach)]
    if min(sizes) <= 0:
        return NotImplemented
    shape = [x.shape[0], weight.shape[1] * groups if transposed else weight.shape[0], *sizes]
    if n > 1:
        memory_format = torch._C._conv_determine_backend_memory_format(real, real_weight, backend)
        return torch.empty(shape, dtype=x.dtype, device=_META, memory_format=memory_format)
    # As the operator itself does.
    flat, flat_weight = real.contiguous().unsqueeze(2), real_weight.unsqueeze(2)
    memory_format = torch._C._conv_determine_backend_memory_format(flat, flat_weight, backend)
    shape.insert(2, 1)
    return torch.empty(shape, dtype=x.dtype, device=_META, memory_format=memory_format).squeeze(2)


def _each(value: Sequence[int], n: int) -> Sequence[int]:
    return list(value) * n if len(value) == 1 else value


def _layer_norm(
    x: torch.Tensor,
    normalized: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> Any:
    shape = list(normalized)
    n = len(shape)
    if not x.is_floating_point() or n == 0 or list(x.shape[x.dim() - n :]) != shape:
        return NotImplemented
    if any(p is not None and list(p.shape) != shape for p in (weight, bias)):
        return NotImplemented
    rows = [*x.shape[: x.dim() - n], *[1] * n]
    return _fresh(x.shape, x.dtype), _fresh(rows, x.dtype), _fresh(rows, x.dtype)


def _layer_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    normalized: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    wanted: Sequence[bool],
) -> Any:
    parameters = tuple(p if want else None for p, want in zip((weight, bias), wanted[1:]))
    if x.numel() == 0 or grad.shape != x.shape or wanted[1:] != [p is not None for p in parameters]:
        return NotImplemented
    return _fresh(x.shape, x.dtype) if wanted[0] else None, *(
        None if p is None else _fresh(p.shape, p.dtype) for p in parameters
    )


def _batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    var: torch.Tensor,
    momentum: float,
    eps: float,
) -> Any:
    if not x.is_floating_point() or x.dim() < 2:
        return NotImplemented
    if any(p is not None and p.shape != x.shape[1:2] for p in (weight, bias, mean, var)):
        return NotImplemented
    memory_format = suggested_format(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=_META, memory_format=memory_format)
    return out, _fresh([0], x.dtype), _fresh([0], x.dtype)


def suggested_format(x: torch.Tensor) -> torch.memory_format:
    """`Tensor::suggest_memory_format` of C++: channels last if the strides grow in that order."""
    if x.dim() not in (4, 5) or not x.numel() or x.stride(1) == 0:
        return torch.contiguous_format
    least = 0
    for d in (1, *range(x.dim() - 1, 1, -1), 0):
        step = x.stride(d)
        if step < least or (d == 0 and least == x.stride(1)):
            return torch.contiguous_format
        least = step * max(x.size(d), 1)
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if not query.is_floating_point() or query.dim() != 4 or value.size(-1) != query.size(-1):
        return NotImplemented
    batch, heads, length, _ = query.shape
    wide = torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype
    return _like(query), _fresh((batch, length, heads), wide).transpose(1, 2)


def _unsafe_view(x: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return _to_meta(x.view(size))


def _masked_fill(x: torch.Tensor, mask: torch.Tensor, value: Any) -> Any:
    if mask.dtype != torch.bool:
        return NotImplemented
    if isinstance(value, torch.Tensor) and (value.dim() or not torch.can_cast(value.dtype, x.dtype)):
        return NotImplemented
    return _fresh(torch.broadcast_tensors(x, mask)[0].shape, x.dtype)


def _roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """A CPU rolls one dimension after the other, each time joining two parts."""
    shifts, dims = ([v] if isinstance(v, int) else v for v in (shifts, dims))
    if x.numel() == 0 or len(shifts) != len(dims) or not dims:
        return NotImplemented
    for shift, dim in zip(shifts, dims):
        start = -shift % x.size(dim)
        parts = [x.narrow(dim, start, x.size(dim) - start), x.narrow(dim, 0, start)]
        x = _of_cpp(aten.cat.default, (parts, dim), {})
    return x


def _like(
    x: torch.Tensor,
    *_: Any,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: torch.memory_format | None = None,
) -> Any:
    """`zeros_like` and its like: torch is asked, with uninitialized tensors."""
    memory_format = torch.preserve_format if memory_format is None else memory_format
    return _to_meta(torch.empty_like(_uninitialized(x), dtype=dtype, memory_format=memory_format))


def _filled(size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> torch.Tensor:
    return _fresh(size, dtype)


def _full(size: Sequence[int], value: Any, *, dtype: torch.dtype | None = None, **__: Any) -> torch.Tensor:
    return _fresh(size, dtype or torch.full((), value).dtype)


def _new(x: torch.Tensor, size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Any:
    return _fresh(size, dtype or x.dtype)


def _scalar(value: Any, *, dtype: torch.dtype | None = None, **__: Any) -> torch.Tensor:
    return _fresh((), dtype)


def _arange(end: Any, **options: Any) -> Any:
    return _arange_between(0, end, 1, **options)


def _arange_between(
    start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **__: Any
) -> Any:
    """Whole numbers are counted exactly, others in double precision."""
    whole = all(type(n) is int for n in (start, end, step))
    if not all(type(n) in (int, float) and math.isfinite(n) for n in (start, end, step)):
        return NotImplemented
    if step == 0 or (end - start) * step < 0 or (not whole and dtype is not None):
        return NotImplemented
    length = -((start - end) // step) if whole else math.ceil((end - start) / step)
    return _fresh((length,), dtype or (torch.int64 if whole else None))


_LAYOUTS: dict[OpOverload, Callable[..., Any]] = {
    aten.embedding.default: _embedding,
    aten.convolution.default: _convolution,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._unsafe_view.default: _unsafe_view,
    aten.masked_fill.Scalar: _masked_fill,
    aten.masked_fill.Tensor: _masked_fill,
    aten.roll.default: _roll,
    aten.clone.default: _like,
    aten.empty_like.default: _like,
    aten.zeros_like.default: _like,
    aten.ones_like.default: _like,
    aten.full_like.default: _like,
    aten.rand_like.default: _like,
    aten.randn_like.default: _like,
    aten.zeros.default: _filled,
    aten.ones.default: _filled,
    aten.rand.default: _filled,
    aten.randn.default: _filled,
    aten.full.default: _full,
    aten.new_empty.default: _new,
    aten.new_zeros.default: _new,
    aten.new_ones.default: _new,
    aten.new_full.default: _new,
    aten.scalar_tensor.default: _scalar,
    aten.arange.default: _arange,
    aten.arange.start: _arange_between,
    aten.arange.start_step: _arange_between,
}

# Operators that one element is too few for.
_NEED_ROOM: frozenset[OpOverload] = frozenset(
    {
        aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default, aten.avg_pool2d.default,
        aten.avg_pool3d.default, aten.glu.default, aten.max_pool2d_with_indices.default,
        aten.nll_loss_forward.default, aten.reflection_pad1d.default, aten.reflection_pad3d.default,
        aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default,
        aten.topk.default,
    }
)  # fmt: skip
