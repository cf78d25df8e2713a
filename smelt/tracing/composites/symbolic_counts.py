"""Functions that make tensors of so many numbers, rows or columns (`torch.linspace(0, 1, x.shape[0])`).

torch's C++ code takes such a count for an int, where it asks a symbolic size for its number. Here the operator that the
function comes down to is recorded with the size itself. Other calls are left to torch.
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


def _made(recorder: AtenCallRecorder, func: Any, args: Args, kwargs: Kwargs) -> Any:
    if not has_symbols((*args, *kwargs.values())):
        return NotImplemented
    operator = _OPERATORS[func]
    given = _by_name(operator, args, kwargs)
    if given is None or any(not _is_size(given[name]) for name in COUNTS[operator] if name in given):
        return NotImplemented
    given = {
        name: value if name in _may_vary(operator) else specialize_nested(value) for name, value in given.items()
    }
    defaults = {a.name: a.default_value for a in operator._schema.arguments}
    options = {name: given.pop(name, None) or defaults[name] for name in _OPTIONS}
    options["device"] = canonical_device(options["device"] or torch.get_default_device())
    with DisableTorchDispatch():
        return recorder.run(operator, tuple(given.values()), {**options, "pin_memory": False})


@cache
def _may_vary(operator: OpOverload) -> frozenset[str]:
    """Arguments that may be symbolic: the counts, and numbers that the values are computed of. Others decide sizes, too."""
    return COUNTS[operator] | {
        a.name for a in operator._schema.arguments if isinstance(a.type, torch.NumberType)
    }


def _by_name(operator: OpOverload, args: Args, kwargs: Kwargs) -> Kwargs | None:
    """The arguments, positional ones first and in their order; None where there are others, or not all of those."""
    arguments = [a for a in operator._schema.arguments if not a.kwarg_only]
    given = {**dict(zip((a.name for a in arguments), args)), **kwargs}
    known = {a.name: given.pop(a.name, a.default_value) for a in arguments}
    if len(args) > len(arguments) or any(name not in _OPTIONS for name in given) or None in known.values():
        return None
    if any(isinstance(value, torch.Tensor) for value in known.values()):
        return None
    return {**known, **given}


def _is_size(value: Any) -> bool:
    return type(value) is int or (type(value) in SYMBOLIC and value.node.as_size() is not None)


_OPERATORS: dict[Any, OpOverload] = {
    getattr(torch, operator._schema.name.partition("::")[2]): operator for operator in COUNTS
}
# What is run in place of these functions: `body(recorder, function, positional arguments, keyword arguments)`.
COMPOSITES = dict.fromkeys(_OPERATORS, _made)
