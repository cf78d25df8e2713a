"""Iterators of C over what the program iterates: what kind they are, what an error leaves of them, when they ask for what,
and what a break makes of them."""

from __future__ import annotations

import copy
import itertools
import operator
import pickle

import smelt
from tests.harness.catalogue import program, since, tensor

BREAK, ADVANCED = ["graph-break-requested"], "unsupported-object"


def thrice():
    return [(tensor(3),)] * 3


def attempt(fn, *args):
    try:
        return fn(*args)
    except Exception as e:
        return type(e).__name__, str(e)


class Asked:
    """A sequence with `__getitem__` only that notes what it is asked, and fails once at each index of `fails`."""

    def __init__(self, n, fails=()):
        self.n = n
        self.fails = list(fails)
        self.asked = []

    def __getitem__(self, i):
        self.asked.append(i)
        if i in self.fails:
            self.fails.remove(i)
            raise ValueError(i)
        if i >= self.n:
            raise IndexError
        return i * 10


class Sized(Asked):
    def __len__(self):
        self.asked.append("len")
        return self.n


class Ending(Sized):
    """Its element 1 ends an iteration."""

    def __getitem__(self, i):
        if i == 1:
            raise (StopIteration if self.fails else IndexError)
        return i


@program(graphs=1, breaks=[*BREAK, ADVANCED])
def starmap_over_an_iterator():
    def fn(x):
        added = itertools.starmap(operator.add, ([x, k] for k in (1, 2, 3)))
        first = next(added)
        before = type(added).__name__
        smelt.graph_break()
        return first, before, type(added).__name__, list(added)

    return fn, thrice()


@program(graphs=1, breaks=[*BREAK, ADVANCED])
def an_error_does_not_end_starmap():
    def fn(x):
        divided = itertools.starmap(operator.truediv, iter([(1, 0), None, (4, 2), (6, 2)]))
        before = attempt(next, divided), attempt(next, divided), next(divided)
        smelt.graph_break()
        return x * 2, before, list(divided), attempt(itertools.starmap, pow, 3)

    return fn, thrice()


@program(graphs=1)
def starmap_sees_what_the_list_gets_later():
    def fn(x):
        pairs = [(1, 2)]
        powers, joined = itertools.starmap(pow, pairs), itertools.chain.from_iterable(pairs)
        pairs.append((3, 2))
        return x * 2, list(powers), list(joined)

    return fn, thrice()


@program(graphs=1, breaks=[*BREAK, ADVANCED])
def an_error_does_not_end_chain():
    def fn(x):
        def checked(k):
            if k == 1:
                raise ValueError("one")
            return k

        joined = itertools.chain.from_iterable(iter([map(checked, [0, 1, 2]), "ab"]))
        before = next(joined), attempt(next, joined), next(joined)
        smelt.graph_break()
        return x * 2, before, type(joined).__name__, list(joined)

    return fn, thrice()


@program(graphs=2, breaks=[*BREAK, ADVANCED])
def chain_over_a_break():
    def fn(x):
        joined = itertools.chain([1, x], (x + k for k in (1, 2)), [3])
        first = next(joined)
        smelt.graph_break()
        return first, type(joined).__name__, list(joined)

    return fn, thrice()


@program(graphs=1)
def chain_asks_late():
    class Noted:
        def __init__(self, k):
            self.k = k

        def __iter__(self):
            log.append(self.k)
            return iter([self.k])

    noted, log = [Noted(1), Noted(2)], []

    def fn(x):
        joined = itertools.chain(*noted)
        log.append("made")
        first = list(joined)
        wrong = itertools.chain([1], 2, [3])
        return x * 2, first, next(wrong), attempt(next, wrong), attempt(next, wrong)

    return fn, thrice(), log


@program(graphs=1, breaks=[*BREAK, *[ADVANCED] * 3])
def a_sequence_is_asked_again_where_it_failed():
    def fn(x):
        sequence = Asked(4, fails=[2])
        walk = iter(sequence)
        before = type(walk).__name__, next(walk), next(walk), attempt(next, walk), next(walk)
        smelt.graph_break()
        after = type(walk).__name__, next(walk), attempt(next, walk), attempt(next, walk)
        return x * 2, before, after, sequence.asked

    return fn, thrice()


@program(graphs=3, breaks=[*BREAK * 2, ADVANCED])
def a_break_in_a_loop_over_a_sequence():
    def fn(x):
        sequence, found = Asked(3), []
        for value in sequence:
            found.append(x + value)
            smelt.graph_break()
        return found, sequence.asked

    return fn, thrice()


@program(graphs=1)
def how_much_is_left_of_a_sequence():
    def fn(x):
        sequence = Sized(4)
        walk = iter(sequence)
        next(walk)
        hints = operator.length_hint(walk), walk.__length_hint__(), iter(Asked(4)).__length_hint__()
        return x * 2, hints, list(walk), sequence.asked

    return fn, thrice()


@program(graphs=1)
def sequences_that_end_themselves():
    def fn(x):
        ends = Ending(4), Ending(4, fails=[1])
        return (
            x * 2,
            [[*e] for e in ends],
            [list(zip(e, "ab")) for e in ends],
            [list(reversed(e)) for e in ends],
        )

    return fn, thrice()


@program(graphs=1, breaks=[*BREAK, ADVANCED])
def reversed_asks_for_the_length_at_once():
    def fn(x):
        sequence = Sized(4)
        back = reversed(sequence)
        asked = list(sequence.asked)
        first = type(back).__name__, next(back)
        sequence.n = 1
        smelt.graph_break()
        return x * 2, asked, first, next(back, None), sequence.asked, attempt(reversed, Asked(2))

    return fn, thrice()


NO_COPIES = "iterators of itertools can be neither copied nor pickled"


@program(graphs=1, breaks=["input-output"] * 2, unlike=since("3.14", NO_COPIES, 0, breaks=["input-output"]))
def pickled_iterators():
    def fn(x):
        powers = itertools.starmap(pow, zip(range(3), range(1, 4)))
        found = pickle.loads(pickle.dumps(powers))
        return x * 2, type(found).__name__

    return fn, thrice()


@program(graphs=1, breaks=["unsupported-call"])
def what_an_iterator_is_made_of():
    def fn(x):
        reduced = map(abs, iter([-1])).__reduce__()
        return x * 2, reduced[1][0] is abs, type(reduced[1][1]).__name__

    return fn, thrice()


@program(
    graphs=1,
    breaks=["unsupported-call", ADVANCED, ADVANCED],
    unlike=since("3.14", NO_COPIES, 1, breaks=["unsupported-call"]),
)
def a_copy_shares_iterators_with_the_original():
    def fn(x, joined):
        return x * 2, list(copy.copy(joined)), list(joined)

    def begun():
        joined = itertools.chain([1, 2], [3])
        next(joined)
        return joined

    return fn, [(tensor(3), begun()) for _ in range(3)]


@program(graphs=1, breaks=BREAK)
def iterators_that_have_ended():
    def fn(x):
        found = {}, set(), frozenset(), {}.values(), {}.items(), [], (), "", range(0)
        walks = [*map(iter, found), reversed({}), reversed([])]
        given = [next(walk, None) for walk in walks]
        smelt.graph_break()
        return x * 2, given, [type(walk).__name__ for walk in walks], walks

    return fn, thrice()


class Element:
    pass


@program(graphs=1, breaks=[*BREAK, "unsupported-call", "unsupported-call", ADVANCED])
def a_frozenset_of_another_order():
    def fn(x):
        walk = iter(frozenset(Element() for _ in range(9)))
        next(walk)
        smelt.graph_break()
        return x * 2, operator.length_hint(walk), len(list(copy.copy(walk))), walk.__reduce__()[0] is iter

    return fn, thrice()
