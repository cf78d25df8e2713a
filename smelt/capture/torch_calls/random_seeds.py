"""`torch.manual_seed`: the compiled frame seeds before the graph runs, in the order of the draws of Python and NumPy.

That is exact while no operator of the graph has drawn yet; after one, the graph breaks.
"""

from __future__ import annotations

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, function, unsupported
from smelt.capture.environment.python_random import Draw
from smelt.capture.stdlib.random_functions import constant_argument
from smelt.capture.vm.vm import VM
from smelt.graph.operator_effects import effects
from smelt.guards.source import Source
from smelt.reasons import RANDOM_STATE
from smelt.torch_private import OpOverload


class TorchGenerators:
    """All generators of torch, as one generator of a `Draw`."""

    @staticmethod
    def manual_seed(seed: int) -> None:
        """`torch.manual_seed(seed)`."""
        torch.manual_seed(seed)


def _manual_seed(vm: VM, args: Args, kwargs: Kwargs) -> object:
    (seed,) = (*args, *kwargs.values())
    seed = constant_argument(vm, seed, "manual_seed")
    if type(seed) is not int or not -(1 << 63) <= seed < 1 << 64:
        raise unsupported(f"torch.manual_seed({seed!r})", RANDOM_STATE)
    if any(_may_draw(entry.node.target) for entry in vm.trace.tape.entries):
        raise unsupported("torch.manual_seed after random numbers were drawn", RANDOM_STATE)
    vm.env.sources.const(TorchGenerators)
    vm.env.log.record_draw(
        Draw(
            TorchGenerators, "manual_seed", (seed,), {}, Source("drawn", "seed", None, len(vm.env.log.draws))
        )
    )
    vm.env.sources.const(torch.default_generator)
    return torch.default_generator


def _may_draw(target: object) -> bool:
    """Whether an operator draws random numbers; user code in the graph may."""
    return effects(target).random if isinstance(target, OpOverload) else type(target) is not str


function(torch.random.manual_seed)(_manual_seed)
