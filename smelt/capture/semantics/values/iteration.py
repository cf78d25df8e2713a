"""Iteration: `for`, `iter` and `next`, and the builtins that walk over an iterable (`zip`, `map`, `sorted`, `sum`, ...)."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY314
from smelt.capture.base.call_handlers import BUILTINS, Args, Handler, Kwargs, builtin
from smelt.capture.base.type_lookup import ABSENT
from smelt.capture.base.value_kinds import CONTAINER_BASES, LEAF_TYPES
from smelt.capture.base.vm_frames import (
    Generator,
    Tail,
    VMCallable,
    VMIterator,
    VMSequence,
    VMSizedSequence,
    through,
)
from smelt.capture.environment import container_contents, environment_iterators, wrap_values
from smelt.capture.environment.guard_facts import KEY_WRAPPER
from smelt.capture.semantics import number_semantics, result_polyfills
from smelt.capture.semantics.attributes import python_method
from smelt.capture.semantics.attributes.method_lookup import may_define_operators
from smelt.capture.semantics.values.lengths import ask_length
from smelt.capture.vm.native_reachability import PLAIN_ITERATORS
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.torch_function_handlers import is_handled
from smelt.tracing.symbolic.sym_numbers import NUMBERS
from smelt.tracing.symbolic.symbolic_ranges import ROWS, SymbolicList, SymbolicRange

TUPLE_ASKS = (
    not PY314
)  # whether `tuple(x)` and `f(*x)` ask how long x is before they iterate over it, as `list(x)` does
_ASKING = (list, tuple, torch.Size) if TUPLE_ASKS else (list,)


def get_iter(vm: VM, obj: object) -> object:
    """`iter(obj)`."""
    tail = vm.frames.take_tail()
    if vm.env.opened.stale:
        container_contents.update_copies(vm.env)
    kind = type(obj)
    if kind is Generator or environment_iterators.is_advanced(vm.env, obj):
        return obj
    if type(obj) is FakeTensor:
        return iter(_rows(vm, obj))
    if may_define_operators(kind):
        found = _python_iterator(vm, obj, tail)
        if found is not None:
            return found
    return iter(iterable(vm, obj))


def _rows(vm: VM, tensor: FakeTensor) -> tuple[FakeTensor, ...]:
    """What iteration over a tensor gives. Raises what iteration over a real one would."""
    if is_handled(vm.trace.call, (tensor,)):
        return tuple(vm.native(torch.Tensor.__iter__, (tensor,)))  # type: ignore[arg-type]  # asks about `dim` and `unbind`
    if not tensor.spec.shape:
        raise TypeError("iteration over a 0-d tensor")
    return cast("tuple[FakeTensor, ...]", tensor.unbind(0))


def _python_iterator(vm: VM, obj: object, tail: Tail | None = None) -> object:
    """`iter(obj)` where that is Python code; None where it is not."""
    found = python_method(vm, obj, "__iter__")
    if found is not None:
        vm.frames.tail = through(tail, result_polyfills.iterator)
        made = vm.call_function(found, (obj,))
        if not hasattr(type(made), "__next__"):
            raise TypeError(f"iter() returned non-iterator of type {vm.class_of(made).__name__!r}")
        return made
    if (
        vm.type_info(type(obj)).find("__iter__")[0] is ABSENT
        and python_method(vm, obj, "__getitem__") is not None
    ):
        sized = python_method(vm, obj, "__len__") is not None
        return iter((VMSizedSequence if sized else VMSequence)(vm, obj))
    return None


def iterable(vm: VM, obj: object, at_once: bool = False) -> Iterable[object]:
    """Something that native code may iterate over to the same effect as over `obj`: what it is to raise for an object that
    is not iterable, it raises itself. `at_once`: nothing can change before it is done."""
    if vm.env.opened.stale:
        container_contents.update_copies(vm.env)
    kind = type(obj)
    if kind in LEAF_TYPES or kind is tuple or kind is Generator:
        return cast("Iterable[object]", obj)
    if kind in ROWS:
        return cast("SymbolicRange | SymbolicList", obj).plain()
    if isinstance(obj, (set, frozenset)):
        vm.env.facts.use_order(vm.env.overlay.now(obj))
    if isinstance(obj, CONTAINER_BASES) and python_method(vm, obj, "__iter__") is None:
        if id(obj) not in vm.env.sources:
            return obj
        return container_contents.iterated(vm.env, obj) if at_once else container_contents.walk(vm.env, obj)
    if type(obj) is FakeTensor:
        return _rows(vm, obj)
    if may_define_operators(kind):
        found = _python_iterator(vm, obj)
        if found is not None:
            if python_method(vm, found, "__next__") is not None:
                return VMIterator(vm, found)
            return cast("Iterable[object]", found)
    if environment_iterators.is_advanced(vm.env, obj):
        return VMIterator(vm, obj)
    if id(obj) in vm.env.sources and hasattr(kind, "__next__"):
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, f"an outside {kind.__qualname__} is advanced"))
    vm.env.facts.check_readable(obj, "__iter__")
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
    if vm.env.opened.stale:
        container_contents.update_copies(vm.env)
    kind = type(iterator)
    if type(iterator) is Generator:
        return iterator.send(None)
    if may_define_operators(kind):
        found = python_method(vm, iterator, "__next__")
        if found is not None:
            return vm.call_function(found, (iterator,))
    if id(iterator) in vm.env.sources:
        return environment_iterators.next_item(vm.env, iterator)
    plain = kind in PLAIN_ITERATORS
    value = next(cast("Iterator[object]", iterator)) if plain else vm.native(next, (iterator,))
    return wrap_values.fake(vm.env, value) if type(value) is not FakeTensor else value


def elements(vm: VM, obj: object, limit: int | None = None, hinted: bool = False) -> Sequence[object]:
    """All elements of an iterable as a list or tuple (at most `limit`), each a value of the VM. `hinted`: its length is
    asked first, as `list` does."""
    if vm.env.opened.stale:
        container_contents.update_copies(vm.env)
    if type(obj) is tuple:
        return obj
    if type(obj) is list and id(obj) not in vm.env.sources:
        return list(obj)
    values = iterable(vm, obj, at_once=limit is None)
    if hinted:
        ask_length(vm, obj)
    if limit is not None and not isinstance(values, (list, tuple, dict, set)):
        values = itertools.islice(values, limit)
    if not isinstance(values, (*CONTAINER_BASES, tuple)) and type(values) not in PLAIN_ITERATORS:
        values = cast("list[object]", vm.native(list, (values,)))
    return [v if type(v) is FakeTensor else wrap_values.fake(vm.env, v) for v in values]


def each(vm: VM, obj: object) -> Iterator[object]:
    """The elements of `obj` one after the other: the machine advances to an element only when it is asked for."""
    return _iterate(vm, get_iter(vm, obj))


@builtin(iter)
def _iter(vm: VM, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 2:
        if not callable(args[0]):
            iter(cast(Callable[[], object], None), None)  # raises, in the words of this Python
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
    if type(obj) is FakeTensor:
        return vm.call(torch.Tensor.__reversed__, (obj,), {})
    found = python_method(vm, obj, "__reversed__")
    if found is not None:
        return vm.call_function(found, (obj,))
    if (
        vm.type_info(type(obj)).find("__reversed__")[0] is ABSENT
        and python_method(vm, obj, "__getitem__") is not None
    ):
        return reversed(VMSizedSequence(vm, obj))
    return reversed(cast("Sequence[object]", vm.iterable(obj)))  # raises what `reversed` raises


@builtin(zip)
def _zip(vm: VM, args: Args, kwargs: Kwargs) -> object:
    return zip(*[vm.iterable(a) for a in args], **cast("dict[str, bool]", kwargs))


@builtin(map)
def _map(vm: VM, args: Args, kwargs: Kwargs) -> object:
    fn, *rest = args
    return map(element_function(vm, fn), *[vm.iterable(a) for a in rest])


@builtin(filter)
def _filter(vm: VM, args: Args, kwargs: Kwargs) -> object:
    fn, values = args
    return filter(predicate(vm, fn), vm.iterable(values))


@builtin(sorted)
def _sorted(vm: VM, args: Args, kwargs: Kwargs) -> object:
    values = vm.elements(args[0], hinted=True)
    if compares_contents(values, kwargs.get("key")):
        return [values[i] for i in sorted_places(vm, values, **kwargs)]
    return vm.native(sorted, (values,), comparing(vm, values, kwargs))


def compares_contents(values: Iterable[object], key: object) -> bool:
    """Whether containers are compared, in which there may be more from outside."""
    return key is None and any(isinstance(v, CONTAINER_BASES) for v in values)


def sorted_places(vm: VM, values: Sequence[object], key: object = None, reverse: object = False) -> list[int]:
    """The places of `values` in their order: containers are compared with all that they hold, shown with fakes."""
    shown = [container_contents.view(vm.env, v) for v in values]
    return cast("list[int]", vm.native(_sort_places, (shown, vm.truth(reverse))))


def _sort_places(shown: list[object], reverse: bool) -> list[int]:
    return sorted(range(len(shown)), key=shown.__getitem__, reverse=reverse)  # type: ignore[arg-type, return-value]


def comparing(vm: VM, values: Iterable[object], kwargs: Kwargs) -> Kwargs:
    """The keyword arguments of a function of C that compares `values`, or what `key` makes of them: what it looks into is
    guarded."""
    if kwargs.get("key") is None:
        container_contents.open_compared(vm.env, values)
        return kwargs
    return {
        **kwargs,
        "key": element_function(vm, kwargs["key"], functools.partial(container_contents.view, vm.env)),
    }


def opened(vm: VM, value: object) -> object:
    """`value`, which native code is going to compare."""
    container_contents.open_compared(vm.env, (value,))
    return value


def element_function(
    vm: VM, fn: object, finish: Callable[[object], object] | None = None
) -> Callable[..., object]:
    """`fn` as native code may call it with what it takes from an iterable: all calls come back to the machine, also those of
    functions of C, which may look into elements from outside."""
    vm.env.facts.check_readable(fn)
    if (
        not callable(fn) or type(fn) is KEY_WRAPPER
    ):  # which keeps its argument: the comparison comes back to the machine
        return cast("Callable[..., object]", fn)
    return VMCallable(vm, fn, finish)


def predicate(vm: VM, fn: object) -> Callable[..., object]:
    """`fn` (None: `bool`) as native code may call it that asks only whether the result is true."""
    return element_function(vm, bool if fn is None else fn, vm.truth)


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
        values = vm.elements(args[0]) if len(args) == 1 else args
        if compares_contents(values, kwargs.get("key")):
            return values[_extreme_place(vm, choose, values)]
        if "key" not in kwargs and any(type(v) in NUMBERS for v in values):
            return functools.reduce(lambda best, value: vm.native(choose, (best, value)), values)
        return vm.native(choose, (values,) if len(args) == 1 else values, comparing(vm, values, kwargs))

    return handler


def _extreme_place(vm: VM, choose: Callable[..., object], values: Sequence[object]) -> int:
    return cast(int, vm.native(_chosen, (choose, [container_contents.view(vm.env, v) for v in values])))


def _chosen(choose: Callable[..., object], shown: list[object]) -> object:
    return choose(range(len(shown)), key=shown.__getitem__)


BUILTINS[min] = _extreme(min)
BUILTINS[max] = _extreme(max)


@builtin(functools.reduce)
def _reduce(vm: VM, args: Args, kwargs: Kwargs) -> object:
    fn, values, *rest = args
    return functools.reduce(element_function(vm, fn), each(vm, values), *rest)


def from_iterable(make: Callable[..., object]) -> Handler:
    """The handler of a builtin whose first argument is an iterable that it walks through to the end."""

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if not args:
            return make(**kwargs)
        if make is list and type(args[0]) in ROWS:
            return number_semantics.listed(cast("SymbolicRange | SymbolicList", args[0])).part(slice(None))
        return vm.native(make, (vm.elements(args[0], hinted=make in _ASKING), *args[1:]), kwargs)

    return handler


@builtin(enumerate)
def _enumerate(vm: VM, args: Args, kwargs: Kwargs) -> object:
    if args:
        return enumerate(
            vm.iterable(args[0]), *cast("tuple[int, ...]", args[1:]), **cast("dict[str, int]", kwargs)
        )
    return enumerate(vm.iterable(kwargs["iterable"]), cast(int, kwargs.get("start", 0)))
