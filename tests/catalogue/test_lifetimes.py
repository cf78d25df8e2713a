"""How long objects live, which object is which, and what native code reads of objects that it shares memory with."""

from __future__ import annotations

import array
import collections
import copy
import functools
import itertools
import sys
import weakref

import smelt
from tests.harness.catalogue import Changing, program, tensor


def calls(number=3):
    return [(tensor(3),) for _ in range(number)]


def attempt(fn, *args, **kwargs):
    try:
        return fn(*args, **kwargs)
    except Exception as e:
        return type(e).__name__, str(e)


# --------------------------------------------------------------------------------------------------- lifetimes


@program(graphs=0, breaks=["unsupported-call"], eager=["unsupported-call"])
def what_the_rest_of_a_function_drops_is_gone():
    def fn(x):
        held = array.array("d", [1.0])
        seen = weakref.proxy(held)
        code = seen.typecode
        held = None
        return x * 2, code, attempt(len, seen)

    return fn, calls()


@program(graphs=0, eager=["input-output"])
def references_are_counted_in_the_users_frame():
    def fn(x):
        held = [x]
        before = sys.getrefcount(held)
        other = held
        return x * 2, sys.getrefcount(other) - before

    return fn, calls()


@program(graphs=0, eager=["unsupported-call"])
def a_buffer_cannot_be_resized_while_it_is_viewed():
    def fn(x):
        buffer = bytearray(3)
        view = memoryview(buffer)  # noqa: F841  # alive to the end of the function
        smelt.graph_break()
        try:
            buffer.append(1)
        except BufferError as e:
            return x * 2, str(e)
        return x

    return fn, calls()


@program(graphs=0, eager=["unsupported-call"])
def tensors_of_the_call_end_with_their_last_reference():
    def fn(x):
        first = x * 2
        seen = weakref.ref(first)
        before = seen() is not None
        first = x * 3
        return first if seen() is None else -first, before, seen() is None

    return fn, calls()


@program(graphs=0, eager=["unsupported-call"])
def callbacks_run_when_tensors_of_the_call_end():
    def fn(x):
        ended = []
        weakref.ref(x * 2, lambda _: ended.append("temporary"))
        y = x * 3
        weakref.finalize(y, ended.append, "finalized")
        del y
        return x + len(ended), list(ended)

    return fn, calls()


@program(graphs=0, eager=["unsupported-call"])
def weak_containers_and_proxies_forget_tensors_of_the_call():
    def fn(x):
        names, proxies = weakref.WeakValueDictionary(), []
        names["y"] = y = x * 2
        proxies.append(weakref.proxy(y))
        there = "y" in names
        del y
        return x * 5 if "y" not in names else x * 7, there, attempt(lambda: proxies[0].shape)

    return fn, calls()


class Thing:
    """Something that a weak reference can refer to."""


def held_until_it_returns(ended):
    thing = Thing()
    seen = weakref.ref(thing, lambda _: ended.append("inner"))
    return seen() is thing


def never_called_back(ended):
    seen, things = [], [Thing(), Thing()]
    for thing in things:
        seen.append(weakref.ref(thing, lambda _: ended.append("too late")))
    thing = things = (
        None  # the first reference ends with the list, before the second object could be seen to die
    )
    return len(seen)


@program(graphs=1)
def callbacks_run_when_a_function_returns():
    """CPython clears local variables in their order: an object before, or after, the reference that would call back."""

    def fn(x):
        ended = []
        alive = held_until_it_returns(ended), never_called_back(ended)
        return x + len(ended), ended, alive

    return fn, calls()


@program(graphs=1)
def a_tensor_in_a_variable_is_alive():
    def fn(x):
        y = x * 2
        seen = weakref.ref(y)
        return seen() + 1 if seen() is y else y - 1

    return fn, calls()


# ------------------------------------------------------------------------------------------------ memory of others


@program(graphs=1, breaks=["unsupported-object"])
def an_array_of_c_is_read():
    values = array.array("B", b"abc")

    def fn(x):
        return x * 2, bytes(values)

    return fn, Changing(calls(), {1: lambda: values.append(100), 2: lambda: values.pop(0)})


@program(graphs=1, breaks=["unsupported-object"])
def a_view_of_a_buffer_is_read():
    buffer = bytearray(b"abc")
    view = memoryview(buffer)

    def fn(x):
        y = x * 2
        return y, view.tobytes()

    return fn, Changing(calls(), {1: lambda: buffer.__setitem__(0, 5)})


# ------------------------------------------------------------------------------------------------------ identity


@program(graphs=2, breaks=["graph-break-requested"])
def equal_texts_stay_two_objects():
    def fn(x):
        a = b = "xyzpdq"
        c = a[:3] + b[3:]
        y = x * 2
        smelt.graph_break()
        return y + 1, a is b, a is c, a == c

    return fn, calls()


@program(graphs=1)
def attributes_of_a_dictionary_and_of_a_partial_attempt():
    def fn(x):
        ordered, bound = collections.OrderedDict(a=x), functools.partial(abs, x)
        ordered.note, bound.note = [ordered], ["bound"]
        shallow, deep = copy.copy(ordered), copy.deepcopy(ordered)
        return (
            x * 2,
            ordered,
            bound,
            ordered.note[0] is ordered,
            shallow.note is ordered.note,
            deep.note[0] is deep,
        )

    return fn, calls(), lambda: None


@program(graphs=1)
def a_tuple_that_holds_itself_is_copied():
    def fn(x):
        inner = ([x], {})
        inner[0].append(inner)
        inner[1]["a"] = inner
        copied = copy.deepcopy({"k": inner, "l": [inner]})
        return copied["k"] is copied["l"][0], copied["k"][1]["a"] is copied["k"], copied["k"] is inner, x * 2

    return fn, calls()


@program(graphs=1)
def classes_made_by_type_and_metaclasses():
    class Meta(type):
        pass

    def fn(x):
        made = type("A", (), {}), Meta("B", (), {}), type.__new__(Meta, "C", (), {})
        return x * 2, [(m.__module__, m.__name__, type(m) is Meta) for m in made]

    return fn, calls()


@program(graphs=1, later=2)
def a_copy_of_a_library_module_is_not_the_library():
    scope = {"__name__": "functools"}
    exec("def count(counts, n):\n    counts['n'] = counts.get('n', 0) + n\n    return counts['n']", scope)
    counts = {}

    def fn(x):
        return x * scope["count"](counts, 2)

    return fn, calls(), lambda: counts


# ----------------------------------------------------------------------------------------------------- iterators


@program(graphs=1)
def an_iterator_is_asked_while_it_is_being_asked():
    def fn(x):
        class Values:
            count = 0

            def __iter__(self):
                return self

            def __next__(self):
                self.count += 1
                if self.count in (1, 3):
                    return next(pairs)
                return [self.count]

        pairs = itertools.pairwise(Values())
        return x * 2, [next(pairs) for _ in range(3)]

    return fn, calls()


@program(graphs=2, breaks=["graph-break-requested", "unsupported-object"])
def an_iterator_of_the_users_is_half_zipped():
    class Numbers:
        def __init__(self):
            self.count = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.count += 1
            return self.count

    def fn(x):
        numbers = Numbers()
        zipped = zip(numbers, range(4))
        first = next(zipped)
        y = x * 2
        smelt.graph_break()
        return y + 1, first, list(zipped), numbers.count

    return fn, calls()


_MISUSED = (
    itertools.takewhile, itertools.dropwhile, itertools.filterfalse, itertools.accumulate, itertools.groupby, itertools.starmap,
    itertools.compress, itertools.pairwise, functools.reduce, collections.deque, memoryview,
)  # fmt: skip


@program(graphs=1)
def iterators_are_given_the_wrong_arguments():
    def fn(x):
        found = [attempt(make, *args) for make in _MISUSED for args in ((), (1, 2, 3, 4, 5))]
        return x * 2, found, [attempt(make, foo=1) for make in _MISUSED]

    return fn, calls()


@program(graphs=1)
def counters_of_mappings():
    class Pairs(collections.UserDict):
        pass

    def fn(x):
        pairs = Pairs(a=3)
        return x * 2, collections.Counter(pairs), collections.Counter(None), collections.Counter("aab")

    return fn, calls()


@program(graphs=1)
def an_object_without_attributes_is_asked_for_them():
    class Slots:
        __slots__ = ("a",)

    def fn(x):
        return x * 2, attempt(vars, 42), attempt(vars, Slots())

    return fn, calls()


@program(graphs=1)
def keys_are_hashed_once():
    class Key:
        hashed = 0

        def __hash__(self):
            self.hashed += 1
            return 999

    def fn(x):
        key, found = Key(), {}
        counts = []
        for act in (
            lambda: found.setdefault(key, 4),
            lambda: found.get(key),
            lambda: key in found,
            lambda: found.pop(key),
            lambda: found.pop(key, 5),
            lambda: {key},
        ):
            act()
            counts.append(key.hashed)
        return x * 2, counts

    return fn, calls()


# ------------------------------------------------------------------------------------------------ weak references


class Thing:
    pass


def made_elsewhere():
    return Thing()


made_elsewhere = smelt.disable(made_elsewhere)


@program(graphs=0, breaks=["disabled-function"], eager=["unsupported-call"])
def what_came_over_a_break_and_is_dropped_is_gone():
    def fn(x):
        thing = made_elsewhere()
        seen = weakref.ref(thing)
        before = seen() is thing
        del thing
        return x * 2, before, seen() is None

    return fn, calls()


@program(graphs=1, breaks=["disabled-function"], eager=["unsupported-call"])
def what_a_callee_dropped_is_gone():
    def fn(x):
        def made():
            thing = made_elsewhere()
            return weakref.ref(thing)

        seen = made()
        return x * 2, seen() is None

    return fn, calls()


@program(graphs=0, breaks=["disabled-function"], eager=["unsupported-call"])
def what_an_object_let_go_of_is_gone():
    def fn(x):
        things = [made_elsewhere()]
        seen = weakref.ref(things[0])
        things.clear()
        return x * 2, seen() is None

    return fn, calls()


@program(graphs=0, breaks=["graph-break-requested"], eager=["unsupported-call"])
def a_function_with_attributes_that_came_over_a_break_is_gone():
    def fn(x):
        def scale(y):
            return y * 2

        scale.by = 2
        smelt.graph_break()
        seen = weakref.ref(scale)
        y = scale(x)
        del scale
        return y, seen() is None

    return fn, calls()


@program(graphs=1)
def an_object_that_is_held_is_found_by_a_weak_reference():
    holder = Thing()
    holder.thing = Thing()

    def fn(x, holder):
        seen = weakref.ref(holder.thing)
        return x * 2, seen() is holder.thing, weakref.ref(holder)() is holder

    return fn, [(tensor(3), holder)] * 3


@program(graphs=0, breaks=["disabled-function"], eager=["unsupported-call"])
def a_function_is_called_when_what_came_over_a_break_is_gone():
    def fn(x):
        gone = []
        thing = made_elsewhere()
        seen = weakref.ref(thing, gone.append)  # noqa: F841  # alive to the end of the function
        del thing
        return x * 2, len(gone)

    return fn, calls()


@program(graphs=0, breaks=["disabled-function"], eager=["unsupported-call"])
def containers_forget_what_is_gone():
    def fn(x):
        thing = made_elsewhere()
        things, named = weakref.WeakSet([thing]), weakref.WeakValueDictionary()
        named["a"] = thing
        before = len(things), len(named)
        del thing
        return x * 2, before, len(things), len(named)

    return fn, calls()


@program(graphs=0, eager=["unsupported-call"])
def weak_references_are_counted():
    thing = Thing()
    kept = []

    def fn(x):
        own = Thing()
        proxy, seen = weakref.proxy(own), weakref.ref(own)  # noqa: F841
        counts = weakref.getweakrefcount(own), len(weakref.getweakrefs(own)), weakref.getweakrefcount(thing)
        del proxy
        return x * 2, counts, weakref.getweakrefcount(own)

    return fn, Changing(calls(), {1: lambda: kept.append(weakref.ref(thing))}), lambda: None


@program(graphs=0, eager=["graph-break-requested"])
def weak_references_in_variables_are_counted_behind_a_break():
    def fn(x):
        own = Thing()
        seen = weakref.ref(own)  # noqa: F841  # alive to the end of the function
        smelt.graph_break()
        return x * 2, weakref.getweakrefcount(own)

    return fn, calls()
