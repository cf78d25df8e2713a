"""Sources to PTX (NVIDIA) or to an ELF image (AMD), in this process.

Triton is a library here: its stages are run one after the other, without its compilers' front (`triton.compile`), its cache
on disk, its launcher in C, or `ptxas`. NVIDIA's driver compiles PTX when it loads it. Everything that a compilation makes
is its own, so threads may compile side by side.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from smelt.codegen.triton.library import library
from smelt.codegen.triton.source import Source

# From which processor on (10 times the compute capability) which version of PTX: the first that knows it, so that old
# drivers take it.
VERSIONS: tuple[tuple[int, int], ...] = ((121, 88), (120, 87), (103, 88), (100, 86), (0, 80))


@dataclass(frozen=True)
class Chip:
    """A processor as Triton names it: `cuda` and 90, or `hip` and `gfx942`; `lanes` are the threads of a warp."""

    backend: str
    arch: int | str
    lanes: int = 32


@dataclass(frozen=True)
class Ptx:
    """PTX with one kernel, called `name`, of `threads` threads a program and `shared` bytes of shared memory. Behind the
    arguments of the source it takes two more pointers, which are not used."""

    text: str
    name: str
    threads: int
    shared: int


@dataclass(frozen=True)
class Image:
    """As `Ptx`; `code` is what the driver loads."""

    code: bytes
    name: str
    threads: int
    shared: int


def ptx_version(arch: int) -> int:
    """Ten times the version of PTX that a processor's code has."""
    return next(version for first, version in VERSIONS if arch >= first)


def to_ptx(source: Source, arch: int, name: str = "kernel") -> Ptx:
    """PTX for processors `sm_<arch>`; the kernel is called `name` there. Thread-safe; needs triton, but no other program."""
    given = dict(
        ptx_version=ptx_version(arch), enable_reflect_ftz=False
    )  # libdevice keeps denormals, as eager's kernels do
    text, found = _run(source, Chip("cuda", arch), "ptx", **given)
    if found["global_scratch_size"]:
        raise NotImplementedError(
            f"a kernel that needs {found['global_scratch_size']} bytes of global memory"
        )
    text = _without_pairs(_undebugged(text))
    if not source.stages:
        # Triton asks for what only this very processor has (`sm_90a`), for its products: later ones would not take it.
        text = re.sub(rf"^\.target sm_{arch}a\b", f".target sm_{arch}", text, flags=re.M)
    if source.table is not None:  # Triton knows no parameter of so many bytes
        text = text.replace(
            ".param .u64 kernel_param_0", f".param .align 8 .b8 kernel_param_0[{8 * source.table.slots}]"
        )
    named = re.sub(r"\bkernel(?=\(|_param_)", name, text)
    return Ptx(named, name, 32 * found["num_warps"], found["shared"])


def to_image(source: Source, chip: Chip) -> Image:
    """Code for `chip`, NVIDIA's or AMD's. AMD's linker is part of Triton; the source is printed for `libdevice` there."""
    if chip.backend == "cuda":
        ptx = to_ptx(source, int(chip.arch))
        return Image(ptx.text.encode(), ptx.name, ptx.threads, ptx.shared)
    code, found = _run(source, chip, "hsaco")
    return Image(code, found["name"], chip.lanes * found["num_warps"], found["shared"])


def _run(source: Source, chip: Chip, last: str, **further: Any) -> tuple[Any, dict[str, Any]]:
    """What the stages up to `last` give, and what they found out."""
    triton = library()
    target = triton.backends.GPUTarget(chip.backend, chip.arch, chip.lanes)
    backend = triton.compiler.make_backend(target)
    options = backend.parse_options({**triton.options(source), **further})
    module, language = triton.module(source, target, backend, options)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, language)
    found = {"target": target, **options.__dict__}
    if chip.backend == "cuda" and not source.stages:  # products are what Triton's own list is for
        stages["ttgir"] = partial(triton.to_threads, arch=chip.arch, own=stages["ttgir"])
    for name, stage in stages.items():
        module = stage(module, found)
        if name == last:
            return module, found
    raise ValueError(f"Triton's stages for {chip.backend} are {', '.join(stages)}; there is no {last}")


_PAIRS = re.compile(r"\badd\.s16x2\s+(%\w+), (%\w+), (%\w+);")
_HALVES = (
    r"{ .reg .b16 %l, %h, %m, %i; mov.b32 {%l, %h}, \2; mov.b32 {%m, %i}, \3; "
    r"add.s16 %l, %l, %m; add.s16 %h, %h, %i; mov.b32 \1, {%l, %h}; }"
)


def _without_pairs(text: str) -> str:
    """The halves of packed sums of 16 bits one by one. The assemblers of CUDA 12.8 to 13.0, the driver's too, lose what is
    added where a second such sum adds the same constant (https://github.com/triton-lang/triton/issues/11581). LLVM makes
    them of positions that fit 16 bits and are divided."""
    return _PAIRS.sub(_HALVES, text)


_DEBUG = re.compile(r"^\s*(?:\.loc|\.file)\b.*\n|^\s*//.*\n|^\$L__(?:tmp|func_begin|func_end)\w*:.*\n", re.M)


def _undebugged(text: str) -> str:
    """Without lines of the printed source, which no user has: a third of the text that the driver reads."""
    return _DEBUG.sub("", text.partition("\n\t.section\t.debug")[0] + "\n")
