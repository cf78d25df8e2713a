"""The iterators of `itertools`: native, over what the machine makes iterable, calling back where they call functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from smelt.capture.base.handlers import BUILTINS, Args, Handler, Kwargs
from smelt.capture.base.values import LEAF_TYPES
from smelt.capture.machine.vm import VM


def _with_callbacks(make: Callable[..., object]) -> Handler:
    """Iterators that call functions."""

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        given = [vm.native_argument(a) if callable(a) else vm.iterable(a) for a in args]
        return make(*given, **{k: vm.native_argument(v) for k, v in kwargs.items()})

    return handler


_make: Callable[..., object]
for _make in (
    itertools.accumulate, itertools.starmap,
    itertools.takewhile, itertools.dropwhile, itertools.filterfalse, itertools.groupby,
):  # fmt: skip
    BUILTINS[_make] = _with_callbacks(_make)


def _over_iterables(make: Callable[..., object]) -> Handler:
    """Iterators that call no functions."""

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        return make(*[a if type(a) in LEAF_TYPES else vm.iterable(a) for a in args], **kwargs)

    return handler


for _make in (
    itertools.chain, itertools.product, itertools.islice, itertools.zip_longest, itertools.pairwise, itertools.combinations,
    itertools.permutations, itertools.cycle, itertools.compress, itertools.count,
):  # fmt: skip
    BUILTINS[_make] = _over_iterables(_make)
BUILTINS[itertools.repeat] = lambda vm, args, kwargs: itertools.repeat(*args, **kwargs)
