"""Equality of leaf constants, as guards compare them: without user code."""

from __future__ import annotations

from smelt._native import isinstance


def same_leaf(x: object, value: object) -> bool:
    """Whether type and value are equal. NaN equals itself, -0.0 differs from 0.0; tuples, slices, ranges and frozensets are
    compared element by element."""
    if type(x) is not type(value):
        return False
    if x is value:
        return True
    if isinstance(x, (float, complex)):
        return repr(x) == repr(value)
    if isinstance(x, tuple) and isinstance(value, tuple):
        return len(x) == len(value) and all(map(same_leaf, x, value))
    if isinstance(x, (slice, range)) and isinstance(value, (slice, range)):
        return same_leaf((x.start, x.stop, x.step), (value.start, value.stop, value.step))
    if isinstance(x, frozenset) and isinstance(value, frozenset):
        return same_leaf(tuple(frozenset.__iter__(x)), tuple(frozenset.__iter__(value)))
    return bool(x == value)
