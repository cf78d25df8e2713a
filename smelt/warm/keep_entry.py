"""Storing entries: an entry that another process may use becomes a `StoredEntry`.

An entry can be stored if another process can check or find everything that it depends on: by its key, by guards with a
stored form, or by references to objects. Otherwise the writer raises `Unstorable` with the reason. Before it returns an
entry, it resolves the entry in this process and compares the objects.
"""

from __future__ import annotations

import abc
import builtins
import hashlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from smelt import _native
from smelt.autograd.compile_joint import JointNode
from smelt.backends.unbacked_subgraphs import devices_of
from smelt.capture.base.bytecode import is_resume
from smelt.capture.base.native_functions import nested_codes
from smelt.capture.driver.cache_entries import Entry, NewEntry
from smelt.capture.graph_breaks.continuation_stack import is_continuation_stack
from smelt.capture.reconstruction.frame_globals import FRAME_NAMES
from smelt.config import Config
from smelt.errors import PlanError
from smelt.graph.ir import Graph
from smelt.guards.guard_kinds import KINDS
from smelt.guards.stored_form import Unstorable
from smelt.guards.tensor_facts import TensorFacts
from smelt.runtime.generator_states import GeneratorStates
from smelt.runtime.gpu_identity import identity
from smelt.runtime.tail_calls import TailCall
from smelt.tracing.record.traced import MadePlan, Traced
from smelt.warm.add_plans import stored_plan
from smelt.warm.digests import code_bytes
from smelt.warm.find_entry import LIGHT_NAMES, RERUNS, resolved
from smelt.warm.graph_forms import stored_graphs
from smelt.warm.live_objects import Node, ObjectTable, read_node, store_class_facts
from smelt.warm.stored_entry import StoredEntry, from_bytes
from smelt.warm.stored_node import StoredNode

_DIRECT = frozenset({int, bool, str, float, type(None)})
_SINGLE = frozenset(
    {type(None), bool, type(...), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format}
)
_OF_TORCH = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


def stored(new: NewEntry, config: Config) -> StoredEntry:
    """The stored form of an entry. Raises Unstorable."""
    layout, captured = new.layout, new.captured
    made = _plans(new, config)
    registrations = captured.env.facts.registrations
    writer = _Writer(ObjectTable(new.fn, layout.nodes), layout.nodes, new.slots, registrations)
    nodes = [writer.node(number) for number in range(len(layout.nodes))]
    frame = _frame(new, writer)
    graph, graphs = _graph(new, made, writer)
    weak = {id(x) for x in layout.weak}
    held = [i for i, x in enumerate(writer.table.objects) if id(x) in weak]
    if len(held) != len(weak):
        raise Unstorable("an object that the entry must not keep alive")
    data = {
        "table": [[list(reference), digest.hex()] for reference, digest in writer.table.rows],
        "facts": writer.facts,
        "nodes": nodes,
        "collect": layout.n_collect,
        "weak": held,
        "frame": frame,
        "graph": graph,
        "graphs": hashlib.sha256(graphs).hexdigest(),
        "gpus": gpus_of(new.captured.traced.aten_graph),
    }
    content = StoredEntry(data, graphs, tuple(stored_plan(plan, config) for plan in made))
    _check_resolves(content, new, writer.table.objects)
    return content


def gpus_of(graph: Graph) -> dict[str, list[str]]:
    """The identities of a graph's GPUs, by index, which other processes must have. Raises Unstorable for other devices."""
    devices = [device for device in devices_of(graph) if device.type != "cpu"]
    if any(device.type != "cuda" or torch.version.hip for device in devices):
        raise Unstorable(f"its tensors are on {', '.join(map(str, devices))}")
    return {str(device.index): list(identity(device.index)) for device in sorted(devices, key=str)}


def _plans(new: NewEntry, config: Config) -> list[MadePlan]:
    """The plans of the entry's graph. Raises Unstorable for an entry that other processes cannot use."""
    captured, made = new.captured, list(new.plans)
    traced = captured.traced
    process = captured.env.facts.process_dependence
    if process is not None:
        raise Unstorable(f"it depends on the process: {process}")
    if config.verify or config.verify_stages:
        raise Unstorable("graphs are verified")
    if traced.unbacked is not None:
        raise Unstorable("its sizes depend on data")
    if traced.needs_grad and traced.joint is None:
        raise Unstorable("its graph runs operator by operator under autograd")
    graph = new.entry.graph
    if traced.sizes and type(graph) is _native.SizeDispatch:
        graph = graph.prepare(tuple(source.hint for source in traced.sizes.values()))
    expected = _native.Plan if traced.joint is None else _native.Differentiable
    if type(graph) is not expected or len(made) != 1:
        raise Unstorable("its graph is not one plan, or it has gradients and writes inputs or returns views")
    return made


def _graph(new: NewEntry, made: Sequence[MadePlan], writer: _Writer) -> tuple[dict[str, Any], bytes]:
    """The form of an entry's graph, and the graphs that other sizes and backwards need."""
    traced = new.captured.traced
    found = [(size.input, size.source) for size in traced.sizes.values()]
    sizes = [[i, s.dim, s.divisor, s.over, s.is_remainder] for i, s in found]
    symbols = [[sym.name, sym.lo, sym.hi, sym.likely] for sym in made[0].values]
    graph: dict[str, Any] = {"sizes": sizes or None, "symbols": symbols, "title": traced.title}
    if traced.joint is not None:
        (node,) = new.plans.nodes
        graph["node"] = writer.value(_node(node, traced))
        graphs = {f"backward {reach}": backward for reach, backward in enumerate(node.reaches)}
        if sizes:
            graphs["forward"] = node.parts.forward
        section, constants = stored_graphs(graphs, node.with_history)
    else:
        section, constants = stored_graphs({"graph": made[0].graph}) if sizes else (b"", [])
    return {**graph, "constants": constants}, section


def _node(node: JointNode, traced: Traced) -> bytes:
    """The form of the graph's autograd node."""
    counters = tuple(traced.counters.uncounted), tuple(traced.counters.counted)
    temporaries = tuple(s.name for s in node.parts.saved if s.kind == "temporary")
    conditions = node.joint.conditions
    stored = StoredNode(
        node.data, node.history, node.substitutes, node.devices, conditions, counters, temporaries
    )
    try:
        return stored.to_bytes()
    except PlanError as error:
        raise Unstorable(str(error)) from None


def _check_resolves(content: StoredEntry, new: NewEntry, objects: Sequence[object]) -> None:
    """Raise Unstorable unless this process resolves the entry to the objects that it was made from, and accepts the call."""
    found = resolved(from_bytes(content.to_bytes()), new.fn, new.slots)
    if found is None or any(a is not b for a, b in zip(found.objects, objects, strict=True)):
        raise Unstorable("its objects are not found again")


class _Writer:
    """`FormWriter` of one entry."""

    def __init__(
        self,
        table: ObjectTable,
        nodes: Sequence[Node],
        slots: tuple[object, ...],
        registrations: Mapping[tuple[type, type], bool],
    ) -> None:
        self.table = table
        self._registrations = registrations
        self._nodes, self._slots = nodes, slots
        self._node = 0  # the number of the node that is written
        self.facts: list[Any] = []
        self._numbers: dict[TensorFacts, int] = {}
        self._digests: dict[Any, bytes] = {}

    def node(self, number: int) -> list[Any]:
        """The form of a node of the guard tree."""
        self._node = number
        parent, kind, key, checks, collect = self._nodes[number]
        root = key if kind == "const" else None
        if kind == "call" and self._nodes[parent][2] is abc.get_cache_token:
            return [parent, kind, None, [[i, check, self._registered()] for i, check, _ in checks], collect]
        forms = [[i, check, KINDS[check].stored(value, root, self)] for i, check, value in checks]
        return [parent, kind, self.value(key), forms, collect]

    def _registered(self) -> list[Any]:
        """The form of the token of the registry of abstract classes: what it stands for."""
        number = self.table.number
        return ["A", [[number(c), number(base), known] for (c, base), known in self._registrations.items()]]

    def value(self, value: Any) -> Any:
        """The form of a value."""
        kind = type(value)
        if kind in _DIRECT:
            return value
        if kind is tuple or kind is torch.Size or kind is frozenset:
            return ["t" if kind is tuple else "s" if kind is torch.Size else "z", *map(self.value, value)]
        if kind in _OF_TORCH:
            return ["k", _OF_TORCH[kind], str(value).removeprefix("torch.")]
        if kind is torch.device:
            return ["k", "device", str(value)]
        write = _FORMS.get(kind)
        return ["r", self.table.number(value)] if write is None else write(self, value)

    def identical(self, value: Any) -> Any:
        """The form of an object whose identity is compared."""
        if type(value) in _SINGLE:
            return self.value(value)
        return ["r", self.table.number(value)]

    def function(self, parts: Any, function: Any) -> Any:
        """The form of the parts of a function."""
        if type(function) is FunctionType:
            return ["F", self.table.number(function)]
        found: Any = read_node(
            self._nodes, self._node, self._root, lambda key: key
        )  # the call brings another each time
        return ["F", self.table.number_at(found, self._node)]

    def _root(self, number: int) -> object:
        _, kind, key, *_ = self._nodes[number]
        return self._slots[key] if kind == "arg" else key

    def class_facts(self, native: Any) -> Any:
        """The form of what a guard knows of a class."""
        names, parts = store_class_facts(native, self.table.number, self._digests)
        return ["C", list(names), [[n, None if c is None else list(c), d.hex()] for n, c, d in parts]]

    def tensor(self, native: Any) -> Any:
        """The form of what a guard compares of a tensor."""
        facts, reads = native if type(native) is tuple else (native, ())
        number = self._numbers.get(facts)
        if number is None:
            if facts.layout is not torch.strided:
                raise Unstorable(f"a tensor with layout {facts.layout}")
            number = self._numbers[facts] = len(self.facts)
            dtype = str(facts.dtype).removeprefix("torch.")
            flags = facts.requires_grad, facts.conj_neg, facts.inference
            cls = self.table.number(facts.type)
            layout = list(facts.shape), list(facts.stride)
            self.facts.append([cls, dtype, str(facts.device), *layout, *flags])
        return ["T", number, [list(read) for read in reads]]


_FORMS: dict[type, Callable[[_Writer, Any], Any]] = {
    bytes: lambda w, v: ["b", v.hex()],
    complex: lambda w, v: ["c", v.real, v.imag],
    slice: lambda w, v: ["l", w.value(v.start), w.value(v.stop), w.value(v.step)],
    range: lambda w, v: ["g", v.start, v.stop, v.step],
    type(...): lambda w, v: ["e"],
    type(NotImplemented): lambda w, v: ["n"],
}


# ------------------------------------------------------------------------------------------------------ compiled frames


def _frame(new: NewEntry, writer: _Writer) -> dict[str, Any]:
    """The form of the compiled frame."""
    entry = new.entry
    function: Any = entry.callees[0]
    if entry.callees[1] not in (None, entry.graph):
        raise Unstorable("another callable than its graph runs")
    defined = re.findall(r"^def (\w+)\(", entry.source, re.M)  # the frame is the last
    if not defined or function.__closure__ or function.__defaults__:
        raise Unstorable("its frame is no function of its source")
    scope = function.__globals__
    functions = {name: scope[name] for name in defined[:-1]} | {defined[-1]: function}
    codes = [code for f in functions.values() for code in nested_codes(f.__code__)]
    used = {name for code in codes for name in code.co_names} - functions.keys()
    names = {name: scope[name] for name in sorted(used) if name in scope}
    return {
        "source": entry.source,
        "name": defined[-1],
        "label": new.fn.__code__.co_qualname,
        "flags": function.__code__.co_flags,
        "scope": {name: _global(name, value, entry, writer) for name, value in names.items()},
        "positions": {name: form for name, f in functions.items() if (form := _position(f, scope, writer))},
        "direct": entry.callees[1] is not None,
    }


def _position(function: FunctionType, scope: dict[str, Any], writer: _Writer) -> list[Any] | None:
    """The code of a function that shows a position of the program, and the globals that its warnings use; None for one that
    does not."""
    own = function.__globals__
    warns = own.get("__name__") != "smelt.compiled"
    if function.__code__.co_filename.startswith("<smelt ") and not warns:
        return None
    module = own.get("__name__")
    if warns and (module not in sys.modules or "__warningregistry__" not in own):
        raise Unstorable("its frame shows a position in code of no module")
    return [code_bytes(function.__code__).hex(), module if warns else None, own is not scope]


def _global(name: str, value: Any, entry: Entry, writer: _Writer) -> Any:
    """What a global of the frame's source is: the graph, a name that all frames know, or a value."""
    if value is entry.graph:
        return ["graph"]
    if name in LIGHT_NAMES and FRAME_NAMES.get(name) is value is LIGHT_NAMES[name]:
        return ["light"]
    if name == "rerun_eagerly" and getattr(value, "__name__", None) in RERUNS:
        return ["rerun", value.__name__]
    states = getattr(value, "__self__", None)
    if type(states) is GeneratorStates:
        return ["random", [str(device) for device in states.devices], value.__name__]
    if isinstance(value, _native.Wrapped):
        return _continuation(value, writer)
    if str(getattr(value, "__module__", "")).startswith("smelt.capture"):
        raise Unstorable(f"its frame calls {name} of the compiler")
    if hasattr(builtins, name) and getattr(builtins, name) is value:
        return ["builtin"]
    return ["value", writer.value(value)]


def _continuation(wrapped: Any, writer: _Writer) -> list[Any]:
    """What continues after a graph break: a resume function, or a continuation stack of several."""
    function: FunctionType = wrapped.__wrapped__
    code = [code_bytes(function.__code__).hex(), function.__name__]
    if function.__closure__:
        raise Unstorable("super() without arguments after a graph break")
    if is_resume(function.__code__):
        return ["resume", *code, writer.value(function.__globals__)]
    if not is_continuation_stack(function):
        raise Unstorable("its frame calls another compiled function")
    calls = {}
    for name, value in function.__globals__.items():
        target = value.target if type(value) is TailCall else value
        if isinstance(target, _native.Wrapped):
            calls[name] = [type(value) is TailCall, _continuation(target, writer)]
        elif not name.startswith("__"):
            raise Unstorable(f"{name} of the compiler continues after a graph break")
    return ["stack", *code, calls]
