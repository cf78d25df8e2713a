"""Objects that are known by identity and not kept alive."""

from __future__ import annotations

import weakref


class Gone:
    """Stands for an object that lives no more: no other is it."""

    def __repr__(self) -> str:
        return "<gone>"


GONE = Gone()


class Weakly:
    """An object that lives as long as others hold it, or `GONE`. `address`: its id."""

    __slots__ = ("_reference", "address")

    def __init__(self, x: object) -> None:
        self.address = id(x)
        self._reference = weakref.ref(x)

    def __call__(self) -> object:
        found = self._reference()
        return GONE if found is None else found

    def __eq__(self, other: object) -> bool:
        return type(other) is Weakly and self() is other()

    def __hash__(self) -> int:
        return hash(self.address)


def weakly(x: object) -> object:
    """`x`, held weakly if it can be."""
    try:
        return Weakly(x)
    except TypeError:
        return x


def weakly_if_identity(x: object) -> object:
    """`weakly(x)`, if dictionaries find `x` by its identity."""
    return weakly(x) if x is not None and type(x).__hash__ is object.__hash__ else x


def held(x: object) -> object:
    """What `weakly` was given."""
    return x() if type(x) is Weakly else x
