"""Seeds and states of torch's generators.

The compiled frame seeds, and reads the state of the CPU's generator, before the graph runs, in the order of the draws of
Python and NumPy. That is exact while no operator of the graph has drawn yet; after one, the graph breaks. It sets a state
after the graph; an operator that draws afterwards breaks the graph.
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import cast

import numpy as np
import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, function, unsupported
from smelt.capture.environment.python_random import Draw
from smelt.capture.environment.side_effects import Call
from smelt.capture.semantics.calls import torch_polyfills
from smelt.capture.semantics.calls.python_functions import interpret
from smelt.capture.stdlib.random_functions import constant_argument
from smelt.capture.vm.vm import VM
from smelt.graph.operator_effects import effects
from smelt.guards.source import Source
from smelt.reasons import RANDOM_STATE
from smelt.torch_private import OpOverload
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.changed_defaults import GENERATOR


class TorchGenerators:
    """All generators of torch, as one generator of a `Draw`."""

    @staticmethod
    def manual_seed(seed: int) -> None:
        """`torch.manual_seed(seed)`."""
        torch.manual_seed(seed)

    @staticmethod
    def get_rng_state() -> np.ndarray:
        """`torch.get_rng_state()`."""
        return torch.get_rng_state().numpy()


def _manual_seed(vm: VM, args: Args, kwargs: Kwargs) -> object:
    (seed,) = (*args, *kwargs.values())
    seed = constant_argument(vm, seed, "manual_seed")
    if type(seed) is not int or not -(1 << 63) <= seed < 1 << 64:
        raise unsupported(f"torch.manual_seed({seed!r})", RANDOM_STATE)
    _before_graph(vm, "manual_seed", (seed,))
    vm.env.sources.const(torch.default_generator)
    return torch.default_generator


def _before_graph(vm: VM, name: str, args: tuple[object, ...]) -> Source:
    """Record a call of `TorchGenerators`; returns the source of its result."""
    drawn = any(_may_draw(entry.node.target) for entry in vm.trace.tape.entries)
    if drawn or GENERATOR in vm.trace.call.changed:
        raise unsupported(f"torch.{name} after random numbers were drawn", RANDOM_STATE)
    vm.env.sources.const(TorchGenerators)
    source = Source("drawn", name, None, len(vm.env.log.draws))
    vm.env.log.record_draw(Draw(TorchGenerators, name, args, {}, source))
    return source


def _may_draw(target: object) -> bool:
    """Whether an operator draws random numbers; user code in the graph may."""
    return effects(target).random if isinstance(target, OpOverload) else type(target) is not str


function(torch.random.manual_seed)(_manual_seed)


@function(torch.random.get_rng_state)
def _get_state(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """`torch.get_rng_state()`: a graph input, copied so that the trace may write it."""
    source = _before_graph(vm, "get_rng_state", ()).child("array", None)
    with vm.trace.paused():
        real = torch.get_rng_state(*args, **kwargs)  # raises for arguments
    fake = vm.trace.fake(real, "rng_state")
    vm.env.sources[id(fake)] = source
    vm.env.sources.keep_alive(fake)
    return fake.clone()


@function(torch.random.set_rng_state)
def _set_state(vm: VM, args: Args, kwargs: Kwargs) -> None:
    """`torch.set_rng_state(state)` of a tensor, after the graph."""
    (state,) = (*args, *kwargs.values())
    if type(state) is not FakeTensor or state.dtype is not torch.uint8 or state.device.type != "cpu":
        raise unsupported("torch.set_rng_state of an object that is no state", RANDOM_STATE)
    vm.trace.call.changed |= {GENERATOR}
    vm.env.sources.const(torch.set_rng_state)
    vm.env.log.defer_call(Call(torch.set_rng_state, (state,)))


@function(torch.random.fork_rng)
def _fork(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """`torch.random.fork_rng` of the CPU's generator alone."""
    call = inspect.signature(torch.random.fork_rng).bind(*args, **kwargs)
    call.apply_defaults()
    options = call.arguments
    devices, enabled = options["devices"], vm.truth(options["enabled"])
    none = (
        not vm.elements(devices) if isinstance(devices, (list, tuple)) else devices is None and not _has_gpu()
    )
    if enabled and (not none or options["device_type"] not in (None, "cuda")):
        raise unsupported("torch.random.fork_rng of devices", RANDOM_STATE)
    return interpret(vm, cast(FunctionType, torch_polyfills.fork_rng), (enabled,), {})


def _has_gpu() -> bool:
    return torch.cuda.device_count() > 0
