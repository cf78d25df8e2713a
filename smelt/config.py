"""The options of `smelt.compile` and their defaults.

Environment variables `SMELT_<NAME>` set defaults, once, at import; `smelt.config.set` changes them in the program.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from smelt.errors import OptionError, nearest


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
    warm_start        keep compiled entries on disk as well, and look for those of other processes (docs/warm-starts.md)
    compile_under_tracers
                      run compiled code also while a debugger or a coverage tool follows lines (sys.settrace or
                      sys.monitoring; False: such calls run eagerly, so that breakpoints and lines are hit)
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
    control_flow      "graph": conditions and loops on tensors are captured where results equal eager's; "break": the
                      graph breaks there
    """

    recompile_limit: int = 8
    fuse: bool = True
    native_gemm: bool = True
    verify_stages: bool = False
    verify: int = 0
    threads: int = 0
    kernel_cache: bool = True
    kernel_cache_bytes: int = 1 << 30
    warm_start: bool = False
    compile_under_tracers: bool = False
    cuda_graphs: bool = False
    max_autotune: bool = False
    channels_last: bool = True
    fused_attention: bool = True
    amd: bool = False
    activation_memory_budget: float = 1.0
    control_flow: str = "graph"

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise OptionError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.control_flow not in ("graph", "break"):
            raise OptionError(f'control_flow must be "graph" or "break", got {self.control_flow!r}')
        if not 0 <= self.activation_memory_budget <= 1:
            raise OptionError(
                f"activation_memory_budget must be between 0 and 1, got {self.activation_memory_budget!r}"
            )

    def with_options(self, options: dict[str, Any] | None) -> Config:
        """These options with changes. Raises OptionError for an unknown name or a value of the wrong type."""
        names = [f.name for f in fields(self)]
        changes: dict[str, Any] = {}
        for key, value in (options or {}).items():
            if key not in names:
                raise OptionError(f"options: unknown option {key!r}; {nearest(key, names)}")
            want = type(getattr(Config, key))  # of the default
            if type(value) is not want and not (want is float and type(value) is int):
                raise OptionError(f"options[{key!r}] must be {want.__name__}, got {value!r}")
            changes[key] = want(value)
        return replace(self, **changes)


_LEAST = {"recompile_limit": 1, "verify": 0, "threads": 0, "kernel_cache_bytes": 0}


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
            try:
                Config(**{f.name: values[f.name]})
            except OptionError as error:
                raise OptionError(f"{variable}: {error}") from None
    return Config(**values)


# Variables that are no options; then those of tests, benchmarks and builds.
_VARIABLES = ("DISABLE", "HINTS", "LOGS", "LOGS_JSON", "DUMP", "OVERRIDE", "CACHE_DIR", "CPU")
_FOR_DEVELOPMENT = (
    "UNITY", "NAME_TORCH", "CHROMIUM", "DEVICE", "CATALOGUE", "CATALOGUE_FLAG", "OF_A_TEST", "RANDOM", "SIMULATED",
    "STRESS_SECONDS", "TESTS_INSIDE_SIMULATED_CUDA", "TEST_WORLD", "EXAMPLES", "BENCHMARK_CACHES", "BREAKS",
)  # fmt: skip


def _warn_of_unknown(environment: Mapping[str, str]) -> None:
    """Warn of variables `SMELT_*` that nothing reads: a mistyped one would silently do nothing."""
    known = [f"SMELT_{name}" for name in (*_VARIABLES, *(f.name.upper() for f in fields(Config)))]
    for name in environment:
        if name.startswith("SMELT_") and name not in known and name[6:] not in _FOR_DEVELOPMENT:
            warnings.warn(
                f"smelt: the environment variable {name} is unknown; {nearest(name, known)}", stacklevel=2
            )


DEFAULT = from_environment(os.environ)
_warn_of_unknown(os.environ)
DISABLED = _parsed("SMELT_DISABLE", os.environ.get("SMELT_DISABLE", ""), False)  # functions run eagerly

HINTS = _parsed("SMELT_HINTS", os.environ.get("SMELT_HINTS", "1"), True)  # terminal_hints.py

_now = DEFAULT


def defaults() -> Config:
    """The options that `smelt.compile` uses where its argument `options` does not name them."""
    return _now


class set:
    """Change the defaults of options from here on, in all threads; used as a context manager, until the context ends.

    `smelt.config.set(verify=2)`, `with smelt.config.set(fuse=False): ...`. What is compiled later by `smelt.compile`
    uses them; functions that it returned earlier keep theirs. The end of the context restores the options that it
    changed, and no others.

    Args:
        options: names and values of `Config`.

    Raises OptionError for an unknown name or a wrong value; the defaults then stay as they were.
    """

    def __init__(self, **options: Any) -> None:
        global _now
        self._before: dict[str, Any] = {name: getattr(_now, name, None) for name in options}
        _now = _now.with_options(options)

    def __enter__(self) -> Config:
        return _now

    def __exit__(self, *_: object) -> None:
        global _now
        _now = replace(_now, **self._before)
