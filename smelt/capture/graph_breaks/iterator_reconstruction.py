"""Iterators that leave capture half consumed: rows for `rebuilding.kinds.KINDS` (generators: `generator_reconstruction.py`).

An iterator of C is made again from what its `__reduce__` says, or from its parts (`itertools_state.py`); one over a
dictionary or a set from that itself, so that what changes there shows in the loop.
"""

from __future__ import annotations

import copy
import gc
import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from typing import Protocol, TypeVar, cast

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY314
from smelt.capture.base.value_kinds import is_constant
from smelt.capture.base.vm_frames import (
    SEQUENCE_ITERATOR,
    VMCallable,
    VMIterables,
    VMIterator,
    VMSequence,
    VMSizedSequence,
    VMTuples,
)
from smelt.capture.graph_breaks.itertools_state import advanced_over, made_again
from smelt.capture.graph_breaks.profitability import has_tensors
from smelt.capture.reconstruction.builtin_containers import list_text
from smelt.capture.reconstruction.frame_globals import provide
from smelt.capture.reconstruction.reconstruction_kind import Expressions, Kind, unsupported
from smelt.capture.reconstruction.reconstruction_table import KINDS
from smelt.guards.iterator_state import advance

_BACKWARDS: type = type(reversed([]))
_KEEPING: tuple[type, ...] = (
    *map(type, map(iter, ([], (), "", "\u0100", b"", range(0), range(1 << 70)))),
    _BACKWARDS,
    type(iter(int, 1)), SEQUENCE_ITERATOR,
    enumerate, zip, map, filter, reversed, itertools.count, itertools.cycle, itertools.repeat, itertools.chain,
    itertools.islice, itertools.accumulate, itertools.starmap, itertools.takewhile, itertools.dropwhile,
    itertools.compress, itertools.filterfalse, itertools.zip_longest, itertools.product, itertools.permutations,
    itertools.combinations, itertools.combinations_with_replacement,
)  # fmt: skip

_Walked = dict[object, object] | set[object] | frozenset[object]
_Reduced = tuple[Callable[..., object], tuple[object, ...], object]  # the last may be left out


def _reduced(x: object) -> _Reduced:
    made = made_again(x)
    if made is not None:
        return made.make, made.arguments, None
    if type(x).__module__ == "itertools" and PY314:
        raise unsupported(x, "and does not tell how far it is")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Pickle, copy, and deepcopy support")  # of itertools, from 3.12 on
        reduced = cast(_Reduced, x.__reduce__())
    return reduced[0], reduced[1], reduced[2] if len(reduced) > 2 else None


def _reduced_parts(x: object) -> list[object]:
    _, arguments, state = _reduced(x)
    return [*arguments, *(state if type(state) is tuple else (state,))]


def _reduced_text(x: object, text: Expressions) -> str:
    made, arguments, state = _reduced(x)
    again = made_again(x)
    if made is iter and type(x) is _BACKWARDS:  # at its end
        return "reversed([])"
    compiles = has_tensors(arguments)
    given = ", ".join(_argument_text(a, text, compiles) for a in arguments)
    call = f"{text.constant(made, made.__name__)}({given})"
    if again is not None and again.taken:
        return f"advanced_over({call}, {again.taken})"
    if state is None:
        return call
    shown = f"({', '.join(map(text, state))},)" if type(state) is tuple else text(state)
    return f"iterator_at({call}, {shown})"


def _argument_text(x: object, text: Expressions, compiles: bool) -> str:
    """What an iterator is made of; a function that it only calls is compiled if that `compiles` anything."""
    if type(x) is VMCallable and compiles:
        return f"{text.given_function()}({text(x.function)})"
    return text(x)


_KEPT = Kind(_reduced_parts, _reduced_text)


def _reversed_text(x: reversed[object], text: Expressions) -> str:
    _, (over,), index = _reduced(x)
    if isinstance(over, VMSequence):
        return f"downwards({text(over)}, {index})"
    return _reduced_text(x, text)


def downwards(over: Sequence[object], index: int) -> Iterator[object]:
    """What is left of `reversed(over)` from `index` on: `reversed` itself would ask for the length again."""
    while index >= 0:
        try:
            element = over[index]
        except (IndexError, StopIteration):
            return
        yield element
        index -= 1


def _ways() -> Iterator[tuple[type, tuple[str, bool]]]:
    for view in ("keys", "values", "items"):
        walk: Collection[object] = getattr({}, view)()
        yield type(iter(walk)), (view, False)
        yield type(reversed(walk)), (view, True)  # type: ignore[call-overload]


_ENTRIES: dict[type, tuple[str, bool]] = dict(_ways())  # the view, and whether it is walked backwards


def _walk(x: object) -> tuple[_Walked | None, list[object]]:
    """The container that an iterator walks over (None at its end), and what is left of that."""
    over = next((o for o in gc.get_referents(x) if isinstance(o, (dict, set, frozenset))), None)
    try:
        return over, list(cast(Iterable[object], _reduced(x)[1][0]))
    except RuntimeError:
        raise unsupported(x, "what it walks over has changed") from None


def _entries_parts(x: object) -> list[object]:
    over, left = _walk(x)
    if over is None:
        return []
    view, backwards = _ENTRIES[type(x)]
    again = entries_from(cast("dict[object, object]", over), view, len(over) - len(left), backwards=backwards)
    if not _is_same(again, left, pairs=view == "items"):
        raise unsupported(x, "what it walks over has changed")
    return [over]


def _is_same(walk: Iterable[object], left: Sequence[object], *, pairs: bool = False) -> bool:
    """Whether `walk` gives the objects in `left`; of pairs, which are made anew, what is in them."""
    found = list(walk)
    if pairs:
        found, left = (
            [part for pair in cast("list[tuple[object, object]]", x) for part in pair] for x in (found, left)
        )
    return len(found) == len(left) and all(a is b for a, b in zip(found, left))


def _entries_text(x: object, text: Expressions) -> str:
    over, left = _walk(x)
    view, backwards = _ENTRIES[type(x)]
    way = ", backwards=True" if backwards else ""
    if over is None:
        return f"entries_from({{}}, {view!r}, 0{way})"
    return f"entries_from({text(over)}, {view!r}, {len(over) - len(left)}{way})"


def entries_from(
    over: dict[object, object], view: str, taken: int, *, backwards: bool = False
) -> Iterator[object]:
    """An iterator over a view of a dictionary, behind so many entries."""
    entries = getattr(dict, view)(over)
    iterator: Iterator[object] = reversed(entries) if backwards else iter(entries)
    advance(iterator, taken)
    return iterator


def _elements_parts(x: object) -> list[object]:
    over, left = _walk(x)
    return [] if over is None else [over, *left]


def _elements_text(x: object, text: Expressions) -> str:
    over, left = _walk(x)
    return "iter(set())" if over is None else f"elements_from({text(over)}, {list_text(left, text)})"


def elements_from(over: Set[object], left: list[object]) -> Iterator[object]:
    """An iterator over a set that has `left` still to give, in this order, which the set may have lost."""
    iterator = iter(over)
    advance(iterator, len(over) - len(left))
    found = list(copy.copy(iterator))
    if len(found) == len(left) and all(map(_is_one, found, left)):
        return iterator
    return iter(left) if isinstance(over, frozenset) else _in_order(over, left)


def _is_one(a: object, b: object) -> bool:
    """Whether they are one object, or constants that are alike, which the source writes anew."""
    return a is b or (type(a) is type(b) and is_constant(a) and a == b)


def _in_order(over: Set[object], left: list[object]) -> Iterator[object]:
    size = len(over)
    for element in left:
        if len(over) != size:
            break
        yield element
    if len(over) != size:
        raise RuntimeError("Set changed size during iteration")


class _Settable(Protocol):
    def __setstate__(self, state: object, /) -> None: ...


_I = TypeVar("_I", bound=_Settable)


def iterator_at(iterator: _I, state: object) -> _I:
    """Sets `iterator` to where it was, and gives it."""
    iterator.__setstate__(state)
    return iterator


KINDS.update(dict.fromkeys(_KEEPING, _KEPT))
KINDS.update(dict.fromkeys(_ENTRIES, Kind(_entries_parts, _entries_text)))
KINDS[reversed] = Kind(_reduced_parts, _reversed_text)
KINDS[type(iter(set()))] = Kind(_elements_parts, _elements_text)
KINDS[VMCallable] = Kind(lambda x: (x.function,), lambda x, text: text(x.function))
_ITERATOR = Kind(lambda x: (x.iterator,), lambda x, text: text(x.iterator))
_SEQUENCE = Kind(lambda x: (x.sequence,), lambda x, text: text(x.sequence))
KINDS.update(dict.fromkeys((VMIterator, VMIterables, VMTuples), _ITERATOR))
KINDS.update(dict.fromkeys((VMSequence, VMSizedSequence), _SEQUENCE))
provide(
    advanced_over=advanced_over,
    downwards=downwards,
    elements_from=elements_from,
    entries_from=entries_from,
    iterator_at=iterator_at,
)
