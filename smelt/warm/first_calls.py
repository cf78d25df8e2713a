"""The callback of a compiled function at a cache miss: it looks for a stored entry, and else imports the compiler.

Each cache miss first tries the stored entries of its key. If none accepts the call, `FirstCalls` makes its `FrameCompiler`,
once, and calls it. An accepted entry is added to a function once; a rejected one is tried again at the next miss. A lookup
reads at most `SLOTS` entries from the disk cache, besides those that this process already holds in memory.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any

from smelt import _native
from smelt.config import Config
from smelt.guards.global_state import settle
from smelt.guards.stored_form import Unstorable
from smelt.runtime.compiled_callables import native_callable
from smelt.runtime.gc_pause import collections_postponed
from smelt.runtime.thread_state import thread
from smelt.torch_private import compiler_stance, forward_mode_level
from smelt.warm.entry_key import key_for, settings_of
from smelt.warm.entry_store import drop, entries_under, keep
from smelt.warm.find_entry import CONTINUATIONS, Found, found
from smelt.warm.stored_entry import Damaged

if TYPE_CHECKING:
    from smelt.capture.driver.cache_entries import NewEntry
    from smelt.capture.driver.frame_compiler import FrameCompiler

log = logging.getLogger("smelt")

_alive: weakref.WeakSet[FirstCalls] = weakref.WeakSet()
_blocked = 0  # by `looking_nowhere`


class FirstCalls:
    """The callback of one compiled function. `make` makes its frame compiler; `config`: its options. `root`: of a resume
    function, the callback of the compiled function that it is a part of."""

    def __init__(
        self,
        make: Callable[[], FrameCompiler] | None,
        config: Config,
        fullgraph: bool,
        dynamic: bool | None,
        root: FirstCalls | None = None,
    ) -> None:
        self._make, self._config, self._fullgraph, self._dynamic = make, config, fullgraph, dynamic
        self._root = self if root is None else root
        self._settings = settings_of(config, fullgraph, dynamic)
        self._found: list[Found] = []
        # of the root: keys and digests of the stored entries, also of resume functions, whose graph breaks
        self._continued: list[tuple[str, bytes]] = []
        self._compiler: FrameCompiler | None = None
        self._seen: set[bytes] = set()  # digests of the stored entries that were added or made here
        self._key = ""  # of the latest miss
        self._may_find = True  # of the root
        self.target: Callable[[], _native.Wrapped | None] = lambda: None
        _alive.add(self)

    def __call__(self, fn: FunctionType, slots: tuple[object, ...]) -> Any:
        if self._may_look():
            with collections_postponed():  # a lookup makes many objects, and a collection takes milliseconds
                if self._find(fn, slots):
                    return True
        if self._make is None:  # of a found resume function, whose code only stored entries have
            stance = compiler_stance()
            if stance == "fail_on_recompile":
                from smelt.capture.driver.cache_misses import recompile_message  # noqa: PLC0415 (capture)

                raise RuntimeError(recompile_message((), fn.__code__, slots))
            if stance != "eager_on_recompile":
                self._root.drop_found()
            return False
        return self.compiler()(fn, slots)

    def compiler(self) -> FrameCompiler:
        """The frame compiler, which imports the compiler."""
        if self._compiler is None:
            assert self._make is not None
            made = self._make()
            made.keep, made.wrap_warm = self._keep, self._wrap_resume
            self._compiler = made
        return self._compiler

    def _wrap_resume(self, fn: FunctionType, compiler: FrameCompiler) -> _native.Wrapped:
        """The callable of a resume function that a graph break has made."""
        from smelt.capture.driver.cache_entries import adopt  # noqa: PLC0415 (capture)

        calls = FirstCalls(lambda: compiler, self._config, False, self._dynamic, self)
        wrapped = calls.wrapped(fn)
        adopt(wrapped, fn, compiler)
        return wrapped

    def resume(self, fn: FunctionType) -> _native.Wrapped:
        """The callable of a resume function of a found entry. It calls entries alone: a call without one runs eagerly, and
        the next call of the compiled function compiles it."""
        return FirstCalls(None, self._config, False, self._dynamic, self).wrapped(fn)

    def wrapped(
        self,
        fn: FunctionType,
        traced: Callable[..., object] | None = None,
        original: FunctionType | None = None,
    ) -> _native.Wrapped:
        """The native callable of `fn` with this callback (see `capture.driver.cache_entries.wrap`)."""
        made = _native.wrap(fn, self, traced, original)
        made._smelt_compiled_under_line_tracers = self._config.compile_under_tracers
        made._smelt_original = fn
        self.target = weakref.ref(made)
        return made

    def drop_found(self) -> None:
        """Drop the entries that were found, also those of resume functions, and look for no more: a call needs code that no
        entry has."""
        self._may_find = False
        for each in list(_alive):
            if each._root is self:
                each.forget()

    def forget(self) -> None:
        """Drop the entries that were found."""
        target = self.target()
        self._seen.clear()
        if target is not None and self._found:
            self._found.clear()
            _native.clear(target)
            for entry in self._compiler.record.entries if self._compiler is not None else ():
                _native.add_entry(target, entry.tree, *entry.callees)

    def _may_look(self) -> bool:
        return (
            self._root._may_find
            and not (_blocked or thread.disabled or thread.capturing or forward_mode_level() >= 0)
            and (compiler_stance() == "default")
        )

    def _find(self, fn: FunctionType, slots: tuple[object, ...]) -> bool:
        """Add the first stored entry that accepts the call."""
        target = self.target()
        try:
            self._key = key_for(fn, slots, self._settings)
        except Unstorable:
            return False
        if target is None:
            return False
        settle()
        for digest, stored in entries_under(self._key, self._seen, self._config):
            try:
                entry = found(stored, fn, slots, self._key, self._config, self._fullgraph, self._root.resume)
            except Damaged as error:
                log.warning("smelt: removed a damaged stored entry of %s (%s)", fn.__qualname__, error)
                drop(self._key, digest, self._config)
                continue
            if entry is not None:
                self._seen.add(digest)
                self._found.append(entry)
                _native.add_entry(target, entry.tree, entry.compiled, entry.only)
                return True
        return False

    def _keep(self, new: NewEntry) -> None:
        from smelt.warm.add_plans import AddPlans  # noqa: PLC0415 (the compiler)
        from smelt.warm.keep_entry import stored  # noqa: PLC0415 (capture)

        if _blocked or self._compiler is None:
            new.plans.forward(lambda made: None)
            return
        try:
            if key_for(new.fn, new.slots, self._settings) != self._key:
                raise Unstorable("torch's functions changed while it was compiled")
            entry = stored(new, self._config)
            digest = keep(self._key, entry.to_bytes(), self._config)
            self._seen.add(digest)
            if any(kind in CONTINUATIONS for kind, *_ in entry.data["frame"]["scope"].values()):
                self._root._continued.append((self._key, digest))
            new.plans.forward(AddPlans(self._key, entry, self._config))
            return
        except Unstorable as reason:
            self._compiler.record.not_kept.append(str(reason))
        except Exception as error:  # the entry itself is right
            self._compiler.record.not_kept.append(f"storing it failed: {type(error).__name__}: {error}")
        new.plans.forward(lambda made: None)
        if self._root is not self:
            self._root._withdraw(self._compiler.record.not_kept[-1])

    def _withdraw(self, why: str) -> None:
        """Drop the stored entries whose graph breaks: what continues after a break is not stored, because of `why`."""
        for key, digest in self._continued:
            drop(key, digest, self._config)
        if self._continued and self._compiler is not None:
            self._compiler.record.not_kept.append(f"after a graph break, {why}")
        self._continued.clear()


def forget_all() -> None:
    """Drop the entries that were found of all functions."""
    for each in list(_alive):
        each.forget()


class looking_nowhere:
    """Context manager: neither find nor store entries, because reports, dumps and edited graphs need a compilation."""

    def __enter__(self) -> None:
        global _blocked
        _blocked += 1

    def __exit__(self, *_: object) -> None:
        global _blocked
        _blocked -= 1


def realize(compiled: Any) -> None:
    """Drop the stored entries that a compiled function or module has found, so that it compiles again: a report needs a
    compilation."""
    wrapped = native_callable(compiled)
    for each in list(_alive):
        if wrapped is not None and each.target() is wrapped:
            each.forget()
            each.compiler()
