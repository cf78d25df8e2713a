"""Sizes as expressions, and variables of programs that are valid for all sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

NAMES = ("p", "q", "r")
# Two sizes are equal if they are at all of these.
PROBES = (
    (11, 13, 17), (29, 23, 19), (30, 30, 30), (0, 0, 0), (1, 1, 1), (2, 2, 2), (0, 1, 2), (1, 2, 0), (2, 0, 1),
    (3, 1, 0), (1, 0, 3), (0, 3, 1), (4, 5, 4), (6, 2, 3),
)  # fmt: skip


@dataclass(frozen=True)
class Dim:
    """A size: an expression of `NAMES`, and what it is at `PROBES`. `factors`: what it is a product of."""

    text: str = field(compare=False)
    values: tuple[int, ...]
    factors: tuple[Dim, ...] = field(default=(), compare=False)

    @property
    def is_number(self) -> bool:
        return len(set(self.values)) == 1

    @property
    def least(self) -> int:
        return min(self.values)


@cache
def dim(text: str, factors: tuple[Dim, ...] = ()) -> Dim:
    """The size that an expression is."""
    values = tuple(int(eval(text, {"max": max, "min": min}, dict(zip(NAMES, probe)))) for probe in PROBES)
    if len(set(values)) == 1:
        text = str(values[0])
    return Dim(text, values, factors)


def of(form: str, *dims: Dim) -> Dim:
    """An expression of sizes: `of("{} + 1", d)`."""
    return dim(form.format(*(d.text if d.text.isalnum() else f"({d.text})" for d in dims)))


def product(*dims: Dim) -> Dim:
    """Their product, which knows its factors."""
    made = of(" * ".join(["{}"] * len(dims)) or "1", *dims)
    return dim(made.text, tuple(f for d in dims for f in (d.factors or (d,))))


@dataclass(frozen=True)
class Value:
    """A variable, or an expression that becomes one."""

    name: str
    dims: tuple[Dim, ...]
    kind: str


def broadcast(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
    """The shape that two broadcast to at all sizes; None where they do not."""
    rank = max(len(a), len(b))
    one = dim("1")
    made = []
    for m, n in zip((one,) * (rank - len(a)) + a, (one,) * (rank - len(b)) + b):
        if m != n and one not in (m, n):
            return None
        made.append(n if m == one else m)
    return tuple(made)
