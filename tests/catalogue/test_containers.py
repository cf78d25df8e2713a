"""Containers from outside that hold tensors, and containers inside them: they stay the objects, and the classes, that they are.

What hands elements on (`list(rows)`, `a, b = rows`, `{**options}`, `zip`, ...) hands on the containers themselves, so that
a change of one is a change of the user's; what compares them sees all that they hold.
"""

from __future__ import annotations

import collections
import copy
import enum
import functools
import heapq
import itertools
import operator

import pytest
import torch
from torch import nn

import smelt
from tests.harness.catalogue import call, for_each_control_flow, program, tensor

HANDED_ON = {
    "list": list,
    "tuple": tuple,
    "copy": copy.copy,
    "method copy": lambda rows: rows.copy(),
    "slice": lambda rows: rows[:],
    "add": lambda rows: rows + [1],
    "multiply": lambda rows: rows * 2,
    "star": lambda rows: [*rows],
    "unpacking": lambda rows: [first := rows[0], *(row for row in rows[1:])],
    "starred target": lambda rows: (lambda first, *others: [first, *others])(*rows),
    "reversed": lambda rows: list(reversed(rows))[::-1],
    "zip": lambda rows: [row for row, _ in zip(rows, range(9))],
    "enumerate": lambda rows: [row for _, row in enumerate(rows)],
    "map": lambda rows: list(map(lambda row: row, rows)),
    "chain": lambda rows: list(itertools.chain(rows, [2])),
    "starmap": lambda rows: list(itertools.starmap(lambda row: row, [[row] for row in rows])),
    "deque": collections.deque,
    "dictionary": lambda rows: {**dict(enumerate(rows))},
    "partial": lambda rows: functools.partial(lambda *given: given, *rows)(),
    "iterator": lambda rows: [next(given) for given in [iter(rows)] for _ in range(3)],
}


@pytest.mark.parametrize("how", HANDED_ON)
@program(graphs=1)
def a_container_that_is_handed_on_is_itself(how):
    hand_on = HANDED_ON[how]

    def fn(x, rows):
        given = hand_on(rows)
        given[0].append(5)
        given[1]["new"] = 3
        given[2][1].append(x * 2)
        return x * 2, len(rows[0]), given, given[0] is rows[0]

    return fn, [(tensor(3), [[tensor(3), 1], {"a": tensor(3)}, (tensor(3), [tensor(3)])]) for _ in range(3)]


@program(graphs=1, later=1)
def rows_are_ordered_by_what_they_hold():
    def fn(x, rows):
        ordered = sorted(rows)
        ordered[0].append(x)
        by_name = sorted(rows, key=operator.itemgetter(0), reverse=True)
        by_row = sorted(rows, key=lambda row: row)
        extremes = max(rows), min(rows, key=lambda row: row[:1]), min(*rows)
        return x * 2, ordered, [row[0] for row in by_name], by_row[0] is ordered[0], [r[0] for r in extremes]

    def rows(names):
        return [[name, tensor(3)] for name in names]

    return fn, [(tensor(3), rows(names)) for names in ("bac", "bac", "cab")]


@program(graphs=1, later=1)
def rows_are_sorted_in_place():
    def fn(x, rows, others):
        rows.sort()
        others.sort(key=lambda row: row[0], reverse=True)
        rows[0].append(x)
        smallest = heapq.nsmallest(1, others, key=lambda row: row[0])[0]
        smallest.append(4)
        return x * 2, rows[0][0], others[0][0]

    def rows(names):
        return [[name, tensor(3)] for name in names]

    return fn, [(tensor(3), rows(names), rows(names)) for names in ("bac", "bac", "cab")]


@program(graphs=1, later=1)
def rows_are_found_by_what_they_hold():
    def fn(x, rows, row):
        where = rows.index(row), rows.count(row), row in rows, (rows[0], *rows).index(row)
        equal = rows == list(rows), [rows[0]] == rows[:1], rows != rows[:2], rows < rows[1:]
        rows.remove(row)
        try:
            rows.remove(row)
        except ValueError as e:
            return x * 2, where, equal, str(e), rows
        return x * 2, where, equal, "twice", rows

    def calls():
        for names in ("bac", "bac", "cac"):
            rows = [[name, tensor(3)] for name in names]
            yield tensor(3), rows, rows[1]

    return fn, list(calls())


@program(graphs=1)
def a_list_that_holds_itself():
    def fn(x, rows):
        rows.append(rows)
        given = list(rows)
        given[-1][0].append(1)
        return x * 2, given[-1] is rows, len(rows)

    return fn, [(tensor(3), [[tensor(3)]]) for _ in range(3)]


class Output(collections.OrderedDict):
    """As the outputs of models are in transformers."""

    tag = 4

    def __getitem__(self, key):
        return dict(self.items())[key] if isinstance(key, str) else tuple(self.values())[key]

    def __getattr__(self, name):
        try:
            return dict(self.items())[name]
        except KeyError:
            raise AttributeError(name) from None


class Dict(dict):
    tag = 4

    def __missing__(self, key):
        return f"no {key}"


class Default(collections.defaultdict):
    tag = 4


class List(list):
    tag = 4


class Deque(collections.deque):
    tag = 4


class Tuple(tuple):
    tag = 4


class Text(str):
    tag = 4


class Int(int):
    tag = 4


class Float(float):
    tag = 4


class Set(frozenset):
    tag = 4


class Counts(collections.Counter):
    tag = 4


class Colour(enum.IntEnum):
    RED = 1


Pair = collections.namedtuple("Pair", "a b")

MADE = {
    "output": lambda t: Output(a=t, b=2),
    "dict": lambda t: Dict(a=t, b=2),
    "default": lambda t: Default(list, a=t, b=2),
    "list": lambda t: List([t, 2]),
    "deque": lambda t: Deque([t, 2], 5),
    "tuple": lambda t: Tuple((t, 2)),
    "namedtuple": lambda t: Pair(t, 2),
    "result": lambda t: torch.return_types.max((t, t.long())),
    "text": lambda t: Text("abc"),
    "int": lambda t: Int(3),
    "float": lambda t: Float(2.5),
    "set": lambda t: Set([1, 2]),
    "counts": lambda t: Counts("aab"),
    "size": lambda t: torch.Size([2, 3]),
    "enum": lambda t: Colour.RED,
    "user dict": lambda t: collections.UserDict(a=t, b=2),
}


def seen_of(value):
    """What a program may see of a container."""
    seen = [
        type(value).__name__,
        isinstance(value, (list, dict, tuple, str, int, float)),
        getattr(value, "tag", None),
    ]
    if isinstance(value, Output):
        return [*seen, value[0], value["a"], value.a]
    if isinstance(value, Dict):
        return [*seen, value["z"], value["a"]]
    if isinstance(value, (dict, collections.UserDict)):
        return [*seen, list(value.items())]
    return [*seen, value[0]] if isinstance(value, (list, tuple, str, collections.deque)) else seen


class Taking(nn.Module):
    def forward(self, x, **options):
        return x * 2, seen_of(options["v"]), options


def taking(x, **options):
    return x * 2, seen_of(options["v"]), options


def changed(x, **options):
    return taking(x, **{**options, "z": x})


def copied(x, **options):
    ways = dict(options), options.copy(), collections.OrderedDict(options), copy.copy(options)
    return x * 2, [seen_of(way["v"]) for way in ways], list(options.values())


def bound(x, **options):
    return functools.partial(taking, y=x, **options)(x)


TAKERS = {"function": taking, "module": Taking(), "changed": changed, "copied": copied, "bound": bound}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("taker", TAKERS)
@program(graphs=1)
def options_keep_their_classes_beside_a_tensor(taker, made):
    take = TAKERS[taker]

    def fn(x, **options):
        return take(x, **options)

    key = {} if taker == "bound" else {"y": tensor(3)}
    return fn, [call(tensor(3), v=MADE[made](tensor(3)), **key) for _ in range(3)]


COPIED = ("output", "dict", "default", "list", "deque", "tuple", "namedtuple", "result", "size", "enum")


@pytest.mark.parametrize("made", COPIED)
@program(graphs=1)
def copies_keep_their_classes(made):
    def fn(x, v):
        shallow, deep = copy.copy(v), copy.deepcopy([v])[0]
        return x * 2, shallow, deep, seen_of(shallow), seen_of(deep)

    return fn, [(tensor(3), MADE[made](tensor(3))) for _ in range(3)]


def adds(rows, x):
    rows += [x]


GROWN = {
    "extend": lambda rows, x: rows.extend([x]),
    "append": lambda rows, x: rows.append(x),
    "iadd": lambda rows, x: operator.iadd(rows, [x]),
    "+=": adds,
    "insert": lambda rows, x: rows.insert(len(rows), x),
    "slice": lambda rows, x: rows.__setitem__(slice(len(rows), None), [x]),
}


@pytest.mark.parametrize("walk", [iter, zip, enumerate, functools.partial(map, type)])
@pytest.mark.parametrize("grown", GROWN)
@program(graphs=1)
def lists_that_change_while_they_are_walked(grown, walk):
    def fn(x, rows):
        steps = 0
        for _ in walk(rows):
            steps += 1
            del rows[0]
            GROWN[grown](rows, x * steps)
            if steps == 5:
                break
        return rows, steps

    return fn, [(tensor(3), [tensor(3), tensor(3)]) for _ in range(3)]


class CountedKey:
    def __init__(self, hashed):
        self.hashed = hashed

    def __hash__(self):
        self.hashed.append(1)
        return 5


@program(graphs=1)
def keys_are_hashed_as_often_as_in_eager():
    def fn(x):
        hashed, counts = [], []
        key, held = CountedKey(hashed), {}
        for step in (
            lambda: held.__setitem__(key, x),
            lambda: held[key],
            lambda: held.get(key),
            lambda: key in held,
            lambda: held.pop(key),
            lambda: held.setdefault((key, 1), 2),
            lambda: {key},
            lambda: held[key] if key in held else 0,
        ):
            step()
            counts.append(len(hashed))
        return x + len(hashed), counts

    return fn, [(torch.ones(3),)] * 3


@program(graphs=1, later=1)
def tensors_created_inside_as_keys():
    def fn(x):
        parts = {half: half.shape for half in x.chunk(2)}
        first = next(iter(parts))
        return parts, parts[first], {(x + 1, "sum"): x.sum()}, {x: first}

    return fn, [(tensor(4, 2),), (tensor(4, 2),), (tensor(6),)]


@for_each_control_flow(dict(graphs=1), dict(graphs=2, breaks=["data-dependent-condition"]))
def tensor_keys_across_a_break():
    def fn(x):
        sums = {x + 1: x.sum(), x: 1}
        if (x + 1).sum() > 0:
            x = x * 2
        return sums, x

    return fn, [(torch.ones(3),) for _ in range(3)]


def local_enumerations():
    class Kind(enum.Enum):
        A = 1
        B = 2

    class Flags(enum.Flag):
        ON = 1
        OFF = 2

    class Number(enum.IntEnum):
        ONE = 1

    return Kind, Flags, Number


@program(graphs=1, fullgraph=True)
def members_of_local_enumerations_as_keys_that_leave():
    Kind, Flags, Number = local_enumerations()
    kept = {}

    def fn(x):
        kept[Kind.B] = x + 1
        table = {Kind.A: x * 2, (Kind.B, 1): 10, Flags.ON: 3, Flags.ON | Flags.OFF: 4, Number.ONE: 5}
        return (
            [v for v in table.values()],
            list(table) == [*table],
            {Kind.A: 1},
            {Kind.B} | {Kind.A},
            table[Number.ONE],
        )

    def shown():
        return [(k.name, v) for k, v in kept.items()]

    return fn, [(tensor(3),)] * 3, shown


@program(graphs=2, breaks=["graph-break-requested"])
def members_of_a_local_enumeration_as_keys_across_a_break():
    Kind, Flags, _ = local_enumerations()

    def fn(x):
        y = x + 2
        table = {Kind.A: y * 3, Kind.B: 10, Flags.ON: 1}
        chosen = {Kind.A, Kind.B}
        smelt.graph_break()
        return y * 2, table[Kind.A], Kind.A in chosen, len(table), table.get(Flags.OFF)

    return fn, [(tensor(3),)] * 3


@program(graphs=0, eager=["graph-break-requested"])
def keys_of_an_enumeration_created_inside():
    def fn(x):
        class Kind(enum.Enum):
            A = 1

        table = {Kind.A: x + 1}
        smelt.graph_break()
        return table[Kind.A]

    return fn, [(tensor(3),)] * 3
