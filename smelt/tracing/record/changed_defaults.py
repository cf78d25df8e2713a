"""Operators under a default dtype or a determinism that the program has set inside of the function, and after a state of the
random generator that it has set.

The torch-level graph repeats the setting (`graph/torch_settings.py`). The aten graph runs, and is compiled, under the
settings of the call, so it may have only operators that compute the same under both.
"""

from __future__ import annotations

import torch

from smelt.graph import torch_settings
from smelt.graph.operator_effects import effects
from smelt.graph.pytree import leaves
from smelt.reasons import RANDOM_STATE, UNSUPPORTED_EFFECT
from smelt.torch_private import OpOverload
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.record.current_call import CurrentCall

aten = torch.ops.aten
GENERATOR = -1  # in `CurrentCall.changed`: the compiled frame sets the generator's state, after the graph
_FLOATS = (float, torch.SymFloat)
# Factories whose dtype is that of the numbers that they get.
_TYPED_BY_NUMBERS = frozenset((aten.arange, aten.full, aten.scalar_tensor))
# Factories that may have tensors for numbers.
_BETWEEN_TENSORS = frozenset((aten.linspace, aten.logspace))
# Operators, besides pointwise ones and views, that compute the same with and without deterministic algorithms on a CPU.
_DETERMINISTIC = frozenset(
    (
        aten.sum, aten.mean, aten.amax, aten.amin, aten.cat, aten.clone, aten._to_copy, aten.mm, aten.addmm, aten.bmm,
        aten._softmax, aten._log_softmax, aten.native_layer_norm, aten.full, aten.zeros, aten.ones, aten.arange,
        aten.scalar_tensor, aten.full_like, aten.zeros_like, aten.ones_like, aten.fill, aten.copy,
    )
)  # fmt: skip
# Operators whose results are integers or bools where all operands are.
_INTEGRAL = frozenset(
    (
        aten.add, aten.sub, aten.mul, aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.bitwise_and,
        aten.bitwise_or, aten.bitwise_not, aten.logical_not, aten.logical_and, aten.logical_or, aten.clone, aten.cat,
        aten.index, aten.any, aten.all, aten.sum, aten.argmax, aten.argmin, aten.sort,
    )
)  # fmt: skip


def adapted(call: CurrentCall, func: OpOverload, args: Args, kwargs: Kwargs) -> Kwargs:
    """`kwargs` with which the operator computes the same under the settings of the call. Raises Unsupported where it has
    none."""
    if GENERATOR in call.changed and effects(func).random:
        raise call.unsupported(RANDOM_STATE, f"{func} after torch.set_rng_state")
    creates = any("Tensor" in str(result.type) for result in func._schema.returns)
    if not creates and not effects(func).writes:
        return kwargs  # reads metadata: an error would end the process in C++ code that must not raise
    tensors = leaves((args, kwargs), FakeTensor)
    if torch_settings.DETERMINISTIC in call.changed and not _is_deterministic(func, tensors):
        raise call.unsupported(UNSUPPORTED_EFFECT, f"{func} after torch.use_deterministic_algorithms")
    if torch_settings.DEFAULT_DTYPE not in call.changed:
        return kwargs
    names = [a.name for a in func._schema.arguments]
    if "dtype" in names and (not tensors or func.overloadpacket in _BETWEEN_TENSORS):
        return _with_dtype(func, names, args, kwargs)
    if _follows_default(func, args, kwargs, tensors):
        raise call.unsupported(UNSUPPORTED_EFFECT, f"{func} after torch.set_default_dtype")
    return kwargs


def _is_deterministic(func: OpOverload, tensors: list[FakeTensor]) -> bool:
    listed = torch.Tag.pointwise in func.tags or effects(func).view or func.overloadpacket in _DETERMINISTIC
    return listed and all(t.device.type == "cpu" for t in tensors)


def _with_dtype(func: OpOverload, names: list[str], args: Args, kwargs: Kwargs) -> Kwargs:
    """`kwargs` of a factory, with the dtype that it chooses now."""
    index = names.index("dtype")
    dtype = (
        args[index] if index < len(args) else kwargs.get("dtype", func._schema.arguments[index].default_value)
    )
    numbers = (*args, *kwargs.values())
    is_integral = func.overloadpacket in _TYPED_BY_NUMBERS and not any(
        isinstance(n, _FLOATS) for n in numbers
    )
    return kwargs if dtype is not None or is_integral else {**kwargs, "dtype": torch.get_default_dtype()}


def _follows_default(func: OpOverload, args: Args, kwargs: Kwargs, tensors: list[FakeTensor]) -> bool:
    """Whether the default dtype may decide in which dtype an operator on tensors computes."""
    if leaves((args, kwargs), complex):
        return True
    if any(t.dtype.is_floating_point or t.dtype.is_complex for t in tensors):
        return False
    is_integral = func.overloadpacket in _INTEGRAL and not leaves((args, kwargs), _FLOATS)
    return not is_integral and not effects(func).view
