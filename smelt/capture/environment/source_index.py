"""The sources of environment objects.

Invariant: every environment object that the VM has encountered is kept alive and has exactly one source. An object that the
trace created has none.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from smelt._native import isinstance
from smelt.capture.base.value_kinds import FunctionType, ModuleType, is_identity, module_name
from smelt.capture.reconstruction.constants import note_created
from smelt.guards.source import Source


class Sources(dict[int, Source]):
    """The source of each environment object, by the object's id."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[
            int, Source
        ] = {}  # by id of a container's copy with fakes: the source of the container
        self._alive: list[object] = []  # objects whose ids are keys
        self._consts: dict[int, Source] = {}
        self._created_functions: dict[int, weakref.ref[Callable[..., object]]] = {}  # by id
        self._created_classes: set[int] = set()

    def keep_alive(self, *objects: object) -> None:
        """Keep objects whose ids are keys alive as long as the capture."""
        self._alive += objects

    def const(self, value: object, name: str | None = None) -> Source:
        """The root source of an object that guards compare by identity."""
        source = self._consts.get(id(value))
        if source is None:
            source = self._consts[id(value)] = Source("const", name or _const_name(value), None, value=value)
            self.keep_alive(value)
            self.setdefault(id(value), source)
        return source

    def register_by_code(self, function: FunctionType, source: Source) -> None:
        """Register a function that is guarded by its code and not by identity: the next call may bring another object."""
        self._consts[id(function)] = source
        self.register(function, source)

    def is_guarded_by_code(self, value: object) -> bool:
        """Whether `value` is a function of the environment that is not guarded by identity."""
        source = self._consts.get(id(value)) if type(value) is FunctionType else None
        return source is not None and source.kind != "const"

    def find_or_const(self, value: object) -> Source:
        """The source of `value`; a constant root if it was never read from anywhere."""
        return self.get(id(value)) or self.const(value)

    def find(self, value: object) -> Source | None:
        """The source of `value`; None for an object that the trace created."""
        source = self.get(id(value))
        if source is None and type(value) is FunctionType and id(value) not in self._created_functions:
            return self.const(value)  # a method that was never read itself
        return self.copies.get(id(value)) if source is None else source

    def register(self, value: object, source: Source) -> None:
        """Record that `value` was found at `source`."""
        if id(value) not in self:
            self[id(value)] = source
            self.keep_alive(value)

    def object_at(self, source: Source) -> object:
        """The environment object that was found at `source`, or None."""
        return next((x for x in self._alive if self.get(id(x)) is source), None)

    def register_created_function(self, function: Callable[..., object]) -> None:
        """Record that the trace created `function`. It dies with the program's last reference, and what it closes over."""
        key, created = id(function), self._created_functions
        created[key] = weakref.ref(function, lambda _: created.pop(key, None))

    def is_created_function(self, function: Callable[..., object]) -> bool:
        """Whether the trace created `function`."""
        return id(function) in self._created_functions

    def register_created_class(self, cls: type) -> None:
        """Record that the trace created `cls`."""
        self._created_classes.add(id(cls))
        self.keep_alive(cls)
        note_created(cls)

    def is_created_class(self, cls: type) -> bool:
        """Whether the trace created `cls`, so that its attributes are no environment objects."""
        return id(cls) in self._created_classes


def _const_name(value: object) -> str:
    if type(value) is dict and "__name__" in value:
        return f"{value['__name__']}.__dict__"
    if isinstance(value, ModuleType):
        return module_name(value)
    for owner, key in ((value, "__qualname__"), (value, "__name__")):
        name = getattr(owner, key, None) if is_identity(value) else None
        if isinstance(name, str):
            return name
    return type(value).__name__
