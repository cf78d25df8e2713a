"""Building blocks of shape functions: torch's C++ shape functions, and meta tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt import _native
from smelt.graph.pytree import leaves, map_leaves
from smelt.graph.symbolic_strides import like_stride, suggests_channels_last
from smelt.torch_private import OpOverload, storage_at

META = torch.device("meta")
CPU = torch.device("cpu")

# Their shape functions look at the first rows, of tensors that may have none.
_OF_FIRST_ROWS = frozenset({torch.ops.aten.index_add.default, torch.ops.aten.index_add_.default})
_MANY = 1 << 28  # elements, for which there may be no memory: sizes that nobody gave

_CPP: dict[OpOverload, Callable[..., Any] | None] = {}


def of_cpp(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of torch's C++ shape function; NotImplemented if there is none."""
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
    except IndexError:
        if func in _OF_FIRST_ROWS and any(not t.numel() for t in leaves((args, kwargs), torch.Tensor)):
            return NotImplemented
        raise


def uninitialized(x: torch.Tensor, device: torch.device = CPU) -> torch.Tensor:
    """An uninitialized tensor on `device` with the sizes, strides and dtype of x."""
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=device)


def unbacked(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on a GPU with the sizes, strides and dtype of x and no memory: for queries of metadata, possibly for
    sizes for which there is no memory."""
    if storage_at is None or device.type != "cuda" or not torch.cuda.is_available():
        return uninitialized(x, device)
    extent = 1 + sum((n - 1) * step for n, step in zip(x.size(), x.stride())) if x.numel() else 0
    made = torch.empty(0, dtype=x.dtype, device=device)
    return made.set_(storage_at(0, device, extent * x.element_size()), 0, x.size(), x.stride())  # type: ignore[call-overload, no-any-return]


def elements(tree: Any) -> int:
    """The total number of elements of the tensors inside."""
    return sum(t.numel() for t in leaves(tree, torch.Tensor))


def on_any(layout: Callable[..., Any]) -> Callable[..., Any]:
    """`layout_on` of an operator whose results have the same layout on every device: that of a shape function that
    ATen's kernels share."""
    # Positional only, as the keyword arguments may have a `device` of their own.
    return lambda device, /, *args, **kwargs: layout(*args, **kwargs)


def to_meta(value: Any) -> Any:
    """`value` with each tensor inside replaced by a meta tensor of the same sizes, strides and dtype."""
    return map_leaves(value, torch.Tensor, _as_meta)


def _as_meta(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=META)


def fresh(shape: Sequence[int], dtype: torch.dtype | None) -> torch.Tensor:
    """A contiguous meta tensor; the default dtype for None."""
    return torch.empty(shape, dtype=dtype, device=META)


def like(
    x: torch.Tensor,
    *_: Any,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: torch.memory_format | None = None,
) -> Any:
    """Layouts of `zeros_like` and the like."""
    memory_format = torch.preserve_format if memory_format is None else memory_format
    if memory_format != torch.preserve_format:
        return torch.empty(x.shape, dtype=dtype or x.dtype, device=META, memory_format=memory_format)
    stride = like_stride(x.shape, x.stride())
    return torch.empty_strided(x.shape, stride, dtype=dtype or x.dtype, device=META)  # type: ignore[arg-type]


def suggested_format(x: torch.Tensor) -> torch.memory_format:
    """`Tensor::suggest_memory_format` of C++: channels last if the strides grow in that order."""
    if not suggests_channels_last(x.shape, x.stride()):
        return torch.contiguous_format
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d


def only(grads: Sequence[torch.Tensor | None], wanted: Sequence[bool]) -> tuple[torch.Tensor | None, ...]:
    """The gradients that an operator's output mask asks for, None for the others."""
    return tuple(g if want else None for g, want in zip(grads, wanted, strict=True))


def filled(size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> torch.Tensor:
    """The layout of `zeros` and `ones`: contiguous."""
    return fresh(size, dtype)
