"""Torch's operators of higher order: each is interpreted as the mathematics that it stands for on a CPU."""

from __future__ import annotations

from types import FunctionType
from typing import cast

from smelt.capture.base.call_handlers import LAZY_FUNCTIONS, SUBSTITUTES, Args, Kwargs, unsupported
from smelt.capture.semantics.calls import torch_polyfills as polyfills
from smelt.capture.vm.vm import VM

# `torch.cond` and the others check their arguments, then have their operator compiled and called by a function of `utils`.
_OPERATORS = "torch._higher_order_ops."
_BODIES: dict[tuple[str, str], object] = {
    (_OPERATORS + "utils", "_hop_compile_and_call"): polyfills.call_operator,
    ("torch._dynamo.eval_frame", "OptimizedModule.__call__"): polyfills.call_module,
    (_OPERATORS + "cond", "CondOp.__call__"): polyfills.cond,
    (_OPERATORS + "while_loop", "WhileLoopOp.__call__"): polyfills.while_loop,
    (_OPERATORS + "scan", "ScanOp.__call__"): polyfills.scan,
    (_OPERATORS + "associative_scan", "AssociativeScanOp.__call__"): polyfills.associative_scan,
    (_OPERATORS + "map", "MapImpl.__call__"): polyfills.map_rows,
    (_OPERATORS + "flex_attention", "FlexAttentionHOP.__call__"): polyfills.flex_attention,
}
SUBSTITUTES.update(cast(dict[tuple[str, str], FunctionType], _BODIES))
_FLEX_ATTENTION = "torch.nn.attention.flex_attention"


def _mark_static(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """What flex attention tells torch's compiler is no change of the tensor that eager would make."""
    if vm.frame is not None and vm.frame.globals.get("__name__") == _FLEX_ATTENTION:
        return None
    raise unsupported("torch._dynamo.mark_static")


def _is_supported(vm: VM, args: Args, kwargs: Kwargs) -> bool:
    """Whether torch's compiler runs on this interpreter, which is nothing to smelt."""
    return True


LAZY_FUNCTIONS["torch._dynamo.decorators", "mark_static"] = _mark_static
LAZY_FUNCTIONS["torch._dynamo.eval_frame", "is_dynamo_supported"] = _is_supported
