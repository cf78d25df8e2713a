"""Scopes that the program makes or has in hand: what code sees as its globals is the dictionary that the program changes."""

import ast
import importlib
import sys
import types

import smelt
from tests.harness.catalogue import Changing, program, tensor

SCALE = 2


def scaled(x):
    return x * SCALE


def inputs():
    return [(tensor(3),)] * 3


@program(graphs=1)
def function_made_in_a_scope():
    def fn(x):
        scope = {"SCALE": 3}
        made = types.FunctionType(scaled.__code__, scope, "made", (x,))
        before = made()
        scope["SCALE"] = 4
        return before, made(), made.__globals__ is scope, sorted(scope)

    return fn, inputs()


@program(graphs=3, later=4, breaks=["graph-break-requested", "unsupported-effect"])
def function_in_a_scope_behind_a_break():
    def fn(x):
        scope = {"SCALE": x + 3}
        made = types.FunctionType(scaled.__code__, scope)
        before = made(x)
        smelt.graph_break()
        scope["SCALE"] = scope["SCALE"] + 5
        return before, made(x), made.__globals__ is scope

    return fn, inputs()


@program(graphs=1, breaks=["graph-break-requested", "unsupported-effect"])
def functions_that_count_in_their_scope():
    def fn(x):
        scope = {}
        exec("def count(x):\n  global n\n  n = n + 1\n  return x * n\nn = 1", scope)
        first = scope["count"](x)
        smelt.graph_break()
        return first, scope["count"](x), scope["n"], scope["count"].__globals__ is scope

    return fn, inputs()


@program(graphs=1)
def a_scope_and_its_functions_leave():
    def fn(x):
        scope = {}
        exec("def outer(y):\n  return lambda: y * SCALE\nSCALE = len('abc')", scope)
        inner = scope.pop("outer")(x)
        scope["SCALE"] = 5
        return inner.__globals__ is scope, inner(), {k: v for k, v in scope.items() if k != "__builtins__"}

    return fn, inputs()


@program(graphs=1)
def a_scope_with_builtins_of_its_own():
    def fn(x):
        scope = {"__builtins__": {"len": lambda v: 77}}
        exec("n = len('ab')", scope)
        try:
            exec("abs(n)", scope)
        except NameError as e:
            return x * scope["n"], str(e)

    return fn, inputs()


@program(graphs=1, later=2, breaks=["unsupported-object"])
def a_scope_of_a_class_of_its_own():
    class Scope(dict):
        def __missing__(self, key):
            return 7

    def fn(x):
        return types.FunctionType(scaled.__code__, Scope(SCALE=3))(x)

    return fn, inputs()


@program(graphs=2, later=4, breaks=["unsupported-call", "unsupported-effect"])
def a_scope_from_outside():
    def fn(x, scope):
        made = types.FunctionType(scaled.__code__, scope)
        before = made(x)
        scope["SCALE"] = 9
        return before, made(x), made.__globals__ is scope

    return fn, [(tensor(3), {"SCALE": n}) for n in (3, 4, 5)]


@program(graphs=1)
def the_globals_of_a_function_are_those_of_its_module():
    def fn(x):
        made = types.FunctionType(scaled.__code__, scaled.__globals__)
        return made(x), made, made.__globals__ is globals()

    return fn, inputs()


@program(graphs=2, breaks=["unsupported-effect", "unsupported-effect"])
def the_globals_of_a_function_are_changed():
    def fn(x):
        before = scaled(x)
        scaled.__globals__["SCALE"] = 5
        changed = scaled(x)
        scaled.__globals__["SCALE"] = 2
        return before, changed

    return fn, inputs(), lambda: SCALE


@program(graphs=0, breaks=["unsupported-effect"], eager=["unsupported-effect"])
def a_global_that_was_written_is_read_from_the_dictionary():
    def fn(x):
        global SCALE
        SCALE = 7
        seen = scaled.__globals__["SCALE"], scaled(x)
        SCALE = 2
        return seen

    return fn, inputs(), lambda: SCALE


@program(graphs=1, later=1)
def modules_that_are_imported_by_a_call():
    def fn(x):
        return x + len(__import__("colorsys").__name__), __import__("os.path").__name__

    held = importlib.import_module("colorsys")
    changes = {
        1: lambda: sys.modules.update(colorsys=types.ModuleType("other")),
        2: lambda: sys.modules.update(colorsys=held),
    }
    return fn, Changing(inputs(), changes)


@program(graphs=1, later=2, breaks=["unsupported-call"] * 2)
def source_that_is_compiled_at_a_break():
    def fn(x):
        tree = compile("y: int = 5", "<source>", "exec", ast.PyCF_ONLY_AST)
        made = compile(tree, "<source>", "exec")
        names = {}
        exec(made, names)
        return x * names["y"], names.get("__annotations__"), made.co_flags  # deferred from 3.14 on

    return fn, inputs()
