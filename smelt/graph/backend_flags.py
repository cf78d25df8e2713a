"""Process-wide settings that torch's context managers change temporarily: attention kernels (`sdpa_kernel`), flags of
oneDNN and cuDNN. Each is set by one function of torch; the table says how to read and write its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MappingProxyType
from typing import cast

import torch
import torch.nn.attention

from smelt.torch_private import (
    get_sdp_priority_order,
    sdp_enabled,
    sdpa_kernel,
    set_sdp_enabled,
    set_sdp_priority_order,
)


@dataclass(frozen=True)
class Setting:
    """A setting; `write(*read())` changes nothing."""

    read: Callable[[], tuple[object, ...]]
    write: Callable[..., object]


def _read_attention() -> tuple[object, ...]:
    return (get_sdp_priority_order(), *(is_enabled() for is_enabled in sdp_enabled))


def _write_attention(order: Sequence[int], *enabled: bool) -> None:
    set_sdp_priority_order(list(order))
    for set_enabled, value in zip(set_sdp_enabled, enabled, strict=True):
        set_enabled(value)


def _flags(set_flags: FunctionType) -> Setting:
    """A backend's `set_flags`, which returns the previous flags; None leaves a flag unchanged."""
    unchanged = (None,) * set_flags.__code__.co_argcount
    return Setting(lambda: tuple(set_flags(*unchanged)), set_flags)


_BACKENDS = (torch.backends.mkldnn, torch.backends.cudnn)
# By the function that changes them.
SETTINGS: Mapping[FunctionType, Setting] = MappingProxyType(
    {
        cast(FunctionType, sdpa_kernel): Setting(_read_attention, _write_attention),
        **{cast(FunctionType, b.set_flags): _flags(cast(FunctionType, b.set_flags)) for b in _BACKENDS},
    }
)
