"""`symbolic_trace` and `replace_pattern`: torch.fx's entry points, with smelt's tracers."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.fx
from torch import nn
from torch.fx import subgraph_rewriter

from smelt.backends import fx_bridge
from smelt.errors import OptionError
from smelt.fx.captured_module import capture_module
from smelt.fx.symbolic_tracer import TRACER, Tracer
from smelt.report.traces import GraphView
from smelt.torch_private import make_graph_module, original_of_torch_compile

Leaves = Sequence[type[nn.Module]] | Callable[[nn.Module, str], bool] | None


def symbolic_trace(
    root: nn.Module | Callable[..., Any],
    concrete_args: dict[str, Any] | tuple[Any, ...] | None = None,
    *,
    example_inputs: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    leaves: Leaves = None,
    dynamic: bool = False,
    level: Literal["torch", "aten"] = "torch",
) -> torch.fx.GraphModule:
    """See `smelt.symbolic_trace`."""
    root, is_leaf = original_of_torch_compile(root), _leaf_rule(leaves)
    if example_inputs is None and example_kwargs is None:
        if dynamic or level != "torch":
            raise OptionError(f"symbolic_trace: {'dynamic' if dynamic else 'level'} needs example_inputs")
        tracer = _with_leaves(is_leaf)
        graph = tracer.trace(root, concrete_args)
        name = root._get_name() if isinstance(root, nn.Module) else root.__name__
        graph._tracer_cls = TRACER
        made: torch.fx.GraphModule = make_graph_module(tracer.root, graph, name)
        return made
    if concrete_args is not None:
        raise OptionError("symbolic_trace: concrete_args and example_inputs exclude each other")
    if isinstance(example_inputs, torch.Tensor):
        raise OptionError("symbolic_trace: example_inputs must be a tuple of arguments, got one tensor")
    if level not in ("torch", "aten"):
        raise OptionError(f"symbolic_trace: level must be 'torch' or 'aten', got {level!r}")
    if dynamic and level == "aten":
        raise OptionError(
            "symbolic_trace: graphs of ATen operators have fixed sizes: trace them without dynamic"
        )
    return capture_module(root, example_inputs or (), example_kwargs or {}, is_leaf, dynamic, level)


def _leaf_rule(leaves: Leaves) -> Callable[[nn.Module, str], bool]:
    if leaves is None:
        return Tracer().is_leaf_module
    if isinstance(leaves, (types.FunctionType, types.MethodType)) or callable(leaves):
        return leaves
    classes = tuple(leaves)
    if not all(isinstance(cls, type) for cls in classes):
        raise OptionError(f"symbolic_trace: leaves must be classes of modules or a function, got {leaves!r}")
    return lambda module, path: isinstance(module, classes)


def _with_leaves(is_leaf: Callable[[nn.Module, str], bool]) -> Tracer:
    tracer = Tracer()
    tracer.is_leaf_module = is_leaf  # type: ignore[method-assign,assignment]
    return tracer


Pattern = Callable[..., Any] | torch.fx.Graph | torch.fx.GraphModule


def replace_pattern(
    gm: torch.fx.GraphModule, pattern: Pattern, replacement: Pattern
) -> list[subgraph_rewriter.Match]:
    """Replace each match of `pattern` in the graph of `gm` by `replacement`, without overlaps; return the matches. Both are
    graphs, or functions of the same parameters, which smelt traces.

    Raises TraceError if a pattern cannot be traced, RuntimeError if the replacement reads an attribute that neither `gm` nor
    the replacement has.
    """
    matches = subgraph_rewriter.replace_pattern(gm, _graph_of(pattern), _graph_of(replacement))
    return matches


def replace_pattern_with_filters(
    gm: torch.fx.GraphModule,
    pattern: Pattern,
    replacement: Pattern | None = None,
    match_filters: list[Callable[..., bool]] | None = None,
    ignore_literals: bool = False,
    replacement_callback: Callable[..., torch.fx.Graph] | None = None,
    node_name_match: str = "",
) -> list[subgraph_rewriter.ReplacedPatterns]:
    """Replace matches as `replace_pattern` does, if each of `match_filters` accepts them: a function of the match, the graph
    and the pattern's graph. With `ignore_literals`, a number in the pattern matches any number. `replacement_callback`
    returns the replacement of a match."""
    return subgraph_rewriter.replace_pattern_with_filters(
        gm,
        _graph_of(pattern),
        None if replacement is None else _graph_of(replacement),
        match_filters,
        ignore_literals,
        replacement_callback,
        node_name_match,
    )


def _graph_of(pattern: Pattern) -> Any:
    """The graph of a pattern. torch's rewriter would trace a function with torch's tracer."""
    return pattern if isinstance(pattern, (torch.fx.Graph, torch.fx.GraphModule)) else symbolic_trace(pattern)


def from_fx(gm: torch.fx.GraphModule) -> GraphView:
    """The graph of `gm` as one of smelt's, to print with lines and types, edit and run; `GraphView.to_fx()` is the inverse.

    Raises SmeltError for a graph that calls modules or returns nested values: trace that again with example inputs first.
    """
    return GraphView(fx_bridge.from_fx(gm))
