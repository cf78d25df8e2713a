"""Plain tensor classes: those that differ from torch's own only in their type, in names that torch does not have, and
in `__torch_function__`."""

from __future__ import annotations

import types

import torch

from smelt.torch_private import disabled_torch_function_impl

PLAIN_TYPES: tuple[type, ...] = (torch.Tensor, torch.nn.Parameter)

_METACLASSES = tuple({type(cls) for cls in PLAIN_TYPES})
# Attributes of a class that defines nothing, and those that constructors, annotations and copies add.
_HARMLESS = frozenset(
    (
        "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__init__", "__new__",
        "__init_subclass__", "__firstlineno__", "__static_attributes__", "__orig_bases__", "__parameters__",
        "__slotnames__", "__annotate__", "__annotate_func__", "__annotations_cache__",
        # texts, copies and pickles of such tensors are created at graph breaks
        "__repr__", "__str__", "__format__", "__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__setstate__",
    )
)  # fmt: skip


def is_plain_subclass(cls: type) -> bool:
    """Whether tensors of `cls`, a subclass of torch's, differ from others only by their type, by names of their own
    and by a `__torch_function__`: nothing else that torch or the interpreter looks up is overridden."""
    if cls in PLAIN_TYPES:
        return True
    if type(cls) not in _METACLASSES or not issubclass(cls, PLAIN_TYPES):
        return False
    if cls.__basicsize__ != torch.Tensor.__basicsize__:  # no tensor can become one
        return False
    own = [base for base in cls.__mro__ if base not in _TORCH]
    return not any(map(_overrides, own))


_TORCH = frozenset(base for cls in PLAIN_TYPES for base in cls.__mro__)


def _overrides(base: type) -> bool:
    """Whether `base` overrides an attribute of tensors, or a special method."""
    names = set(vars(base)) - _HARMLESS
    own = vars(base).get("__torch_function__")
    if own is disabled_torch_function_impl or _is_handler(own):
        names.discard("__torch_function__")
    return any(
        hasattr(torch.nn.Parameter, name) or (name.startswith("__") and name.endswith("__")) for name in names
    )


def _is_handler(own: object) -> bool:
    """Whether a class attribute `__torch_function__` is a Python handler that receives no instance."""
    return type(own) in (classmethod, staticmethod) and type(own.__func__) is types.FunctionType  # type: ignore[attr-defined]


def handler_in(cls: type) -> object:
    """The `__torch_function__` of `cls`, unbound; None where torch does not call it."""
    own = next(
        (vars(base)["__torch_function__"] for base in cls.__mro__ if "__torch_function__" in vars(base)), None
    )
    return None if own is disabled_torch_function_impl else own
