"""Changes of environment objects: the log is told, the overlay is written, and what other guards rest on is guarded otherwise.

A store gives a class a new version, so a class whose attributes the trace stored is guarded by its other attributes.
"""

from __future__ import annotations

from smelt.capture.base.value_kinds import MISSING, CellType, instance_dict, is_identity, is_lookup_key
from smelt.capture.environment.environment import Environment
from smelt.errors import Unsupported
from smelt.guards.source import SourceKind
from smelt.reasons import UNSUPPORTED_EFFECT, Reason


def check_mutable(env: Environment, obj: object) -> None:
    """Raises Unsupported for an object that must stay as it is: a namespace that `globals()` has given out."""
    if id(obj) in env.changed.fixed:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a module's globals() are changed"))


def touch(env: Environment, obj: object) -> None:
    """Before an environment object changes."""
    check_mutable(env, obj)
    touched(env, obj)
    owner = env.changed.owners.get(id(obj))
    if owner is not None:
        _touch_one(env, owner)
    if id(obj) in env.sources:
        _touch_one(env, obj)


def touched(env: Environment, obj: object) -> None:
    """After a change that code of the user's, or a native call, may have come before: the copies with fakes must follow it
    once more."""
    if env.opened.copies:
        env.opened.stale.add(id(obj))


def record_store(env: Environment, obj: object, kind: SourceKind, key: object, value: object) -> None:
    """`value` is about to be stored in `obj`: an effect even if it is what is there now, unless that is guarded."""
    source = env.sources.get(id(obj))
    if source is None or not is_lookup_key(key):
        return
    if env.sources.get(id(value)) is not source.child(kind, key) or is_identity(value):
        owner = env.changed.owners.get(id(obj))  # of an instance's dictionary
        env.log.store(obj if owner is None else owner, key, kind == "attr" or owner is not None)


def _touch_one(env: Environment, obj: object) -> None:
    if env.log.touch(obj):
        env.memo.forget(obj)
        env.sources.keep(obj)
        own = instance_dict(obj)
        if own is not None and id(own) in env.sources:
            _touch_one(env, own)


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


def record_class_mutation(env: Environment, cls: type, name: str, *, was_read: bool) -> None:
    """Before an attribute of an outside class changes."""
    env.facts.use_class(cls)
    names = env.changed.classes.setdefault(cls, set())
    if not was_read and not env.log.touches(cls, name):
        names.add(name)


def guard_mutated_classes(env: Environment) -> None:
    """A store gives a class a new version: what is compared instead are its attributes, but for those stored."""
    changed = env.changed.classes
    for key, guard in list(env.facts.by_key.items()) if changed else ():
        if guard.kind != "type_version" or guard.source is None:
            continue
        if not changed.keys().isdisjoint(guard.source.known.__mro__):
            del env.facts.by_key[key]
            for base in guard.source.known.__mro__:
                if changed.keys().isdisjoint(base.__mro__):
                    env.facts.use_class(base)
                else:
                    _guard_class_attributes(env, base, changed.get(base, set()))


def _guard_class_attributes(env: Environment, cls: type, besides: set[str]) -> None:
    before = {k: v for k, v in vars(cls).items() if k not in besides}
    for name, old in env.log.names_before(cls):
        if name not in besides:
            before.pop(name, None)
            before |= {} if old is MISSING else {name: old}
    unchanged = ClassState(cls, before, frozenset(besides))
    env.facts.guard(
        "id", env.sources.const(unchanged, f"attributes of {cls.__qualname__}").child("call", "get"), True
    )


def guard_distinct(env: Environment) -> None:
    """An object that the trace changed, or compared, must not be another object that the trace used."""
    changed = env.facts.compared | {type(obj) for obj in env.seen.objects.values() if obj in env.log}
    changed |= {CellType} if env.log.changes_cells else set()
    for cls in changed:
        sources = tuple(env.sources[k] for k, obj in env.seen.objects.items() if type(obj) is cls)
        if len(sources) > 1:
            env.facts.guard("distinct", sources[0], sources, key=cls)


def read_instance_dict(env: Environment, obj: object, own: dict[str, object]) -> dict[str, object]:
    """`obj.__dict__` read by the user's code."""
    if id(obj) in env.sources:
        env.changed.owners[id(own)] = obj
        if id(own) not in env.sources:
            env.sources.register(own, env.sources[id(obj)].child("dict", None))
            env.log.touch_instance_dict(obj, own)
            env.overlay.note_source(own)
    return own
