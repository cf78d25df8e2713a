"""`scaled_dot_product_attention` with symbolic sizes where torch selects none of its fused kernels: its formula, with
the products of `smelt.tracing.composites.symbolic_matmul`, for the same versions."""

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
from smelt.tracing.symbolic.sym_numbers import SYMBOLIC, specialize, wrap_symbolic
from smelt.tracing.symbolic.symbolic_numbers import Symbols

aten = torch.ops.aten

_FORMULA = 0  # torch's enum value for the unfused formula
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
    operands = [query, key, value, *([] if attn_mask is None else [attn_mask])]
    symbols = symbols_in(*operands)
    if symbols is None:
        return NotImplemented
    query, key, value, *mask = map(cast, operands)
    if not _is_valid(query, key, value, mask[0] if mask else None, is_causal, scale):
        return NotImplemented
    with DisableAutocast():
        options = {"scale": scale, "enable_gqa": enable_gqa}
        arguments = (query, key, value, *(mask or [None]), dropout_p, is_causal)
        if aten._fused_sdp_choice.default(*arguments, **options) != _FORMULA:
            return NotImplemented
        bias = _bias(query, key, mask[0] if mask else None, is_causal)
        if enable_gqa:
            repeated = _repeat_heads(query, key, value)
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
    """Whether torch accepts these arguments, and they have three dimensions or more."""
    if not (query.dtype == key.dtype == value.dtype) or min(x.dim() for x in (query, key, value)) < 3:
        return False
    if mask is not None and (is_causal or mask.dtype not in (torch.bool, query.dtype)):
        return False
    return scale is None or type(scale) is float


def _bias(query: torch.Tensor, key: torch.Tensor, mask: Any, is_causal: bool) -> Any:
    """The bias of the scores; None for none."""
    if is_causal:
        rows, columns = query.shape[-2], key.shape[-2]
        mask = torch.ones((rows, columns), dtype=torch.bool, device=query.device).tril()
    if mask is None or mask.dtype is not torch.bool:
        return mask
    zero, minus_inf = (
        torch.scalar_tensor(n, dtype=query.dtype, device=query.device) for n in (0.0, -math.inf)
    )
    return torch.where(mask, zero, minus_inf)


def _repeat_heads(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[Any, Any] | None:
    """Keys and values repeated for the query heads, by specialized factors; None where the factors are no integers."""
    if shape_of(query)[-3] == shape_of(key)[-3] == shape_of(value)[-3]:
        return key, value
    heads, key_heads, value_heads = (specialize(wrap_symbolic(x.shape[-3])) for x in (query, key, value))
    if heads % key_heads or heads % value_heads:
        return None
    return key.repeat_interleave(heads // key_heads, -3), value.repeat_interleave(heads // value_heads, -3)


def _precise(x: Any) -> Any:
    """`x` in the precision of the computation."""
    reduces_halves = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    return x.float() if x.dtype in _HALVES and not reduces_halves else x


def _scores(symbols: Symbols, query: Any, key: Any, scale: float | None) -> Any:
    """The scaled products of queries and keys; both are scaled by the root of the factor, which keeps numbers small."""
    factor = _root(1.0 / _root(wrap_symbolic(query.shape[-1])) if scale is None else abs(scale))
    query = aten.mul.Scalar(query, -factor if scale is not None and scale < 0.0 else factor)
    return product(symbols, query, aten.mul.Scalar(key.transpose(-2, -1), factor))


def _root(number: Any) -> Any:
    return number**0.5 if type(number) in SYMBOLIC else math.sqrt(number)


@cache
def _functional_namespace() -> dict[str, Any]:
    """The namespace of `torch.nn.functional` with Python functions that call each other, and composites in place of
    `linear` and `scaled_dot_product_attention`."""
    namespace = dict(vars(F))
    for name, value in vars(F).items():
        if isinstance(value, FunctionType) and value.__globals__ is vars(F):
            copy = FunctionType(value.__code__, namespace, name, value.__defaults__, value.__closure__)
            copy.__kwdefaults__ = value.__kwdefaults__
            namespace[name] = copy
    namespace.update(linear=symbolic_matmul.linear, scaled_dot_product_attention=_attention_or_torch)
    return namespace


def _attention_or_torch(*args: Any, **kwargs: Any) -> Any:
    out = _ATTENTION[F.scaled_dot_product_attention](args, kwargs)
    return F.scaled_dot_product_attention(*args, **kwargs) if out is NotImplemented else out


def _multi_head_attention(args: Args, kwargs: Kwargs) -> Any:
    """torch's own code for it. The function mode sees it as one call and none of the calls inside, so these use the
    composites here."""
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    if symbols_in(*tensors) is None:
        return NotImplemented
    return _functional_namespace()[F.multi_head_attention_forward.__name__](*args, **kwargs)


_attentions = (
    F.scaled_dot_product_attention,
    aten.scaled_dot_product_attention,
    aten.scaled_dot_product_attention.default,
)
_ATTENTION = dict.fromkeys(_attentions, composite_of(_attention))
COMPOSITES: dict[Any, Any] = {}
if symbolic_matmul.SPECIALIZES_SIZES:
    COMPOSITES = {**_ATTENTION, F.multi_head_attention_forward: _multi_head_attention}
