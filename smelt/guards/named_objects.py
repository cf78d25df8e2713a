"""Objects that their module holds by their own name. Such an object lives as long as its module, and has a
name in other processes."""

from __future__ import annotations

import sys

from smelt._native import isinstance


def named(module: object, qualname: object) -> object:
    """The object that a module holds under a qualified name, read without code of the program; None if there is none."""
    try:
        found: object = sys.modules[module]  # type: ignore[index]
        for name in qualname.split("."):  # type: ignore[attr-defined]
            found = vars(found)[name]
    except (AttributeError, KeyError, TypeError):
        return None
    return found


def name_of(x: object) -> tuple[str, str] | None:
    """The module and qualified name under which `x` can be found; None if that is another object."""
    own = type.__getattribute__ if isinstance(x, type) else object.__getattribute__
    try:
        module, qualname = own(x, "__module__"), own(x, "__qualname__")  # type: ignore[arg-type]
    except AttributeError:
        return None
    return (module, qualname) if x is not None and named(module, qualname) is x else None


def stays(x: object) -> bool:
    """Whether `x` is a module, or an object that its module has under its name."""
    return name_of(x) is not None
