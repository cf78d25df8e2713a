"""Checks of guard trees against guard evaluation in Python: at installation, and at each call in verify mode."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from smelt._native import GuardTree
from smelt.capture.driver.cache_entries import Entry
from smelt.capture.driver.capture_errors import WorldChanged
from smelt.errors import VerificationError
from smelt.guards import global_state
from smelt.guards.guard import Guard, first_failing


def is_only_thread() -> bool:
    """Whether no other thread can have changed guarded state between two evaluations."""
    return threading.active_count() == 1


def verify_accepts(tree: GuardTree, guards: Sequence[Guard], slots: Sequence[object]) -> None:
    """Check that a new guard tree accepts the call that it was built from. Raises VerificationError naming the guard, or
    WorldChanged if the evaluation in Python refuses the call as well or other threads may have changed guarded state and
    restored it. The check does not count as a hit of the entry (`Entry.was_never_reused`)."""
    with global_state.modes_of_call():
        index = tree.explain(*slots)
    if index is None:
        return
    which = guards[index].text if index >= 0 else "an object is missing"
    failing = first_failing(guards, slots)
    second = "none" if failing is None else failing.text
    changed = failing is not None or (not is_only_thread() and tree.check(*slots) is not None)
    kind = WorldChanged if changed else VerificationError
    raise kind(f"a fresh guard refuses its own call: {which} (evaluated in Python: {second})")


def verify_refuses(number: int, entry: Entry, slots: Sequence[object]) -> None:
    """Check that an entry that missed a call has a failing guard. Raises VerificationError."""
    if first_failing(entry.facts, slots) is None and is_only_thread():
        raise VerificationError(f"entry {number} of {entry.name} refused a call that its guards accept")


def verified(function: Callable[..., object], guards: Sequence[Guard]) -> Callable[..., object]:
    """Wrap a compiled frame with a check of the guards, evaluated in Python, before each call."""

    def checked(*arguments: object) -> object:
        failing = first_failing(guards, arguments[:-1])
        if failing is not None and is_only_thread():
            raise VerificationError(f"the native tree accepts a call that a guard refuses: {failing.text}")
        return function(*arguments)

    return checked
