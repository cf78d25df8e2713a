"""Iterators of the environment, mostly those of loops that resume after a graph break.

Each row is a function and a factory of its arguments, call by call. Its result or exception, the remaining items of the
iterators among the arguments, and the lists and tensors among them must equal eager's.
"""

from __future__ import annotations

import copy
import itertools
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import smelt
from smelt.guards.iterator_state import PARTS, Part, item_ahead, items_left
from smelt.report.inspect import graph_count, reasons

Make = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Row:
    """`given` makes the arguments behind the tensor."""

    fn: Callable[..., Any]
    given: tuple[Make, ...]


ROWS: dict[str, Row] = {}


def row(*given: Make) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        ROWS[fn.__name__] = Row(fn, given)
        return fn

    return add


layers = [torch.nn.Linear(3, 3) for _ in range(4)]

# ------------------------------------------------------------------------ loops of the function itself, with a break


@row(lambda: ())
def over_a_list(x):
    for layer in layers:
        x = layer(x)
        if x.sum() > 1e9:
            x = -x
    return x


@row(lambda: ())
def over_enumerate(x):
    for i, layer in enumerate(layers):
        x = layer(x) + i
        if x.sum() > 1e9:
            x = -x
    return x


@row(lambda: ())
def over_zip(x):
    for layer, scale in zip(layers, (1, 2, 3, 4), strict=True):
        x = layer(x) * scale
        smelt.graph_break()
    return x


@row(lambda: ())
def over_a_range(x):
    for i in range(4):
        x = x + i
        if x.sum() > 1e9:
            x = -x
    return x


@row(lambda: (torch.nn.ModuleList(layers),))
def over_a_module_list(x, modules):
    for layer in modules:
        x = layer(x)
        if x.sum() > 1e9:
            x = -x
    return x


@row(lambda: ({"a": 1, "b": 2, "c": 3},))
def over_items(x, table):
    for name, value in table.items():
        x = x + value * len(name)
        smelt.graph_break()
    return x


@row(*(lambda d=d: ({"b": 2, "c": 4, **d},) for d in ({}, {"a": 1}, {"a": 1, "z": 9})))
def over_a_table_whose_values_change(x, table):
    for name, value in table.items():
        x = x * 2 + value
        smelt.graph_break()
        if "a" in table:
            table["a"] = 100
            table["z" if "z" in table else "c"] = len(name) + 7
    return x, table


@row(*(lambda d=d: ({"b": 2, "c": 4, **d},) for d in ({}, {"a": 1})))
def over_a_table_that_grows(x, table):
    for name in table:
        x = x + table[name]
        smelt.graph_break()
        if name == "a":
            table["z"] = 7
        elif name == "c" and len(table) == 2:
            del table["c"]
    return x, table


@row(lambda: ({"b": 2, "c": 4, "d": 5},), lambda: ({"b": 2, "c": 4},))
def over_a_table_whose_keys_change(x, table):
    for value in table.values():
        x = x * 2 + value
        smelt.graph_break()
        if value == 4:
            del table["b"]
            table["e"] = 7
            if x.sum() > 1e9:
                x = -x
    return x, table


@row(*(lambda d=d: ({"b": 2, "c": 4, **d},) for d in ({}, {"a": 1}, {"a": 1, "z": 9})))
def over_a_table_backwards(x, table):
    for name, value in reversed(table.items()):
        x = x * 2 + value
        smelt.graph_break()
        table["b"] += 100
        if name == "a":
            table["y"] = 7
    return x, list(reversed(table)), table


@row(lambda: ({1, 2, 3, 17},), lambda: ({5},), lambda: (set(),))
def over_a_set_that_grows(x, numbers):
    for i, number in enumerate(numbers):
        x = x + number
        smelt.graph_break()
        if i == 1:
            numbers.add(99)
    return x, numbers


@row(lambda: (1,), lambda: (7,), lambda: (200,))
def over_a_set_in_another_order(x, number):
    numbers = set(range(100))
    numbers -= set(range(2, 64)) | set(range(65, 100))
    iterator = iter(numbers)
    first = next(iterator)
    smelt.graph_break()
    numbers.add(number)
    return first, next(iterator) * x


@row(
    lambda: (iter({"a": 1, "b": 2}.items()), iter({1: 5, 2: 6})),
    lambda: (iter({"a": 1}.items()), iter({1: 5, 2: 6})),
    lambda: (iter({}.items()), iter({})),
)
def entries_from_outside(x, pairs, keys):
    for (name, value), key in zip(pairs, keys):
        x = x * 2 + value * key + len(name)
    return x


@row(lambda: ("abc",), lambda: ("ä\u0100\U0001f600z",), lambda: ("",))
def over_text(x, text):
    seen = ""
    for letter in text:
        x = x * 2 + len(seen)
        smelt.graph_break()
        seen = letter + seen
    return x, seen


@row(lambda: ([1, 2, 3],), lambda: ([2, 4, 2, 7],), lambda: ([],))
def backwards_over_a_list_that_shrinks(x, values):
    for n in reversed(values):
        x = x * 2 + n
        smelt.graph_break()
        if n == 2:
            values.pop()
    return x, values


@row(lambda: ([1, 2],), lambda: ([4, 2],))
def while_the_list_grows(x, left):
    for n in left:
        x = x + n
        smelt.graph_break()
        if n < 5:
            left.append(n + 2)
    return x, left


@row(lambda: ([1, 2, 3, 4],), lambda: ([2, 1, 7],))
def while_items_are_removed(x, values):
    for n in values:
        x = x + n
        smelt.graph_break()
        values.remove(n)
    return x, values


@row(lambda: ([[1, 2], [3, 4], [5]],), lambda: ([(1,), range(5), [4]],))
def nested_and_continued(x, lists):
    for i, values in enumerate(lists):
        for j, n in enumerate(values, 1):
            if n == 4:
                continue
            x = x * j + n + i
            if x.sum() > 1e7:
                x = -x
        else:
            x = x + 1
    return x


@row(lambda: (range(3),), lambda: (range(1, 3),))
def numbers_as_keys_and_sizes(x, numbers):
    table = {0: 10, 1: 11, 2: 12}
    for n in numbers:
        x = x + table[n] + [4, 5, 6][n]
        smelt.graph_break()
        x = x.reshape(1, -1).expand(n + 1, 3).sum(0)
    return x


@row(lambda: ())
def over_functions_made_inside(x):
    for f in [lambda v, k=k: v * k for k in range(4)]:
        x = f(x)
        smelt.graph_break()
    return x


@row(lambda: ())
def a_table_that_a_comprehension_fills(x):
    return {i: (x * i).sum().item() for i in range(6)}


# --------------------------------------------------------------------------------------- one iterator in two places


@row(lambda: (iter([1, 2, 3, 4, 5]),))
def advanced_in_the_loop_too(x, numbers):
    for i in numbers:
        x = x + i
        smelt.graph_break()
        x = x * next(numbers, 7)
    return x, list(numbers)


@row(lambda: (iter([1, 2, 3, 4, 5, 6]),))
def advanced_through_another(x, numbers):
    for i, n in enumerate(numbers):
        x = x + i * n
        smelt.graph_break()
        x = x * next(numbers, 7)
    return x, list(numbers)


@row(lambda: (iter([1, 2, 3, 4, 5]),), lambda: (iter([1, 2, 3, 4]),))
def zipped_with_itself(x, numbers):
    for a, b in zip(numbers, numbers):
        x = x * a + b
        smelt.graph_break()
    return x


def _twice(*values: int) -> tuple[Iterator[int], Iterator[int]]:
    one = iter(values)
    return one, one


@row(lambda: (iter([1, 2]), iter([3, 4])), lambda: _twice(1, 2, 3, 4), lambda: (iter([1, 2]), iter([3])))
def two_that_may_be_one(x, a, b):
    for n in a:
        x = x * 2 + n + next(b, 50)
    return x


def _counted(*values: int) -> tuple[Iterator[Any], Iterator[int]]:
    one = iter(list(values))
    return enumerate(one, 3), one


@row(
    lambda: (enumerate([1, 2, 3, 4, 5], 3), iter([1, 2, 3, 4, 5])),
    lambda: _counted(1, 2, 3, 4, 5),
    lambda: (enumerate([1, 2, 3, 4, 5], 3), iter([1, 2, 3, 4, 5])),
)
def one_that_may_be_inside_of_the_other(x, pairs, numbers):
    for i, n in pairs:
        x = x * 2 + n * i + next(numbers, 50)
    return x


@row(lambda: _counted(1, 2), lambda: _counted(1, 2), lambda: (enumerate([1]), iter([4])))
def the_outer_meets_the_end_that_the_inner_left(x, pairs, numbers):
    x = x + next(pairs)[1] + next(numbers)
    try:
        next(pairs)
    except StopIteration:
        x = x * 3
    return x


@row(lambda: (iter([1, 2, 3, 4]),), lambda: (iter([4, 5, 6]),))
def two_names(x, numbers):
    same, box = numbers, [numbers]
    x = x + next(numbers) * next(same)
    smelt.graph_break()
    return x + next(box[0]) - next(same, 7), box[0] is numbers


# ------------------------------------------------------------------------------------------- a list that is changed


def _walked(*values: int) -> tuple[Iterator[int], list[int]]:
    over = list(values)
    return iter(over), over


def _finished(*values: int) -> tuple[Iterator[int], list[int]]:
    numbers, over = _walked(*values)
    list(numbers)
    return numbers, over


@row(
    lambda: (iter([1, 2]), [1, 2]),
    lambda: _walked(1, 2),
    lambda: _walked(),
    lambda: _finished(1),
    lambda: (iter([1, 2]), [1, 2]),
)
def a_list_that_changes_before(x, numbers, values):
    values.append(5)
    for n in numbers:
        x = x * 2 + n
    return x


@row(lambda: _walked(1, 2), lambda: (iter([1, 2]), [1, 2]), lambda: _walked(1, 2))
def a_list_that_changes_afterwards(x, numbers, values):
    for n in numbers:
        x = x * 2 + n
    values.append(5)
    return x + len(values)


@row(lambda: (iter([1]), [1]), lambda: _walked(1), lambda: (iter([1, 8]), [1]))
def a_list_that_grows_at_its_end(x, numbers, values):
    x = x + next(numbers)
    values.append(5)
    return x + next(numbers, 100)


# ------------------------------------------------------------------------------------------------ what is left over


@row(lambda: (iter([1, 2, 3]),), lambda: (iter([4, 5]),), lambda: (iter([]),))
def one_item(x, numbers):
    return x + next(numbers)


@row(*(lambda v=v: (iter(v),) for v in ([1, 2, 3], [2, 5], [7], (1, 2, 9))))
def a_loop_that_is_left(x, numbers):
    for n in numbers:
        x = x + n
        if n == 2:
            break
    return x


def _zipped(a: list[int], b: list[int], strict: bool = False) -> tuple[Any, ...]:
    one, two = iter(a), iter(b)
    return zip(one, two, strict=strict), one, two


@row(
    lambda: _zipped([1, 2], [3, 4, 5]),
    lambda: _zipped([1, 2, 3], [3, 4]),
    lambda: _zipped([1, 2], [3, 4]),
    lambda: _zipped([1, 2], [3, 4], True),
    lambda: _zipped([1, 2, 3], [3, 4], True),
    lambda: _zipped([1, 2], [3, 4, 5], True),
)
def uneven(x, pairs, _a, _b):
    for a, b in pairs:
        x = x * a + b
    return x


@row(*(lambda v=v: (iter(v),) for v in ([1, 2, 3, 4, 5], range(3), [])))
def collected(x, numbers):
    return x + sum(numbers), list(numbers)


@row(*(lambda v=v: (iter(v),) for v in ([1, 2], [1, 2, 3, 4], [1], range(2))))
def unpacked(x, numbers):
    a, b = numbers
    return x * a + b


@row(*(lambda v=v: (iter(v),) for v in ([1, 2], [1, 2, 3, 4], [])))
def unpacked_with_a_star(x, numbers):
    a, *b = numbers
    return x * a, b, [*numbers]


@row(*(lambda v=v: (iter(v),) for v in ([1, 2, 3], [1, 5], [2])))
def asked_for_an_item(x, numbers):
    return (x + 1 if 2 in numbers else x - 1), next(numbers, None)


@row(*(lambda v=v: (iter(v),) for v in ([1, 2, 3], [1, 5], range(4))))
def asked_for_its_length(x, numbers):
    before = operator.length_hint(numbers)
    next(numbers)
    return x * before, operator.length_hint(numbers)


@row(*(lambda v=v: (iter(v),) for v in ([1, 2, 3], [3, 5, 7], range(4))))
def advanced_by_its_method(x, numbers):
    return x + numbers.__next__() * next(numbers) - numbers.__next__()


@row(*(lambda v=v: (iter(v),) for v in ([1, 2, 3], [3, 5, 7], range(4))))
def copied_on_the_way(x, numbers):
    next(numbers)
    return x + next(copy.copy(numbers)), next(numbers)


@row(lambda: (iter([1, 2, 3, 4]),), lambda: (iter([3, 5, 7]),))
def sliced(x, numbers):
    return x, list(itertools.islice(numbers, 2)), next(numbers)


@row(lambda: (iter([1, 2, 3, 4]),), lambda: (iter([3, 5, 7]),))
def in_a_generator_expression(x, numbers):
    products = (x * n for n in numbers)
    first = next(products)
    smelt.graph_break()
    return first, next(numbers), next(products)


@row(lambda: (iter([1, 2, 3]),), lambda: (enumerate("abc"),), lambda: (zip([1, 2], "ab"),))
def returned(x, items):
    next(items)
    return x, items


@row(
    *(
        lambda v=v: (iter(v),)
        for v in (range(3, 9, 2), range(10, 0, -3), range(0), range(1 << 65, 3 + (1 << 65)))
    )
)
def ranges(x, numbers):
    for n in numbers:
        x = x + n
        if n > 5:
            break
        smelt.graph_break()
    return x, next(numbers, "none")


@row(
    lambda: (enumerate([1, 2], sys.maxsize - 1),),
    lambda: (enumerate([1, 2], 1 << 70),),
    lambda: (enumerate([1, 2], -1),),
)
def large_counts(x, pairs):
    for i, n in pairs:
        x = x + n
        last = i
    return x, last


@row(lambda: (iter(range(5)),), lambda: (iter(range(3, 7)),), lambda: (enumerate("abc"),))
def shown(x, numbers):
    return x, f"{next(numbers)}-{next(numbers)}"


@row(lambda: (iter([1] * 1500),), lambda: (iter([1] * 3),))
def long(x, numbers):
    for n in numbers:
        x = x + n
    return x


class _Odd(list[int]):
    def __getitem__(self, i: Any) -> Any:
        raise AssertionError

    def __len__(self) -> int:
        return 1


@row(lambda: (iter(_Odd([1, 2, 3])),), lambda: (iter([1, 2]),))
def of_a_class_of_the_users(x, numbers):
    for n in numbers:
        x = x * 2 + n
    return x


# -------------------------------------------------------------------------------- those that cannot be looked into


@row(
    lambda: (map(operator.neg, [1, 2, 3]),),
    lambda: (filter(None, [0, 4, 5]),),
    lambda: ((n for n in (4, 5)),),
    lambda: (itertools.chain([1], [2]),),
)
def opaque(x, numbers):
    for n in numbers:
        x = x + n
        smelt.graph_break()
    return x


@row(
    lambda: (enumerate(n for n in (4, 5)),),
    lambda: (zip([1, 2, 3], (n for n in (4, 5))),),
    lambda: (zip(),),
)
def opaque_inside(x, pairs):
    for i, n in pairs:
        x = x + n * i
        smelt.graph_break()
    return x


# ----------------------------------------------------------------------------------------------- tensors and errors


def _tensors() -> tuple[Any, ...]:
    values = [torch.arange(3.0) * k for k in range(3)]
    return iter(values), values


@row(_tensors, _tensors)
def tensors_that_are_written(x, items, _values):
    for t in items:
        t.add_(1)
        x = x + t
        smelt.graph_break()
    return x


def _one_tensor() -> tuple[Any, ...]:
    values = [torch.ones(3)] * 2
    return iter(values), values


@row(_tensors, _one_tensor, _tensors)
def tensors_that_may_be_one(x, items, _values):
    a, b = next(items), next(items)
    a.add_(1)
    return a * b + x


@row(lambda: (iter([1, 2, 4, 5]),), lambda: (iter([1, 2, 3, 9]),), lambda: (iter([1]),))
def an_error_behind_a_break(x, numbers):
    x = x + next(numbers)
    smelt.graph_break()
    x = x + next(numbers)
    if next(numbers) == 3:
        raise ValueError("three")
    return x


@row(lambda: (iter([1, 2, 4, 5]),), lambda: (iter([1, 0, 3, 9]),), lambda: (iter(range(3)),))
def an_error_of_the_graph(x, numbers):
    x = x + next(numbers)
    y = torch.linalg.inv(torch.zeros(2, 2) + next(numbers) * torch.eye(2))
    next(numbers)
    return x + y.sum()


@row(lambda: (iter([1, 2, 4, 5]),), lambda: (iter([1, 0, 3, 9]),))
def an_error_at_a_break(x, numbers):
    x = x + next(numbers)
    try:
        v = int("q" * int(x.sum().item()))
    except ValueError:
        v = next(numbers)
    return x + v


# -------------------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [_plain(v) for v in list.__iter__([*value])]
    if hasattr(value, "__next__"):
        return type(value).__name__, [_plain(v) for v in itertools.islice(_left(value), 10)]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _left(iterator: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from iterator
    except Exception as error:
        yield repr(error)


def _observed(fn: Callable[..., Any], given: Make) -> Any:
    arguments = given()
    try:
        result = _plain(fn(torch.arange(3.0), *arguments))
    except Exception as error:
        result = type(error), str(error)
    return result, [_plain(v) for v in arguments if not isinstance(v, torch.nn.Module)]


@pytest.mark.parametrize("name", ROWS)
def test_equals_eager(name: str) -> None:
    fn, given = ROWS[name].fn, ROWS[name].given
    compiled = smelt.compile(fn, backend="eager")
    for make in given * 2:
        assert _observed(compiled, make) == _observed(fn, make)
    assert "internal-error" not in {reason.kind.id for reason in reasons(compiled)}


_CAUSES = {"data-dependent-condition", "graph-break-requested"}


@pytest.mark.parametrize(
    "name", ["over_a_list", "over_enumerate", "over_zip", "over_a_range", "over_a_module_list", "over_items"]
)
def test_a_resumed_loop_does_not_break_again(name: str) -> None:
    compiled = smelt.compile(ROWS[name].fn, backend="eager")
    for make in ROWS[name].given * 2:
        compiled(torch.ones(3), *make())
    assert {reason.kind.id for reason in reasons(compiled)} <= _CAUSES
    assert graph_count(compiled) <= 4


def test_the_paths_through_a_loop_have_a_bounded_number_of_graphs() -> None:
    def fn(x: torch.Tensor, steps: list[int]) -> torch.Tensor:
        for step in steps:
            x = x.reshape(1, -1).expand(step, 3).sum(0)
            smelt.graph_break()
            x = x.reshape(1, -1).expand(step, 3).sum(0)
        return x

    compiled = smelt.compile(fn, backend="eager")
    for steps in itertools.product(range(1, 5), repeat=3):
        assert torch.equal(compiled(torch.ones(3), list(steps)), fn(torch.ones(3), list(steps)))
    assert {reason.kind.id for reason in reasons(compiled)} <= {
        *_CAUSES,
        "unsupported-object",
        "changing-value",
        "recompile-limit",
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: iter([1, 2, 3]),
        lambda: reversed([1, 2, 3]),
        lambda: iter((1, 2, 3)),
        lambda: iter(range(3, 9, 2)),
        lambda: iter("abc"),
        lambda: iter({1: 2, 3: 4, 5: 6}),
        lambda: iter({1: 2, 3: 4, 5: 6}.values()),
        lambda: iter({1: 2, 3: 4, 5: 6}.items()),
        lambda: iter("a\u0100c"),
    ],
)
def test_reading_ahead_does_not_advance_the_iterator(make: Callable[[], Iterator[Any]]) -> None:
    items = list(make())
    for taken in range(4):
        iterator = make()
        list(itertools.islice(iterator, taken))
        assert [item_ahead(iterator, i) for i in range(items_left(iterator))] == items[taken:]
        assert list(iterator) == items[taken:]
        assert items_left(iterator) == 0


@pytest.mark.parametrize("part", PARTS)
def test_other_objects_have_no_iterator_parts(part: Part) -> None:
    for other in (object(), iter(set()), (n for n in ()), itertools.count(), map(int, ())):
        with pytest.raises((TypeError, ValueError)):
            PARTS[part](other)
