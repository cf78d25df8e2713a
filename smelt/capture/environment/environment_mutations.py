"""Changes of environment objects: they are logged and written to the overlay.

A store gives a class a new version. The guard on the class then compares the attributes that the trace read
(`guards/class_facts.py`), except those that it stored before it read them.
"""

from __future__ import annotations

from smelt._native import isinstance
from smelt.capture.base.value_kinds import CellType, instance_dict, is_identity, is_lookup_key
from smelt.capture.environment.environment import Environment
from smelt.errors import Unsupported
from smelt.guards.source import SourceKind
from smelt.reasons import UNSUPPORTED_EFFECT, Reason


def check_mutable(env: Environment, obj: object) -> None:
    """Raise Unsupported for an object that must not change: a namespace that `globals()` has returned, a list over whose
    symbolic numbers native code iterates."""
    if id(obj) in env.mutation_constraints.frozen:
        is_list = id(obj) in env.native_views.numbers
        what = (
            "a list is changed after its numbers were read" if is_list else "a module's globals() are changed"
        )
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, what))


def record_mutation(env: Environment, obj: object) -> None:
    """Record that an environment object is about to change."""
    check_mutable(env, obj)
    mark_copies_stale(env, obj)
    owner = env.mutation_constraints.owners.get(id(obj))
    if owner is not None:
        _snapshot(env, owner)
    if id(obj) in env.sources:
        _snapshot(env, obj)


def mark_copies_stale(env: Environment, obj: object) -> None:
    """Mark the copy of `obj` with fakes as stale, once more after a change during which other code may refresh it."""
    if env.native_views.copies:
        env.native_views.stale.add(id(obj))


def record_store(env: Environment, obj: object, kind: SourceKind, key: object, value: object) -> None:
    """Record that `value` is about to be stored in `obj`: an effect even if it is there already, unless that is guarded."""
    source = env.sources.get(id(obj))
    if source is None or not is_lookup_key(key):
        return
    if env.sources.get(id(value)) is not source.child(kind, key) or is_identity(value):
        owner = env.mutation_constraints.owners.get(id(obj))  # of an instance's dictionary
        env.log.mark_stored(obj if owner is None else owner, key, kind == "attr" or owner is not None)


def record_deletion(env: Environment, obj: object, key: object) -> None:
    """Record that `key` of a dictionary, or the attribute `key`, is about to be deleted: set again, it comes last."""
    if id(obj) in env.sources and is_lookup_key(key):
        owner = env.mutation_constraints.owners.get(id(obj))  # of an instance's dictionary
        env.log.mark_deleted(
            obj if owner is None else owner, key, owner is not None or not isinstance(obj, dict)
        )


def _snapshot(env: Environment, obj: object) -> None:
    if env.log.touch(obj):
        env.memo.forget(obj)
        env.sources.keep_alive(obj)
        attributes = instance_dict(obj)
        if attributes is not None and id(attributes) in env.sources:
            _snapshot(env, attributes)


def record_class_mutation(env: Environment, cls: type, name: str, *, was_read: bool) -> None:
    """Record that an attribute of a class of the environment is about to change."""
    env.facts.use_lookups(cls)
    if not was_read and not env.log.has_written_name(cls, name):
        env.facts.cover(cls, name)


def guard_distinct(env: Environment) -> None:
    """Guard that an object that the trace changed or compared is distinct from the other objects that it used."""
    changed = env.facts.compared | {type(obj) for obj in env.wrapped.objects.values() if obj in env.log}
    changed |= {CellType} if env.log.changes_cells else set()
    for cls in changed:
        sources = tuple(env.sources[k] for k, obj in env.wrapped.objects.items() if type(obj) is cls)
        if len(sources) > 1:
            env.facts.guard("distinct", sources[0], sources, key=cls)


def read_instance_dict(env: Environment, obj: object, attributes: dict[str, object]) -> dict[str, object]:
    """Register `attributes`, which is `obj.__dict__`, as an object that the program has read; return it."""
    if id(obj) in env.sources:
        env.mutation_constraints.owners[id(attributes)] = obj
        if id(attributes) not in env.sources:
            env.sources.register(attributes, env.sources[id(obj)].child("dict", None))
            env.log.touch_instance_dict(obj, attributes)
            env.overlay.register_copy_source(attributes)
    return attributes
