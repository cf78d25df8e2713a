"""What stands in for `torch.compile` in a script that smelt runs: its arguments, mapped onto `smelt.compile`'s.

torch's own compiler is not imported. What only says how that is to work (names of compilations, options of Inductor) has no
meaning for results, and is left out.
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
    """`torch.compile`, by smelt. The backend "inductor" is "smelt"; others keep their names, an unknown one is an error.

    Options that smelt does not know are those of another compiler, and are left out with a warning. Raises what
    `smelt.compile` raises, and TypeError for an argument that torch.compile does not have.
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


def serve() -> None:
    """From now on this process's `torch.compile` is smelt's, and `torch.compiler.reset` forgets what smelt compiled."""
    torch.compile = compile  # type: ignore[assignment]
    torch.compiler.reset = api.reset
