"""The states of torch's random generators, which a compiled frame restores before it reruns a call eagerly."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# The state of the CPU's generator, if the graph draws from it, and the offsets of GPUs' generators.
Saved = tuple[torch.Tensor | None, list[int]]


class GeneratorStates:
    """The states of the generators of `devices`. That of a GPU's generator is its offset: draws change nothing else."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices = tuple(devices)
        self._gpus = [torch.cuda.default_generators[d.index] for d in devices if _has_generator(d)]
        self._on_cpu = len(self._gpus) < len(devices)

    def read(self) -> Saved | None:
        """The states now; None while a CUDA graph is captured, which then owns the generator."""
        if self._gpus and torch.cuda.is_current_stream_capturing():
            return None
        cpu = torch.default_generator.get_state() if self._on_cpu else None
        return cpu, [generator.get_offset() for generator in self._gpus]

    def restore(self, saved: Saved | None) -> None:
        """Restore the states that `read` returned."""
        if saved is None:
            return
        cpu_state, offsets = saved
        if cpu_state is not None:
            torch.default_generator.set_state(cpu_state)
        for generator, offset in zip(self._gpus, offsets, strict=True):
            generator.set_offset(offset)


def _has_generator(device: torch.device) -> bool:
    """Whether the device has a generator (a simulated GPU draws from the CPU's)."""
    return device.type == "cuda" and bool(torch.cuda.default_generators)
