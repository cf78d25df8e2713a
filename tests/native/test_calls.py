"""Calls of a wrapped function: hits, misses, how arguments are bound; windows, in which native code calls back."""

import contextlib
import copy
import functools
import gc
import inspect
import sys
import threading
import time
import traceback
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt import _native as native
from tests.harness.threads import in_threads

X = torch.ones(2)


@pytest.fixture(autouse=True)
def hook_is_off_afterwards():
    yield
    state = native.state()
    assert (state["mode"], state["installed"], state["hooked_threads"]) == ("off", False, 0)


def guard_type(slot, cls):
    """A guard tree that accepts calls whose argument at `slot` is exactly of class `cls`."""
    return native.GuardTree((((-1, "arg", slot, ((0, "type", cls),), -1),), 0))


def answer(word):
    """A compiled function that shows what it was called with."""
    return lambda *args: (word, *args)


# ------------------------------------------------------------------------------------------ hits and misses


def test_an_entry_answers_in_place_of_the_function():
    def f(x):
        return "eager"

    compiled = native.wrap(f)
    assert compiled(1) == "eager"
    native.add_entry(f.__code__, None, answer("hit"))
    assert compiled(1) == ("hit", 1, ())
    assert f(1) == "eager"


def test_the_compiled_function_gets_the_collected_tensors():
    def f(x, y):
        return None

    tree = native.GuardTree((((-1, "arg", 0, (), 1), (-1, "arg", 1, (), 0)), 2))
    native.add_entry(f.__code__, tree, lambda x, y, inputs: inputs)
    a, b = torch.ones(1), torch.ones(2)
    inputs = native.wrap(f)(a, b)
    assert inputs[0] is b and inputs[1] is a


def test_entries_are_tried_until_one_guard_accepts():
    def f(x):
        return "eager"

    compiled = native.wrap(f)
    for cls in (int, str, float):
        native.add_entry(f.__code__, guard_type(0, cls), answer(cls.__name__))
    for _ in range(3):
        assert [compiled(x)[0] for x in (1, "s", 2.0)] == ["int", "str", "float"]
        assert compiled(b"") == "eager"
    assert [g is not None for g, _ in native.entries(f.__code__)] == [True] * 3
    assert native.count(f.__code__) == 3
    native.clear(f.__code__)
    assert native.count(f.__code__) == 0 and native.entries(f.__code__) == []
    assert compiled(1) == "eager"


def test_a_miss_asks_the_callback_and_looks_again():
    asked = []

    def callback(fn, slots):
        asked.append((fn, slots, native.state()["mode"]))
        native.add_entry(f.__code__, guard_type(0, type(slots[0])), answer(type(slots[0]).__name__))
        return True

    def f(x):
        return "eager"

    compiled = native.wrap(f, callback)
    assert compiled(1) == ("int", 1, ())
    assert compiled(2) == ("int", 2, ())
    assert compiled("s") == ("str", "s", ())
    assert asked == [(f, (1,), "off"), (f, ("s",), "off")]


def test_false_runs_this_call_eagerly_and_close_stops_asking():
    asked = []

    def callback(fn, slots):
        asked.append(slots)
        if len(asked) == 2:
            native.close(fn.__code__)
        return False

    def f(x):
        return x

    compiled = native.wrap(f, callback)
    assert [compiled(i) for i in range(5)] == list(range(5))
    assert asked == [(0,), (1,)]
    assert native.is_closed(f.__code__)
    native.add_entry(f.__code__, guard_type(0, int), answer("hit"))
    assert compiled(7) == ("hit", 7, ())
    native.clear(f.__code__)
    assert compiled(8) == 8 and len(asked) == 3


def test_an_entry_that_refuses_its_own_call_is_reported_and_does_not_loop():
    asked = []

    def callback(fn, slots):
        asked.append(slots)
        native.add_entry(fn.__code__, guard_type(0, str), answer("hit"))
        return True

    def f(x):
        return "eager"

    compiled = native.wrap(f, callback)
    assert native.last_refused() is None
    assert compiled(1) == "eager" and len(asked) == 1
    assert native.last_refused() is f.__code__
    assert native.last_refused() is None


def test_a_thread_that_ends_leaves_no_reference_to_the_refused_code():
    def callback(fn, slots):
        native.add_entry(fn.__code__, guard_type(0, str), answer("hit"))
        return True

    namespace = {}
    exec("def f(x): return x", namespace)
    compiled = native.wrap(namespace["f"], callback)
    code = namespace["f"].__code__
    thread = threading.Thread(target=compiled, args=(1,))
    before = sys.getrefcount(code)
    thread.start(), thread.join()
    assert sys.getrefcount(code) == before
    assert native.last_refused() is None


def test_compiled_none_means_eager_without_asking():
    asked = []

    def f(x):
        return "eager"

    native.add_entry(f.__code__, guard_type(0, int), None)
    compiled = native.wrap(f, lambda *a: bool(asked.append(a)))
    assert compiled(1) == "eager" and not asked
    assert compiled("s") == "eager" and len(asked) == 1


def test_exceptions_of_callback_and_compiled_code_propagate():
    def f(x):
        return x

    def boom(*args):
        raise KeyError(args[0])

    compiled = native.wrap(f, boom)
    for _ in range(2):  # a raising callback is asked again
        with pytest.raises(KeyError):
            compiled(1)
    native.add_entry(f.__code__, None, boom)
    with pytest.raises(KeyError) as info:
        compiled(1)
    assert [t.name for t in traceback.extract_tb(info.tb)][1:] == ["boom"]
    assert info.value.__context__ is None


def test_eager_exceptions_show_no_frame_of_ours():
    def f(x):
        raise LookupError

    with pytest.raises(LookupError) as info:
        native.wrap(f, lambda *a: False)(1)
    assert [t.name for t in traceback.extract_tb(info.tb)][1:] == ["f"]


def test_generators_and_coroutines_run_eagerly_and_are_never_asked_about():
    asked = []

    def gen(n):
        yield from range(n)

    async def co(n):
        return n

    assert list(native.wrap(gen, lambda *a: asked.append(a))(3)) == [0, 1, 2]
    with pytest.raises(StopIteration) as done:
        native.wrap(co, lambda *a: asked.append(a))(4).send(None)
    assert done.value.value == 4 and not asked


def test_an_entry_that_is_one_graph_has_no_frame():
    """The graph is called instead of what was compiled, where that only calls it."""
    wrapped = native.wrap(lambda x: "eagerly")
    graph = native.wrap(lambda inputs: (("graph", inputs),))
    compiled = answer("compiled")
    native.add_entry(wrapped, guard_type(0, int), compiled, graph)
    assert wrapped(1) == ("graph", ()) and wrapped("x") == "eagerly"
    [(_, kept)] = native.entries(wrapped)
    assert kept is compiled


def test_a_graph_of_one_result_that_gives_another_is_an_error():
    wrapped = native.wrap(lambda x: "eagerly")
    native.add_entry(wrapped, None, answer("compiled"), lambda inputs: (1, 2))
    with pytest.raises(SystemError, match="one result"):
        wrapped(1)


def test_entries_of_one_wrapper_are_not_seen_by_another():
    def f(x):
        return "eager"

    a, b = native.wrap(f), native.wrap(f)
    native.add_entry(a, None, answer("a"))
    assert a(1) == ("a", 1, ()) and b(1) == "eager"
    native.add_entry(f.__code__, None, answer("code"))
    assert a(1)[0] == "a" and b(1)[0] == "code"
    native.clear(a)
    assert a(1)[0] == "code"
    native.close(a)
    assert native.is_closed(a) and not native.is_closed(b)


def test_replaced_code_is_looked_up_anew():
    def f(x):
        return "old"

    def g(x):
        return "new"

    native.add_entry(f.__code__, None, answer("hit"))
    compiled = native.wrap(f)
    assert compiled(1)[0] == "hit"
    f.__code__ = g.__code__
    assert compiled(1) == "new"


def test_a_callback_may_change_everything_under_the_call():
    def f(x, y=2):
        return x + y

    def callback(fn, slots):
        fn.__defaults__ = (30,)
        fn.__code__ = (lambda x, y: x * y).__code__
        native.clear(fn.__code__)
        gc.collect()
        return True

    assert native.wrap(f, callback)(5) == 150


# --------------------------------------------------------------------------------------- argument binding

SIGNATURES = [
    "",
    "a",
    "a, b=1",
    "a, /, b=1",
    "a, b=1, /, c=2, *, d, e=5",
    "*args",
    "**kw",
    "a, *args, k=3",
    "a=0, *args, k, **kw",
    "a, /, **kw",
    "*, k, j=2",
    "self, x, mask=None, *, scale=1.0, **kw",
]
WORDS = ["a", "b", "c", "d", "e", "k", "j", "x", "z", "mask", "scale", "self"]


def make_signature(parameters):
    """A function with these parameters, and its wrapper whose entry returns the slots."""
    scope = {}
    exec(f"def f({parameters}): return None", scope)
    f = scope["f"]
    native.add_entry(f.__code__, None, lambda *args: args[:-1])
    return f, native.wrap(f)


FUNCTIONS = [make_signature(s) for s in SIGNATURES]


@given(
    st.sampled_from(FUNCTIONS),
    st.lists(st.integers(), max_size=5),
    st.dictionaries(st.sampled_from(WORDS), st.integers(), max_size=5),
)
@settings(max_examples=400, deadline=None)
def test_arguments_are_bound_as_python_binds_them(pair, args, kwargs):
    f, compiled = pair
    try:
        bound = inspect.signature(f).bind(*args, **kwargs)
        f(*args, **kwargs)  # the signature of 3.13.0 binds more
    except TypeError:
        with pytest.raises(TypeError) as ours:
            compiled(*args, **kwargs)
        with pytest.raises(TypeError) as python:
            f(*args, **kwargs)
        assert str(ours.value) == str(python.value)
        return
    bound.apply_defaults()
    code = f.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    names += tuple(n for n in ("args", "kw") if n in bound.arguments)
    assert compiled(*args, **kwargs) == tuple(bound.arguments[n] for n in names)


def test_keyword_names_that_are_not_interned_are_found():
    _, compiled = make_signature("alpha, beta=2")
    assert compiled(**{"".join(["al", "pha"]): 1, "".join(["be", "ta"]): 3}) == (1, 3)


def test_more_arguments_than_fit_the_local_buffer():
    names = ", ".join(f"a{i}" for i in range(40))
    _, compiled = make_signature(names)
    assert compiled(*range(40)) == tuple(range(40))
    assert compiled(**{f"a{i}": i for i in range(40)}) == tuple(range(40))


def test_methods_bind_like_functions():
    class Model:
        def forward(self, x, y=1):
            return "eager"

    native.add_entry(Model.forward.__code__, None, lambda self, x, y, inputs: (self, x, y))
    Model.forward = native.wrap(Model.forward)
    model = Model()
    assert model.forward(2) == (model, 2, 1)
    assert model.forward(2, y=3) == (model, 2, 3)
    assert Model.forward(model, 4) == (model, 4, 1)
    bound = model.forward
    assert bound.__self__ is model and bound(5) == (model, 5, 1)


# -------------------------------------------------------------------------------------------- the wrapper


def test_a_wrapper_looks_like_its_function():
    def f(x: int, y=2):
        "Says what f does."

    compiled = native.wrap(f)
    assert compiled.__wrapped__ is f
    for name in (
        "__name__",
        "__qualname__",
        "__doc__",
        "__module__",
        "__code__",
        "__defaults__",
        "__annotations__",
    ):
        assert getattr(compiled, name) == getattr(f, name)
    assert inspect.signature(compiled) == inspect.signature(f)
    assert "compiled" in repr(compiled) and "f" in repr(compiled)
    f.note = 1
    assert compiled.note == 1
    compiled.note = 2
    assert (compiled.note, f.note) == (2, 1)
    compiled.__name__ = "g"
    assert (compiled.__name__, f.__name__) == ("g", "f")
    del compiled.__name__
    assert compiled.__name__ == "f"
    with pytest.raises(AttributeError):
        compiled.missing
    assert copy.deepcopy(compiled) is compiled and copy.copy(compiled) is compiled
    with pytest.raises(TypeError):
        type(compiled)()


def test_functools_works_on_wrappers():
    compiled = native.wrap(lambda x, y: "eager")
    native.add_entry(compiled, None, lambda x, y, inputs: (x, y))
    assert functools.partial(compiled, 1)(y=2) == (1, 2)
    assert functools.wraps(compiled)(lambda: 0).__wrapped__ is compiled


def test_wrappers_are_collected_with_cycles():
    def make():
        def f(x):
            return "eager"

        compiled = native.wrap(f, lambda fn, slots: compiled)
        native.add_entry(compiled, None, lambda x, inputs: compiled)
        compiled.me = compiled
        return weakref.ref(compiled)

    ref = make()
    gc.collect()
    assert ref() is None


def test_wrong_arguments_are_rejected():
    def f():
        pass

    with pytest.raises(TypeError):
        native.wrap(len)
    with pytest.raises(TypeError):
        native.wrap(f, 3)
    for args in ((f, None, None), (f.__code__, 3, None), (f.__code__, None, 3)):
        with pytest.raises(TypeError):
            native.add_entry(*args)
    for function in (native.count, native.clear, native.close, native.entries, native.skip):
        with pytest.raises(TypeError):
            function(3)
    with pytest.raises(TypeError):
        native.call_with_frame_hook(len, ([],), None, None)


# ---------------------------------------------------------------------------------------------- recursion


def test_recursion_through_the_wrapper():
    def fib(n):
        return n if n < 2 else compiled(n - 1) + compiled(n - 2)

    compiled = native.wrap(fib, lambda *a: False)
    assert compiled(12) == 144


@pytest.mark.parametrize("entry", [True, False])
def test_endless_recursion_is_a_recursion_error(entry):
    def f(n):
        return compiled(n + 1)

    compiled = native.wrap(f)
    if entry:
        native.add_entry(compiled, None, lambda n, inputs: compiled(n + 1))
    for limit in (1000, 10**6):
        old = sys.getrecursionlimit()
        sys.setrecursionlimit(limit)
        try:
            with pytest.raises(RecursionError):
                compiled(0)
        finally:
            sys.setrecursionlimit(old)
    assert native.wrap(lambda: 1)() == 1


# ------------------------------------------------------------------------------------------------ threads


def test_threads_may_change_entries_while_others_call():
    def f(x):
        return "eager"

    def callback(fn, slots):
        native.add_entry(fn.__code__, guard_type(0, type(slots[0])), answer("hit"))
        return True

    compiled = native.wrap(f, callback)
    until = time.monotonic() + 1.5
    errors = []

    def call(value):
        while time.monotonic() < until:
            result = compiled(value)
            if result not in ("eager", ("hit", value, ())):
                errors.append(result)

    def change():
        while time.monotonic() < until:
            native.add_entry(f.__code__, guard_type(0, bytes), answer("never"))
            if native.count(f.__code__) > 6:
                native.clear(f.__code__)

    def window():
        while time.monotonic() < until:
            keyed = native.call_with_frame_hook(sorted, ([3, 1, 2],), {"key": lambda v: -v}, lambda fn, v: v)
            if keyed != [1, 2, 3]:
                errors.append(keyed)

    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        in_threads([*(functools.partial(call, v) for v in (1, "s", 2.5)), change, window])
    finally:
        sys.setswitchinterval(old)
    assert not errors


def test_two_threads_compile_once_when_the_callback_serializes():
    lock, made = threading.Lock(), []

    def f(x):
        return "eager"

    def callback(fn, slots):
        before = native.count(fn.__code__)
        with lock:
            if native.count(fn.__code__) == before:
                time.sleep(0.02)
                made.append(slots)
                native.add_entry(fn.__code__, guard_type(0, int), answer("hit"))
        return True

    compiled = native.wrap(f, callback)
    barrier, results = threading.Barrier(4), []

    def work():
        barrier.wait()
        results.append(compiled(1))

    in_threads([work] * 4)
    assert results == [("hit", 1, ())] * 4 and len(made) == 1


# ------------------------------------------------------------------------------------------------ windows


def diverted(fn, *args, **kwargs):
    """The result of native `fn` in a window, and the (function name, slots) that the VM was handed."""
    seen = []

    def vm(function, *slots):
        seen.append((function.__name__, slots))
        return function(*slots)

    return native.call_with_frame_hook(fn, args, kwargs, vm), seen


class Number:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n

    def __lt__(self, other):
        return self.n < other.n

    def __hash__(self):
        return 1

    def __repr__(self):
        return f"#{self.n}"

    def __len__(self):
        return self.n


def test_python_functions_that_native_code_calls_go_to_the_vm():
    def key(v):
        return -v

    assert diverted(sorted, [1, 3, 2], key=key) == ([3, 2, 1], [("key", (1,)), ("key", (3,)), ("key", (2,))])
    assert diverted(list, map(key, (1, 2))) == ([-1, -2], [("key", (1,)), ("key", (2,))])
    assert diverted(functools.reduce, lambda a, b: a + b, [1, 2, 3])[1] == [
        ("<lambda>", (1, 2)),
        ("<lambda>", (3, 3)),
    ]
    assert diverted(functools.partial(key, 5)) == (-5, [("key", (5,))])


def test_special_methods_that_native_code_calls_go_to_the_vm():
    a, b, c = Number(2), Number(2), Number(1)
    assert diverted(lambda_free_eq, a, b)[1] == [("__eq__", (a, b))]
    assert [name for name, _ in diverted(sorted, [a, c])[1]] == ["__lt__"]
    assert diverted(repr, [a])[0] == "[#2]"
    assert [name for name, _ in diverted(len, a)[1]] == ["__len__"]
    assert [name for name, _ in diverted({a: 1}.get, b)[1]] == ["__hash__", "__eq__"]
    assert [name for name, _ in diverted(Number, 3)[1]] == ["__init__"]


lambda_free_eq = (1).__class__.__eq__ and __import__("operator").eq


def test_the_vm_decides_the_result_and_may_raise():
    assert native.call_with_frame_hook(sorted, ([1, 2, 3],), {"key": lambda v: v}, lambda fn, v: -v) == [
        3,
        2,
        1,
    ]

    def vm(fn, *slots):
        raise LookupError("vm")

    with pytest.raises(LookupError):
        native.call_with_frame_hook(sorted, ([1, 2],), {"key": lambda v: v}, vm)


def test_the_vm_may_have_a_function_run_as_it_is():
    def key(v):
        return inner(v)

    def inner(v):
        return -v

    def vm(fn, v):
        seen.append(fn)
        return 2 * v if fn is inner else native.NATIVELY

    seen = []
    assert native.call_with_frame_hook(sorted, ([1, 2],), {"key": key}, vm) == [1, 2]
    assert seen == [key, inner, key, inner]  # what it calls is still handed to the VM


def test_a_function_run_as_it_is_frees_its_arguments():
    class Argument:
        pass

    def vm(fn, v):
        return native.NATIVELY

    made = [Argument(), Argument()]
    refs = [weakref.ref(a) for a in made]
    native.call_with_frame_hook(sorted, (made,), {"key": lambda a: id(a)}, vm)
    del made[:]
    assert [r() for r in refs] == [None, None]


def test_the_vm_may_mark_a_function_while_it_is_asked_about_it():
    def key(v):
        return inner(v)

    def inner(v):
        return -v

    def vm(fn, v):
        seen.append(fn)
        native.skip(fn)
        return native.NATIVELY

    seen = []
    assert native.call_with_frame_hook(sorted, ([1, 2],), {"key": key}, vm) == [2, 1]
    assert seen == [key]


def test_a_callable_answer_is_called_after_the_eager_run():
    def f(x):
        calls.append("f")
        if x < 0:
            raise ValueError
        return x

    def refuse():
        raise KeyError("after")

    calls, afters = [], [lambda: calls.append("after"), lambda: calls.append("after"), refuse]
    compiled = native.wrap(f, lambda fn, slots: afters.pop(0))
    assert compiled(1) == 1 and calls == ["f", "after"]
    with pytest.raises(ValueError):
        compiled(-1)
    assert calls == ["f", "after", "f"]  # not after an exception
    with pytest.raises(KeyError, match="after"):
        compiled(1)


def test_the_vm_itself_runs_with_the_hook_off_and_may_open_windows():
    depth = []

    def vm(fn, *slots):
        depth.append(native.state()["mode"])
        if len(depth) < 5:
            return native.call_with_frame_hook(max, ([1, 2],), {"key": lambda v: v}, vm)
        return fn(*slots)

    native.call_with_frame_hook(max, ([1, 2],), {"key": lambda v: v}, vm)
    assert set(depth) == {"off"}


def test_all_kinds_of_slots_reach_the_vm():
    def f(a, /, b, *rest, k=3, **more):
        return None

    def vm(fn, *slots):
        return fn is f and slots

    assert native.call_with_frame_hook(functools.partial(f, 1, 2, 4, z=5), (), None, vm) == (
        1,
        2,
        3,
        (4,),
        {"z": 5},
    )
    wide = eval("lambda " + ", ".join(f"a{i}" for i in range(40)) + ": 0")
    assert native.call_with_frame_hook(wide, tuple(range(40)), None, lambda fn, *slots: slots) == tuple(
        range(40)
    )


def test_generator_functions_go_to_the_vm_as_calls():
    def gen(n):
        yield n

    result, seen = diverted(map(gen, [1, 2]).__next__)
    assert seen == [("gen", (1,))] and next(result) == 1


def test_a_started_generator_runs_natively_and_its_calls_go_to_the_vm():
    def helper(n):
        return n * 10

    def gen():
        yield helper(1)
        yield helper(2)

    assert diverted(list, gen()) == ([10, 20], [("helper", (1,)), ("helper", (2,))])


def test_skipped_functions_and_all_they_call_pass():
    def inner(v):
        return -v

    def outer(v):
        return inner(v)

    native.skip(outer)
    assert diverted(sorted, [1, 2], key=outer) == ([2, 1], [])
    native.skip(inner.__code__)
    assert diverted(sorted, [1, 2], key=inner) == ([2, 1], [])


def test_a_wrapper_called_in_a_window_goes_to_the_vm():
    def f(v):
        return -v

    compiled = native.wrap(f, lambda *a: pytest.fail("not asked in a window"))
    native.add_entry(compiled, None, lambda *a: pytest.fail("not answered in a window"))
    assert diverted(sorted, [1, 2], key=compiled)[1] == [("f", (1,)), ("f", (2,))]


def test_the_collector_and_trace_functions_are_not_diverted():
    class Cyclic:
        def __init__(self):
            self.me = self

        def __del__(self):
            finalized.append(native.state()["mode"])

    finalized = []
    Cyclic()
    _, seen = diverted(gc.collect)
    assert finalized == ["off"] and seen == []

    events = []

    def tracer(frame, event, arg):
        events.append(event)

    sys.setprofile(tracer)
    try:
        _, seen = diverted(sorted, [1, 2], key=lambda v: v)
    finally:
        sys.setprofile(None)
    assert events and {name for name, _ in seen} == {"<lambda>"}


def test_other_threads_are_not_diverted():
    started, results = threading.Event(), []

    def work():
        started.wait()
        results.append(sorted([1, 2], key=lambda v: -v))

    thread = threading.Thread(target=work)
    thread.start()

    def vm(fn, v):
        started.set()
        thread.join()
        return v

    assert native.call_with_frame_hook(sorted, ([2, 1],), {"key": lambda v: -v}, vm) == [1, 2]
    assert results == [[2, 1]]


def test_deep_recursion_in_a_window_is_a_recursion_error():
    class Deep:
        def __repr__(self):
            return repr(self)

    def vm(fn, *slots):
        return native.call_with_frame_hook(repr, slots, None, vm)

    old = sys.getrecursionlimit()
    for limit in (old, 10**6):
        sys.setrecursionlimit(limit)
        try:
            with pytest.raises(RecursionError):
                native.call_with_frame_hook(repr, (Deep(),), None, vm)
        finally:
            sys.setrecursionlimit(old)


def test_native_recursion_depth_in_a_window_is_that_of_python():
    """Frames under the hook are not charged against the C recursion budget, so the usual limit is reached."""

    def down(n):
        return down(n - 1) if n else "bottom"

    def generator():
        yield down(800)

    native.skip(down)
    assert native.call_with_frame_hook(list, (generator(),), None, lambda fn, *s: fn(*s)) == ["bottom"]


def test_frames_that_start_a_chunk_of_the_data_stack():
    scope = {}
    body = "".join(f"    v{i} = n\n" for i in range(150))
    exec(f"def wide(n, call):\n{body}    call(n)\n    return wide(n - 1, call) + v0 if n else 0", scope)

    def call(n):
        assert sorted([n, n + 1], key=lambda *v: -v[0]) == [n + 1, n]

    def window(n):
        assert native.call_with_frame_hook(
            sorted, ([n, n + 1],), {"key": lambda *v: -v[0]}, lambda fn, v: -v[0]
        ) == [
            n + 1,
            n,
        ]

    assert scope["wide"](200, window) == scope["wide"](200, call) == 200 * 201 // 2


# -------------------------------------------------------------------------------------------------- leaks


def measure(run, watched):
    """How much reference counts and the number of tracked objects changed over many calls."""
    run(200)
    gc.collect()
    counts, objects = [sys.getrefcount(o) for o in watched], len(gc.get_objects())
    run(5000)
    gc.collect()
    after = [sys.getrefcount(o) for o in watched]
    return max(abs(a - b) for a, b in zip(after, counts)), abs(len(gc.get_objects()) - objects)


class Token:
    """An object whose reference count is watched."""


@pytest.mark.parametrize(
    "case", ["hit", "keywords", "miss", "raise", "callback", "refuse", "bad_call", "window"]
)
def test_no_leak(case):
    o = Token()

    def f(a, b=o, *rest, k=o, **kw):
        if case == "raise":
            raise KeyError
        return a

    compiled = native.wrap(f, (lambda *a: case == "refuse") if case in ("callback", "refuse") else None)
    if case in ("hit", "keywords"):
        native.add_entry(compiled, guard_type(0, Token), lambda *args: args)
    if case == "miss":
        native.add_entry(compiled, guard_type(0, int), lambda *args: args)
    key = lambda *v, k=o: (v, k)[2:]

    def once():
        if case == "hit":
            compiled(o)
        elif case == "bad_call":
            compiled(o, o, o, b=o, z=o)
        elif case == "window":
            native.call_with_frame_hook(sorted, ([o, o],), {"key": key}, lambda fn, *slots: 0)
        else:
            compiled(o, o, o, k=o, z=o)

    def run(n):
        for _ in range(n):
            with contextlib.suppress(KeyError, TypeError):
                once()

    counts, objects = measure(run, [o, f, f.__code__, compiled, Token, key, None.__class__])
    assert counts <= 1 and objects < 20


def test_entries_die_with_their_code():
    class Compiled:
        def __call__(self, *args):
            return None

    def make():
        def f(x):
            return x

        return native.wrap(f), f.__code__.replace(co_name="copy")

    compiled, code = make()
    function = Compiled()
    ref = weakref.ref(function)
    native.add_entry(code, None, function)
    del function
    assert ref() is not None
    del code
    assert ref() is None


# ------------------------------------------------------------------------------------------ what generators need


def test_raise_at_shows_another_place():
    def raising():
        error = ValueError("x")
        last = list(raising.__code__.co_positions())
        native.raise_at(error, 2 * (len(last) - 1))
        return [  # the last instruction stands here
            error
        ]

    with pytest.raises(ValueError, match="x") as caught:
        raising()
    assert caught.value.__traceback__ is not None
    shown = caught.value.__traceback__.tb_next
    assert shown is not None and shown.tb_frame.f_code is raising.__code__
    assert shown.tb_lineno == raising.__code__.co_firstlineno + 4
    for wrong in ((ValueError("x"), 10**9), (ValueError("x"), -1), (1, 0)):
        with pytest.raises(ValueError, match="no such offset"):
            native.raise_at(*wrong)


def test_send_tells_a_value_from_the_end():
    def made():
        got = yield 1
        return got

    one = made()
    assert native.send(one, None) == (1, False)
    assert native.send(one, 5) == (5, True)
    assert native.send(iter([]), None) == (None, True)
