"""Rows for functions, methods, partial calls and the cells of closures."""

from __future__ import annotations

import builtins
import functools
import types

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.native_functions import is_pybind_method
from smelt.capture.base.value_kinds import MISSING, cell_value
from smelt.capture.base.vm_frames import Generator
from smelt.capture.reconstruction.builtin_containers import dict_text, pairs
from smelt.capture.reconstruction.frame_globals import provide
from smelt.capture.reconstruction.reconstruction_kind import Expressions, ReconstructionKind, unsupported


def _cell_contents(x: types.CellType) -> list[object]:
    value = cell_value(x)
    return [] if value is MISSING else [value]


def _fill_cell(x: types.CellType, text: Expressions, name: str) -> list[str]:
    return [f"{name}.cell_contents = {text(v)}" for v in _cell_contents(x)]


def _function_holds(f: types.FunctionType) -> list[object]:
    type_parameters = getattr(f, "__type_params__", ()) or None  # from 3.12 on
    return [
        f.__defaults__,
        f.__kwdefaults__,
        _annotate(f),
        _annotations(f) or None,
        type_parameters,
        *pairs(vars(f)),
    ]


def _annotate(f: types.FunctionType) -> object:
    """The function that evaluates its annotations on demand, from 3.14 on."""
    return getattr(f, "__annotate__", None)


def _annotations(f: types.FunctionType) -> dict[str, object]:
    return {} if _native.annotations_wait(f) else f.__annotations__


def _function_needs(f: types.FunctionType) -> list[object]:
    # mypy forgets the attribute when it reads its cache
    own: object = object.__getattribute__(f, "__builtins__")
    standard = f.__globals__.get("__builtins__", own)
    if own is not vars(builtins) or standard not in (builtins, vars(builtins)):
        raise unsupported(f, "with builtins of its own")
    return [f.__closure__, f.__defaults__, f.__globals__]


def _function_text(f: types.FunctionType, text: Expressions) -> str:
    arguments = ", ".join((repr(f.__name__), text(f.__defaults__), text(f.__closure__)))
    scope = text.unless_created(f.__globals__, "globals")
    return f"FunctionType({text.constant(f.__code__, f'code_of_{f.__name__}')}, {scope}, {arguments})"


def _function_fill(f: types.FunctionType, text: Expressions, name: str) -> list[str]:
    lines = [f"{name}.__qualname__ = {f.__qualname__!r}"]
    if f.__kwdefaults__:
        lines.append(f"{name}.__kwdefaults__ = {text(f.__kwdefaults__)}")
    annotate, annotations = _annotate(f), _annotations(f)
    if annotate is not None:
        lines.append(f"{name}.__annotate__ = {text(annotate)}")
    if annotate is not None and not _native.annotations_wait(f):  # they are evaluated
        lines.append(f"keep_annotations({name}, {text(annotations)})")
    elif annotations:
        lines.append(f"{name}.__annotations__ = {text(annotations)}")
    if f.__dict__:
        lines.append(f"{name}.__dict__.update({dict_text(vars(f), text)})")
    return lines


def _partial_text(p: functools.partial[object], text: Expressions) -> str:
    keywords = f", **{dict_text(p.keywords, text)}" if p.keywords else ""
    args = "".join(f", {text(a)}" for a in p.args)
    return f"partial({text(p.func)}{args}{keywords})"


def _method_parts(x: types.MethodType) -> tuple[object, ...]:
    return (x.__self__,) if _is_found_by_name(x) else (x.__func__, x.__self__)


def _is_found_by_name(x: types.MethodType) -> bool:
    """Whether `x` is reconstructed as an attribute of its object, as no source leads to its function."""
    return isinstance(x.__self__, Generator) or is_pybind_method(x.__func__, type(x.__self__))


def _method_text(x: types.MethodType, text: Expressions) -> str:
    if _is_found_by_name(x):
        return f"({text(x.__self__)}).{x.__func__.__name__}"
    return f"MethodType({text(x.__func__)}, {text(x.__self__)})"


def _bound_text(x: types.BuiltinMethodType | types.MethodWrapperType, text: Expressions) -> str:
    """A C method bound to an instance, also one that `super()` found and the instance's class overrides."""
    for base in type(x.__self__).__mro__[1:]:
        found = vars(base).get(x.__name__)
        if isinstance(found, _DESCRIPTORS) and found.__get__(x.__self__, base) == x:
            return f"{text.constant(found, f'{base.__name__}_{x.__name__}')}.__get__({text(x.__self__)})"
    return f"({text(x.__self__)}).{x.__name__}"


provide(keep_annotations=_native.keep_annotations)
_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)
FUNCTIONS: dict[type, ReconstructionKind] = {
    types.FunctionType: ReconstructionKind(
        _function_needs, _function_text, _function_text, _function_fill, _function_holds, named=True
    ),
    types.MethodType: ReconstructionKind(_method_parts, _method_text),
    types.BuiltinFunctionType: ReconstructionKind(lambda x: (x.__self__,), _bound_text),
    types.MethodWrapperType: ReconstructionKind(lambda x: (x.__self__,), _bound_text),
    functools.partial: ReconstructionKind(lambda x: (x.func, *x.args, *pairs(x.keywords)), _partial_text),
    types.CellType: ReconstructionKind(
        _cell_contents,
        lambda x, text: f"CellType({', '.join(map(text, _cell_contents(x)))})",
        lambda x, text: "CellType()",
        _fill_cell,
        _cell_contents,
    ),
}
