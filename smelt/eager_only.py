"""What the public functions do where smelt cannot work with the torch or Python that it meets, or is turned off: everything
runs eagerly."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from smelt.errors import OptionError, Unavailable

_why = ""
_by_request = False
_was_said = False


def because(why: str, *, by_request: bool = False) -> None:
    """`why` is what the warning and the errors say. `by_request`: the user wants it, so `compile` says nothing."""
    global _why, _by_request
    _why, _by_request = why, by_request


def compile(model: Any, *, fullgraph: bool, disable: bool, **others: object) -> Any:
    """Returns `model` as it is, and warns once.

    Raises:
        Unavailable: `fullgraph` asked for a program that is compiled as a whole, and smelt is not turned off.
        TypeError: `model` cannot be called.
    """
    if model is None:
        return lambda m: _compile(m, fullgraph, disable, 3)
    return _compile(model, fullgraph, disable, 4)


def _compile(model: Any, fullgraph: bool, disable: bool, level: int) -> Any:
    """`level`: of the user's frame, for the warning."""
    global _was_said
    if not callable(model) and not isinstance(model, (staticmethod, classmethod)):
        raise TypeError(f"smelt.compile: model must be a function, a callable or an nn.Module, got {model!r}")
    if _by_request or disable:
        return model
    if fullgraph:
        raise Unavailable(f"smelt.compile(fullgraph=True): {_why}")
    if not _was_said:
        _was_said = True
        warnings.warn(f"smelt compiles nothing here, functions run eagerly: {_why}", stacklevel=level)
    return model


def disable(fn: Any, recursive: bool) -> Any:
    """Returns `fn` as it is: nothing is compiled."""
    return functools.partial(disable, recursive=recursive) if fn is None else fn


def trace(fn: Any, **others: object) -> Any:
    """Nothing can be captured here: raises Unavailable."""
    raise Unavailable(f"smelt.trace: {_why}")


def check_available(name: str) -> None:
    """Nothing can be captured here: raises Unavailable."""
    raise Unavailable(f"smelt.{name}: {_why}")


def explain(fn: Any, anew: Callable[[], Any], differently: bool, times: int) -> Any:
    """Raises Unavailable: there is nothing to explain."""
    raise Unavailable(f"smelt.explain: {_why}")


def dump(directory: object, override: bool) -> Any:
    """A context in which nothing is written: nothing is compiled."""
    return contextlib.nullcontext(SimpleNamespace(files=[]))


def list_backends() -> list[str]:
    """No names: nothing is compiled."""
    return []


def register_backend(fn: Callable[..., Any], name: str | None) -> None:
    """No backend is called.

    Raises OptionError for what is no function with a name.
    """
    if not callable(fn) or not (name or getattr(fn, "__name__", "")):
        raise OptionError(f"register_backend: {fn!r} is no function with a name")


def reset() -> None:
    """Does nothing: nothing was compiled."""


def export(*arguments: object) -> Any:
    """Nothing can be captured here: raises Unavailable."""
    raise Unavailable(f"smelt.export: {_why}")
