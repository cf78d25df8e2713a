"""Compiled functions that make a generator or coroutine: a call binds the arguments, and makes one that goes in steps."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence

from smelt._native import isinstance
from smelt.capture.base.bytecode import Code
from smelt.capture.graph_breaks.generator_steps import Suspension, generator
from smelt.capture.graph_breaks.profitability import has_tensors
from smelt.capture.graph_breaks.resume_functions import Resumes
from smelt.capture.graph_breaks.resume_points import Point
from smelt.capture.reconstruction.generated_source import compiled_source
from smelt.capture.semantics.calls.argument_binding import VARARGS, VARKEYWORDS, arguments_text, parameters


def beginning(
    fn: types.FunctionType, resumes: Resumes, decode: Callable[[types.CodeType], Code]
) -> types.FunctionType:
    """A function of the parameters of `fn` that makes what `fn` makes; if there are tensors, one that goes in steps."""
    code = fn.__code__

    def begin(values: Sequence[object]) -> object:
        """None where `fn` itself is to make it."""
        if not has_tensors((*values, fn)):
            return None
        found = _variables(code, values, fn.__closure__ or ())
        cell = found.pop("__class__", None) if "__class__" in code.co_freevars else None
        decoded = decode(code)
        slots = tuple(i for i, name in enumerate(decoded.local_names) if name in found)
        assert cell is None or isinstance(cell, types.CellType)
        point = Point(code, decoded.names.index("RESUME"), slots, (), fn.__globals__, cell)
        call, step = resumes.step(point)
        given = tuple(found[decoded.local_names[i]] for i in slots)
        state = Suspension(None, call, step, given)
        return generator(fn.__name__, fn.__qualname__, code, state, begins=True)

    return _binder(fn, begin)


def _variables(
    code: types.CodeType, values: Sequence[object], closure: Sequence[types.CellType]
) -> dict[str, object]:
    """What is in the variables when the function begins."""
    found: dict[str, object] = dict(zip(parameters(code), values, strict=True))
    for name in code.co_cellvars:
        found[name] = types.CellType(found[name]) if name in found else types.CellType()
    return {**found, **dict(zip(code.co_freevars, closure))}


def _binder(fn: types.FunctionType, begin: Callable[[Sequence[object]], object]) -> types.FunctionType:
    """A function of the parameters of `fn` that gives what `begin` makes of their values, or what `fn` does."""
    code = fn.__code__
    names, count = parameters(code), code.co_argcount
    named = count + code.co_kwonlyargcount
    given = arguments_text(code, names)
    own = list(names[:count])
    if code.co_posonlyargcount:
        own.insert(code.co_posonlyargcount, "/")
    if code.co_flags & VARARGS or code.co_kwonlyargcount:
        own.append(given[count] if code.co_flags & VARARGS else "*")
    own += names[count:named]
    if code.co_flags & VARKEYWORDS:
        own.append(given[-1])
    values = "".join(f"{name}, " for name in names)
    text = (
        f"def binder({', '.join(own)}):\n"
        f"    return begin_of_frame(({values})) or function_of_frame({', '.join(given)})\n"
    )
    scope = {"begin_of_frame": begin, "function_of_frame": fn, "__name__": "smelt.compiled"}
    made = compiled_source(text, "binder", code.co_qualname, scope)
    made.__defaults__, made.__kwdefaults__ = fn.__defaults__, fn.__kwdefaults__
    return made
