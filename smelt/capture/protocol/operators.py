"""Operators, subscripts, truth, membership and iteration as the VM carries them out.

Each follows CPython's protocol: special methods that are written in Python are interpreted, everything else runs natively on
what `Outside.view` lets native code see.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import itertools
import operator
from typing import Any

from smelt.capture.base.frames import Generator, VMCallable
from smelt.capture.base.type_info import ABSENT, FUNCTION
from smelt.capture.base.values import (
    CONTAINER_BASES,
    CONTAINER_TYPES,
    LEAF_TYPES,
    MISSING,
    FunctionType,
    is_constant,
    is_identity,
)
from smelt.capture.machine.native_reach import PLAIN_ITERATORS
from smelt.capture.machine.vm import VM
from smelt.capture.outside import changes, contents, wrapping
from smelt.capture.protocol import formatting, polyfills, symbolic_numbers
from smelt.capture.protocol.attributes import python_method
from smelt.capture.protocol.containers import checked_len, container_len, contains_key
from smelt.capture.standins import texts
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.trace.fake import FakeTensor
from smelt.trace.symbols import NUMBERS, plain, plain_parts

_NAMES = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.truediv: "truediv",
    operator.floordiv: "floordiv", operator.mod: "mod",
    operator.pow: "pow", operator.matmul: "matmul", operator.and_: "and", operator.or_: "or",
    operator.xor: "xor", operator.lshift: "lshift", operator.rshift: "rshift",
}  # fmt: skip
_METHODS = {
    **{fn: (f"__{n}__", f"__r{n}__") for fn, n in _NAMES.items()},
    operator.eq: ("__eq__", "__eq__"), operator.ne: ("__ne__", "__ne__"), operator.lt: ("__lt__", "__gt__"),
    operator.le: ("__le__", "__ge__"), operator.gt: ("__gt__", "__lt__"), operator.ge: ("__ge__", "__le__"),
}  # fmt: skip
_IN_PLACE = {getattr(operator, "i" + fn.__name__.rstrip("_")): fn for fn in _NAMES}
_EQUALITY = (operator.eq, operator.ne)
_COMPARISONS = (*_EQUALITY, operator.lt, operator.le, operator.gt, operator.ge)
_HEAP_TYPE = 1 << 9
_SIMPLE = LEAF_TYPES | {FakeTensor, tuple, FunctionType, type}


def _is_object(kind: type) -> bool:
    """Whether instances may have operators written in Python."""
    return kind not in _SIMPLE and kind not in CONTAINER_TYPES


def binary(vm: VM, fn: Any, left: Any, right: Any) -> Any:
    """`fn(left, right)` for a function of the operator module."""
    a, b = type(left), type(right)
    if a is str and fn is operator.mod:
        return formatting.percent(vm, left, right)
    if a is texts.Text or b is texts.Text:
        return texts.binary(fn, left, right)
    if a in _SIMPLE and b in _SIMPLE:
        if a is tuple and b is tuple and fn in _EQUALITY:
            return _equal_items(vm, left, right) is (fn is operator.eq)
        return fn(left, right) if a is not tuple and b is not tuple else vm.native(fn, (left, right))
    if a is list and b is list and fn in _EQUALITY:
        return _equal_items(vm, elements(vm, left), elements(vm, right)) is (fn is operator.eq)
    if a in NUMBERS or b in NUMBERS:
        return symbolic_numbers.binary(vm, fn, left, right)
    if _is_object(a) or _is_object(b):
        found = _python_operator(vm, fn, left, right)
        if found is not NotImplemented:
            return found
    outside = vm.outside
    if fn in _IN_PLACE and isinstance(left, CONTAINER_BASES):
        return _in_place(vm, fn, left, right)
    outside.facts.check_readable(left)
    outside.facts.check_readable(right)
    deep = fn in (operator.eq, operator.ne)
    return wrapping.fake(
        outside, vm.native(fn, (contents.view(outside, left, deep), contents.view(outside, right, deep)))
    )


def _equal_items(vm: VM, left: Any, right: Any) -> bool:
    """Equality of sequences, element by element: what is compared may be outside objects, or Python code."""
    if len(left) != len(right):
        return False
    return all(v is w or truth(vm, binary(vm, operator.eq, v, w)) for v, w in zip(left, right))


def _in_place(vm: VM, fn: Any, left: Any, right: Any) -> Any:
    if isinstance(left, list) and fn is operator.iadd:
        right = elements(vm, right)
    else:
        right = contents.view(vm.outside, right, deep=False)
    if id(left) in vm.outside.origins:
        contents.open(vm.outside, left)
        changes.touch(vm.outside, left)
    return vm.native(fn, (left, right))


def _python_operator(vm: VM, fn: Any, left: Any, right: Any) -> Any:
    asked, written = False, fn
    if fn in _IN_PLACE:
        plain = _IN_PLACE[fn]
        found = python_method(vm, left, "__i" + _NAMES[plain] + "__")
        if found is not None:
            result = vm.call_function(found, (left, right))
            if result is not NotImplemented:
                return result
            asked = True
        elif vm.type_info(type(left)).find("__i" + _NAMES[plain] + "__")[0] is not ABSENT:
            return NotImplemented
        fn = plain
    names = _METHODS.get(fn)
    if names is None:
        return NotImplemented
    for obj, name, other in _tries(vm, fn, names, left, right):
        found = python_method(vm, obj, name) if _is_object(type(obj)) else None
        if found is None and fn is operator.ne and _is_object(type(obj)):
            result = _inverted_equality(vm, obj, other)
        else:
            result = NotImplemented if found is None else vm.call_function(found, (obj, other))
        asked = asked or found is not None
        if result is not NotImplemented:
            return result
    return _refused_by_both(written, left, right) if asked else NotImplemented


def _tries(vm: VM, fn: Any, names: tuple[str, str], left: Any, right: Any) -> list[tuple[Any, str, Any]]:
    """Whose method is asked, in order: a subclass on the right first, but for arithmetic only if it has its own."""
    forward, reflected = (left, names[0], right), (right, names[1], left)
    a, b = type(left), type(right)
    if a is b:
        return [forward, reflected] if fn in _COMPARISONS else [forward]
    if a is str and fn is operator.mod:
        return []
    if issubclass(b, a) and (fn in _COMPARISONS or _differs(vm, a, b, names[1])):
        return [reflected, forward]
    return [forward, reflected]


def _differs(vm: VM, a: type, b: type, name: str) -> bool:
    return vm.type_info(a).find(name)[1] is not vm.type_info(b).find(name)[1]


def _inverted_equality(vm: VM, obj: Any, other: Any) -> Any:
    """`object.__ne__`."""
    if vm.type_info(type(obj)).find("__ne__")[1] is not object.__ne__:
        return NotImplemented
    found = python_method(vm, obj, "__eq__")
    result = NotImplemented if found is None else vm.call_function(found, (obj, other))
    return result if result is NotImplemented else not truth(vm, result)


def _refused_by_both(fn: Any, left: Any, right: Any) -> Any:
    """The operator where methods in Python have been asked and did not know: not asked again by native code."""
    stand_ins = [_stand_in(v) for v in (left, right)]
    if any(v is None for v in stand_ins):
        return NotImplemented
    if fn in _EQUALITY:
        return (left is right) is (fn is operator.eq)
    return fn(*stand_ins)  # raises, with the names of their classes


def _stand_in(value: Any) -> Any:
    """An object without operators whose class has the same name; None for classes that inherit from another of C."""
    kind = type(value)
    if kind is FakeTensor:
        return _stand_in_class("Parameter" if getattr(value, "_is_param", False) else "Tensor")()
    if not _is_object(kind):
        return value if value is not None else _stand_in_class("NoneType")()
    if any(not b.__flags__ & _HEAP_TYPE and b is not object for b in kind.__mro__):
        return None
    return _stand_in_class(kind.__name__)()


def _stand_in_class(name: str) -> type:
    return type(name, (), {})


def _ask_length(vm: VM, obj: Any) -> None:
    """What `operator.length_hint(obj)` runs of the user's code."""
    for name in ("__len__", "__length_hint__"):
        found = python_method(vm, obj, name)
        if found is not None:
            with contextlib.suppress(TypeError):
                checked_len(vm.call_function(found, (obj,)))
            return


def truth(vm: VM, value: Any) -> bool:
    """`bool(value)`."""
    kind = type(value)
    if kind in _SIMPLE:
        return bool(value)
    if kind in NUMBERS:
        return bool(value)
    if kind in (Generator, VMCallable):
        return True
    vm.outside.facts.use_class(kind)
    for name in ("__bool__", "__len__"):
        how, found, _ = vm.type_info(kind).find(name)
        if how is FUNCTION:
            return _checked_truth(name, vm.call_function(found, (value,)))
        if how is not ABSENT:
            break
    if isinstance(value, CONTAINER_BASES):
        return container_len(vm, value) != 0
    vm.outside.facts.check_readable(value)
    return bool(vm.native(bool, (value,)))


def _checked_truth(name: str, result: Any) -> bool:
    """What `__bool__` or `__len__` gave. Raises as the interpreter would."""
    if name == "__len__":
        return checked_len(result) != 0
    if type(result) is not bool:
        raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
    return result


def same(vm: VM, left: Any, right: Any) -> bool:
    """`left is right`. That two outside objects are different is guarded."""
    if left is right:
        return True
    if type(left) in NUMBERS or type(right) in NUMBERS:
        both = symbolic_numbers.is_number(left) and symbolic_numbers.is_number(right)
        return both and plain(left) is plain(right)
    a, b = vm.outside.origins.get(id(left)), vm.outside.origins.get(id(right))
    if a is not None and b is not None and a is not b and not (a.kind == "const" and b.kind == "const"):
        if type(left) is type(right) and not is_identity(left) and not is_constant(left):
            vm.outside.facts.guard("distinct", a, (a, b), key=b)
    return False


def contains(vm: VM, value: Any, container: Any) -> bool:
    """`value in container`."""
    if vm.outside.opened.stale:
        contents.update_copies(vm.outside)
    kind = type(container)
    if _is_object(kind):
        found = python_method(vm, container, "__contains__")
        if found is not None:
            return truth(vm, vm.call_function(found, (container, value)))
        if python_method(vm, container, "__iter__") is not None or kind is Generator:
            return any(
                value is v or truth(vm, binary(vm, operator.eq, v, value))
                for v in _iterate(vm, get_iter(vm, container))
            )
    if isinstance(container, (dict, set, frozenset)):
        value = plain(value)
    if isinstance(container, dict):
        return contains_key(vm, container, found_by(vm, container, value))
    if isinstance(container, (list, tuple, collections.deque)) and not is_constant(value):
        return any(
            value is v or truth(vm, binary(vm, operator.eq, v, value)) for v in elements(vm, container)
        )
    vm.outside.facts.check_readable(container)
    if isinstance(container, (set, frozenset)) and not is_constant(value):
        vm.outside.facts.use_identity(value)
    if isinstance(container, (set, list)) and id(container) in vm.outside.origins:
        container = contents.open(vm.outside, container)
    return bool(vm.native(operator.contains, (container, value)))


# -------------------------------------------------------------------------------------------------- subscripts


def subscript(vm: VM, obj: Any, key: Any) -> Any:
    """`obj[key]`."""
    kind = type(obj)
    if vm.trace.numbers.symbols is not None:
        key = _plain_key(obj, key)
    if kind is FakeTensor:
        return obj[contents.view(vm.outside, key)]
    if kind in _SIMPLE and kind is not type:
        return vm.keyed(operator.getitem, obj, key)
    if kind in CONTAINER_TYPES:
        return _container_item(vm, obj, key)
    if isinstance(obj, type):
        return _class_item(vm, obj, key)
    found = python_method(vm, obj, "__getitem__")
    if found is not None:
        return vm.call_function(found, (obj, key))
    if isinstance(obj, CONTAINER_BASES):
        return _container_item(vm, obj, key)
    if isinstance(obj, tuple):
        return vm.keyed(tuple.__getitem__, obj, key)
    vm.outside.facts.check_readable(obj)
    return wrapping.fake(vm.outside, vm.native(operator.getitem, (obj, contents.view(vm.outside, key))))


def found_by(vm: VM, obj: Any, key: Any) -> Any:
    """What `key` is to a dictionary from outside: the tensor itself instead of its fake."""
    if type(key) is FakeTensor and isinstance(obj, dict) and id(obj) in vm.outside.origins:
        real = vm.trace.real(key)
        return key if real is None else real
    return key


def _plain_key(obj: Any, key: Any) -> Any:
    """A key that native code looks up holds no symbolic numbers."""
    native = not _is_object(type(obj)) or isinstance(obj, (*CONTAINER_BASES, tuple))
    return plain_parts(key) if native else key


def _class_item(vm: VM, cls: Any, key: Any) -> Any:
    found = python_method(vm, cls, "__getitem__")
    if found is None or isinstance(cls, enum.EnumMeta):
        return vm.native(operator.getitem, (cls, key))
    return vm.call_function(found, (cls, key))


def _container_item(vm: VM, obj: Any, key: Any) -> Any:
    outside = vm.outside
    key = found_by(vm, obj, key)
    if id(obj) in outside.origins:
        if isinstance(key, slice):
            return contents.open(outside, obj)[key]
        if isinstance(obj, dict) and not contains_key(vm, obj, key):
            return _missing_item(vm, obj, key)
    elif isinstance(obj, dict) and not vm.keyed(dict.__contains__, obj, key):
        return _missing_item(vm, obj, key)
    base: Any = next(b for b in CONTAINER_BASES if isinstance(obj, b))
    return item_value(vm, obj, key, vm.keyed(base.__getitem__, obj, key))


def _missing_item(vm: VM, obj: Any, key: Any) -> Any:
    contains_key(vm, obj, key)
    if isinstance(obj, collections.Counter):
        return 0
    found = python_method(vm, obj, "__missing__")
    if found is not None:
        return vm.call_function(found, (obj, key))
    if isinstance(obj, collections.defaultdict) and obj.default_factory is not None:
        factory = obj.default_factory
        if id(obj) in vm.outside.origins:
            origin = vm.outside.origins[id(obj)].child("member", "default_factory")
            factory = wrapping.wrap(vm.outside, factory, origin)
        changes.touch(vm.outside, obj)
        value = vm.call(factory, (), {})
        dict.__setitem__(obj, key, value)
        return value
    return obj[key]


def item_value(vm: VM, obj: Any, key: Any, value: Any) -> Any:
    """What was read at `obj[key]`, guarded unless the trace wrote it."""
    outside = vm.outside
    if id(obj) not in outside.origins:
        return wrapping.fake(outside, value)
    if type(key) is int and key < 0 and not isinstance(obj, dict):
        container_len(vm, obj)
        key += len(obj)
    if not outside.log.is_original(obj, key, value):
        return value
    if not (is_constant(key) or is_identity(key)):
        outside.facts.use_identity(key)
        return contents.item(outside, obj, key, value)
    memo = outside.memo.of(obj)
    found = memo.get(("[]", key, type(key)), MISSING)
    if found is MISSING:
        found = contents.item(outside, obj, key, value)
        if obj not in outside.log:
            memo["[]", key, type(key)] = found
    return found


def store_item(vm: VM, obj: Any, key: Any, value: Any) -> None:
    """`obj[key] = value`."""
    kind = type(obj)
    if vm.trace.numbers.symbols is not None:
        key = _plain_key(obj, key)
    if kind is FakeTensor:
        obj[contents.view(vm.outside, key)] = contents.view(vm.outside, value)
        return
    found = python_method(vm, obj, "__setitem__")
    if found is not None:
        vm.call_function(found, (obj, key, value))
        return
    if isinstance(obj, CONTAINER_BASES):
        key = found_by(vm, obj, key)
        if isinstance(key, slice):
            contents.open(vm.outside, obj) if id(obj) in vm.outside.origins else None
            value = elements(vm, value)
        if id(obj) in vm.outside.origins and not isinstance(obj, dict):
            contents.open(vm.outside, obj)  # replayed as a whole
        changes.touch(vm.outside, obj)
        if isinstance(obj, dict):
            changes.note_store(vm.outside, obj, "item", key, value)
        vm.keyed(operator.setitem, obj, key, value)
        return
    if id(obj) in vm.outside.origins:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, f"an item of an outside {kind.__qualname__} is set"))
    vm.native(operator.setitem, (obj, key, value))


def delete_item(vm: VM, obj: Any, key: Any) -> None:
    """`del obj[key]`."""
    if vm.trace.numbers.symbols is not None:
        key = _plain_key(obj, key)
    found = python_method(vm, obj, "__delitem__")
    if found is not None:
        vm.call_function(found, (obj, key))
        return
    if id(obj) in vm.outside.origins:
        if not isinstance(obj, CONTAINER_BASES):
            raise Unsupported(
                Reason(UNSUPPORTED_OBJECT, f"an item of an outside {type(obj).__qualname__} is deleted")
            )
        key = found_by(vm, obj, key)
        contains_key(vm, obj, key) if isinstance(obj, dict) else contents.open(vm.outside, obj)
        changes.touch(vm.outside, obj)
    vm.keyed(operator.delitem, obj, key)


# --------------------------------------------------------------------------------------------------- iteration


def get_iter(vm: VM, obj: Any) -> Any:
    """`iter(obj)`."""
    if vm.outside.opened.stale:
        contents.update_copies(vm.outside)
    kind = type(obj)
    if kind is Generator:
        return obj
    if kind is FakeTensor:
        return iter(_rows(obj))
    if _is_object(kind):
        found = _python_iterator(vm, obj)
        if found is not None:
            return found
    return iter(iterable(vm, obj))


def _rows(tensor: FakeTensor) -> Any:
    if not tensor.spec.shape:
        raise TypeError("iteration over a 0-d tensor")
    return tensor.unbind(0)


def _python_iterator(vm: VM, obj: Any) -> Any:
    """`iter(obj)` where that is Python code; None where it is not."""
    found = python_method(vm, obj, "__iter__")
    if found is not None:
        made = vm.call_function(found, (obj,))
        if not hasattr(type(made), "__next__"):
            raise TypeError(f"iter() returned non-iterator of type {vm.class_of(made).__name__!r}")
        return made
    if (
        vm.type_info(type(obj)).find("__iter__")[0] is ABSENT
        and python_method(vm, obj, "__getitem__") is not None
    ):
        return vm.call(polyfills.iterate_sequence, (obj,), {})
    return None


def iterable(vm: VM, obj: Any) -> Any:
    """Something that native code may iterate to the same effect as `obj`."""
    if vm.outside.opened.stale:
        contents.update_copies(vm.outside)
    kind = type(obj)
    if kind in LEAF_TYPES or kind is tuple or kind is Generator:
        return obj
    if isinstance(obj, CONTAINER_BASES) and python_method(vm, obj, "__iter__") is None:
        return contents.open(vm.outside, obj) if id(obj) in vm.outside.origins else obj
    if kind is FakeTensor:
        return _rows(obj)
    if _is_object(kind):
        found = _python_iterator(vm, obj)
        if found is not None:
            return _iterate(vm, found) if python_method(vm, found, "__next__") is not None else found
    if id(obj) in vm.outside.origins and hasattr(kind, "__next__"):
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, f"an outside {kind.__qualname__} is advanced"))
    vm.outside.facts.check_readable(obj)
    return obj


def _iterate(vm: VM, iterator: Any) -> Any:
    while True:
        try:
            value = next_item(vm, iterator)
        except StopIteration:
            return
        yield value


def next_item(vm: VM, iterator: Any) -> Any:
    """`next(iterator)`. Raises StopIteration."""
    if vm.outside.opened.stale:
        contents.update_copies(vm.outside)
    kind = type(iterator)
    if kind is Generator:
        return iterator.send(None)
    if _is_object(kind):
        found = python_method(vm, iterator, "__next__")
        if found is not None:
            return vm.call_function(found, (iterator,))
    if id(iterator) in vm.outside.origins:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, f"an outside {kind.__qualname__} is advanced"))
    value = next(iterator) if kind in PLAIN_ITERATORS else vm.native(next, (iterator,))
    return wrapping.fake(vm.outside, value) if type(value) is not FakeTensor else value


def elements(vm: VM, obj: Any, limit: int | None = None, hinted: bool = False) -> Any:
    """All elements of an iterable as a list or tuple (at most `limit`), each a value of the VM. `hinted`: its length is
    asked first, as `list` does."""
    if vm.outside.opened.stale:
        contents.update_copies(vm.outside)
    kind = type(obj)
    if kind is tuple:
        return obj
    if kind is list and id(obj) not in vm.outside.origins:
        return list(obj)
    values = iterable(vm, obj)
    if hinted and _is_object(kind):
        _ask_length(vm, obj)
    if limit is not None and not isinstance(values, (list, tuple, dict, set)):
        values = itertools.islice(values, limit)
    if not isinstance(values, (*CONTAINER_BASES, tuple)) and type(values) not in PLAIN_ITERATORS:
        values = vm.native(list, (values,))
    return [v if type(v) is FakeTensor else wrapping.fake(vm.outside, v) for v in values]
