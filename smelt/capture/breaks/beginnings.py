"""Compiled functions that make a generator or coroutine: a call binds the arguments, and makes one that goes in steps."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence

from smelt._native import isinstance
from smelt.capture.base.bytecode import Code
from smelt.capture.breaks.points import Point
from smelt.capture.breaks.resume import Resumes
from smelt.capture.breaks.steps import Suspension, generator
from smelt.capture.breaks.worth import has_tensors
from smelt.capture.rebuilding.source import compiled_source


def beginning(
    fn: types.FunctionType, resumes: Resumes, decode: Callable[[types.CodeType], Code]
) -> types.FunctionType:
    """A function of the parameters of `fn` that makes what `fn` makes; if there are tensors, one that goes in steps."""
    code = fn.__code__

    def begin(values: Sequence[object]) -> object:
        if not has_tensors((*values, fn)):
            return _called(fn, values)
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


def _slots(code: types.CodeType) -> tuple[tuple[str, ...], bool, bool]:
    """The parameters: plain ones, then those for the rest; whether there is one for positional and for named ones."""
    rest, more = bool(code.co_flags & inspect.CO_VARARGS), bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + rest + more], rest, more


def _variables(
    code: types.CodeType, values: Sequence[object], closure: Sequence[types.CellType]
) -> dict[str, object]:
    """What is in the variables when the function begins."""
    found: dict[str, object] = dict(zip(_slots(code)[0], values, strict=True))
    for name in code.co_cellvars:
        found[name] = types.CellType(found[name]) if name in found else types.CellType()
    return {**found, **dict(zip(code.co_freevars, closure))}


def _called(fn: types.FunctionType, values: Sequence[object]) -> object:
    code = fn.__code__
    names, rest, more = _slots(code)
    plain = code.co_argcount + code.co_kwonlyargcount
    named: Mapping[str, object] = dict(zip(names[code.co_argcount : plain], values[code.co_argcount : plain]))
    extra = values[plain] if rest else ()
    others = values[-1] if more else {}
    assert isinstance(extra, tuple) and isinstance(others, dict)
    return fn(*values[: code.co_argcount], *extra, **named, **others)


def _binder(fn: types.FunctionType, begin: Callable[[Sequence[object]], object]) -> types.FunctionType:
    """A function of the parameters of `fn` that calls `begin` with their values."""
    code = fn.__code__
    names, rest, more = _slots(code)
    plain = code.co_argcount + code.co_kwonlyargcount
    parameters = list(names[: code.co_argcount])
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    if rest or code.co_kwonlyargcount:
        parameters.append(f"*{names[plain]}" if rest else "*")
    parameters += names[code.co_argcount : plain]
    if more:
        parameters.append(f"**{names[-1]}")
    text = f"def binder({', '.join(parameters)}):\n    return begin_of_frame(({''.join(n + ', ' for n in names)}))\n"
    made = compiled_source(
        text, "binder", code.co_qualname, {"begin_of_frame": begin, "__name__": "smelt.compiled"}
    )
    made.__defaults__, made.__kwdefaults__ = fn.__defaults__, fn.__kwdefaults__
    return made
