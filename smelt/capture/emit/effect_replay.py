"""Effects as statements of the compiled frame: one row per kind of effect.

A `Store` is a statement with a `{}` for each operand; emission fills in the operands' expressions. The statements call the
methods of builtin bases where a class could override them, so that no user code runs.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from smelt._native import isinstance
from smelt.capture.base.type_lookup import type_find
from smelt.capture.base.value_kinds import MISSING
from smelt.capture.emit.container_updates import REFILLS
from smelt.capture.environment import side_effects as fx
from smelt.capture.reconstruction.frame_globals import provide
from smelt.errors import Unsupported
from smelt.guards.iterator_state import advance
from smelt.reasons import UNSUPPORTED_EFFECT, Reason


@dataclass(frozen=True)
class Store:
    """`text.format(*expressions of operands)` is the statement."""

    text: str
    operands: tuple[object, ...]


def _plain_attribute(target: object, name: str) -> bool:
    """Whether `target.name = value` only stores into the instance."""
    cls = type(target)
    if cls.__setattr__ is not object.__setattr__ or not name.isidentifier():
        return False
    kind = type(type_find(cls, name))
    return not hasattr(kind, "__set__") or kind is types.MemberDescriptorType


def _set_attribute(e: fx.SetAttr) -> Iterable[Store]:
    if _plain_attribute(e.target, e.name):
        yield Store(f"{{}}.{e.name} = {{}}", (e.target, e.value))
    else:
        how = "set_type_attribute" if isinstance(e.target, type) else "set_attribute"
        yield Store(f"{how}({{}}, {e.name!r}, {{}})", (e.target, e.value))


def _delete_attribute(e: fx.DelAttr) -> Iterable[Store]:
    how = "delete_type_attribute" if isinstance(e.target, type) else "delete_attribute"
    yield Store(f"{how}({{}}, {e.name!r})", (e.target,))


def _base(target: object) -> str:
    """The builtin container that `target` is or inherits from."""
    for kind in (collections.OrderedDict, dict, list, set, collections.deque):
        if isinstance(target, kind):
            return kind.__name__
    raise Unsupported(Reason(UNSUPPORTED_EFFECT, f"the contents of a {type(target).__qualname__}"))


def _set_item(e: fx.SetItem) -> Iterable[Store]:
    if type(e.target) in (dict, list):
        yield Store("{}[{}] = {}", (e.target, e.key, e.value))
    else:
        yield Store(f"{_base(e.target)}.__setitem__({{}}, {{}}, {{}})", (e.target, e.key, e.value))


def _delete_item(e: fx.DelItem) -> Iterable[Store]:
    yield Store(f"{_base(e.target)}.__delitem__({{}}, {{}})", (e.target, e.key))


def _replace_contents(e: fx.ReplaceContents) -> Iterable[Store]:
    base = _base(e.target)
    if base == "list":
        yield Store("list.__setitem__({}, slice(None), {})", (e.target, e.items))
        return
    yield Store(f"refill_{base}({{}}, {{}})", (e.target, e.items))


provide(**{f"refill_{base}": refill for base, refill in REFILLS.items()})


def _change_set(e: fx.SetChange) -> Iterable[Store]:
    yield Store(f"set.{e.method}({', '.join(['{}'] * (1 + len(e.args)))})", (e.target, *e.args))


def _extend(e: fx.Extend) -> Iterable[Store]:
    yield Store("list.extend({}, {})", (e.target, e.items))


def _set_cell(e: fx.SetCell) -> Iterable[Store]:
    if e.value is MISSING:
        yield Store("del {}.cell_contents", (e.target,))
    else:
        yield Store("{}.cell_contents = {}", (e.target, e.value))


def _call(e: fx.Call) -> Iterable[Store]:
    fields, operands = [], [e.target]
    for name, value in zip(("",) * (len(e.args) - len(e.names)) + tuple(f"{n}=" for n in e.names), e.args):
        # `print` does not depend on the object's identity: a literal
        if e.target is print and type(value) is str:
            fields.append(name + repr(value).replace("{", "{{").replace("}", "}}"))
        else:
            fields.append(f"{name}{{}}")
            operands.append(value)
    yield Store(f"{{}}({', '.join(fields)})", tuple(operands))


def _manager_method(name: str, *args: object) -> Callable[[fx.Enter | fx.Exit], Iterable[Store]]:
    """The call of a context manager's method, through the class that defines it where the manager's class overrides it."""

    def store(e: fx.Enter | fx.Exit) -> Iterable[Store]:
        if getattr(type(e.target), name, None) is getattr(e.kind, name):
            yield Store(f"{{}}.{name}({', '.join(map(repr, args))})", (e.target,))
        else:
            yield Store(f"{{}}.{name}({', '.join(['{}', *map(repr, args)])})", (e.kind, e.target))

    return store


provide(advance=advance)
STORES: dict[type[fx.Effect], Callable[[Any], Iterable[Store]]] = {
    fx.SetAttr: _set_attribute, fx.DelAttr: _delete_attribute, fx.SetItem: _set_item, fx.DelItem: _delete_item,
    fx.ReplaceContents: _replace_contents, fx.SetChange: _change_set, fx.Extend: _extend, fx.SetCell: _set_cell,
    fx.Advance: lambda e: (Store(f"advance({{}}, {e.count})", (e.target,)),), fx.Call: _call, fx.CacheHit: _call,
    fx.Enter: _manager_method("__enter__"), fx.Exit: _manager_method("__exit__", None, None, None),
}  # fmt: skip


def stores_of(effects: Iterable[fx.Effect]) -> tuple[Store, ...]:
    """The statements that replay `effects`, in order. Raises Unsupported."""
    return tuple(store for effect in effects for store in STORES[type(effect)](effect))
