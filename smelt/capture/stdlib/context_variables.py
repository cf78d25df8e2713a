"""`contextvars.ContextVar`: reads are guarded; a variable set by the program stays set until capture ends."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable

from smelt.capture.base.call_handlers import builtin, method, unsupported
from smelt.capture.base.value_kinds import MISSING
from smelt.capture.environment import wrap_values
from smelt.capture.vm.vm import VM
from smelt.reasons import UNSUPPORTED_EFFECT

_Reader = Callable[[], object]


@method(contextvars.ContextVar, "get")
def _get(vm: VM, variable: contextvars.ContextVar[object], *default: object) -> object:
    if id(variable) in vm.contexts.variables:
        return vm.contexts.variables[id(variable)]
    env, memo = vm.env, vm.env.memo.reads_of(variable)
    env.facts.use_identity(variable)
    reader: _Reader = memo.setdefault("reader", functools.partial(variable.get, MISSING))
    value, source = reader(), env.sources.const(reader).child("call", "get")
    if value is not MISSING:
        return wrap_values.wrap(env, value, source)
    env.facts.guard("id", source, MISSING)  # unset
    if default:
        return default[0]
    reader = memo.setdefault("default reader", variable.get)
    return wrap_values.wrap(env, reader(), env.sources.const(reader).child("call", "get"))


builtin(contextvars.ContextVar.get)(lambda vm, args, kwargs: _get(vm, *args))


@method(contextvars.ContextVar, "set")
def _set(vm: VM, variable: contextvars.ContextVar[object], value: object) -> object:
    token = variable.set(value)
    vm.contexts.tokens.append((variable, token))
    vm.contexts.variables[id(variable)] = value
    return token


@method(contextvars.ContextVar, "reset")
def _reset(vm: VM, variable: contextvars.ContextVar[object], token: contextvars.Token[object]) -> None:
    if id(token) in vm.env.sources:
        raise unsupported("ContextVar.reset to what was before the call", UNSUPPORTED_EFFECT)
    variable.reset(token)
    vm.contexts.tokens[:] = [(v, t) for v, t in vm.contexts.tokens if t is not token]
    vm.contexts.variables.pop(id(variable), None)
    if any(v is variable for v, _ in vm.contexts.tokens):
        vm.contexts.variables[id(variable)] = variable.get()
