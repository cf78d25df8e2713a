"""Caches by class."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from smelt.guards.named_objects import stays

T = TypeVar("T")


def cached_by_class(function: Callable[..., T]) -> Callable[..., T]:
    """`functools.cache` for a function whose first argument is a class. Results for classes that the program may drop are
    not cached, so that the cache does not keep them alive."""
    cached: Callable[..., T] = functools.cache(function)

    @functools.wraps(function)
    def wrapper(cls: type, *rest: object) -> T:
        return cached(cls, *rest) if stays(cls) else function(cls, *rest)

    return wrapper
