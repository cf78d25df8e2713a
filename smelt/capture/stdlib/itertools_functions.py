"""Iterators of `itertools`: native, over iterables of the VM; their function calls return to the VM."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable
from typing import cast

from smelt.capture.base.call_handlers import BUILTINS, Args, Handler, Kwargs, builtin
from smelt.capture.base.value_kinds import LEAF_TYPES
from smelt.capture.base.vm_frames import VMIterables, VMTuples
from smelt.capture.semantics.attributes.method_lookup import plain_index
from smelt.capture.semantics.values.iteration import element_function, guard_contents, predicate
from smelt.capture.vm.vm import VM


def _predicate_handler(constructor: Callable[..., object]) -> Handler:
    """Handler of an iterator that calls a predicate for each element."""
    return lambda vm, args, kwargs: constructor(predicate(vm, args[0]), vm.iterable(args[1]))


_constructor: Callable[..., object]
for _constructor in (itertools.takewhile, itertools.dropwhile, itertools.filterfalse):
    BUILTINS[_constructor] = _predicate_handler(_constructor)


@builtin(itertools.accumulate)
def _accumulate(vm: VM, args: Args, kwargs: Kwargs) -> object:
    arguments = dict(zip(("iterable", "func"), args)) | kwargs
    fn = arguments.get("func")
    arguments["func"] = element_function(vm, operator.add if fn is None else fn)
    return itertools.accumulate(**{**arguments, "iterable": vm.iterable(arguments["iterable"])})  # type: ignore[call-overload]


@builtin(itertools.groupby)
def _groupby(vm: VM, args: Args, kwargs: Kwargs) -> object:
    arguments = dict(zip(("iterable", "key"), args)) | kwargs
    key = element_function(
        vm,
        _identity if arguments.get("key") is None else arguments["key"],
        functools.partial(guard_contents, vm),
    )
    return itertools.groupby(vm.iterable(arguments["iterable"]), key)  # type: ignore[call-overload]


def _identity(value: object) -> object:
    return value


@builtin(itertools.starmap)
def _starmap(vm: VM, args: Args, kwargs: Kwargs) -> object:
    fn, values = args
    return itertools.starmap(
        element_function(vm, fn), cast("Iterable[tuple[object, ...]]", VMTuples(vm, vm.get_iter(values)))
    )


def _chained(iterables: VMIterables) -> object:
    return itertools.chain.from_iterable(cast("Iterable[Iterable[object]]", iterables))


@builtin(itertools.chain.from_iterable)
def _chain_from_iterable(vm: VM, args: Args, kwargs: Kwargs) -> object:
    return _chained(VMIterables(vm, vm.get_iter(args[0])))


builtin(itertools.chain)(lambda vm, args, kwargs: _chained(VMIterables(vm, iter(tuple(args)))))


def _iterable_handler(constructor: Callable[..., object]) -> Handler:
    """Handler of an iterator that calls no functions."""

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if constructor in _TAKE_INDICES:
            args = [plain_index(vm, a) for a in args]
            kwargs = {name: plain_index(vm, a) for name, a in kwargs.items()}
        return constructor(*[a if type(a) in LEAF_TYPES else vm.iterable(a) for a in args], **kwargs)

    return handler


_TAKE_INDICES = (itertools.product, itertools.islice, itertools.combinations)


for _constructor in (
    itertools.product, itertools.islice, itertools.zip_longest, itertools.pairwise, itertools.combinations,
    itertools.permutations, itertools.cycle, itertools.count,
):  # fmt: skip
    BUILTINS[_constructor] = _iterable_handler(_constructor)


@builtin(itertools.compress)
def _compress(vm: VM, args: Args, kwargs: Kwargs) -> object:
    arguments = dict(zip(("data", "selectors"), args)) | kwargs
    selectors = map(predicate(vm, None), vm.iterable(arguments["selectors"]))
    return itertools.compress(vm.iterable(arguments["data"]), selectors)


@builtin(itertools.repeat)
def _repeat(vm: VM, args: Args, kwargs: Kwargs) -> object:
    times = {name: plain_index(vm, a) if name == "times" else a for name, a in kwargs.items()}
    return itertools.repeat(*args[:1], *[plain_index(vm, a) for a in args[1:]], **times)  # type: ignore[call-overload]
