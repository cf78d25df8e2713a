"""`globals`, `locals`, `eval`, `exec`, `compile`, `__import__` and `FunctionType`: code objects and their namespaces."""

from __future__ import annotations

import builtins
import re
import types
import warnings
from typing import Literal, cast

from smelt._native import isinstance
from smelt.capture.base.bytecode import FUTURE
from smelt.capture.base.call_handlers import Args, Kwargs, builtin, unsupported
from smelt.capture.base.value_kinds import NULL, FunctionType
from smelt.capture.base.vm_frames import Frame
from smelt.capture.semantics import cells, scopes
from smelt.capture.semantics.calls import imports
from smelt.capture.vm.vm import VM
from smelt.reasons import OUTPUT

builtin(globals)(lambda vm, args, kwargs: scopes.expose_globals(vm, vm.current_frame.globals))
builtin(locals)(lambda vm, args, kwargs: scopes.local_names(vm, vm.current_frame))


@builtin(compile)
def _compile(vm: VM, args: _Source, kwargs: Kwargs) -> object:
    if kwargs or not 3 <= len(args) <= 4 or not isinstance(args[0], (str, bytes)):
        raise unsupported("compile() with options, or of a syntax tree")
    return _compile_source(vm, *args)


_Source = tuple[str | bytes, str, str] | tuple[str | bytes, str, str, int]  # of `compile`


def _compile_source(vm: VM, source: str | bytes, filename: str, mode: str, flags: int = 0) -> types.CodeType:
    """`compile(source, filename, mode, flags)` with the `__future__` flags of the calling code."""
    vm.env.facts.use_digits(source)
    flags |= vm.current_frame.code.flags & FUTURE
    if not _compiles_with("error", source, mode, flags) and _compiles_with("ignore", source, mode, flags):
        raise unsupported("compile() of source that Python warns of", OUTPUT)
    code = compile(source, filename, mode, flags, dont_inherit=True)
    if not isinstance(code, types.CodeType):
        raise unsupported("compile() to a syntax tree")
    return code


_PROBE_FILENAME = "<source inspected by smelt>"


def _compiles_with(warning: Literal["error", "ignore"], source: str | bytes, mode: str, flags: int) -> bool:
    """Whether Python compiles `source` when its warnings are errors or ignored, without effect on other threads."""
    with warnings.catch_warnings():
        warnings.filterwarnings(warning, module=re.escape(_PROBE_FILENAME))
        try:
            compile(source, _PROBE_FILENAME, mode, flags, dont_inherit=True)
        except SyntaxError:
            return False
    return True


builtin(eval)(lambda vm, args, kwargs: _evaluate(vm, "eval", args, kwargs))
builtin(exec)(lambda vm, args, kwargs: _evaluate(vm, "exec", args, kwargs))


def _evaluate(vm: VM, mode: str, args: Args, kwargs: Kwargs) -> object:
    if kwargs or not 1 <= len(args) <= 3:
        raise unsupported(f"{mode}() with keywords")
    source, scope, names = (*args, None, None)[:3]
    scope, names = _namespaces(vm, mode, scope, names)
    if isinstance(source, (str, bytes)):
        source = _compile_source(vm, _strip_blanks(source) if mode == "eval" else source, "<string>", mode)
    if type(source) is not types.CodeType or source.co_freevars:
        raise unsupported(f"{mode}() of a {type(source).__qualname__}")
    function_object = FunctionType(source, scope)
    cells.register_function(vm, function_object)
    code = vm.decode(source)
    frame = Frame(code, function_object, [NULL] * code.nlocals)
    frame.namespace = names
    return vm.run(frame)


def _strip_blanks(source: str | bytes) -> str | bytes:
    """`source` without leading blanks, which do not indent an expression."""
    return source.lstrip(" \t") if isinstance(source, str) else source.lstrip(b" \t")


def _namespaces(vm: VM, mode: str, scope: object, names: object) -> tuple[dict[str, object], object]:
    """Dictionaries of global and local names. Raises Unsupported if the code could write to the environment's."""
    if scope is None:
        scope = vm.current_frame.globals
        names = scopes.local_names(vm, vm.current_frame) if names is None else names
    elif not isinstance(scope, dict):
        raise TypeError(f"{mode}() globals must be a dict, not {vm.class_of(scope).__name__}")
    elif id(scope) not in vm.env.sources:
        scopes.use_as_globals(vm, scope)
        scope.setdefault("__builtins__", vars(builtins))
    elif scope is not vm.current_frame.globals:
        raise unsupported(f"{mode}() in a scope of the environment")
    names = scope if names is None else names
    if type(names) is not dict or id(names) in vm.env.sources:
        raise unsupported(f"{mode}() with names of the environment")
    return scope, names


@builtin(__import__)
def _import(vm: VM, args: Args, kwargs: Kwargs) -> object:
    name, _, _, names, level = (*args, None, None, None, 0)[:5] if len(args) < 5 else args
    plain = type(names) in (tuple, type(None)) and all(
        type(n) is str for n in cast("tuple[object, ...]", names or ())
    )
    if kwargs or type(name) is not str or not plain or level != 0:
        raise unsupported("__import__() of a relative name, or with keywords")
    return imports.run_import(vm, name, None, cast("tuple[str, ...]", names), 0)


@builtin(FunctionType)
def _function(vm: VM, args: Args, kwargs: Kwargs) -> object:
    function_object = vm.call_native(FunctionType, args, kwargs)
    assert type(function_object) is FunctionType
    source = vm.env.sources.find(function_object.__globals__)
    if source is None:
        scopes.use_as_globals(vm, function_object.__globals__)
    elif source.kind != "const":
        raise unsupported("a function with globals of the environment")
    cells.register_function(vm, function_object)
    return function_object
