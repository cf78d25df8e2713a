"""Declarations of the sizes that may differ between calls of an exported program (`Dim`), in torch.export's form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch

from smelt.errors import ExportError
from smelt.shapes.expr import INFINITE
from smelt.size_marks import Mark

Key = int | str
Path = tuple[Key, ...]  # from the name of a parameter to a tensor in its argument


class _Hint:
    """The type of `Dim.AUTO` and `Dim.STATIC`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Dim.{self.name}"


class Dim:
    """A size by name and range: `Dim("batch", min=1, max=64)`. Sizes with one name are equal in every call. Without `min`,
    the least size is 2.

    `Dim.AUTO`: any size that the program allows. `Dim.STATIC`: the size of the example. `dynamic_shapes` also accepts
    torch.export's Dims.

    Raises ValueError for a name that is not an identifier, a bound below 0, or a `min` above `max`.
    """

    AUTO = _Hint("AUTO")
    STATIC = _Hint("STATIC")

    def __init__(self, name: str, *, min: int | None = None, max: int | None = None) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"smelt.Dim: name must be an identifier, got {name!r}")
        for bound in (min, max):
            if bound is not None and (type(bound) is not int or bound < 0):
                raise ValueError(f"smelt.Dim: bounds must be ints from 0 on, got {bound!r}")
        if min is not None and max is not None and min > max:
            raise ValueError(f"smelt.Dim: min must be at most max, got {min} and {max}")
        self.name, self.min, self.max = name, min, max

    def __repr__(self) -> str:
        bounds = (f", {k}={v}" for k, v in (("min", self.min), ("max", self.max)) if v is not None)
        return f"Dim({self.name!r}{''.join(bounds)})"


@dataclass(frozen=True)
class Declared:
    """The declaration of one dimension: its Dim, or AUTO (`name` is empty). `of` is the path of the tensor."""

    of: Path
    dim: int
    name: str
    min: int | None = None
    max: int | None = None

    @property
    def mark(self) -> Mark:
        """The size mark by which capture follows the declaration."""
        return Mark(True, self.min, self.max, is_hint=not self.name, name=self.name)


def text_of(path: Path) -> str:
    """A path as an expression: `batch['ids'][0]`."""
    name, *keys = path
    return str(name) + "".join(f"[{key!r}]" for key in keys)


def children(value: object) -> Iterator[tuple[Key, object]]:
    """The members of a container among a program's arguments; none for other objects."""
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((f.name, getattr(value, f.name)) for f in fields(value))


def declarations(arguments: Mapping[str, Any], dynamic_shapes: Any) -> list[tuple[torch.Tensor, Declared]]:
    """The dimensions that `dynamic_shapes` declares dynamic, each with its tensor.

    `dynamic_shapes`: a dict by parameter, or a sequence in the order of `arguments`, nested as these are. For a tensor:
    None, a dict of dimensions, or a sequence with one entry per dimension. An entry is a Dim, AUTO, STATIC, None or the
    size. Raises ExportError if it does not fit the arguments.
    """
    if dynamic_shapes is None:
        return []
    shapes = _by_key(dynamic_shapes, list(arguments), ())
    return [
        found
        for name, of_argument in shapes.items()
        for found in _within((name,), arguments[str(name)], of_argument)
    ]


def _within(path: Path, value: object, shapes: Any) -> Iterator[tuple[torch.Tensor, Declared]]:
    if shapes is None:
        return
    if isinstance(value, torch.Tensor):
        for dim, entry in _by_key(shapes, list(range(value.dim())), path).items():
            declared = _declared(path, int(dim), entry, value.shape[int(dim)])
            if declared is not None:
                yield value, declared
        return
    known = dict(children(value))
    if not known:
        raise ExportError(
            f"dynamic_shapes[{text_of(path)}] must be None: the argument is a {type(value).__name__}"
        )
    for key, of_child in _by_key(shapes, list(known), path).items():
        yield from _within((*path, key), known[key], of_child)


def _by_key(shapes: Any, keys: Sequence[Key], path: Path) -> dict[Key, Any]:
    where = f"dynamic_shapes[{text_of(path)}]" if path else "dynamic_shapes"
    if isinstance(shapes, dict):
        unknown = [key for key in shapes if key not in keys]
        if unknown:
            raise ExportError(f"{where} names {unknown[0]!r}; there are {', '.join(map(repr, keys))}")
        return dict(shapes)
    if not isinstance(shapes, (list, tuple)):
        raise ExportError(f"{where} must be None, a dict or a sequence, got {shapes!r}")
    if len(shapes) > len(keys) or (len(shapes) < len(keys) and path):
        raise ExportError(f"{where} has {len(shapes)} entries, the argument has {len(keys)}")
    return dict(zip(keys, shapes))


def _declared(path: Path, dim: int, entry: Any, size: int) -> Declared | None:
    where = f"dynamic_shapes[{text_of(path)}][{dim}]"
    kind = getattr(getattr(entry, "type", None), "name", None)  # of a hint of torch.export
    if entry is None or entry is Dim.STATIC or kind == "STATIC":
        return None
    if isinstance(entry, int) and not isinstance(entry, bool):
        if entry != size:
            raise ExportError(f"{where} is {entry}, the example has size {size}")
        return None
    if entry is Dim.AUTO or kind in ("AUTO", "DYNAMIC"):
        if size < 2 and kind == "DYNAMIC":
            raise ExportError(f"{where}: the example has size {size}; give one with at least 2")
        return Declared(path, dim, "") if size >= 2 else None
    name = getattr(entry, "__name__", None) or getattr(entry, "name", None)
    if not isinstance(name, str) or not hasattr(entry, "min") or not hasattr(entry, "max"):
        raise ExportError(
            f"{where} must be a Dim, Dim.AUTO, Dim.STATIC, None or {size}, got {entry!r}; "
            "a size that is computed from another one is Dim.AUTO"
        )
    if not isinstance(entry, Dim) and type(entry).__name__ != "Dim":
        raise ExportError(f"{where}: {entry!r} is computed from another Dim: declare Dim.AUTO")
    low, high = entry.min, entry.max
    high = high if isinstance(high, int) and high < 1 << 60 else None
    if size < 2:
        raise ExportError(f"{where} is {name}, the example has size {size}: give one with at least 2")
    if size < (low or 0) or (high is not None and size > high):
        raise ExportError(f"{where} is {entry!r}, the example has size {size}")
    return Declared(path, dim, name, 1 if low == 0 and not isinstance(entry, Dim) else low, high)


def dim_text(d: Declared) -> str:
    """The declaration as Python source."""
    bounds = (f", {k}={v}" for k, v in (("min", d.min), ("max", d.max)) if v is not None)
    return f'Dim("{d.name}"{"".join(bounds)})' if d.name else "Dim.AUTO"


def paste(d: Declared, entry: str) -> str:
    """The argument `dynamic_shapes=...` that declares `entry` for a dimension."""
    text = f"{{{d.dim}: {entry}}}"
    for key in reversed(d.of):
        text = f"{{{key!r}: {text}}}"
    return f"dynamic_shapes={text}"


def range_text(low: int, high: int) -> str:
    """A range of sizes in words."""
    return f"at least {low}" if high >= INFINITE else f"from {low} to {high}"
