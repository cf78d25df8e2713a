"""Where outside objects were found.

What always holds: every outside object that the machine has met is kept alive and has exactly one origin. An object made by
the trace has none.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt._native import isinstance
from smelt.capture.base.value_kinds import FunctionType, ModuleType, is_identity, module_name
from smelt.capture.reconstruction.constants import note_made
from smelt.guards.source import Origin


class Origins(dict[int, Origin]):
    """The origin of each outside object, by the object's id."""

    def __init__(self) -> None:
        super().__init__()
        self.copied: dict[
            int, Origin
        ] = {}  # by id of a container's copy with fakes, where the container was found
        self._alive: list[object] = []  # known by their ids
        self._consts: dict[int, Origin] = {}
        self._made_functions: set[int] = set()
        self._made_classes: set[int] = set()

    def keep(self, *objects: object) -> None:
        """Their ids are used as keys: they live as long as the capture."""
        self._alive += objects

    def const(self, value: object, name: str | None = None) -> Origin:
        """The root origin of an object known by identity."""
        origin = self._consts.get(id(value))
        if origin is None:
            origin = self._consts[id(value)] = Origin("const", name or _const_name(value), None, value=value)
            self.keep(value)
            self.setdefault(id(value), origin)
        return origin

    def by_code(self, function: FunctionType, origin: Origin) -> None:
        """`function`, found at `origin`, is not known by identity: another with its code may be there at the next call."""
        self._consts[id(function)] = origin
        self.register(function, origin)

    def is_by_code(self, value: object) -> bool:
        """Whether `value` is a function from outside that is not known by identity."""
        found = self._consts.get(id(value)) if type(value) is FunctionType else None
        return found is not None and found.kind != "const"

    def known(self, value: object) -> Origin:
        """Where `value` was found; an object that was never read from anywhere is known by identity."""
        return self.get(id(value)) or self.const(value)

    def of(self, value: object) -> Origin | None:
        """Where `value` was found; None for an object that the trace made."""
        found = self.get(id(value))
        if found is None and type(value) is FunctionType and id(value) not in self._made_functions:
            return self.const(value)  # of a class, never read by itself
        return self.copied.get(id(value)) if found is None else found

    def register(self, value: object, origin: Origin) -> None:
        """`value` was found at `origin`."""
        if id(value) not in self:
            self[id(value)] = origin
            self.keep(value)

    def found_at(self, origin: Origin) -> object:
        """The outside object that was found at `origin`; None where none was."""
        return next((x for x in self._alive if self.get(id(x)) is origin), None)

    def made_function(self, function: Callable[..., object]) -> None:
        """`function` was made by the trace."""
        self._made_functions.add(id(function))
        self.keep(function)

    def is_made_function(self, function: Callable[..., object]) -> bool:
        """Whether `function` was made by the trace."""
        return id(function) in self._made_functions

    def made_class(self, cls: type) -> None:
        """`cls` was made by the trace."""
        self._made_classes.add(id(cls))
        self.keep(cls)
        note_made(cls)

    def is_made_class(self, cls: type) -> bool:
        """Whether `cls` was made by the trace: what it holds is no outside object."""
        return id(cls) in self._made_classes


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
