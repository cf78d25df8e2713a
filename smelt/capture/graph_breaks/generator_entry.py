"""Compiled generator functions and coroutines: a call binds the arguments and returns a generator that runs in steps."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence

from smelt._native import isinstance
from smelt.capture.base.bytecode import Code
from smelt.capture.graph_breaks.generator_steps import Suspension, generator
from smelt.capture.graph_breaks.profitability import has_tensors
from smelt.capture.graph_breaks.resume_functions import ResumeFunctions
from smelt.capture.graph_breaks.resume_points import ResumePoint
from smelt.capture.semantics.calls.argument_binding import VARARGS, VARKEYWORDS, arguments_source, parameters
from smelt.runtime.generated_source import compile_source


def generator_factory(
    fn: types.FunctionType, resume_functions: ResumeFunctions, decode: Callable[[types.CodeType], Code]
) -> types.FunctionType:
    """A function like `fn` that returns a generator or coroutine, which runs in steps if it has tensors."""
    code = fn.__code__

    def begin(values: Sequence[object]) -> object:
        """The generator in steps; None where `fn` creates it."""
        if not has_tensors((*values, fn)):
            return None
        variables = _variables(code, values, fn.__closure__ or ())
        cell = variables.pop("__class__", None) if "__class__" in code.co_freevars else None
        decoded = decode(code)
        slots = tuple(i for i, name in enumerate(decoded.local_names) if name in variables)
        assert cell is None or isinstance(cell, types.CellType)
        point = ResumePoint(code, decoded.names.index("RESUME"), slots, (), fn.__globals__, cell)
        call, step = resume_functions.step(point)
        arguments = tuple(variables[decoded.local_names[i]] for i in slots)
        state = Suspension(None, call, step, arguments)
        return generator(fn.__name__, fn.__qualname__, code, state, begins=True)

    return _binder(fn, begin)


def _variables(
    code: types.CodeType, values: Sequence[object], closure: Sequence[types.CellType]
) -> dict[str, object]:
    """The values of the variables when the function begins, by name."""
    variables: dict[str, object] = dict(zip(parameters(code), values, strict=True))
    for name in code.co_cellvars:
        variables[name] = types.CellType(variables[name]) if name in variables else types.CellType()
    return {**variables, **dict(zip(code.co_freevars, closure))}


def _binder(fn: types.FunctionType, begin: Callable[[Sequence[object]], object]) -> types.FunctionType:
    """A function with the parameters of `fn` that returns `begin(their values)` or, where that is None, calls `fn`."""
    code = fn.__code__
    names, count = parameters(code), code.co_argcount
    named = count + code.co_kwonlyargcount
    arguments = arguments_source(code, names)
    signature = list(names[:count])
    if code.co_posonlyargcount:
        signature.insert(code.co_posonlyargcount, "/")
    if code.co_flags & VARARGS or code.co_kwonlyargcount:
        signature.append(arguments[count] if code.co_flags & VARARGS else "*")
    signature += names[count:named]
    if code.co_flags & VARKEYWORDS:
        signature.append(arguments[-1])
    values = "".join(f"{name}, " for name in names)
    text = (
        f"def binder({', '.join(signature)}):\n"
        f"    return begin_of_frame(({values})) or function_of_frame({', '.join(arguments)})\n"
    )
    scope = {"begin_of_frame": begin, "function_of_frame": fn, "__name__": "smelt.compiled"}
    binder = compile_source(text, "binder", code.co_qualname, scope)
    binder.__defaults__, binder.__kwdefaults__ = fn.__defaults__, fn.__kwdefaults__
    return binder
