"""Calls deferred to the compiled frame, and the streams and handlers for which that is safe."""

from __future__ import annotations

from collections.abc import Callable

from smelt.capture.environment.side_effects import Call
from smelt.capture.vm.vm import VM

# Packages whose streams and log handlers do not expose what is written.
_KNOWN_PACKAGES = frozenset({
    "_io", "io", "codecs", "logging", "_pytest", "pytest", "ipykernel", "IPython", "colorama", "tqdm", "rich",
    "smelt",
})  # fmt: skip


def is_trusted_output(value: object) -> bool:
    """Whether the captured function cannot observe writes to this stream or log handler."""
    return type(value).__module__.partition(".")[0] in _KNOWN_PACKAGES


def defer(vm: VM, fn: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Defer `fn(*args, **kwargs)` to the compiled frame."""
    vm.env.sources.const(fn)
    vm.env.log.defer_call(Call(fn, args + tuple(kwargs.values()), tuple(kwargs)))
