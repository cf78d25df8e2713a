"""Random numbers that a compiled frame draws, as statements before the call of its graph."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from smelt._native import isinstance
from smelt.capture.emit.frame_writer import Writer
from smelt.capture.environment.python_random import Draw
from smelt.capture.reconstruction.frame_globals import provide


def write_draws(writer: Writer, draws: Sequence[Draw]) -> list[str]:
    """The statements that draw, in order; the generators are named by statements in `writer.head`."""
    generators = [writer.before_graph(draw.generator) for draw in draws]
    return [line for draw, name in zip(draws, generators) for line in _lines(writer, draw, name)]


def _lines(writer: Writer, draw: Draw, generator: str) -> list[str]:
    before = len(writer.lines)
    arguments = [writer(a) for a in draw.args] + [f"{n}={writer(a)}" for n, a in draw.kwargs.items()]
    needed = writer.lines[before:]  # what the arguments are made of: before the graph, too
    del writer.lines[before:]
    name = writer.fresh_name(f"drawn_{draw.method}")
    writer.bind_source(draw.source, name)
    for i in range(draw.count):
        writer.bind_source(draw.source.child("item", i), f"{name}[{i}]")
    writer.bind_source(draw.source.child("array", None), f"from_numpy(asarray({name}))")
    return [*needed, f"{name} = {generator}.{draw.method}({', '.join(arguments)})"]


def kept_states(writer: Writer, draws: Sequence[Draw]) -> tuple[list[str], list[str]]:
    """The statements that keep the states of the generators before they are used, and those that put them back."""
    names = dict.fromkeys(writer.before_graph(draw.generator) for draw in draws)
    kept = {name: writer.fresh_name("put_back") for name in names}
    return [f"{k} = state_of({n})" for n, k in kept.items()], [f"{k}()" for k in kept.values()]


def state_of(generator: object) -> Callable[[], None]:
    """A function that puts the generator back into the state that it has now."""
    if isinstance(generator, random.Random):
        state = generator.getstate()
        return lambda: generator.setstate(state)
    if isinstance(generator, np.random.Generator):
        bits, before = generator.bit_generator, generator.bit_generator.state
        return lambda: setattr(bits, "state", before)
    # of a RandomState: besides its bits it keeps every second number of a normal distribution
    old = cast(np.random.RandomState, generator)
    held = old.get_state(legacy=False)
    return lambda: old.set_state(held)


provide(state_of=state_of, asarray=np.asarray)
