"""Container displays, comprehensions, unpacking, text formatting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from smelt.capture.base.bytecode import PY313, PY314
from smelt.capture.base.value_kinds import MISSING, C
from smelt.capture.base.vm_frames import Frame
from smelt.capture.environment import container_contents, environment_mutations
from smelt.capture.interpreter.opcodes.opcode_table import HANDLERS, opcode
from smelt.capture.proxies import text_proxy
from smelt.capture.semantics import attributes
from smelt.capture.semantics.calls.argument_binding import callable_name
from smelt.capture.semantics.values import formatting, set_methods
from smelt.capture.semantics.values.container_constructors import mapping
from smelt.capture.vm.native_reachability import may_call_python
from smelt.capture.vm.vm import VM
from smelt.tracing.symbolic.numbers_in_containers import specialize_nested


def _take(stack: list[object], count: int) -> list[object]:
    if not count:
        return []
    items = stack[-count:]
    del stack[-count:]
    return items


HANDLERS.update(
    BUILD_TUPLE=lambda vm, frame, arg: frame.stack.append(tuple(_take(frame.stack, arg))),
    BUILD_LIST=lambda vm, frame, arg: frame.stack.append(_take(frame.stack, arg)),
    BUILD_SLICE=lambda vm, frame, arg: frame.stack.append(slice(*_take(frame.stack, arg))),
)


@opcode("BUILD_SET")
def _build_set(vm: VM, frame: Frame, arg: int) -> None:
    items = frame.stack[len(frame.stack) - arg :]
    vm.env.facts.use_differences(items)
    frame.stack[len(frame.stack) - arg :] = (vm.call_native(set, (items,)),)


@opcode("BUILD_MAP")
def _build_map(vm: VM, frame: Frame, arg: int) -> None:
    start = len(frame.stack) - 2 * arg
    flat = frame.stack[start:]
    keys = flat[::2] if vm.trace.numbers.symbols is None else [specialize_nested(k) for k in flat[::2]]
    vm.env.facts.use_differences(keys)
    pairs = list(zip(keys, flat[1::2]))
    frame.stack[start:] = (
        vm.call_native(dict, (pairs,))
        if may_call_python(vm.classes.native_reachability, keys)
        else dict(pairs),
    )


@opcode("BUILD_CONST_KEY_MAP")
def _build_const_key_map(vm: VM, frame: Frame, arg: int) -> None:
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, _take(frame.stack, arg))))


@opcode("BUILD_STRING")
def _build_string(vm: VM, frame: Frame, arg: int) -> None:
    frame.stack[-arg:] = (text_proxy.join_all(frame.stack[-arg:]),)


@opcode("LIST_TO_TUPLE")
def _list_to_tuple(vm: VM, frame: Frame, arg: int) -> None:
    # After a graph break the list belongs to the environment.
    frame.stack[-1] = tuple(vm.elements(frame.stack[-1]))


def _writable(vm: VM, target: C) -> C:
    """The dictionary or set that an instruction fills; after a graph break it belongs to the environment."""
    if id(target) in vm.env.sources:
        container_contents.open_for_native(vm.env, target)
        environment_mutations.record_mutation(vm.env, target)
    return vm.env.overlay.now(target)


@opcode("LIST_APPEND")
def _list_append(vm: VM, frame: Frame, arg: int) -> None:
    # After a graph break the list belongs to the environment.
    environment_mutations.record_mutation(vm.env, frame.stack[-1 - arg])
    value = frame.stack.pop()
    vm.env.overlay.now(frame.stack[-arg]).append(value)


@opcode("SET_ADD")
def _set_add(vm: VM, frame: Frame, arg: int) -> None:
    value, target = frame.stack[-1], frame.stack[-1 - arg]
    if id(target) in vm.env.sources:  # after a graph break
        set_methods.call_mutator(vm, target, "add", [value])
    else:
        vm.native_lookup(set.add, target, value)
    frame.stack.pop()


@opcode("MAP_ADD")
def _map_add(vm: VM, frame: Frame, arg: int) -> None:
    key, value = frame.stack[-2:]
    vm.store_item(frame.stack[-2 - arg], key, value)
    del frame.stack[-2:]


@opcode("LIST_EXTEND")
def _list_extend(vm: VM, frame: Frame, arg: int) -> None:
    if not is_iterable(vm, frame.stack[-1]):
        raise TypeError(f"Value after * must be an iterable, not {class_name(vm, frame.stack[-1])}")
    values = vm.elements(frame.stack[-1], hinted=True)
    environment_mutations.record_mutation(vm.env, frame.stack[-1 - arg])
    frame.stack.pop()
    vm.env.overlay.now(frame.stack[-arg]).extend(values)


def is_iterable(vm: VM, value: object) -> bool:
    """Whether the class of `value`, which is guarded, has `__iter__` or `__getitem__`."""
    kind = type(value)
    vm.env.facts.use_lookups(kind)
    return hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")


def class_name(vm: VM, value: object) -> str:
    """The name of the value's class in error messages of the interpreter."""
    return vm.class_of(value).__name__


@opcode("SET_UPDATE")
def _set_update(vm: VM, frame: Frame, arg: int) -> None:
    set_methods.call_mutator(vm, frame.stack[-1 - arg], "update", [frame.stack[-1]])
    frame.stack.pop()


def mapping_of(vm: VM, value: object, message: str, called: object = MISSING) -> Mapping[str, object]:
    """`value` as a mapping. Raises TypeError if it is none; only then `called` is formatted, which may run user code."""
    if attributes.load_default(vm, value, "keys", MISSING) is MISSING:
        text = "" if called is MISSING else callable_name(called)
        raise TypeError(message.format(class_name(vm, value), called=text))
    return cast(Mapping[str, object], mapping(vm, value))


NO_MAPPING = "{called} argument after ** must be a mapping, not {}"


@opcode("DICT_UPDATE")
def _dict_update(vm: VM, frame: Frame, arg: int) -> None:
    values = mapping_of(vm, frame.stack[-1], "{!r} object is not a mapping")
    target = _writable(vm, frame.stack[-1 - arg])
    if may_call_python(vm.classes.native_reachability, values.keys()):
        vm.call_native(dict.update, (target, values))
    else:
        target.update(values)
    frame.stack.pop()


@opcode("DICT_MERGE")
def _dict_merge(vm: VM, frame: Frame, arg: int) -> None:
    called = frame.stack[-arg - 4 if PY313 else -arg - 3]
    values = mapping_of(vm, frame.stack[-1], NO_MAPPING, called)
    target = _writable(vm, frame.stack[-arg - 1])
    for key in values:
        if key in target:
            raise TypeError(f"{callable_name(called)} got multiple values for keyword argument '{key}'")
    target.update(values)
    frame.stack.pop()


@opcode("UNPACK_SEQUENCE")
def _unpack_sequence(vm: VM, frame: Frame, arg: int) -> None:
    values = _unpacked(vm, frame.stack[-1], limit=arg + 1)
    if len(values) != arg:
        raise ValueError(
            f"too many values to unpack (expected {arg}{_length_shown(vm, frame.stack[-1])})"
            if len(values) > arg
            else f"not enough values to unpack (expected {arg}, got {len(values)})"
        )
    frame.stack[-1:] = reversed(values)


def _length_shown(vm: VM, value: object) -> str:
    """The part of the error message about the number of values, for types that CPython asks for their length."""
    if not PY314 or type(value) not in (list, tuple, dict):
        return ""
    return f", got {len(vm.elements(value))}"


@opcode("UNPACK_EX")
def _unpack_ex(vm: VM, frame: Frame, arg: int) -> None:
    before, after = arg & 0xFF, arg >> 8
    values = list(_unpacked(vm, frame.stack[-1]))
    if len(values) < before + after:
        raise ValueError(
            f"not enough values to unpack (expected at least {before + after}, got {len(values)})"
        )
    end = len(values) - after
    frame.stack[-1:] = reversed([*values[:before], values[before:end], *values[end:]])


def _unpacked(vm: VM, value: object, limit: int | None = None) -> Sequence[object]:
    if not is_iterable(vm, value):
        raise TypeError(f"cannot unpack non-iterable {class_name(vm, value)} object")
    return vm.elements(value, limit=limit)


@opcode("FORMAT_VALUE")
def _format_value(vm: VM, frame: Frame, arg: int) -> None:
    stack = frame.stack
    has_spec = bool(arg & 4)
    value, spec = (stack[-2], stack[-1]) if has_spec else (stack[-1], "")
    if arg & 3:
        value = formatting.convert(vm, _CONVERSIONS[arg & 3], value)
    stack[-1 - has_spec :] = (_formatted(vm, value, spec),)


_CONVERSIONS: dict[int, Callable[[object], str]] = {1: str, 2: repr, 3: ascii}


def _formatted(vm: VM, value: object, spec: object) -> object:
    return formatting.format_value(vm, value, spec) if type(value) is not str or spec else value


@opcode("CONVERT_VALUE")
def _convert_value(vm: VM, frame: Frame, arg: int) -> None:
    frame.stack[-1] = formatting.convert(vm, _CONVERSIONS[arg], frame.stack[-1])


@opcode("FORMAT_SIMPLE")
def _format_simple(vm: VM, frame: Frame, arg: int) -> None:
    frame.stack[-1] = _formatted(vm, frame.stack[-1], "")


@opcode("FORMAT_WITH_SPEC")
def _format_with_spec(vm: VM, frame: Frame, arg: int) -> None:
    frame.stack[-2:] = (_formatted(vm, *frame.stack[-2:]),)
