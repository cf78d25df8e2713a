"""smelt: a PyTorch compiler that is small, instant and honest.

`smelt.compile(model)` in place of `torch.compile(model)`.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING

from smelt import config, errors
from smelt.api import (
    compile,
    compile_,
    disable,
    dump,
    explain,
    export,
    graph_break,
    is_compiling,
    list_backends,
    load,
    load_cache,
    register_backend,
    reset,
    save_cache,
    set_logs,
    symbolic_trace,
    trace,
)
from smelt.size_marks import mark_dynamic, mark_static

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from smelt import fx
    from smelt.exported.dynamic_dims import Dim
    from smelt.exported.program import Program

__all__ = [
    "Dim",
    "GraphModule",
    "Program",
    "__version__",
    "compile",
    "compile_",
    "config",
    "disable",
    "dump",
    "errors",
    "explain",
    "export",
    "fx",
    "graph_break",
    "is_compiling",
    "list_backends",
    "load",
    "load_cache",
    "mark_dynamic",
    "mark_static",
    "register_backend",
    "reset",
    "save_cache",
    "set_logs",
    "symbolic_trace",
    "trace",
    "unavailable",
]
__version__ = "0.1.0"
unavailable: str | None  # why nothing can be compiled with this torch and this Python


_LAZY = {
    "Dim": "smelt.exported.dynamic_dims",
    "GraphModule": "smelt.fx",
    "Program": "smelt.exported.program",
    "fx": "smelt.fx",
    "unavailable": "smelt.compatibility",
}


def __getattr__(name: str) -> object:
    """`unavailable`, which is complete only once the compiler has been imported; the classes of exported programs; `fx` and
    `GraphModule`, which import the compiler."""
    if name in _LAZY:
        module = importlib.import_module(_LAZY[name])
        return module if name == "fx" else getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, without the modules that have been imported."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


# `smelt --help` and `smelt --version` need no torch. Other programs import it here, with the names of torch that smelt
# needs: the native extension links to torch's libraries.
_command = [os.path.basename(word) for word in getattr(sys, "argv", [])[:1]]
if not (_command in (["smelt"], ["-m"]) and {"--help", "--version"} & {*sys.argv[1:3]}):
    from smelt import compatibility  # noqa: F401

if os.environ.get("SMELT_LOGS") or os.environ.get("SMELT_LOGS_JSON"):
    from smelt.report import logs

    logs.from_environment(os.environ)
    del logs
del os, sys, _command
