"""`scaled_dot_product_attention` of symbolic sizes where torch takes none of its fused kernels: its own formula, with the
products of `smelt.tracing.composites.symbolic_matmul`, for the same versions.
"""

from __future__ import annotations

import math
from functools import cache
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F

from smelt.torch_private import DisableAutocast
from smelt.tracing.composites import symbolic_matmul
from smelt.tracing.composites.symbolic_matmul import cast, product, shape_of, symbols_in
from smelt.tracing.record.call_arguments import Args, Kwargs, composite_of
from smelt.tracing.symbolic.sym_numbers import SYMBOLIC, wrap_symbolic, specialize
from smelt.tracing.symbolic.symbolic_numbers import Symbols

aten = torch.ops.aten

_FORMULA = 0  # torch's number of it, among those of its kernels
_HALVES = (torch.float16, torch.bfloat16)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    given = [query, key, value, *([] if attn_mask is None else [attn_mask])]
    symbols = symbols_in(*given)
    if symbols is None:
        return NotImplemented
    query, key, value, *mask = map(cast, given)
    if not _is_valid(query, key, value, mask[0] if mask else None, is_causal, scale):
        return NotImplemented
    with DisableAutocast():
        options = {"scale": scale, "enable_gqa": enable_gqa}
        asked = (query, key, value, *(mask or [None]), dropout_p, is_causal)
        if aten._fused_sdp_choice.default(*asked, **options) != _FORMULA:
            return NotImplemented
        bias = _bias(query, key, mask[0] if mask else None, is_causal)
        if enable_gqa:
            repeated = _for_each_head(query, key, value)
            if repeated is None:
                return NotImplemented
            key, value = repeated
        weights = _scores(symbols, _precise(query), _precise(key), scale)
        if bias is not None:
            weights = weights + bias
        weights = aten._safe_softmax.default(weights, -1)
        if dropout_p > 0.0:
            weights = torch.dropout(weights, dropout_p, True)
        return product(symbols, weights, _precise(value)).to(query.dtype)


def _is_valid(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, is_causal: bool, scale: Any
) -> bool:
    """Whether torch takes such arguments, and they have three dimensions or more."""
    if not (query.dtype == key.dtype == value.dtype) or min(x.dim() for x in (query, key, value)) < 3:
        return False
    if mask is not None and (is_causal or mask.dtype not in (torch.bool, query.dtype)):
        return False
    return scale is None or type(scale) is float


def _bias(query: torch.Tensor, key: torch.Tensor, mask: Any, is_causal: bool) -> Any:
    """What is added to the scores; None for nothing."""
    if is_causal:
        rows, columns = query.shape[-2], key.shape[-2]
        mask = torch.ones((rows, columns), dtype=torch.bool, device=query.device).tril()
    if mask is None or mask.dtype is not torch.bool:
        return mask
    nothing, never = (
        torch.scalar_tensor(n, dtype=query.dtype, device=query.device) for n in (0.0, -math.inf)
    )
    return torch.where(mask, nothing, never)


def _for_each_head(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[Any, Any] | None:
    """Keys and values repeated for the heads of the queries, by numbers that are the same at each call; None where those are
    no whole numbers."""
    if shape_of(query)[-3] == shape_of(key)[-3] == shape_of(value)[-3]:
        return key, value
    heads, of_key, of_value = (specialize(wrap_symbolic(x.shape[-3])) for x in (query, key, value))
    if heads % of_key or heads % of_value:
        return None
    return key.repeat_interleave(heads // of_key, -3), value.repeat_interleave(heads // of_value, -3)


def _precise(x: Any) -> Any:
    """What is computed with for `x`."""
    reduces_halves = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    return x.float() if x.dtype in _HALVES and not reduces_halves else x


def _scores(symbols: Symbols, query: Any, key: Any, scale: float | None) -> Any:
    """Products of queries and keys, both of which are scaled, as numbers are then smaller."""
    factor = _root(1.0 / _root(wrap_symbolic(query.shape[-1])) if scale is None else abs(scale))
    query = aten.mul.Scalar(query, -factor if scale is not None and scale < 0.0 else factor)
    return product(symbols, query, aten.mul.Scalar(key.transpose(-2, -1), factor))


def _root(number: Any) -> Any:
    return number**0.5 if type(number) in SYMBOLIC else math.sqrt(number)


@cache
def _own_functions() -> dict[str, Any]:
    """`torch.nn.functional` with its Python functions calling each other, and what this module and `products` have in the
    place of torch's."""
    made = dict(vars(F))
    for name, value in vars(F).items():
        if isinstance(value, FunctionType) and value.__globals__ is vars(F):
            copy = FunctionType(value.__code__, made, name, value.__defaults__, value.__closure__)
            copy.__kwdefaults__ = value.__kwdefaults__
            made[name] = copy
    for function in (F.linear, F.scaled_dot_product_attention):
        made[function.__name__] = _or_torchs(function)
    return made


def _or_torchs(function: Any) -> Any:
    body = {**symbolic_matmul.COMPOSITES, **_OF_ATTENTION}[function]

    def called(*args: Any, **kwargs: Any) -> Any:
        out = body(args, kwargs)
        return function(*args, **kwargs) if out is NotImplemented else out

    return called


def _multi_head_attention(args: Args, kwargs: Kwargs) -> Any:
    """torch's own code for it, which is one call to the mode that sees calls: those in it are not seen."""
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    if symbols_in(*tensors) is None:
        return NotImplemented
    return _own_functions()[F.multi_head_attention_forward.__name__](*args, **kwargs)


# `body(args, kwargs)` gives NotImplemented where torch's own code is to run.
_attentions = (
    F.scaled_dot_product_attention,
    aten.scaled_dot_product_attention,
    aten.scaled_dot_product_attention.default,
)
_OF_ATTENTION = dict.fromkeys(_attentions, composite_of(_attention))
COMPOSITES: dict[Any, Any] = {}
if symbolic_matmul.ASKS_NUMBERS:
    COMPOSITES = {**_OF_ATTENTION, F.multi_head_attention_forward: _multi_head_attention}
