"""The plans of a found entry, linked when a call needs them."""

from __future__ import annotations

import logging
import weakref
from functools import cached_property
from importlib import import_module
from typing import Any

from smelt import _native, runtime
from smelt.config import Config
from smelt.runtime import IDLE_ARENAS
from smelt.runtime.cuda_graphs import Capture, Replay
from smelt.warm.stored_entry import Damaged, StoredEntry

log = logging.getLogger("smelt")

# What data of another form than expected may raise.
DAMAGED = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


class Plans:
    """The plans of an entry; `again` compiles others."""

    def __init__(self, stored: StoredEntry, key: str, config: Config, fullgraph: bool) -> None:
        self._stored, self._compilation = stored, (key, stored, config, fullgraph)
        self._linked: dict[int, _native.ProgramPlans] = {}
        self._failed: set[int] = set()  # plans that cannot be loaded
        self._replays: weakref.WeakSet[Replay] = weakref.WeakSet()
        self.budget = _native.ArenaBudget(IDLE_ARENAS)  # of plans for many sizes

    def at(self, role: tuple[Any, ...], numbers: tuple[int, ...] = ()) -> _native.Plan | None:
        """The plan of a graph for these sizes, linked; None if the entry has none. Warns once of one that it cannot load."""
        for i, plan in enumerate(self._stored.plans):
            if plan.role != role or i in self._failed or (plan.sizes is not None and plan.sizes != numbers):
                continue
            try:
                made = self._made(i, numbers)
            except DAMAGED as error:
                log.warning(
                    "smelt: cannot load a plan of a stored entry, and compiles its graph again: %s", error
                )
                self._failed.add(i)
                continue
            if made is not None:
                return made
        return None

    def first(self, role: tuple[Any, ...]) -> _native.Plan:
        """The plan of a graph with fixed sizes. Raises Damaged if it is missing or corrupt, and RuntimeError if it
        cannot be loaded now (for example, without memory)."""
        try:
            made = next((self._made(i, ()) for i, p in enumerate(self._stored.plans) if p.role == role), None)
        except RuntimeError as error:
            log.warning("smelt: cannot load a plan of a stored entry: %s", error)
            raise
        except DAMAGED as error:
            raise Damaged(str(error)) from error
        if made is None:
            raise Damaged("an entry without a plan")
        return made

    def _made(self, i: int, numbers: tuple[int, ...]) -> _native.Plan | None:
        """A plan for these sizes; None if it does not cover them."""
        stored = self._stored.plans[i]
        if i not in self._linked:
            self._linked[i] = stored.linked()
        made = self._linked[i].at(numbers if stored.sizes is None else ())
        if made is not None and stored.replays:
            made.use_cuda_graphs(Capture(weakref.ref(made), self._replays))
        return made and runtime.track(made)

    @cached_property
    def again(self) -> Any:
        """The entry's `CompileAgain`; imports the compiler."""
        return import_module("smelt.warm.compile_again").CompileAgain(*self._compilation)
