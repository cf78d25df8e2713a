"""Processor features that machine code needs, by the names of native/exported/processor.cpp."""

from __future__ import annotations

from collections.abc import Iterable

# LLVM's name of a feature -> Linux's, for those whose instructions compute. Others do not occur in kernels.
_OF_LINUX = {
    "sse3": "pni", "ssse3": "ssse3", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "sse4a": "sse4a", "avx": "avx", "avx2": "avx2",
    "fma": "fma", "f16c": "f16c", "bmi": "bmi1", "bmi2": "bmi2", "lzcnt": "abm", "popcnt": "popcnt", "movbe": "movbe",
    "aes": "aes", "vaes": "vaes", "pclmul": "pclmulqdq", "vpclmulqdq": "vpclmulqdq", "gfni": "gfni", "sha": "sha_ni",
    "adx": "adx", "cx16": "cx16", "sahf": "lahf_lm", "avx512f": "avx512f", "avx512bw": "avx512bw", "avx512dq": "avx512dq",
    "avx512cd": "avx512cd", "avx512vl": "avx512vl", "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16",
    "avx512ifma": "avx512ifma", "avx512vbmi": "avx512vbmi", "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni", "avx512bitalg": "avx512_bitalg", "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxvnni": "avx_vnni", "avxifma": "avx_ifma", "avxneconvert": "avx_ne_convert", "avxvnniint8": "avx_vnni_int8",
    "avxvnniint16": "avx_vnni_int16", "xop": "xop", "fma4": "fma4", "tbm": "tbm", "amx-tile": "amx_tile",
}  # fmt: skip


def of_linux(features: Iterable[str]) -> tuple[str, ...]:
    """Linux's names of those of LLVM's `features` that kernels use."""
    return tuple(sorted(_OF_LINUX[f] for f in features if f in _OF_LINUX))
