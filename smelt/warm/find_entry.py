"""Finding entries: a stored entry becomes an entry of this process.

    stored entry -> objects of this process -> guard tree -> the call is accepted -> plan, compiled frame

Any failure on the way is a miss. Nothing before the last step links or runs stored code, and no step imports capture or code
generation.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import logging
import math
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import torch

from smelt import _native, runtime
from smelt.autograd.node_data import may_copy
from smelt.config import Config
from smelt.runtime import IDLE_ARENAS
from smelt.runtime.cuda_graphs import Capture, Replay
from smelt.runtime.fork_locks import backward_lock, sizes_lock
from smelt.runtime.generated_source import COMPILED_SCOPE, compile_source
from smelt.runtime.generator_states import GeneratorStates
from smelt.runtime.gpu_identity import identity
from smelt.runtime.tail_calls import CONTINUATION_STACK_MODULE, TailCall
from smelt.runtime.uncounted_writes import preserve_input_counters
from smelt.shapes.expr import Sym, Values
from smelt.warm.digests import code_of
from smelt.warm.live_objects import Missing, Resolver
from smelt.warm.stored_entry import Damaged, FormReader, StoredEntry
from smelt.warm.stored_node import StoredNode, node_from

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
NO_VALUES: Values = {}


log = logging.getLogger("smelt")

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
    """The entry for a call of `fn` with these argument slots; None if it does not accept the call. Raises Damaged for one
    that accepts it and cannot be loaded, or whose graphs, which later calls may need, are not its own.
    `key`, `config`, `fullgraph`: of the entry, for plans that later calls need. `resume` makes the callable of a resume
    function."""
    matching = resolved(stored, fn, slots)
    if matching is None or not _has_gpus(stored):
        return None
    if stored.graphs and hashlib.sha256(stored.graphs).hexdigest() != stored.data.get("graphs"):
        raise Damaged("its graphs are damaged")
    try:
        graph = _graph(stored, matching.read, _Plans(stored, key, config, fullgraph))
        frame = stored.data["frame"]
        return Found(
            matching.tree, _compiled(frame, graph, matching.read, resume), graph if frame["direct"] else None
        )
    except Damaged:
        raise
    except _DAMAGED:
        return None


# What data of another form than expected may raise.
_DAMAGED = (
    ArithmeticError,
    AttributeError,
    EOFError,
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


def _has_gpus(stored: StoredEntry) -> bool:
    """Whether the GPUs of the entry are those of this process."""
    try:
        return all(list(identity(int(index))) == known for index, known in stored.data["gpus"].items())
    except _DAMAGED:
        return False


class _Plans:
    """The plans of an entry, and what compiles others."""

    def __init__(self, stored: StoredEntry, key: str, config: Config, fullgraph: bool) -> None:
        self._stored, self._compilation = stored, (key, stored, config, fullgraph)
        self._linked: dict[int, _native.ProgramPlans] = {}
        self._failed: set[int] = set()  # plans that cannot be loaded
        self._replays: weakref.WeakSet[Replay] = weakref.WeakSet()
        self.budget = _native.ArenaBudget(IDLE_ARENAS)  # of plans for many sizes

    def at(self, role: tuple[Any, ...], numbers: tuple[int, ...] = ()) -> _native.Plan | None:
        """The plan of a graph for these sizes, linked; None if the entry has none. Warns once of bytes that are no plan."""
        for i, plan in enumerate(self._stored.plans):
            if plan.role != role or i in self._failed or (plan.sizes is not None and plan.sizes != numbers):
                continue
            try:
                made = self._made(i, numbers)
            except _DAMAGED as error:
                log.warning("smelt: a plan of a stored entry cannot be loaded: %s", error)
                self._failed.add(i)
                continue
            if made is not None:
                return made
        return None

    def first(self, role: tuple[Any, ...]) -> _native.Plan:
        """The plan of a graph with fixed sizes. Raises Damaged if there is none that can be loaded."""
        try:
            made = next((self._made(i, ()) for i, p in enumerate(self._stored.plans) if p.role == role), None)
        except _DAMAGED as error:
            raise Damaged(str(error)) from error
        if made is None:
            raise Damaged("an entry without a plan")
        return made

    def _made(self, i: int, numbers: tuple[int, ...]) -> _native.Plan | None:
        """A plan for these sizes; None if it does not cover them."""
        stored = self._stored.plans[i]
        if i not in self._linked:
            self._linked[i] = stored.linked()
        made = self._linked[i].at(numbers if stored.sizes is None else ())
        if made is not None and stored.replays:
            made.use_cuda_graphs(Capture(weakref.ref(made), self._replays))
        return made and runtime.track(made)

    @cached_property
    def again(self) -> Any:
        """The entry's `CompileAgain`; imports the compiler."""
        return import_module("smelt.warm.compile_again").CompileAgain(*self._compilation)


def _graph(stored: StoredEntry, read: FormReader, plans: _Plans) -> Graph:
    """The graph, whose plan is linked. Raises ValueError for bytes that are none."""
    form = stored.data["graph"]
    node = _Node(node_from(read.value(form["node"])), plans) if "node" in form else None
    if form["sizes"] is None:
        return plans.first(("graph",)) if node is None else node.at()
    return _sized(form, plans, node)


def _sized(form: dict[str, Any], plans: _Plans, node: _Node | None) -> _native.SizeDispatch:
    """What `backends.size_dispatch.dispatch_by_sizes` returns for the graph."""
    symbols = [Sym(name, low, high) for name, low, high, _ in form["symbols"]]

    def instance(numbers: tuple[int, ...]) -> Any:
        if node is not None:
            return (node.at(numbers, dict(zip(symbols, numbers, strict=True))),)
        plan = plans.at(("graph",), numbers)
        if plan is None:
            made = plans.again.sized(numbers)
            if type(made) is not tuple or type(made[0]) is not _native.Plan:
                return made
            (plan,) = made
        plans.budget.add(plan)
        return (plan,)

    return _native.SizeDispatch([tuple(size) for size in form["sizes"]], instance, sizes_lock, plans.budget)


class _Node:
    """The autograd nodes of the joint graph, one for each set of sizes."""

    def __init__(self, stored: StoredNode, plans: _Plans) -> None:
        self._stored, self._plans = stored, plans
        self._backwards = _native.ArenaBudget(IDLE_ARENAS, plans.budget)

    def at(self, numbers: tuple[int, ...] = (), values: Values = NO_VALUES) -> _native.Differentiable:
        """What `autograd.compile_joint` returns for these sizes."""
        stored, plans = self._stored, self._plans
        role = ("forward",)
        forward = plans.at(role, numbers) or (plans.again.forward(numbers) if numbers else plans.first(role))
        if numbers and type(forward) is _native.Plan:
            plans.budget.add(forward)
        history = stored.history
        if history is not None and not may_copy(history.copied_bytes, values):
            history = None

        def backward(defined: Sequence[bool], reach: int = 0, requested: Sequence[bool] = ()) -> Any:
            deterministic = torch.are_deterministic_algorithms_enabled()
            role = "backward", _where_not(defined), int(reach), _where_not(requested), deterministic
            found = plans.at(role, numbers) or plans.again.backward(role, numbers, stored.temporaries)
            if numbers and type(found) is _native.Plan:
                self._backwards.add(found)
            return found

        def substitute(index: int, requested: Sequence[bool]) -> torch.Tensor | None:
            return stored.substitutes[index].at(values, requested)

        def double_backward(*arguments: Any) -> Any:
            return plans.again.double_backward(numbers)(*arguments)

        spec: Any = {
            **stored.data.spec(values),
            **({} if history is None else history.spec(values)),
            "devices": stored.devices,
            "forward": preserve_input_counters(forward, *stored.counters),
            "backward": backward,
            "name": "SmeltBackward",
            "lock": backward_lock,
            "double_backward": None if history is None else double_backward,
            "substitute": substitute,
        }
        return _native.Differentiable(spec)


def _where_not(flags: Sequence[bool]) -> tuple[int, ...]:
    return tuple([i for i, flag in enumerate(flags) if not flag])


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
