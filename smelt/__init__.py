"""smelt: a PyTorch compiler that is small, instant and honest.

`smelt.compile(model)` in place of `torch.compile(model)`.
"""

from smelt import config, errors, support
from smelt.api import (
    compile,
    disable,
    explain,
    graph_break,
    is_compiling,
    list_backends,
    register_backend,
    reset,
)
from smelt.marks import mark_dynamic, mark_static

__all__ = [
    "__version__",
    "compile",
    "config",
    "disable",
    "errors",
    "explain",
    "graph_break",
    "is_compiling",
    "list_backends",
    "mark_dynamic",
    "mark_static",
    "register_backend",
    "reset",
    "unavailable",
]
__version__ = "0.1.0"
unavailable: str | None  # why nothing can be compiled with this torch and this Python


def __getattr__(name: str) -> object:
    """`unavailable`, of which not all is known before the compiler is imported."""
    if name == "unavailable":
        return support.unavailable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
