"""FX."""
import torch.fx
from torch.fx import *  # noqa
from torch.fx import PH, CodeGen, GraphModule, Interpreter, Node, has_side_effect, wrap
from torch.fx._symbolic_trace import PHBase, PHWithMeta
from smelt.fx.symbolic_tracer import Tracer
from smelt.fx.fx_graph import Graph
from smelt.fx.fx_proxy import Proxy, Attribute, ParameterProxy, TraceError
def symbolic_trace(root, concrete_args=None):
    t = Tracer()
    g = t.trace(root, concrete_args)
    return GraphModule(t.root, g, root.__class__.__name__ if isinstance(root, torch.nn.Module) else root.__name__)
from smelt.fx.fx_interpreter import Transformer, ShapeProp
from torch.fx.subgraph_rewriter import replace_pattern as _rp, replace_pattern_with_filters as _rpf
def _g(p):
    return p if isinstance(p, (torch.fx.GraphModule, torch.fx.Graph)) or p is None else symbolic_trace(p)
def replace_pattern(gm, pattern, replacement):
    return _rp(gm, _g(pattern), _g(replacement))
def replace_pattern_with_filters(gm, pattern, replacement=None, *a, **k):
    return _rpf(gm, _g(pattern), _g(replacement), *a, **k)
