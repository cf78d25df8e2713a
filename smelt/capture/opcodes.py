"""What each bytecode instruction does: one handler per opcode, `handler(vm, frame, argument)`.

A handler returns True when the frame is done (its result is in `frame.result`), else None. Operands leave the stack after
the operation has succeeded. `HANDLERS` is the table of the running CPython version.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any

from smelt.capture import attributes, intrinsics, patterns, raising, texts
from smelt.capture.attributes import python_method
from smelt.capture.binding import function_text
from smelt.capture.calls import ASYNC_GENERATOR, COROUTINE, call
from smelt.capture.code import PY312, Handler
from smelt.capture.containers import mapping
from smelt.capture.frames import Frame, Generator, Handled
from smelt.capture.values import MISSING, NULL, CellType, FunctionType
from smelt.capture.windows import calls_back
from smelt.errors import Unsupported
from smelt.reasons import IMPORT, UNSUPPORTED_OPCODE, Reason
from smelt.trace.symbols import plain_parts

HANDLERS: dict[str, Handler] = {}


def opcode(*names: str) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return add


def unknown(name: str) -> Handler:
    def refuse(vm: Any, frame: Frame, arg: Any) -> Any:
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, name))

    return refuse


# ------------------------------------------------------------------------------------------- stack and locals


@opcode("NOP", "RESUME", "CACHE", "PRECALL")
def _nop(vm: Any, frame: Frame, arg: Any) -> None:
    pass


@opcode("POP_TOP")
def _pop_top(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.pop()


@opcode("PUSH_NULL")
def _push_null(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(NULL)


@opcode("SWAP")
def _swap(vm: Any, frame: Frame, arg: Any) -> None:
    stack = frame.stack
    stack[-1], stack[-arg] = stack[-arg], stack[-1]


@opcode("COPY")
def _copy(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(frame.stack[-arg])


@opcode("LOAD_CONST")
def _load_const(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(arg)


_UNBOUND = "cannot access local variable {!r} where it is not associated with a value"


@opcode("LOAD_FAST", "LOAD_FAST_CHECK")
def _load_fast(vm: Any, frame: Frame, arg: Any) -> None:
    value = frame.locals[arg]
    if value is NULL:
        raise UnboundLocalError(_UNBOUND.format(frame.code.local_names[arg]))
    frame.stack.append(value)


@opcode("LOAD_FAST_AND_CLEAR")
def _load_fast_and_clear(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(frame.locals[arg])
    frame.locals[arg] = NULL


@opcode("STORE_FAST")
def _store_fast(vm: Any, frame: Frame, arg: Any) -> None:
    frame.locals[arg] = frame.stack.pop()


@opcode("DELETE_FAST")
def _delete_fast(vm: Any, frame: Frame, arg: Any) -> None:
    _load_fast(vm, frame, arg)
    frame.stack.pop()
    frame.locals[arg] = NULL


# ------------------------------------------------------------------------------------------------------ cells


@opcode("MAKE_CELL")
def _make_cell(vm: Any, frame: Frame, arg: Any) -> None:
    value = frame.locals[arg]
    frame.locals[arg] = CellType() if value is NULL else CellType(value)


@opcode("COPY_FREE_VARS")
def _copy_free_vars(vm: Any, frame: Frame, arg: Any) -> None:
    frame.locals[frame.code.nlocals - arg :] = frame.function.__closure__ or ()


@opcode("LOAD_CLOSURE")
def _load_closure(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(frame.locals[arg])


def _load_cell(vm: Any, frame: Frame, arg: int) -> Any:
    value = vm.cell_contents(frame, arg)
    if value is MISSING:
        raise _unbound_cell(frame, arg)
    return value


def _unbound_cell(frame: Frame, arg: int) -> NameError:
    name = frame.code.local_names[arg]
    if arg < frame.code.nlocals - frame.code.nfree:
        return UnboundLocalError(_UNBOUND.format(name))
    return NameError(
        f"cannot access free variable {name!r} where it is not associated with a value in enclosing scope",
        name=name,
    )


@opcode("LOAD_DEREF")
def _load_deref(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(_load_cell(vm, frame, arg))


@opcode("LOAD_CLASSDEREF")
def _load_classderef(vm: Any, frame: Frame, arg: Any) -> None:
    found = frame.namespace.get(frame.code.local_names[arg], MISSING)
    frame.stack.append(_load_cell(vm, frame, arg) if found is MISSING else found)


@opcode("LOAD_FROM_DICT_OR_DEREF")
def _load_from_dict_or_deref(vm: Any, frame: Frame, arg: Any) -> None:
    found = frame.stack[-1].get(frame.code.local_names[arg], MISSING)
    frame.stack[-1] = _load_cell(vm, frame, arg) if found is MISSING else found


def _touched_cell(vm: Any, frame: Frame, arg: int) -> Any:
    cell, place = frame.locals[arg], vm.cell_place(frame, arg)
    if place is not None:
        vm.touch_cell(place[0], cell, place[1])
    elif id(cell) in vm.outside.origins:
        vm.outside.log.touch_cell(cell)
    return cell


@opcode("STORE_DEREF")
def _store_deref(vm: Any, frame: Frame, arg: Any) -> None:
    cell = _touched_cell(vm, frame, arg)
    cell.cell_contents = frame.stack.pop()


@opcode("DELETE_DEREF")
def _delete_deref(vm: Any, frame: Frame, arg: Any) -> None:
    _load_cell(vm, frame, arg)
    del _touched_cell(vm, frame, arg).cell_contents


# -------------------------------------------------------------------------------------------- globals and names


@opcode("LOAD_GLOBAL")
def _load_global(vm: Any, frame: Frame, arg: Any) -> None:
    name, push_null = arg
    value = vm.load_global(frame.globals, name)
    if push_null:
        frame.stack.append(NULL)
    frame.stack.append(value)


@opcode("LOAD_NAME")
def _load_name(vm: Any, frame: Frame, arg: Any) -> None:
    found = frame.namespace.get(arg, MISSING) if frame.namespace is not None else MISSING
    frame.stack.append(vm.load_global(frame.globals, arg) if found is MISSING else found)


@opcode("LOAD_FROM_DICT_OR_GLOBALS")
def _load_from_dict_or_globals(vm: Any, frame: Frame, arg: Any) -> None:
    found = frame.stack[-1].get(arg, MISSING)
    frame.stack[-1] = vm.load_global(frame.globals, arg) if found is MISSING else found


@opcode("LOAD_LOCALS")
def _load_locals(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(frame.namespace)


@opcode("STORE_NAME")
def _store_name(vm: Any, frame: Frame, arg: Any) -> None:
    frame.namespace[arg] = frame.stack.pop()


@opcode("DELETE_NAME")
def _delete_name(vm: Any, frame: Frame, arg: Any) -> None:
    del frame.namespace[arg]


@opcode("STORE_GLOBAL")
def _store_global(vm: Any, frame: Frame, arg: Any) -> None:
    vm.store_global(frame.globals, arg, frame.stack.pop())


@opcode("DELETE_GLOBAL")
def _delete_global(vm: Any, frame: Frame, arg: Any) -> None:
    vm.load_global(frame.globals, arg)
    vm.delete_global(frame.globals, arg)


@opcode("IMPORT_NAME")
def _import_name(vm: Any, frame: Frame, arg: Any) -> None:
    stack = frame.stack
    level, names = stack[-2], stack[-1]
    if not level and arg not in sys.modules and not vm.outside.log.empty:
        raise Unsupported(Reason(IMPORT, arg))  # its code runs now, after what the function did before
    with vm.trace.paused():
        module = __import__(arg, frame.globals, None, names, level)
    del stack[-2:]
    loaded = sys.modules.get(arg)
    if loaded is module:  # whatever is there at the next call
        vm.outside.wrap(module, vm.outside.const(sys.modules).child("item", arg))
    vm.outside.origin(module)
    stack.append(module)


@opcode("IMPORT_FROM")
def _import_from(vm: Any, frame: Frame, arg: Any) -> None:
    module = frame.stack[-1]
    found = attributes.load_default(vm, module, arg, MISSING)
    if found is MISSING:
        found = sys.modules.get(f"{module.__name__}.{arg}", MISSING)
        if found is MISSING:
            raise ImportError(f"cannot import name {arg!r} from {module.__name__!r}", name=module.__name__)
        vm.outside.origin(found)
    frame.stack.append(found)


# ------------------------------------------------------------------------------------------------- attributes


@opcode("LOAD_ATTR")
def _load_attr(vm: Any, frame: Frame, arg: Any) -> None:
    name, is_method = arg
    stack = frame.stack
    if not is_method:
        stack[-1] = attributes.load_attr(vm, stack[-1], name)
    else:
        stack[-1:] = attributes.load_method(vm, stack[-1], name)


@opcode("LOAD_METHOD")
def _load_method(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack[-1:] = attributes.load_method(vm, frame.stack[-1], arg)


@opcode("LOAD_SUPER_ATTR")
def _load_super_attr(vm: Any, frame: Frame, arg: Any) -> None:
    name, is_method, _ = arg
    stack = frame.stack
    proxy, cls, obj = stack[-3:]
    made = super(cls, obj) if proxy is super else vm.call(proxy, (cls, obj), {})
    found = attributes.load_attr(vm, made, name)
    stack[-3:] = (NULL, found) if is_method else (found,)


@opcode("STORE_ATTR")
def _store_attr(vm: Any, frame: Frame, arg: Any) -> None:
    value, obj = frame.stack[-2:]
    attributes.store_attr(vm, obj, arg, value)
    del frame.stack[-2:]


@opcode("DELETE_ATTR")
def _delete_attr(vm: Any, frame: Frame, arg: Any) -> None:
    attributes.delete_attr(vm, frame.stack[-1], arg)
    frame.stack.pop()


# ------------------------------------------------------------------------------------------------------ jumps


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def _jump(vm: Any, frame: Frame, arg: Any) -> None:
    frame.pc = arg


@opcode("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE")
def _jump_if_false(vm: Any, frame: Frame, arg: Any) -> None:
    value = frame.stack[-1]
    if value is not True and (value is False or value is None or not vm.truth(value)):
        frame.pc = arg
    frame.stack.pop()


@opcode("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
def _jump_if_true(vm: Any, frame: Frame, arg: Any) -> None:
    value = frame.stack[-1]
    if value is True or (value is not False and value is not None and vm.truth(value)):
        frame.pc = arg
    frame.stack.pop()


@opcode("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_IF_NONE")
def _jump_if_none(vm: Any, frame: Frame, arg: Any) -> None:
    if frame.stack.pop() is None:
        frame.pc = arg


@opcode("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
def _jump_if_not_none(vm: Any, frame: Frame, arg: Any) -> None:
    if frame.stack.pop() is not None:
        frame.pc = arg


@opcode("JUMP_IF_FALSE_OR_POP")
def _jump_if_false_or_pop(vm: Any, frame: Frame, arg: Any) -> None:
    if vm.truth(frame.stack[-1]):
        frame.stack.pop()
    else:
        frame.pc = arg


@opcode("JUMP_IF_TRUE_OR_POP")
def _jump_if_true_or_pop(vm: Any, frame: Frame, arg: Any) -> None:
    if vm.truth(frame.stack[-1]):
        frame.pc = arg
    else:
        frame.stack.pop()


# -------------------------------------------------------------------------------------------------- operators


@opcode("BINARY_OP", "COMPARE_OP")
def _binary(vm: Any, frame: Frame, arg: Any) -> None:
    stack = frame.stack
    result = vm.binary(arg, stack[-2], stack[-1])
    stack.pop()
    stack[-1] = result


@opcode("IS_OP")
def _is(vm: Any, frame: Frame, arg: Any) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = vm.same(frame.stack[-1], right) != bool(arg)


@opcode("CONTAINS_OP")
def _contains(vm: Any, frame: Frame, arg: Any) -> None:
    stack = frame.stack
    result = vm.contains(stack[-2], stack[-1])
    stack.pop()
    stack[-1] = result != bool(arg)


@opcode("UNARY_NOT")
def _unary_not(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack[-1] = not vm.truth(frame.stack[-1])


def _unary(name: str, method: str, operation: Callable[[Any], Any]) -> None:
    def handler(vm: Any, frame: Frame, arg: Any) -> None:
        value = frame.stack[-1]
        found = python_method(vm, value, method)
        frame.stack[-1] = operation(value) if found is None else vm.call_function(found, (value,))

    HANDLERS[name] = handler


_unary("UNARY_NEGATIVE", "__neg__", lambda x: -x)
_unary("UNARY_POSITIVE", "__pos__", lambda x: +x)
_unary("UNARY_INVERT", "__invert__", lambda x: ~x)


@opcode("BINARY_SUBSCR")
def _binary_subscr(vm: Any, frame: Frame, arg: Any) -> None:
    stack = frame.stack
    result = vm.subscript(stack[-2], stack[-1])
    stack.pop()
    stack[-1] = result


@opcode("BINARY_SLICE")
def _binary_slice(vm: Any, frame: Frame, arg: Any) -> None:
    obj, start, stop = frame.stack[-3:]
    frame.stack[-3:] = (vm.subscript(obj, slice(start, stop)),)


@opcode("STORE_SUBSCR")
def _store_subscr(vm: Any, frame: Frame, arg: Any) -> None:
    value, obj, key = frame.stack[-3:]
    vm.store_item(obj, key, value)
    del frame.stack[-3:]


@opcode("STORE_SLICE")
def _store_slice(vm: Any, frame: Frame, arg: Any) -> None:
    value, obj, start, stop = frame.stack[-4:]
    vm.store_item(obj, slice(start, stop), value)
    del frame.stack[-4:]


@opcode("DELETE_SUBSCR")
def _delete_subscr(vm: Any, frame: Frame, arg: Any) -> None:
    obj, key = frame.stack[-2:]
    vm.delete_item(obj, key)
    del frame.stack[-2:]


# --------------------------------------------------------------------------------------------------- builders


def _take(stack: list[Any], count: int) -> list[Any]:
    if not count:
        return []
    items = stack[-count:]
    del stack[-count:]
    return items


@opcode("BUILD_TUPLE")
def _build_tuple(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(tuple(_take(frame.stack, arg)))


@opcode("BUILD_LIST")
def _build_list(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(_take(frame.stack, arg))


@opcode("BUILD_SET")
def _build_set(vm: Any, frame: Frame, arg: Any) -> None:
    items = frame.stack[len(frame.stack) - arg :]
    made = vm.native(set, (items,))
    frame.stack[len(frame.stack) - arg :] = (made,)


@opcode("BUILD_MAP")
def _build_map(vm: Any, frame: Frame, arg: Any) -> None:
    at = len(frame.stack) - 2 * arg
    flat = frame.stack[at:]
    keys = flat[::2] if vm.trace.symbols is None else [plain_parts(k) for k in flat[::2]]
    pairs = list(zip(keys, flat[1::2]))
    frame.stack[at:] = (vm.native(dict, (pairs,)) if calls_back(vm.kinds, keys) else dict(pairs),)


@opcode("BUILD_CONST_KEY_MAP")
def _build_const_key_map(vm: Any, frame: Frame, arg: Any) -> None:
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, _take(frame.stack, arg))))


@opcode("BUILD_STRING")
def _build_string(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack[-arg:] = (texts.join_all(frame.stack[-arg:]),)


@opcode("BUILD_SLICE")
def _build_slice(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(slice(*_take(frame.stack, arg)))


@opcode("LIST_TO_TUPLE")
def _list_to_tuple(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack[-1] = tuple(frame.stack[-1])


def _opened(vm: Any, target: Any) -> Any:
    """A dictionary or set that an instruction fills. After a graph break it comes from outside."""
    if id(target) in vm.outside.origins:
        vm.outside.open(target)
        vm.outside.touch(target)
    return target


@opcode("LIST_APPEND")
def _list_append(vm: Any, frame: Frame, arg: Any) -> None:
    vm.outside.touch(frame.stack[-1 - arg])  # after a graph break it comes from outside
    value = frame.stack.pop()
    frame.stack[-arg].append(value)


@opcode("SET_ADD")
def _set_add(vm: Any, frame: Frame, arg: Any) -> None:
    value, target = frame.stack[-1], _opened(vm, frame.stack[-1 - arg])
    vm.keyed(set.add, target, value)
    frame.stack.pop()


@opcode("MAP_ADD")
def _map_add(vm: Any, frame: Frame, arg: Any) -> None:
    key, value = frame.stack[-2:]
    vm.keyed(dict.__setitem__, _opened(vm, frame.stack[-2 - arg]), key, value)
    del frame.stack[-2:]


@opcode("LIST_EXTEND")
def _list_extend(vm: Any, frame: Frame, arg: Any) -> None:
    if not _is_iterable(frame.stack[-1]):
        raise TypeError(f"Value after * must be an iterable, not {_class_name(vm, frame.stack[-1])}")
    values = vm.elements(frame.stack[-1], hinted=True)
    vm.outside.touch(frame.stack[-1 - arg])
    frame.stack.pop()
    frame.stack[-arg].extend(values)


def _is_iterable(value: Any) -> bool:
    kind = type(value)
    return hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")


def _class_name(vm: Any, value: Any) -> str:
    return vm.class_of(value).__name__


@opcode("SET_UPDATE")
def _set_update(vm: Any, frame: Frame, arg: Any) -> None:
    values = vm.elements(frame.stack[-1])
    vm.keyed(set.update, _opened(vm, frame.stack[-1 - arg]), values)
    frame.stack.pop()


def _mapping(vm: Any, value: Any, message: str, called: Any = MISSING) -> Any:
    """`value`, which must be a mapping. `called` is described only where it is not: that may run code of its class."""
    if attributes.load_default(vm, value, "keys", MISSING) is MISSING:
        text = "" if called is MISSING else function_text(called)
        raise TypeError(message.format(_class_name(vm, value), called=text))
    return mapping(vm, value)


_NO_MAPPING = "{called} argument after ** must be a mapping, not {}"


@opcode("DICT_UPDATE")
def _dict_update(vm: Any, frame: Frame, arg: Any) -> None:
    values = _mapping(vm, frame.stack[-1], "{!r} object is not a mapping")
    target = _opened(vm, frame.stack[-1 - arg])
    if calls_back(vm.kinds, values.keys()):
        vm.native(dict.update, (target, values))
    else:
        target.update(values)
    frame.stack.pop()


@opcode("DICT_MERGE")
def _dict_merge(vm: Any, frame: Frame, arg: Any) -> None:
    called = frame.stack[-arg - 3]
    values = _mapping(vm, frame.stack[-1], _NO_MAPPING, called)
    target = _opened(vm, frame.stack[-arg - 1])
    for key in values:
        if key in target:
            raise TypeError(f"{function_text(called)} got multiple values for keyword argument '{key}'")
    target.update(values)
    frame.stack.pop()


@opcode("UNPACK_SEQUENCE")
def _unpack_sequence(vm: Any, frame: Frame, arg: Any) -> None:
    values = _unpacked(vm, frame.stack[-1], limit=arg + 1)
    if len(values) != arg:
        raise ValueError(
            f"too many values to unpack (expected {arg})"
            if len(values) > arg
            else f"not enough values to unpack (expected {arg}, got {len(values)})"
        )
    frame.stack[-1:] = reversed(values)


@opcode("UNPACK_EX")
def _unpack_ex(vm: Any, frame: Frame, arg: Any) -> None:
    before, after = arg & 0xFF, arg >> 8
    values = list(_unpacked(vm, frame.stack[-1]))
    if len(values) < before + after:
        raise ValueError(
            f"not enough values to unpack (expected at least {before + after}, got {len(values)})"
        )
    end = len(values) - after
    frame.stack[-1:] = reversed([*values[:before], values[before:end], *values[end:]])


def _unpacked(vm: Any, value: Any, limit: int | None = None) -> Any:
    if not _is_iterable(value):
        raise TypeError(f"cannot unpack non-iterable {_class_name(vm, value)} object")
    return vm.elements(value, limit=limit)


@opcode("FORMAT_VALUE")
def _format_value(vm: Any, frame: Frame, arg: Any) -> None:
    stack = frame.stack
    has_spec = bool(arg & 4)
    value, spec = (stack[-2], stack[-1]) if has_spec else (stack[-1], "")
    convert = (None, str, repr, ascii)[arg & 3]
    if convert is not None:
        value = texts.convert(vm, convert, value)
    text = texts.formatted(vm, value, spec) if type(value) is not str or spec else value
    stack[-1 - has_spec :] = (text,)


# -------------------------------------------------------------------------------------------------- iteration


@opcode("GET_ITER", "GET_YIELD_FROM_ITER")
def _get_iter(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack[-1] = vm.get_iter(frame.stack[-1])


@opcode("FOR_ITER")
def _for_iter(vm: Any, frame: Frame, arg: Any) -> None:
    try:
        value = vm.next(frame.stack[-1])
    except StopIteration:
        frame.stack.pop()
        frame.pc = arg + PY312  # 3.12 jumps over END_FOR
        return
    frame.stack.append(value)


@opcode("END_FOR")
def _end_for(vm: Any, frame: Frame, arg: Any) -> None:
    del frame.stack[-2:]


@opcode("GET_LEN")
def _get_len(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(vm.call(len, (frame.stack[-1],), {}))


# ------------------------------------------------------------------------------------- functions and generators


@opcode("MAKE_FUNCTION")
def _make_function(vm: Any, frame: Frame, arg: Any) -> None:
    stack = frame.stack
    code = stack.pop()
    closure = stack.pop() if arg & 8 else None
    annotations = stack.pop() if arg & 4 else None
    keyword_defaults = stack.pop() if arg & 2 else None
    defaults = stack.pop() if arg & 1 else None
    made = FunctionType(code, frame.globals, code.co_name, defaults, closure)
    made.__kwdefaults__ = keyword_defaults
    made.__qualname__ = code.co_qualname
    if annotations:
        made.__annotations__ = dict(zip(annotations[::2], annotations[1::2]))
    vm.made_function(frame, made)
    stack.append(made)


@opcode("KW_NAMES")
def _kw_names(vm: Any, frame: Frame, arg: Any) -> None:
    frame.kwnames = arg


@opcode("CALL")
def _call(vm: Any, frame: Frame, arg: Any) -> None:
    stack = frame.stack
    at = len(stack) - arg - 2
    fn = stack[at]
    if fn is NULL:
        fn, args = stack[at + 1], stack[at + 2 :]
    else:
        args = stack[at + 1 :]
    names = frame.kwnames
    if names:
        split = len(args) - len(names)
        kwargs = dict(zip(names, args[split:]))
        del args[split:]
        frame.kwnames = ()
    else:
        kwargs = {}
    vm.tail = frame
    result = call(vm, fn, args, kwargs)
    stack[at:] = (result,)


@opcode("CALL_FUNCTION_EX")
def _call_function_ex(vm: Any, frame: Frame, arg: Any) -> None:
    stack = frame.stack
    at = len(stack) - 3 - (arg & 1)  # NULL, function, positional, [keyword]
    fn, positional = stack[at + 1 : at + 3]
    if not _is_iterable(positional):
        kind = _class_name(vm, positional)
        raise TypeError(f"{function_text(fn)} argument after * must be an iterable, not {kind}")
    kwargs = dict(_mapping(vm, stack[-1], _NO_MAPPING, fn)) if arg & 1 else {}
    args = positional if type(positional) is tuple else tuple(vm.elements(positional))
    vm.tail = frame
    stack[at:] = (call(vm, fn, args, kwargs),)


@opcode("RETURN_VALUE")
def _return_value(vm: Any, frame: Frame, arg: Any) -> bool:
    frame.result = frame.stack.pop()
    return True


@opcode("RETURN_CONST")
def _return_const(vm: Any, frame: Frame, arg: Any) -> bool:
    frame.result = arg
    return True


@opcode("RETURN_GENERATOR")
def _return_generator(vm: Any, frame: Frame, arg: Any) -> bool:
    if frame.code.flags & (COROUTINE | ASYNC_GENERATOR):
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, "asynchronous functions"))
    frame.result = Generator(vm, frame)
    frame.direct = False
    return True


@opcode("YIELD_VALUE")
def _yield_value(vm: Any, frame: Frame, arg: Any) -> bool:
    frame.result = frame.stack.pop()
    frame.yielded = True
    return True


@opcode("SEND")
def _send(vm: Any, frame: Frame, arg: Any) -> None:
    stack = frame.stack
    target, value = stack[-2:]
    try:
        stack[-1] = (
            vm.next(target)
            if value is None
            else vm.call(attributes.load_attr(vm, target, "send"), (value,), {})
        )
    except StopIteration as stop:
        if PY312:
            stack[-1] = stop.value
        else:
            stack[-2:] = (stop.value,)
        frame.pc = arg


@opcode("END_SEND")
def _end_send(vm: Any, frame: Frame, arg: Any) -> None:
    del frame.stack[-2]


@opcode("CLEANUP_THROW")
def _cleanup_throw(vm: Any, frame: Frame, arg: Any) -> None:
    error = frame.stack[-1]
    if not isinstance(error, StopIteration):
        vm.raise_again(error)
    frame.stack[-3:] = (None, error.value)


# ------------------------------------------------------------------------------------------------- exceptions


@opcode("PUSH_EXC_INFO")
def _push_exc_info(vm: Any, frame: Frame, arg: Any) -> None:
    error = frame.stack.pop()
    frame.stack += (Handled(frame.handled), error)
    frame.handled = error


@opcode("POP_EXCEPT")
def _pop_except(vm: Any, frame: Frame, arg: Any) -> None:
    frame.handled = frame.stack.pop().error


@opcode("CHECK_EXC_MATCH")
def _check_exc_match(vm: Any, frame: Frame, arg: Any) -> None:
    classes = raising.check_classes(frame.stack[-1])
    frame.stack[-1] = raising.matches(frame.stack[-2], classes)


@opcode("CHECK_EG_MATCH")
def _check_eg_match(vm: Any, frame: Frame, arg: Any) -> None:
    match, rest = raising.split(vm, *frame.stack[-2:])
    frame.stack[-2:] = (rest, match)
    if match is not None:
        frame.handled = match


@opcode("PREP_RERAISE_STAR")
def _prep_reraise_star(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack[-2:] = (raising.after_clauses(vm, *frame.stack[-2:]),)


@opcode("RERAISE")
def _reraise(vm: Any, frame: Frame, arg: Any) -> None:
    vm.raise_again(frame.stack[-1])


@opcode("RAISE_VARARGS")
def _raise_varargs(vm: Any, frame: Frame, arg: Any) -> None:
    handled = vm.handled_exception()
    if arg == 0 and handled is not None:
        vm.raise_again(handled)
    if arg == 0:
        raise RuntimeError("No active exception to reraise")
    error = raising.made(vm, frame.stack[-arg])
    if arg == 2:
        raising.set_cause(vm, error, frame.stack[-1])
    vm.raising = None  # also one that was raised before gets its context anew
    raise error


@opcode("LOAD_ASSERTION_ERROR")
def _load_assertion_error(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(AssertionError)


@opcode("BEFORE_WITH")
def _before_with(vm: Any, frame: Frame, arg: Any) -> None:
    manager = frame.stack[-1]
    enter = attributes.load_special(vm, manager, "__enter__")
    leave = attributes.load_special(vm, manager, "__exit__")
    if enter is MISSING or leave is MISSING:
        missed = "" if enter is MISSING else " (missed __exit__ method)"
        name = vm.class_of(manager).__name__
        raise TypeError(f"{name!r} object does not support the context manager protocol{missed}")
    entered = vm.enter(manager)
    frame.stack[-1:] = (leave, entered)


@opcode("WITH_EXCEPT_START")
def _with_except_start(vm: Any, frame: Frame, arg: Any) -> None:
    error, leave = frame.stack[-1], frame.stack[-4]
    frame.stack.append(vm.call(leave, (type(error), error, error.__traceback__), {}))


# ---------------------------------------------------------------------------------------------- match, classes


@opcode("MATCH_SEQUENCE")
def _match_sequence(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(patterns.is_sequence(frame.stack[-1]))


@opcode("MATCH_MAPPING")
def _match_mapping(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(patterns.is_mapping(frame.stack[-1]))


@opcode("MATCH_KEYS")
def _match_keys(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(patterns.keys(vm, *frame.stack[-2:]))


@opcode("MATCH_CLASS")
def _match_class(vm: Any, frame: Frame, arg: Any) -> None:
    subject, cls, names = frame.stack[-3:]
    frame.stack[-3:] = (patterns.class_parts(vm, subject, cls, arg, names),)


@opcode("LOAD_BUILD_CLASS")
def _load_build_class(vm: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(builtins.__build_class__)


@opcode("SETUP_ANNOTATIONS")
def _setup_annotations(vm: Any, frame: Frame, arg: Any) -> None:
    frame.namespace.setdefault("__annotations__", {})


# ------------------------------------------------------------------------------------------- 3.12 intrinsics


@opcode("CALL_INTRINSIC_1")
def _call_intrinsic_1(vm: Any, frame: Frame, arg: Any) -> None:
    handler = intrinsics.UNARY.get(arg)
    if handler is None:
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, f"CALL_INTRINSIC_1 {arg}"))
    frame.stack[-1] = handler(frame.globals, frame.stack[-1])


@opcode("CALL_INTRINSIC_2")
def _call_intrinsic_2(vm: Any, frame: Frame, arg: Any) -> None:
    if arg == intrinsics.PREP_RERAISE_STAR:
        return _prep_reraise_star(vm, frame, arg)
    handler = intrinsics.BINARY.get(arg)
    if handler is None:
        raise Unsupported(Reason(UNSUPPORTED_OPCODE, f"CALL_INTRINSIC_2 {arg}"))
    frame.stack[-2:] = (handler(frame.globals, *frame.stack[-2:]),)
