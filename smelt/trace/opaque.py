"""A call that a torch-level graph makes as a whole, with the user's own objects among its arguments."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint

from smelt.trace.fake import FakeTensor

Fill = Callable[[tuple[Any, ...]], Any]  # the tensors of a call -> an argument


class OpaqueCall:
    """`call(*tensors)` is `function(*args, **kwargs)` with the fakes in `args` and `kwargs` replaced by the tensors, in
    order. Containers, partial calls, and the functions and cells that `is_fresh` says the program makes are made anew for
    each call; everything else is the object itself. `repeatable`: called later, it does the same.
    """

    def __init__(
        self, function: Callable[..., Any], args: Any, kwargs: Any, is_fresh: Callable[[Any], bool]
    ) -> None:
        self.function = function
        self.repeatable = True
        self.tensors: list[FakeTensor] = []
        name = getattr(function, "__qualname__", type(function).__name__)
        self.__name__ = name.rpartition("<locals>.")[2].replace(".", "_")
        self._is_fresh = is_fresh
        self._args = self._template(tuple(args))
        self._kwargs = self._template(dict(kwargs))

    @property
    def is_checkpoint(self) -> bool:
        """Whether autograd follows what runs inside."""
        return self.function is torch.utils.checkpoint.checkpoint

    def __call__(self, *tensors: Any) -> Any:
        return self.function(*self._args(tensors), **self._kwargs(tensors))

    def _template(self, value: Any) -> Fill:
        kind = type(value)
        if kind is FakeTensor:
            self.tensors.append(value)
            index = len(self.tensors) - 1
            return lambda tensors: tensors[index]
        if kind in (list, tuple):
            items = [self._template(v) for v in value]
            return lambda tensors: kind([fill(tensors) for fill in items])
        if kind is dict:
            pairs = [(k, self._template(v)) for k, v in value.items()]
            return lambda tensors: {k: fill(tensors) for k, fill in pairs}
        if kind is functools.partial:
            return self._partial(value)
        if kind is types.MethodType:
            function, owner = self._template(value.__func__), self._template(value.__self__)
            return lambda tensors: types.MethodType(function(tensors), owner(tensors))
        if kind is types.FunctionType and self._is_fresh(value):
            return self._function(value)
        return lambda tensors: value

    def _partial(self, value: functools.partial[Any]) -> Fill:
        function, args = self._template(value.func), self._template(value.args)
        keywords = self._template(value.keywords)
        return lambda tensors: functools.partial(function(tensors), *args(tensors), **keywords(tensors))

    def _function(self, value: types.FunctionType) -> Fill:
        cells = [self._cell(c) for c in value.__closure__ or ()]
        defaults, keyword = self._template(value.__defaults__), self._template(value.__kwdefaults__)

        def fill(tensors: tuple[Any, ...]) -> Any:
            closure = tuple(fill(tensors) for fill in cells)
            made = types.FunctionType(
                value.__code__, value.__globals__, value.__name__, defaults(tensors), closure
            )
            made.__kwdefaults__ = keyword(tensors)
            made.__qualname__ = value.__qualname__
            return made

        return fill

    def _cell(self, value: types.CellType) -> Fill:
        if not self._is_fresh(value):
            return lambda tensors: value
        contents = self._template(value.cell_contents)
        return lambda tensors: types.CellType(contents(tensors))
