"""Open context managers: entered by the trace, or entered before a graph break and left by the trace.

Torch's managers take effect while the VM runs. Invariant: when a capture ends, all of them are in their initial state.
The compiled frame enters and leaves the managers that are open at a graph break (`context_effects`). An environment
manager of torch holds its settings in attributes, which its native `__enter__` reads: they are guarded
(`use_manager_state`), and stores to them are effects. `record_function` marks a range for the profiler; it does nothing
without a profiler, which is guarded. Under a profiler the graph breaks at the range.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeGuard, TypeVar, cast

import torch
from torch.overrides import TorchFunctionMode

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, function, unsupported
from smelt.capture.base.native_functions import is_native_module, runs_natively
from smelt.capture.base.value_kinds import LEAF_TYPES, FunctionType, instance_dict
from smelt.capture.environment import wrap_values
from smelt.capture.environment.side_effects import Call, Effect, Enter, Exit
from smelt.capture.proxies.text_proxy import TextProxy, unreadable
from smelt.capture.semantics import attributes
from smelt.capture.vm.vm import VM
from smelt.capture.vm.vm_state import EnteredManager, ExitedManager, Manager
from smelt.errors import RecordsWarnings, Unsupported
from smelt.graph import backend_flags, torch_settings
from smelt.guards import global_state
from smelt.guards.global_state import Snapshot
from smelt.reasons import OUTPUT, UNSUPPORTED_EFFECT, Reason
from smelt.torch_private import current_dispatch_modes, current_function_modes, is_profiler_enabled
from smelt.tracing.symbolic.sym_numbers import specialize

T = TypeVar("T")
_record_function = torch.autograd.profiler.record_function
# Capture does not enter or leave these; compiled frames do around a graph break.
DEFERRED = (_record_function,)
# Managers of torch that only change settings: they can be left and entered again, in any order.
_REVERTIBLE = (torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.autocast, *DEFERRED)
_GRAD_MODES = (torch.no_grad, torch.enable_grad, torch.set_grad_enabled)
# Indices in `TorchSettings` of the settings of autocast on a device.
_AUTOCAST_OF = {"cpu": (2, 3), "cuda": (4, 5)}


# Fields of the global state that are restored at a graph break inside a context manager.
_REPLAYED = re.compile(
    r"(grad|inference)_mode|autocast_|(included|excluded)_|torch_function_mode|sdp_|forward_ad|default_dtype"
    r"|deterministic_(algorithms|warn_only)"
)


def _require_plain(value: object) -> None:
    """Make the trace depend on an attribute that native code reads. Raises Unreadable for a string that changes."""
    if type(value) is TextProxy:
        raise unreadable("native code enters or leaves a context manager")
    specialize(value)


def use_manager_state(vm: VM, manager: object) -> None:
    """Guard the attributes of an environment manager that native code is about to enter or leave."""
    if id(manager) not in vm.env.sources:
        return
    for name in list(instance_dict(manager) or ()):
        _require_plain(attributes.load_generic(vm, manager, name))
    vm.env.log.touch_native(manager)
    vm.env.memo.reads.pop(id(manager), None)


def is_deferred(manager: object) -> bool:
    """Whether capture skips entering and leaving `manager`."""
    return isinstance(manager, DEFERRED) or is_flex_attention_mode(manager) or is_user_mode(manager)


def is_user_mode(manager: object) -> TypeGuard[TorchFunctionMode]:
    """Whether `manager` is a mode with a user `__torch_function__`, which the trace calls itself."""
    if not isinstance(manager, TorchFunctionMode) or is_flex_attention_mode(manager):
        return False
    kinds = type(manager).__mro__
    handler = next(vars(k)["__torch_function__"] for k in kinds if "__torch_function__" in vars(k))
    handler = getattr(handler, "__func__", handler)
    return type(handler) is not FunctionType or not runs_natively(handler)


def is_flex_attention_mode(manager: object) -> bool:
    """Whether `manager` is the mode under which flex attention calls user functions (`CurrentCall.gathers`). Its handler
    applies a custom function of torch's compiler."""
    kind = type(manager)
    return kind.__name__ == "TransformGetItemToIndex" and kind.__module__.startswith("torch._dynamo.")


def profiler_state(vm: VM) -> object:
    """Whether a profiler runs. Guarded: no setting that entries guard changes with it."""
    source = vm.env.sources.const(is_profiler_enabled).child("call", None)
    return wrap_values.wrap(vm.env, is_profiler_enabled(), source)


def _check_profiler(vm: VM) -> None:
    """Raise Unsupported under a profiler, which must see the range. Where the frame must be one graph, the range is
    omitted, as by torch.compile."""
    if profiler_state(vm) and vm.assumptions.may_break:
        raise unsupported("record_function under a profiler")


@function(_record_function.__enter__)
def _enter_record(vm: VM, args: Args, kwargs: Kwargs) -> object:
    _check_profiler(vm)
    return enter_manager(vm, args[0], lambda: args[0])


@function(_record_function.__exit__)
def _exit_record(vm: VM, args: Args, kwargs: Kwargs) -> None:
    _check_profiler(vm)
    return leave_manager(vm, args[0], lambda: None)


def user_function_mode() -> str | None:
    """Class name of an active user torch-function mode, whose handler would run inside every operator of a capture."""
    kinds = (type(mode) for mode in current_function_modes())
    return next((f"a {kind.__qualname__}" for kind in kinds if not is_native_module(kind.__module__)), None)


def capturable_modes() -> int:
    """The number of innermost active modes that are the user's, whose handlers capture can call itself."""
    return len(list(itertools.takewhile(is_user_mode, reversed(current_function_modes()))))


def enter_modes_of_call(vm: VM) -> None:
    """Have the trace call the modes that are set aside, for the whole capture."""
    modes = global_state.set_aside_modes()
    if modes:
        source = vm.env.sources.const(global_state.function_modes).child("call", None)
        first = len(global_state.function_modes()) - len(modes)
        for i, mode in enumerate(modes, first):
            wrapped = wrap_values.wrap(vm.env, mode, source.child("item", i))
            vm.trace.call.modes.append(cast(TorchFunctionMode, wrapped))


def is_under_modes() -> bool:
    """Whether any torch mode is active."""
    return bool(global_state.function_modes() or current_dispatch_modes())


def enter_manager(vm: VM, manager: object, enter: Callable[[], T]) -> T:
    """Run `enter()`, the native `__enter__` of `manager`, and record that the manager is open."""
    vm.env.facts.check_readable(manager)
    attributes_before, settings = dict(instance_dict(manager) or {}), torch_settings.read()
    result = enter()
    entered = EnteredManager(manager, attributes_before, settings, torch_settings.read())
    if isinstance(manager, warnings.catch_warnings):
        entered.recorded = cast("list[object] | None", result)
    vm.contexts.entered.append(entered)
    return result


def leave_manager(vm: VM, manager: object, leave: Callable[[], T]) -> T:
    """Run `leave()`, the native `__exit__` of `manager`. Raises Unsupported for a manager that was entered before a graph
    break, unless that can be reverted."""
    if isinstance(manager, torch.autocast):
        vm.trace.torch_recorder.leave_autocast()
    entered = vm.contexts.entered
    at = next((i for i in reversed(range(len(entered))) if entered[i].manager is manager), None)
    inner = [e.manager for e in entered[0 if at is None else at + 1 :]]
    if not all(isinstance(m, _REVERTIBLE) for m in inner):
        raise unsupported("context managers left in another order than entered", UNSUPPORTED_EFFECT)
    attributes = _guarded_attributes(vm, manager) if at is None else {}
    if at is not None:
        _check_recorded(entered[at])
    result = leave()
    if at is None:
        vm.contexts.exited.append(ExitedManager(manager, attributes, torch_settings.read()))
    else:
        del entered[at]
    return result


def _check_recorded(entered: EnteredManager) -> None:
    """Raise Unsupported, which makes the call run eagerly, if native code has warned during capture: a resume function would
    record that warning twice."""
    unknown = [
        m for m in entered.recorded or () if type(m) is warnings.WarningMessage and m not in entered.shown
    ]
    if unknown:
        error = Unsupported(Reason(OUTPUT, "a warning of native code that is recorded"))
        error.breaks = False
        raise error


def _guarded_attributes(vm: VM, manager: object) -> dict[str, object]:
    """Guarded attributes of a manager entered before a graph break. Raises Unsupported if leaving is irreversible."""
    if not isinstance(manager, _REVERTIBLE):
        what = type(manager).__qualname__
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, f"a {what} entered before a graph break is left"))
    source = vm.env.sources.find(manager)
    for name, value in vars(manager).items():
        if source is not None and type(value) in LEAF_TYPES:
            _require_plain(wrap_values.wrap(vm.env, value, source.child("attr", name)))
    return dict(vars(manager))


def revert_contexts(vm: VM) -> None:
    """Revert everything still entered when capture ends early."""
    for variable, token in reversed(vm.contexts.tokens):
        variable.reset(token)
    vm.contexts.tokens.clear()
    vm.trace.call.modes.clear()
    while vm.contexts.entered:
        entered = vm.contexts.entered.pop()
        if not is_deferred(entered.manager):
            native_class(entered.manager, "__exit__").__exit__(entered.manager, None, None, None)
        _restore_attributes(entered.manager, entered.attributes)
    while vm.contexts.exited:
        left = vm.contexts.exited.pop()
        if is_deferred(left.manager):
            continue
        native_class(left.manager, "__enter__").__enter__(left.manager)
        _restore_attributes(left.manager, left.attributes)
    for setter, values in vm.contexts.process.items():
        backend_flags.SETTINGS[setter].write(*values)
    with vm.trace.paused():
        torch_settings.put(vm.trace.torch_recorder.first_state)
    vm.trace.call.changed = frozenset()


def native_class(manager: Manager, name: str) -> type[AbstractContextManager[object]]:
    """The class with the native method `name` of `manager`; a user class may wrap that method in its own."""
    kinds = (kind for kind in type(manager).__mro__ if name in vars(kind))
    return next(k for k in kinds if type(vars(k)[name]) is not FunctionType or runs_natively(vars(k)[name]))


def context_effects(vm: VM) -> list[Effect]:
    """Effects for context managers that stay entered or left, and for changed settings."""
    effects: list[Effect] = []
    replayed = vm.trace.torch_recorder.first_state  # the settings after the effects so far
    for left in vm.contexts.exited:
        effects.append(Exit(left.manager, native_class(left.manager, "__exit__")))
        replayed = _settings_after_leaving(left, replayed)
    for entered in vm.contexts.entered:
        if entered.recorded is not None:
            raise RecordsWarnings(Reason(OUTPUT, "warnings that are recorded around a graph break"))
        # the settings that the manager restores when it is left
        effects += _setting_calls(replayed, entered.settings)
        effects.append(Enter(entered.manager, native_class(entered.manager, "__enter__")))
        effects += entered.calls
        replayed = entered.settings_inside
    effects += _process_calls(vm)
    return effects + _setting_calls(replayed, torch_settings.read())


def save_process_settings(vm: VM, setter: FunctionType) -> None:
    """Save the process settings that the program is about to change by `setter`; they are restored when capture ends."""
    if setter not in vm.contexts.process:
        vm.contexts.process[setter] = backend_flags.SETTINGS[setter].read()


def _process_calls(vm: VM) -> list[Effect]:
    """Calls that change the process settings from their state when the capture began to the current state."""
    now = {setter: backend_flags.SETTINGS[setter].read() for setter in vm.contexts.process}
    changed = [setter for setter, before in vm.contexts.process.items() if before != now[setter]]
    return [Call(backend_flags.SETTINGS[setter].write, now[setter]) for setter in changed]


def check_replayed(start: Snapshot) -> None:
    """At a graph break: raise Unsupported for a changed setting that `context_effects` cannot replay."""
    then, now = (global_state.decode(state) for state in (start, global_state.snapshot()))
    changed = [name for name in then if then[name] != now[name] and not _REPLAYED.match(name)]
    if changed:
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, f"{changed[0]} is different at a graph break"))


def _setting_calls(then: torch_settings.TorchSettings, now: torch_settings.TorchSettings) -> list[Effect]:
    return [Call(function, args) for function, args in torch_settings.difference(then, now)]


def _settings_after_leaving(
    left: ExitedManager, settings: torch_settings.TorchSettings
) -> torch_settings.TorchSettings:
    """The settings after the manager is left under `settings`: it restores those it changed."""
    changed: tuple[int, ...] = ()
    if isinstance(left.manager, _GRAD_MODES):
        changed = (0,)
    elif isinstance(left.manager, torch.autocast):
        changed = _AUTOCAST_OF.get(cast(str, left.attributes["device"]), ())
    values = [left.settings[i] if i in changed else setting for i, setting in enumerate(settings)]
    return cast(torch_settings.TorchSettings, tuple(values))


def _restore_attributes(manager: object, before: dict[str, object]) -> None:
    own = instance_dict(manager)
    if own is not None and own != before:
        own.clear()
        own.update(before)
