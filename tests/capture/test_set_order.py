"""Iteration order of sets, which depends on their history: sets that a program leaves behind have eager's history."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt import _native
from smelt.report import inspect

Given = dict[str, Any]


def re_added(x: torch.Tensor, given: Given) -> torch.Tensor:
    given["seen"].discard(1)
    given["seen"].add(1)
    return x + 1


def read_after_a_change(x: torch.Tensor, given: Given) -> torch.Tensor:
    given["seen"] -= {"b", 2}
    given["seen"] |= {17, 33}
    given["log"].append(list(given["seen"]))
    return x + 1


def operands(x: torch.Tensor, given: Given) -> torch.Tensor:
    seen, other = given["seen"], given["other"]
    seen.update(k for k in (8, 16))
    seen.symmetric_difference_update(other)
    other |= seen
    seen ^= seen
    seen.update({9: 1, 17: 2}, frozenset((1, 2, 33)))
    seen.intersection_update([33, 9, 17])
    return x + 1


def popped(x: torch.Tensor, given: Given) -> torch.Tensor:
    given["log"].append(given["seen"].pop())
    given["seen"].add(40)
    return x + 1


def half_done(x: torch.Tensor, given: Given) -> torch.Tensor:
    try:
        given["seen"].update([17, 33, []])
    except TypeError:
        given["seen"].discard(17)
    with contextlib.suppress(TypeError):
        given["other"].difference_update([9, 17, []])
    with contextlib.suppress(TypeError):
        given["seen"].update({40}, iter((41, {})))
    with contextlib.suppress(KeyError):
        given["seen"].remove("nothing")
    return x + 1


def made_inside(x: torch.Tensor, given: Given) -> torch.Tensor:
    made = {1, 2, 17, 33, "a"}
    made.discard(2)
    copied = given["seen"].copy()
    copied.add(17)
    smelt.graph_break()
    made.update((2, 18))
    given["log"] += [made, copied, frozenset(made), set(given["seen"]), given["seen"] | {33}, {1, 2, 17, 33}]
    return x + 1


def begun_anew(x: torch.Tensor, given: Given) -> torch.Tensor:
    given["seen"].add(17)
    given["seen"].__init__((33, 5))
    given["seen"].add(6)
    return x + 1


def changed_while_walked(x: torch.Tensor, given: Given) -> torch.Tensor:
    walk = iter(given["seen"])
    first = next(walk)
    given["seen"].discard(first)
    given["seen"].add(17)
    given["log"].append(list(walk))
    given["seen"].discard(17)
    given["seen"].add(first)
    return x + 1


def through_breaks(x: torch.Tensor, given: Given) -> torch.Tensor:
    given["seen"].add(17)
    smelt.graph_break()
    given["seen"].discard(1)
    smelt.graph_break()
    given["log"].append({k for k in (33, 1, 17) if k in given["seen"]})
    given["seen"].add(33)
    return x + 1


PROGRAMS = (
    re_added,
    read_after_a_change,
    operands,
    popped,
    half_done,
    begun_anew,
    changed_while_walked,
    made_inside,
    through_breaks,
)


def world() -> Given:
    return {"seen": {1, 2, "a", "b"}, "other": {1, 9, 17, "c"}, "log": []}


def shown(value: Any) -> Any:
    """`value` with sets as ordered lists; a further mutation of each set shows its history."""
    if isinstance(value, set):
        before = list(value)
        value.update((1000, 2000))
        value.discard(1)
        return before, list(value)
    if isinstance(value, frozenset):
        return list(value)
    if isinstance(value, dict):
        return {k: shown(v) for k, v in value.items()}
    return [shown(v) for v in value] if isinstance(value, (list, tuple)) else value


def outcomes(program: Callable[..., torch.Tensor]) -> Iterator[Any]:
    given = world()
    for call in range(4):
        program(torch.ones(2), given)
        yield call, {k: v if k == "log" else list(v) for k, v in given.items()}
    yield shown(given)


def check(program: Callable[..., torch.Tensor]) -> None:
    assert list(outcomes(smelt.compile(program, backend="eager"))) == list(outcomes(program))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_order(program: Callable[..., torch.Tensor]) -> None:
    check(program)


def test_element_removed_and_added_per_call_compiles_once() -> None:
    compiled, given = smelt.compile(re_added, backend="eager"), world()
    for _ in range(20):
        compiled(torch.ones(2), given)
    assert len(inspect.entries(compiled)) == 1


def test_copied_set_with_another_history() -> None:
    def copied(x: torch.Tensor, given: Given) -> torch.Tensor:
        made = given["seen"].copy()
        made.update((17, 33))
        given["log"].append(list(made))
        return x + 1

    compiled, logs = smelt.compile(copied, backend="eager"), []
    for fn in (copied, compiled):
        given = world() | {"seen": {1, 2}}
        fn(torch.ones(2), given)
        for k in range(40, 45):
            given["seen"].add(k)
            given["seen"].discard(k)
        fn(torch.ones(2), given)
        logs.append(given["log"])
    assert logs[0] == logs[1]


def test_mutated_set_of_tensors() -> None:
    def fn(seen: set[object], x: torch.Tensor, y: torch.Tensor) -> tuple[object, ...]:
        found = x in seen, y in seen, sum(t for t in seen), [t is x for t in seen]
        seen.discard(x)
        seen.add(y)
        return *found, x in seen, y in seen, [t * 2 for t in seen]

    results = []
    for call in (fn, smelt.compile(fn, backend="eager")):
        x, y = torch.ones(2), torch.zeros(2)
        seen: set[object] = {x}
        results.append(
            str((call(seen, x, y), call(seen, y, x), call(seen, x, y))) + str([t is y for t in seen])
        )
    assert results[0] == results[1]


@pytest.mark.parametrize("seed", range(40))
def test_tables(seed: int) -> None:
    draw, made = random.Random(seed), set[object]()
    pool = [draw.choice((k, 8 * k, str(k), (k,))) for k in range(draw.choice((5, 20, 200)))]

    def change(x: set[object], by: random.Random) -> None:
        for _ in range(200):
            by.choice((x.add, x.add, x.discard))(by.choice(pool))
            if x and by.random() < 0.1:
                x.pop()

    change(made, draw)
    table = _native.set_table(made)
    again, copied = _native.lay_out(set[object](), tuple(made), table), set[object]()
    _native.copy_set(copied, made)
    assert _native.set_table(again) == _native.set_table(copied) == table
    for x in (made, again, copied):
        change(x, random.Random(seed))
    assert list(again) == list(copied) == list(made)


@pytest.mark.parametrize(
    "items, table",
    [
        ((1,), (7, 0, (2,))),
        ((1, 2), (7, 0, (1,))),
        ((1,), (7, 0, (1, 2))),
        ((1,), (6, 0, (1,))),
        ((), (7, 0, (8,))),
    ],
)
def test_tables_of_other_sequences(
    items: tuple[object, ...], table: tuple[int, int, tuple[int, ...]]
) -> None:
    with pytest.raises(ValueError, match="lay_out"):
        _native.lay_out(set(), items, table)


STATEMENTS = (
    "S.add({a})", "S.discard({a})", "S.update([{a}, {b}])", "S.intersection_update({{{a}, {b}, 1, 2, 'a'}})",
    "S |= {{{a}, {b}}}", "S -= {{{a}}}", "S ^= {{{a}, {b}, 3}}", "S.clear()", "log.append(S.pop()) if S else None",
    "log.append(list(S))", "log.append(S | {{{a}}})", "log.append(frozenset(S))", "T = S.copy(); T.add({a}); log.append(T)",
    "log.append({{k for k in S}})", "smelt.graph_break()", "S = {{*S, {a}}}",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_random_mutations(seed: int) -> None:
    draw = random.Random(seed)
    values = ["'a'", "'b'", "1", "2", "17", "33", "8", "16", "9", "64", "(1, 2)"]
    lines = [
        draw.choice(STATEMENTS).format(a=draw.choice(values), b=draw.choice(values))
        for _ in range(draw.randint(2, 7))
    ]
    start = draw.choice(("S = given['seen']", "S = {1, 2, 17}"))
    body = "\n    ".join((start, "log = given['log']", *lines, "log.append(S)", "return x + 1"))
    scope: Given = {"smelt": smelt}
    exec(f"def program(x, given):\n    {body}\n", scope)
    check(scope["program"])
