"""`torch.compile` within a captured function: the graph includes what the inner function computes."""

from __future__ import annotations

import functools
from typing import NoReturn

import torch

from smelt.capture.base.call_handlers import Args, Kwargs, function, unsupported
from smelt.capture.base.value_kinds import FunctionType
from smelt.capture.reconstruction.frame_globals import provide
from smelt.capture.reconstruction.reconstruction_kind import ReconstructionKind
from smelt.capture.reconstruction.reconstruction_table import RECONSTRUCTION_KINDS
from smelt.capture.semantics.calls.calls import CALLERS
from smelt.capture.vm.vm import VM


class InnerCompiled:
    """The result of `torch.compile(fn, **options)` during capture. The VM calls `fn`; where the object leaves the graph, the
    compiled frame calls `torch.compile`."""

    __slots__ = ("fn", "options")

    def __init__(self, fn: FunctionType, options: dict[str, object]) -> None:
        self.fn = fn
        self.options = options

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise unsupported("native code that calls a function compiled by torch.compile")

    def __getattr__(self, name: str) -> NoReturn:
        raise unsupported(f"{name} of a function compiled by torch.compile")


@function(torch.compile)
def _compile(vm: VM, args: Args, kwargs: Kwargs) -> object:
    options = dict(kwargs)
    model = args[0] if args else options.pop("model", None)
    if model is None:
        return functools.partial(torch.compile, **options)
    if type(model) is not FunctionType or len(args) > 1 or options.get("disable"):
        raise unsupported("torch.compile")
    return InnerCompiled(model, options)


def _call(vm: VM, compiled: InnerCompiled, args: Args, kwargs: Kwargs) -> object:
    return vm.call(compiled.fn, args, kwargs)


CALLERS[InnerCompiled] = _call
provide(torch_compile=torch.compile)
RECONSTRUCTION_KINDS[InnerCompiled] = ReconstructionKind(
    lambda x: (x.fn, x.options), lambda x, text: f"torch_compile({text(x.fn)}, **{text(x.options)})"
)
