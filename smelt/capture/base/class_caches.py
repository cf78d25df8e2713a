"""What is computed once for each class."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from smelt.guards.object_lifetimes import stays

T = TypeVar("T")


def cached_by_class(function: Callable[..., T]) -> Callable[..., T]:
    """`functools.cache` of a function whose first argument is a class. One that the program made, which may drop it, is kept
    alive by no cache."""
    cached: Callable[..., T] = functools.cache(function)

    @functools.wraps(function)
    def wrapper(cls: type, *rest: object) -> T:
        return cached(cls, *rest) if stays(cls) else function(cls, *rest)

    return wrapper
