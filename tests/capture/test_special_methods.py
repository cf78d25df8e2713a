"""Special methods that native code calls: their replacement, and what they read, is seen at every call."""

import bisect
import collections
import dataclasses
import functools
import heapq
import itertools
import operator
import reprlib

import pytest
import torch

import smelt
from tests.harness.agreement import check_no_failure

X = torch.ones(2)
Row = dataclasses.make_dataclass("Row", ["value"], order=True)
Pair = collections.namedtuple("Pair", "first second")


def after(change, *made):
    """The last of `made`, which `change` has changed."""
    change(*made)
    return list(made[0])


# by special method: its results before and after the change, and the programs
PROGRAMS = {
    "__index__": (1, 2, {
        "list.pop": lambda o: [7, 8, 9].pop(o),
        "list.insert": lambda o: after(lambda x: x.insert(o, 0), [7, 8, 9]),
        "deque.rotate": lambda o: after(lambda x: x.rotate(o), collections.deque([7, 8, 9])),
        "deque.insert": lambda o: after(lambda x: x.insert(o, 0), collections.deque([7, 8, 9])),
        "setitem": lambda o: after(lambda x: operator.setitem(x, o, 0), [7, 8, 9]),
        "slice": lambda o: [7, 8, 9][o:],
        "slice.indices": lambda o: slice(o).indices(5),
        "of a tensor": lambda o: torch.arange(5)[o],
        "of two of a tensor": lambda o: torch.arange(6).view(2, 3)[..., o],
        "slice of a tensor": lambda o: torch.arange(5)[o:],
        "in a tensor": lambda o: after(lambda x: operator.setitem(x, o, 9), torch.arange(5)),
        "enumerate": lambda o: list(enumerate("ab", o)),
        "enumerate, start": lambda o: list(enumerate("ab", start=o)),
        "repeat": lambda o: list(itertools.repeat(3, o)),
        "repeat, times": lambda o: list(itertools.repeat(3, times=o)),
        "islice": lambda o: list(itertools.islice([7, 8, 9], o)),
        "combinations": lambda o: list(itertools.combinations("abc", o)),
        "product": lambda o: len(list(itertools.product("ab", repeat=o))),
        "sizes": lambda o: torch.ones(o, 2),
        "count": lambda o: list(itertools.islice(itertools.count(o), 1))[0] is o,
    }),
    "__eq__": (True, False, {
        "list.remove": lambda o: after(lambda x: x.remove(5), [o, 5])[0] is o,
        "deque.remove": lambda o: after(lambda x: x.remove(5), collections.deque([o, 5]))[0] is o,
        "list.index": lambda o: [o, 5].index(5),
        "in a list": lambda o: 5 in [o],
        "slices": lambda o: slice(o) == slice(5),
        "slices in tuples": lambda o: (slice(o),) == (slice(5),),
        "generic aliases": lambda o: dict[int, o] == dict[int, 5],
        "a generated dataclass": lambda o: Row(o) == Row(5),
        "named tuples": lambda o: Pair(o, 1) == Pair(5, 1),
        "a sentinel": lambda o: len(list(itertools.islice(iter(lambda: o, 5), 3))),
    }),
    "__lt__": (True, False, {
        "sorted": lambda o: sorted([[5], [o]])[0][0] is o,
        "list.sort": lambda o: after(lambda x: x.sort(), [[5], [o]])[0][0] is o,
        "max": lambda o: max([5], [o])[0] is o,
        "bisect": lambda o: bisect.bisect_left([o], 5),
        "nsmallest": lambda o: heapq.nsmallest(1, [5, o])[0] is o,
        "a generated dataclass": lambda o: Row(o) < Row(5),
    }),
    "__repr__": ("one", "two", {
        "a partial function": lambda o: repr(functools.partial(int, o)),
        "itemgetter": lambda o: str(operator.itemgetter(o)),
        "reprlib": lambda o: reprlib.repr([o]),
        "a slice": lambda o: f"{slice(o)}",
    }),
}  # fmt: skip
CASES = [(name, case) for name, (_, _, uses) in PROGRAMS.items() for case in uses]


class Holder:
    """Its special method returns what it holds."""

    def __init__(self, value):
        self.held = value


def result(self, *args):
    return self.held


def outcomes(compile, use, name, results, change):
    """What two calls before the change and two calls after it return."""
    cls = type("Local", (Holder,), {name: result})
    obj = cls(results[0])

    def fn(x):
        try:
            return x + 1, use(obj)
        except (TypeError, ValueError, IndexError) as error:
            return x, str(error)

    run = compile(fn)
    found = [run(X), run(X)]
    change(cls, obj)
    return [[x.tolist(), shown(y)] for x, y in (*found, run(X), run(X))]


def shown(value):
    return value.tolist() if isinstance(value, torch.Tensor) else value


def agree(use, name, results, change):
    compiled = []

    def compile(fn):
        compiled.append(smelt.compile(fn))
        return compiled[-1]

    want = outcomes(lambda fn: fn, use, name, results, change)
    assert outcomes(compile, use, name, results, change) == want
    check_no_failure(compiled[0])


@pytest.mark.parametrize("name, case", CASES)
def test_what_the_method_reads_changes(name, case):
    before, later, uses = PROGRAMS[name]
    agree(uses[case], name, (before, later), lambda cls, obj: setattr(obj, "held", later))


@pytest.mark.parametrize("name, case", CASES)
def test_the_method_is_replaced(name, case):
    before, later, uses = PROGRAMS[name]
    agree(uses[case], name, (before, later), lambda cls, obj: setattr(cls, name, lambda self, *args: later))


@pytest.mark.parametrize("name, case", CASES)
def test_the_method_is_removed(name, case):
    before, later, uses = PROGRAMS[name]
    if name != "__repr__":  # object's shows an address
        agree(uses[case], name, (before, later), lambda cls, obj: delattr(cls, name))


METACLASS = {
    "__call__": lambda cls: cls(),
    "__instancecheck__": lambda cls: isinstance(3, cls),
    "__subclasscheck__": lambda cls: issubclass(int, (str, (cls,))),
    "__getitem__": lambda cls: cls[0],
    "__contains__": lambda cls: 3 in cls,
    "__len__": lambda cls: len(cls),
    "__eq__": lambda cls: cls == 3,
    "__or__": lambda cls: cls | 3,
    "__bool__": lambda cls: not cls,
}


@pytest.mark.parametrize("name", METACLASS)
@pytest.mark.parametrize("reads", [True, False])
def test_the_method_of_a_metaclass_changes(name, reads):
    use = METACLASS[name]

    def program(compile):
        def method(cls, *args):
            return type.__getattribute__(cls, "held")

        meta = type("Meta", (type,), {name: method})
        cls = meta("Local", (), {"held": True})
        run = compile(lambda x: (x + 1, use(cls)))
        found = [run(X)[1], run(X)[1]]
        if reads:
            cls.held = False
        else:
            setattr(meta, name, lambda cls, *args: False)
        return [*found, run(X)[1], run(X)[1]]

    assert program(smelt.compile) == program(lambda fn: fn)


CLASS = {
    "__class_getitem__": lambda cls: cls[0],
    "__init_subclass__": lambda cls: type("Derived", (cls,), {}).seen,
}


@pytest.mark.parametrize("name", CLASS)
@pytest.mark.parametrize("reads", [True, False])
def test_a_class_method_that_native_code_calls_changes(name, reads):
    use = CLASS[name]

    def program(compile):
        class Local:
            held = 1

        def method(cls, *args):
            cls.seen = Local.held
            return cls.seen

        def replacement(cls, *args):
            cls.seen = 7
            return 7

        setattr(Local, name, classmethod(method))
        run = compile(lambda x: (x + 1, use(Local)))
        found = [run(X)[1], run(X)[1]]
        if reads:
            Local.held = 2
        else:
            setattr(Local, name, classmethod(replacement))
        return [*found, run(X)[1], run(X)[1]]

    assert program(smelt.compile) == program(lambda fn: fn)


@pytest.mark.parametrize(
    "name, use",
    [
        ("__iter__", lambda o: [*o]),
        ("__iter__", lambda o: (lambda *a: a)(*o)),
        ("__iter__", lambda o: (lambda a: a)(*o)),
        ("__iter__", lambda o: functools.reduce(operator.add, o)),
        ("__iter__", lambda o: dict([o])),
        ("__call__", lambda o: list(map(o, [1]))),
        ("__call__", lambda o: functools.partial(o, 1)()),
        ("__call__", lambda o: next(iter(o, 5))),
    ],
)
def test_the_method_is_added(name, use):
    def program(compile):
        class Local:
            pass

        obj = Local()

        def fn(x):
            try:
                return x + 1, use(obj)
            except TypeError as error:
                return x, str(error)

        run = compile(fn)
        found = [run(X)[1], run(X)[1]]
        setattr(Local, name, lambda self, *args: iter([3, 4]) if name == "__iter__" else 3)
        return [*found, run(X)[1], run(X)[1]]

    assert program(smelt.compile) == program(lambda fn: fn)


@pytest.mark.parametrize("base", [list, tuple, dict, collections.deque, set, frozenset])
def test_containers_look_for_an_item_in_what_they_hold(base):
    class Local(base):
        def __iter__(self):
            return iter([5])

    held = Local([(1, 2)] if base is dict else [1, 2])
    compiled = smelt.compile(lambda x: (x + 1, 1 in held, 5 in held))
    assert compiled(X)[1:] == compiled(X)[1:] == (1 in held, 5 in held) == (True, False)
    check_no_failure(compiled)
