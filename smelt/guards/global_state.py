"""The global state that every trace depends on: grad mode, autocast, default dtype, ...

The native reader returns a tuple of numbers, which guard trees compare; this module names the numbers.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode

from smelt import _native
from smelt.torch_private import (
    DisableTorchDispatch,
    DisableTorchFunction,
    are_saved_tensors_hooks_enabled,
    current_function_modes,
    fused_sdp_choice,
    get_inplace_requires_grad_allowed,
    is_multithreading_enabled,
    pop_torch_function_stack,
    push_on_torch_function_stack,
)

Snapshot = tuple[int, ...]


class _SetAside(threading.local):
    modes: tuple[TorchFunctionMode, ...] = ()  # outermost first


_set_aside = _SetAside()


@contextmanager
def without_modes(count: int) -> Iterator[tuple[TorchFunctionMode, ...]]:
    """Context without the `count` innermost torch-function modes; returns them, outermost first."""
    modes = tuple(pop_torch_function_stack() for _ in range(count))[::-1]
    try:
        yield modes
    finally:
        for mode in modes:
            push_on_torch_function_stack(mode)


@contextmanager
def modes_set_aside(count: int) -> Iterator[None]:
    """`without_modes`, in which guards see the modes all the same."""
    before = _set_aside.modes
    with without_modes(count) as modes:
        _set_aside.modes = modes
        try:
            yield
        finally:
            _set_aside.modes = before


@contextmanager
def modes_of_call() -> Iterator[None]:
    """Context with the modes that `modes_set_aside` switched off."""
    modes = _set_aside.modes
    for mode in modes:
        push_on_torch_function_stack(mode)
    try:
        yield
    finally:
        for _ in modes:
            pop_torch_function_stack()


def set_aside_modes() -> tuple[TorchFunctionMode, ...]:
    """The modes that `modes_set_aside` switched off."""
    return _set_aside.modes


def function_modes() -> list[TorchFunctionMode]:
    """The torch-function modes of the call, outermost first."""
    return [*current_function_modes(), *_set_aside.modes]


@functools.cache
def _settle_attention() -> None:
    """Have torch order its attention kernels, which it does at the first use of one on a GPU. During a trace, that would
    change the global state, and earlier entries would accept no further call."""
    with DisableTorchFunction(), DisableTorchDispatch():
        one = torch.empty((1, 1, 1, 8), dtype=torch.float16, device="cuda")
        fused_sdp_choice(one, one, one)


def settle() -> None:
    """Have torch settle, before a snapshot, the state that it decides at the first use of a GPU. Initializes no GPU."""
    if torch.cuda.is_initialized():
        _settle_attention()


def snapshot() -> Snapshot:
    """The current state of the calling thread. Torch's operators behave the same under equal snapshots."""
    with modes_of_call():
        return _native.global_state()


def switches() -> dict[Callable[[], object], object]:
    """The settings, by their queries, that a context manager may change and that are no part of a snapshot: operators
    do not depend on them."""
    return {
        is_multithreading_enabled: is_multithreading_enabled(),
        get_inplace_requires_grad_allowed: get_inplace_requires_grad_allowed(),
        are_saved_tensors_hooks_enabled: are_saved_tensors_hooks_enabled(),
    }


def decode(state: Snapshot) -> dict[str, int]:
    """The numbers of a snapshot by name."""
    return dict(zip(_native.GLOBAL_STATE, state, strict=True))


_MAIN = ("grad_mode", "inference_mode", "autocast_cpu", "autocast_cuda", "deterministic_algorithms")


def describe(state: Snapshot) -> str:
    """The main fields of a snapshot, as text."""
    fields = decode(state)
    return ", ".join(f"{name}={bool(fields[name])}" for name in _MAIN if name in fields) + ", ..."


# c10::ScalarType by number.
_DTYPES = {
    5: torch.float16, 6: torch.float32, 7: torch.float64, 9: torch.complex64, 10: torch.complex128, 15: torch.bfloat16,
}  # fmt: skip


def difference(expected: Snapshot, found: Snapshot) -> tuple[str, str]:
    """The fields in which two snapshots differ, as a text with the expected values and one with those found."""
    a, b = decode(expected), decode(found)
    names = [name for name in a if a[name] != b[name]]
    return _fields(a, names), _fields(b, names)


def _fields(state: dict[str, int], names: list[str]) -> str:
    return ", ".join(f"{name}={_readable(name, state[name])}" for name in names) or "the same"


def _readable(name: str, value: int) -> object:
    if name.endswith("_dtype"):
        return _DTYPES.get(value, value)
    return bool(value) if name in _MAIN else value
