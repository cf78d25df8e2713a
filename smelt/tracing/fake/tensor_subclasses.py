"""Tensor subclasses: a fake represents the data, and remembers the class.

`Tensor.__torch_function__` runs a function and then converts its results to the arguments' subclass. A trace does the
same: fakes returned by such a call are marked with the class, and the compiled frame creates the instances. Objects
with another `__torch_function__` have their handler called instead (`CurrentCall.call_handlers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.reasons import TENSOR_SUBCLASS, Reason
from smelt.torch_private import is_torch_function_enabled
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.fake.plain_tensor_classes import handler_in
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.record.torch_function_handlers import DEFAULT_HANDLER


def converts(cls: type | None) -> bool:
    """Whether results of functions of `cls` tensors become instances of `cls`."""
    return cls is not None and handler_in(cls) is DEFAULT_HANDLER


def class_of_results(func: Any, args: Args, kwargs: Kwargs) -> type | None:
    """The class that the results of `func(*args, **kwargs)` are converted to; None for no conversion. Raises
    Unsupported where that is not certain."""
    classes = {
        t.subclass
        for t in _tensors((*args, *kwargs.values()))
        if t.subclass is not None and converts(t.subclass)
    }
    if not classes or not is_torch_function_enabled():
        return None
    if func in torch.overrides.get_default_nowrap_functions():
        return None
    cls = classes.pop()
    is_index = func in _INDEXING and getattr(args[0], "subclass", None) is not cls
    if classes or is_index or func in torch.overrides.get_ignored_functions():
        raise Unsupported(
            Reason(TENSOR_SUBCLASS, f"{getattr(func, '__name__', func)} of a {cls.__qualname__}")
        )
    return cls


_INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)


def _tensors(values: Any) -> Iterator[FakeTensor]:
    for value in values:
        if type(value) is FakeTensor:
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())


def mark(out: Any, cls: type) -> None:
    """Mark the fakes in the call result `out` as instances of `cls`. Raises Unsupported for a fake that existed before
    the call: eager returns another tensor on its memory."""
    for fake in _tensors((out,)):
        if fake.subclass is None or not issubclass(fake.subclass, cls):
            if fake.torch_node is not None:
                raise Unsupported(Reason(TENSOR_SUBCLASS, f"an existing tensor becomes a {cls.__qualname__}"))
            fake.subclass = cls
