"""Statements that draw random numbers of Python and NumPy, before the call of the graph."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch

from smelt._native import isinstance
from smelt.capture.emit.frame_writer import Writer
from smelt.capture.environment.python_random import Draw
from smelt.capture.reconstruction.frame_globals import provide


def write_draws(writer: Writer, draws: Sequence[Draw]) -> list[str]:
    """The statements that draw, in order; statements in `writer.head` name the generators."""
    generators = [writer.before_graph(draw.generator) for draw in draws]
    return [line for draw, name in zip(draws, generators) for line in _lines(writer, draw, name)]


def _lines(writer: Writer, draw: Draw, generator: str) -> list[str]:
    before = len(writer.lines)
    arguments = [writer(a) for a in draw.args] + [f"{n}={writer(a)}" for n, a in draw.kwargs.items()]
    argument_lines = writer.lines[before:]  # they construct the arguments, so they move before the graph, too
    del writer.lines[before:]
    name = writer.fresh_name(f"drawn_{draw.method}")
    writer.bind_source(draw.source, name)
    for i in range(draw.count):
        writer.bind_source(draw.source.child("item", i), f"{name}[{i}]")
    writer.bind_source(draw.source.child("array", None), f"from_numpy(asarray({name}))")
    return [*argument_lines, f"{name} = {generator}.{draw.method}({', '.join(arguments)})"]


def save_generator_states(writer: Writer, draws: Sequence[Draw]) -> tuple[list[str], list[str]]:
    """The statements that save the states of the generators before they draw, and those that restore them."""
    names = dict.fromkeys(writer.before_graph(draw.generator) for draw in draws)
    restorers = {name: writer.fresh_name("restore") for name in names}
    save = [f"{restore} = restorer_of({name})" for name, restore in restorers.items()]
    return save, [f"{restore}()" for restore in restorers.values()]


def restorer_of(generator: object) -> Callable[[], None]:
    """A function that restores the current state of the generator."""
    if isinstance(generator, random.Random):
        state = generator.getstate()
        return lambda: generator.setstate(state)
    if isinstance(generator, np.random.Generator):
        bits, before = generator.bit_generator, generator.bit_generator.state
        return lambda: setattr(bits, "state", before)
    if isinstance(generator, type):  # `TorchGenerators`
        return _torch_restorer()
    # The state of a RandomState also includes a cached normal number.
    legacy = cast(np.random.RandomState, generator)
    legacy_state = legacy.get_state(legacy=False)
    return lambda: legacy.set_state(legacy_state)


def _torch_restorer() -> Callable[[], None]:
    cpu, gpus = torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore() -> None:
        torch.set_rng_state(cpu)
        torch.cuda.set_rng_state_all(gpus)

    return restore


provide(restorer_of=restorer_of, asarray=np.asarray)
