"""Options. One frozen dataclass; `SMELT_<NAME>` environment variables set the defaults once, at import."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, fields, replace
from typing import Any

from smelt.errors import OptionError


@dataclass(frozen=True)
class Config:
    """What `options={...}` of `smelt.compile` accepts.

    recompile_limit   entries per compiled function before it stays eager
    fuse              join loops into kernels (False: one kernel per operator, for debugging)
    layout            convolutions run channels-last inside a graph where that pays
    native_gemm       generate matrix products instead of calling ATen, where the cost table prefers it
    verify            run the verifiers between stages
    threads           threads a kernel may use (0: torch.get_num_threads() at each call)
    """

    recompile_limit: int = 8
    fuse: bool = True
    layout: bool = True
    native_gemm: bool = True
    verify: bool = False
    threads: int = 0

    def with_options(self, options: dict[str, Any] | None) -> Config:
        """Raises OptionError for an unknown name or a value of the wrong type."""
        names = {f.name: f for f in fields(self)}
        for key, value in (options or {}).items():
            if key not in names:
                near = difflib.get_close_matches(key, names, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"
                raise OptionError(f"options: unknown option {key!r}{hint}")
            want = type(getattr(self, key))
            if type(value) is not want:
                raise OptionError(f"options[{key!r}] must be {want.__name__}, got {value!r}")
        return replace(self, **(options or {}))


def _from_environment() -> Config:
    values: dict[str, Any] = {}
    for f in fields(Config):
        text = os.environ.get(f"SMELT_{f.name.upper()}")
        if text is not None:
            default: Any = f.default
            values[f.name] = (
                text not in ("", "0", "false", "False") if isinstance(default, bool) else type(default)(text)
            )
    return Config(**values)


DEFAULT = _from_environment()
