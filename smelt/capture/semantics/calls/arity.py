"""Arities of builtins. A VM handler runs only for arguments that the builtin accepts.

For other arguments the VM calls the builtin, which raises its own error.
"""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import unsupported


class Arity(NamedTuple):
    """At most `most` positional arguments, at least `least` in total, keywords in `names`; None: any."""

    least: int
    most: int | None
    names: frozenset[str] | None = frozenset()


def _names(*names: str) -> frozenset[str]:
    return frozenset(names)


# Builtins without a signature.
_WITHOUT_SIGNATURE: dict[Any, Arity] = {
    getattr: Arity(2, 3), next: Arity(1, 2), iter: Arity(1, 2),
    __import__: Arity(1, 5, _names("name", "globals", "locals", "fromlist", "level")), vars: Arity(0, 1),
    dir: Arity(0, 1), min: Arity(1, None, _names("key", "default")), max: Arity(1, None, _names("key", "default")),
    zip: Arity(0, None, _names("strict")), map: Arity(2, None), filter: Arity(2, 2),
    enumerate: Arity(1, 2, _names("iterable", "start")), reversed: Arity(1, 1), super: Arity(0, 2),
    dict: Arity(0, 1, None), list: Arity(0, 1), tuple: Arity(0, 1), set: Arity(0, 1), frozenset: Arity(0, 1),
    bool: Arity(0, 1), int: Arity(0, 2, _names("base")), float: Arity(0, 1),
    complex: Arity(0, 2, _names("real", "imag")), str: Arity(0, 3, _names("object", "encoding", "errors")),
    bytes: Arity(0, 3, _names("source", "encoding", "errors")), dict.pop: Arity(2, 3),
    dict.update: Arity(1, 2, None), functools.partial: Arity(1, None, None), functools.reduce: Arity(2, 3),
    memoryview: Arity(1, 1, _names("object")), collections.deque: Arity(0, 2, _names("iterable", "maxlen")),
    collections.Counter: Arity(0, 1, None), collections.defaultdict: Arity(0, 2, None),
    collections.OrderedDict: Arity(0, 1, None), torch.Size: Arity(0, 1), itertools.takewhile: Arity(2, 2),
    itertools.dropwhile: Arity(2, 2), itertools.filterfalse: Arity(2, 2), itertools.starmap: Arity(2, 2),
    itertools.compress: Arity(2, 2, _names("data", "selectors")),
    itertools.accumulate: Arity(1, 2, _names("iterable", "func", "initial")),
    itertools.groupby: Arity(1, 2, _names("iterable", "key")),
}  # fmt: skip


_ARITIES: dict[Any, Arity] = {}


def record_arities(callables: Iterable[Callable[..., object]]) -> None:
    """Record the arity of builtins that have a known signature. Runs when smelt is imported: later, user code may have
    replaced a builtin that `inspect` uses."""
    for fn in callables:
        found = _WITHOUT_SIGNATURE.get(fn) or _signature(fn)
        if found is not None:
            _ARITIES[fn] = found


def _signature(fn: Callable[..., object]) -> Arity | None:
    if isinstance(fn, type):
        return None
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (ValueError, TypeError):
        return None
    kinds = [p.kind for p in parameters]
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = frozenset(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    return Arity(
        sum(p.default is p.empty for p in positional),
        None if inspect.Parameter.VAR_POSITIONAL in kinds else len(positional),
        None if inspect.Parameter.VAR_KEYWORD in kinds else named,
    )


def accepts(fn: object, args: Sequence[object], kwargs: dict[str, object]) -> bool:
    """Whether the builtin `fn` accepts this number of arguments and these keywords."""
    arity = _ARITIES.get(fn)
    if arity is None:
        return True
    least, most, names = arity
    if len(args) + len(kwargs) < least or (most is not None and len(args) > most):
        return False
    return not kwargs or names is None or names.issuperset(kwargs)


def raise_misuse(fn: Callable[..., object], args: Sequence[object], kwargs: dict[str, object]) -> NoReturn:
    """Call the builtin with arguments that it does not accept, so that it raises its own error."""
    fn(*args, **kwargs)
    raise unsupported(f"{getattr(fn, '__name__', fn)} with {len(args)} arguments")
