"""Torch's higher-order operators: the VM interprets a Python implementation of each (`torch_polyfills.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType
from typing import cast

from smelt.capture.base.call_handlers import (
    LAZY_FUNCTIONS,
    SUBSTITUTES,
    Args,
    Kwargs,
    function,
    unsupported,
)
from smelt.capture.semantics.calls import torch_polyfills as polyfills
from smelt.capture.semantics.calls.python_functions import interpret
from smelt.capture.vm.vm import VM
from smelt.torch_private import HigherOrderOperator
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_numbers import specialize

# `torch.cond` and the others check their arguments, then call a function of `utils` that compiles and calls the operator; in
# torch 2.11, they call torch.compile themselves in the environment that `setup_compilation_env` makes.
_OPERATORS = "torch._higher_order_ops."
_BODIES: dict[tuple[str, str], object] = {
    (_OPERATORS + "utils", "_hop_compile_and_call"): polyfills.call_operator,
    (_OPERATORS + "utils", "setup_compilation_env"): polyfills.compilation_env,
    ("torch._dynamo.eval_frame", "OptimizedModule.__call__"): polyfills.call_module,
    (_OPERATORS + "cond", "CondOp.__call__"): polyfills.cond,
    (_OPERATORS + "while_loop", "WhileLoopOp.__call__"): polyfills.while_loop,
    (_OPERATORS + "scan", "ScanOp.__call__"): polyfills.scan,
    (_OPERATORS + "associative_scan", "AssociativeScanOp.__call__"): polyfills.associative_scan,
    (_OPERATORS + "map", "MapImpl.__call__"): polyfills.map_rows,
    (_OPERATORS + "wrap", "Wrap.__call__"): polyfills.wrap,
    (_OPERATORS + "out_dtype", "OutDtypeOperator.__call__"): polyfills.out_dtype,
    (_OPERATORS + "invoke_subgraph", "InvokeSubgraphHOP.__call__"): polyfills.call_subgraph,
    (_OPERATORS + "wrap", "TagActivationCheckpoint.__call__"): polyfills.checkpoint,
    (_OPERATORS + "flex_attention", "FlexAttentionHOP.__call__"): polyfills.flex_attention,
}
SUBSTITUTES.update(cast(dict[tuple[str, str], FunctionType], _BODIES))
# Operators that call their first argument with the tuple that follows. Their backward raises an error.
_WITHOUT_GRADIENTS = ("strict_mode", "hints_wrapper")
_FLEX_ATTENTION = "torch.nn.attention.flex_attention"


def _mark_static(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """Specialize the sizes of a tensor. As in torch, a compiler leaves no mark on it. Flex attention's hint is ignored."""
    if vm.frame is not None and vm.frame.globals.get("__name__") == _FLEX_ATTENTION:
        return None
    tensor, dims = [*args, *kwargs.values(), None][:2]
    if type(tensor) is not FakeTensor or len(args) + len(kwargs) > 2:
        raise unsupported("torch._dynamo.mark_static")
    every = range(tensor.dim()) if dims is None else (dims,)
    for dim in cast("Sequence[int]", dims if type(dims) in (list, tuple) else every):
        specialize(tensor.shape[dim])
    return None


def _is_supported(vm: VM, args: Args, kwargs: Kwargs) -> bool:
    """True: whether torch's compiler supports this interpreter is irrelevant to smelt."""
    return True


@function(HigherOrderOperator.__call__)
def _call_operator(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """The call of an operator that has no implementation above."""
    name = getattr(args[0], "_name", None)
    if name == "foreach_map":
        return interpret(vm, cast(FunctionType, polyfills.wrap), args, kwargs)
    if name in _WITHOUT_GRADIENTS and not polyfills.need_gradients(cast("Sequence[object]", args[2])):
        return interpret(vm, cast(FunctionType, polyfills.call_with), args, kwargs)
    raise unsupported(f"the higher-order operator {name}")


LAZY_FUNCTIONS["torch._dynamo.decorators", "mark_static"] = _mark_static
LAZY_FUNCTIONS["torch._dynamo.eval_frame", "is_dynamo_supported"] = _is_supported
