"""`warnings.warn`: capture decides by the filters whether a warning is shown, and guards them.

Functions of libraries that run natively during capture warn as well, for the user's line (`show_library_warnings`)."""

from __future__ import annotations

import inspect
import itertools
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, FunctionType
from typing import cast

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, builtin, function, unsupported
from smelt.capture.base.value_kinds import is_constant
from smelt.capture.base.vm_frames import is_smelt_scope
from smelt.capture.environment import wrap_values
from smelt.capture.environment.side_effects import Call
from smelt.capture.proxies.text_proxy import TextProxy
from smelt.capture.semantics import attributes
from smelt.capture.semantics.values.formatting import convert
from smelt.capture.stdlib.output.caller_lines import CallerLine, caller_line, line_at, line_of
from smelt.capture.stdlib.output.deferred_calls import defer
from smelt.capture.vm.vm import VM
from smelt.capture.vm.vm_state import EnteredManager
from smelt.errors import NeedsFixedSize
from smelt.reasons import DATA_DEPENDENT, OUTPUT, UNSUPPORTED_EFFECT

# action, pattern of the message, category, pattern of the module's name, line
_Filter = tuple[str, re.Pattern[str] | None, type[Warning], re.Pattern[str] | str | None, int]
_Registry = dict[str | tuple[str, type[Warning], int], int]


@builtin(warnings.warn)
@function(warnings.warn)
def _warn(vm: VM, args: Args, kwargs: Kwargs) -> None:
    call = inspect.signature(_warn_signature).bind(*args, **kwargs)
    call.apply_defaults()
    message, category, level = cast("tuple[object, object, int]", call.args[:3])
    if call.arguments["source"] is not None or call.kwargs.get("skip_file_prefixes"):
        raise unsupported("warnings.warn with a source or skipped prefixes", OUTPUT)
    if isinstance(message, Warning):
        category = type(message)
    elif type(message) not in (str, TextProxy):
        raise unsupported(f"a {type(message).__qualname__} as a warning's message", OUTPUT)
    category = UserWarning if category is None else category
    if not (isinstance(category, type) and issubclass(category, Warning)):
        raise TypeError(f"category must be a Warning subclass, not {type(category).__name__!r}")
    if getattr(sys.flags, "context_aware_warnings", False):
        raise unsupported("a warning, whose filters may belong to a context", OUTPUT)
    _issue(vm, message, category, line_at(vm, level))


def _issue(vm: VM, message: object, category: type[Warning], caller: CallerLine | int) -> None:
    """Warn for a line, after the graph, or into the list of a `catch_warnings`."""
    action = _warning_action(vm, message, category, caller)
    if action == "error":
        raise unsupported("a warning that is an error", OUTPUT)
    if action == "ignore":
        return
    managers = _open_managers(vm)
    if managers:
        return _record(managers[-1], message, category, caller, action)
    if id(getattr(warnings._showwarnmsg_impl, "__self__", None)) in vm.env.sources:  # type: ignore[attr-defined]
        raise unsupported("a warning recorded in a list", OUTPUT)
    if isinstance(caller, int):
        defer(vm, warn_caller, message, category, caller)
    else:
        vm.env.sources.const(caller.globals)
        defer(vm, warn, message, category, caller.filename, caller.line, caller.globals)


@contextmanager
def show_library_warnings(vm: VM) -> Iterator[None]:
    """Context of a capture, in which library functions warn for the user's line. A warning of a Python function, which
    warns in each call, is an effect. Others are shown at once: those of C++ code, which may be the only ones of the process,
    and those of functions that a graph without a joint graph calls itself.

    A warning that the filters ignore or turn into an error during capture is not an effect.
    """
    show, thread = warnings._showwarnmsg, threading.get_ident()  # type: ignore[attr-defined]

    def handle(shown: warnings.WarningMessage) -> None:
        if not vm.running or vm.frame is None or threading.get_ident() != thread:
            return show(shown)
        vm.env.facts.depend_on_process("a warning of a library")
        warns = sys._getframe(1)
        at, level = _attributed(warns, shown)
        if at is None:
            return show(shown)
        # Otherwise, the next warning of another line of the user would be the second one of the same line of smelt.
        at.f_globals.get("__warningregistry__", {}).clear()
        warnings.onceregistry.pop((str(shown.message), shown.category), None)  # type: ignore[attr-defined]
        caller = line_at(vm, level) if level else line_of(at)
        if at is not warns and vm.trace.autograd.wants_joint:
            return _issue(vm, _with_sizes(vm, shown.message), shown.category, caller)
        if isinstance(caller, int):
            return show(shown)
        warnings._showwarnmsg = show  # type: ignore[attr-defined]
        try:
            warn(cast(Warning, shown.message), shown.category, caller.filename, caller.line, caller.globals)
        finally:
            warnings._showwarnmsg = handle  # type: ignore[attr-defined]

    warnings._showwarnmsg = handle  # type: ignore[attr-defined]
    try:
        yield
    finally:
        warnings._showwarnmsg = show  # type: ignore[attr-defined]


_UNBACKED = re.compile(r"<[^<>]*\bu\d+\b[^<>]*>")  # as it is formatted


def _with_sizes(vm: VM, message: object) -> object:
    """The message of a warning, or its text if symbolic sizes are part of it."""
    symbols = vm.trace.numbers.symbols
    text = str(message)
    if symbols is None or "<" not in text:
        return message
    if _UNBACKED.search(text):
        raise unsupported("a warning of a library shows a size that data decide", DATA_DEPENDENT)
    if "<L[" not in text:
        return message
    pattern = text.replace("{", "{{").replace("}", "}}")
    for i, number in enumerate(map(symbols.number, symbols.hints)):
        pattern = pattern.replace(number.node.str(), f"{{{i}}}")
    if "<L[" in pattern:
        raise NeedsFixedSize("a computed size in a warning of a library", frozenset(symbols.hints))
    return vm.call(str.format, (pattern, *map(symbols.number, symbols.hints)), {})


def _attributed(warns: FrameType, shown: warnings.WarningMessage) -> tuple[FrameType | None, int]:
    """The running frame that a warning names, and 0. If that frame is smelt's or called by smelt: the frame, and the
    `stacklevel` of the user's frame that the warning should name."""
    frame: FrameType | None = warns
    level = 0
    while frame is not None:
        level += level > 0 or is_smelt_scope(frame.f_globals)
        if frame.f_lineno == shown.lineno and frame.f_code.co_filename == shown.filename:
            return frame, level
        frame = frame.f_back
    return None, level


def _record(
    entered: EnteredManager, message: object, category: type, caller: CallerLine | int, action: str
) -> None:
    """Add a warning to the list of a `catch_warnings(record=True)`, the innermost one."""
    log = entered.recorded
    if log is None or action != "always" or isinstance(caller, int) or type(message) is TextProxy:
        raise unsupported("a warning inside catch_warnings", OUTPUT)
    warning = message if isinstance(message, Warning) else category(message)
    entered.shown.append(warnings.WarningMessage(warning, category, caller.filename, caller.line))
    log.append(entered.shown[-1])


def _register_filter(add: FunctionType) -> None:
    """Register `warnings.simplefilter` or `filterwarnings`. Inside a `catch_warnings` that the frame has entered, they
    change the list of that context only."""

    @function(add)
    def handler(vm: VM, args: Args, kwargs: Kwargs) -> None:
        managers = _open_managers(vm)
        values = (*args, *kwargs.values())
        if not managers or not all(is_constant(v) or isinstance(v, type) for v in values):
            raise unsupported(f"warnings.{add.__name__}", UNSUPPORTED_EFFECT)
        add(*args, **kwargs)
        vm.env.sources.const(add)
        managers[-1].calls.append(Call(add, values, tuple(kwargs)))


for _add in (warnings.simplefilter, warnings.filterwarnings):
    _register_filter(cast(FunctionType, _add))


def _open_managers(vm: VM) -> list[EnteredManager]:
    """The `catch_warnings` that the frame has entered, outermost first."""
    if getattr(sys.flags, "context_aware_warnings", False):
        return []
    return [e for e in vm.contexts.entered if isinstance(e.manager, warnings.catch_warnings)]


def _warn_signature(
    message: object,
    category: object = None,
    stacklevel: int = 1,
    source: object = None,
    *,
    skip_file_prefixes: object = (),
) -> None: ...


def _warning_action(vm: VM, message: object, category: type, caller: CallerLine | int) -> str:
    """The action that the warning filters select, such as "ignore". Guards the filters of the environment, unless one that
    the function has added selects it first. Raises Unsupported if a text or line known only at run time decides whether the
    warning is an error."""
    managers = _open_managers(vm)
    if not managers:
        filters = cast("list[_Filter]", attributes.load_attr(vm, warnings, "filters"))
        _guard_filters(vm, filters)
        return _selected(vm, filters, message, category, caller) or "default"
    outside = cast("list[_Filter]", managers[0].manager._filters)  # type: ignore[attr-defined]
    filters = cast("list[_Filter]", warnings.filters)
    added = list(itertools.takewhile(lambda entry: not any(entry is o for o in outside), filters))
    action = _selected(vm, added, message, category, caller)
    if action is None:
        wrap_values.wrap(vm.env, outside, vm.env.sources.const(warnings).child("attr", "filters"))
        _guard_filters(vm, outside)
        action = _selected(vm, filters, message, category, caller)
    return action or "default"


def _guard_filters(vm: VM, filters: list[_Filter]) -> None:
    source = vm.env.sources.find_or_const(filters)
    vm.env.facts.guard("len", source, len(filters))
    for i, entry in enumerate(filters):  # by value: a program may add equal ones before each call
        item = source.child("item", i)
        vm.env.facts.guard("type", item, tuple)
        vm.env.facts.guard("len", item, len(entry))
        for j, part in enumerate(entry):
            vm.env.facts.guard("eq" if type(part) in (str, int) else "id", item.child("item", j), part)


def _selected(
    vm: VM, filters: list[_Filter], message: object, category: type, caller: CallerLine | int
) -> str | None:
    """The action of the first of these filters that matches the warning. "default" where only the text or line of the call
    decides between actions that do not raise: the warning is issued after the graph, and filters select again. Raises
    Unsupported where they may select "error"."""
    text = message if type(message) in (str, TextProxy) else convert(vm, str, message)
    possible: set[str | None] = set()
    for action, pattern, kind, module, line in filters:
        if not issubclass(category, kind):
            continue
        if (pattern is not None and type(text) is TextProxy) or (
            (module or line) and isinstance(caller, int)
        ):
            possible.add(action)
        elif _admits(pattern, cast(str, text)) and (
            isinstance(caller, int) or _matches(caller, module, line)
        ):
            return _one_of(possible | {action})
    return _one_of(possible | {None})


def _one_of(actions: set[str | None]) -> str | None:
    if len(actions) > 1 and "error" in actions:
        raise unsupported("a warning whose filter is unknown", OUTPUT)
    return "default" if len(actions) > 1 else actions.pop()


def _matches(caller: CallerLine, module: re.Pattern[str] | str | None, line: int) -> bool:
    name = cast(str, caller.globals.get("__name__") or "<string>")
    return _admits(module, name) and line in (0, caller.line)


def _admits(pattern: re.Pattern[str] | str | None, text: str) -> bool:
    """Whether a filter's pattern admits the text. The interpreter's initial filters have strings as patterns."""
    if pattern is None or isinstance(pattern, str):
        return pattern is None or pattern == text
    return pattern.match(text) is not None


def warn(
    message: str | Warning, category: type[Warning], filename: str, line: int, namespace: dict[str, object]
) -> None:
    """`warnings.warn(message, category)` as if called from this line of the module with this namespace."""
    registry = cast("_Registry", namespace.setdefault("__warningregistry__", {}))
    name = cast(str, namespace.get("__name__") or "<string>")
    warnings.warn_explicit(message, category, filename, line, module=name, registry=registry)


def warn_caller(message: str | Warning, category: type[Warning], level: int) -> None:
    """`warnings.warn` as if called `level` callers above the compiled frame."""
    caller = caller_line(level)
    warn(message, category, caller.filename, caller.line, caller.globals)
