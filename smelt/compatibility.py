"""Compatibility with the installed torch and Python, and the only place that imports the compiler.

A new torch must not break the user's program: missing features are detected when smelt is imported, and functions then
run eagerly. Importing the compiler takes ten times as long, so it waits until a public function needs it.
"""

import platform
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from types import ModuleType
from typing import Any

import torch

from smelt import config, eager_only
from smelt.torch_private import MISSING, DisableTorchDispatch, DisableTorchFunction, summary


def built_for() -> str | None:
    """The torch version of the native extension; None if there is no extension for this Python."""
    try:
        from smelt._built import TORCH  # noqa: PLC0415
    except ImportError:
        return None
    version: str | None = TORCH.get(EXTENSION_SUFFIXES[0])
    return version


def _no_extension() -> str | None:
    """Why the native extension does not fit this torch and Python; None if it loads."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "smelt needs the GIL, this Python is a free-threaded build: take an ordinary build of CPython"
    built = built_for()
    if built is None:
        return (
            "smelt's native extension was not built for this Python: pip install it, or python setup.py build_ext "
            "--inplace"
        )
    wanted, found = (".".join(version.split(".")[:2]) for version in (built, torch.__version__))
    if wanted != found:  # layouts change between minor versions
        return (
            f"smelt was built for torch {wanted}, this is torch {torch.__version__}: install torch {wanted}, or the smelt "
            f"that is for torch {found}"
        )
    try:
        return _other_layout()
    except Exception as error:
        return _not_imported(error)


def _other_layout() -> str | None:
    """The first memory layout that differs from what the native extension expects; None if all match.

    Modes that the program has enabled do not see the probe.
    """
    from smelt import _native  # noqa: PLC0415

    with DisableTorchFunction(), DisableTorchDispatch():
        outcomes = _native.probe()
    wrong = [f"{name} ({what})" for name, what in outcomes.items() if what is not None]
    if not wrong:
        return None
    return (
        f"smelt reads some objects by their layout in memory, which Python {platform.python_version()} or torch "
        f"{torch.__version__} has changed: {', '.join(wrong)}; build smelt again, against these"
    )


def _not_imported(error: Exception) -> str:
    return f"smelt cannot be imported here ({type(error).__name__}: {error})"


# why nothing can be compiled
unavailable = (
    "SMELT_DISABLE turns smelt off" if config.DISABLED else summary() if MISSING else _no_extension()
)


def compiler() -> Any:
    """The implementation of the public functions: `callables`, or `eager_only` if the compiler cannot be imported."""
    global unavailable
    if unavailable is None:
        try:
            return _callables()
        except Exception as error:
            unavailable = _not_imported(error)
    eager_only.because(unavailable, by_request=config.DISABLED)
    return eager_only


def _callables() -> ModuleType:
    """Import `callables`; modes that the program has enabled do not see it."""
    with DisableTorchFunction(), DisableTorchDispatch():
        from smelt import callables  # noqa: PLC0415

        if not config.defaults().warm_start:  # else the first call that needs it imports it
            from smelt import compiler_parts  # noqa: F401, PLC0415
    return callables
