"""The global state that every trace depends on (grad mode, autocast, default dtype, ...), and classes' version tags.

The native reader gives a tuple of numbers, which guard trees compare; here they get names for explanations.
"""

from __future__ import annotations

from typing import Any

import torch

from smelt import _native

Snapshot = tuple[int, ...]


def snapshot() -> Snapshot:
    """The state of the calling thread now. Opaque; equal snapshots mean equal behaviour of torch operators."""
    state: Snapshot = _native.global_state()
    return state


def type_version(cls: type) -> int:
    """The version tag of a class: it changes when an attribute of the class or of a base does. 0: it has none."""
    tag: int = _native.type_version(cls)
    return tag


def decode(state: Snapshot) -> dict[str, int]:
    """The numbers by name."""
    return dict(zip(_native.GLOBAL_STATE, state, strict=True))


# What readers of a guard listing want to know first.
_MAIN = ("grad_mode", "inference_mode", "autocast_cpu", "autocast_cuda", "deterministic_algorithms")


def describe(state: Snapshot) -> str:
    """The state in a few words."""
    fields = decode(state)
    return ", ".join(f"{name}={bool(fields[name])}" for name in _MAIN if name in fields) + ", ..."


# c10::ScalarType by number.
_DTYPES = {
    5: torch.float16, 6: torch.float32, 7: torch.float64, 9: torch.complex64, 10: torch.complex128, 15: torch.bfloat16,
}  # fmt: skip


def difference(expected: Snapshot, found: Snapshot) -> tuple[str, str]:
    """What differs between two snapshots, as texts of the two sides."""
    a, b = decode(expected), decode(found)
    names = [name for name in a if a[name] != b[name]]
    return _fields(a, names), _fields(b, names)


def _fields(state: dict[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name}={_readable(name, state[name])}" for name in names) or "the same"


def _readable(name: str, value: int) -> object:
    if name.endswith("_dtype"):
        return _DTYPES.get(value, value)
    return bool(value) if name in _MAIN else value
