"""smelt: a PyTorch compiler that is small, instant and honest.

`smelt.compile(model)` in place of `torch.compile(model)`.
"""

from importlib.machinery import EXTENSION_SUFFIXES
from typing import TYPE_CHECKING

import torch

from smelt.torch_private import MISSING, summary

if TYPE_CHECKING:
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
    "unavailable",
]
__version__ = "0.1.0"
unavailable: str | None = None  # why nothing can be compiled with this torch and this Python


def _functions() -> object:
    """The module that has the public functions: one that compiles, or one that hands everything to eager. A new torch must
    not break the user's program."""
    global unavailable
    unavailable = summary() if MISSING else _other_build()
    if unavailable is None:
        try:
            from smelt import api  # noqa: PLC0415
        except Exception as error:
            unavailable = f"smelt cannot be imported here ({type(error).__name__}: {error})"
        else:
            return api
    from smelt import eager_only  # noqa: PLC0415

    eager_only.because(unavailable)
    return eager_only


def _other_build() -> str | None:
    """Why the native extension does not fit this torch; None where it does. Layouts change between minor versions."""
    try:
        from smelt._built import TORCH  # noqa: PLC0415

        built_for = TORCH[EXTENSION_SUFFIXES[0]]
    except (ImportError, KeyError):
        return (
            "smelt's native extension was not built for this Python: pip install it, or python setup.py build_ext "
            "--inplace"
        )
    wanted, found = (".".join(version.split(".")[:2]) for version in (built_for, torch.__version__))
    if wanted == found:
        return None
    return (
        f"smelt was built for torch {wanted}, this is torch {torch.__version__}: install torch {wanted}, or the smelt "
        f"that is for torch {found}"
    )


_found = _functions()
globals().update({name: getattr(_found, name) for name in __all__ if name not in globals()})
