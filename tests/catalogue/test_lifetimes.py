"""How long objects live, which object is which, and what native code reads of objects that it shares memory with."""

from __future__ import annotations

import array
import collections
import contextlib
import copy
import functools
import itertools
import json
import sys
import weakref

import pytest
import torch
from torch import nn

import smelt
from smelt.report import inspect
from tests.harness.catalogue import Changing, compilation_of, program, tensor


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


# ------------------------------------------------------------------------------- functions, frames and tracebacks


def observed(ended, name):
    """A thing whose end appends `name` to `ended`, which holds the reference too."""
    thing = Thing()
    ended.append(weakref.ref(thing, lambda _: ended.append(name)))
    return thing


def names(ended):
    return [entry for entry in ended if type(entry) is str]


@program(graphs=1)
def what_a_function_closes_over_ends_with_it():
    def fn(x):
        ended = []

        def closing(name):
            thing = observed(ended, name)
            return lambda value: (value, thing)[0]

        closure, called = closing("closure"), [closing("in a list")]
        by_default = lambda value, thing=observed(ended, "default"): value  # noqa: E731
        bound = functools.partial(closing("partial"), x)
        cached = functools.lru_cache(closing("cached"))
        y = closure(bound()) + cached(1)
        del closure
        called.clear()
        ended.append("cleared")
        del by_default, bound
        ended.append("end")
        del cached
        return y, names(ended)

    return fn, calls()


@program(graphs=0, eager=["unsupported-call"])
def a_tensor_that_only_a_dropped_function_knew_is_gone():
    def fn(x):
        def made():
            y = x * 2
            return (lambda: y), weakref.ref(y)

        function, reference = made()
        del function
        return x + 1, reference() is None

    return fn, calls()


class Holding:
    def __init__(self, thing):
        self.seen = weakref.ref(thing)
        thing = None
        self.gone = self.seen() is None

    def method(self, *things, ended, **named):
        del things
        ended.append("after the first")
        named.clear()
        ended.append("after the second")
        return self.gone


@program(graphs=1)
def a_callee_ends_its_arguments():
    def fn(x):
        ended = []

        def deletes(thing):
            del thing
            ended.append("deleted")
            return x.ndim

        def descends(depth, thing):
            thing = None  # noqa: F841
            return depth and descends(depth - 1, observed(ended, f"at {depth}"))

        first = deletes(observed(ended, "argument"))
        descends(2, observed(ended, "outermost"))
        holding = Holding(observed(ended, "of a constructor"))
        bound = holding.method
        found = bound(observed(ended, "positional"), ended=ended, name=observed(ended, "keyword"))
        return x * first, names(ended), found

    return fn, calls()


@program(graphs=3, breaks=["graph-break-requested"] * 2)
def a_break_in_a_callee_after_it_dropped_an_argument():
    def fn(x):
        def breaks(values, n):
            first = values[0]
            values = None
            y = first * n
            smelt.graph_break()
            return y + n

        return breaks([x * 2], len([1, 2])) + breaks(values=[x], n=3)

    return fn, calls()


@program(graphs=1)
def a_traceback_holds_the_variables_of_its_frames():
    def fn(x):
        ended, errors = [], []

        def fails(name):
            first, second = observed(ended, name), observed(ended, f"{name}, too")  # noqa: F841
            raise ValueError(name)

        for name in ("a", "b", "c", "d"):
            try:
                fails(name)
            except ValueError as e:
                ended.append(f"caught {name}")
                if name in "cd":
                    errors.append(e)
                if name == "b":
                    e.__traceback__ = None
                    ended.append("without a traceback")
        ended.append("c and d are held")
        errors.pop()
        errors[0] = errors[0].with_traceback(None)
        return x * 2, names(ended), len(errors)

    return fn, calls()


@program(graphs=1)
def frames_that_an_exception_left_end_in_the_order_of_the_call():
    def fn(x):
        ended = []

        def outer():
            thing = observed(ended, "outer")  # noqa: F841
            middle()

        def middle():
            thing = observed(ended, "middle")  # noqa: F841
            try:
                inner()
            except LookupError:
                ended.append("caught in the middle")
                raise
            finally:
                ended.append("finally")

        def inner():
            thing = observed(ended, "inner")  # noqa: F841
            return {}[x.ndim]

        try:
            outer()
        except KeyError:
            ended.append("caught")
        return x * 2, names(ended)

    return fn, calls()


@program(graphs=1)
def causes_and_contexts_hold_frames():
    def fn(x):
        ended = []

        def first():
            thing = observed(ended, "first")  # noqa: F841
            raise ValueError

        def second():
            thing = observed(ended, "second")  # noqa: F841
            try:
                first()
            except ValueError as e:
                raise KeyError from e

        try:
            second()
        except KeyError as e:
            e.__cause__ = e.__context__ = None
            ended.append("dropped the cause")
        ended.append("end")
        return x * 2, names(ended)

    return fn, calls()


class Failing:
    """An object whose special methods raise what native code catches."""

    def __init__(self, ended):
        self.ended = ended

    def __getattr__(self, name):
        thing = observed(self.ended, name)  # noqa: F841
        raise AttributeError(name)

    def __getitem__(self, index):
        thing = observed(self.ended, str(index))  # noqa: F841
        if index == 1:
            raise IndexError
        return index


@program(graphs=1)
def exceptions_that_native_code_catches_end_there():
    def fn(x):
        ended = []
        failing = Failing(ended)
        ended += [str(hasattr(failing, "a")), str(getattr(failing, "b", 3)), str(list(failing))]
        for item in failing:
            ended.append(f"item {item}")
        try:
            sorted([1, 2], key=lambda n: failing[n])
        except IndexError:
            ended.append("caught")
        ended.append("end")
        return x * 2, names(ended)

    return fn, calls()


@program(graphs=1)
def variables_of_a_generator_end_with_it():
    def fn(x):
        ended = []

        def steps(name):
            thing = observed(ended, name)  # noqa: F841
            try:
                yield 1
            except KeyError:
                ended.append("caught inside")
            yield 2

        def delegates():
            thing = observed(ended, "outer")  # noqa: F841
            yield from steps("inner")

        closed, thrown, outer = steps("closed"), steps("thrown"), delegates()
        for generator in (closed, thrown, outer):
            next(generator)
        closed.close()
        ended.append("after close")
        try:
            thrown.throw(ValueError)
        except ValueError:
            ended.append("caught")
        outer.throw(KeyError)
        ended.append("suspended again")
        outer.close()
        ended.append("end")
        return x * 2, names(ended), next(closed, None), next(thrown, None)

    return fn, calls()


@contextlib.contextmanager
def suppressing(ended):
    thing = observed(ended, "manager")  # noqa: F841
    try:
        yield
    except ValueError:
        ended.append("suppressed")


@program(graphs=1)
def what_a_with_statement_suppresses_ends_behind_it():
    def fn(x):
        ended = []

        def fails(name):
            thing = observed(ended, name)  # noqa: F841
            raise ValueError

        with suppressing(ended):
            fails("first")
        ended.append("between")
        with contextlib.suppress(ValueError):
            fails("second")
        ended.append("end")
        return x * 2, names(ended)

    return fn, calls()


@program(graphs=1)
def a_frame_that_holds_its_own_exception_is_not_cleared():
    def fn(x):
        seen = []

        def keeps():
            thing = Thing()
            seen.append(weakref.ref(thing))
            try:
                raise ValueError
            except ValueError as e:
                kept = e  # noqa: F841

        def passes():
            thing = Thing()
            seen.append(weakref.ref(thing))
            keeps()

        passes()
        return x * 2, [reference() is None for reference in seen]

    return fn, calls()


@program(graphs=0, eager=["unsupported-call"])
def frames_of_tracebacks_have_variables_and_callers():
    def fn(x):
        def fails():
            value = 5  # noqa: F841
            raise ValueError

        try:
            fails()
        except ValueError as e:
            frame = e.__traceback__.tb_next.tb_frame
            return x * 2, sorted(frame.f_locals), frame.f_back.f_code.co_name

    return fn, calls()


@program(graphs=0, eager=["unsupported-call"])
def the_callback_of_a_reference_is_read():
    def fn(x):
        thing, called = Thing(), [].append
        reference = weakref.ref(thing, called)
        return x * 2, reference.__callback__ is called, weakref.ref(thing).__callback__

    return fn, calls()


@program(graphs=0, eager=["unsupported-call"])
def attributes_of_tensors_end_with_them():
    def fn(x):
        ended = []
        y = x * 2
        y.thing = observed(ended, "attribute")
        del y
        return x + 1, names(ended)

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


# ------------------------------------------------------------------------- what the environment let go of in the call


class Slots:
    __slots__ = ("held",)


def held_by_attribute():
    holder = Thing()
    holder.held = Thing()
    return holder, holder.held


def held_by_slot():
    holder = Slots()
    holder.held = Thing()
    return holder, holder.held


def held_by_list():
    holder = [[Thing()], 1]
    return holder, holder[0][0]


def held_by_deque():
    holder = collections.deque([Thing()])
    return holder, holder[0]


def held_by_dictionary():
    holder = {"a": Thing()}
    return holder, holder["a"]


def held_as_key():
    key = Thing()
    return {key: 1}, key


def held_by_set():
    element = Thing()
    return {element}, element


def held_tensor():
    holder = Thing()
    holder.held = torch.ones(2)
    return holder, holder.held


def held_gradient():
    leaf = torch.ones(2, requires_grad=True)
    leaf.sum().backward()
    return leaf, leaf.grad


def held_by_tensor():
    holder = torch.ones(2)
    holder.held = Thing()
    return holder, holder.held


def held_module():
    holder = nn.Module()
    holder.held = nn.Linear(2, 2)
    return holder, holder.held


def unset(holder):
    holder.held = None


def delete(holder):
    del holder.held


def clear_gradient(leaf):
    leaf.grad = None


def pop(holder):
    holder.pop()


def take_first(holder):
    holder.popleft()


def assign_item(holder):
    holder[0] = None


def delete_item(holder):
    del holder[0]


def clear(holder):
    holder.clear()


def replace(holder):
    holder["a"] = 1


def delete_keys(holder):
    for key in list(holder):
        del holder[key]


_LET_GO = [
    (held_by_attribute, unset), (held_by_attribute, delete), (held_by_slot, unset), (held_by_slot, delete),
    (held_by_list, clear), (held_by_list, assign_item), (held_by_list, delete_item), (held_by_deque, take_first),
    (held_by_deque, pop), (held_by_dictionary, replace), (held_by_dictionary, clear), (held_by_dictionary, delete_keys),
    (held_as_key, clear), (held_as_key, delete_keys), (held_by_set, pop), (held_by_set, clear), (held_tensor, unset),
    (held_gradient, clear_gradient), (held_by_tensor, unset), (held_by_tensor, delete), (held_module, unset), (held_module, delete),
]  # fmt: skip


@pytest.mark.parametrize(("held", "let_go"), _LET_GO, ids=lambda fn: fn.__name__)
def test_a_reference_of_the_environment_sees_that_what_held_its_target_let_go(held, let_go):
    def fn(x, holder, reference):
        before = reference() is None
        let_go(holder)
        return x + 1, before, reference() is None

    compiled = smelt.compile(fn)
    for _ in range(3):
        holder, target = held()
        reference = weakref.ref(target)
        del target
        _, before, gone = compiled(tensor(2), holder, reference)
        assert (before, gone) == (False, True)


def referenced(count=1):
    """Holders of one thing each, and weak references to the things."""
    holders = [held_by_attribute()[0] for _ in range(count)]
    return holders, [weakref.ref(holder.held) for holder in holders]


@program(graphs=2, breaks=["unsupported-call"] * 2)
def references_are_called_as_holders_let_go():
    def fn(x, holders, references):
        gone = []
        for holder, reference in zip(holders, references):
            holder.held = None
            x = x * 2
            gone.append(reference() is None)
        return x, gone

    return fn, [(tensor(3), *referenced(3)) for _ in range(3)]


@program(graphs=2, breaks=["unsupported-call"])
def a_callee_lets_go_and_calls_the_reference():
    def lets_go(x, holder, reference):
        holder.held = None
        y = x * 2
        return y, reference() is None

    def fn(x, holders, references):
        y, gone = lets_go(x + 1, holders[0], references[0])
        return y * 3, gone

    return fn, [(tensor(3), *referenced()) for _ in range(3)]


@program(graphs=2, breaks=["graph-break-requested"])
def a_variable_still_holds_what_an_object_let_go_of():
    def fn(x, holders, references):
        thing = holders[0].held  # noqa: F841  # alive to the end of the function
        holders[0].held = None
        y = x * 2
        before = references[0]() is None
        smelt.graph_break()
        return y + 1, before, references[0]() is None

    return fn, [(tensor(3), *referenced()) for _ in range(3)]


@program(graphs=2, breaks=["graph-break-requested", "unsupported-call"])
def a_variable_that_came_over_a_break_lets_go():
    def fn(x, holders, references):
        thing = holders[0].held
        holders[0].held = None
        y = x * 2
        smelt.graph_break()
        named = type(thing).__name__
        del thing
        return y + 1, named, references[0]() is None

    return fn, [(tensor(3), *referenced()) for _ in range(3)]


@program(graphs=1, later=1)
def a_parent_that_is_referenced_weakly_while_attributes_change():
    class Child(nn.Module):
        def __init__(self, parent):
            super().__init__()
            self.parent, self.calls, self.last = weakref.ref(parent), 0, None

        def forward(self, x):
            self.calls += 1
            self.last = x * 2
            return x * self.parent().scale

    parent = Thing()
    parent.scale = 3
    child = Child(parent)
    child.last = tensor(3)
    return child, calls(), lambda: (parent, child.calls, child.last)


@program(graphs=1, later=1, breaks=["unsupported-call"])
def an_entry_is_not_for_calls_in_which_the_attribute_was_the_last_holder():
    kept = []

    def arguments(is_held):
        holder, thing = Thing(), Thing()
        holder.held = 3
        kept.append(thing) if is_held else setattr(holder, "held", thing)
        return tensor(3), holder, weakref.ref(thing)

    def fn(x, holder, reference):
        holder.held = None
        return x * 2, reference() is None

    return fn, [arguments(True), arguments(False), arguments(False)]


@program(graphs=1, breaks=["unsupported-call"])
def a_key_function_calls_the_reference():
    def fn(x, holders, references):
        holders[0].held = None
        return x * 2, sorted([3, 1], key=lambda i: (references[0]() is None, i)), max(1, 2, key=lambda i: -i)

    return fn, [(tensor(3), *referenced()) for _ in range(3)]


@program(graphs=1, breaks=["unsupported-call"] * 3)
def references_are_called_where_exceptions_are_handled():
    def fn(x, holders, references):
        try:
            holders[0].held = None
            x = x * references[0]().scale
        except AttributeError:
            holders[1].held = None
            x = x - int(references[1]() is None)
        with torch.no_grad():
            holders[2].held = None
            return x, references[2]() is None

    return fn, [(tensor(3), *referenced(3)) for _ in range(3)]


@program(graphs=1, later=1, fullgraph=True)
def a_parent_that_is_referenced_weakly_while_numbers_tuples_and_lists_change():
    parent, holder, steps, history = Thing(), Thing(), 0, [0, 0]
    parent.scale, holder.pair, holder.out = 3, (tensor(3), 1), [tensor(3)]
    reference = weakref.ref(parent)

    def fn(x):
        nonlocal steps
        steps += 1
        history[0] += 1
        holder.pair, holder.out = (x, 1), [x + 1]
        return x * reference().scale, steps

    return fn, calls(), lambda: (parent, holder, history)


@program(graphs=1, fullgraph=True)
def objects_with_finalizers_that_something_else_holds():
    kept = []

    def arguments():
        (held,), ended = ending()
        kept.append(held)
        holder = Thing()
        holder.held = held
        return tensor(3), holder, ended

    def fn(x, holder, ended):
        holder.held = None
        return x * 2, list(ended)

    return fn, [arguments() for _ in range(3)], kept


@program(graphs=1)
def what_the_call_created_and_an_object_let_go_of_is_gone():
    def fn(x, holder):
        holder.held = Thing()
        reference = weakref.ref(holder.held)
        before = reference() is None
        holder.held = None
        return x * 2, before, reference() is None

    return fn, [(tensor(3), held_by_attribute()[0]) for _ in range(3)]


class Equal:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 5


@program(graphs=1, breaks=["unsupported-object"] * 3)
def references_of_the_environment_are_compared_and_hashed():
    kept = []

    def arguments(is_alive):
        first, second = Equal(), Equal()
        kept.extend([first, second] if is_alive else [second])
        return tensor(3), weakref.ref(first), weakref.ref(second)

    def fn(x, first, second):
        return x * 2, first == second, first in [second], attempt(lambda: hash(first) == 5)

    return fn, [arguments(True), arguments(False), arguments(True)]


# ---------------------------------------------------------------------- finalizers of what the environment let go of


class Ending:
    def __init__(self, name, ended):
        self.name, self.ended = name, ended

    def __del__(self):
        self.ended.append(self.name)


def ending(count=1):
    ended = []
    return [Ending(i, ended) for i in range(count)], ended


@program(graphs=2, breaks=["unsupported-effect"])
def a_finalizer_runs_where_an_attribute_lets_go():
    def fn(x, holder, ended):
        holder.calls += 1
        y = x * 2
        holder.held = None
        ended.append("after")
        return y * len(ended), holder.calls

    def arguments():
        (held,), ended = ending()
        holder = Thing()
        holder.calls, holder.held = 0, [held]
        return tensor(3), holder, ended

    return fn, [arguments() for _ in range(3)]


@program(graphs=3, breaks=["unsupported-effect", "unsupported-effect"])
def finalizers_run_where_a_list_lets_go():
    def fn(x, held, ended):
        y = x * 2
        held.pop()
        ended.append("popped")
        y = y + 1
        held.clear()
        ended.append("cleared")
        return y * 3, list(ended)

    return fn, [(tensor(3), *ending(3)) for _ in range(3)]


@program(graphs=1, breaks=["unsupported-effect"])
def containers_that_hold_objects_with_finalizers_change_otherwise():
    def fn(x, holder, held, named, ended):
        held.append(3)
        named["new"] = 1
        y = x * 2
        holder.held = None
        ended.append("after")
        return y, list(ended), len(held), len(named)

    def arguments():
        held, ended = ending(3)
        holder = Thing()
        holder.held = held.pop()
        return tensor(3), holder, held[:1], {"a": held[1]}, ended

    return fn, [arguments() for _ in range(3)]


@program(graphs=1)
def what_is_moved_or_returned_is_not_dropped():
    def fn(x, holder, held, ended):
        first, second = held
        holder.first, holder.second = second, None
        held[0] = None
        ended.append("after")
        return x * 2, first

    def arguments():
        held, ended = ending(2)
        holder = Thing()
        holder.second = held[1]
        return tensor(3), holder, held, ended

    return fn, [arguments() for _ in range(3)]


@program(graphs=1, breaks=["unsupported-effect"])
def callbacks_of_weak_containers_run_where_an_object_lets_go():
    def fn(x, holder, things, named):
        y = x * 2
        holder.held = None
        return y, len(things), named.get("a") is None

    def arguments():
        holder, held = held_by_attribute()
        named = weakref.WeakValueDictionary()
        named["a"] = held
        return tensor(3), holder, weakref.WeakSet([held]), named

    return fn, [arguments() for _ in range(3)]


@program(graphs=1, breaks=["unsupported-effect"], eager=["unsupported-effect"])
def a_finalizer_runs_where_a_part_of_a_popped_tuple_is_deleted():
    def fn(x, named, ended):
        y = x * 2
        name, value = named.popitem()
        del value
        ended.append("after")
        return y * 2, list(ended), name

    def arguments():
        (held,), ended = ending()
        return tensor(3), {"a": held}, ended

    return fn, [arguments() for _ in range(3)]


@program(graphs=2, breaks=["unsupported-effect"], eager=["unsupported-effect"])
def a_finalizer_runs_where_a_callee_that_unpacked_it_returns():
    def second_of(held):
        _, number = held.pop()
        return number

    def fn(x, held, ended):
        y = x * 2
        number = second_of(held)
        ended.append("after")
        return y * 2, list(ended), number

    def arguments():
        (held,), ended = ending()
        return tensor(3), [(held, 3)], ended

    return fn, [arguments() for _ in range(3)]


@program(graphs=0, eager=["unsupported-effect"])
def a_dictionary_drops_keys_with_finalizers():
    def fn(x, named, ended):
        del named[next(iter(named))]
        return x * 2, list(ended)

    def arguments():
        held, ended = ending(2)
        return tensor(3), dict.fromkeys(held, 1), ended

    return fn, [arguments() for _ in range(3)]


def writing(path, y):
    open(path, "a").write(f"{y.ndim} and {len(y)}\n")


def writing_what_it_counts(path, y):
    count = path.open("a").write("abc")
    path.open("a").writelines([str(count), "d"])


def printing(path, y):
    print("abc", y.shape[0], file=open(path, "a"))


def dumping(path, y):
    json.dump({"a": 1}, open(path, mode="w"))


def writing_parts(path, y):
    text = "abcdef"
    (lambda: open(path, "a").write(text[1:3] + text[:2] + text[::2]))()


def failing(path, y):
    try:
        open(path, "a").write(3)
    except TypeError:
        open(path, "a").write("failed")


@pytest.mark.parametrize(
    "write",
    [writing, writing_what_it_counts, writing_parts, printing, dumping, failing],
    ids=lambda fn: fn.__name__,
)
def test_a_file_is_closed_behind_the_expression_that_opens_it(write, tmp_path):
    def fn(x, path):
        y = x * 2
        write(path, y)
        return (y + 1) * 2, path.stat().st_size

    compiled, x = smelt.compile(fn), tensor(3)
    for number in range(3):
        want, got = fn(x, tmp_path / "eager"), compiled(x, tmp_path / "compiled")
        assert torch.equal(want[0], got[0]) and want[1] == got[1]
        first = inspect.graph_count(compiled) if number == 0 else first
    assert (tmp_path / "eager").read_text() == (tmp_path / "compiled").read_text()
    assert compilation_of(compiled, first).eager == ()
    assert (first, inspect.graph_count(compiled)) == (2, 2)


def clearing(path):
    held = [open(path, "w")]
    held[0].write("abc")
    held.clear()


def unsetting(path):
    holder = Thing()
    holder.file = open(path, "w")
    holder.file.write("abc")
    holder.file = None


def unsetting_what_a_callee_opened(path):
    def opened():
        return open(path, "w")

    holder = Thing()
    holder.file = opened()
    holder.file.write("abc")
    holder.file = None


def iterating(path):
    for file in [open(path, "w")]:
        file.write("abc")
    file = None  # noqa: F841


@pytest.mark.parametrize(
    "write", [clearing, unsetting, unsetting_what_a_callee_opened, iterating], ids=lambda fn: fn.__name__
)
def test_a_file_is_closed_where_its_holder_drops_it(write, tmp_path):
    def fn(x, path):
        y = x * 2
        write(path)
        return y * 2, path.stat().st_size

    compiled = smelt.compile(fn)
    for _ in range(3):
        assert compiled(tensor(3), tmp_path / "file")[1] == 3


@program(graphs=3, breaks=["unsupported-call"] * 2 + ["unsupported-object"])
def objects_of_the_environment_are_added_to_its_weak_containers():
    things, seen, named = [Thing(), Thing()], weakref.WeakKeyDictionary(), weakref.WeakValueDictionary()

    def fn(x):
        y = x * 2
        seen[things[0]] = 3
        y = y + seen.get(things[0])
        named["a"] = things[1]
        return y * 2, len(seen), len(named)

    return fn, calls()


# ------------------------------------------------------------------------------------------ keys of the environment


@program(graphs=1, later=2)
def keys_of_a_dictionary_are_the_objects_of_the_environment():
    def fn(x, found, things):
        key = next(iter(found))
        kept = {**found}
        key.calls = 1
        del found[key]
        return x * 2, key is things[0], list(kept) == things, found.popitem()[0] is things[1], len(found)

    def arguments():
        things = [Thing(), Thing()]
        return tensor(3), dict.fromkeys(things, 1), things

    return fn, [arguments() for _ in range(3)]
