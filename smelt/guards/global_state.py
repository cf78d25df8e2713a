"""The global state that every trace depends on: grad mode, autocast, default dtype, ...

The native reader gives a tuple of numbers, which guard trees compare; here the numbers get names, for people.
"""

from __future__ import annotations

import functools

import torch

from smelt import _native
from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction, fused_sdp_choice

Snapshot = tuple[int, ...]


@functools.cache
def _settle_attention() -> None:
    """torch orders its kernels of attention when a GPU is first asked for one: were that in a trace, the state would differ
    at its end, and entries from before it would fit no more."""
    with DisableTorchFunction(), DisableTorchDispatch():
        one = torch.empty((1, 1, 1, 8), dtype=torch.float16, device="cuda")
        fused_sdp_choice(one, one, one)


def settle() -> None:
    """Before a snapshot: has torch decide what it decides at the first use of a GPU. Initializes no GPU."""
    if torch.cuda.is_initialized():
        _settle_attention()


def snapshot() -> Snapshot:
    """The state of the calling thread now. Where two snapshots are equal, torch's operators behave alike."""
    return _native.global_state()


def decode(state: Snapshot) -> dict[str, int]:
    """The numbers of a snapshot by name."""
    return dict(zip(_native.GLOBAL_STATE, state, strict=True))


_MAIN = ("grad_mode", "inference_mode", "autocast_cpu", "autocast_cuda", "deterministic_algorithms")


def describe(state: Snapshot) -> str:
    """The fields of a snapshot that a reader of guards wants to know first, as text."""
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
