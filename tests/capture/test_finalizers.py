"""Finalizers of files, temporary directories, coroutines and other objects run when eager runs them, also around a break."""

import contextlib
import functools
import gc
import os
import sys
import tempfile
import warnings
import weakref

import pytest
import torch

import smelt
from smelt.report.inspect import reasons


class Thing:
    pass


class Finalized:
    def __init__(self, log):
        self.finalizer = weakref.finalize(self, log.append, "dropped")


def a_directory_whose_variable_is_not_read_again(x, log):
    directory = tempfile.TemporaryDirectory()
    name = directory.name
    os.getpid()
    return x + 1, os.path.isdir(name)


def a_file_whose_variable_is_not_read_again(x, log):
    file = tempfile.NamedTemporaryFile()  # noqa: SIM115
    name = file.name
    os.getpid()
    return x + 1, os.path.exists(name)


def a_directory_in_a_list(x, log):
    held = [tempfile.TemporaryDirectory()]
    name = held[0].name
    os.getpid()
    return x + 1, os.path.isdir(name)


def a_directory_that_is_deleted(x, log):
    directory = tempfile.TemporaryDirectory()
    name = directory.name
    del directory
    return x + 1, os.path.exists(name)


def a_directory_in_place_of_another(x, log):
    directory = tempfile.TemporaryDirectory()
    first = directory.name
    directory = tempfile.TemporaryDirectory()
    return x + 1, os.path.exists(first), os.path.exists(directory.name)


@contextlib.contextmanager
def entered():
    os.getpid()
    yield


def a_directory_that_is_deleted_inside_of_with(x, log):
    directory = tempfile.TemporaryDirectory()
    name = directory.name
    with entered():
        del directory
        found = os.path.exists(name)
    return x + 1, found


@contextlib.contextmanager
def knowing_its_caller():
    frame = sys._getframe(2)
    yield frame.f_code.co_name


def a_directory_that_is_deleted_while_a_generator_has_the_frame(x, log):
    directory = tempfile.TemporaryDirectory()
    name = directory.name
    with knowing_its_caller() as caller:
        del directory
        found = os.path.exists(name)
    return x + 1, found, caller


def name_of_a_directory(x):
    directory = tempfile.TemporaryDirectory()
    os.getpid()
    return directory.name


def a_directory_of_a_function_that_returns(x, log):
    name = name_of_a_directory(x)
    return x + 1, os.path.exists(name)


def an_object_with_a_finalizer(x, log):
    thing = Finalized(log)
    os.getpid()
    before = list(log)
    thing = None  # noqa: F841
    return x + 1, before, list(log)


def made(log):
    thing = Thing()
    os.getpid()
    thing.log = log
    return thing


def an_object_with_a_weak_reference_that_calls_back(x, log):
    thing = made(log)
    reference = weakref.ref(thing, lambda _: log.append("dropped"))
    del thing
    return x + 1, reference() is None, list(log)


async def nothing():
    pass


def an_object_of_a_variable_with_a_weak_reference_that_calls_back(x, log):
    thing = Thing()
    reference = weakref.ref(thing, lambda _: log.append("dropped"))
    return x + 1, reference() is thing


def a_coroutine_that_is_not_awaited(x, log):
    waiting = nothing()  # noqa: F841
    os.getpid()
    log.append("end")
    return x + 1, list(log)


def a_coroutine_of_which_a_frame_is_taken(x, log):
    frame = nothing().cr_frame
    log.append("taken")
    return x + 1, frame is None


def a_directory_without_a_variable(x, log):
    name = tempfile.TemporaryDirectory().name
    return x + 1, os.path.isdir(name)


def directories_of_a_comprehension(x, log):
    names = [tempfile.TemporaryDirectory(suffix=str(i)).name for i in range(2)]
    return x + 1, list(map(os.path.isdir, names))


def a_file_without_a_variable(x, log):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "text")
        open(path, "w").write("written")  # noqa: SIM115
        size = os.path.getsize(path)
    return x + 1, size


def compiled_with(held):
    return smelt.compile(lambda x: x + (held is None), backend="eager")


def a_compiled_function_that_holds_an_object(x, log):
    called = compiled_with(Finalized(log))
    os.getpid()
    y = called(x)
    del called
    return y, list(log)


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize(
    "fn",
    [
        a_directory_whose_variable_is_not_read_again,
        a_file_whose_variable_is_not_read_again,
        a_directory_in_a_list,
        a_directory_that_is_deleted,
        a_directory_in_place_of_another,
        a_directory_that_is_deleted_inside_of_with,
        a_directory_that_is_deleted_while_a_generator_has_the_frame,
        a_directory_of_a_function_that_returns,
        an_object_with_a_finalizer,
        an_object_with_a_weak_reference_that_calls_back,
        an_object_of_a_variable_with_a_weak_reference_that_calls_back,
        a_coroutine_that_is_not_awaited,
        a_coroutine_of_which_a_frame_is_taken,
        a_directory_without_a_variable,
        directories_of_a_comprehension,
        a_file_without_a_variable,
        a_compiled_function_that_holds_an_object,
    ],
)
def test_finalizers_run_as_in_eager(fn, monkeypatch):
    log = []
    monkeypatch.setattr(
        warnings, "showwarning", lambda message, *rest: log.append(str(message).partition("<")[0])
    )

    def call(run):
        log.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            _, *found = run(torch.ones(2), log)
        return found, list(log)

    compiled = smelt.compile(fn, backend="eager")
    expected = call(fn)
    for _ in range(3):
        assert call(compiled) == expected


def test_a_compiled_function_on_the_stack_at_a_break_has_no_finalizer():
    """The table in which smelt finds it again has a callback for its end."""
    inner = smelt.compile(lambda x: x * 2)

    def fn(x):
        return inner(x + os.getpid())

    compiled, x = smelt.compile(fn), torch.ones(2)
    assert torch.equal(compiled(x), fn(x))
    assert [r.kind.id for r in reasons(compiled)] == ["input-output"]


def test_dead_object_without_a_finalizer_is_freed():
    """A dead variable holds no memory after a break."""

    def fn(x):
        large = x + 1
        thing = Thing()  # noqa: F841
        y = large.sum()
        os.getpid()
        return y * 2

    compiled = smelt.compile(fn, backend="eager")
    compiled(torch.ones(2))
    (after,) = (e for e in smelt.report.inspect.source(compiled).split("def ") if "getpid()" in e)
    assert "tail(resume_in_fn_at" in after
    assert "thing" not in after and after.count("t0") <= 3
    assert [r.kind.id for r in reasons(compiled)] == ["input-output"]


def test_a_callback_that_is_not_captured_prints_nothing(capfd):
    """CPython prints an exception that the callback of a weak reference raises, a refusal by smelt too."""

    def fn(x, log):
        thing = Thing()
        reference = weakref.ref(thing, lambda _: log.append(os.getpid()))  # noqa: F841
        return x + 1

    def call(run):
        log = []
        run(torch.ones(2), log)
        return log

    compiled = smelt.compile(fn)
    assert [call(run) for run in (fn, compiled, compiled)] == [[os.getpid()]] * 3
    assert [reason.kind.id for reason in reasons(compiled)] == ["input-output"]
    assert "Exception ignored" not in capfd.readouterr().err


class Failure(Exception):
    pass


def raises_from_a_callee(x, log):
    references = []

    def fails():
        thing = Thing()
        references.append(weakref.ref(thing, lambda _: log.append("dropped")))
        raise Failure

    fails()


def raises_an_error_that_holds_the_object(x, log):
    error = Failure()
    error.thing = Thing()
    error.reference = weakref.ref(error.thing, lambda _: log.append("dropped"))
    raise error from KeyError()


def a_cycle_holds_the_object(x, log):
    thing = Thing()
    thing.self, thing.reference = thing, weakref.ref(thing, log.append)
    raise Failure


@pytest.mark.parametrize(
    "fn", [raises_from_a_callee, raises_an_error_that_holds_the_object, a_cycle_holds_the_object]
)
def test_callbacks_run_once_where_an_exception_leaves_the_function(fn):
    """The call runs again in eager mode; the objects of its capture are dropped without their callbacks."""

    def call(run):
        log = []
        with pytest.raises(Failure):
            run(torch.ones(2), log)
        gc.collect()
        return log

    compiled = smelt.compile(fn)
    assert [call(compiled) for _ in range(3)] == [call(fn)] * 3


LEVEL = 1


def test_the_globals_of_a_module_are_not_dropped(monkeypatch):
    """They stay, with what has finalizers among them, whatever dictionary of them is on the stack at a break."""
    monkeypatch.setitem(globals(), "KEPT", Finalized([]))

    def fn(x):
        globals()["LEVEL"] = 4
        y = x * LEVEL
        sys.modules[__name__].LEVEL = 1
        return y + LEVEL + vars(sys.modules[__name__])["LEVEL"]

    compiled = smelt.compile(fn)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3)), fn(torch.ones(3)))
    assert not any("dropped" in reason.detail for reason in reasons(compiled))


class Holder:
    __slots__ = ("__dict__", "slot")


def stored_attribute(holder):
    holder.attribute = None


def deleted_attribute(holder):
    del holder.attribute


def replaced_slot(holder):
    holder.slot = Thing()


def replaced_item(holder):
    holder.attribute[0] = None


def popped_item(holder):
    holder.attribute.pop()


def sliced_list(holder):
    holder.attribute[:] = []


def stored_key(holder):
    holder.attribute["key"] = None


def deleted_key(holder):
    del holder.attribute["key"]


def cleared_dictionary(holder):
    holder.attribute.clear()


def dropped_holder(holder):
    holder.attribute["key"] = {}


@pytest.mark.parametrize(
    "drop, place",
    [
        (stored_attribute, lambda thing: thing),
        (deleted_attribute, lambda thing: thing),
        (replaced_slot, lambda thing: thing),
        (replaced_item, lambda thing: [thing]),
        (popped_item, lambda thing: [thing]),
        (sliced_list, lambda thing: [thing, 1]),
        (stored_key, lambda thing: {"key": thing}),
        (deleted_key, lambda thing: {"key": thing}),
        (cleared_dictionary, lambda thing: {"key": thing}),
        (dropped_holder, lambda thing: {"key": {"inner": [(thing,)]}}),
    ],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("create", [Thing, lambda: torch.ones(2)], ids=["object", "tensor"])
def test_an_entry_is_for_dropped_objects_without_a_finalizer(drop, place, create):
    """The first calls drop objects that nothing observes; a later one drops an object with a callback, or that holds one."""

    def fn(x, holder, log):
        drop(holder)
        return x + len(log)

    def call(run, observed):
        log, holder, thing = [], Holder(), create()
        holder.attribute = holder.slot = place(thing)
        if drop is replaced_slot:
            del holder.attribute
        else:
            del holder.slot
        reference = weakref.ref(thing, lambda _: log.append("dropped")) if observed else None
        del thing
        result = run(torch.ones(2), holder, log)[0].item()
        return result, list(log), reference and reference()

    compiled = smelt.compile(fn, backend="eager")
    for observed in (False, False, True, False, True):
        assert call(compiled, observed) == call(fn, observed)
    assert len(smelt.report.inspect.entries(compiled)) == 2


class Deleted:
    made = 0

    def __del__(self):
        Deleted.made += 1


def as_default(thing):
    return lambda x=thing: x


def in_generator(thing):
    made = (x for x in [1, thing])
    next(made)
    return made


@pytest.mark.parametrize(
    "hold",
    [
        lambda x: x,
        lambda x: functools.partial(print, x),
        lambda x: iter([x]),
        lambda x: map(str, [x]),
        as_default,
        in_generator,
    ],
)
def test_an_entry_is_for_dropped_objects_of_classes_without_a_finalizer(hold):
    def fn(x, holder):
        holder["key"] = None
        return x + Deleted.made

    compiled = smelt.compile(fn, backend="eager")
    for create in (Thing, Thing, Deleted, Thing, Deleted):
        before = Deleted.made
        found = []
        for run in (fn, compiled):
            Deleted.made = before
            found.append((run(torch.ones(2), {"key": hold(create())})[0].item(), Deleted.made))
        assert found[0] == found[1]
