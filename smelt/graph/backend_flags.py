"""Settings of the whole process that torch's context managers change for a stretch: the kernels of attention
(`sdpa_kernel`), the flags of oneDNN and cuDNN. Each is changed by one function of torch; here is how all that it changes is
read and set."""

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
    """`write(*read())` changes nothing."""

    read: Callable[[], tuple[object, ...]]
    write: Callable[..., object]


def _read_attention() -> tuple[object, ...]:
    return (get_sdp_priority_order(), *(is_enabled() for is_enabled in sdp_enabled))


def _write_attention(order: Sequence[int], *enabled: bool) -> None:
    set_sdp_priority_order(list(order))
    for set_enabled, value in zip(set_sdp_enabled, enabled, strict=True):
        set_enabled(value)


def _flags(set_flags: FunctionType) -> Setting:
    """`set_flags` of a backend, which gives the flags of before; None leaves one as it is."""
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
