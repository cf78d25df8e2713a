"""The options of `smelt.compile`; environment variables `SMELT_<NAME>` set their defaults, once, at import."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from smelt.errors import OptionError


@dataclass(frozen=True)
class Config:
    """What `options={...}` of `smelt.compile` accepts.

    recompile_limit   entries of one function; then graphs break where what keeps changing is needed, else calls that no
                      entry accepts run eagerly
    fuse              join loops into kernels (False: one kernel per operator, for debugging)
    native_gemm       generate matrix products, convolutions and pooling where they were measured (False: ATen's always)
    verify            for the first so many calls of every entry, run graphs in eager beside compiled ones and compare
                      (docs/verify.md)
    verify_stages     run the verifiers between stages
    threads           threads a kernel may use (0: torch.get_num_threads() at each call)
    kernel_cache      keep compiled kernels of GPUs on disk, for other processes (runtime/disk_cache.py says where)
    kernel_cache_bytes
                      how much may lie there: what was used longest ago goes
    cuda_graphs       replay runs as CUDA graphs where they can be (what mode="reduce-overhead" sets)
    max_autotune      on a GPU, generate products and attention where they are measured to be faster than ATen's
                      (mode="max-autotune")
    channels_last     on a GPU, lay out images of half precision channels-last inside of graphs whose convolutions gain from
                      it (False: as the program has them)
    fused_attention   on a GPU, compute attention that is written out (two products and a softmax) by torch's kernels for
                      attention (False: as the program has it)
    amd               compile for GPUs of AMD, too, where none of this has ever been run (False: calls on them run eagerly)
    activation_memory_budget
                      0 to 1: how much memory training may keep for the backward, between as little as possible (0) and
                      all that is expensive to compute again (1); see docs/autograd.md
    """

    recompile_limit: int = 8
    fuse: bool = True
    native_gemm: bool = True
    verify_stages: bool = False
    verify: int = 0
    threads: int = 0
    kernel_cache: bool = True
    kernel_cache_bytes: int = 1 << 30
    cuda_graphs: bool = False
    max_autotune: bool = False
    channels_last: bool = True
    fused_attention: bool = True
    amd: bool = False
    activation_memory_budget: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.activation_memory_budget <= 1:
            raise OptionError(
                f"activation_memory_budget must be between 0 and 1, got {self.activation_memory_budget!r}"
            )

    def with_options(self, options: dict[str, Any] | None) -> Config:
        """These options with changes. Raises OptionError for an unknown name or a value of the wrong type."""
        names = {f.name: f for f in fields(self)}
        for key, value in (options or {}).items():
            if key not in names:
                near = difflib.get_close_matches(key, names, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"
                raise OptionError(f"options: unknown option {key!r}{hint}")
            want = type(getattr(self, key))
            if type(value) is not want and not (want is float and type(value) is int):
                raise OptionError(f"options[{key!r}] must be {want.__name__}, got {value!r}")
        return replace(self, **(options or {}))


_TRUTH = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("", "0", "false", "no", "off"), False),
}


def _parsed(variable: str, text: str, default: Any) -> Any:
    """The value of an environment variable. Raises OptionError naming the variable."""
    if isinstance(default, bool):
        truth = _TRUTH.get(text.strip().lower())
        if truth is None:
            raise OptionError(f"{variable} must be one of {', '.join(filter(None, _TRUTH))}, got {text!r}")
        return truth
    try:
        return type(default)(text)
    except ValueError:
        raise OptionError(f"{variable} must be {type(default).__name__}, got {text!r}") from None


def from_environment(environment: Mapping[str, str]) -> Config:
    """The defaults, changed by `SMELT_<NAME>` variables. Raises OptionError."""
    values = {}
    for f in fields(Config):
        variable = f"SMELT_{f.name.upper()}"
        if variable in environment:
            values[f.name] = _parsed(variable, environment[variable], f.default)
    return Config(**values)


DEFAULT = from_environment(os.environ)
