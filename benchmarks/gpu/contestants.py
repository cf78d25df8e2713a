"""Who is measured. A name may end with a mode, as in "torch.compile:reduce-overhead", or with ":dynamic" for
`dynamic=True`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

import smelt
from smelt.codegen.triton.triton_import import library

USUAL = ("eager", "torch.compile", "smelt")


def _eager(fn: Any) -> Any:
    return fn


def _smelt(fn: Any, **how: Any) -> Any:
    return smelt.compile(fn, fullgraph=True, **how)


MAKERS: dict[str, Callable[..., Any]] = {"eager": _eager, "torch.compile": torch.compile, "smelt": _smelt}


def is_compiler(who: str, name: str) -> bool:
    """Whether `who` is that compiler, in whichever mode."""
    return who.partition(":")[0] == name


def made(who: str, fn: Any) -> Any:
    """`fn` as the contestant `who` runs it."""
    name, _, mode = who.partition(":")
    if mode == "dynamic":
        return MAKERS[name](fn, dynamic=True)
    return MAKERS[name](fn, **({"mode": mode} if mode else {}))


def prepare(contestants: list[str]) -> None:
    """Imports what their first calls would: compiling is measured, not importing."""
    if any(is_compiler(who, "torch.compile") for who in contestants):
        import torch._dynamo
        import torch._inductor.compile_fx  # noqa: F401  (and Triton)
    if any(is_compiler(who, "smelt") for who in contestants):
        smelt.compile(_eager)  # imports the compiler
        with suppress(ImportError):  # on the simulated device none is needed
            library().generator  # noqa: B018  (Triton, which kernels that are not kept need)


def names(text: str) -> list[str]:
    """From the command line, separated by commas. Raises ValueError for one that is not known."""
    found = text.split(",")
    for who in found:
        if who.partition(":")[0] not in MAKERS:
            raise ValueError(f"{who!r} is none of {', '.join(MAKERS)}")
    return found
