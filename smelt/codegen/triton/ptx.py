"""PTX from sources: the text that NVIDIA's driver compiles when it loads it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from smelt.codegen.triton import triton_passes
from smelt.codegen.triton.gpu_architectures import ptx_version
from smelt.codegen.triton.kernel_source import Source


@dataclass(frozen=True)
class Ptx:
    """PTX with one kernel, called `name`, of `threads` threads a program and `shared` bytes of shared memory. After
    the source's arguments it takes two unused pointers."""

    text: str
    name: str
    threads: int
    shared: int


def to_ptx(source: Source, arch: int, name: str = "kernel") -> Ptx:
    """PTX for processors `sm_<arch>`, with the kernel called `name`. Thread-safe; needs triton, but no other program."""
    # libdevice preserves denormals, as eager's kernels do
    options = dict(ptx_version=ptx_version(arch), enable_reflect_ftz=False)
    text, found = triton_passes.run(source, arch, "ptx", options=options)
    if found["global_scratch_size"]:
        raise NotImplementedError(
            f"a kernel that needs {found['global_scratch_size']} bytes of global memory"
        )
    text = _without_pairs(_undebugged(text))
    if not source.stages:
        # Triton targets exactly this processor (`sm_90a`), for its products: later ones would reject the code.
        text = text.replace(f"\n.target sm_{arch}a\n", f"\n.target sm_{arch}\n", 1)
    if source.table is not None:  # Triton has no parameter type of this size
        text = text.replace(
            ".param .u64 kernel_param_0", f".param .align 8 .b8 kernel_param_0[{8 * source.table.slots}]"
        )
    if source.registers:
        text = text.replace("\n.reqntid ", f"\n.maxnreg {source.registers}\n.reqntid ", 1)
    named = text.replace(".entry kernel(", f".entry {name}(").replace("kernel_param_", f"{name}_param_")
    return Ptx(named, name, 32 * found["num_warps"], found["shared"])


_PAIRS = re.compile(r"\badd\.s16x2\s+(%\w+), (%\w+), (%\w+);")
_HALVES = (
    r"{ .reg .b16 %l, %h, %m, %i; mov.b32 {%l, %h}, \2; mov.b32 {%m, %i}, \3; "
    r"add.s16 %l, %l, %m; add.s16 %h, %h, %i; mov.b32 \1, {%l, %h}; }"
)


def _without_pairs(text: str) -> str:
    """Packed 16-bit sums split into halves. The assemblers of CUDA 12.8 to 13.0, the driver's included, drop an addend
    if a second such sum adds the same constant (https://github.com/triton-lang/triton/issues/11581). LLVM creates them
    for 16-bit indices that are divided."""
    return _PAIRS.sub(_HALVES, text) if "add.s16x2" in text else text


_DEBUG = re.compile(r"\n(?:[ \t]*(?:\.loc\b|\.file\b|//)|\$L__(?:tmp|func_begin|func_end)\w*:).*")


def _undebugged(text: str) -> str:
    """PTX without the lines of the printed source and comments: a third of the text that the driver reads."""
    return _DEBUG.sub("", "\n" + text.partition("\n\t.section\t.debug")[0] + "\n").lstrip("\n")
