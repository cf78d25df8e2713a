"""torch's settings that torch-level graphs must repeat: grad mode, inference mode, autocast, the default dtype and whether
algorithms are deterministic.

Context managers change settings in many ways, so a change is not recorded where it happens. If a recorded call runs
under other settings than the previous one, the graph gets the calls that `difference` returns in front of it. A graph
ends under the settings that it began under, and `restored` restores them when it raises. Aten graphs run
`beneath_autograd`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad

from smelt.torch_private import (
    DisableAutocast,
    InferenceMode,
    below_autograd,
    forward_mode_level,
    set_grad_enabled,
)

TorchSettings = tuple[bool, bool, bool, torch.dtype, bool, torch.dtype, torch.dtype, int]
# Indices of those that also change what ATen operators compute.
DEFAULT_DTYPE, DETERMINISTIC = 6, 7

_grad, _inference, _autocast, _autocast_dtype, _default_dtype, _determinism = (
    torch.is_grad_enabled,
    torch.is_inference_mode_enabled,
    torch.is_autocast_enabled,
    torch.get_autocast_dtype,
    torch.get_default_dtype,
    torch.get_deterministic_debug_mode,
)


class _Thread(threading.local):
    """The inference modes that graphs of this thread have entered, each with the previous inference mode."""

    def __init__(self) -> None:
        self.guards: list[tuple[bool, Any]] = []


_thread = _Thread()


def read() -> TorchSettings:
    """(grad mode, inference mode, then for cpu and cuda: autocast enabled, autocast dtype; default dtype, 0 or how
    deterministic algorithms are requested: 1 with warnings, 2 with errors)."""
    return (
        _grad(), _inference(), _autocast("cpu"), _autocast_dtype("cpu"), _autocast("cuda"), _autocast_dtype("cuda"),
        _default_dtype(), _determinism(),
    )  # fmt: skip


def difference(old: TorchSettings, new: TorchSettings) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """The calls, each as (function, arguments), that lead from `old` to `new`."""
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    for device, i in (("cpu", 2), ("cuda", 4)):
        if old[i] != new[i]:
            calls.append((torch.set_autocast_enabled, (device, new[i])))
            # eager drops the casts of parameters when it leaves autocast
            if not new[i] and not autocast_depth():
                calls.append((torch.clear_autocast_cache, ()))
        if old[i + 1] != new[i + 1]:
            calls.append((torch.set_autocast_dtype, (device, new[i + 1])))
    if (
        old[1] != new[1]
    ):  # leaving inference mode puts grad mode and autocast back to what they were when it was entered
        calls.append((set_inference_mode, (new[1],)))
        calls += [(torch.set_autocast_enabled, (device, new[i])) for device, i in (("cpu", 2), ("cuda", 4))]
    if old[:2] != new[:2]:
        calls.append((set_grad_enabled, (new[0],)))
    if old[DEFAULT_DTYPE] != new[DEFAULT_DTYPE]:
        calls.append((torch.set_default_dtype, (new[DEFAULT_DTYPE],)))
    if old[DETERMINISTIC] != new[DETERMINISTIC]:
        calls.append((set_determinism, (new[DETERMINISTIC],)))
    return calls


def put(settings: TorchSettings) -> None:
    """Apply these settings."""
    for function, args in difference(read(), settings):
        function(*args)


def autocast_depth() -> int:
    """The number of open autocast contexts of this thread."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def set_inference_mode(enabled: bool) -> None:
    """Switch inference mode: leave the mode that a graph entered last if that results in `enabled`, else enter one."""
    guards = _thread.guards
    if guards and guards[-1][0] == enabled:
        guards.pop()[1].__exit__(None, None, None)
        return
    guard = InferenceMode(enabled)
    guards.append((not enabled, guard))
    guard.__enter__()


def set_determinism(level: int) -> None:
    """Request deterministic algorithms: 0 not, 1 with warnings, 2 with errors."""
    torch.use_deterministic_algorithms(level > 0, warn_only=level == 1)


SETTINGS: frozenset[Any] = frozenset(
    {
        set_inference_mode,
        set_grad_enabled,
        torch.set_autocast_enabled,
        torch.set_autocast_dtype,
        torch.clear_autocast_cache,
        torch.set_default_dtype,
        set_determinism,
    }
)
CHANGES: frozenset[Any] = SETTINGS | {forward_ad.enter_dual_level}


@contextmanager
def restored() -> Iterator[None]:
    """Restore the previous settings if the context ends in an exception."""
    before, open_guards, level = read(), len(_thread.guards), forward_mode_level()
    try:
        yield
    except BaseException:
        while len(_thread.guards) > open_guards:
            _thread.guards.pop()[1].__exit__(None, None, None)
        while forward_mode_level() > level:
            forward_ad.exit_dual_level()
        for function, args in difference(read(), before):
            function(*args)
        raise


@contextmanager
def beneath_autograd() -> Iterator[None]:
    """Run the context beneath autograd and autocast, where aten nodes were recorded. The grad mode stays: kernels of
    recurrent layers use it to decide whether to save values for their backward."""
    with below_autograd(), DisableAutocast():
        yield
