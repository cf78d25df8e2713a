"""Expressions over sizes and over Python numbers.

An `Expression` is an operation `op` (a key of `OPERATIONS`) on operands `args`, each an `Expression` or an int; or a *leaf*,
whose only argument is the leaf's key; or a constant. It has two kinds:

* A size: `Size` is an `int` or an `Expr`, an interned polynomial over *atoms* (symbols, floor divisions and modulos).
* A number: an `Apply`, the tree of what a program computes from ints and floats. It has no canonical form, since arithmetic
  on floats is not associative and an operation may raise. One `Table` builds equal expressions once.

Invariants of `Expr`:

* Equal expressions are one object, so `==` is identity and hashing is free.
* A constant is a plain `int`, never an `Expr`.
* Every expression has an inclusive range (`lo`, `hi`), computed from the ranges of its symbols by interval arithmetic;
  `//` and `%` simplify with it. Divisors are positive (as sizes are).
* The symbol of a loop over a symbolic size is `below` that size; `//` and `%` by sizes simplify with that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import gcd, prod
from typing import TYPE_CHECKING, Any

from smelt.errors import NeedsFixedSize
from smelt.shapes.number_operations import OPERATIONS, Number

INFINITE = 1 << 62  # the upper bound of a size without a known one
LIKELY = 512  # the value that heuristics assume for a symbol without a known one
_MAX_DIVISION_STEPS = 8

Monomial = tuple["Expr", ...]  # atoms, sorted by their text; a power repeats its atom
Term = tuple[Monomial, int]


class Expression:
    """`op`: a key of `OPERATIONS`, "leaf" or "const". `args`: the operands, the key of a leaf, or the number of a constant.
    `n_operations` counts the operations of an `Apply`, as often as its text writes them."""

    __slots__ = ()
    n_operations: int = 0

    if TYPE_CHECKING:  # at run time a dataclass would take these for the defaults of its fields

        @property
        def op(self) -> str: ...

        @property
        def args(self) -> tuple[Any, ...]: ...

    def __str__(self) -> str:
        return text(self, str)


@dataclass(frozen=True, eq=False, slots=True)
class Apply(Expression):
    """An operation on numbers, a leaf or a constant. A `Table` builds it."""

    op: str
    args: tuple[Any, ...]
    n_operations: int


class Table:
    """A factory of number expressions, which are interned."""

    def __init__(self) -> None:
        self._known: dict[Any, Expression] = {}

    def leaf(self, key: Any) -> Expression:
        """The number at `key`; keys are compared by identity."""
        return self._interned(("leaf", id(key)), "leaf", (key,), 0)

    def const(self, number: Number) -> Expression:
        """A constant; 1, 1.0 and True differ, and so do 0.0 and -0.0."""
        return self._interned(("const", type(number), repr(number)), "const", (number,), 0)

    def call(self, op: str, *args: Expression) -> Expression:
        """The operation `op` (a key of OPERATIONS) on these operands, of which one has a leaf."""
        return self._interned((op, *map(id, args)), op, args, 1 + sum(a.n_operations for a in args))

    def _interned(self, key: Any, op: str, args: tuple[Any, ...], n_operations: int) -> Expression:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Apply(op, args, n_operations)
        return found


class Expr(Expression):
    """The sum of `terms` (monomial, non-zero coefficient) and `const`. Built by arithmetic on `Sym`s, not directly."""

    __slots__ = ("_syms", "_text", "const", "hi", "lo", "terms")
    terms: tuple[Term, ...]
    const: int
    lo: int
    hi: int
    _syms: frozenset[Sym] | None
    _text: str | None

    def __add__(self, other: Size) -> Size:
        if isinstance(other, int):
            return _make(self.terms, self.const + other) if other else self
        return _memo(_sum, self, other)

    def __radd__(self, other: int) -> Size:
        return _make(self.terms, self.const + other) if other else self

    def __sub__(self, other: Size) -> Size:
        if isinstance(other, int):
            return _make(self.terms, self.const - other) if other else self
        return _memo(_difference, self, other)

    def __rsub__(self, other: int) -> Size:
        return self * -1 + other

    def __neg__(self) -> Size:
        return self * -1

    def __mul__(self, other: Size) -> Size:
        if isinstance(other, int):
            if other == 1:
                return self
            return _memo(_multiple, self, other) if other else 0
        return _memo(_product, self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return self if other == 1 else _memo(_floordiv, self, other)

    def __rfloordiv__(self, other: int) -> Size:
        return _memo(_floordiv, other, self)

    def __mod__(self, other: Size) -> Size:
        return 0 if other == 1 else _memo(_mod, self, other)

    def __rmod__(self, other: int) -> Size:
        return _memo(_mod, other, self)

    @property
    def op(self) -> str:
        """A sum adds its last term to the others, a term multiplies the others with its last factor."""
        return "add" if self.const or len(self.terms) > 1 else "mul"

    @property
    def args(self) -> tuple[Any, ...]:
        """The two operands."""
        *others, (monomial, coefficient) = self.terms
        if others or self.const:
            return _make(tuple(others), self.const), _term(monomial, coefficient)
        if coefficient != 1:
            return coefficient, _term(monomial, 1)
        return _term(monomial[:-1], 1), monomial[-1]

    def __str__(self) -> str:
        if self._text is None:
            self._text = text(self, str)
        return self._text

    __repr__ = __str__

    def __reduce__(self) -> tuple[Callable, tuple]:
        return _rebuild, (self.terms, self.const)

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: object) -> Expr:
        return self


class Atom(Expr):
    """An expression that is one indivisible factor: its only term is itself. `key` orders atoms the same in every run."""

    __slots__ = ("key",)
    key: str

    def _become_atom(self, key: str, lo: int, hi: int) -> None:
        self.terms = (((self,), 1),)
        self.const, self.lo, self.hi, self.key = 0, lo, hi, key
        self._syms = self._text = None


class Sym(Atom):
    """A named integer in [lo, hi], and less than `below`, which costs take for `likely`. Two symbols that are the same in
    all of that are one."""

    __slots__ = ("below", "likely", "name")
    name: str
    below: Expr | None
    likely: int

    def __new__(
        cls, name: str, lo: int = 0, hi: int = INFINITE, below: Expr | None = None, likely: int = LIKELY
    ) -> Sym:
        key = (name, lo, hi, below, likely)
        sym = _SYMS.get(key)
        if sym is None:
            sym = object.__new__(cls)
            sym.name = sym_name = name
            sym.below = below
            sym.likely = likely
            end = "" if below is None else f":{_key(below)}"
            if likely != LIKELY:
                end += f"~{likely}"
            sym._become_atom(f"{sym_name}:{lo}:{hi}{end}", lo, hi)
            sym._syms = frozenset((sym,))
            sym = _SYMS.setdefault(key, sym)
        return sym

    @property
    def op(self) -> str:
        """A leaf."""
        return "leaf"

    @property
    def args(self) -> tuple[Any, ...]:
        """The symbol is its own key."""
        return (self,)

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    def __reduce__(self) -> tuple[Callable, tuple]:
        return Sym, (self.name, self.lo, self.hi, self.below, self.likely)


class Quotient(Atom):
    """`left // right` or `left % right` that does not simplify."""

    __slots__ = ("left", "op", "right")
    left: Size
    op: str
    right: Size

    @property
    def args(self) -> tuple[Any, ...]:
        """The two operands."""
        return self.left, self.right

    @property
    def sign(self) -> str:
        """The operator in Python's syntax."""
        return _SIGNS[self.op]

    def __reduce__(self) -> tuple[Callable, tuple]:
        return _quotient, (self.op, self.left, self.right)


_SIGNS = {"floordiv": "//", "mod": "%"}
Size = int | Expr
Values = Mapping[Sym, int]  # numbers for symbols

_SYMS: dict[tuple[str, int, int, Expr | None, int], Sym] = {}
_QUOTIENTS: dict[tuple[str, Size, Size], Quotient] = {}
_SUMS: dict[tuple[tuple[Term, ...], int], Expr] = {}
# Results of arithmetic. The layers of a model are alike, so that nearly all of it is computed many times.
_MEMO: dict[tuple[Callable, Size, Size], Size] = {}
_SUBSTITUTED: dict[tuple[Size | None, ...], Size] = {}  # an expression, and what its symbols become
_AFFINE: dict[tuple[Expr, Sym], tuple[Size, Size] | None] = {}
_ZERO: Size = 0
# ---- queries


def static(e: Size) -> int:
    """A size that does not depend on symbols, as a number. Raises NeedsFixedSize for one that does."""
    if not isinstance(e, int):
        raise NeedsFixedSize(f"a fixed size is needed, not {e}", free_syms(e))
    return e


def all_static(*sizes: Size) -> tuple[int, ...]:
    """Sizes that do not depend on symbols, as numbers. Raises NeedsFixedSize, for all symbols in them, if any does."""
    symbols = frozenset().union(*map(free_syms, sizes))
    if symbols:
        raise NeedsFixedSize(f"fixed sizes are needed, not {', '.join(map(str, sizes))}", symbols)
    return tuple(map(static, sizes))


def bounds(e: Size) -> tuple[int, int]:
    """The inclusive range of `e`; not always the tightest."""
    return (e, e) if isinstance(e, int) else (e.lo, e.hi)


def likely(e: Size) -> int:
    """What costs and other heuristics may take `e` for: what is likely of each symbol, as far as its range goes."""
    if isinstance(e, int):
        return e
    return evaluate(e, {s: min(max(s.likely, s.lo), s.hi) for s in free_syms(e)})


def proves_le(a: Size, b: Size) -> bool:
    """Whether `a <= b` whatever the symbols are; False also where that is not known."""
    difference = b - a
    if bounds(difference)[0] >= 0 or bounds(_quotients_from_zero(difference))[0] >= 0:
        return True
    return _is_never_negative(_without_quotients(difference))


def is_one(size: Size) -> bool:
    """Whether a size is 1. Raises NeedsFixedSize where that depends on symbols (`s - 1`)."""
    return size == 1 if isinstance(size, int) else bounds(size)[0] < 2 and static(size) == 1


def _is_never_negative(e: Size) -> bool:
    """By the two ends of each loop, between which `e` is a line, and for symbols that begin at 0: terms that cancel, as in
    s*t - s where t >= 1, are then together."""
    if bounds(_from_zero(e))[0] >= 0:
        return True
    for sym in free_syms(e):
        if sym.below is not None and affine(e, sym) is not None:
            return all(_is_never_negative(subs(e, {sym: end})) for end in (0, sym.below - 1))
    return False


def _from_zero(e: Size) -> Size:
    return subs(e, {s: Sym(f"{s.key} - {s.lo}", 0, s.hi - s.lo) + s.lo for s in free_syms(e) if s.lo})


def _quotients_from_zero(e: Size) -> Size:
    """The same for quotients, as in (s//2 - 2) * (t//2 - 2), each as a symbol of its range."""
    if isinstance(e, int):
        return e
    total: Size = e.const
    for monomial, coefficient in e.terms:
        term: Size = coefficient
        for atom in monomial:
            term = term * (Sym(f"{_atom_key(atom)} - {atom.lo}", 0, atom.hi - atom.lo) + atom.lo)
        total = total + term
    return total


def _without_quotients(e: Size) -> Size:
    """A multiple of `e`, or less than that, without quotients by numbers: x - k < k * (x // k) <= x."""
    for monomial, coefficient in () if isinstance(e, int) else e.terms:
        atom = monomial[0]
        if (
            len(monomial) == 1
            and isinstance(atom, Quotient)
            and atom.op == "floordiv"
            and isinstance(atom.right, int)
        ):
            k = atom.right
            least = atom.left - k + 1 if coefficient > 0 else atom.left
            return _without_quotients((e - coefficient * atom) * k + coefficient * least)
    return e


def free_syms(e: Size) -> frozenset[Sym]:
    """The symbols that the value of `e` depends on."""
    if isinstance(e, int):
        return frozenset()
    if e._syms is None:
        if isinstance(e, Quotient):
            e._syms = free_syms(e.left) | free_syms(e.right)
        else:
            e._syms = frozenset().union(*(free_syms(a) for m, _ in e.terms for a in m))
    return e._syms


def subs(e: Size, values: Mapping[Sym, Size]) -> Size:
    """`e` with symbols replaced, all at once, and simplified again."""
    if isinstance(e, int):
        return e
    if isinstance(e, Sym):
        return values.get(e, e)
    syms = free_syms(e)
    if syms.isdisjoint(values):
        return e
    key = (e, *map(values.get, syms))
    found = _SUBSTITUTED.get(key)
    if found is None:
        found = _SUBSTITUTED[key] = _substituted(e, values)
    return found


def _substituted(e: Expr, values: Mapping[Sym, Size]) -> Size:
    if isinstance(e, Quotient):
        left, right = subs(e.left, values), subs(e.right, values)
        return left // right if e.op == "floordiv" else left % right
    total: Size = e.const
    for monomial, coefficient in e.terms:
        term: Size = coefficient
        for atom in monomial:
            term = term * subs(atom, values)
        total = total + term
    return total


def evaluate(e: Size | Expression, values: Mapping[Any, Any]) -> Any:
    """`e` with `values` for its leaves: numbers, or for a size anything with Python's + * // % (integer tensors, arrays).
    Raises what the arithmetic raises."""
    return evaluate_with(e, values.__getitem__)


def evaluate_with(e: Size | Expression, read: Callable[[Any], Any]) -> Any:
    """The same, where `read(key)` returns the value of a leaf."""
    if isinstance(e, int):
        return e
    if isinstance(e, Sym):
        return read(e)
    if isinstance(e, Quotient):
        left, right = evaluate_with(e.left, read), evaluate_with(e.right, read)
        return left // right if e.op == "floordiv" else left % right
    if isinstance(e, Expr):
        return sum((c * prod((evaluate_with(a, read) for a in m)) for m, c in e.terms), e.const)
    if e.op == "leaf":
        return read(e.args[0])
    if e.op == "const":
        return e.args[0]
    return OPERATIONS[e.op].function(*(evaluate_with(a, read) for a in e.args))


def leaves(expression: Expression) -> tuple[Any, ...]:
    """The keys of its leaves, each once, in order of first use."""
    return tuple(dict.fromkeys(_leaves(expression)))


def _leaves(expression: Expression) -> Iterator[Any]:
    if expression.op == "leaf":
        yield expression.args[0]
    elif expression.op != "const":
        for argument in expression.args:
            if not isinstance(argument, int):
                yield from _leaves(argument)


def affine(e: Size, sym: Sym) -> tuple[Size, Size] | None:
    """(stride, rest) such that `e == stride * sym + rest` and neither contains `sym`; None if there are no such."""
    if isinstance(e, int) or sym not in free_syms(e):
        return 0, e
    if e is sym:
        return 1, 0
    key = (e, sym)
    if key not in _AFFINE:
        _AFFINE[key] = _affine(e, sym)
    return _AFFINE[key]


def _affine(e: Expr, sym: Sym) -> tuple[Size, Size] | None:
    stride: Size = 0
    rest: list[Term] = []
    for monomial, coefficient in e.terms:
        power = sum(sym in free_syms(a) for a in monomial)
        if power == 0:
            rest.append((monomial, coefficient))
        elif power > 1 or sym not in monomial:
            return None
        else:
            others = tuple(a for a in monomial if a is not sym)
            stride = stride + _make(((others, coefficient),), 0) if others else stride + coefficient
    return stride, _make(tuple(rest), e.const)


# ---- construction


def loop_sym(name: str, size: Size) -> Sym:
    """The symbol of a loop over range(size)."""
    return Sym(name, 0, size - 1) if isinstance(size, int) else Sym(name, 0, size.hi - 1, size)


def ceil_div(x: Size, y: Size) -> Size:
    """x / y, rounded up."""
    return -(-x // y) if isinstance(x, int) and isinstance(y, int) else (x + (y - 1)) // y


def numel(shape: Iterable[Size]) -> Size:
    """How many elements a tensor of this shape has."""
    total: Size = 1
    for size in shape:
        total = total * size
    return total


def contiguous_stride(shape: Sequence[Size]) -> tuple[Size, ...]:
    """The strides, in elements, of a row-major tensor of this shape."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def extent(shape: Sequence[Size], stride: Sequence[Size]) -> Size:
    """The number of elements of memory from the first to the last of a tensor, both included."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride))


def _make(terms: tuple[Term, ...], const: int) -> Size:
    """The interned expression of canonical `terms` (sorted, no zero coefficient)."""
    if not terms:
        return const
    if const == 0 and len(terms) == 1 and terms[0][1] == 1 and len(terms[0][0]) == 1:
        return terms[0][0][0]
    key = (terms, const)
    e = _SUMS.get(key)
    if e is None:
        e = object.__new__(Expr)
        e.terms, e.const, e._syms, e._text = terms, const, None, None
        e.lo, e.hi = _interval(terms, const)
        if e.lo < 0:
            e.lo = max(e.lo, _lowest(terms, const))
        e = _SUMS.setdefault(key, e)
    return e


def _interval(terms: tuple[Term, ...], const: int) -> tuple[int, int]:
    lo = hi = const
    for monomial, coefficient in terms:
        low = high = coefficient
        for atom in monomial:
            corners = (low * atom.lo, low * atom.hi, high * atom.lo, high * atom.hi)
            low, high = min(corners), max(corners)
        lo, hi = lo + low, hi + high
    return lo, hi


def _from_dict(terms: dict[Monomial, int], const: int) -> Size:
    """Canonical form: zero terms dropped, terms sorted, `c*k*(x//c) + k*(x % c)` joined to `k*x`, and `k*x + k*(-x % c)`,
    what is padded to a multiple, to `c*k*((x + c - 1) // c)`, which without the padding is `k*x` again."""
    items = [(m, c) for m, c in terms.items() if c]
    for monomial, coefficient in items:
        if len(monomial) == 1 and isinstance(monomial[0], Quotient) and monomial[0].op == "mod":
            x, c = monomial[0].left, monomial[0].right
            whole = x // c
            if isinstance(whole, Quotient) and isinstance(c, int) and terms.get((whole,)) == coefficient * c:
                rest = {m: k for m, k in items if m != monomial and m != (whole,)}
                return _from_dict(rest, const) + coefficient * x
            padded = (c - 1 - x) // c if isinstance(c, int) else None
            if isinstance(padded, Quotient) and terms.get((padded,)) == -coefficient * c:
                rest = {m: k for m, k in items if m != monomial and m != (padded,)}
                return _from_dict(rest, const) + coefficient * x
            if isinstance(c, int) and isinstance(x, Expr) and _is_minus(x, coefficient, terms):
                rest = {m: k for m, k in items if m != monomial and all(m != n for n, _ in x.terms)}
                return _from_dict(rest, const + coefficient * x.const) + coefficient * c * ((c - 1 - x) // c)
        for atom in monomial:
            if (
                isinstance(atom, Quotient)
                and atom.op == "mod"
                and (len(monomial) > 1 or isinstance(atom.right, Expr))
            ):
                joined = _joined(terms, monomial, coefficient, atom)
                if joined is not None:
                    return _from_dict(joined[0], const) + joined[1]
    if len(items) > 1:
        items.sort(key=_term_key)
    return _make(tuple(items), const)


def _is_minus(x: Expr, factor: int, terms: dict[Monomial, int]) -> bool:
    """Whether what is negative in `x`, which is all of it but a number, is there with `factor` too, but is positive."""
    return all(c < 0 and terms.get(m) == -c * factor for m, c in x.terms)


def _joined(
    terms: dict[Monomial, int], monomial: Monomial, coefficient: int, atom: Quotient
) -> tuple[dict[Monomial, int], Size] | None:
    """`terms` without `k*(x % c)`, which is `coefficient * monomial`, and without `c*k*(x//c)`; and `k*x`. None if the
    latter is not there. `k` and `c` may have symbols."""
    x, c = atom.left, atom.right
    whole = x // c
    if not isinstance(whole, Quotient):
        return None
    others = list(monomial)
    others.remove(atom)
    k = _make(((tuple(others), coefficient),), 0) if others else coefficient
    partner = whole * k * c
    if isinstance(partner, int) or partner.const or any(terms.get(m) != n for m, n in partner.terms):
        return None
    gone = {monomial, *(m for m, _ in partner.terms)}
    return {m: n for m, n in terms.items() if n and m not in gone}, x * k


def _term_key(term: Term) -> tuple[str, ...]:
    return tuple(a.key for a in term[0])  # type: ignore[attr-defined]


def _atom_key(atom: Expr) -> str:
    return atom.key  # type: ignore[attr-defined]


def _sum(a: Expr, b: Expr) -> Size:
    terms = dict(a.terms)
    for monomial, coefficient in b.terms:
        terms[monomial] = terms.get(monomial, 0) + coefficient
    return _from_dict(terms, a.const + b.const)


def _difference(a: Expr, b: Expr) -> Size:
    return a + b * -1


def _multiple(a: Expr, factor: int) -> Size:
    return _make(tuple([(m, c * factor) for m, c in a.terms]), a.const * factor)


def _product(a: Expr, b: Expr) -> Size:
    terms: dict[Monomial, int] = {}
    for m, c in (*a.terms, ((), a.const)):
        for n, d in (*b.terms, ((), b.const)):
            monomial = tuple(sorted(m + n, key=_atom_key)) if m and n else m + n
            terms[monomial] = terms.get(monomial, 0) + c * d
    const = terms.pop((), 0)
    return _from_dict(terms, const)


def _memo(f: Callable[[Any, Any], Size], a: Size, b: Size) -> Size:
    key = (f, a, b)
    result = _MEMO.get(key)
    if result is None:
        result = _MEMO[key] = f(a, b)
    return result


def _quotient(op: str, left: Size, right: Size) -> Quotient:
    key = (op, left, right)
    atom = _QUOTIENTS.get(key)
    if atom is None:
        atom = object.__new__(Quotient)
        atom.op, atom.left, atom.right = op, left, right
        (lo, hi), (small, big) = bounds(left), bounds(right)
        small = max(small, 1)
        if op == "mod":
            low, high = 0, (min(big - 1, hi) if lo >= 0 else big - 1)
        else:
            low, high = min(lo // small, lo // big), max(hi // small, hi // big)
        atom._become_atom(f"{_key(left)}{_SIGNS[op]}{_key(right)}", low, high)
        atom = _QUOTIENTS.setdefault(key, atom)
    return atom


def _rebuild(terms: tuple[Term, ...], const: int) -> Size:
    return _from_dict(dict(terms), const)


# ---- division


def _floordiv(x: Size, y: Size) -> Size:
    (lo, hi), (small, _) = bounds(x), bounds(y)
    if small > 0 and lo >= 0 and hi < small:
        return 0
    if not isinstance(y, int):
        whole_part, left = _split_terms(x, y)
        if left == 0 or _within(left, y):  # (y*a + b) // y == a  where 0 <= b < y
            return whole_part
        for a, _, _, c in _factored(x, y):  # (g*a + b) // (g*c) == a // c  where 0 <= b < g
            return a // c
        return _quotient("floordiv", x, y)
    assert isinstance(x, Expr), "int // int is Python's"
    whole, rest = _split(x, y)
    if whole:  # (y*a + b) // y == a + b//y
        return _make(tuple((m, c // y) for m, c in whole), x.const // y) + _make(rest, x.const % y) // y
    if lo // y == hi // y:
        return lo // y
    for g in _steps(x, y):  # (g*a + b) // (g*c) == a // c  where 0 <= b < g
        a, b = _split_by(x, g)
        if bounds(b)[0] >= 0 and bounds(b)[1] < g:
            return a // (y // g)
    if not 0 <= x.const < y:
        return _make(x.terms, x.const % y) // y + x.const // y
    atom = _sole_atom(x)
    if isinstance(atom, Quotient) and isinstance(atom.right, int):
        if atom.op == "floordiv":  # (x//a + k) // b == (x + k*a) // (a*b)
            return (atom.left + x.const * atom.right) // (atom.right * y)
        if x.const == 0 and atom.right % y == 0:  # (x % (a*b)) // b == (x//b) % a
            return (atom.left // y) % (atom.right // y)
    return _quotient("floordiv", x, y)


def _mod(x: Size, y: Size) -> Size:
    (lo, hi), (small, _) = bounds(x), bounds(y)
    if small > 0 and lo >= 0 and hi < small:
        return x
    if not isinstance(y, int):
        _, left = _split_terms(x, y)
        if left == 0 or _within(left, y):
            return left
        for a, b, g, c in _factored(x, y):  # (g*a + b) % (g*c) == g*(a % c) + b  where 0 <= b < g
            return a % c * g + b
        return _quotient("mod", x, y)
    assert isinstance(x, Expr), "int % int is Python's"
    whole, rest = _split(x, y)
    if whole or not 0 <= x.const < y:  # (y*a + b) % y == b % y
        return _make(rest, x.const % y) % y
    if lo // y == hi // y:
        return x - lo // y * y
    for g in _steps(x, y):  # (g*a + b) % (g*c) == g*(a % c) + b  where 0 <= b < g
        a, b = _split_by(x, g)
        if bounds(b)[0] >= 0 and bounds(b)[1] < g:
            return a % (y // g) * g + b
    for monomial, coefficient in x.terms:  # (x % (a*b)) % b == x % b
        atom = monomial[0]
        if len(monomial) == 1 and isinstance(atom, Quotient) and atom.op == "mod":
            if isinstance(atom.right, int) and atom.right % y == 0:
                return (x - atom * coefficient + atom.left * coefficient) % y
    return _quotient("mod", x, y)


def _split(x: Expr, y: int) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """The terms of `x` that `y` divides, and the others."""
    whole = tuple(t for t in x.terms if t[1] % y == 0)
    return whole, tuple(t for t in x.terms if t[1] % y) if whole else x.terms


def _steps(x: Expr, y: int) -> list[int]:
    """Divisors of `y` worth factoring out of `x`, largest first."""
    return sorted({g for _, c in x.terms if (g := gcd(c, y)) > 1}, reverse=True)


def _split_by(x: Expr, g: int) -> tuple[Size, Size]:
    """(a, b) with `x == g*a + b`, where `g` divides no coefficient of `b`, and `b`'s constant is below `g`."""
    whole, rest = _split(x, g)
    return _make(tuple((m, c // g) for m, c in whole), x.const // g), _make(rest, x.const % g)


def _split_terms(x: Size, y: Expr) -> tuple[Size, Size]:
    """(a, b) with `x == y*a + b`: what is seen to be a multiple of `y`, and the rest."""
    if x is y:
        return 1, 0
    if isinstance(x, int):
        return 0, x
    if len(y.terms) != 1 or y.const:
        return _split_by_sum(x, y)
    (divisor, factor), whole, rest = y.terms[0], _ZERO, []
    for monomial, coefficient in x.terms:
        left = _without(monomial, divisor)
        if left is None or coefficient % factor:
            rest.append((monomial, coefficient))
        else:
            whole = whole + _term(left, coefficient // factor)
    return (whole, _make(tuple(rest), x.const)) if rest or x.const else (whole, 0)


def _split_by_sum(x: Expr, y: Expr) -> tuple[Size, Size]:
    """The same for `y` of several terms: the multiple that its first term, and with it all of them, is in `x`."""
    exact = _exact_quotient(x, y)
    if exact is not None:
        return exact, 0
    (divisor, factor), total = y.terms[0], _ZERO
    rest: Size = x
    for monomial, coefficient in x.terms:
        left = _without(monomial, divisor)
        if left is None or coefficient % factor or _without(left, divisor) is not None:
            continue
        part = _term(left, coefficient // factor)
        less = rest - part * y
        if len(_terms(less)) <= len(_terms(rest)) - len(y.terms):
            total, rest = total + part, less
    return total, rest


def _exact_quotient(x: Expr, y: Expr) -> Size | None:
    """`x // y` by polynomial long division, where nothing is left: (u + 10) * (u + 3) // (u + 10) == u + 3."""
    divisor, factor = max(y.terms, key=_order)
    total, rest = _ZERO, x
    for _ in range(_MAX_DIVISION_STEPS):
        monomial, coefficient = max(rest.terms, key=_order)
        left = _without(monomial, divisor)
        if left is None or coefficient % factor:
            return None
        part = _term(left, coefficient // factor)
        total, less = total + part, rest - part * y
        if isinstance(less, int):
            return total if less == 0 else None
        rest = less
    return None


def _order(term: Term) -> tuple[int, list[str]]:
    """Orders monomials by degree, then by their atoms: a product of monomials keeps the order."""
    monomial, _ = term
    return len(monomial), [_atom_key(atom) for atom in monomial]


def _factored(x: Size, y: Expr) -> Iterator[tuple[Size, Size, Size, Size]]:
    """(a, b, g, c) with `x == g*a + b`, `y == g*c` and 0 <= b < g, for `y` of one term; the largest `g` first."""
    if len(y.terms) != 1 or y.const or isinstance(x, int):
        return
    atoms, factor = y.terms[0]
    for count in range(len(atoms), -1, -1):
        for chosen in dict.fromkeys(combinations(atoms, count)):
            rest = _without(atoms, chosen)
            assert rest is not None
            for whole in dict.fromkeys((factor, 1)):
                g, c = _term(chosen, whole), _term(rest, factor // whole)
                if g == 1 or c == 1:
                    continue
                a, b = _split_terms(x, g) if isinstance(g, Expr) else _split_by(x, g)
                if a != 0 and (
                    bounds(b)[0] >= 0 and bounds(b)[1] < g if isinstance(g, int) else _within(b, g)
                ):
                    yield a, b, g, c


def _terms(e: Size) -> tuple[Term, ...]:
    return () if isinstance(e, int) else e.terms


def _term(monomial: Monomial, coefficient: int) -> Size:
    return _make(((monomial, coefficient),), 0) if monomial else coefficient


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """The quotient of two products of atoms, if it is one."""
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _within(e: Size, y: Expr) -> bool:
    """Whether 0 <= e < y is known."""
    if bounds(e)[0] < 0:
        return False
    return bounds(y - 1 - highest(e))[0] >= 0


def highest(e: Size) -> Size:
    """An upper bound of `e` over symbols of sizes: loops stand where they end, as far as that is known."""
    if isinstance(e, int):
        return e
    total: Size = e.const
    for monomial, coefficient in e.terms:
        if coefficient < 0 or any(a.lo < 0 for a in monomial):
            total = total + bounds(_term(monomial, coefficient))[1]
            continue
        term: Size = coefficient
        for atom in monomial:
            term = term * _highest_atom(atom)
        total = total + term
    return total


def _lowest(terms: tuple[Term, ...], const: int) -> int:
    """A lower bound of a sum, from what is subtracted where its loops end: 0 of `s - 1 - i`."""
    if not any(_ends(term) for term in terms):
        return _interval(terms, const)[0]
    total: Size = const
    for term in terms:
        monomial, coefficient = term
        total = total + (highest(_term(monomial, -coefficient)) * -1 if _ends(term) else _term(*term))
    return bounds(total)[0]


def _ends(term: Term) -> bool:
    """Whether it subtracts something that is not negative, of which more is known than the number that it may be at most."""
    monomial, coefficient = term
    if coefficient > 0 or any(a.lo < 0 for a in monomial):
        return False
    return bounds(_term(monomial, 1))[1] >= INFINITE - 1 and any(_highest_atom(a) is not a for a in monomial)


def _highest_atom(atom: Expr) -> Size:
    if isinstance(atom, Quotient):
        if atom.op == "mod":
            return atom.right - 1 if isinstance(atom.right, Expr) else atom.hi
        end = highest(atom.left) + 1
        whole, rest = (
            _split_terms(end, atom.right)
            if isinstance(atom.right, Expr)
            else (end // atom.right, end % atom.right)
        )
        return whole - 1 if rest == 0 else atom
    if isinstance(atom, Sym) and atom.below is not None:
        return atom.below - 1
    return atom.hi if atom.lo == 0 and atom.hi < INFINITE - 1 else atom


def _sole_atom(x: Expr) -> Expr | None:
    """The atom `a` when `x` is `a + const`."""
    if len(x.terms) == 1 and x.terms[0][1] == 1 and len(x.terms[0][0]) == 1:
        return x.terms[0][0][0]
    return None


# ---- text and postfix form


def text(e: Size | Expression, leaf: Callable[[Any], str]) -> str:
    """Python source (over `math`); `leaf` returns the text of a leaf."""
    if isinstance(e, int):
        return number_text(e)
    if e.op == "leaf":
        return leaf(e.args[0])
    if e.op == "const":
        return number_text(e.args[0])
    if isinstance(e, Quotient):
        return f"{_operand_text(e.left, leaf)} {e.sign} {_operand_text(e.right, leaf)}"
    if isinstance(e, Expr):
        terms = [_term_text(m, c, leaf) for m, c in e.terms]
        if e.const:
            terms.append(str(e.const))
        return " + ".join(terms).replace("+ -", "- ")
    return OPERATIONS[e.op].text.format(*(text(a, leaf) for a in e.args))


def _term_text(monomial: Monomial, coefficient: int, leaf: Callable[[Any], str]) -> str:
    product = "*".join(f"({text(a, leaf)})" if isinstance(a, Quotient) else text(a, leaf) for a in monomial)
    return product if coefficient == 1 else f"-{product}" if coefficient == -1 else f"{coefficient}*{product}"


def _operand_text(e: Size, leaf: Callable[[Any], str]) -> str:
    return str(e) if isinstance(e, int) else text(e, leaf) if isinstance(e, Sym) else f"({text(e, leaf)})"


def number_text(number: Number) -> str:
    """A literal; a negative one in parentheses, since `-1 ** x` means something else."""
    if type(number) is float and not math.isfinite(number):
        return "math.nan" if number != number else "math.inf" if number > 0 else "(-math.inf)"
    written = repr(number)
    return f"({written})" if written.startswith("-") else written


def postfix(e: Size | Expression, leaf: Callable[[Any], tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
    """Postfix form for the native evaluator: what `leaf` returns, ("const", number), or (function, number of operands, and
    the key of the operation where it is a single function)."""
    if isinstance(e, int):
        return (("const", e),)
    if e.op == "leaf":
        return (leaf(e.args[0]),)
    if e.op == "const":
        return (("const", e.args[0]),)
    operands = [step for a in e.args for step in postfix(a, leaf)]
    operation = OPERATIONS[e.op]
    if not operation.steps:
        return (*operands, (operation.function, len(e.args), e.op))
    first, *others = operation.steps
    return (*operands, (first, len(e.args)), *((function, 1) for function in others))


def _key(e: Size) -> str:
    if isinstance(e, int):
        return str(e)
    if isinstance(e, Atom):
        return f"({e.key})"
    return "(" + "+".join("*".join((str(c), *_term_key((m, c)))) for m, c in e.terms) + f"+{e.const})"
