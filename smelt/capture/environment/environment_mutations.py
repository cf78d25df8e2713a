"""Changes of outside objects: the log is told, the overlay is written, and what other guards rest on is guarded otherwise.

A store gives a class a new version, so a class whose attributes the trace stored is guarded by its other attributes.
"""

from __future__ import annotations

from smelt.capture.base.value_kinds import MISSING, CellType, instance_dict, is_identity, is_lookup_key
from smelt.capture.environment.environment import Outside
from smelt.errors import Unsupported
from smelt.guards.source import SourceKind
from smelt.reasons import UNSUPPORTED_EFFECT, Reason


def check_changeable(outside: Outside, obj: object) -> None:
    """Raises Unsupported for an object that must stay as it is: a namespace that `globals()` has given out."""
    if id(obj) in outside.changed.fixed:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a module's globals() are changed"))


def touch(outside: Outside, obj: object) -> None:
    """Before an outside object changes."""
    check_changeable(outside, obj)
    touched(outside, obj)
    owner = outside.changed.owners.get(id(obj))
    if owner is not None:
        _touch_one(outside, owner)
    if id(obj) in outside.sources:
        _touch_one(outside, obj)


def touched(outside: Outside, obj: object) -> None:
    """After a change that code of the user's, or a native call, may have come before: the copies with fakes must follow it
    once more."""
    if outside.opened.copies:
        outside.opened.stale.add(id(obj))


def note_store(outside: Outside, obj: object, kind: SourceKind, key: object, value: object) -> None:
    """`value` is about to be stored in `obj`: an effect even if it is what is there now, unless that is guarded."""
    source = outside.sources.get(id(obj))
    if source is None or not is_lookup_key(key):
        return
    if outside.sources.get(id(value)) is not source.child(kind, key) or is_identity(value):
        owner = outside.changed.owners.get(id(obj))  # of an instance's dictionary
        outside.log.store(obj if owner is None else owner, key, kind == "attr" or owner is not None)


def _touch_one(outside: Outside, obj: object) -> None:
    if outside.log.touch(obj):
        outside.memo.forget(obj)
        outside.sources.keep(obj)
        own = instance_dict(obj)
        if own is not None and id(own) in outside.sources:
            _touch_one(outside, own)


class ClassState:
    """Called without arguments: whether a class has the attributes that it had, leaving out some names."""

    def __init__(self, cls: type, attributes: dict[str, object], besides: frozenset[str]) -> None:
        self.cls = cls
        self.mro = cls.__mro__
        self.attributes = attributes
        self.besides = besides

    def __call__(self) -> bool:
        now = {k: v for k, v in vars(self.cls).items() if k not in self.besides}
        before = self.attributes
        return (
            self.cls.__mro__ is self.mro
            and len(now) == len(before)
            and all(before.get(k, MISSING) is v for k, v in now.items())
        )


def touch_class(outside: Outside, cls: type, name: str, *, was_read: bool) -> None:
    """Before an attribute of an outside class changes."""
    outside.facts.use_class(cls)
    names = outside.changed.classes.setdefault(cls, set())
    if not was_read and not outside.log.touches(cls, name):
        names.add(name)


def guard_changed_classes(outside: Outside) -> None:
    """A store gives a class a new version: what is compared instead are its attributes, but for those stored."""
    changed = outside.changed.classes
    for key, guard in list(outside.facts.by_key.items()) if changed else ():
        if guard.kind != "type_version" or guard.source is None:
            continue
        if not changed.keys().isdisjoint(guard.source.known.__mro__):
            del outside.facts.by_key[key]
            for base in guard.source.known.__mro__:
                if changed.keys().isdisjoint(base.__mro__):
                    outside.facts.use_class(base)
                else:
                    _guard_class_attributes(outside, base, changed.get(base, set()))


def _guard_class_attributes(outside: Outside, cls: type, besides: set[str]) -> None:
    before = {k: v for k, v in vars(cls).items() if k not in besides}
    for name, old in outside.log.names_before(cls):
        if name not in besides:
            before.pop(name, None)
            before |= {} if old is MISSING else {name: old}
    unchanged = ClassState(cls, before, frozenset(besides))
    outside.facts.guard(
        "id", outside.sources.const(unchanged, f"attributes of {cls.__qualname__}").child("call", "get"), True
    )


def guard_distinct(outside: Outside) -> None:
    """An object that the trace changed, or compared, must not be another object that the trace used."""
    changed = outside.facts.compared | {
        type(obj) for obj in outside.seen.objects.values() if obj in outside.log
    }
    changed |= {CellType} if outside.log.changes_cells else set()
    for cls in changed:
        sources = tuple(outside.sources[k] for k, obj in outside.seen.objects.items() if type(obj) is cls)
        if len(sources) > 1:
            outside.facts.guard("distinct", sources[0], sources, key=cls)


def own_dict(outside: Outside, obj: object, own: dict[str, object]) -> dict[str, object]:
    """`obj.__dict__` read by the user's code."""
    if id(obj) in outside.sources:
        outside.changed.owners[id(own)] = obj
        if id(own) not in outside.sources:
            outside.sources.register(own, outside.sources[id(obj)].child("dict", None))
            outside.log.touch_own(obj, own)
            outside.overlay.note_source(own)
    return own
