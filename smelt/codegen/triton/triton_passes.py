"""Triton's compile stages, in this process.

Triton is a library here: its stages run in sequence, without its driver (`triton.compile`), its disk cache, its C
launchers, or other programs. A compilation shares no state, so threads may compile in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from smelt.codegen.triton import llvm_lowering
from smelt.codegen.triton.gpu_architectures import Arch, backend, lanes
from smelt.codegen.triton.kernel_source import Source
from smelt.codegen.triton.triton_import import library

Change = Callable[[Any], Any]
NOTHING: Mapping[str, Any] = MappingProxyType({})


def run(
    source: Source,
    arch: Arch,
    last: str,
    changes: Mapping[str, Change] = NOTHING,
    options: Mapping[str, Any] = NOTHING,
) -> tuple[Any, dict[str, Any]]:
    """The results of the stages up to `last` for `arch`, with their metadata. `changes`: functions applied to the
    result of a stage, by its name. `options`: additional options of Triton's."""
    triton = library()
    target = triton.backends.GPUTarget(backend(arch), arch, lanes(arch))
    compiler = triton.compiler.make_backend(target)
    if isinstance(arch, int):
        llvm_lowering.shorten(compiler, triton.ir, arch)
    chosen = compiler.parse_options({**triton.options(source, lanes(arch)), **options})
    with triton.context(compiler) as context:
        module, language = triton.module(source, target, compiler, chosen, context)
        stages: dict[str, Any] = {}
        compiler.add_stages(stages, chosen, language)
        found = {"target": target, **chosen.__dict__}
        if isinstance(arch, int) and not source.stages:  # products are what Triton's own list is for
            stages["ttgir"] = partial(triton.to_threads, arch=arch, own=stages["ttgir"])
        for name, stage in stages.items():
            module = stage(module, found)
            if name in changes:
                module = changes[name](module)
            if name == last:
                return module, found
    raise ValueError(f"Triton's stages for {arch} are {', '.join(stages)}; there is no {last}")
