"""The sources of environment objects.

Invariant: every environment object that the VM has encountered is kept alive and has exactly one source. An object that the
trace created has none.

"""

from __future__ import annotations

from collections.abc import Callable

from smelt._native import isinstance
from smelt.capture.base.value_kinds import FunctionType, ModuleType, is_identity, module_name
from smelt.capture.reconstruction.constants import note_created
from smelt.guards.source import Source


class Sources(dict[int, Source]):
    """The source of each environment object, by the object's id."""

    def __init__(self) -> None:
        super().__init__()
        self.copied: dict[
            int, Source
        ] = {}  # by id of a container's copy with fakes, where the container was found
        self._alive: list[object] = []  # known by their ids
        self._consts: dict[int, Source] = {}
        self._made_functions: set[int] = set()
        self._made_classes: set[int] = set()

    def keep(self, *objects: object) -> None:
        """Their ids are used as keys: they live as long as the capture."""
        self._alive += objects

    def const(self, value: object, name: str | None = None) -> Source:
        """The root source of an object known by identity."""
        source = self._consts.get(id(value))
        if source is None:
            source = self._consts[id(value)] = Source("const", name or _const_name(value), None, value=value)
            self.keep(value)
            self.setdefault(id(value), source)
        return source

    def by_code(self, function: FunctionType, source: Source) -> None:
        """`function`, found at `source`, is not known by identity: another with its code may be there at the next call."""
        self._consts[id(function)] = source
        self.register(function, source)

    def is_guarded_by_code(self, value: object) -> bool:
        """Whether `value` is a function from outside that is not known by identity."""
        found = self._consts.get(id(value)) if type(value) is FunctionType else None
        return found is not None and found.kind != "const"

    def known(self, value: object) -> Source:
        """Where `value` was found; an object that was never read from anywhere is known by identity."""
        return self.get(id(value)) or self.const(value)

    def of(self, value: object) -> Source | None:
        """Where `value` was found; None for an object that the trace made."""
        found = self.get(id(value))
        if found is None and type(value) is FunctionType and id(value) not in self._made_functions:
            return self.const(value)  # of a class, never read by itself
        return self.copied.get(id(value)) if found is None else found

    def register(self, value: object, source: Source) -> None:
        """`value` was found at `source`."""
        if id(value) not in self:
            self[id(value)] = source
            self.keep(value)

    def found_at(self, source: Source) -> object:
        """The environment object that was found at `source`; None where none was."""
        return next((x for x in self._alive if self.get(id(x)) is source), None)

    def register_created_function(self, function: Callable[..., object]) -> None:
        """`function` was made by the trace."""
        self._made_functions.add(id(function))
        self.keep(function)

    def is_created_function(self, function: Callable[..., object]) -> bool:
        """Whether `function` was made by the trace."""
        return id(function) in self._made_functions

    def register_created_class(self, cls: type) -> None:
        """`cls` was made by the trace."""
        self._made_classes.add(id(cls))
        self.keep(cls)
        note_created(cls)

    def is_created_class(self, cls: type) -> bool:
        """Whether `cls` was made by the trace: what it holds is no environment object."""
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
