"""A call that a torch-level graph makes as a whole, with the user's own objects among its arguments."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint

from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_numbers import NUMBERS

Fill = Callable[[tuple[Any, ...]], Any]  # the tensors and numbers of a call -> an argument


class OpaqueCall:
    """`call(*given)` is `function(*args, **kwargs)` with the fakes and symbolic numbers in `args` and `kwargs` replaced by
    what is given, in order. Containers, partial calls, and the functions and cells that `is_fresh` says the program makes
    are made anew for each call; everything else is the object itself. `repeatable`: called later, it does the same.
    """

    def __init__(
        self, function: Callable[..., Any], args: Any, kwargs: Any, is_fresh: Callable[[Any], bool]
    ) -> None:
        self.function = function
        self.repeatable = True
        self.given: list[Any] = []
        name = getattr(function, "__qualname__", type(function).__name__)
        self.__name__ = name.rpartition("<locals>.")[2].replace(".", "_")
        self._is_fresh = is_fresh
        self._args = self._template(tuple(args))
        self._kwargs = self._template(dict(kwargs))

    @property
    def is_checkpoint(self) -> bool:
        """Whether autograd follows what runs inside."""
        return self.function is torch.utils.checkpoint.checkpoint

    def __call__(self, *given: Any) -> Any:
        return self.function(*self._args(given), **self._kwargs(given))

    def _template(self, value: Any) -> Fill:
        kind = type(value)
        if kind is FakeTensor or kind in NUMBERS:
            self.given.append(value)
            index = len(self.given) - 1
            return lambda given: given[index]
        if kind in (list, tuple, torch.Size):
            items = [self._template(v) for v in value]
            return lambda given: kind([fill(given) for fill in items])
        if kind is dict:
            pairs = [(k, self._template(v)) for k, v in value.items()]
            return lambda given: {k: fill(given) for k, fill in pairs}
        if kind is functools.partial:
            return self._partial(value)
        if kind is types.MethodType:
            function, owner = self._template(value.__func__), self._template(value.__self__)
            return lambda given: types.MethodType(function(given), owner(given))
        if kind is types.FunctionType and self._is_fresh(value):
            return self._function(value)
        return lambda given: value

    def _partial(self, value: functools.partial[Any]) -> Fill:
        function, args = self._template(value.func), self._template(value.args)
        keywords = self._template(value.keywords)
        return lambda given: functools.partial(function(given), *args(given), **keywords(given))

    def _function(self, value: types.FunctionType) -> Fill:
        cells = [self._cell(c) for c in value.__closure__ or ()]
        defaults, keyword = self._template(value.__defaults__), self._template(value.__kwdefaults__)

        def fill(given: tuple[Any, ...]) -> Any:
            closure = tuple(fill(given) for fill in cells)
            made = types.FunctionType(
                value.__code__, value.__globals__, value.__name__, defaults(given), closure
            )
            made.__kwdefaults__ = keyword(given)
            made.__qualname__ = value.__qualname__
            return made

        return fill

    def _cell(self, value: types.CellType) -> Fill:
        if not self._is_fresh(value):
            return lambda given: value
        contents = self._template(value.cell_contents)
        return lambda given: types.CellType(contents(given))
