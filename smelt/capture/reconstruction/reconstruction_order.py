"""What a compiled frame must rebuild: the objects that its result and the operands of its effects lead to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from smelt._native import isinstance
from smelt.capture.reconstruction.constants import is_cached_by_typing, is_embeddable
from smelt.capture.reconstruction.reconstruction_kind import ReconstructionKind, unsupported
from smelt.capture.reconstruction.reconstruction_table import reconstruction_kind_of
from smelt.guards.source import Source
from smelt.tracing.fake.fake_tensor import FakeTensor

_NATIVE_HASHES = frozenset(
    {object.__hash__, type.__hash__, tuple.__hash__, frozenset.__hash__, torch.Tensor.__hash__}
)
_SMALL = 1 << 24  # below lie no addresses of objects
_SHOWN_ADDRESS = re.compile(r"[0-9]{8,20}|[0-9a-fA-F]{7,16}")


@dataclass(eq=False)
class ReachableObjects:
    """The objects that the result and the stores lead to. Environment objects are ends: what they hold stays theirs."""

    source_of: Callable[[object], Source | None]
    fakes: list[FakeTensor] = field(default_factory=list)
    kinds: dict[int, ReconstructionKind] = field(default_factory=dict)  # fresh objects
    uses: dict[int, int] = field(default_factory=dict)
    cyclic: set[int] = field(default_factory=set)  # fresh objects on a cycle
    alive: list[object] = field(default_factory=list)  # ids stay theirs as long as this lives
    numbers: set[int] = field(default_factory=set)  # large ones, also in texts: they may be addresses

    def visit(self, root: object) -> None:
        """Depth first without recursion: results may be nested deeper than the C stack."""
        path: list[int] = []
        pending = [iter((root,))]
        while pending:
            for x in pending[-1]:
                parts = self._parts(x, path)
                if parts is not None:
                    pending.append(iter(parts))
                    break
            else:
                pending.pop()
                if path:
                    path.pop()

    def _parts(self, x: object, path: list[int]) -> list[object] | None:
        if is_embeddable(x):
            self.numbers.update(_addresses(x))
            return None
        return self._enter(x, path)

    def _enter(self, x: object, path: list[int]) -> list[object] | None:
        """Notes one use of `x`; gives what it refers to when it is a fresh object seen for the first time."""
        key = id(x)
        uses = self.uses[key] = self.uses.get(key, 0) + 1
        if uses > 1:
            if key in self.kinds and key in path:
                self.cyclic.update(path[path.index(key) :])
            return None
        self.alive.append(x)
        if isinstance(x, FakeTensor):
            self.fakes.append(x)
            return None
        if self.source_of(x) is not None or is_cached_by_typing(x):
            return None
        _check_keys(x)
        kind = self.kinds[key] = reconstruction_kind_of(x)
        path.append(key)
        return [*kind.needs(x), *kind.holds(x)] if kind.named else list(kind.needs(x))

    def check_addresses(self) -> None:
        """An object that is made anew has another address: raises Unsupported where the program took the old one with it."""
        for x in self.alive if self.numbers else ():
            fresh = id(x) in self.kinds or (isinstance(x, FakeTensor) and self.source_of(x) is None)
            if fresh and not self.numbers.isdisjoint((id(x), object.__hash__(x))):
                raise unsupported(x, "and so does its address")


def _addresses(x: object) -> Iterable[int]:
    """The numbers in a constant that may be addresses of objects, or hashes made of those."""
    if type(x) is int:
        return (x,) if x > _SMALL else ()
    if type(x) is not str:
        return ()
    shown = _SHOWN_ADDRESS.findall(x)
    return [number for text in shown for number in _read(text)]


def _read(text: str) -> Iterable[int]:
    yield int(text, 16)
    if text.isdigit():
        yield int(text)


def find_reachable(roots: Iterable[object], source_of: Callable[[object], Source | None]) -> ReachableObjects:
    """Everything that a frame's end and the operands of its stores lead to.

    Raises Unsupported for an object that a compiled frame cannot rebuild.
    """
    found = ReachableObjects(source_of)
    for root in roots:
        found.visit(root)
    found.check_addresses()
    return found


def collect_fakes(roots: Iterable[object], source_of: Callable[[object], Source | None]) -> list[FakeTensor]:
    """The fakes that the graph must return: those reachable from a frame's end and from the operands of its effects
    that are not inputs (inputs have a source), in order of first use. Raises Unsupported as `reach`.
    """
    return [fake for fake in find_reachable(roots, source_of).fakes if source_of(fake) is None]


def contents_of_created(source_of: Callable[[object], Source | None], roots: Iterable[object]) -> list[object]:
    """The contents of each object that the program has made and `roots` lead to. Raises Unsupported as `reach`."""
    found = find_reachable(roots, source_of)
    made = [(x, found.kinds[id(x)]) for x in found.alive if id(x) in found.kinds]
    return [[p if is_embeddable(p) else id(p) for p in (*k.needs(x), *k.holds(x))] for x, k in made]


def _check_keys(x: object) -> None:
    """A key with a `__hash__` in Python would run user code while its own state may still be missing."""
    if isinstance(x, (dict, set, frozenset)):
        for key in dict.keys(x) if isinstance(x, dict) else x:
            if not _is_hashed_natively(key):
                raise unsupported(key, "as the key of a dictionary or in a set")


def _is_hashed_natively(key: object) -> bool:
    if is_embeddable(key):
        return True
    if isinstance(key, (tuple, frozenset)) and not all(map(_is_hashed_natively, key)):
        return False
    return any(type(key).__hash__ is known for known in _NATIVE_HASHES)
