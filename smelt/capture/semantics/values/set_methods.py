"""Creation and mutation of sets.

The iteration order of a set depends on its full history, so native code receives the original sets that it copies from, and
each mutation of an environment set is recorded for replay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args
from smelt.capture.base.value_kinds import has_python_hash
from smelt.capture.environment import container_contents, environment_mutations, wrap_values
from smelt.capture.vm.vm import VM
from smelt.tracing.symbolic.numbers_in_containers import specialize_nested

_ELEMENT_MUTATORS = frozenset(("add", "discard", "remove"))
MUTATORS = _ELEMENT_MUTATORS | {
    "clear", "difference_update", "intersection_update", "pop", "symmetric_difference_update", "update",
    "__iand__", "__ior__", "__isub__", "__ixor__",
}  # fmt: skip


def operand(vm: VM, value: object) -> object:
    """Operand of a set constructor or mutator: a set or dictionary itself, whose hash table native code copies."""
    if isinstance(value, set):
        return container_contents.open_for_native(vm.env, value) if id(value) in vm.env.sources else value
    if type(value) is dict:
        return container_contents.native_view(vm.env, value, deep=False)
    if isinstance(value, frozenset):
        return value
    vm.env.facts.use_differences(value)
    return vm.iterable(value)


def call_mutator(vm: VM, target: set[object], method: str, args: Args) -> object:
    """`target.method(*args)` of a set mutator, recorded for an environment set."""
    if method in _ELEMENT_MUTATORS:
        args = [specialize_nested(a) for a in args]
        vm.env.facts.use_differences(args)
    elif args:
        args = [operand(vm, a) for a in args]
    if method == "pop":
        vm.env.facts.use_order(vm.env.overlay.now(target))
    if id(target) not in vm.env.sources:
        return vm.call_native(getattr(set, method).__get__(target), args)
    env = vm.env
    container_contents.guard_contents(env, target)
    iterated = target not in env.log and env.overlay.now(target) is not target
    if method == "pop" or iterated:  # an iterator may continue after the mutation
        container_contents.guard_set_table(env, target)
    environment_mutations.record_mutation(env, target)
    try:
        result = _mutate(vm, target, method, args)
    finally:
        environment_mutations.mark_copies_stale(env, target)
    env.log.check_left(target)
    return result


def _mutate(vm: VM, target: set[object], method: str, args: Args) -> object:
    now, log = vm.env.overlay.now(target), vm.env.log
    call = getattr(set, method).__get__(now)
    if method in _ELEMENT_MUTATORS:
        result = vm.call_native(call, args)
        log.record_set_change(target, method, tuple(args))
        return result
    operands = [(a, target) if a is now else _copied_operand(a) for a in args]
    before = _native.set_table(now)
    try:
        result = vm.call_native(call, [operand_value for operand_value, _ in operands])
    except Exception:
        if _native.set_table(now) != before:
            _record_partial_mutation(vm, target, method, [copy for _, copy in operands])
        raise
    log.record_set_change(target, method, tuple(tuple(n) if isinstance(n, list) else n for _, n in operands))
    return wrap_values.to_fake(vm.env, result)


def _record_partial_mutation(vm: VM, target: set[object], method: str, consumed: list[object]) -> None:
    """Record a mutation that raised halfway as one by the elements before the one that raised."""
    log = vm.env.log
    *before, last = [elements for elements in consumed if elements]
    if not isinstance(last, list) or has_python_hash(last[-1]):
        return log.record_unknown_change(target)
    if type(last[-1]).__hash__ is None:
        last.pop()
    if method == "difference_update" and not before:  # it repacks the set when it returns
        for element in last:
            log.record_set_change(target, "discard", (element,))
        return None
    return log.record_set_change(target, method, (*before, tuple(last)))


def _copied_operand(value: object) -> tuple[object, object]:
    """An operand for the call, and a copy that keeps its contents."""
    if isinstance(value, set):
        copy: set[object] = set()
        _native.copy_set(copy, value)
        return value, copy
    if type(value) is dict:
        return value, dict.fromkeys(value)
    if isinstance(value, frozenset):
        return value, value
    consumed: list[object] = []

    def record(element: object) -> object:
        consumed.append(element)
        return element

    return map(record, cast("Iterable[object]", value)), consumed
