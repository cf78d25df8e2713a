"""The bridge to backends written for torch.compile: `backend(gm: torch.fx.GraphModule, example_inputs) -> callable`."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from smelt.autograd.compile_joint import compile_joint
from smelt.backends.eager import beneath_node, eager, eager_beneath_node, without_gradients
from smelt.backends.explicit_numbers import ExplicitGraph, with_explicit_numbers
from smelt.backends.graph_parts import compile_parts
from smelt.backends.torch_capture_facts import TorchCaptureFacts, compile_reason
from smelt.config import Config
from smelt.errors import BackendError, NeedsFixedSize, SmeltError
from smelt.graph.graph_callable import Compiled, GraphFunction
from smelt.graph.ir import Graph, Node
from smelt.graph.pytree import map_leaves
from smelt.graph.tensor_specs import empty_like_spec
from smelt.shapes.expr import Sym, Values
from smelt.torch_private import OpOverload, backend_tools
from smelt.tracing.backward.joint import Joint
from smelt.tracing.operator_sets import OperatorSet, lowered
from smelt.tracing.record.traced import Role, Traced

log = logging.getLogger("smelt")

# Classes that torch accepts as dtypes.
_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}

ForeignBackend = Callable[[torch.fx.GraphModule, list[torch.Tensor]], Callable[..., Any]]


def to_fx(graph: Graph, class_name: str = "GraphModule") -> torch.fx.GraphModule:
    """`graph` as a torch.fx.GraphModule. Every tensor is a placeholder, parameters included; constants become buffers. Each
    node's `meta` holds the user's line (`stack_trace`), the result's spec (`spec`), and of a call, as
    torch.fx.passes.utils.source_matcher_utils reads it, its function (`source_fn_stack`)."""
    root = torch.nn.Module()
    for name, value in graph.constants.items():
        root.register_buffer(name, value)
    out = torch.fx.Graph()
    fx_nodes: dict[Node, torch.fx.Node] = {}

    def argument(value: Node | type) -> Any:
        return fx_nodes[value] if isinstance(value, Node) else _class_argument(value, root, out)

    for node in graph.nodes:
        args, kwargs = map_leaves((node.args, node.kwargs), (Node, type), argument)
        new = fx_nodes[node] = out.create_node(node.op, node.target, args, kwargs, node.name)
        if node.line is not None:
            new.meta["stack_trace"] = (
                f'  File "{node.line.filename}", line {node.line.line}, in {node.line.function}\n'
            )
        new.meta["spec"] = node.spec
        if node.op.startswith("call"):
            new.meta["source_fn_stack"] = [(new.name, node.target)]
    return torch.fx.GraphModule(root, out, class_name)


def from_fx(gm: torch.fx.GraphModule) -> Graph:
    """The graph of `gm` as smelt's: the inverse of `to_fx`. Tensors that it reads from attributes become constants.

    Raises SmeltError if it calls modules, reads attributes that are no tensors, or returns anything but tensors.
    """
    calls = [n for n in gm.graph.nodes if n.op.startswith("call")]
    aten = all(isinstance(n.target, OpOverload) or n.target is operator.getitem for n in calls)
    graph = Graph("aten" if aten and calls else "torch")
    nodes: dict[torch.fx.Node, Node] = {}

    def argument(value: Any) -> Any:
        return map_leaves(value, torch.fx.Node, nodes.__getitem__)

    for fx_node in gm.graph.nodes:
        op, target, args, kwargs = (
            fx_node.op,
            fx_node.target,
            argument(fx_node.args),
            argument(fx_node.kwargs),
        )
        if op == "call_module":
            raise SmeltError(f"from_fx: the graph calls the module {target}: {_RETRACE}")
        if op == "placeholder":
            target, args = fx_node.name, ()
        elif op == "get_attr":
            value, target = operator.attrgetter(target)(gm), fx_node.name
            if not isinstance(value, torch.Tensor):
                raise SmeltError(f"from_fx: the attribute {fx_node.target} is no tensor: {_RETRACE}")
            graph.constants[target] = value
        elif op == "output":
            args = (_results(args[0]),)
        node = Node(op, target, _plain(args), _plain(kwargs), fx_node.name, fx_node.meta.get("spec"))
        nodes[fx_node] = node
        graph.nodes.append(node)
    return graph


_RETRACE = "trace it again to a graph of functions: smelt.symbolic_trace(gm, example_inputs=..., leaves=())"


def _results(value: Any) -> tuple[Node | None, ...]:
    results = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not all(result is None or isinstance(result, Node) for result in results):
        raise SmeltError(f"from_fx: the graph returns nested or plain values: {_RETRACE}")
    return results


def _plain(value: Any) -> Any:
    """torch.fx's immutable lists and dictionaries as plain ones."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return tuple(map(_plain, value)) if type(value) is tuple else value


def _class_argument(value: type, root: torch.nn.Module, graph: torch.fx.Graph) -> Any:
    """The replacement of a class among arguments, which torch.fx cannot print: a dtype, a name of torch, or an attribute."""
    if value in _DTYPES:
        return _DTYPES[value]
    if isinstance(value, type(torch.FloatTensor)):
        return f"{value.__module__}.{value.__name__}"
    setattr(root, value.__name__, value)
    return graph.create_node("get_attr", value.__name__)


def adapt(
    backend: ForeignBackend, operators: OperatorSet | None = None
) -> Callable[[Traced, Config], Compiled]:
    """Wraps a foreign backend, which receives the torch-level graph if it has calls. Symbolic sizes, and numbers computed
    from them, are placeholders after those of tensors: the graph is valid for all sizes. It reads unbacked numbers itself
    (`explicit_numbers.py`).

    With `operators`, it receives the aten graph, or the forward and the backward, in operators of that set."""

    def compile_with_foreign(traced: Traced, config: Config) -> Compiled:
        if traced.joint is not None:
            return compile_joint_halves(traced, traced.joint, config)
        if operators is not None and not traced.needs_grad:
            return compile_lowered(traced, operators)
        if not any(node.op.startswith("call") for node in traced.torch_graph):
            return eager(traced, config)
        if traced.unbacked is not None and traced.unbacked.small:
            try:
                return compile_trace(traced)
            except Exception as error:
                if not _depends_on_numbers(error):
                    raise
                log.debug("smelt: compiled for numbers of at least 2 after %r", error)
                traced = replace(traced, unbacked=replace(traced.unbacked, small=frozenset()))
        return compile_trace(traced)

    def compile_joint_halves(traced: Traced, joint: Joint, config: Config) -> Compiled:
        """The forward and the backward of a joint graph, which gradients of wrapper subclasses need, each compiled."""
        check_fixed(traced, "a custom backend with a graph of gradients")

        def compile_half(
            graph: Graph, donated: frozenset[int], sizes: tuple[Sym, ...], role: Role
        ) -> Callable[[Values], Compiled]:
            specs = [p.spec for p in graph.placeholders]
            examples = [empty_like_spec(spec, spec.device) for spec in specs]
            made = graph if operators is None else lowered(graph, operators)
            compiled = compile_graph(traced, ExplicitGraph(made), examples)
            return lambda values: beneath_node(graph, compiled)

        return compile_joint(traced, joint, config, compile_half, eager_beneath_node)({})

    def compile_lowered(traced: Traced, operators: OperatorSet) -> Compiled:
        """The aten graph, which needs no gradients, in operators of a set."""
        check_fixed(traced, "a custom backend with operators=...")
        if not any(node.op.startswith("call") for node in traced.aten_graph):
            return without_gradients(GraphFunction(traced.aten_graph))
        examples = list(traced.example_inputs()[: len(traced.inputs)])
        graph = ExplicitGraph(lowered(traced.aten_graph, operators))
        compiled = compile_graph(traced, graph, examples)
        return without_gradients(lambda *tensors: compiled(tensors))

    def check_fixed(traced: Traced, what: str) -> None:
        if traced.sizes or traced.unbacked is not None:
            raise NeedsFixedSize(what, frozenset(traced.sizes))
        if traced.numbers:
            raise BackendError(f"{what} takes no numbers as inputs: use dynamic=False")

    def compile_trace(traced: Traced) -> Compiled:
        if traced.boundaries:
            return compile_parts(
                traced, lambda graph, examples: compile_graph(traced, ExplicitGraph(graph), examples)
            )
        examples = list(traced.example_inputs()[: len(traced.inputs)])
        return compile_graph(traced, with_explicit_numbers(traced), examples)

    def compile_graph(traced: Traced, explicit: ExplicitGraph, examples: list[torch.Tensor]) -> Compiled:
        facts = TorchCaptureFacts(traced, explicit, examples)
        gm = to_fx(explicit.graph)
        gm.compile_subgraph_reason = compile_reason(traced.graph_break)  # type: ignore[assignment]
        facts.annotate(gm)
        with facts.tracing():
            compiled = backend(gm, facts.example_inputs)
        facts.check_guards()
        if not callable(compiled):
            raise BackendError(
                f"the backend {_name(backend)} returned {type(compiled).__name__}, which cannot be called"
            )
        return explicit.wrap(lambda tensors: _as_tuple(compiled(*tensors), backend))

    compile_with_foreign.__name__ = _name(backend)
    compile_with_foreign.is_foreign = True  # type: ignore[attr-defined]
    compile_with_foreign.differentiates = operators is not None  # type: ignore[attr-defined]
    compile_with_foreign.foreign = backend  # type: ignore[attr-defined]
    return compile_with_foreign


def _depends_on_numbers(error: BaseException) -> bool:
    """Whether `error` comes from torch's, that its code depends on an unbacked number: perhaps on whether it is 0 or 1."""
    kind, seen = backend_tools().GuardOnDataDependentSymNode, set[int]()
    pending: list[BaseException | None] = [error]
    while pending:
        at = pending.pop()
        if isinstance(at, kind):
            return True
        if at is not None and id(at) not in seen:
            seen.add(id(at))
            pending += (at.__cause__, at.__context__)
    return False


def _name(backend: object) -> str:
    return str(getattr(backend, "__name__", type(backend).__name__))


def _as_tuple(result: object, backend: object) -> tuple[Any, ...]:
    if isinstance(result, Sequence):
        return tuple(result)
    raise BackendError(
        f"a function compiled by the backend {_name(backend)} returned {type(result).__name__}; "
        "it must return the graph's outputs as a tuple or list"
    )
