"""Kernels as callables by Triton's own launcher: for tests, on a GPU or, in Triton's interpreter, on CPU tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from smelt.codegen.triton.library import function_of, library
from smelt.codegen.triton.source import Source, triton_source
from smelt.codegen.triton.values import Dialect
from smelt.loops.ir import Kernel


@functools.lru_cache(1024)
def load_kernel(kernel: Kernel, host: frozenset[int] = frozenset()) -> Callable[..., None]:
    """`launch(*tensors)` of the kernel, on the tensors' device and the current stream; those of `host` are passed by value.
    Needs triton."""
    source = triton_source(kernel, host, _dialect())
    function = function_of(source)
    if not source.points:
        return lambda *tensors: None
    return functools.partial(_launch, function, source, host)


def _dialect() -> Dialect:
    if library().interprets:
        return "torch"
    return "libdevice" if torch.version.hip else "ptx"


def _launch(function: Callable, source: Source, host: frozenset[int], *tensors: torch.Tensor) -> None:
    arguments = [t.item() if i in host else t for i, t in enumerate(tensors)]
    options = {} if library().interprets else library().options(source.warps)
    grid = (-(-source.points // source.block),)
    function[grid](*arguments, source.points, **source.constants, **options)  # type: ignore[index]
