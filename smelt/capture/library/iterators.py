"""The iterators of `itertools`: native, over what the machine makes iterable, calling back where they call functions."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable

from smelt._native import isinstance
from smelt.capture.base.frames import Generator
from smelt.capture.base.handlers import BUILTINS, Args, Handler, Kwargs, builtin
from smelt.capture.base.values import LEAF_TYPES
from smelt.capture.machine.vm import VM
from smelt.capture.protocol import polyfills
from smelt.capture.protocol.iteration import element_function, opened, predicate


def _choosing(make: Callable[..., object]) -> Handler:
    """Iterators that ask a function for each element whether it is true."""
    return lambda vm, args, kwargs: make(predicate(vm, args[0]), vm.iterable(args[1]))


_make: Callable[..., object]
for _make in (itertools.takewhile, itertools.dropwhile, itertools.filterfalse):
    BUILTINS[_make] = _choosing(_make)


@builtin(itertools.accumulate)
def _accumulate(vm: VM, args: Args, kwargs: Kwargs) -> object:
    given = dict(zip(("iterable", "func"), args)) | kwargs
    fn = given.get("func")
    given["func"] = element_function(vm, operator.add if fn is None else fn)
    return itertools.accumulate(**{**given, "iterable": vm.iterable(given["iterable"])})  # type: ignore[call-overload]


@builtin(itertools.groupby)
def _groupby(vm: VM, args: Args, kwargs: Kwargs) -> object:
    given = dict(zip(("iterable", "key"), args)) | kwargs
    key = element_function(
        vm, _itself if given.get("key") is None else given["key"], functools.partial(opened, vm)
    )
    return itertools.groupby(vm.iterable(given["iterable"]), key)  # type: ignore[call-overload]


def _itself(value: object) -> object:
    return value


@builtin(itertools.starmap)
def _starmap(vm: VM, args: Args, kwargs: Kwargs) -> object:
    fn, values = args
    inner = _known_iterables(vm, values)
    if inner is None:
        return vm.call(polyfills.starmap, (fn, values), {})
    return itertools.starmap(element_function(vm, fn), inner)


@builtin(itertools.chain.from_iterable)
def _chain_from_iterable(vm: VM, args: Args, kwargs: Kwargs) -> object:
    inner = _known_iterables(vm, args[0])
    return vm.call(polyfills.chained, args, {}) if inner is None else itertools.chain.from_iterable(inner)


def _known_iterables(vm: VM, values: object) -> list[Iterable[object]] | None:
    """The elements of a container as what native code may walk over; None where there may be code of the user's to run when
    one of them is asked for, or no end."""
    if not isinstance(values, (list, tuple)) or type(values) not in (list, tuple):
        return None
    found = vm.elements(values)
    return [vm.iterable(v) for v in found] if all(type(v) in _READY for v in found) else None


_READY: frozenset[type] = frozenset((list, tuple, dict, set, frozenset, str, bytes, range, Generator))


def _over_iterables(make: Callable[..., object]) -> Handler:
    """Iterators that call no functions."""

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        return make(*[a if type(a) in LEAF_TYPES else vm.iterable(a) for a in args], **kwargs)

    return handler


for _make in (
    itertools.chain, itertools.product, itertools.islice, itertools.zip_longest, itertools.pairwise, itertools.combinations,
    itertools.permutations, itertools.cycle, itertools.count,
):  # fmt: skip
    BUILTINS[_make] = _over_iterables(_make)


@builtin(itertools.compress)
def _compress(vm: VM, args: Args, kwargs: Kwargs) -> object:
    given = dict(zip(("data", "selectors"), args)) | kwargs
    selectors = map(predicate(vm, None), vm.iterable(given["selectors"]))
    return itertools.compress(vm.iterable(given["data"]), selectors)


BUILTINS[itertools.repeat] = lambda vm, args, kwargs: itertools.repeat(*args, **kwargs)
