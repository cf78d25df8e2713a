"""The native callable and the original of what `smelt.compile` returned, or of a module that was compiled in place."""

from __future__ import annotations

from types import MethodType
from typing import Any

from torch import nn

from smelt import _native
from smelt.torch_private import original_of_torch_compile


def native_callable(compiled: Any) -> _native.Wrapped | None:
    """The native callable of a compiled function, method or module, or of a module compiled in place; None for others."""
    state = getattr(compiled, "_smelt", None)
    if state is not None:
        compiled = state.call
    elif isinstance(compiled, nn.Module):
        compiled = compiled._compiled_call_impl
    found = getattr(compiled, "__func__", compiled)
    return found if isinstance(found, _native.Wrapped) else None


def eager_callable(compiled: Any) -> Any:
    """The original of a callable that smelt or torch.compile compiled; another object unchanged."""
    compiled = original_of_torch_compile(compiled)
    state = getattr(compiled, "_smelt", None)
    if state is not None:
        compiled = state.original
    if isinstance(compiled, _native.Wrapped):
        return compiled._smelt_original
    if isinstance(compiled, MethodType) and isinstance(compiled.__func__, _native.Wrapped):
        return MethodType(compiled.__func__._smelt_original, compiled.__self__)
    if isinstance(compiled, nn.Module) and compiled._compiled_call_impl is not None:
        return compiled._call_impl
    return compiled
