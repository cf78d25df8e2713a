"""`torch.compile` redirected to `smelt.compile` in scripts that smelt runs, with its arguments mapped.

torch's own compiler is not imported. Arguments that only control torch's compiler (names of compilations, options of
Inductor) are ignored.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import fields
from typing import Any

import torch

from smelt import api
from smelt.config import Config

log = logging.getLogger("smelt")

_THEIRS = inspect.signature(torch.compile).parameters  # as newer versions of torch have more
_OPTIONS = {field.name for field in fields(Config)}


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    **others: Any,
) -> Any:
    """`torch.compile` by smelt. The backend "inductor" becomes "smelt"; other names do not change, an unknown one is an
    error.

    Unknown options belong to another compiler and are ignored with a warning. Raises what `smelt.compile` raises, and
    TypeError for an argument that torch.compile does not have.
    """
    for name in others.keys() - _THEIRS.keys():
        raise TypeError(f"compile() got an unexpected keyword argument {name!r}")
    chosen = _known(options)
    if recompile_limit is not None and mode is None:
        chosen = {"recompile_limit": recompile_limit, **(chosen or {})}
    return api.compile(
        model,
        fullgraph=fullgraph,
        dynamic=dynamic,
        backend="smelt" if backend in (None, "inductor") else backend,
        mode=mode,
        options=chosen,
        disable=disable,
    )


compile.__smelt_disable__ = True  # type: ignore[attr-defined]  # within a compiled function it breaks the graph, as torch's


def _known(options: dict[str, Any] | None) -> dict[str, Any] | None:
    if options is None:
        return None
    left_out = [name for name in options if name not in _OPTIONS]
    if left_out:
        log.warning("smelt: options of another compiler are left out: %s", ", ".join(left_out))
    return {name: value for name, value in options.items() if name in _OPTIONS}


def redirect() -> None:
    """Redirect this process's `torch.compile` to smelt, and `torch.compiler.reset` to `smelt.reset`."""
    torch.compile = compile  # type: ignore[assignment]
    torch.compiler.reset = api.reset
