"""Weak references that compare by identity."""

from __future__ import annotations

import weakref


class Gone:
    """The class of `GONE`, which stands for a destroyed object and is identical to no other."""

    def __repr__(self) -> str:
        return "<gone>"


GONE = Gone()


class WeakIdentity:
    """A weak reference that compares by identity; calling it returns the object, or `GONE`. `address`: the object's id."""

    __slots__ = ("_reference", "address")

    def __init__(self, x: object) -> None:
        self.address = id(x)
        self._reference = weakref.ref(x)

    def __call__(self) -> object:
        found = self._reference()
        return GONE if found is None else found

    def __eq__(self, other: object) -> bool:
        return type(other) is WeakIdentity and self() is other()

    def __hash__(self) -> int:
        return hash(self.address)


def weak(x: object) -> object:
    """A `WeakIdentity` of `x` if its class supports weak references, else `x`."""
    try:
        return WeakIdentity(x)
    except TypeError:
        return x


def weak_if_identity_hashed(x: object) -> object:
    """`weak(x)` if dictionaries find `x` by its identity, else `x`."""
    return weak(x) if x is not None and type(x).__hash__ is object.__hash__ else x


def strong(x: object) -> object:
    """The object that `weak` or `weak_if_identity_hashed` got, or `GONE`."""
    return x() if type(x) is WeakIdentity else x
