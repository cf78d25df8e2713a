"""`torch.compile` redirected to `smelt.compile` in scripts that smelt runs, with its arguments mapped.

torch's own compiler is not imported. Arguments that only control torch's compiler (names of compilations, options of
Inductor) are ignored. Where the script imports torch's compiler, its settings (`torch._dynamo.config`) apply, and
smelt's errors are instances of torch's (`torch._dynamo.exc`), so that the script catches them.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from smelt import api, recompile_limits
from smelt.config import Config
from smelt.errors import BackendError, Unsupported
from smelt.torch_private import compiler_setting

log = logging.getLogger("smelt")

_THEIRS = inspect.signature(torch.compile).parameters  # as newer versions of torch have more
_OPTIONS = {field.name for field in fields(Config)}
_ERRORS = "torch._dynamo.exc"
_SAME_ERRORS: dict[type[Exception], str] = {
    Unsupported: "Unsupported",
    BackendError: "BackendCompilerFailed",
}


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "inductor",
    mode: api.Mode | None = None,
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
    compiled: Any = functools.partial(
        api.compile,
        fullgraph=fullgraph,
        dynamic=_setting_of_sizes() if dynamic is None else dynamic,
        backend="smelt" if backend in (None, "inductor") else backend,
        mode=mode,
        options=chosen,
        disable=disable or bool(compiler_setting("disable", os.environ.get("TORCH_COMPILE_DISABLE") == "1")),
    )
    return compiled() if model is None else compiled(model)  # None: torch.compile returns a decorator


def _known(options: dict[str, Any] | None) -> dict[str, Any] | None:
    if options is None:
        return None
    left_out = [name for name in options if name not in _OPTIONS]
    if left_out:
        log.warning("smelt: options of another compiler are left out: %s", ", ".join(left_out))
    return {name: value for name, value in options.items() if name in _OPTIONS}


def _setting_of_sizes() -> bool | None:
    """The argument `dynamic` that is equivalent to the script's settings."""
    if not compiler_setting("assume_static_by_default", True):
        return True
    return None if compiler_setting("automatic_dynamic_shapes", True) else False


def _recompile_limit() -> int | None:
    """The script's limit, unless it is the default, which smelt shares."""
    limit: int = compiler_setting("recompile_limit", Config.recompile_limit)
    return None if limit == Config.recompile_limit else limit


class _ErrorsFinder(MetaPathFinder, Loader):
    """Finder and loader of torch's module of errors, which makes torch's errors bases of smelt's once it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _ERRORS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _relate_errors(module)


def _relate_errors(torchs: ModuleType) -> None:
    """Add torch's errors to the bases of smelt's. Handlers catch errors that were raised before, too."""
    for error, name in _SAME_ERRORS.items():
        of_torch = getattr(torchs, name)
        if not issubclass(error, of_torch):
            error.__bases__ = (*error.__bases__, of_torch)


def redirect() -> None:
    """Redirect this process's `torch.compile` to smelt, and `torch.compiler.reset` to `smelt.reset`."""
    torch.compile = compile  # type: ignore[assignment]
    torch.compiler.reset = api.reset
    recompile_limits.limits_of_program.append(_recompile_limit)
    if _ERRORS in sys.modules:
        _relate_errors(sys.modules[_ERRORS])
    else:
        sys.meta_path.insert(0, _ErrorsFinder())
