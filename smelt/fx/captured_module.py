"""Tracing with example inputs: smelt's capture of one call becomes a GraphModule.

Capture interprets the program on fakes of the example inputs, so it knows the sizes and lengths that decide conditions and
loops. Its torch-level graph takes every tensor as an input and traces through modules. This module maps the inputs of that
graph, by identity, to arguments of the program and attributes of modules, and its outputs to parts of the result. The call
computes nothing: the outputs of the graph are empty tensors. A call of a leaf module becomes one call_module node if its
record (`tracing/record/module_calls.py`) has the arguments and results.
"""

from __future__ import annotations

import collections
import inspect
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch import nn

from smelt import compatibility
from smelt.errors import SmeltError, Unsupported
from smelt.fx.fx_graph import Graph
from smelt.fx.fx_proxy import TraceError
from smelt.fx.input_checks import check_inputs
from smelt.fx.symbolic_tracer import TRACER
from smelt.graph.ir import Node, TensorSpec
from smelt.graph.pytree import PLAIN, leaves, map_leaves
from smelt.shapes.expr import INFINITE
from smelt.torch_private import tree_flatten, tree_unflatten

IsLeaf = Callable[[nn.Module, str], bool]
_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
_PLAIN_CONTAINERS = (tuple, list, dict)


def capture_module(
    root: nn.Module | Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    is_leaf: IsLeaf,
    dynamic: bool,
    level: str,
) -> torch.fx.GraphModule:
    """Capture `root(*args, **kwargs)` as a GraphModule, and restore attributes of modules that the call sets.

    Raises TraceError with the user's line if the call is not one graph, and the exceptions of the program.
    """
    owner = root if isinstance(root, nn.Module) else nn.Module()
    arguments = _Arguments(root, args, kwargs)
    before = _attributes(owner)
    run = compatibility.compiler().capture(root, dynamic, level)
    try:
        captured, result = run(*arguments.args, **arguments.kwargs)
    except Unsupported as error:
        raise TraceError(f"{_name(root)} cannot be captured as one graph: {error.reason}") from error
    finally:
        _put_back(before)
    return _Builder(owner, arguments, captured, is_leaf).build(result, _name(root))


def _name(root: Any) -> str:
    return (
        type(root).__name__ if isinstance(root, nn.Module) else getattr(root, "__name__", type(root).__name__)
    )


class _Arguments:
    """The arguments of the call, by the names of the program's parameters. A copy replaces a tensor that occurs again, so
    that each is an input of its own."""

    def __init__(self, root: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        seen: set[int] = set()

        def distinct(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in seen:
                tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            seen.add(id(tensor))
            return tensor

        self.args, self.kwargs = map_leaves((tuple(args), dict(kwargs)), torch.Tensor, distinct)
        signature = inspect.signature(root.forward if isinstance(root, nn.Module) else root)
        self.parameters = signature.parameters
        self.values = signature.bind(*self.args, **self.kwargs).arguments


def _attributes(root: nn.Module) -> list[tuple[nn.Module, dict[str, Any]]]:
    return [(module, dict(vars(module))) for module in root.modules()]


def _put_back(before: list[tuple[nn.Module, dict[str, Any]]]) -> None:
    """Undo the program's assignments to attributes, with a warning, because the graph does not repeat them."""
    for module, attributes in before:
        now = vars(module)
        changed = [n for n in {**attributes, **now} if now.get(n, now) is not attributes.get(n, attributes)]
        if changed:
            now.clear()
            now.update(attributes)
            warnings.warn(
                f"smelt.symbolic_trace: {type(module).__name__} sets {', '.join(changed)} when it is called; the graph does "
                "not, and tracing has left it as it was",
                stacklevel=4,
            )


class _Builder:
    """Builds torch.fx's graph from the captured one (`captured`: its trace, graph, inputs and outputs)."""

    def __init__(self, root: nn.Module, arguments: _Arguments, captured: Any, is_leaf: IsLeaf) -> None:
        self.root = root
        self.arguments = arguments
        self.captured = captured
        self.is_leaf = is_leaf
        self.graph = Graph(tracer_cls=TRACER)
        self.made: dict[str, Any] = {}  # what a captured node has become, by its name
        self.attributes: dict[str, torch.fx.Node] = {}
        self.inputs: dict[int, torch.fx.Node] = {}  # by the id of an example tensor
        named = [*root.named_parameters(remove_duplicate=False), *root.named_buffers(remove_duplicate=False)]
        self.names = {id(tensor): name for name, tensor in named}
        self.same = {node.name: first.name for node, first in captured.traced.same_results.items()}
        self.added: list[str] = []
        self.order = {node.name: at for at, node in enumerate(captured.graph)}
        self.paths = {id(module): path for path, module in root.named_modules()}

    def build(self, result: Any, name: str) -> torch.fx.GraphModule:
        self._add_arguments()
        captured = self.captured.graph
        for placeholder, tensor in zip(captured.placeholders, self.captured.inputs, strict=True):
            self.made[placeholder.name] = self._tensor(tensor)
        stacks = self._stacks()
        leaf_calls = {self._first(call): call for call in self._leaf_calls()}
        skipped: set[str] = set()
        for node in captured:
            if node.op in ("placeholder", "output") or node.name in skipped:
                continue
            origin = node if captured.level == "torch" else node.source
            stack = None if origin is None else stacks.get(origin.name)
            call = leaf_calls.get(node.name)
            if call is not None:
                skipped |= {n.name for n in call.nodes}
                self._add_leaf(call, stack)
            else:
                self._add(node, stack)
        outputs = {
            id(tensor): self.made[node.name]
            for node, tensor in zip(captured.output.args[0], self.captured.outputs, strict=True)
            if node is not None
        }
        self.graph.output(self._result(result, outputs))
        self.graph.eliminate_dead_code(
            lambda node: node.op != "get_attr" and node.target is not operator.getitem
        )
        self.graph.lint()
        made = torch.fx.GraphModule(self.root, self.graph, name)
        for added in self.added:  # the result has them now
            delattr(self.root, added)
        return made

    # ---- arguments

    def _add_arguments(self) -> None:
        values: dict[str, torch.fx.Node] = {}
        expected: dict[str, Any] = {}
        nodes = {}
        for name, parameter in self.arguments.parameters.items():
            stars = _STARS.get(parameter.kind, "")
            if name in self.arguments.values or not stars:
                default = parameter.default if type(parameter.default) in PLAIN else parameter.empty
                nodes[name] = self.graph.placeholder(stars + name, default_value=default)
        for name, node in nodes.items():
            value = self.arguments.values.get(name, self.arguments.parameters[name].default)
            for path, leaf, at in self._walk(name, value, node):
                if isinstance(leaf, torch.Tensor):
                    self.inputs[id(leaf)] = at
                    values[path] = at
                    expected[path] = self._spec_text(leaf)
                elif type(leaf) in PLAIN:
                    values[path] = at
                    expected[path] = leaf
        for sym, size in self.captured.traced.sizes.items():
            low, high = size.bounds
            expected[str(sym)] = (low, None if high >= INFINITE else high)
        if values:
            check = self.graph.call_function(check_inputs, (values, expected))
            check.meta["is_wrapped"] = True  # a leaf of tracers, which unpickle graphs

    def _walk(self, path: str, value: Any, node: torch.fx.Node) -> Iterator[tuple[str, Any, torch.fx.Node]]:
        """The leaves of an argument, each with its path and the node that reads it."""
        if isinstance(value, (list, tuple)):
            keys: Any = range(len(value))
        elif isinstance(value, Mapping):
            keys = list(value)
        else:
            yield path, value, node
            return
        for key in keys:
            item = self.graph.call_function(operator.getitem, (node, key))
            yield from self._walk(f"{path}[{key!r}]", value[key], item)

    def _spec_text(self, tensor: torch.Tensor) -> str:
        shape: Sequence[Any] = tensor.shape
        for placeholder, example in zip(self.captured.graph.placeholders, self.captured.inputs):
            if example is tensor and isinstance(placeholder.spec, TensorSpec):
                shape = placeholder.spec.shape
        return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"

    # ---- values

    def _tensor(self, tensor: torch.Tensor) -> torch.fx.Node:
        """The node of an input of the captured graph: an argument, an attribute, or a new constant of the module."""
        if id(tensor) in self.inputs:
            return self.inputs[id(tensor)]
        name = self.names.get(id(tensor))
        if name is None:
            name = self._constant("_tensor_constant", tensor)
        return self._attribute(name)

    def _constant(self, stem: str, value: Any) -> str:
        count = 0
        while hasattr(self.root, f"{stem}{count}"):
            count += 1
        name = f"{stem}{count}"
        self.added.append(name)
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            self.root.register_buffer(name, value, persistent=False)
            self.names[id(value)] = name
        else:
            setattr(self.root, name, value)
        return name

    def _attribute(self, name: str) -> torch.fx.Node:
        if name not in self.attributes:
            self.attributes[name] = self.graph.get_attr(name)
        return self.attributes[name]

    def _argument(self, value: Any) -> Any:
        return map_leaves(value, Node, lambda node: self.made[node.name])

    def _result(self, result: Any, outputs: dict[int, torch.fx.Node]) -> Any:
        """The argument of the output node."""

        def leaf(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return outputs[id(value)] if id(value) in outputs else self._tensor(value)
            if type(value) in PLAIN:
                return value
            raise SmeltError(
                f"the result holds a {type(value).__name__}, which a graph cannot return: return tensors, numbers and "
                "containers of them, or register the class with torch's pytree"
            )

        def plain(value: Any) -> Any:
            if type(value) in _PLAIN_CONTAINERS:
                items = value.values() if type(value) is dict else value
                made = list(map(plain, items))
                return dict(zip(value, made)) if type(value) is dict else type(value)(made)
            values, spec = tree_flatten(value)
            if spec.is_leaf():
                return leaf(value)
            attribute = self._attribute(self._constant("_tree_spec_constant", spec))
            return self.graph.call_function(tree_unflatten, (list(map(leaf, values)), attribute))

        return plain(result)

    # ---- nodes

    def _add(self, node: Node, stack: Any) -> None:
        if node.op == "get_attr":
            tensor = self.captured.graph.constants[node.target]
            self.made[node.name] = self._tensor(tensor)
            return
        made = self.graph.create_node(
            node.op, node.target, self._argument(node.args), self._argument(node.kwargs), node.name
        )
        self._describe(made, node, stack)

    def _describe(self, made: torch.fx.Node, node: Node, stack: Any) -> None:
        self.made[node.name] = made
        if node.name in self.same:  # what writes a tensor in place stands for it from then on
            self.made[self.same[node.name]] = made
        made.meta["spec"] = node.spec
        if node.line is not None:
            made.stack_trace = (
                f'  File "{node.line.filename}", line {node.line.line}, in {node.line.function}\n'
            )
        if stack:
            made.meta["nn_module_stack"] = stack

    def _stacks(self) -> dict[str, Any]:
        """The modules in whose calls a captured node was recorded, outermost first, by its name."""
        found: dict[str, Any] = {}
        counts: collections.Counter[str] = collections.Counter()
        begun = sorted(self._calls(), key=lambda call: call.depth)
        for call in begun:
            module = call.module()
            path = self.paths.get(id(module))
            if path is None or not call.nodes:
                continue
            key = f"{path}@{counts[path]}" if counts[path] else path
            counts[path] += 1
            for node in call.nodes:
                found.setdefault(node.name, collections.OrderedDict())[key] = (path, type(module))
        return found

    def _calls(self) -> list[Any]:
        return [call for call in self.captured.traced.module_calls if call.module() is not None]

    def _leaf_calls(self) -> Iterator[Any]:
        """The outermost calls of leaf modules that one node can stand for."""
        if self.captured.graph.level != "torch":
            return
        readers: dict[str, set[str]] = collections.defaultdict(set)
        for node in self.captured.graph:
            for read in leaves((node.args, node.kwargs), Node):
                readers[read.name].add(node.name)
        inside: set[str] = set()
        for call in sorted(self._calls(), key=lambda call: call.depth):
            names = {n.name for n in call.nodes} & self.order.keys()
            path = self.paths.get(id(call.module()))
            if not path or not names or names & inside or not self.is_leaf(call.module(), path):
                continue
            if self._is_closed(call, names, readers):
                inside |= names
                yield call

    def _is_closed(self, call: Any, names: set[str], readers: Mapping[str, set[str]]) -> bool:
        """Whether nodes outside of the call read only values that the call returns."""
        if call.values is None:
            return False
        args, kwargs, result = call.values
        computed = {n.name for n in call.nodes}
        written = {self.same[name] for name in computed & self.same.keys()} - computed
        returned = {n.name for n in leaves(result, Node)}
        reads_itself = any(n.name in computed for n in leaves((args, kwargs), Node))
        if not returned or not returned <= computed | written or reads_itself:
            return False
        return all(name in returned or readers[name] <= names for name in names | written)

    def _first(self, call: Any) -> str:
        return min((n.name for n in call.nodes if n.name in self.order), key=self.order.__getitem__)

    def _add_leaf(self, call: Any, stack: Any) -> None:
        args, kwargs, result = call.values
        made = self.graph.call_module(
            self.paths[id(call.module())], self._argument(args), self._argument(kwargs)
        )
        self._name_results(made, result, stack)

    def _name_results(self, made: torch.fx.Node, result: Any, stack: Any) -> None:
        if isinstance(result, Node):
            self._describe(made, result, stack)
        elif isinstance(result, (list, tuple, dict)):
            for key, value in result.items() if isinstance(result, dict) else enumerate(result):
                if isinstance(value, (Node, list, tuple, dict)):
                    item = self.graph.call_function(operator.getitem, (made, key))
                    self._name_results(item, value, stack)
