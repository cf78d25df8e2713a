"""Constants that lead to what the program makes, or to what may be another at the next call: generic types, members of
classes and enumerations, times in a zone."""

from __future__ import annotations

import datetime
import enum
import io
import struct
import typing
import zoneinfo

import smelt
from tests.harness.catalogue import Changing, program, since, tensor


def thrice(*state):
    return [(tensor(3), *state)] * 3


OF_C = "the classes of type variables are of C, and no guard tells what those from outside hold"


def is_new(part, seen):
    """Whether `part` is none that an earlier call gave."""
    new = all(part is not other for other in seen)
    seen.append(part)
    return new


@program(graphs=1, later=2, breaks=["graph-break-requested"])
def generic_types_of_type_variables():
    seen = []

    def fn(x):
        one, several = typing.TypeVar("one"), typing.TypeVarTuple("several")
        made = (
            list[one],
            tuple[int, *several],
            next(iter(tuple[one, ...])),
            typing.List[one],
            list[one] | None,
        )
        smelt.graph_break()
        listed, pair, unpacked, typed, union = made
        same = (
            listed.__args__[0] is one,
            pair.__args__[1].__args__[0] is several,
            unpacked.__args__[0] is one and unpacked.__unpacked__,
            typed.__args__[0] is one,
            union.__args__[0].__args__[0] is one,
        )
        return x * 2, same, is_new(one, seen)

    return fn, thrice()


@program(
    graphs=1,
    breaks=["graph-break-requested"],
    unlike=since(
        "3.12",
        OF_C,
        1,
        breaks=["graph-break-requested", "unsupported-object", "unsupported-object"],
    ),
)
def typing_keeps_what_it_was_asked_for():
    def fn(x):
        names = typing.TypeVarTuple("names")
        unpacked = typing.Unpack[names]
        pair = typing.Tuple[int, unpacked]
        smelt.graph_break()
        return x * 2, unpacked is typing.Unpack[names], pair is typing.Tuple[int, typing.Unpack[names]]

    return fn, thrice()


@program(
    graphs=1,
    breaks=["graph-break-requested"],
    unlike=since(
        "3.12",
        OF_C,
        1,
        breaks=["graph-break-requested", *["unsupported-call"] * 4, *["unsupported-object"] * 2],
    ),
)
def type_variables():
    def fn(x):
        bound = typing.TypeVar("bound", bound=int)
        constrained = typing.TypeVar("constrained", int, str, covariant=True)
        listed = typing.ParamSpec("listed")
        bound.own = 3
        made = bound, constrained, listed
        smelt.graph_break()
        names = [(v.__name__, v.__module__, repr(v)) for v in made]
        parts = bound.__bound__, constrained.__constraints__, constrained.__covariant__, listed.__bound__
        return x * 2, names, parts, bound.own

    return fn, thrice()


def made_class(how):
    """A function that makes a class and gives something that leads to it; called again, it gives another."""
    seen = []

    def fn(x):
        class Made:
            __slots__ = ("slot",)

        class Colour(enum.Enum):
            RED = 1

        found = how(Made, Colour)
        return x * 2, is_new(found, seen)

    return fn, thrice()


@program(graphs=0, eager=["unsupported-object"])
def a_generic_type_of_a_class():
    return made_class(lambda made, colour: list[made])


@program(graphs=0, eager=["unsupported-object"])
def a_union_of_a_class():
    return made_class(lambda made, colour: made | int)


@program(graphs=0, eager=["unsupported-object"])
def a_slot_of_a_class():
    return made_class(lambda made, colour: made.slot)


@program(graphs=0, eager=["unsupported-object"])
def a_method_of_c_of_a_class():
    return made_class(lambda made, colour: made.mro)


@program(graphs=0, eager=["unsupported-object"])
def a_member_of_an_enumeration():
    return made_class(lambda made, colour: colour.RED)


@program(graphs=1)
def members_of_classes_from_outside():
    class Slots:
        __slots__ = ("slot",)

    class Colour(enum.Flag):
        RED = 1
        BLUE = 2

    def fn(x):
        found = Slots.slot, vars(Slots)["slot"], Colour.RED | Colour.BLUE, Colour(2), list[Slots], Slots | int
        return (
            x * 2,
            found[0] is found[1],
            found[2:4],
            found[4].__args__[0] is Slots,
            found[5].__args__[0] is Slots,
        )

    return fn, thrice()


class Hours(datetime.tzinfo):
    def __init__(self, hours):
        self.hours = hours

    def utcoffset(self, when):
        return datetime.timedelta(hours=self.hours)


@program(graphs=1, later=3)
def a_time_zone_is_another_or_changes():
    # Not by name: not every machine has a database of zones. A TZif file (RFC 8536) of one kind of time, UTC.
    file = (
        b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + struct.pack(">lbb", 0, 0, 0) + b"UTC\0"
    )
    zone = {0: zoneinfo.ZoneInfo.from_file(io.BytesIO(file))}
    own = Hours(1)

    def fn(x):
        when = datetime.datetime(2020, 1, 1, tzinfo=zone[0])
        return (
            x * 2,
            when,
            when.utcoffset(),
            when.tzinfo is zone[0],
            datetime.time(1, tzinfo=zone[0]) == when.timetz(),
        )

    changes = {
        1: lambda: zone.update({0: datetime.timezone(datetime.timedelta(hours=2))}),
        2: lambda: zone.update({0: own}),
        3: lambda: setattr(own, "hours", 3),
    }
    return fn, Changing([(tensor(3),)] * 5, changes)


@program(graphs=1)
def times_in_the_zone_of_another():
    when = datetime.datetime(2020, 1, 1, tzinfo=Hours(1))

    def fn(x):
        later = when + datetime.timedelta(1)
        return x * 2, later.tzinfo is when.tzinfo, later

    return fn, thrice()
