"""The objects that a compiled frame must reconstruct: those reachable from its result and the operands of its effects."""

from __future__ import annotations

import enum
import re
import weakref
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
    {
        object.__hash__, type.__hash__, tuple.__hash__, frozenset.__hash__, torch.Tensor.__hash__,
        enum.Enum.__hash__, enum.Flag.__hash__,  # of a name or a value that never changes
    }
)  # fmt: skip
_MIN_ADDRESS = 1 << 24  # objects have higher addresses
_SHOWN_ADDRESS = re.compile(r"[0-9]{8,20}|[0-9a-fA-F]{7,16}")


@dataclass(eq=False)
class ReachableObjects:
    """The objects reachable from the result and the stores. The search does not enter environment objects."""

    source_of: Callable[[object], Source | None]
    fakes: list[FakeTensor] = field(default_factory=list)
    kinds: dict[int, ReconstructionKind] = field(default_factory=dict)  # fresh objects
    uses: dict[int, int] = field(default_factory=dict)
    cyclic: set[int] = field(default_factory=set)  # fresh objects on a cycle
    alive: list[object] = field(default_factory=list)  # so that no id is reused while this lives
    numbers: set[int] = field(default_factory=set)  # numbers, also in texts, that may be addresses

    def visit(self, root: object) -> None:
        """Visit depth-first, without recursion: results may be nested deeper than the C stack."""
        path: list[int] = []
        pending = [iter((root,))]
        while pending:
            for x in pending[-1]:
                children = self._children(x, path)
                if children is not None:
                    pending.append(iter(children))
                    break
            else:
                pending.pop()
                if path:
                    path.pop()

    def _children(self, x: object, path: list[int]) -> list[object] | None:
        if is_embeddable(x):
            self.numbers.update(_addresses(x))
            return None
        return self._enter(x, path)

    def _enter(self, x: object, path: list[int]) -> list[object] | None:
        """Count a use of `x`; return what it refers to if it is a fresh object at its first visit."""
        key = id(x)
        uses = self.uses[key] = self.uses.get(key, 0) + 1
        if uses > 1:
            if key in self.kinds and key in path:
                self.cyclic.update(path[path.index(key) :])
            return None
        self.alive.append(x)
        if isinstance(x, FakeTensor):
            self.fakes.append(x)
            if not x.alternatives:
                return None
            path.append(key)
            return [fake for alternative in x.alternatives for fake in alternative]
        if self.source_of(x) is not None or is_cached_by_typing(x):
            return None
        _check_keys(x)
        self._check_reference(x)
        kind = self.kinds[key] = reconstruction_kind_of(x)
        path.append(key)
        return [*kind.needs(x), *kind.holds(x)] if kind.named else list(kind.needs(x))

    def _check_reference(self, x: object) -> None:
        """Raise Unsupported for a weak reference to an object that the program created, which may be dead in eager."""
        if type(x) is weakref.ref and (
            x() is None or self.source_of(x()) is None or x.__callback__ is not None
        ):
            raise unsupported(x, "and its target is an object created inside, or dead, or it has a callback")

    def check_addresses(self) -> None:
        """Raise Unsupported where the address of an object leaves with it: its reconstruction has another address."""
        for x in self.alive if self.numbers else ():
            fresh = id(x) in self.kinds or (isinstance(x, FakeTensor) and self.source_of(x) is None)
            if fresh and not self.numbers.isdisjoint((id(x), object.__hash__(x))):
                raise unsupported(x, "and so does its address")


def _addresses(x: object) -> Iterable[int]:
    """The numbers in a constant that may be addresses of objects or hashes of addresses."""
    if type(x) is int:
        return (x,) if x > _MIN_ADDRESS else ()
    if type(x) is not str:
        return ()
    shown = _SHOWN_ADDRESS.findall(x)
    return [number for text in shown for number in _parsed(text)]


def _parsed(text: str) -> Iterable[int]:
    yield int(text, 16)
    if text.isdigit():
        yield int(text)


def find_reachable(roots: Iterable[object], source_of: Callable[[object], Source | None]) -> ReachableObjects:
    """The objects reachable from the roots: those of a frame's exit and the operands of its stores.

    Raises Unsupported for an object that a compiled frame cannot reconstruct.
    """
    found = ReachableObjects(source_of)
    for root in roots:
        found.visit(root)
    found.check_addresses()
    return found


def collect_fakes(roots: Iterable[object], source_of: Callable[[object], Source | None]) -> list[FakeTensor]:
    """The fakes that the graph must return, in the order of their first use: those reachable from the roots without a source
    (inputs have one). Raises Unsupported as `find_reachable`.
    """
    return [fake for fake in find_reachable(roots, source_of).fakes if source_of(fake) is None]


def contents_of_created(
    source_of: Callable[[object], Source | None], roots: Iterable[object]
) -> list[object]:
    """The contents of each reachable object that the program has created. Raises Unsupported as `find_reachable`."""
    found = find_reachable(roots, source_of)
    created = [(x, found.kinds[id(x)]) for x in found.alive if id(x) in found.kinds]
    return [[p if is_embeddable(p) else id(p) for p in (*k.needs(x), *k.holds(x))] for x, k in created]


def _check_keys(x: object) -> None:
    """Raise Unsupported for a key with a `__hash__` in Python, which would run before the key is filled. Tensors may be keys
    of dictionaries but not elements of sets: such a set is mostly the memo of a generator, and breaks the graph once it is
    an environment object."""
    if isinstance(x, (dict, set, frozenset)):
        for key in dict.keys(x) if isinstance(x, dict) else x:
            if not _is_hashed_natively(key, isinstance(x, dict)):
                raise unsupported(key, "as the key of a dictionary or in a set")


def _is_hashed_natively(key: object, tensors: bool) -> bool:
    if is_embeddable(key):
        return True
    if type(key) is FakeTensor:  # its hash is its address
        return tensors
    if isinstance(key, (tuple, frozenset)) and not all(_is_hashed_natively(k, tensors) for k in key):
        return False
    return any(type(key).__hash__ is known for known in _NATIVE_HASHES)
