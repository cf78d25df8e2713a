"""Finding entries: a stored entry becomes an entry of this process.

    stored entry -> objects of this process -> guard tree -> the call is accepted -> plan, compiled frame

Any failure on the way is a miss. Nothing before the last step links or runs stored code, and no step imports capture or code
generation.
"""

from __future__ import annotations

import collections
import functools
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from smelt import _native, runtime
from smelt.runtime.generated_source import COMPILED_SCOPE, compile_source
from smelt.warm.live_objects import Missing, Resolver
from smelt.warm.stored_entry import Damaged, FormReader, StoredEntry

# Names of compiled frames (`FRAME_NAMES`) whose objects need no import of capture.
LIGHT_NAMES: dict[str, object] = {
    "OrderedDict": collections.OrderedDict, "defaultdict": collections.defaultdict, "deque": collections.deque,
    "partial": functools.partial, "MethodType": types.MethodType, "MappingProxyType": types.MappingProxyType,
    "SimpleNamespace": types.SimpleNamespace, "torch": torch, "math": math, "set_attribute": object.__setattr__,
    **{f.__name__: f for f in (abs, float, int, max, min, round)},
}  # fmt: skip
# Functions of `capture.emit.eager_fallback`, imported when the graph of an entry has raised.
RERUNS = ("rerun_eagerly", "rerun_with_handlers")


@dataclass(frozen=True)
class Resolved:
    """The objects of a stored entry in this process, and its guard tree, which accepts the call."""

    objects: Sequence[Any]
    tree: _native.GuardTree
    read: FormReader


@dataclass(frozen=True)
class Found:
    """An entry, in the form of `_native.add_entry`."""

    tree: _native.GuardTree
    compiled: Callable[..., object]
    only: _native.Plan | None


def found(stored: StoredEntry, fn: types.FunctionType, slots: tuple[object, ...]) -> Found | None:
    """The entry for a call of `fn` with these argument slots; None if it does not accept the call, or cannot be loaded."""
    matching = resolved(stored, fn, slots)
    if matching is None:
        return None
    try:
        graph = _plan(stored)
        frame = stored.data["frame"]
        return Found(
            matching.tree, _compiled(frame, graph, matching.read), graph if frame["direct"] else None
        )
    except _DAMAGED:
        return None


# What data of another form than expected may raise.
_DAMAGED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def resolved(stored: StoredEntry, fn: types.FunctionType, slots: tuple[object, ...]) -> Resolved | None:
    """The objects and the guard tree of an entry, if it accepts the call."""
    data = stored.data
    try:
        rows = [(tuple(reference), bytes.fromhex(digest)) for reference, digest in data["table"]]
        objects: list[Any] = []
        read = FormReader(objects, data["facts"], _native.type_version)
        Resolver(fn, slots, data["nodes"], read.value, objects).resolve(rows)
        weak = tuple([objects[i] for i in data["weak"]])
        tree = _native.GuardTree((read.nodes(data["nodes"]), data["collect"], weak))
    except (Missing, *_DAMAGED):
        return None
    return None if tree.check(*slots) is None else Resolved(objects, tree, read)


def _plan(stored: StoredEntry) -> _native.Plan:
    """The plan, linked. Raises ValueError for bytes that are none."""
    plan = _native.ProgramPlans(stored.libraries, ((stored.plan, stored.constants()),)).at(())
    if plan is None:
        raise Damaged("a plan with symbolic sizes")
    return runtime.track(plan)


def _compiled(frame: dict[str, Any], graph: Any, read: FormReader) -> types.FunctionType:
    scope: dict[str, object] = {
        "__builtins__": __builtins__,
        "__name__": "smelt.compiled",
        COMPILED_SCOPE: True,
    }
    for name, (kind, *rest) in frame["scope"].items():
        if kind != "builtin":
            scope[name] = graph if kind == "graph" else _GLOBALS[kind](name, read, *rest)
    function = compile_source(frame["source"], frame["name"], frame["label"], scope)
    function.__code__ = function.__code__.replace(co_flags=frame["flags"])
    return function


def _rerun(name: str, read: FormReader, function: str) -> Callable[..., object]:
    if function not in RERUNS:
        raise KeyError(function)

    def rerun(*args: object, **kwargs: object) -> object:
        run: Callable[..., object] = getattr(import_module("smelt.capture.emit.eager_fallback"), function)
        return run(*args, **kwargs)

    return rerun


_GLOBALS: dict[str, Callable[..., object]] = {
    "light": lambda name, read: LIGHT_NAMES[name],
    "rerun": _rerun,
    "random": lambda name, read: getattr(
        torch.default_generator, {"random_state": "get_state"}.get(name, "set_state")
    ),
    "value": lambda name, read, form: read.value(form),
}
