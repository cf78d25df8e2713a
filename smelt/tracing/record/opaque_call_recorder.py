"""A call that the torch-level graph makes as one node, with the user's objects among its arguments."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint

from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_numbers import NUMBERS

Fill = Callable[[tuple[Any, ...]], Any]  # operands (tensors and numbers of a call) -> an argument


class OpaqueCall:
    """`call(*operands)` is `function(*args, **kwargs)` with the fakes and symbolic numbers in `args` and `kwargs`
    replaced by `operands`, in order. Containers, partial calls, and the functions and cells that the program creates
    (by `is_fresh`) are reconstructed for each call; every other object is passed as it is. `repeatable`: a later call
    does the same."""

    def __init__(
        self, function: Callable[..., Any], args: Any, kwargs: Any, is_fresh: Callable[[Any], bool]
    ) -> None:
        self.function = function
        self.repeatable = True
        self.operands: list[Any] = []
        name = getattr(function, "__qualname__", type(function).__name__)
        self.__name__ = name.rpartition("<locals>.")[2].replace(".", "_")
        self._is_fresh = is_fresh
        self._args = self._template(tuple(args))
        self._kwargs = self._template(dict(kwargs))

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is a checkpoint, so that autograd records what runs inside."""
        return self.function is torch.utils.checkpoint.checkpoint

    def arguments(self, operands: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of `function` for these operands."""
        return self._args(operands), self._kwargs(operands)

    def __call__(self, *operands: Any) -> Any:
        args, kwargs = self.arguments(operands)
        if self.is_checkpoint and callable(kwargs.get("context_fn")):
            kwargs["context_fn"] = functools.partial(_numbered_contexts, kwargs["context_fn"])
        return self.function(*args, **kwargs)

    def _template(self, value: Any) -> Fill:
        kind = type(value)
        if kind is FakeTensor or kind in NUMBERS:
            self.operands.append(value)
            index = len(self.operands) - 1
            return lambda operands: operands[index]
        if kind in (list, tuple, torch.Size):
            items = [self._template(v) for v in value]
            return lambda operands: kind([fill(operands) for fill in items])
        if kind is dict:
            pairs = [(k, self._template(v)) for k, v in value.items()]
            return lambda operands: {k: fill(operands) for k, fill in pairs}
        if kind is functools.partial:
            return self._partial(value)
        if kind is types.MethodType:
            function, owner = self._template(value.__func__), self._template(value.__self__)
            return lambda operands: types.MethodType(function(operands), owner(operands))
        if kind is types.FunctionType and self._is_fresh(value):
            return self._function(value)
        return lambda operands: value

    def _partial(self, value: functools.partial[Any]) -> Fill:
        function, args = self._template(value.func), self._template(value.args)
        keywords = self._template(value.keywords)
        return lambda operands: functools.partial(function(operands), *args(operands), **keywords(operands))

    def _function(self, value: types.FunctionType) -> Fill:
        cells = [self._cell(c) for c in value.__closure__ or ()]
        defaults, keyword = self._template(value.__defaults__), self._template(value.__kwdefaults__)

        def fill(operands: tuple[Any, ...]) -> Any:
            closure = tuple(fill(operands) for fill in cells)
            function_copy = types.FunctionType(
                value.__code__, value.__globals__, value.__name__, defaults(operands), closure
            )
            function_copy.__kwdefaults__ = keyword(operands)
            function_copy.__qualname__ = value.__qualname__
            return function_copy

        return fill

    def _cell(self, value: types.CellType) -> Fill:
        if not self._is_fresh(value):
            return lambda operands: value
        contents = self._template(value.cell_contents)
        return lambda operands: types.CellType(contents(operands))


_checkpoints = itertools.count(1)


def _numbered_contexts(make: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    """The contexts of a checkpoint. Those of torch's selective checkpoint get a number, by which AOTAutograd's partition
    orders the checkpoints of a graph."""
    forward, recomputation = make()
    if getattr(forward, "ac_graph_id", 0) is None:
        forward.ac_graph_id = next(_checkpoints)
    return forward, recomputation
