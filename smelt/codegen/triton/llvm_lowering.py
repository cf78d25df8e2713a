"""Triton's lowering to LLVM for NVIDIA processors, without work that it repeats for each kernel.

Done once instead: the option that pointers to shared memory are short, which is set for the process, and the data
layout, for which a target machine is created. No other thread runs Python meanwhile. Triton's function runs with
replacements for two modules; the modules stay as they are.
"""

from __future__ import annotations

import functools
import re
import threading
from types import FunctionType, MethodType
from typing import Any

_LAYOUT = re.compile(r'^target datalayout = "(.*)"$', re.M)


def shorten(backend: Any, ir: Any, arch: int) -> None:
    """Change this backend only, for `sm_<arch>`, unless its version is unknown. `ir`: Triton's module of that name."""
    own = getattr(type(backend), "make_llir", None)
    is_recognized = isinstance(own, FunctionType) and {"llvm", "nvidia"} <= own.__globals__.keys()
    if is_recognized and hasattr(ir.builder, "get_string_attr"):
        backend.make_llir = MethodType(_changed(own, ir, arch), backend)


@functools.cache
def _changed(own: FunctionType, ir: Any, arch: int) -> FunctionType:
    """The changed function, one per processor."""
    llvm, nvidia = own.__globals__["llvm"], own.__globals__["nvidia"]
    names = own.__globals__ | {"llvm": _Llvm(llvm, ir), "nvidia": _Nvidia(nvidia)}
    return FunctionType(own.__code__, names, own.__name__, own.__defaults__, own.__closure__)


class _Module:
    """A module with some functions replaced."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class _Nvidia(_Module):
    @functools.cached_property
    def set_short_ptr(self) -> Any:
        """Set the option on request."""
        self._own.set_short_ptr()
        return lambda: None


class _Llvm(_Module):
    """`layout`: of one processor, once it is known. A thread makes one module after the other."""

    def __init__(self, own: Any, ir: Any) -> None:
        super().__init__(own)
        self._ir, self.layout = ir, ""
        self._of_thread = threading.local()

    def to_module(self, module: Any, context: Any) -> Any:
        """The module, with the layout if that is known."""
        self._of_thread.has_layout = bool(self.layout)
        if self.layout:
            named = self._ir.builder(module.context).get_string_attr(self.layout)
            module.set_attr("llvm.data_layout", named)
        return self._own.to_module(module, context)

    def attach_datalayout(self, module: Any, *processor: Any) -> None:
        """Gives the module a layout where it has none."""
        if not self._of_thread.has_layout:
            self._own.attach_datalayout(module, *processor)
            found = _LAYOUT.search(str(module))
            self.layout = found[1] if found else ""
