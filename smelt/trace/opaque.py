"""A call that a torch-level graph makes as a whole, with the user's own objects among its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.trace.fake import FakeTensor


class _Place:
    """Stands for tensor number `index`."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class OpaqueCall:
    """`call(*tensors)` is `function(*args, **kwargs)` with the fakes in `args` and `kwargs` replaced by the tensors, in
    order. Lists, tuples and dictionaries are made anew for each call."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.function = function
        self.tensors: list[FakeTensor] = []
        self.__name__ = getattr(function, "__qualname__", type(function).__name__).replace(".", "_")
        self._args = self._template(tuple(args))
        self._kwargs = self._template(dict(kwargs))

    def _template(self, value: Any) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            self.tensors.append(value)
            return _Place(len(self.tensors) - 1)
        if kind in (list, tuple):
            return kind(map(self._template, value))
        if kind is dict:
            return {k: self._template(v) for k, v in value.items()}
        return value

    def __call__(self, *tensors: Any) -> Any:
        return self.function(*_filled(self._args, tensors), **_filled(self._kwargs, tensors))


def _filled(template: Any, tensors: tuple[Any, ...]) -> Any:
    kind = type(template)
    if kind is _Place:
        return tensors[template.index]
    if kind in (list, tuple):
        return kind([_filled(v, tensors) for v in template])
    if kind is dict:
        return {k: _filled(v, tensors) for k, v in template.items()}
    return template
