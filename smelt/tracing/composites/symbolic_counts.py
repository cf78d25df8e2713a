"""Factory functions with element, row or column counts (`torch.linspace(0, 1, x.shape[0])`).

Torch's C++ code takes such a count as an int, which specializes a symbolic size. Here the operator that the function
dispatches to is recorded with the size itself. Other calls are left to torch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from smelt.ops.symbolic_rules import COUNTS
from smelt.torch_private import DisableTorchDispatch, OpOverload
from smelt.tracing.fake.meta_results import canonical_device
from smelt.tracing.record.aten_call_recorder import AtenCallRecorder
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.symbolic.numbers_in_containers import has_symbols, specialize_nested
from smelt.tracing.symbolic.sym_numbers import SYMBOLIC

_OPTIONS = ("dtype", "device")


def _factory(recorder: AtenCallRecorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    if not has_symbols((*args, *kwargs.values())):
        return NotImplemented
    operator = _OPERATORS[func]
    arguments = _by_name(operator, args, kwargs)
    if arguments is None or any(
        not _is_size(arguments[name]) for name in COUNTS[operator] if name in arguments
    ):
        return NotImplemented
    arguments = {
        name: value if name in _symbolic_arguments(operator) else specialize_nested(value)
        for name, value in arguments.items()
    }
    defaults = {a.name: a.default_value for a in operator._schema.arguments}
    options = {name: arguments.pop(name, None) or defaults[name] for name in _OPTIONS}
    options["device"] = canonical_device(options["device"] or torch.get_default_device())
    with DisableTorchDispatch():
        return recorder.run(operator, tuple(arguments.values()), {**options, "pin_memory": False})


@cache
def _symbolic_arguments(operator: OpOverload) -> frozenset[str]:
    """Names of the arguments that may be symbolic: the counts, and numbers that only affect values. Others also
    determine sizes."""
    return COUNTS[operator] | {
        a.name for a in operator._schema.arguments if isinstance(a.type, torch.NumberType)
    }


def _by_name(operator: OpOverload, args: Args, kwargs: Kwargs) -> Kwargs | None:
    """The arguments by name, positional ones first and in order; None if some are unknown or missing."""
    arguments = [a for a in operator._schema.arguments if not a.kwarg_only]
    passed = {**dict(zip((a.name for a in arguments), args)), **kwargs}
    positional = {a.name: passed.pop(a.name, a.default_value) for a in arguments}
    if len(args) > len(arguments) or not passed.keys() <= set(_OPTIONS) or None in positional.values():
        return None
    if any(isinstance(value, torch.Tensor) for value in positional.values()):
        return None
    return {**positional, **passed}


def _is_size(value: Any) -> bool:
    return type(value) is int or (type(value) in SYMBOLIC and value.node.as_size() is not None)


_OPERATORS: dict[Any, OpOverload] = {
    getattr(torch, operator._schema.name.partition("::")[2]): operator for operator in COUNTS
}
# `composite(recorder, function, positional arguments, keyword arguments)`.
COMPOSITES = dict.fromkeys(_OPERATORS, _factory)
