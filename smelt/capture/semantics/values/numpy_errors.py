"""NumPy's floating-point errors (`numpy.seterr`): division by zero, overflow, invalid values.

During capture, native NumPy calls record such errors instead of warning or raising. Eager reports them at each call
according to NumPy's error state, so the graph breaks at such a computation unless the state, which is guarded, ignores them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np

from smelt._native import isinstance
from smelt.capture.proxies.array_proxy import ArrayProxy, BoundMethod
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_EFFECT, Reason

_KINDS = {"divide by zero": "divide", "overflow": "over", "underflow": "under", "invalid value": "invalid"}


def error_state() -> tuple[str, ...]:
    """NumPy's current treatment of each kind of error."""
    return tuple(_state().values())


def _state() -> dict[str, str]:
    return cast("dict[str, str]", np.geterr())


def is_numpy_call(fn: object, args: Sequence[object]) -> bool:
    """Whether a native call is a NumPy call."""
    if getattr(fn, "__name__", "") in (
        "__enter__",
        "__exit__",
    ):  # of `errstate`, which changes the error state
        return False
    if any(isinstance(a, (np.ndarray, np.generic)) for a in args):
        return True
    if isinstance(fn, type):
        return issubclass(fn, np.generic)
    if isinstance(getattr(fn, "__self__", None), (np.ndarray, np.generic)):
        return True
    return isinstance(fn, np.ufunc) or str(getattr(fn, "__module__", "")).startswith("numpy")


@contextmanager
def observe_errors(vm: VM, fn: Callable[..., object], traced: bool) -> Iterator[None]:
    """Context of a call of NumPy's `fn`, `traced` in the graph. Raises Unsupported for errors that NumPy would report."""
    errors: dict[str, int] = {}
    if traced:
        _guard_state(vm)
    with np.errstate(all="call", call=errors.__setitem__):
        yield
    state, managers = _state(), [e.manager for e in vm.contexts.entered if isinstance(e.manager, np.errstate)]
    kinds = {_KINDS[error] for error in errors}
    reported = {kind for kind in kinds if state[kind] != "ignore"}
    outer = {kind for kind in kinds - reported if not any(_ignores(manager, kind) for manager in managers)}
    # within `errstate` a guard would read another state than the program's
    if reported or (outer and managers):
        name = getattr(fn, "__name__", type(fn).__name__)
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, f"numpy.{name} reports errors: {', '.join(errors)}"))
    if outer:
        vm.env.facts.guard("eq", vm.env.sources.const(error_state).child("call", None), error_state())


def is_traced(fn: object, args: Sequence[object]) -> bool:
    """Whether the graph computes this NumPy call."""
    if type(fn) is BoundMethod or any(type(a) is ArrayProxy for a in args):
        return True
    of_numpy = str(getattr(fn, "__module__", "")).startswith("numpy")
    return of_numpy and any(
        type(v) is ArrayProxy for a in args if type(a) in (list, tuple) for v in cast("list[object]", a)
    )


def _guard_state(vm: VM) -> None:
    """Guard that no NumPy error raises or calls a function: the graph computes without NumPy's error checks."""
    if _raises():
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "NumPy's errors are to be raised (numpy.seterr)"))
    if not any(isinstance(e.manager, np.errstate) for e in vm.contexts.entered):
        vm.env.facts.guard("eq", vm.env.sources.const(_raises).child("call", None), False)


def _raises() -> bool:
    return not {"ignore", "warn"}.issuperset(error_state())


def _ignores(manager: object, kind: str) -> bool:
    """Whether an `errstate` ignores errors of this kind."""
    return "ignore" in (getattr(manager, "_" + kind, None), getattr(manager, "_all", None))
