"""Context managers that are open: entered by the trace, or entered before a graph break and left by the trace.

Managers of torch act for real while the VM runs. What always holds: when a capture ends, all of them are as they were when
it began. What is open at a graph break the compiled frame enters and leaves for real (`settings`). A manager of torch from
outside holds its settings in attributes, which its native `__enter__` reads: they are guarded (`use_state`), and what it
stores in them is an effect as any other. `record_function` marks a stretch of the program for the profiler; while no
profiler runs it does nothing, which is guarded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from smelt.capture.base.handlers import Args, Kwargs, function, unsupported
from smelt.capture.base.native_functions import is_native_module, runs_natively
from smelt.capture.base.type_info import FUNCTION
from smelt.capture.base.values import LEAF_TYPES, instance_dict
from smelt.capture.machine.vm import VM
from smelt.capture.outside import wrapping
from smelt.capture.outside.effects import Call, Effect, Enter, Leave
from smelt.capture.protocol import attributes
from smelt.errors import Unsupported
from smelt.graph import torch_settings
from smelt.reasons import UNSUPPORTED_EFFECT, Reason

_record_function = torch.autograd.profiler.record_function
# Capture neither enters nor leaves these. Around a graph break the compiled frames do, for real.
IDLE = (_record_function,)
_profiler_enabled = torch._C._autograd._profiler_enabled  # type: ignore[attr-defined]
# Managers of torch that are a setting and nothing else: leaving and entering them again changes nothing.
_REVERSIBLE = (
    torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.inference_mode, torch.autocast, *IDLE,
)  # fmt: skip
# Grad mode inside of those that change it.
_GRAD_IN: dict[type, Callable[[Any], bool]] = {
    torch.no_grad: lambda m: False,
    torch.enable_grad: lambda m: True,
    torch.set_grad_enabled: lambda m: m.mode,
    torch.inference_mode: lambda m: not m.mode,
}


def use_state(vm: VM, manager: object) -> None:
    """Native code is going to enter or leave `manager`: guards what an outside one holds."""
    if id(manager) not in vm.outside.origins:
        return
    for name in list(instance_dict(manager) or ()):
        attributes.load_generic(vm, manager, name)
    vm.outside.log.touch_itself(manager)
    vm.outside.memo.by_id.pop(id(manager), None)


def is_idle(manager: object) -> bool:
    """Whether capture neither enters nor leaves `manager`."""
    return isinstance(manager, IDLE) or gathers(manager)


def gathers(manager: object) -> bool:
    """Whether `manager` is the mode under which flex attention calls the user's functions (`CurrentCall.gathers`). Its
    handler applies a custom function that torch's compiler knows."""
    kind = type(manager)
    return kind.__name__ == "TransformGetItemToIndex" and kind.__module__.startswith("torch._dynamo.")


def _check_profiler(vm: VM) -> None:
    if wrapping.wrap(
        vm.outside, _profiler_enabled(), vm.outside.origins.const(_profiler_enabled).child("call", None)
    ):
        raise unsupported("record_function under a profiler")


@function(_record_function.__enter__)
def _enter_record(vm: VM, args: Args, kwargs: Kwargs) -> object:
    _check_profiler(vm)
    return args[0]


@function(_record_function.__exit__)
def _exit_record(vm: VM, args: Args, kwargs: Kwargs) -> None:
    _check_profiler(vm)
    left(vm, args[0])


def foreign_mode() -> str | None:
    """The class of a torch-function mode of the user's that the call is under: its handler must see the program's own
    calls, and would run inside every operator of a capture."""
    kinds = (type(mode) for mode in _get_current_function_mode_stack())
    return next((f"a {kind.__qualname__}" for kind in kinds if not is_native_module(kind.__module__)), None)


def is_under_modes() -> bool:
    """Whether the call is under modes, which are torch's own."""
    return bool(_get_current_function_mode_stack() or _get_current_dispatch_mode_stack())


def enter(vm: VM, manager: object) -> object:
    """`manager.__enter__()`."""
    how, found, _ = vm.type_info(type(manager)).find("__enter__")
    native = how is not FUNCTION or runs_natively(found)
    vm.outside.facts.check_readable(manager)
    before = dict(instance_dict(manager) or {})
    entered = vm.call(attributes.load_special(vm, manager, "__enter__"), (), {})
    if native:
        vm.contexts.entered.append((manager, before))
    return entered


def left(vm: VM, manager: object) -> None:
    """`manager.__exit__` is about to run."""
    if isinstance(manager, torch.autocast):
        vm.trace.call_recorder.leave_autocast()
    if vm.contexts.entered and vm.contexts.entered[-1][0] is manager:
        vm.contexts.entered.pop()
    elif id(manager) in vm.outside.origins:
        _leave_outside(vm, manager)


def _leave_outside(vm: VM, manager: object) -> None:
    """A manager that was entered before a graph break is left. Raises Unsupported unless that can be taken back."""
    if not isinstance(manager, _REVERSIBLE):
        what = type(manager).__qualname__
        raise Unsupported(Reason(UNSUPPORTED_EFFECT, f"a {what} entered before a graph break is left"))
    origin = vm.outside.origins[id(manager)]
    for name, value in vars(manager).items():
        if type(value) in LEAF_TYPES:
            wrapping.wrap(vm.outside, value, origin.child("attr", name))
    vm.contexts.left.append((manager, dict(vars(manager))))


def leave_contexts(vm: VM) -> None:
    """Undoes what is still entered when capture ends early."""
    for variable, token in reversed(vm.contexts.tokens):
        variable.reset(token)
    vm.contexts.tokens.clear()
    while vm.contexts.entered:
        manager, before = vm.contexts.entered.pop()
        if not is_idle(manager):
            manager.__exit__(None, None, None)
        _restore_attributes(manager, before)
    while vm.contexts.left:
        manager, before = vm.contexts.left.pop()
        if is_idle(manager):
            continue
        manager.__enter__()
        if not isinstance(manager, torch.inference_mode):  # which holds what its __enter__ made
            _restore_attributes(manager, before)
    with vm.trace.paused():
        for function, args in torch_settings.difference(
            torch_settings.read(), vm.trace.call_recorder.first_state
        ):
            function(*args)


def settings(vm: VM) -> list[Effect]:
    """The context managers that are entered or left for good, and the settings that are different now."""
    found: list[Effect] = [Leave(manager) for manager, _ in vm.contexts.left]
    replayed: list[object] = list(
        vm.trace.call_recorder.first_state
    )  # the settings after what is found so far
    now = torch_settings.read()
    for manager, attributes_then in vm.contexts.left:
        _put_back(type(manager), attributes_then, replayed)
    for manager, _ in vm.contexts.entered:
        inside = _GRAD_IN.get(type(manager))
        if (
            inside is not None
            and type(manager) is not torch.inference_mode
            and manager.prev is not replayed[0]
        ):
            # what the manager is going to put back when it is left
            found.append(Call(torch._C._set_grad_enabled, (manager.prev,)))
            replayed[0] = manager.prev
        found.append(Enter(manager))
        if inside is not None:
            replayed[0] = inside(manager)
    if found:
        now = (now[0], cast(bool, replayed[1]), *now[2:])  # inference mode is left to its manager
    then = cast(torch_settings.TorchSettings, tuple(replayed))
    found += [Call(function, args) for function, args in torch_settings.difference(then, now)]
    return found


def _put_back(kind: type, manager: dict[str, object], state: list[object]) -> None:
    """Changes the settings `state` as leaving a manager with these attributes does. Grad mode becomes None for a manager
    that does not keep what it was."""
    if kind in _GRAD_IN:
        state[0] = None if kind is torch.inference_mode else manager["prev"]
    elif issubclass(kind, torch.autocast):
        at = {"cpu": 2, "cuda": 4}.get(cast(str, manager["device"]))
        if at is not None:
            state[at : at + 2] = manager["prev"], manager["prev_fastdtype"]


def _restore_attributes(manager: object, before: dict[str, object]) -> None:
    own = instance_dict(manager)
    if own is not None and own != before:
        own.clear()
        own.update(before)
