"""The module hierarchy of a graph: graphs nested as the program's modules are, and results of modules by name.

Tracing goes through modules. Each node's `meta["nn_module_stack"]` holds the calls in which it was recorded, outermost
first: a dictionary from a key of the call to the module's path and class.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch.fx
from torch.fx.graph import CodeGen

from smelt.errors import OptionError, nearest
from smelt.fx.fx_graph import Graph
from smelt.fx.symbolic_tracer import TRACER

Stack = tuple[tuple[str, str, str], ...]  # of each call: its key, the module's path, the name of its class


def nest(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Split a graph by module: return an equivalent GraphModule with a nested GraphModule for each traced module, so that
    `nest(gm).layer1.code` is the code of layer1. It shares parameters and buffers with `gm`.

    If two calls of a module differ, the second has a GraphModule of its own, with a number appended to its name.
    """
    nodes = [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    level = _Level(gm, "", gm._get_name())
    for node in placeholders:
        level.copies[node] = level.graph.node_copy(node)
    level.add(nodes, 0)
    [output] = [n for n in gm.graph.nodes if n.op == "output"]
    level.graph.node_copy(output, level.value)
    level.graph.set_codegen(gm.graph._codegen)
    return level.module()


def features(gm: torch.fx.GraphModule, names: Sequence[str] | Mapping[str, str]) -> torch.fx.GraphModule:
    """Return a GraphModule that returns intermediate results of `gm` in a dictionary.

    Args:
        names: names of nodes and paths of modules; a module stands for the result of its last call. A mapping gives the key
            of each in the dictionary.

    Raises OptionError for an unknown name, with the nearest known one.
    """
    keys = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    last: dict[str, torch.fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op == "call_module":
            last[node.target] = node
        for _, path, _ in _stack(node, leaves=True):
            last[path] = node
        last[node.name] = node
    for name in keys:
        if name not in last:
            raise OptionError(f"features: no node and no module is called {name!r}; {nearest(name, last)}")
    graph = Graph(tracer_cls=TRACER)
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op != "output":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output({key: copies[last[name]] for name, key in keys.items()})
    graph.set_codegen(CodeGen())
    made = torch.fx.GraphModule(gm, graph, gm._get_name())
    made.graph.eliminate_dead_code()
    made.graph.lint()
    made.recompile()
    return made


class _Level:
    """The graph of one call of a module, or of the whole program."""

    def __init__(self, gm: torch.fx.GraphModule, path: str, name: str) -> None:
        self.gm = gm
        self.path = path
        self.name = name
        self.graph = Graph(tracer_cls=TRACER)
        self.copies: dict[torch.fx.Node, torch.fx.Node] = {}
        self.attributes: dict[str, Any] = {}

    def module(self) -> torch.fx.GraphModule:
        self.graph.lint()
        made = torch.fx.GraphModule(self.attributes, self.graph, self.name)
        made.training = self.gm.training  # not `train`, which sets shared modules
        return made

    def value(self, node: torch.fx.Node) -> torch.fx.Node:
        """The copy of a node. A value of another level becomes an argument; attributes of this module are read here."""
        if node not in self.copies:
            if node.op == "get_attr" and self._relative(str(node.target)) is not None:
                with self.graph.inserting_before(_first_call(self.graph)):
                    self.copies[node] = self._attribute(node)
            else:
                with self.graph.inserting_before(_after_placeholders(self.graph)):
                    self.copies[node] = self.graph.placeholder(node.name)
        return self.copies[node]

    def add(self, nodes: Iterable[torch.fx.Node], depth: int) -> None:
        """Add nodes that were recorded in the call of this module. `depth` is the number of module calls around this level's
        own nodes."""
        for key, group in itertools.groupby(nodes, lambda n: (_stack(n)[depth : depth + 1] or ((None,),))[0]):
            run = list(group)
            if key[0] is None:
                for node in run:
                    if node.op == "get_attr" and self.path:
                        self.value(node)
                    elif node not in self.copies:
                        self.copies[node] = self._copy(node)
            elif all(node.op == "get_attr" for node in run):
                continue  # each level reads its own attributes
            else:
                self._add_call(run, depth, key)

    def _copy(self, node: torch.fx.Node) -> torch.fx.Node:
        if node.op == "get_attr":
            return self._attribute(node)
        made = self.graph.node_copy(node, self.value)
        if node.op == "call_module":
            made.target = self._relative(str(node.target)) or self._foreign(str(node.target))
            self.attributes[made.target] = self.gm.get_submodule(str(node.target))
        return made

    def _attribute(self, node: torch.fx.Node) -> torch.fx.Node:
        name = self._relative(str(node.target)) or self._foreign(str(node.target))
        self.attributes[name] = operator.attrgetter(str(node.target))(self.gm)
        made = self.graph.get_attr(name)
        made.meta = dict(node.meta)
        return made

    def _relative(self, target: str) -> str | None:
        prefix = f"{self.path}." if self.path else ""
        return target[len(prefix) :] if target.startswith(prefix) and target != prefix else None

    def _foreign(self, target: str) -> str:
        """A name for a module or tensor that belongs to another module."""
        return "_of_" + target.replace(".", "_")

    def _add_call(self, run: list[torch.fx.Node], depth: int, key: tuple[str, ...]) -> None:
        """Add the call of an inner module."""
        _, path, name = key
        inner = _Level(self.gm, path, name)
        inner.add(run, depth + 1)
        inside = set(run)
        returned = [n for n in run if n.op != "get_attr" and any(user not in inside for user in n.users)]
        results = [inner.copies[n] for n in returned]
        inner.graph.output(results[0] if len(results) == 1 else tuple(results))
        order = {made: outer for outer, made in inner.copies.items()}
        arguments = [order[made] for made in inner.graph.nodes if made.op == "placeholder"]
        target = self._install(inner.module(), self._relative(path) or self._foreign(path))
        call = self.graph.call_module(target, tuple(self.value(n) for n in arguments))
        if len(returned) == 1:
            self.copies[returned[0]] = call
            return
        for index, node in enumerate(returned):
            self.copies[node] = self.graph.call_function(operator.getitem, (call, index))

    def _install(self, module: torch.fx.GraphModule, name: str) -> str:
        count, target = 0, name
        while target in self.attributes:
            known = self.attributes[target]
            if isinstance(known, torch.fx.GraphModule) and known.code == module.code:
                return target
            count += 1
            target = f"{name}_{count}"
        self.attributes[target] = module
        return target


def _stack(node: torch.fx.Node, leaves: bool = False) -> Stack:
    """The calls of modules around a node, outermost first; not the whole program's, nor, without `leaves`, a leaf's own."""
    found = []
    for key, (path, kind) in node.meta.get("nn_module_stack", {}).items():
        if path and (leaves or (node.op, node.target) != ("call_module", path)):
            found.append((key, path, getattr(kind, "__name__", str(kind))))
    return tuple(found)


def _after_placeholders(graph: torch.fx.Graph) -> torch.fx.Node | None:
    return next((n for n in graph.nodes if n.op != "placeholder"), None)


def _first_call(graph: torch.fx.Graph) -> torch.fx.Node | None:
    return next((n for n in graph.nodes if n.op not in ("placeholder", "get_attr")), None)
