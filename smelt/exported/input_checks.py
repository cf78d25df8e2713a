"""Checks of a program's arguments: the guards of the captured call that depend on its inputs, as data.

    path  := (kind, key)*      from an argument: ("args", position) or ("kwargs", name), or a tensor of the state: ("state",
                               name); then steps into it
    check := kind, path*, value, text, line

A failed check raises InputError, which names the argument, the dimension, the expected and the observed value. Checks run no
code of the arguments' classes, except to read fields of dataclasses and named tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.errors import InputError
from smelt.shapes.expr import INFINITE, Expr, Size, Sym, evaluate
from smelt.shapes.number_operations import OPERATIONS

Path = tuple[tuple[str, Any], ...]
Values = dict[Sym, int]


@dataclass(frozen=True)
class NumberOf:
    """A number that follows from the arguments: a tree of operations (`computed`) on the numbers at `paths`."""

    tree: Any
    paths: tuple[Path, ...]

    def value(self, read: Callable[[Path], Any]) -> Any:
        """The number."""
        return computed(self.tree, lambda i: read(self.paths[i]))


@dataclass(frozen=True)
class SizeRule:
    """The source of a size symbol's value: the size of dimension `dim` of the tensor at the path `of` (see
    `tracing/symbolic/symbolic_layouts.SizeSource`), or the number `of` itself. `low` and `high` bound the symbol; `name` is
    the name of the Dim, or empty."""

    symbol: Sym
    of: Path | NumberOf
    text: str
    name: str
    dim: int
    divisor: int
    over: int | None
    is_remainder: bool
    low: int
    high: int

    def value(self, read: Callable[[Path], Any]) -> int:
        """The symbol's value. Raises InputError for one out of range."""
        if isinstance(self.of, NumberOf):
            number = self.of.value(read)
        else:
            tensor = read(self.of)
            number = tensor.size(self.dim)
        if self.over is not None:
            number = tensor.stride(self.dim) - tensor.size(self.over) * tensor.stride(self.over)
        value: int = number % self.divisor if self.is_remainder else number // self.divisor
        if not self.low <= value <= self.high:
            named = f", the Dim {self.name!r}," if self.name else ""
            where = self.text if isinstance(self.of, NumberOf) else f"dimension {self.dim} of {self.text}"
            raise InputError(f"{where}{named} must be {self._range()}, got {number}")
        return value

    def _range(self) -> str:
        if self.over is not None or self.is_remainder:
            return f"laid out so that its remainder by {self.divisor} is from {self.low} to {self.high}"
        low, high = self.low * self.divisor, self.high * self.divisor + self.divisor - 1
        return f"at least {low}" if self.high >= INFINITE else f"from {low} to {high}"


@dataclass(frozen=True)
class TensorRule:
    """The metadata of the tensor or nn.Parameter at `path`. A size is a number or an expression; None: any from `least` on,
    and then the stride None is the row-major one. `notes`: what the message says behind an expected size."""

    path: Path
    text: str
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    shape: tuple[Size | None, ...]
    stride: tuple[Size | None, ...]
    least: int
    is_parameter: bool
    notes: tuple[str, ...]

    def check_kind(self, x: object) -> None:
        """Raises InputError unless x is such a tensor, of any size."""
        cls = torch.nn.Parameter if self.is_parameter else torch.Tensor
        if type(x) is not cls:
            hint = ": pass it with .detach()" if type(x) is torch.nn.Parameter else ""
            raise InputError(f"{self.text} must be a {cls.__name__}, got {_kind_text(x)}{hint}")
        assert isinstance(x, torch.Tensor)
        for name, expected in (("dtype", self.dtype), ("device", self.device), ("layout", self.layout)):
            if getattr(x, name) != expected:
                raise InputError(f"{self.text} must have {name} {expected}, got {getattr(x, name)}")
        if x.dim() != len(self.shape):
            raise InputError(
                f"{self.text} must have {len(self.shape)} dimensions, got {x.dim()}: {tuple(x.shape)}"
            )
        if x.is_conj() or x.is_neg():
            raise InputError(
                f"{self.text} has its conjugate or negative bit set: call resolve_conj().resolve_neg()"
            )

    def check_sizes(self, x: torch.Tensor, values: Values) -> None:
        """Raise InputError unless x has the sizes and strides that follow from the values of the symbols."""
        for dim, (expected, found) in enumerate(zip(self.shape, x.shape)):
            number = evaluate(expected, values) if isinstance(expected, Expr) else expected
            if number != found if number is not None else found < self.least:
                size = f"at least {self.least}" if number is None else f"{number}{self.notes[dim]}"
                raise InputError(f"dimension {dim} of {self.text} must be {size}, got {found}")
        if self.layout is not torch.strided:
            return
        inner = 1
        strides = x.stride()
        for dim in reversed(range(len(self.shape))):
            stride = self.stride[dim]
            wanted = inner if stride is None else evaluate(stride, values)
            inner *= max(x.shape[dim], 1)
            if wanted != strides[dim]:
                raise InputError(
                    f"dimension {dim} of {self.text} must have stride {wanted}, got {strides[dim]}: pass a tensor laid out "
                    "as the example's, such as x.contiguous()"
                )


@dataclass(frozen=True)
class Rule:
    """A check of anything but tensor metadata. `text`: the condition, for the error; `line`: the user's line behind it."""

    kind: str
    paths: tuple[Path, ...]
    value: Any
    text: str
    line: str

    @property
    def is_expression(self) -> bool:
        """Whether it is a relation of numbers, checked after all sizes are known."""
        return self.kind == "expression"

    def check(self, read: Callable[[Path], Any]) -> None:
        """Raise InputError unless the check holds."""
        objects = [read(path) for path in self.paths]
        if not _KINDS[self.kind](self.value, *objects):
            where = f" ({self.line})" if self.line else ""
            found = f", got {', '.join(map(_short, objects))}" if self.kind in _SHOWN else ""
            raise InputError(f"{self.text}{found}: the exported program depends on it{where}")


def check(
    rules: Sequence[TensorRule | Rule], sizes: Sequence[SizeRule], read: Callable[[Path], Any]
) -> Values:
    """Check the arguments and return the values of the size symbols. Raises InputError for arguments that break a rule."""
    tensors, conditions = [], []
    for rule in rules:
        if isinstance(rule, TensorRule):
            rule.check_kind(x := read(rule.path))
            tensors.append((rule, x))
        elif rule.is_expression:
            conditions.append(rule)
        else:
            rule.check(read)
    values: Values = {}
    for size in sizes:
        values[size.symbol] = size.value(read)
    for tensor_rule, x in tensors:
        tensor_rule.check_sizes(x, values)
    for condition in conditions:
        condition.check(read)
    return values


class ArgumentReader:
    """Reads objects at paths from the arguments of one call, or the state; each once."""

    def __init__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: Mapping[str, torch.Tensor]
    ) -> None:
        self._seen: dict[Path, Any] = {(): None}
        self._roots: dict[str, Any] = {"args": args, "kwargs": kwargs, "state": state}

    def __call__(self, path: Path) -> Any:
        """The object at `path`. Raises InputError if there is none."""
        found = self._seen.get(path, self)
        if found is self:
            found = self._seen[path] = self._read(path)
        return found

    def _read(self, path: Path) -> Any:
        kind, key = path[-1]
        try:
            if len(path) == 1:
                whole = self._roots[kind]
                return whole if key is None else whole[key]
            return _STEPS[kind](self(path[:-1]), key)
        except (LookupError, AttributeError, TypeError) as error:
            steps = "".join(f"[{k!r}]" for _, k in path[1:])
            raise InputError(f"the arguments have nothing at {path[0][0]}[{path[0][1]!r}]{steps}") from error


_STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "item": lambda base, key: base[key],
    "attr": lambda base, key: base.__dict__[key],
    "member": getattr,
    "dict": lambda base, key: base.__dict__,
    "call": lambda base, key: base(),
    "element": lambda base, key: base.detach().flatten()[key].item(),
}


def class_name(cls: type) -> str:
    """The name by which a program knows a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def same(x: object, value: object) -> bool:
    """Whether two constants have the same type and are equal. NaN equals itself, and -0.0 differs from 0.0."""
    if type(x) is not type(value):
        return False
    if isinstance(x, (float, complex)):
        return repr(x) == repr(value)
    if isinstance(x, (tuple, list)) and isinstance(value, (tuple, list)):
        return len(x) == len(value) and all(map(same, x, value))
    if isinstance(x, dict) and isinstance(value, dict):
        return same(list(x.items()), list(value.items()))
    return bool(x == value)


def computed(tree: Any, read: Callable[[int], Any]) -> Any:
    """The value of a tree of operations; `read(i)` returns the value of leaf i."""
    if not isinstance(tree, tuple):
        return tree
    operation, *operands = tree
    if operation == "leaf":
        return read(operands[0])
    return OPERATIONS[operation].function(*(computed(operand, read) for operand in operands))


def _holds(value: tuple[Any, Any], *numbers: Any) -> bool:
    if any(type(n) not in (int, float, bool) for n in numbers):
        return False
    try:
        found = computed(value[0], numbers.__getitem__)
    except (ArithmeticError, ValueError, TypeError):
        return False
    return type(found).__name__ == value[1] if isinstance(value[1], str) else found is value[1]


def _apart(flags: Sequence[tuple[bool, bool]], *tensors: torch.Tensor) -> bool:
    """Whether no argument shares memory with another tensor of which one is written. `flags`: for each tensor, whether it is
    an argument, and whether it is written."""
    spans = [
        ((at := s.data_ptr()), at + s.nbytes(), written)
        for s, (_, written) in zip((t.untyped_storage() for t in tensors), flags)
    ]
    return not any(
        i != j and (written or other) and low < end and start < high
        for i, (low, high, written) in enumerate(spans)
        if flags[i][0]
        for j, (start, end, other) in enumerate(spans)
    )


_KINDS: dict[str, Callable[..., bool]] = {
    "type": lambda value, x: class_name(type(x)) == value,
    "eq": lambda value, x: same(x, value),
    "number": lambda value, x: type(x).__name__ == value and (value == "float" or -(1 << 63) <= x < 1 << 63),
    "len": lambda value, x: len(x) == value,
    "keys": lambda value, x: same(tuple(x), value),
    "contains": lambda value, x: (value[0] in x) is value[1],
    "not_in_dict": lambda value, x: value not in getattr(x, "__dict__", ()),
    "no_attr": lambda value, x: value not in getattr(x, "__dict__", ()),
    "alias": lambda value, x, y: x is y,
    "distinct": lambda value, *objects: len(set(map(id, objects))) == len(objects),
    "no_overlap": _apart,
    "shared_storage": lambda value, *tensors: len({t.untyped_storage().data_ptr() for t in tensors}) == 1,
    "expression": _holds,
    "fields": lambda value, x: True,  # for C++, which takes the fields in place of an instance
}
_SHOWN = frozenset({"type", "eq", "number", "len", "keys", "expression"})
RULE_KINDS = frozenset(_KINDS)


def _short(x: object) -> str:
    text = _kind_text(x) if isinstance(x, (torch.Tensor, dict, list, tuple)) else repr(x)
    return text if len(text) < 80 else f"{text[:77]}..."


def _kind_text(x: object) -> str:
    if isinstance(x, torch.Tensor):
        return f"a {type(x).__name__} of {tuple(x.shape)}"
    if isinstance(x, dict):
        return f"a {type(x).__name__} with keys {list(x)!r}"
    return f"a {type(x).__name__} of length {len(x)}" if isinstance(x, (list, tuple)) else type(x).__name__
