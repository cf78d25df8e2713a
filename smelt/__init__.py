"""smelt: a PyTorch compiler that is small, instant and honest.

`smelt.compile(model)` in place of `torch.compile(model)`.
"""

from smelt.api import compile, disable, graph_break, is_compiling, list_backends, register_backend, reset

__all__ = [
    "__version__",
    "compile",
    "disable",
    "graph_break",
    "is_compiling",
    "list_backends",
    "register_backend",
    "reset",
]
__version__ = "0.1.0"
