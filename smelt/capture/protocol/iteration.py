"""Iteration: `for`, `iter` and `next`, and the builtins that walk over an iterable (`zip`, `map`, `sorted`, `sum`, ...)."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from smelt.capture.base.frames import Generator, VMCallable
from smelt.capture.base.handlers import BUILTINS, Args, Handler, Kwargs, builtin
from smelt.capture.base.type_info import ABSENT
from smelt.capture.base.values import CONTAINER_BASES, LEAF_TYPES
from smelt.capture.machine.native_reach import PLAIN_ITERATORS
from smelt.capture.machine.vm import VM
from smelt.capture.outside import contents, wrapping
from smelt.capture.protocol import polyfills
from smelt.capture.protocol.attributes import python_method
from smelt.capture.protocol.attributes.lookup import may_define_operators
from smelt.capture.protocol.lengths import ask_length
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.trace.fake import FakeTensor


def get_iter(vm: VM, obj: object) -> object:
    """`iter(obj)`."""
    if vm.outside.opened.stale:
        contents.update_copies(vm.outside)
    kind = type(obj)
    if kind is Generator:
        return obj
    if type(obj) is FakeTensor:
        return iter(_rows(obj))
    if may_define_operators(kind):
        found = _python_iterator(vm, obj)
        if found is not None:
            return found
    return iter(iterable(vm, obj))


def _rows(tensor: FakeTensor) -> tuple[FakeTensor, ...]:
    """What iteration over a tensor gives. Raises what iteration over a real one would."""
    if not tensor.spec.shape:
        raise TypeError("iteration over a 0-d tensor")
    return cast("tuple[FakeTensor, ...]", tensor.unbind(0))


def _python_iterator(vm: VM, obj: object) -> object:
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


def iterable(vm: VM, obj: object) -> Iterable[object]:
    """Something that native code may iterate over to the same effect as over `obj`: what it is to raise for an object that
    is not iterable, it raises itself."""
    if vm.outside.opened.stale:
        contents.update_copies(vm.outside)
    kind = type(obj)
    if kind in LEAF_TYPES or kind is tuple or kind is Generator:
        return cast("Iterable[object]", obj)
    if isinstance(obj, CONTAINER_BASES) and python_method(vm, obj, "__iter__") is None:
        return contents.open(vm.outside, obj) if id(obj) in vm.outside.origins else obj
    if type(obj) is FakeTensor:
        return _rows(obj)
    if may_define_operators(kind):
        found = _python_iterator(vm, obj)
        if found is not None:
            if python_method(vm, found, "__next__") is not None:
                return _iterate(vm, found)
            return cast("Iterable[object]", found)
    if id(obj) in vm.outside.origins and hasattr(kind, "__next__"):
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, f"an outside {kind.__qualname__} is advanced"))
    vm.outside.facts.check_readable(obj)
    return cast("Iterable[object]", obj)


def _iterate(vm: VM, iterator: object) -> Iterator[object]:
    """What is left of `iterator`, whose `__next__` the machine carries out."""
    while True:
        try:
            value = next_item(vm, iterator)
        except StopIteration:
            return
        yield value


def next_item(vm: VM, iterator: object) -> object:
    """`next(iterator)`. Raises StopIteration."""
    if vm.outside.opened.stale:
        contents.update_copies(vm.outside)
    kind = type(iterator)
    if type(iterator) is Generator:
        return iterator.send(None)
    if may_define_operators(kind):
        found = python_method(vm, iterator, "__next__")
        if found is not None:
            return vm.call_function(found, (iterator,))
    if id(iterator) in vm.outside.origins:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, f"an outside {kind.__qualname__} is advanced"))
    plain = kind in PLAIN_ITERATORS
    value = next(cast("Iterator[object]", iterator)) if plain else vm.native(next, (iterator,))
    return wrapping.fake(vm.outside, value) if type(value) is not FakeTensor else value


def elements(vm: VM, obj: object, limit: int | None = None, hinted: bool = False) -> Sequence[object]:
    """All elements of an iterable as a list or tuple (at most `limit`), each a value of the VM. `hinted`: its length is
    asked first, as `list` does."""
    if vm.outside.opened.stale:
        contents.update_copies(vm.outside)
    kind = type(obj)
    if type(obj) is tuple:
        return obj
    if type(obj) is list and id(obj) not in vm.outside.origins:
        return list(obj)
    values = iterable(vm, obj)
    if hinted and may_define_operators(kind):
        ask_length(vm, obj)
    if limit is not None and not isinstance(values, (list, tuple, dict, set)):
        values = itertools.islice(values, limit)
    if not isinstance(values, (*CONTAINER_BASES, tuple)) and type(values) not in PLAIN_ITERATORS:
        values = cast("list[object]", vm.native(list, (values,)))
    return [v if type(v) is FakeTensor else wrapping.fake(vm.outside, v) for v in values]


def each(vm: VM, obj: object) -> Iterator[object]:
    """The elements of `obj` one after the other: the machine advances to an element only when it is asked for."""
    return _iterate(vm, get_iter(vm, obj))


@builtin(iter)
def _iter(vm: VM, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 2:
        return iter(VMCallable(vm, args[0]), args[1])
    return vm.get_iter(args[0])


@builtin(next)
def _next(vm: VM, args: Args, kwargs: Kwargs) -> object:
    try:
        return vm.next(args[0])
    except StopIteration:
        if len(args) > 1:
            return args[1]
        raise


@builtin(reversed)
def _reversed(vm: VM, args: Args, kwargs: Kwargs) -> object:
    (obj,) = args
    found = python_method(vm, obj, "__reversed__")
    if found is not None:
        return vm.call_function(found, (obj,))
    if python_method(vm, obj, "__getitem__") is not None:
        return vm.call(polyfills.reversed_sequence, (obj,), {})
    return reversed(cast("Sequence[object]", vm.iterable(obj)))  # raises what `reversed` raises


@builtin(zip)
def _zip(vm: VM, args: Args, kwargs: Kwargs) -> object:
    return zip(*[vm.iterable(a) for a in args], **cast("dict[str, bool]", kwargs))


@builtin(map)
def _map(vm: VM, args: Args, kwargs: Kwargs) -> object:
    fn, *rest = args
    return map(vm.native_callable(fn), *[vm.iterable(a) for a in rest])


@builtin(filter)
def _filter(vm: VM, args: Args, kwargs: Kwargs) -> object:
    fn, values = args
    return filter(None if fn is None else vm.native_callable(fn), vm.iterable(values))


@builtin(sorted)
def _sorted(vm: VM, args: Args, kwargs: Kwargs) -> object:
    kwargs = {k: vm.native_argument(v) for k, v in kwargs.items()}
    return vm.native(sorted, (vm.elements(args[0], hinted=True),), kwargs)


def _quantifier(stop: bool) -> Handler:
    """`any` (which stops at True) and `all` (at False): elements behind the one that decides are not asked for."""

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> bool:
        for value in each(vm, args[0]):
            if vm.truth(value) is stop:
                return stop
        return not stop

    return handler


BUILTINS[all] = _quantifier(False)
BUILTINS[any] = _quantifier(True)


@builtin(sum)
def _sum(vm: VM, args: Args, kwargs: Kwargs) -> object:
    total = kwargs.get("start", args[1] if len(args) > 1 else 0)
    for value in each(vm, args[0]):
        total = vm.binary(operator.add, total, value)
    return total


def _extreme(choose: Callable[..., object]) -> Handler:
    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        kwargs = {k: vm.native_argument(v) for k, v in kwargs.items()}
        if len(args) == 1:
            return vm.native(choose, (vm.elements(args[0]),), kwargs)
        return vm.native(choose, args, kwargs)

    return handler


BUILTINS[min] = _extreme(min)
BUILTINS[max] = _extreme(max)


@builtin(functools.reduce)
def _reduce(vm: VM, args: Args, kwargs: Kwargs) -> object:
    fn, values, *rest = args
    return functools.reduce(vm.native_callable(fn), vm.elements(values), *rest)


def from_iterable(make: Callable[..., object]) -> Handler:
    """The handler of a builtin whose first argument is an iterable that it walks through to the end."""

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if not args:
            return make(**kwargs)
        return vm.native(make, (vm.elements(args[0], hinted=make in (list, tuple)), *args[1:]), kwargs)

    return handler


BUILTINS[enumerate] = from_iterable(enumerate)
BUILTINS[itertools.chain.from_iterable] = from_iterable(itertools.chain.from_iterable)
