"""Tracing with example inputs: smelt's capture of one call becomes a GraphModule.

Capture interprets the program on fakes of the example inputs, so that conditions on sizes, loops and lengths are known. Its
torch-level graph takes every tensor as an input and goes through modules. Here its inputs become the arguments of the
program and the attributes of the modules that hold them, by identity. Calls of leaf modules become call_module nodes again
where the record of the call (`tracing/record/module_calls.py`) has the arguments and results.
"""

from __future__ import annotations

import collections
import inspect
import itertools
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch import nn

from smelt.errors import SmeltError, Unsupported
from smelt.fx.call_recorder import Condition, Recording, record
from smelt.fx.fx_graph import Graph
from smelt.fx.fx_proxy import TraceError
from smelt.fx.input_checks import check_condition, check_inputs
from smelt.fx.symbolic_tracer import TRACER
from smelt.graph.ir import Node, TensorSpec
from smelt.graph.pytree import PLAIN, leaves, map_leaves
from smelt.shapes.expr import INFINITE, Expression, text
from smelt.shapes.number_operations import OPERATIONS
from smelt.torch_private import tree_flatten, tree_unflatten
from smelt.tracing.fake.fake_tensor import FakeTensor

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
    """The GraphModule of `root(*args, **kwargs)`. Nothing runs; effects of the call on objects are warned of.

    Raises TraceError with the user's line if the call is not one graph, and the exceptions of the program.
    """
    owner = root if isinstance(root, nn.Module) else nn.Module()
    arguments = _Arguments(root, owner, args, kwargs)
    try:
        recording = record(root, arguments.args, arguments.kwargs, dynamic, level)
    except Unsupported as error:
        raise TraceError(f"{_name(root)} cannot be captured as one graph: {error.reason}") from error
    for effect in recording.effects:
        warnings.warn(
            f"smelt.symbolic_trace: {_name(root)} {effect}; the graph does not, and tracing did not",
            stacklevel=4,
        )
    builder = _Builder(owner, arguments, recording, is_leaf, level)
    try:
        return builder.build(_name(root))
    finally:
        for added in builder.added:  # the result has them
            delattr(owner, added)


def _name(root: Any) -> str:
    return (
        type(root).__name__ if isinstance(root, nn.Module) else getattr(root, "__name__", type(root).__name__)
    )


class _Arguments:
    """The arguments of the call, by the names of the program's parameters. No tensor occurs twice in them, or in the module:
    each is an input of its own."""

    def __init__(self, root: Any, owner: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        seen = {id(tensor) for tensor in (*owner.parameters(), *owner.buffers())}

        def distinct(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in seen:
                tensor = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            seen.add(id(tensor))
            return tensor

        self.args, self.kwargs = map_leaves((tuple(args), dict(kwargs)), torch.Tensor, distinct)
        signature = inspect.signature(root.forward if isinstance(root, nn.Module) else root)
        self.parameters = signature.parameters
        self.values = signature.bind(*self.args, **self.kwargs).arguments


def _defaults(parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """The defaults in the code of the graph, where all parameters are positional. After the first default, one without
    a default, or with one that the code cannot hold, is None: the check of the inputs refuses that."""
    found: dict[str, Any] = {}
    begun = False
    for name, parameter in parameters.items():
        is_held = parameter.kind not in _STARS and _is_plain(parameter.default)
        begun = begun or is_held
        found[name] = parameter.default if is_held else None if begun else parameter.empty
    return found


def _is_plain(value: Any) -> bool:
    if type(value) in _PLAIN_CONTAINERS:
        return all(map(_is_plain, value.values() if type(value) is dict else value))
    return type(value) in PLAIN


class _Builder:
    """Builds torch.fx's graph from the captured one."""

    def __init__(
        self, root: nn.Module, arguments: _Arguments, captured: Recording, is_leaf: IsLeaf, level: str
    ) -> None:
        self.level = level
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

    def build(self, name: str) -> torch.fx.GraphModule:
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
            origin = node if self.level == "torch" else node.source
            stack = None if origin is None else stacks.get(origin.name)
            call = leaf_calls.get(node.name)
            if call is not None:
                skipped |= {n.name for n in _without_settings(call)}
                self._add_leaf(call, stack)
            else:
                self._add(node, stack)
        self.graph.output(self._result(self.captured.result))
        self.graph.eliminate_dead_code(
            lambda node: node.op != "get_attr" and node.target is not operator.getitem
        )
        self.graph.lint()
        return torch.fx.GraphModule(self.root, self.graph, name)

    # ---- arguments

    def _add_arguments(self) -> None:
        nodes = {}
        defaults = _defaults(self.arguments.parameters)
        for name, parameter in self.arguments.parameters.items():
            stars = _STARS.get(parameter.kind, "")
            if name in self.arguments.values or not stars:
                nodes[name] = self.graph.placeholder(stars + name, default_value=defaults[name])
        values = {
            name: self.arguments.values.get(name, self.arguments.parameters[name].default) for name in nodes
        }
        expected = {name: self._expected(name, value) for name, value in values.items()}
        bounds = {
            str(sym): (size.bounds[0], None if size.bounds[1] >= INFINITE else size.bounds[1])
            for sym, size in self.captured.traced.sizes.items()
        }
        if nodes:
            self._check(check_inputs, (nodes, expected, bounds) if bounds else (nodes, expected))
        for name, node in nodes.items():
            self._read(values[name], node)
        for condition in self.captured.conditions:
            self._add_condition(condition)

    def _check(self, function: Any, args: tuple[Any, ...]) -> None:
        check = self.graph.call_function(function, args)
        check.meta["is_wrapped"] = True  # a leaf of tracers, which unpickle graphs

    def _expected(self, name: str, value: Any) -> Any:
        """What `check_inputs` expects of an argument."""
        if isinstance(value, torch.Tensor):
            return self._spec_text(value)
        if isinstance(value, Mapping):
            return {key: self._expected(name, item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._expected(name, item) for item in value]
        if type(value) not in PLAIN:
            raise SmeltError(
                f"the argument {name} holds a {type(value).__name__}, which a graph cannot check: pass tensors, numbers, "
                "strings and containers of them, or make it an attribute of the module"
            )
        return value

    def _read(self, value: Any, node: torch.fx.Node) -> None:
        """Add nodes that read the tensors of an argument."""
        if isinstance(value, torch.Tensor):
            self.inputs[id(value)] = node
        elif isinstance(value, (list, tuple, Mapping)):
            for key in value if isinstance(value, Mapping) else range(len(value)):
                if leaves(value[key], torch.Tensor):
                    self._read(value[key], self.graph.call_function(operator.getitem, (node, key)))

    def _add_condition(self, condition: Condition) -> None:
        inputs = self.captured.inputs

        def number(e: Expression) -> Any:
            if e.op == "const":
                return e.args[0]
            if e.op == "leaf":
                at, dim = condition.sizes[id(e.args[0])]
                return self.graph.call_method("size", (self._tensor(inputs[at]), dim))
            return self.graph.call_function(OPERATIONS[e.op].function, tuple(map(number, e.args)))

        def name(source: Any) -> str:
            at, dim = condition.sizes[id(source)]
            return f"{self._tensor(inputs[at])}.shape[{dim}]"

        holds, shown = number(condition.expression), text(condition.expression, name)
        self._check(check_condition, (holds, condition.holds, shown))

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

    def _result(self, result: Any) -> Any:
        """The argument of the output node."""

        def leaf(value: Any) -> Any:
            value = self.captured.made.get(id(value), value)
            if isinstance(value, Node):
                return self.made[value.name]
            if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
                return self._tensor(value)
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
            if type(value) is torch.Size:
                return self.graph.call_function(torch.Size, (list(map(plain, value)),))
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
        if self.level != "torch":
            return
        readers: dict[str, set[str]] = collections.defaultdict(set)
        for node in self.captured.graph:
            for read in leaves((node.args, node.kwargs), Node):
                readers[read.name].add(node.name)
        inside: set[str] = set()
        for call in sorted(self._calls(), key=lambda call: call.depth):
            names = {n.name for n in _without_settings(call)} & self.order.keys()
            path = self.paths.get(id(call.module()))
            if not path or not names or names & inside or not self.is_leaf(call.module(), path):
                continue
            if self._is_closed(call, names, readers):
                inside |= names
                yield call

    def _is_closed(self, call: Any, names: set[str], readers: Mapping[str, set[str]]) -> bool:
        """Whether the call reads its arguments and the module's tensors only, and nothing outside of it reads what it
        computes and does not return."""
        if call.values is None or self._is_changed(call.module()):
            return False
        args, kwargs, result = call.values
        nodes = _without_settings(call)
        computed = {n.name for n in nodes}
        known = computed | {n.name for n in leaves((args, kwargs), Node)}
        known |= self._own(call.module())
        if any(
            _is_setting(n) or not {r.name for r in leaves((n.args, n.kwargs), Node)} <= known for n in nodes
        ):
            return False
        written = {self.same[name] for name in computed & self.same.keys()} - computed
        returned = {n.name for n in leaves(result, Node)}
        reads_itself = any(n.name in computed for n in leaves((args, kwargs), Node))
        if not returned or not returned <= computed | written or reads_itself:
            return False
        return all(name in returned or readers[name] <= names for name in names | written)

    def _is_changed(self, module: nn.Module) -> bool:
        """Whether the program sets attributes of the module, so that its calls differ."""
        held = (value for inner in module.modules() for value in (inner, *vars(inner).values()))
        return not self.captured.changed.isdisjoint(map(id, held))

    def _own(self, module: nn.Module) -> set[str]:
        """The inputs of the graph that a call of the module may read: its own tensors, and those of no module."""
        own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
        foreign = (self.names.keys() | self.inputs.keys()) - own
        inputs = zip(self.captured.graph.placeholders, self.captured.inputs)
        return {node.name for node, tensor in inputs if id(tensor) not in foreign}

    def _first(self, call: Any) -> str:
        return min(
            (n.name for n in _without_settings(call) if n.name in self.order), key=self.order.__getitem__
        )

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


def _is_setting(node: Node) -> bool:
    """Whether a node changes the grad mode, autocast or another setting of torch."""
    return node.spec is None and not leaves((node.args, node.kwargs), Node)


def _without_settings(call: Any) -> list[Node]:
    """The nodes of a call without the settings of its caller, which precede its first node."""
    return list(itertools.dropwhile(_is_setting, call.nodes))
