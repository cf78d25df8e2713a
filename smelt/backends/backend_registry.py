"""Backends by name: smelt's own, those registered by the user, and those installed for torch.compile.

Third-party packages register backends for torch.compile as entry points of the group `torch_dynamo_backends`. A lookup by
name imports the package.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from smelt.backends import eager, fx_bridge, smelt
from smelt.config import Config
from smelt.errors import BackendError, OptionError, nearest
from smelt.graph.graph_callable import Compiled
from smelt.tracing.operator_sets import SETS, OperatorSet
from smelt.tracing.record.traced import Traced

Backend = Callable[[Traced, Config], Compiled]

_GROUP = "torch_dynamo_backends"
_BUILT_IN: dict[str, Backend] = {
    "smelt": smelt.compile_graph,
    "eager": eager.eager,
    "aot_eager": eager.aot_eager,
}
_registered: dict[str, Backend] = {}


def lookup(backend: str | Callable[..., Any], operators: OperatorSet | None = None) -> Backend:
    """The backend of that name; a callable is a backend with torch.compile's signature. With `operators`, it receives graphs
    in operators of that set.

    Raises OptionError for an unknown name (with the nearest known one) or set, and for operators of smelt's own backends;
    BackendError if its package cannot be imported.
    """
    if operators is None:
        return _found(backend)
    if operators not in SETS:
        raise OptionError(f"operators must be one of {', '.join(map(repr, SETS))}, got {operators!r}")
    foreign = getattr(_found(backend), "foreign", None)
    if foreign is None:
        raise OptionError(f"operators={operators!r} is for custom backends, not for {backend!r}")
    return fx_bridge.adapt(foreign, operators)


def _found(backend: str | Callable[..., Any]) -> Backend:
    if not isinstance(backend, str):
        if callable(backend):
            return fx_bridge.adapt(backend)
        raise OptionError(f"backend must be a name or a callable, got {backend!r}")
    known = _BUILT_IN.get(backend) or _registered.get(backend)
    if known is not None:
        return known
    point = _installed().get(backend)
    if point is None:
        raise OptionError(f"unknown backend {backend!r}{_hint(backend)}")
    try:
        loaded = point.load()
    except Exception as error:
        raise BackendError(f"the backend {backend!r} ({point.value}) cannot be imported: {error}") from error
    return _registered.setdefault(backend, fx_bridge.adapt(loaded))


def register_backend(backend: Callable[..., Any], name: str | None = None) -> None:
    """Registers `backend(gm, example_inputs) -> callable` as `name` (default: its `__name__`).

    Raises OptionError if another backend has that name.
    """
    name = name or getattr(backend, "__name__", "")
    if not callable(backend) or not name:
        raise OptionError(f"register_backend: {backend!r} is no function with a name")
    if name in _BUILT_IN or name in _registered:
        raise OptionError(f"register_backend: there is a backend called {name!r} already")
    _registered[name] = fx_bridge.adapt(backend)


def list_backends() -> list[str]:
    """The names of all backends, sorted."""
    return sorted({*_BUILT_IN, *_registered, *_installed()})


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=_GROUP)}


def _hint(name: str) -> str:
    if name == "inductor":
        return ', which is torch.compile\'s own; smelt takes its place: leave `backend` out, or write backend="smelt"'
    return f"; {nearest(name, list_backends())}"
