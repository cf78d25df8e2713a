"""`warnings.warn`: capture decides by the filters whether a warning is shown, and guards them."""

from __future__ import annotations

import inspect
import itertools
import re
import sys
import warnings
from types import FunctionType
from typing import cast

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, builtin, function, unsupported
from smelt.capture.base.value_kinds import is_constant
from smelt.capture.environment import wrap_values
from smelt.capture.environment.side_effects import Call
from smelt.capture.proxies.text_proxy import TextProxy
from smelt.capture.semantics import attributes
from smelt.capture.semantics.values.formatting import convert
from smelt.capture.stdlib.output.caller_lines import CallerLine, caller_line, line_at
from smelt.capture.stdlib.output.deferred_calls import defer
from smelt.capture.vm.vm import VM
from smelt.capture.vm.vm_state import EnteredManager
from smelt.reasons import OUTPUT, UNSUPPORTED_EFFECT

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
    caller = line_at(vm, level)
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
    the function has added selects it first. Raises Unsupported if the selection depends on a text or line known only at
    run time."""
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
    """The action of the first of these filters that matches the warning."""
    text = message if type(message) in (str, TextProxy) else convert(vm, str, message)
    for action, pattern, kind, module, line in filters:
        if not issubclass(category, kind):
            continue
        if (pattern is not None and type(text) is TextProxy) or (
            (module or line) and isinstance(caller, int)
        ):
            raise unsupported("a warning whose filter is unknown", OUTPUT)
        if not _admits(pattern, cast(str, text)):
            continue
        if isinstance(caller, int) or _matches(caller, module, line):
            return str(action)
    return None


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
