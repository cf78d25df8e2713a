"""Attributes, operators and items."""

from __future__ import annotations

import operator
from collections.abc import Callable

from smelt.capture.base.value_kinds import NULL, unbound_callable
from smelt.capture.base.vm_frames import Frame, ResultHandler
from smelt.capture.interpreter.opcodes.opcode_table import HANDLERS, opcode
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.semantics import attributes, result_polyfills
from smelt.capture.semantics.attributes import python_method
from smelt.capture.semantics.values import python_operators
from smelt.capture.semantics.values.conjunction_guards import EQUALITY, skip_to_difference
from smelt.capture.vm.vm import VM


@opcode("LOAD_ATTR")
def _load_attr(vm: VM, frame: Frame, arg: tuple[str, bool]) -> None:
    name, is_method = arg
    stack = frame.stack
    vm.frames.set_call_site(frame)
    if not is_method:
        stack[-1] = attributes.load_attr(vm, stack[-1], name)
    else:
        stack[-1:] = _method(vm, stack[-1], name)


@opcode("LOAD_METHOD")
def _load_method(vm: VM, frame: Frame, arg: str) -> None:
    vm.frames.set_call_site(frame)
    frame.stack[-1:] = _method(vm, frame.stack[-1], arg)


def _method(vm: VM, obj: object, name: str) -> tuple[object, object]:
    """The two stack entries of `obj.name` before its call."""
    function, owner = attributes.load_method(vm, obj, name)
    return unbound_callable(owner) if function is NULL else (function, owner)


@opcode("LOAD_SUPER_ATTR")
def _load_super_attr(vm: VM, frame: Frame, arg: tuple[str, bool, bool]) -> None:
    name, is_method, has_arguments = arg
    stack = frame.stack
    proxy, *arguments = stack[-3:]
    owner = (
        super(*arguments) if proxy is super else vm.call(proxy, tuple(arguments) if has_arguments else (), {})
    )
    vm.frames.set_call_site(frame)
    found = attributes.load_attr(vm, owner, name)
    stack[-3:] = unbound_callable(found) if is_method else (found,)


@opcode("STORE_ATTR")
def _store_attr(vm: VM, frame: Frame, arg: str) -> None:
    value, obj = frame.stack[-2:]
    vm.frames.set_call_site(frame)
    attributes.store_attr(vm, obj, arg, value)
    del frame.stack[-2:]


@opcode("DELETE_ATTR")
def _delete_attr(vm: VM, frame: Frame, arg: str) -> None:
    vm.frames.set_call_site(frame)
    attributes.delete_attr(vm, frame.stack[-1], arg)
    frame.stack.pop()


@opcode("BINARY_OP")
def _binary(vm: VM, frame: Frame, arg: Callable[..., object]) -> None:
    stack = frame.stack
    vm.frames.set_call_site(frame)
    result = vm.binary(arg, stack[-2], stack[-1])
    stack.pop()
    stack[-1] = result


@opcode("COMPARE_OP")
def _compare(vm: VM, frame: Frame, arg: Callable[..., object]) -> None:
    if arg not in EQUALITY or vm.trace.numbers.symbols is None or not skip_to_difference(vm, frame, arg):
        _binary(vm, frame, arg)


@opcode("IS_OP")
def _is(vm: VM, frame: Frame, arg: int) -> None:
    left, right = frame.stack[-2:]
    kinds = type(left), type(right)
    if left is not right and NumberProxy in kinds and vm.class_of(left) is vm.class_of(right) is bool:
        vm.frames.set_call_site(frame)
        found = vm.binary(operator.ne if arg else operator.eq, left, right)
    else:
        found = vm.is_same(left, right) != bool(arg)
    frame.stack.pop()
    frame.stack[-1] = found


@opcode("CONTAINS_OP")
def _contains(vm: VM, frame: Frame, arg: int) -> None:
    stack = frame.stack
    vm.frames.set_call_site(frame, _UNTRUE if arg else TRUE)
    result = vm.contains(stack[-2], stack[-1])
    stack.pop()
    stack[-1] = result != bool(arg)


@opcode("UNARY_NOT")
def _unary_not(vm: VM, frame: Frame, arg: int) -> None:
    value = frame.stack[-1]
    if type(value) is NumberProxy:
        frame.stack[-1] = NumberProxy(value.condition().logical_not())
        return
    vm.frames.set_call_site(frame, _UNTRUE)
    frame.stack[-1] = not vm.truth(frame.stack[-1])


TRUE = ResultHandler(result_polyfills.as_bool)
_UNTRUE = ResultHandler(result_polyfills.negated)


def _unary(name: str, method: str, operation: Callable[..., object]) -> None:
    def handler(vm: VM, frame: Frame, arg: int) -> None:
        value = frame.stack[-1]
        found = python_method(vm, value, method)
        vm.frames.set_call_site(frame)
        frame.stack[-1] = (
            python_operators.unary(vm, operation, value)
            if found is None
            else vm.call_function(found, (value,))
        )

    HANDLERS[name] = handler


_unary("UNARY_NEGATIVE", "__neg__", operator.neg)
_unary("UNARY_POSITIVE", "__pos__", operator.pos)
_unary("UNARY_INVERT", "__invert__", operator.invert)


@opcode("BINARY_SUBSCR")
def _binary_subscr(vm: VM, frame: Frame, arg: int) -> None:
    stack = frame.stack
    vm.frames.set_call_site(frame)
    result = vm.subscript(stack[-2], stack[-1])
    stack.pop()
    stack[-1] = result


@opcode("BINARY_SLICE")
def _binary_slice(vm: VM, frame: Frame, arg: int) -> None:
    obj, start, stop = frame.stack[-3:]
    vm.frames.set_call_site(frame)
    frame.stack[-3:] = (vm.subscript(obj, slice(start, stop)),)


@opcode("STORE_SUBSCR")
def _store_subscr(vm: VM, frame: Frame, arg: int) -> None:
    value, obj, key = frame.stack[-3:]
    vm.frames.set_call_site(frame)
    vm.store_item(obj, key, value)
    del frame.stack[-3:]


@opcode("STORE_SLICE")
def _store_slice(vm: VM, frame: Frame, arg: int) -> None:
    value, obj, start, stop = frame.stack[-4:]
    vm.frames.set_call_site(frame)
    vm.store_item(obj, slice(start, stop), value)
    del frame.stack[-4:]


@opcode("DELETE_SUBSCR")
def _delete_subscr(vm: VM, frame: Frame, arg: int) -> None:
    obj, key = frame.stack[-2:]
    vm.frames.set_call_site(frame)
    vm.delete_item(obj, key)
    del frame.stack[-2:]
