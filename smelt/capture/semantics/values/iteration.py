"""Iteration: `for`, `iter` and `next`, and builtins over iterables (`zip`, `map`, `sorted`, `sum`, ...)."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY312, PY314
from smelt.capture.base.call_handlers import BUILTINS, Args, Handler, Kwargs, builtin
from smelt.capture.base.type_lookup import ABSENT
from smelt.capture.base.value_kinds import CONTAINER_BASES, LEAF_TYPES
from smelt.capture.base.vm_frames import (
    CallSite,
    Generator,
    VMCallable,
    VMIterator,
    VMSequence,
    VMSizedSequence,
    with_result_handler,
)
from smelt.capture.environment import container_contents, environment_iterators, wrap_values
from smelt.capture.environment.guard_facts import KEY_WRAPPER
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.semantics import number_semantics, result_polyfills
from smelt.capture.semantics.attributes import python_method
from smelt.capture.semantics.attributes.method_lookup import may_define_operators, plain_index
from smelt.capture.semantics.values.lengths import call_length_hint
from smelt.capture.vm.native_reachability import PLAIN_ITERATORS
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.torch_function_handlers import is_handled
from smelt.tracing.symbolic.sym_numbers import NUMBERS, Float, specialize
from smelt.tracing.symbolic.symbolic_ranges import SEQUENCE_PROXIES, SymbolicList, SymbolicRange

# whether `tuple(x)` and `f(*x)` call the length hint of x before iterating, as `list(x)` does
TUPLE_CALLS_LENGTH_HINT = not PY314
_LENGTH_HINT_CALLERS = (list, tuple, torch.Size) if TUPLE_CALLS_LENGTH_HINT else (list,)


def get_iter(vm: VM, obj: object) -> object:
    """`iter(obj)`."""
    call_site = vm.frames.take_call_site()
    if vm.env.native_views.stale:
        container_contents.refresh_copies(vm.env)
    kind = type(obj)
    if kind is Generator or environment_iterators.can_advance(vm.env, obj):
        return obj
    if type(obj) is FakeTensor:
        return iter(_rows(vm, obj))
    if may_define_operators(kind):
        found = _python_iterator(vm, obj, call_site)
        if found is not None:
            return found
    return iter(iterable(vm, obj))


def _rows(vm: VM, tensor: FakeTensor) -> tuple[FakeTensor, ...]:
    """Elements of iteration over a tensor. Raises as a real tensor does."""
    if is_handled(vm.trace.call, (tensor,)):
        return tuple(vm.call_native(torch.Tensor.__iter__, (tensor,)))  # type: ignore[arg-type]  # dispatches `dim` and `unbind`
    if not tensor.spec.shape:
        raise TypeError("iteration over a 0-d tensor")
    return cast("tuple[FakeTensor, ...]", tensor.unbind(0))


def _python_iterator(vm: VM, obj: object, call_site: CallSite | None = None) -> object:
    """`iter(obj)` if Python code implements it, else None."""
    found = python_method(vm, obj, "__iter__")
    if found is not None:
        vm.frames.call_site = with_result_handler(call_site, result_polyfills.checked_iterator)
        iterator = vm.call_function(found, (obj,))
        if not hasattr(type(iterator), "__next__"):
            raise TypeError(f"iter() returned non-iterator of type {vm.class_of(iterator).__name__!r}")
        return iterator
    if (
        vm.type_info(type(obj)).find("__iter__")[0] is ABSENT
        and python_method(vm, obj, "__getitem__") is not None
    ):
        sized = python_method(vm, obj, "__len__") is not None
        return iter((VMSizedSequence if sized else VMSequence)(vm, obj))
    return None


def iterable(vm: VM, obj: object, at_once: bool = False) -> Iterable[object]:
    """An iterable for native code with the effects of iterating over `obj`; it raises itself if `obj` is not iterable.
    `at_once`: nothing can change before the iteration ends."""
    if vm.env.native_views.stale:
        container_contents.refresh_copies(vm.env)
    kind = type(obj)
    if kind in LEAF_TYPES or kind is tuple or kind is Generator:
        return cast("Iterable[object]", obj)
    if kind in SEQUENCE_PROXIES:
        return cast("SymbolicRange | SymbolicList", obj).specialize()
    if isinstance(obj, (set, frozenset)):
        vm.env.facts.use_order(vm.env.overlay.now(obj))
    if isinstance(obj, CONTAINER_BASES) and python_method(vm, obj, "__iter__") is None:
        if id(obj) not in vm.env.sources:
            return obj
        if at_once:
            return container_contents.open_for_iteration(vm.env, obj)
        return container_contents.open_for_iterator(vm.env, obj)
    if type(obj) is FakeTensor:
        return _rows(vm, obj)
    if may_define_operators(kind):
        found = _python_iterator(vm, obj)
        if found is not None:
            if python_method(vm, found, "__next__") is not None:
                return VMIterator(vm, found)
            return cast("Iterable[object]", found)
    if environment_iterators.can_advance(vm.env, obj):
        return VMIterator(vm, obj)
    if id(obj) in vm.env.sources and hasattr(kind, "__next__"):
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, f"an environment {kind.__qualname__} is advanced"))
    vm.env.facts.check_readable(obj, "__iter__")
    return cast("Iterable[object]", obj)


def _iterate(vm: VM, iterator: object) -> Iterator[object]:
    """Remaining elements of `iterator`, advanced by the VM."""
    while True:
        try:
            value = next_item(vm, iterator)
        except StopIteration:
            return
        yield value


def next_item(vm: VM, iterator: object) -> object:
    """`next(iterator)`. Raises StopIteration."""
    if vm.env.native_views.stale:
        container_contents.refresh_copies(vm.env)
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
    value = next(cast("Iterator[object]", iterator)) if plain else vm.call_native(next, (iterator,))
    return wrap_values.to_fake(vm.env, value) if type(value) is not FakeTensor else value


def elements(vm: VM, obj: object, limit: int | None = None, hinted: bool = False) -> Sequence[object]:
    """All elements (at most `limit`) as a list or tuple. `hinted`: first call the length hint, as `list` does."""
    if vm.env.native_views.stale:
        container_contents.refresh_copies(vm.env)
    if type(obj) is tuple:
        return obj
    if type(obj) is list and id(obj) not in vm.env.sources:
        return list(obj)
    values = iterable(vm, obj, at_once=limit is None)
    if hinted:
        call_length_hint(vm, obj)
    if limit is not None and not isinstance(values, (list, tuple, dict, set)):
        values = itertools.islice(values, limit)
    if not isinstance(values, (*CONTAINER_BASES, tuple)) and type(values) not in PLAIN_ITERATORS:
        values = cast("list[object]", vm.call_native(list, (values,)))
    return [v if type(v) is FakeTensor else wrap_values.to_fake(vm.env, v) for v in values]


def iterate_lazily(vm: VM, obj: object) -> Iterator[object]:
    """Elements of `obj` on demand: the VM advances only when the next element is needed."""
    return _iterate(vm, get_iter(vm, obj))


@builtin(iter)
def _iter(vm: VM, args: Args, kwargs: Kwargs) -> object:
    if len(args) == 2:
        vm.env.facts.use_lookups(type(args[0]))
        if not callable(args[0]):
            iter(cast(Callable[[], object], None), None)  # raises the message of this Python version
        compared = functools.partial(guard_contents, vm)
        compared(args[1])
        return iter(VMCallable(vm, args[0], compared), args[1])
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


builtin(zip)(lambda vm, args, kwargs: zip(*[vm.iterable(a) for a in args], **kwargs))


@builtin(map)
def _map(vm: VM, args: Args, kwargs: Kwargs) -> object:
    fn, *iterables = args
    return map(element_function(vm, fn), *[vm.iterable(a) for a in iterables])


@builtin(filter)
def _filter(vm: VM, args: Args, kwargs: Kwargs) -> object:
    fn, values = args
    return filter(predicate(vm, fn), vm.iterable(values))


@builtin(sorted)
def _sorted(vm: VM, args: Args, kwargs: Kwargs) -> object:
    values = vm.elements(args[0], hinted=True)
    if compares_contents(values, kwargs.get("key")):
        return [values[i] for i in sorted_indices(vm, values, **kwargs)]
    return vm.call_native(sorted, (values,), comparison_kwargs(vm, values, kwargs))


def compares_contents(values: Iterable[object], key: object) -> bool:
    """Whether the comparison reads nested containers, which may hold environment objects."""
    return key is None and any(isinstance(v, CONTAINER_BASES) for v in values)


def sorted_indices(
    vm: VM, values: Sequence[object], key: object = None, reverse: object = False
) -> list[int]:
    """Indices of `values` in sorted order. Comparisons of containers read a view with fakes."""
    views = [container_contents.native_view(vm.env, v) for v in values]
    options = {"key": views.__getitem__, "reverse": vm.truth(reverse)}
    return cast("list[int]", vm.call_native(sorted, (range(len(views)),), options))


def comparison_kwargs(vm: VM, values: Iterable[object], kwargs: Kwargs) -> Kwargs:
    """Keywords of a C function that compares `values`, or their keys; guards everything that the comparison reads."""
    if kwargs.get("key") is None:
        container_contents.guard_compared(vm.env, values)
        return kwargs
    return {
        **kwargs,
        "key": element_function(vm, kwargs["key"], functools.partial(container_contents.native_view, vm.env)),
    }


def guard_contents(vm: VM, value: object) -> object:
    """Guard the class and the contents of `value`, which native code is about to compare."""
    vm.env.facts.use_class(type(value))
    container_contents.guard_compared(vm.env, (value,))
    return value


def element_function(
    vm: VM, fn: object, finish: Callable[[object], object] | None = None
) -> Callable[..., object]:
    """`fn` as native code may call it with elements of an iterable: every call returns to the VM, including C functions,
    which may read environment elements."""
    vm.env.facts.check_readable(fn)
    vm.env.facts.use_lookups(type(fn))
    # it stores its argument, and comparisons return to the VM
    if not callable(fn) or type(fn) is KEY_WRAPPER:
        return cast("Callable[..., object]", fn)
    return VMCallable(vm, fn, finish)


def predicate(vm: VM, fn: object) -> Callable[..., object]:
    """`fn` (None: `bool`) as native code may call it for a truth value."""
    return element_function(vm, bool if fn is None else fn, vm.truth)


def _quantifier_handler(stop: bool) -> Handler:
    """`any` (stops at True) and `all` (stops at False): later elements are not evaluated."""

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> bool:
        for value in iterate_lazily(vm, args[0]):
            if vm.truth(value) is stop:
                return stop
        return not stop

    return handler


BUILTINS[all] = _quantifier_handler(False)
BUILTINS[any] = _quantifier_handler(True)


@builtin(sum)
def _sum(vm: VM, args: Args, kwargs: Kwargs) -> object:
    total = kwargs.get("start", args[1] if len(args) > 1 else 0)
    for kind in (str, bytes, bytearray):
        if issubclass(vm.class_of(total), kind):
            sum((), kind())  # raises TypeError
    numbers: list[float] = []  # not yet added: from CPython 3.12 on, `sum` adds floats with compensation
    for value in iterate_lazily(vm, args[0]):
        is_float = type(value) is Float or (type(value) is NumberProxy and value.kind is float)
        if PY312 and is_float:
            value = specialize(value) if type(value) is Float else float(cast(float, value))
        if type(value) in _ADDED and type(total) in _ADDED:
            numbers.append(cast(float, value))
            continue
        total = vm.binary(operator.add, sum(numbers, cast(float, total)) if numbers else total, value)
        numbers.clear()
    return sum(numbers, cast(float, total)) if numbers else total


_ADDED = (int, float, bool)


def _extreme_handler(choose: Callable[..., object]) -> Handler:
    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        values = vm.elements(args[0]) if len(args) == 1 else args
        if compares_contents(values, kwargs.get("key")):
            return values[_extreme_index(vm, choose, values)]
        if "key" not in kwargs and any(type(v) in NUMBERS for v in values):
            return functools.reduce(lambda best, value: vm.call_native(choose, (best, value)), values)
        return vm.call_native(
            choose, (values,) if len(args) == 1 else values, comparison_kwargs(vm, values, kwargs)
        )

    return handler


def _extreme_index(vm: VM, choose: Callable[..., object], values: Sequence[object]) -> int:
    views = [container_contents.native_view(vm.env, v) for v in values]
    return cast(int, vm.call_native(choose, (range(len(views)),), {"key": views.__getitem__}))


BUILTINS[min] = _extreme_handler(min)
BUILTINS[max] = _extreme_handler(max)


@builtin(functools.reduce)
def _reduce(vm: VM, args: Args, kwargs: Kwargs) -> object:
    fn, values, *initial = args
    try:
        iterator = vm.get_iter(values)
    except TypeError as error:
        raise TypeError("reduce() arg 2 must support iteration") from error
    return functools.reduce(element_function(vm, fn), _iterate(vm, iterator), *initial)


def from_iterable(constructor: Callable[..., object]) -> Handler:
    """Handler of a builtin that exhausts the iterable in its first argument."""

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if not args:
            return constructor(**kwargs)
        if constructor is list and type(args[0]) in SEQUENCE_PROXIES:
            return number_semantics.as_symbolic_list(cast("SymbolicRange | SymbolicList", args[0])).sliced(
                slice(None)
            )
        return vm.call_native(
            constructor, (vm.elements(args[0], hinted=constructor in _LENGTH_HINT_CALLERS), *args[1:]), kwargs
        )

    return handler


@builtin(enumerate)
def _enumerate(vm: VM, args: Args, kwargs: Kwargs) -> object:
    if args:
        start = {name: plain_index(vm, cast(int, a)) for name, a in kwargs.items()}
        return enumerate(vm.iterable(args[0]), *[plain_index(vm, cast(int, a)) for a in args[1:]], **start)
    return enumerate(vm.iterable(kwargs["iterable"]), plain_index(vm, cast(int, kwargs.get("start", 0))))
