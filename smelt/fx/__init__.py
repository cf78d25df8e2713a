"""Symbolic tracing: programs as graphs that can be printed, rewritten and run (docs/fx.md).

smelt uses torch.fx's data structures: Graph, Node, GraphModule, code generation, node editing, pickling and the subgraph
matcher. Passes and backends of others take and return these classes; other classes would need conversions in both
directions. Tracing is smelt's own: the tracer on proxies, whose errors name the user's line; tracing with example inputs, by
smelt's capture; module hierarchies; shapes by smelt's fakes; and retracing to ATen.
"""

from __future__ import annotations

from torch.fx import PH, ProxyableClassMeta, wrap  # type: ignore[attr-defined]
from torch.fx.graph import CodeGen
from torch.fx.graph_module import GraphModule
from torch.fx.interpreter import Interpreter
from torch.fx.node import Node, has_side_effect, map_arg

from smelt.fx.fx_graph import Graph
from smelt.fx.fx_interpreter import ShapeProp, Transformer
from smelt.fx.fx_proxy import Attribute, NotTraceable, ParameterProxy, Proxy, TraceError
from smelt.fx.module_hierarchy import features, nest
from smelt.fx.symbolic_tracer import Tracer
from smelt.fx.tracing import from_fx, replace_pattern, replace_pattern_with_filters, symbolic_trace

__all__ = [
    "PH",
    "Attribute",
    "CodeGen",
    "Graph",
    "GraphModule",
    "Interpreter",
    "Node",
    "NotTraceable",
    "ParameterProxy",
    "Proxy",
    "ProxyableClassMeta",
    "ShapeProp",
    "TraceError",
    "Tracer",
    "Transformer",
    "features",
    "from_fx",
    "has_side_effect",
    "map_arg",
    "nest",
    "replace_pattern",
    "replace_pattern_with_filters",
    "symbolic_trace",
    "wrap",
]
