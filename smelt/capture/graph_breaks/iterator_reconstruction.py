"""Partly consumed iterators that leave the compiled frame: rows for `RECONSTRUCTION_KINDS`.

An iterator in C is reconstructed from its `__reduce__`, or from its fields (`itertools_state.py`); one over a dictionary or
a set from the container itself, so that the loop observes later changes. Generators: `generator_reconstruction.py`.
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
from smelt.capture.graph_breaks.itertools_state import advanced_past, iterator_recipe
from smelt.capture.graph_breaks.profitability import has_tensors
from smelt.capture.reconstruction.builtin_containers import list_text
from smelt.capture.reconstruction.frame_globals import provide
from smelt.capture.reconstruction.reconstruction_kind import Expressions, ReconstructionKind, unsupported
from smelt.capture.reconstruction.reconstruction_table import RECONSTRUCTION_KINDS
from smelt.guards.iterator_state import advance

_LIST_REVERSED: type = type(reversed([]))
_REDUCIBLE: tuple[type, ...] = (
    *map(type, map(iter, ([], (), "", "\u0100", b"", range(0), range(1 << 70)))),
    _LIST_REVERSED,
    type(iter(int, 1)), SEQUENCE_ITERATOR,
    enumerate, zip, map, filter, reversed, itertools.count, itertools.cycle, itertools.repeat, itertools.chain,
    itertools.islice, itertools.accumulate, itertools.starmap, itertools.takewhile, itertools.dropwhile,
    itertools.compress, itertools.filterfalse, itertools.zip_longest, itertools.product, itertools.permutations,
    itertools.combinations, itertools.combinations_with_replacement,
)  # fmt: skip

_Container = dict[object, object] | set[object] | frozenset[object]
_Reduced = tuple[Callable[..., object], tuple[object, ...], object]  # the state may be missing


def _reduced(x: object) -> _Reduced:
    recipe = iterator_recipe(x)
    if recipe is not None:
        return recipe.make, recipe.arguments, None
    if type(x).__module__ == "itertools" and PY314:
        raise unsupported(x, "and its position is unknown")
    with warnings.catch_warnings():
        # itertools warns from 3.12 on
        warnings.filterwarnings("ignore", "Pickle, copy, and deepcopy support")
        reduced = cast(_Reduced, x.__reduce__())
    return reduced[0], reduced[1], reduced[2] if len(reduced) > 2 else None


_OVER_DICT: dict[object, object] = {}
_COPIED = frozenset(
    (
        *map(type, map(iter, ([], (), range(0), _OVER_DICT, _OVER_DICT.values(), _OVER_DICT.items()))),
        _LIST_REVERSED, enumerate, zip,
    )
)  # fmt: skip


def copied_iterator(x: object, copy: Callable[[object], object]) -> Iterator[object] | None:
    """A copy of an iterator over lists, tuples, ranges and dictionaries (then over a list of the remaining items), whose
    parts `copy` copies; None for another object."""
    if type(x) not in _COPIED:
        return None
    make, arguments, state = _reduced(x)
    copies = [copy(a) for a in arguments]
    if any(a is b and hasattr(type(a), "__next__") for a, b in zip(arguments, copies)):
        return None
    made = make(*copies)
    if state is not None:
        cast(_HasState, made).__setstate__(state)
    return cast("Iterator[object]", made)


class _HasState(Protocol):
    def __setstate__(self, state: object) -> None: ...


def _reduced_needs(x: object) -> list[object]:
    _, arguments, state = _reduced(x)
    return [*arguments, *(state if type(state) is tuple else (state,))]


def _reduced_text(x: object, text: Expressions) -> str:
    make, arguments, state = _reduced(x)
    recipe = iterator_recipe(x)
    if make is iter and type(x) is _LIST_REVERSED:  # at its end
        return "reversed([])"
    compiles = has_tensors(arguments)
    listed = ", ".join(_argument_text(a, text, compiles) for a in arguments)
    call = f"{text.constant(make, make.__name__)}({listed})"
    if recipe is not None and recipe.consumed:
        return f"advanced_past({call}, {recipe.consumed})"
    if state is None:
        return call
    shown = f"({', '.join(map(text, state))},)" if type(state) is tuple else text(state)
    return text.iterator_over(arguments[0] if arguments else None, f"iterator_with_state({call}, {shown})")


def _argument_text(x: object, text: Expressions, compiles: bool) -> str:
    """An argument of an iterator's constructor; `compiles`: a function that the iterator only calls is compiled."""
    if type(x) is VMCallable and compiles:
        return f"{text.callback_compiler()}({text(x.function)})"
    return text(x)


_REDUCED = ReconstructionKind(_reduced_needs, _reduced_text)


def _reversed_text(x: reversed[object], text: Expressions) -> str:
    _, (over,), index = _reduced(x)
    if isinstance(over, VMSequence):
        return f"reversed_from({text(over)}, {index})"
    return _reduced_text(x, text)


def reversed_from(over: Sequence[object], index: int) -> Iterator[object]:
    """The items of `reversed(over)` from `index` on; `reversed` itself would call `__len__` again."""
    while index >= 0:
        try:
            element = over[index]
        except (IndexError, StopIteration):
            return
        yield element
        index -= 1


def _entry_iterators() -> Iterator[tuple[type, tuple[str, bool]]]:
    for view in ("keys", "values", "items"):
        entries: Collection[object] = getattr({}, view)()
        yield type(iter(entries)), (view, False)
        yield type(reversed(entries)), (view, True)  # type: ignore[call-overload]


_ENTRIES: dict[type, tuple[str, bool]] = dict(_entry_iterators())  # type -> (view, whether reversed)


def _iteration(x: object) -> tuple[_Container | None, list[object]]:
    """The container that an iterator iterates over (None at its end), and its remaining items."""
    over = next((o for o in gc.get_referents(x) if isinstance(o, (dict, set, frozenset))), None)
    try:
        return over, list(cast(Iterable[object], _reduced(x)[1][0]))
    except RuntimeError:
        raise unsupported(x, "what it iterates over has changed") from None


def _entries_needs(x: object) -> list[object]:
    over, left = _iteration(x)
    if over is None:
        return []
    view, backwards = _ENTRIES[type(x)]
    copied = entries_from(
        cast("dict[object, object]", over), view, len(over) - len(left), backwards=backwards
    )
    if not _is_same(copied, left, pairs=view == "items"):
        raise unsupported(x, "what it iterates over has changed")
    return [over]


def _is_same(iterator: Iterable[object], left: Sequence[object], *, pairs: bool = False) -> bool:
    """Whether `iterator` produces the objects in `left`. Pairs are new objects: their items are compared."""
    found = list(iterator)
    if pairs:
        found, left = (
            [part for pair in cast("list[tuple[object, object]]", x) for part in pair] for x in (found, left)
        )
    return len(found) == len(left) and all(a is b for a, b in zip(found, left))


def _entries_text(x: object, text: Expressions) -> str:
    over, left = _iteration(x)
    view, backwards = _ENTRIES[type(x)]
    option = ", backwards=True" if backwards else ""
    if over is None:
        return f"entries_from({{}}, {view!r}, 0{option})"
    consumed = len(over) - len(left)
    return text.iterator_over(over, f"entries_from({text(over)}, {view!r}, {consumed}{option})")


def entries_from(
    over: dict[object, object], view: str, consumed: int, *, backwards: bool = False
) -> Iterator[object]:
    """An iterator over a view of a dictionary, past its first `consumed` entries."""
    entries = getattr(dict, view)(over)
    iterator: Iterator[object] = reversed(entries) if backwards else iter(entries)
    advance(iterator, consumed)
    return iterator


def _elements_needs(x: object) -> list[object]:
    over, left = _iteration(x)
    return [] if over is None else [over, *left]


def _elements_text(x: object, text: Expressions) -> str:
    over, left = _iteration(x)
    if over is None:
        return "iter(set())"
    return text.iterator_over(over, f"elements_from({text(over)}, {list_text(left, text)})")


def elements_from(over: Set[object], left: list[object]) -> Iterator[object]:
    """An iterator over a set with the elements `left` remaining, in this order, which the set may have lost."""
    iterator = iter(over)
    advance(iterator, len(over) - len(left))
    found = list(copy.copy(iterator))
    if len(found) == len(left) and all(map(_is_same_element, found, left)):
        return iterator
    return iter(left) if isinstance(over, frozenset) else _in_order(over, left)


def _is_same_element(a: object, b: object) -> bool:
    """Whether they are one object or equal constants, which the source creates again."""
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


def iterator_with_state(iterator: _I, state: object) -> _I:
    """Set the state of `iterator`; return it."""
    iterator.__setstate__(state)
    return iterator


RECONSTRUCTION_KINDS.update(dict.fromkeys(_REDUCIBLE, _REDUCED))
RECONSTRUCTION_KINDS.update(dict.fromkeys(_ENTRIES, ReconstructionKind(_entries_needs, _entries_text)))
RECONSTRUCTION_KINDS[reversed] = ReconstructionKind(_reduced_needs, _reversed_text)
RECONSTRUCTION_KINDS[type(iter(set()))] = ReconstructionKind(_elements_needs, _elements_text)
RECONSTRUCTION_KINDS[VMCallable] = ReconstructionKind(
    lambda x: (x.function,), lambda x, text: text(x.function)
)
_ITERATOR = ReconstructionKind(lambda x: (x.iterator,), lambda x, text: text(x.iterator))
_SEQUENCE = ReconstructionKind(lambda x: (x.sequence,), lambda x, text: text(x.sequence))
RECONSTRUCTION_KINDS.update(dict.fromkeys((VMIterator, VMIterables, VMTuples), _ITERATOR))
RECONSTRUCTION_KINDS.update(dict.fromkeys((VMSequence, VMSizedSequence), _SEQUENCE))
provide(
    advanced_past=advanced_past,
    reversed_from=reversed_from,
    elements_from=elements_from,
    entries_from=entries_from,
    iterator_with_state=iterator_with_state,
)
