"""Finding entries: a stored entry becomes an entry of this process.

    stored entry -> objects of this process -> guard tree -> the call is accepted -> plan, compiled frame

Any failure on the way is a miss. Nothing before the last step links or runs stored code, and no step imports capture or code
generation.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import math
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from smelt import _native
from smelt.config import Config
from smelt.runtime.fork_locks import sizes_lock
from smelt.runtime.generated_source import COMPILED_SCOPE, compile_source
from smelt.runtime.generator_states import GeneratorStates
from smelt.runtime.gpu_identity import identity
from smelt.runtime.tail_calls import CONTINUATION_STACK_MODULE, TailCall
from smelt.warm.digests import code_of
from smelt.warm.found_plans import DAMAGED, Plans
from smelt.warm.live_objects import Missing, Resolver
from smelt.warm.stored_entry import Damaged, FormReader, StoredEntry

# Names of compiled frames (`FRAME_NAMES`) whose objects need no import of capture.
LIGHT_NAMES: dict[str, object] = {
    "OrderedDict": collections.OrderedDict, "defaultdict": collections.defaultdict, "deque": collections.deque,
    "partial": functools.partial, "MethodType": types.MethodType, "MappingProxyType": types.MappingProxyType,
    "SimpleNamespace": types.SimpleNamespace, "torch": torch, "math": math, "set_attribute": object.__setattr__,
    "tail": _native.tail_call, "send": _native.send,
    **{f.__name__: f for f in (abs, float, int, max, min, round)},
}  # fmt: skip
# Functions of `capture.emit.eager_fallback`, imported when the graph of an entry has raised.
RERUNS = ("rerun_eagerly", "rerun_with_handlers")


if TYPE_CHECKING:
    from smelt.warm.found_node import FoundNode


Resume = Callable[[types.FunctionType], object]  # makes the callable of a resume function
Graph = _native.Plan | _native.SizeDispatch | _native.Differentiable


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
    only: Graph | None


def found(
    stored: StoredEntry,
    fn: types.FunctionType,
    slots: tuple[object, ...],
    key: str,
    config: Config,
    fullgraph: bool,
    resume: Resume,
) -> Found | None:
    """The entry for a call of `fn` with these argument slots; None if it does not accept the call. Raises Damaged if it
    accepts the call and smelt cannot load it, or if its graphs, which later calls may need, are damaged.
    `key`, `config`, `fullgraph`: of the entry, for plans that later calls need. `resume` makes the callable of a resume
    function."""
    matching = resolved(stored, fn, slots)
    if matching is None or not _has_gpus(stored):
        return None
    if stored.graphs and hashlib.sha256(stored.graphs).hexdigest() != stored.data.get("graphs"):
        raise Damaged("its graphs are damaged")
    try:
        graph = _graph(stored, matching.read, Plans(stored, key, config, fullgraph))
        frame = stored.data["frame"]
        return Found(
            matching.tree, _compiled(frame, graph, matching.read, resume), graph if frame["direct"] else None
        )
    except Damaged:
        raise
    except DAMAGED:
        return None


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
    except (Missing, *DAMAGED):
        return None
    return None if tree.check(*slots) is None else Resolved(objects, tree, read)


def _has_gpus(stored: StoredEntry) -> bool:
    """Whether the GPUs of the entry are those of this process."""
    try:
        return all(list(identity(int(index))) == known for index, known in stored.data["gpus"].items())
    except DAMAGED:
        return False


def _graph(stored: StoredEntry, read: FormReader, plans: Plans) -> Graph:
    """The graph, whose plan is linked. Raises ValueError for bytes that are none."""
    form = stored.data["graph"]
    node = None
    if "node" in form:  # imported only for gradients
        node = import_module("smelt.warm.found_node").FoundNode(
            read.value(form["node"]), form["symbols"], plans
        )
    if form["sizes"] is None:
        made: Graph = plans.first(("graph",)) if node is None else node.at()
        return made
    return _sized(form, plans, node)


def _sized(form: dict[str, Any], plans: Plans, node: FoundNode | None) -> _native.SizeDispatch:
    """What `backends.size_dispatch.dispatch_by_sizes` returns for the graph."""

    def instance(numbers: tuple[int, ...]) -> Any:
        if node is not None:
            return (node.at(numbers),)
        plan = plans.at(("graph",), numbers)
        if plan is None:
            made = plans.again.sized(numbers)
            if type(made) is not tuple or type(made[0]) is not _native.Plan:
                return made
            (plan,) = made
        plans.budget.add(plan)
        return (plan,)

    return _native.SizeDispatch([tuple(size) for size in form["sizes"]], instance, sizes_lock, plans.budget)


def _compiled(frame: dict[str, Any], graph: Any, read: FormReader, resume: Resume) -> types.FunctionType:
    scope: dict[str, object] = {
        "__builtins__": __builtins__,
        "__name__": "smelt.compiled",
        COMPILED_SCOPE: True,
    }
    for name, (kind, *rest) in frame["scope"].items():
        if kind in CONTINUATIONS:
            scope[name] = CONTINUATIONS[kind](resume, read, *rest)
        elif kind != "builtin":
            scope[name] = graph if kind == "graph" else _GLOBALS[kind](name, read, *rest)
    function = compile_source(frame["source"], frame["name"], frame["label"], scope)
    function.__code__ = function.__code__.replace(co_flags=frame["flags"])
    for name, (code, module, is_apart) in frame["positions"].items():
        positioned = function if name == frame["name"] else scope[name]
        assert isinstance(positioned, types.FunctionType)
        shown = {} if module is None else _warning_globals(module)
        if is_apart:
            positioned = scope[name] = types.FunctionType(positioned.__code__, {**scope, **shown}, name)
        else:
            scope |= shown
        positioned.__code__ = code_of(bytes.fromhex(code))
    return function


def _warning_globals(module: str) -> dict[str, object]:
    """The globals by which a warning names this module (`CodePosition.warning_globals`)."""
    return {
        "__name__": module,
        "__warningregistry__": vars(sys.modules[module]).setdefault("__warningregistry__", {}),
    }


def _resume_function(resume: Resume, read: FormReader, code: str, name: str, scope: Any) -> Any:
    return resume(_function(code, name, read.value(scope)))


def _function(code: str, name: str, scope: dict[str, Any]) -> types.FunctionType:
    function = types.FunctionType(code_of(bytes.fromhex(code)), scope, name)
    function.__qualname__ = name  # else it is that of the code, which may be disguised
    return function


def _stack(resume: Resume, read: FormReader, code: str, name: str, calls: dict[str, Any]) -> Any:
    scope: dict[str, Any] = {"__builtins__": __builtins__, "__name__": CONTINUATION_STACK_MODULE}
    for called, (is_last, (kind, *rest)) in calls.items():
        target = CONTINUATIONS[kind](resume, read, *rest)
        scope[called] = TailCall(target) if is_last else target
    return resume(_function(code, name, scope))


CONTINUATIONS: dict[str, Callable[..., Any]] = {"resume": _resume_function, "stack": _stack}


def _rerun(name: str, read: FormReader, function: str) -> Callable[..., object]:
    if function not in RERUNS:
        raise KeyError(function)

    def rerun(*args: object, **kwargs: object) -> object:
        run: Callable[..., object] = getattr(import_module("smelt.capture.emit.eager_fallback"), function)
        return run(*args, **kwargs)

    return rerun


def _generator_states(
    name: str, read: FormReader, devices: Sequence[str], method: str
) -> Callable[..., object]:
    states = GeneratorStates([torch.device(device) for device in devices])
    methods: dict[str, Callable[..., object]] = {"read": states.read, "restore": states.restore}
    return methods[method]


_GLOBALS: dict[str, Callable[..., object]] = {
    "light": lambda name, read: LIGHT_NAMES[name],
    "rerun": _rerun,
    "random": _generator_states,
    "value": lambda name, read, form: read.value(form),
}
