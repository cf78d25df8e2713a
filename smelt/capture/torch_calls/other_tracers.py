"""Calls of other tracers, torch's and `smelt.fx`'s: each breaks the graph, since a tracer must observe an eager run of
its function."""

from __future__ import annotations

from typing import NoReturn

from smelt.capture.base.call_handlers import LAZY_FUNCTIONS, Args, Kwargs, unsupported
from smelt.capture.vm.vm import VM

_TRACERS = (
    ("smelt.fx.tracing", "symbolic_trace"),
    ("smelt.fx.symbolic_tracer", "Tracer.trace"),
    ("torch.fx._symbolic_trace", "symbolic_trace"),
    ("torch.fx._symbolic_trace", "Tracer.trace"),
    ("torch.fx.experimental.proxy_tensor", "make_fx"),
    ("torch.fx.experimental.proxy_tensor", "make_fx.<locals>.wrapped"),
    ("torch.export", "export"),
    ("torch.jit._trace", "trace"),
    ("torch.jit._trace", "trace_module"),
    ("torch._functorch.aot_autograd", "aot_function"),
)


def _refuse(vm: VM, args: Args, kwargs: Kwargs) -> NoReturn:
    raise unsupported("another tracer of torch")


LAZY_FUNCTIONS.update(dict.fromkeys(_TRACERS, _refuse))
