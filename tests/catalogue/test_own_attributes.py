"""Objects whose class, in C, has a way of its own to read and store attributes; fields of C; classes of modules and metaclasses.

What a class is known to do is done as it does it; of what is not known nothing is guessed: the graph breaks.
"""

from __future__ import annotations

import collections
import ctypes
import decimal
import functools
import io
import threading
import types
import weakref

import torch
from torch import nn

from tests.harness.catalogue import Changing, program, tensor


def calls(number=3):
    return [(tensor(3),) for _ in range(number)]


@program(graphs=1, later=2)
def a_thread_local_is_read():
    local = threading.local()
    local.factor = 3

    def fn(x):
        found = hasattr(local, "factor"), hasattr(local, "other"), getattr(local, "other", 5)
        return x * local.factor * found[2], found, sorted(vars(local)), local.__dict__["factor"]

    changes = {1: lambda: setattr(local, "factor", 7), 2: lambda: setattr(local, "other", 2)}
    return fn, Changing(calls(), changes)


@program(graphs=1, later=2)
def a_thread_local_is_written():
    local = threading.local()
    local.count = 3

    def fn(x):
        local.count += 1
        local.last = x * 2
        local.gone = 1
        del local.gone
        try:
            del local.gone
        except AttributeError as e:
            return x * local.count, str(e), hasattr(local, "gone")
        return x

    return fn, calls(), lambda: vars(local)


class Stack(threading.local):
    default = 5

    @property
    def top(self):
        return self.items[-1] if hasattr(self, "items") else self.default


@program(graphs=1, later=2)
def a_stack_for_each_thread():
    stack = Stack()

    def fn(x):
        before = stack.top
        if not hasattr(stack, "items"):
            stack.items = []
        stack.items.append(before + 1)
        return x * stack.top, len(stack.items)

    return fn, [*calls()], lambda: vars(stack)


def test_each_thread_has_its_own():
    import smelt

    local = threading.local()
    local.factor = 3
    compiled = smelt.compile(lambda x: x * getattr(local, "factor", 1))
    x, found = torch.ones(3), []
    assert compiled(x).tolist() == [3, 3, 3]
    thread = threading.Thread(target=lambda: found.append(compiled(x)))
    thread.start(), thread.join()
    assert found[0].tolist() == [1, 1, 1]
    assert compiled(x).tolist() == [3, 3, 3]


@program(graphs=1, later=1, breaks=("unsupported-call", "unsupported-call", "unsupported-object"))
def a_decimal_context_from_outside_is_not_guessed():
    context = decimal.Context(prec=5)

    def fn(x):
        return x * context.prec, context.traps[decimal.DivisionByZero]

    changes = {
        1: lambda: setattr(context, "prec", 7),
        2: lambda: context.traps.update({decimal.DivisionByZero: False}),
    }
    return fn, Changing(calls(), changes)


@program(graphs=1)
def a_decimal_context_made_inside():
    def fn(x):
        context = decimal.Context(prec=5)
        context.prec += 1
        third = context.divide(decimal.Decimal(1), decimal.Decimal(3))
        return (
            x * 2,
            context.traps[decimal.DivisionByZero],
            context.prec,
            str(third),
            hasattr(context, "none"),
        )

    return fn, calls()


class Plain:
    pass


@program(graphs=0, eager=("unsupported-object",))
def a_weak_proxy_from_outside():
    kept = Plain()
    kept.factor = 3
    proxy = weakref.proxy(kept)

    def fn(x):
        proxy.factor += 1
        return x * proxy.factor, hasattr(proxy, "other")

    return fn, calls(), kept


class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_int), ("y", ctypes.c_double)]


@program(graphs=2, later=2, breaks=("unsupported-effect",))
def fields_of_a_c_structure():
    point = Point(1, 2.5)

    def fn(x):
        y = x * point.y
        point.x += 1
        return y * point.x, hasattr(point, "z")

    return fn, calls(), lambda: (point.x, point.y)


@program(graphs=1, later=2)
def attributes_of_a_partial():
    bound = functools.partial(lambda a, b=1: a * b, b=2)
    bound.note = 7

    def fn(x):
        bound.seen = getattr(bound, "seen", 0) + bound.note
        return bound(x), hasattr(bound, "other"), bound.keywords

    return fn, Changing(calls(), {1: lambda: setattr(bound, "note", 9)}), lambda: vars(bound)


class Open(types.SimpleNamespace):
    def __getattr__(self, name):
        return name


@program(graphs=1, later=2)
def a_namespace_keeps_the_order_of_its_attributes():
    names = Open(a=3)

    def fn(x):
        names.b = names.a + 1
        del names.a
        names.a = 1
        return x * names.a, hasattr(names, "c"), names.c, list(vars(names))

    return fn, Changing(calls(), {2: lambda: setattr(names, "a", 7)}), names


@program(graphs=1, breaks=("unsupported-object",))
def a_namespace_is_compared_as_it_is_now():
    names = types.SimpleNamespace(a=3)

    def fn(x):
        names.b = 4
        return x * 2, names == types.SimpleNamespace(a=3, b=4)

    return fn, Changing(calls(), {2: lambda: setattr(names, "a", 7)}), names


class Options(dict):
    __getattr__ = dict.get
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


@program(graphs=1, later=2)
def attributes_that_are_items():
    options = Options(a=3)

    def fn(x):
        options.b = (options.b or 0) + 1
        options.c = 1
        del options.c
        return x * options.a, options.d, options.b

    return fn, calls(), options


@program(graphs=0, breaks=("unsupported-call",))
def a_file_is_asked():
    file = io.BytesIO(b"abc")

    def fn(x):
        return x, file.closed, file.tell()

    return fn, Changing(calls(), {1: lambda: file.read(1)})


class Logging(type):
    log = []

    def __getattribute__(cls, name):
        if name == "factor":
            Logging.log.append(name)
            return 11
        return super().__getattribute__(name)


class Logged(metaclass=Logging):
    other = 2


@program(graphs=1)
def a_metaclass_answers():
    Logging.log.clear()

    def fn(x):
        return x * Logged.factor * Logged.other, hasattr(Logged, "none")

    return fn, calls(), Logging.log


class Answering(types.ModuleType):
    @property
    def factor(self):
        return 5

    def __getattribute__(self, name):
        return 99 if name == "answer" else super().__getattribute__(name)


@program(graphs=1, later=1)
def a_module_is_given_another_class():
    module = types.ModuleType("module")
    module.factor = 2

    def fn(x):
        return x * module.factor, getattr(module, "answer", 0)

    changes = {
        1: lambda: setattr(module, "__class__", Answering),
        2: lambda: setattr(module, "__class__", types.ModuleType),
    }
    return fn, Changing(calls(), changes)


@program(graphs=1, later=1)
def a_module_is_given_a_getattr():
    module = types.ModuleType("module")

    def fn(x):
        return x * getattr(module, "factor", 1)

    changes = {
        1: lambda: setattr(module, "__getattr__", lambda name: 5),
        2: lambda: delattr(module, "__getattr__"),
    }
    return fn, Changing(calls(), changes)


class Doubling(nn.Module):
    def forward(self, x):
        return x * 2


class Tripling(nn.Module):
    def forward(self, x):
        return x * 3


@program(graphs=1, later=1)
def a_submodule_is_given_another_class():
    inner = Doubling()
    changes = {
        1: lambda: setattr(inner, "__class__", Tripling),
        2: lambda: setattr(inner, "__class__", Doubling),
    }
    return nn.Sequential(inner), Changing(calls(), changes)


class CallsOtherwise(Doubling):
    def _call_impl(self, *args):
        return super()._call_impl(*args) + 100


@program(graphs=1)
def a_class_with_a_call_impl_of_its_own():
    return nn.Sequential(CallsOtherwise()), calls()


@program(graphs=1, later=1)
def the_call_impl_of_all_modules_is_replaced():
    original = nn.Module._call_impl

    def logged(self, *args):
        return self.forward(*args) + 100

    changes = {
        1: lambda: setattr(nn.Module, "_call_impl", logged),
        2: lambda: setattr(nn.Module, "_call_impl", original),
    }
    return nn.Sequential(Doubling()), Changing(calls(), changes)


@program(graphs=1, later=1)
def the_call_impl_of_one_module_is_replaced():
    module = Doubling()
    changes = {
        1: lambda: setattr(module, "_call_impl", lambda x: module.forward(x) + 100),
        2: lambda: delattr(module, "_call_impl"),
    }
    return nn.Sequential(module), Changing(calls(), changes)


@program(graphs=1, later=1)
def a_counter_is_no_dictionary_only():
    counts = collections.Counter("aab")

    def fn(x):
        return x * counts["a"], counts["z"], counts.most_common(1)

    return fn, Changing(calls(), {2: lambda: counts.update("ccc")})


def watching(base):
    """A class that notes which attributes are read, `__class__` and `__dict__` among them."""

    class Watching(base):
        def __getattribute__(self, name):
            seen.append(name)
            return base.__getattribute__(self, name)

    seen = []
    return Watching, seen


@program(graphs=1)
def reads_of_attributes_are_the_programs_own():
    classes = [watching(base) for base in (object, list, set, str, Exception)]

    def fn(x):
        for cls, _ in classes:
            made = cls()
            made.factor = 3
            x = x * made.factor
            isinstance(made, int)
            del made.factor
        return x

    return fn, calls(), lambda: [seen for _, seen in classes]


@program(graphs=1)
def a_class_that_says_to_be_another():
    class Says:
        __class__ = property(lambda self: asked.append(1) or torch.Tensor)
        factor = 3

    asked = []

    def fn(x):
        says = Says()
        return x * says.factor, type(says) is Says

    return fn, calls(), lambda: len(asked)


@program(graphs=1, later=1)
def a_module_that_is_loaded_when_it_is_read():
    class Lazy(types.ModuleType):
        def __getattribute__(self, name):
            if name == "factor" and not loaded:
                loaded.append(name)
                self.factor = 5
            return super().__getattribute__(name)

    loaded = []
    module = Lazy("lazy")

    def fn(x):
        return x * module.factor, module.__name__

    return fn, calls(), lambda: (loaded, vars(module).get("factor"))
