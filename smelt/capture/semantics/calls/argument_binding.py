"""Binding of arguments to frame slots as in CPython (`initialize_locals` in Python/ceval.c), with its error messages."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import CodeType
from typing import Literal

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY313, Code
from smelt.capture.base.value_kinds import LEAF_TYPES, NULL, FunctionType
from smelt.capture.environment import wrap_values
from smelt.capture.vm.vm import VM

VARARGS, VARKEYWORDS = 4, 8  # CO_VARARGS and CO_VARKEYWORDS of `co_flags`


def parameters(code: CodeType) -> tuple[str, ...]:
    """Names of a frame's argument slots in order: positional, keyword-only, *args, **kwargs."""
    variadic_count = bool(code.co_flags & VARARGS) + bool(code.co_flags & VARKEYWORDS)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + variadic_count]


def arguments_source(code: CodeType, slots: Sequence[str]) -> list[str]:
    """Source text of the arguments of a call that passes on the argument slots of a frame; `slots` names the slots."""
    count, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    variadic = list(slots[named:])
    positional = [*slots[:count], *([f"*{variadic.pop(0)}"] if code.co_flags & VARARGS else [])]
    keywords = [f"{name}={slot}" for name, slot in zip(code.co_varnames[count:named], slots[count:named])]
    return [*positional, *keywords, *([f"**{variadic.pop(0)}"] if code.co_flags & VARKEYWORDS else [])]


def bind(
    vm: VM, fn: FunctionType, code: Code, args: Sequence[object], kwargs: dict[str, object]
) -> list[object]:
    """Slots of a new frame of `fn` for these arguments. Raises TypeError."""
    slots: list[object] = [NULL] * code.nlocals
    count, passed = code.argcount, len(args)
    slots[: min(count, passed)] = args[:count]
    named = count + code.kwonly
    if code.flags & VARARGS:
        slots[named] = tuple(args[count:])
    extra_keywords: dict[str, object] | None = None
    if code.flags & VARKEYWORDS:
        extra_keywords = slots[named + bool(code.flags & VARARGS)] = {}
    if kwargs:
        _bind_keywords(fn, code, slots, kwargs, extra_keywords)
    if passed > count and not code.flags & VARARGS:
        raise TypeError(_too_many_message(fn, code, slots, passed))
    if passed < count or code.kwonly:
        _bind_defaults(vm, fn, code, slots)
    return slots


def _bind_keywords(
    fn: FunctionType,
    code: Code,
    slots: list[object],
    kwargs: dict[str, object],
    extra_keywords: dict[str, object] | None,
) -> None:
    for name, value in kwargs.items():
        if not isinstance(name, str):
            raise TypeError("keywords must be strings")
        slot = code.parameters.get(name)
        if slot is not None and slot >= code.posonly:
            if slots[slot] is not NULL:
                raise TypeError(f"{fn.__qualname__}() got multiple values for argument '{name}'")
            slots[slot] = value
        elif extra_keywords is not None:
            extra_keywords[name] = value
        else:
            raise TypeError(_unexpected_message(fn, code, name, kwargs))


def _bind_defaults(vm: VM, fn: FunctionType, code: Code, slots: list[object]) -> None:
    defaults = fn.__defaults__ or ()
    first = code.argcount - len(defaults)
    missing = [code.local_names[slot] for slot in range(first) if slots[slot] is NULL]
    if missing:
        raise TypeError(_missing_message(fn, "positional", missing))
    for slot in range(first if first > 0 else 0, code.argcount):
        if slots[slot] is NULL:
            slots[slot] = _default(vm, fn, "default", slot - first, defaults[slot - first])
    keywords = fn.__kwdefaults__ or {}
    for slot in range(code.argcount, code.argcount + code.kwonly):
        name = code.local_names[slot]
        if slots[slot] is NULL and name in keywords:
            slots[slot] = _default(vm, fn, "kwdefault", name, keywords[name])
        elif slots[slot] is NULL:
            missing.append(name)
    if missing:
        raise TypeError(_missing_message(fn, "keyword-only", missing))


def _default(
    vm: VM, fn: FunctionType, kind: Literal["default", "kwdefault"], key: object, value: object
) -> object:
    """A default argument as a VM value."""
    sources = vm.env.sources
    by_code = sources.is_guarded_by_code(fn)
    # the guard on the function covers them; keyword defaults are a dictionary
    decided = kind == "default" and not by_code
    if id(fn) not in sources or (decided and type(value) in LEAF_TYPES):
        return value
    if by_code and kind == "default":
        defaults = sources.find_or_const(fn).child("member", "__defaults__")
        return wrap_values.wrap(vm.env, value, defaults.child("item", key))
    return wrap_values.wrap(vm.env, value, vm.env.sources.const(fn).child(kind, key), decided=decided)


# ----------------------------------------------------------------------------------------------------- messages


def _too_many_message(fn: FunctionType, code: Code, slots: list[object], passed: int) -> str:
    count, defaults = code.argcount, len(fn.__defaults__ or ())
    takes = f"from {count - defaults} to {count}" if defaults else str(count)
    keywords = sum(slots[at] is not NULL for at in range(count, count + code.kwonly))
    also = ""
    if keywords:
        also = (
            f" positional argument{_plural_suffix(passed)}"
            f" (and {keywords} keyword-only argument{_plural_suffix(keywords)})"
        )
    were = "was" if passed == 1 and not keywords else "were"
    plural = "s" if defaults or count != 1 else ""
    return f"{fn.__qualname__}() takes {takes} positional argument{plural} but {passed}{also} {were} given"


def _plural_suffix(count: int) -> str:
    return "" if count == 1 else "s"


def _unexpected_message(fn: FunctionType, code: Code, name: str, kwargs: dict[str, object]) -> str:
    by_position = [n for n in code.local_names[: code.posonly] if n in kwargs]
    if by_position:
        names = ", ".join(by_position)
        return (
            f"{fn.__qualname__}() got some positional-only arguments passed as keyword arguments: '{names}'"
        )
    text = f"{fn.__qualname__}() got an unexpected keyword argument '{name}'"
    suggestion = suggest_name(code.local_names[code.posonly : code.argcount + code.kwonly], name)
    return text if suggestion is None else f"{text}. Did you mean '{suggestion}'?"


def suggest_name(names: Sequence[str], name: str) -> str | None:
    """The name in `names` that CPython suggests for the unknown `name`; None before 3.13."""
    if not PY313:
        return None
    suggestion: str | None = importlib.import_module("_suggestions")._generate_suggestions(list(names), name)
    return suggestion


def _missing_message(fn: FunctionType, kind: str, names: list[str]) -> str:
    quoted = [repr(n) for n in names]
    listed = " and ".join(quoted) if len(quoted) < 3 else ", ".join(quoted[:-1]) + f", and {quoted[-1]}"
    return f"{fn.__qualname__}() missing {len(names)} required {kind} argument{_plural_suffix(len(names))}: {listed}"


def callable_name(fn: object) -> str:
    """Name of a callable in messages about calls with `*` or `**` (`_PyObject_FunctionStr`)."""
    name = getattr(fn, "__qualname__", None)
    if not isinstance(name, str):
        return str(fn)
    module = getattr(fn, "__module__", None)
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"
