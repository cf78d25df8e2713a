"""The public functions where smelt cannot work with the torch or the Python that it meets: everything runs eagerly."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from smelt.errors import OptionError, Unavailable

_why = ""
_was_said = False


def because(why: str) -> None:
    """`why` is what the warning and the errors say."""
    global _why
    _why = why


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "smelt",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Returns `model` as it is, and warns once.

    Raises:
        Unavailable: `fullgraph` asked for a program that is compiled as a whole.
        TypeError: `model` cannot be called.
    """
    global _was_said
    if model is None:
        return functools.partial(compile, fullgraph=fullgraph, disable=disable)
    if isinstance(model, type) or not callable(model):
        raise TypeError(f"smelt.compile: model must be a function, a callable or an nn.Module, got {model!r}")
    if fullgraph and not disable:
        raise Unavailable(f"smelt.compile(fullgraph=True): {_why}")
    if not _was_said and not disable:
        _was_said = True
        warnings.warn(f"smelt compiles nothing here, functions run eagerly: {_why}", stacklevel=2)
    return model


def disable(fn: Any = None, recursive: bool = True) -> Any:
    """Returns `fn` as it is: nothing is compiled."""
    return disable if fn is None else fn


def is_compiling() -> bool:
    """False: nothing is compiled."""
    return False


def graph_break() -> None:
    """Does nothing."""


def list_backends() -> list[str]:
    """No names: nothing is compiled."""
    return []


def register_backend(fn: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Returns `fn` as it is: no backend is called.

    Raises OptionError for what is no function with a name.
    """
    if fn is None:
        return functools.partial(register_backend, name=name)
    if not callable(fn) or not (name or getattr(fn, "__name__", "")):
        raise OptionError(f"register_backend: {fn!r} is no function with a name")
    return fn


def reset() -> None:
    """Does nothing: nothing was compiled."""
