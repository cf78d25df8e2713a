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
    real_bias = None if bias is None else _uninitialized(bias)
    stride, padding, dilation, extra = (_each(v, n) for v in (stride, padding, dilation, output_padding))
    options = stride, padding, dilation, transposed, extra, groups
    _, _, memory_format, _ = _convolution_format(x, weight, real_bias, options)
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
    if n == 1:
        shape.insert(2, 1)
    out = torch.empty(shape, dtype=x.dtype, device=_META, memory_format=memory_format)
    return out.squeeze(2) if n == 1 else out


def _convolution_format(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, options: Sequence[Any]
) -> tuple[torch.Tensor, torch.Tensor, torch.memory_format, Any]:
    """(uninitialized input, weight, memory format that the library computes in, library). An operator makes images of one
    row of one-dimensional data before it looks at the format."""
    real, real_weight = _uninitialized(x), _uninitialized(weight)
    backend = torch._C._select_conv_backend(real, real_weight, bias, *options)  # type: ignore[call-arg]
    if x.dim() == 3:
        real, real_weight = real.contiguous().unsqueeze(2), real_weight.unsqueeze(2)
    memory_format = torch._C._conv_determine_backend_memory_format(real, real_weight, backend)
    return real, real_weight, memory_format, backend


def _convolution_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    n = x.dim() - 2
    if n not in (1, 2, 3) or not (grad.dtype == x.dtype == weight.dtype) or grad.dim() != x.dim():
        return NotImplemented
    if 0 in (grad.numel(), x.numel(), weight.numel()):
        return NotImplemented
    if wanted[2] and not wanted[1]:  # some libraries give the weight's all the same
        return NotImplemented
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    stride, padding, dilation, extra = (_each(v, n) for v in (stride, padding, dilation, output_padding))
    options = stride, padding, dilation, transposed, extra, groups
    bias = None if bias_sizes is None else torch.empty(channels, dtype=x.dtype)
    real, real_weight, memory_format, backend = _convolution_format(x, weight, bias, options)
    formats = [memory_format, memory_format]
    if backend != torch._C._ConvBackend.Mkldnn:  # type: ignore[attr-defined]
        # The others look at the weight's format once more; groups are computed one by one and joined.
        if memory_format != torch.contiguous_format and (transposed or groups > 1):
            return NotImplemented
        formats[1] = suggested_format(real_weight.contiguous(memory_format=memory_format))
    grads = [
        torch.empty(t.shape, dtype=x.dtype, device=_META, memory_format=f)
        for t, f in zip((real, real_weight), formats)
    ]
    if n == 1:
        grads = [g.squeeze(2) for g in grads]
    return _wanted((*grads, _fresh((channels,), x.dtype)), wanted)


def _wanted(grads: Sequence[torch.Tensor | None], wanted: Sequence[bool]) -> tuple[torch.Tensor | None, ...]:
    return tuple(g if want else None for g, want in zip(grads, wanted, strict=True))


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


def _batch_norm_training(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    *settings: Any,
) -> Any:
    """`settings`: running mean and variance (absent in the form without), training, momentum, epsilon."""
    running, training = settings[:-3], settings[-3]
    parameters = [p for p in (weight, bias, *running) if p is not None]
    if not x.is_floating_point() or x.dim() < 2 or not (training or running):
        return NotImplemented
    if any(p.shape != x.shape[1:2] for p in parameters):
        return NotImplemented
    out = torch.empty(x.shape, dtype=x.dtype, device=_META, memory_format=suggested_format(x))
    size = x.shape[1:2] if training else [0]
    dtype = _statistics_dtype(x, parameters)
    return out, _fresh(size, dtype), _fresh(size, dtype)


def _batch_norm_functional(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    var: torch.Tensor,
    *settings: Any,
) -> Any:
    """Returns what the running statistics become as well."""
    results = _batch_norm_training(x, weight, bias, mean, var, *settings)
    return results if results is NotImplemented else (*results, _like(mean), _like(var))


def _statistics_dtype(x: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.dtype:
    """On a CPU, means and deviations have the input's dtype, unless parameters are float32."""
    return torch.float32 if any(p.dtype == torch.float32 for p in parameters) else x.dtype


def _batch_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    mean: torch.Tensor | None,
    deviation: torch.Tensor | None,
    training: bool,
    eps: float,
    wanted: Sequence[bool],
) -> Any:
    if x.numel() == 0 or x.dim() < 2 or grad.shape != x.shape or grad.dtype != x.dtype:
        return NotImplemented
    out = torch.empty(x.shape, dtype=x.dtype, device=_META, memory_format=suggested_format(x))
    dtype = _statistics_dtype(x, [] if weight is None else [weight])
    return _wanted((out, *(_fresh(x.shape[1:2], dtype) for _ in range(2))), wanted)


def _group_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    batch: int,
    channels: int,
    area: int,
    groups: int,
    eps: float,
) -> Any:
    parameters = [p for p in (weight, bias) if p is not None]
    if not x.is_floating_point() or batch * channels * area != x.numel() or not x.numel():
        return NotImplemented
    if channels % groups or any(list(p.shape) != [channels] or p.dtype != x.dtype for p in parameters):
        return NotImplemented
    out = torch.empty(x.shape, dtype=x.dtype, device=_META, memory_format=suggested_format(x))
    dtype = _statistics_dtype(x, parameters)
    return out, _fresh([batch, groups], dtype), _fresh([batch, groups], dtype)


def _group_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    deviation: torch.Tensor,
    weight: torch.Tensor | None,
    batch: int,
    channels: int,
    area: int,
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    if (
        not x.numel()
        or grad.shape != x.shape
        or grad.dtype != x.dtype
        or (weight is None and any(wanted[1:]))
    ):
        return NotImplemented
    out = torch.empty(x.shape, dtype=x.dtype, device=_META, memory_format=suggested_format(x))
    return _wanted((out, *(None if weight is None else _like(weight) for _ in range(2))), wanted)


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


def _attention_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    **__: Any,
) -> Any:
    """Heads lie beside each other."""
    if any(t.dim() != 4 for t in (grad, query, key, value)):
        return NotImplemented
    return tuple(_fresh(t.transpose(1, 2).shape, t.dtype).transpose(1, 2) for t in (query, key, value))


def _by_mul(grad: torch.Tensor, x: torch.Tensor, *_: Any, **__: Any) -> Any:
    """A backward that multiplies elementwise: TensorIterator lays it out like any product."""
    if grad.dtype != x.dtype or not x.is_floating_point() or grad.shape != x.shape:
        return NotImplemented
    return _of_cpp(aten.mul.Tensor, (grad, x), {})


def _by_mul_swapped(grad: torch.Tensor, x: torch.Tensor, *_: Any) -> Any:
    return _by_mul(x, grad)


def _elu_backward(grad: torch.Tensor, *settings: Any) -> Any:
    return _by_mul(grad, settings[-1])


def _softmax_backward(grad: torch.Tensor, out: torch.Tensor, dim: int, dtype: torch.dtype) -> Any:
    if grad.shape != out.shape or grad.dtype != out.dtype or not grad.is_floating_point():
        return NotImplemented
    return _fresh(grad.shape, dtype)


def _as_second(grad: torch.Tensor, x: torch.Tensor, *_: Any, **__: Any) -> Any:
    """A gradient that is contiguous whatever the forward's input was."""
    return _fresh(x.shape, x.dtype) if grad.dtype == x.dtype else NotImplemented


def _as_image(grad: torch.Tensor, x: torch.Tensor, *_: Any, **__: Any) -> Any:
    """A gradient in the memory format of the forward's input."""
    if grad.dtype != x.dtype or x.dim() not in (3, 4) or not x.numel():
        return NotImplemented
    return torch.empty(x.shape, dtype=x.dtype, device=_META, memory_format=suggested_format(x))


def _upsample_backward(grad: torch.Tensor, size: Sequence[int], input_size: Sequence[int], *_: Any) -> Any:
    if grad.dim() != len(input_size) or not grad.numel():
        return NotImplemented
    return torch.empty(input_size, dtype=grad.dtype, device=_META, memory_format=suggested_format(grad))


def _embedding_backward(
    grad: torch.Tensor, indices: torch.Tensor, rows: int, padding_idx: int, by_frequency: bool
) -> Any:
    if indices.dtype not in (torch.int64, torch.int32) or grad.shape[:-1] != indices.shape:
        return NotImplemented
    return _fresh((rows, grad.shape[-1]), grad.dtype)


def _of_sizes(grad: torch.Tensor, sizes: Sequence[int], *_: Any) -> torch.Tensor:
    """A gradient of a view: zeros of the base's sizes but for some places."""
    return _fresh(sizes, grad.dtype)


def _index_put(x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, *_: Any) -> Any:
    whole = (torch.int64, torch.int32)  # masks have a size of their own
    if x.dtype != values.dtype or any(i is not None and i.dtype not in whole for i in indices):
        return NotImplemented
    picked = _of_cpp(aten.index.Tensor, (x, indices), {})
    if picked is NotImplemented or torch.broadcast_shapes(picked.shape, values.shape) != picked.shape:
        return NotImplemented
    return _like(x)


def _pad(x: torch.Tensor, pad: Sequence[int], value: Any = 0) -> Any:
    shape = list(x.shape)
    if len(pad) % 2 or len(pad) > 2 * len(shape) or not any(p > 0 for p in pad) or not x.numel():
        return NotImplemented
    for i in range(len(pad) // 2):
        shape[-1 - i] += pad[2 * i] + pad[2 * i + 1]
    if min(shape) <= 0:
        return NotImplemented
    return torch.empty(shape, dtype=x.dtype, device=_META, memory_format=suggested_format(x))


def _var_mean(x: torch.Tensor, dim: Sequence[int] | None = None, *, keepdim: bool = False, **__: Any) -> Any:
    mean = _var(x, dim, keepdim=keepdim)
    return mean if mean is NotImplemented else (mean, _like(mean))


def _var(x: torch.Tensor, dim: Sequence[int] | None = None, *, keepdim: bool = False, **__: Any) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    return _of_cpp(aten.mean.dim, (x, dim, keepdim), {})


def _with_number(func: OpOverload) -> Callable[..., Any]:
    """The form of `func` whose second operand is a tensor takes a number too."""
    return lambda x, number, *rest: _of_cpp(func, (x, number, *rest), {})


def _scaled_in_place(x: torch.Tensor, number: Any) -> Any:
    return x if x.is_floating_point() and type(number) in (int, float) else NotImplemented


def _where_number(condition: torch.Tensor, number: Any, other: torch.Tensor) -> Any:
    dtype = torch.result_type(other, number)
    return _of_cpp(aten.where.self, (condition, _fresh((), dtype), other), {})


def _safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    return _fresh(x.shape, dtype or x.dtype) if x.is_floating_point() and x.dim() else NotImplemented


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
    aten.convolution_backward.default: _convolution_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten._native_batch_norm_legit.default: _batch_norm_training,
    aten._native_batch_norm_legit.no_stats: _batch_norm_training,
    aten._native_batch_norm_legit_functional.default: _batch_norm_functional,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
    aten.gelu_backward.default: _by_mul,
    aten.silu_backward.default: _by_mul,
    aten.mish_backward.default: _by_mul,
    aten.tanh_backward.default: _by_mul,
    aten.sigmoid_backward.default: _by_mul,
    aten.softplus_backward.default: _by_mul,
    aten.hardtanh_backward.default: _by_mul,
    aten.hardswish_backward.default: _by_mul,
    aten.threshold_backward.default: _by_mul_swapped,
    aten.leaky_relu_backward.default: _by_mul_swapped,
    aten.hardsigmoid_backward.default: _by_mul,
    aten.elu_backward.default: _elu_backward,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._log_softmax_backward_data.default: _softmax_backward,
    aten.nll_loss_backward.default: _as_second,
    aten.mse_loss_backward.default: _as_second,
    aten.smooth_l1_loss_backward.default: _as_second,
    aten.avg_pool2d_backward.default: _as_image,
    aten._adaptive_avg_pool2d_backward.default: _as_image,
    aten.max_pool2d_with_indices_backward.default: _as_image,
    aten.upsample_nearest2d_backward.default: _upsample_backward,
    aten.upsample_bilinear2d_backward.default: _upsample_backward,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.slice_backward.default: _of_sizes,
    aten.select_backward.default: _of_sizes,
    aten.index_put.default: _index_put,
    aten.constant_pad_nd.default: _pad,
    aten.var_mean.correction: _var_mean,
    aten.var.correction: _var,
    aten.div.Scalar: _with_number(aten.div.Tensor),
    aten.mul.Scalar: _with_number(aten.mul.Tensor),
    aten.div_.Scalar: _scaled_in_place,
    aten.mul_.Scalar: _scaled_in_place,
    aten.where.ScalarSelf: _where_number,
    aten._safe_softmax.default: _safe_softmax,
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
