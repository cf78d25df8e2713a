"""Operators: arithmetic, comparisons, truth, `is` and `in`.

Each follows CPython's protocol: special methods written in Python are interpreted; everything else runs natively on the
operands' views (`container_contents.native_view`).
"""

from __future__ import annotations

import collections
import inspect
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import numpy as np
import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.call_handlers import METHODS, unsupported
from smelt.capture.base.native_functions import check_decimals
from smelt.capture.base.type_lookup import ABSENT, FUNCTION
from smelt.capture.base.value_kinds import CONTAINER_BASES, Container, is_constant, is_identity, is_interned
from smelt.capture.base.vm_frames import CallSite, Generator, VMCallable, with_result_handler
from smelt.capture.environment import container_contents, environment_mutations, wrap_values
from smelt.capture.environment.environment import Environment
from smelt.capture.proxies import number_proxy, text_proxy
from smelt.capture.proxies.array_proxy import ArrayProxy
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.semantics import number_semantics, result_polyfills
from smelt.capture.semantics.attributes import python_method
from smelt.capture.semantics.attributes.method_lookup import SIMPLE_TYPES, may_define_operators
from smelt.capture.semantics.calls.native_callbacks import check_error_class_name
from smelt.capture.semantics.calls.torch_function_overrides import call_operator
from smelt.capture.semantics.values import formatting, set_methods
from smelt.capture.semantics.values.asserted_conditions import assume
from smelt.capture.semantics.values.container_methods import contains_key
from smelt.capture.semantics.values.iteration import elements, iterate_lazily
from smelt.capture.semantics.values.lengths import checked_length, container_len
from smelt.capture.semantics.values.subscripts import lookup_key
from smelt.capture.vm.vm import VM
from smelt.guards.leaf_equality import same_leaf
from smelt.guards.source import Source
from smelt.reasons import DATA_DEPENDENT, UNSUPPORTED_OBJECT
from smelt.tracing.fake.fake_tensor import FakeTensor, class_of_fake, possible_tensors
from smelt.tracing.record.torch_function_handlers import is_handled
from smelt.tracing.symbolic.numpy_numbers import NUMPY_NUMBERS, NumpyNumber
from smelt.tracing.symbolic.sym_nodes import UnbackedComparison
from smelt.tracing.symbolic.sym_numbers import NUMBERS, Float, Int, specialize
from smelt.tracing.symbolic.symbolic_ranges import SEQUENCE_PROXIES, SymbolicList, without_proxies

_Items = Sequence[object]
_Attempt = tuple[object, str, object]  # an object, its method's name, the other operand
_NAMES = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.truediv: "truediv",
    operator.floordiv: "floordiv", operator.mod: "mod",
    operator.pow: "pow", operator.matmul: "matmul", operator.and_: "and", operator.or_: "or",
    operator.xor: "xor", operator.lshift: "lshift", operator.rshift: "rshift",
}  # fmt: skip
_METHODS = {
    **{fn: (f"__{n}__", f"__r{n}__") for fn, n in _NAMES.items()},
    operator.eq: ("__eq__", "__eq__"), operator.ne: ("__ne__", "__ne__"), operator.lt: ("__lt__", "__gt__"),
    operator.le: ("__le__", "__ge__"), operator.gt: ("__gt__", "__lt__"), operator.ge: ("__ge__", "__le__"),
}  # fmt: skip
_INPLACE = {getattr(operator, "i" + fn.__name__.rstrip("_")): fn for fn in _NAMES}
_SYMBOLS = {
    operator.add: "+", operator.and_: "&", operator.floordiv: "//", operator.lshift: "<<", operator.matmul: "@",
    operator.mul: "*", operator.mod: "%", operator.or_: "|", operator.pow: "** or pow()", operator.rshift: ">>",
    operator.sub: "-", operator.truediv: "/", operator.xor: "^", operator.lt: "<", operator.le: "<=", operator.gt: ">",
    operator.ge: ">=",
}  # fmt: skip
_SYMBOLS.update({i: "**=" if fn is operator.pow else _SYMBOLS[fn] + "=" for i, fn in _INPLACE.items()})
_EQUALITY = (operator.eq, operator.ne)
_HOLDERS = frozenset({tuple, slice})  # native code compares their contents
_TUPLES = frozenset({tuple, torch.Size})
_NUMBERS_OR_INT = frozenset({int, Int})
_ARRAYS = frozenset({ArrayProxy, np.ndarray})
_COMPARISONS = (*_EQUALITY, operator.lt, operator.le, operator.gt, operator.ge)


def binary(vm: VM, fn: Callable[..., object], left: object, right: object) -> object:
    """`fn(left, right)` for a function of the operator module."""
    call_site = vm.frames.take_call_site()
    a, b = type(left), type(right)
    if a is OpaqueProxy or b is OpaqueProxy:
        raise text_proxy.unreadable("an operator of an object that changes", left, right)
    if a is str and fn is operator.mod:
        return formatting.format_percent(vm, cast(str, left), right)
    if a is NumberProxy or b is NumberProxy:
        if FakeTensor in (a, b) and is_handled(vm.trace.call, (left, right)):
            raise text_proxy.unreadable(
                "a function that is overridden for a number that a tensor holds", left, right
            )
        return number_proxy.binary(
            fn, left, right, lambda holds: assume(vm, vm.current_frame, cast(FakeTensor, holds))
        )
    if a is text_proxy.TextProxy or b is text_proxy.TextProxy:
        return text_proxy.binary(fn, left, right)
    if a in SEQUENCE_PROXIES or b in SEQUENCE_PROXIES:
        return _row_operator(vm, fn, left, right)
    if a in NUMPY_NUMBERS or b in NUMPY_NUMBERS:
        return number_semantics.numpy_binary(vm, fn, left, right)
    if (a is FakeTensor and b in _ARRAYS) or (b is FakeTensor and a in _ARRAYS):
        found = _tensor_with_array(vm, fn, left, right)
        if found is not NotImplemented:
            return found
    if fn in _EQUALITY and a in _TUPLES and b in _TUPLES:
        return _equal_items(vm, cast(_Items, left), cast(_Items, right)) is (fn is operator.eq)
    if a in SIMPLE_TYPES and b in SIMPLE_TYPES:
        if a not in _HOLDERS and b not in _HOLDERS:
            if fn in _EQUALITY:
                vm.env.facts.use_differences(left, right)
            elif a is bytes:  # b"%d" % number
                vm.env.facts.use_digits(right)
            try:
                return call_operator(vm, fn, left, right) if FakeTensor in (a, b) else fn(left, right)
            except TypeError as error:
                check_error_class_name(fn, error, (left, right))
                raise
        if fn in _COMPARISONS:
            vm.env.facts.use_differences(left, right)
            container_contents.guard_compared(vm.env, (left, right))
        return vm.call_native(fn, (left, right))
    if a is torch.SymInt or b is torch.SymInt:
        return _ragged_operator(fn, left, right)
    if a is list and b is list and fn in _EQUALITY:
        return _equal_items(vm, elements(vm, left), elements(vm, right)) is (fn is operator.eq)
    if a in NUMBERS or b in NUMBERS:
        return number_semantics.binary(vm, fn, left, right)
    if may_define_operators(a) or may_define_operators(b):
        found = _python_operator(vm, fn, left, right, call_site)
        if found is not NotImplemented:
            return found
    env = vm.env
    if fn in _INPLACE and isinstance(left, CONTAINER_BASES):
        return _inplace(vm, fn, left, right)
    env.facts.check_readable(left)
    env.facts.check_readable(right)
    deep = fn in _COMPARISONS
    if deep:
        env.facts.use_differences(left, right)
    if not deep:
        check_decimals(left, right)
    return wrap_values.to_fake(
        env,
        vm.call_native(
            fn,
            (
                container_contents.native_view(env, left, deep),
                container_contents.native_view(env, right, deep),
            ),
        ),
    )


def _tensor_with_array(vm: VM, fn: Callable[..., object], left: object, right: object) -> object:
    """`fn(left, right)` of a tensor and an array; NotImplemented where the operator itself raises, or ignores the values.
    Raises Unsupported for a NumPy scalar, which tensors accept as a number, for an environment array without a proxy, and
    for a tensor whose class or mode handles the operator."""
    tensor, array = (left, right) if type(left) is FakeTensor else (right, left)
    plain, proxy = _INPLACE.get(fn, fn), type(array) is ArrayProxy
    if array is left and fn is operator.truediv:  # as `Tensor.__rtruediv__`
        return binary(vm, operator.mul, vm.call(torch.Tensor.reciprocal, (tensor,), {}), array)
    if fn is not operator.eq and (array is left or plain not in _NAMES):
        return NotImplemented
    fake = cast(FakeTensor, tensor)
    if fake.subclass is not None or is_handled(vm.trace.call, (fake,)):
        raise unsupported("an operator of a tensor and an array", DATA_DEPENDENT)
    if cast(ArrayProxy, array).scalar if proxy else id(array) in vm.env.sources:
        raise unsupported("an operator of a tensor and a NumPy value", DATA_DEPENDENT)
    if fn is operator.eq:
        return _tensor_equals_array(vm, fake, array)
    return _array_as_tensor(vm, plain(vm.call(torch.Tensor.numpy, (fake,), {}), array))


def _tensor_equals_array(vm: VM, tensor: FakeTensor, array: object) -> object:
    """`tensor == array`, the one operator that reads an array as a tensor."""
    other = cast(torch.Tensor, vm.call(torch.from_numpy, (array,), {}))
    if not other.dim():
        raise unsupported("an operator of a tensor and a NumPy value", DATA_DEPENDENT)
    return vm.call(torch.eq, (tensor, other), {})


def _array_as_tensor(vm: VM, result: object) -> object:
    """The result, as a tensor, of an operator that a tensor leaves to NumPy. NumPy computes a new array, also for
    `tensor += array`, and `Tensor.__array_wrap__` converts it."""
    if not isinstance(result, ArrayProxy):
        raise unsupported("an operator of a tensor and an array", DATA_DEPENDENT)
    if _WRAP_WARNING is not None:
        vm.call(warnings.warn, (_WRAP_WARNING, DeprecationWarning), {})
    # `__array_wrap__` converts booleans to numbers
    return result.tensor.to(torch.uint8) if result.tensor.dtype is torch.bool else result.tensor


def _wrap_warning() -> str | None:
    """The warning about the signature of `Tensor.__array_wrap__` that NumPy gives at each such operator, or None."""
    takes_context = (
        "return_scalar" in inspect.signature(inspect.unwrap(torch.Tensor.__array_wrap__)).parameters
    )
    if np.lib.NumpyVersion(np.__version__) < "2.0.0" or takes_context:
        return None
    return (
        "__array_wrap__ must accept context and return_scalar arguments (positionally) in the future. "
        "(Deprecated NumPy 2.0)"
    )


_WRAP_WARNING = _wrap_warning()


def _row_operator(vm: VM, fn: Callable[..., object], left: object, right: object) -> object:
    """`fn(left, right)` where one operand is a list or range of symbolic length, which can be appended to a list."""
    if fn is operator.add and type(left) is list and type(right) is SymbolicList:
        values = elements(vm, left)
        if all(type(v) in _NUMBERS_OR_INT for v in values):
            return right.with_prefix(values)
    return binary(vm, fn, without_proxies(left), without_proxies(right))


def unary(vm: VM, fn: Callable[..., object], value: object) -> object:
    """`fn(value)` for `neg`, `pos` or `invert` of the operator module without a Python method."""
    if isinstance(value, CONTAINER_BASES):
        return wrap_values.to_fake(
            vm.env, vm.call_native(fn, (container_contents.native_view(vm.env, value),))
        )
    if type(value) in NUMPY_NUMBERS and fn is operator.neg:
        return number_semantics.numpy_binary(vm, operator.mul, value, -1)
    if type(value) is NumberProxy:
        return fn(value)
    check_decimals(value)
    return call_operator(vm, fn, value)


def _equal_items(vm: VM, left: _Items, right: _Items) -> bool:
    """Elementwise equality of sequences: elements may be environment objects or have an `__eq__` in Python."""
    if len(left) != len(right):
        return False
    for value in left:
        vm.env.facts.use_nan(value)
    symbols = vm.trace.numbers.symbols
    if symbols is not None and all(type(v) in _NUMBERS_OR_INT for v in (*left, *right)):
        found = symbols.all_equal(list(zip(left, right)))
        if found is not None:
            return found
    return all(v is w or truth(vm, binary(vm, operator.eq, v, w)) for v, w in zip(left, right))


def _ragged_operator(fn: Callable[..., object], left: object, right: object) -> object:
    """`fn(left, right)` where an operand is a ragged size, which equals no number."""
    if fn in _EQUALITY and (type(left) is not torch.SymInt or type(right) is not torch.SymInt):
        return fn is operator.ne
    return fn(left, right)


def _inplace(vm: VM, fn: Callable[..., object], left: Container, right: object) -> object:
    """An in-place operator such as `left += right` on a container, recorded as a mutation."""
    if isinstance(left, set) and isinstance(right, (set, frozenset)):
        return set_methods.call_mutator(vm, left, f"__{fn.__name__}__", [right])
    if isinstance(left, list) and fn is operator.iadd:
        right = elements(vm, right, hinted=True)
    else:
        right = container_contents.native_view(vm.env, right, deep=False)
    if id(left) in vm.env.sources:
        container_contents.open_for_native(vm.env, left)
        environment_mutations.record_mutation(vm.env, left)
    try:
        result = vm.call_native(fn, (vm.env.overlay.now(left), right))
    finally:
        environment_mutations.mark_copies_stale(vm.env, left)
    vm.env.log.check_left(left)
    return wrap_values.to_fake(vm.env, result)


def _python_operator(
    vm: VM, fn: Callable[..., object], left: object, right: object, call_site: CallSite | None
) -> object:
    """Result of the operator's Python methods; NotImplemented if native code must compute it."""
    called, original = False, fn
    call_site = call_site if _has_class_operators(left) and _has_class_operators(right) else None
    if fn in _INPLACE:
        binary_fn = _INPLACE[fn]
        found = python_method(vm, left, "__i" + _NAMES[binary_fn] + "__")
        if found is not None:
            remaining = _attempts(vm, binary_fn, _METHODS[binary_fn], left, right)
            vm.frames.call_site = _attempt_call_site(call_site, original, left, right, remaining)
            result = vm.call_function(found, (left, right))
            if result is not NotImplemented:
                return result
            called = True
        elif vm.type_info(type(left)).find("__i" + _NAMES[binary_fn] + "__")[0] is not ABSENT:
            return NotImplemented
        fn = binary_fn
    names = _METHODS.get(fn)
    if names is None:
        return NotImplemented
    attempts = _attempts(vm, fn, names, left, right)
    for number, (obj, name, other) in enumerate(attempts, 1):
        found = python_method(vm, obj, name) if may_define_operators(type(obj)) else None
        if found is None and fn is operator.ne and may_define_operators(type(obj)):
            result = _inverted_equality(vm, obj, other)
        else:
            vm.frames.call_site = _attempt_call_site(call_site, original, left, right, attempts[number:])
            result = NotImplemented if found is None else vm.call_function(found, (obj, other))
        called = called or found is not None
        if result is not NotImplemented:
            return result
    if not called:
        return NotImplemented
    vm.env.facts.use_differences(left, right)
    return _finish_unsupported(original, left, right)


def _has_class_operators(value: object) -> bool:
    """Whether the class attributes define all operators of `value`; C containers and strings have more."""
    if type(value) in _NUMERIC:
        return True
    return all(_native.made_by_python(base) or base is object for base in type(value).__mro__)


_NUMERIC = (int, float, complex, bool, type(None), FakeTensor)


def _attempt_call_site(
    call_site: CallSite | None,
    fn: Callable[..., object],
    left: object,
    right: object,
    remaining: Sequence[_Attempt],
) -> CallSite | None:
    """`call_site` for a call of one of the operator's methods."""
    if call_site is None or fn is operator.ne:  # `object.__ne__` may be among the methods
        return None
    if fn is operator.eq:
        return with_result_handler(call_site, result_polyfills.finish_equality, left, right, *remaining)
    finish = result_polyfills.finish_comparison if fn in _COMPARISONS else result_polyfills.finish_arithmetic
    return with_result_handler(call_site, finish, _SYMBOLS[fn], left, right, *remaining)


def _attempts(
    vm: VM, fn: Callable[..., object], names: tuple[str, str], left: object, right: object
) -> list[_Attempt]:
    """Methods to call in order, each as (object, name, other operand); an overriding subclass on the right is first."""
    forward, reflected = (left, names[0], right), (right, names[1], left)
    a, b = type(left), type(right)
    if a is b:
        return [forward, reflected] if fn in _COMPARISONS else [forward]
    if a is str and fn is operator.mod:
        return []
    if issubclass(b, a) and (fn in _COMPARISONS or _overrides(vm, a, b, names[1])):
        return [reflected, forward]
    return [forward, reflected]


def _overrides(vm: VM, a: type, b: type, name: str) -> bool:
    return vm.type_info(a).find(name)[1] is not vm.type_info(b).find(name)[1]


def _inverted_equality(vm: VM, obj: object, other: object) -> object:
    """`object.__ne__`."""
    if vm.type_info(type(obj)).find("__ne__")[1] is not object.__ne__:
        return NotImplemented
    found = python_method(vm, obj, "__eq__")
    result = NotImplemented if found is None else vm.call_function(found, (obj, other))
    return result if result is NotImplemented else not truth(vm, result)


def _finish_unsupported(fn: Callable[..., object], left: object, right: object) -> object:
    """Result of the operator after its Python methods returned NotImplemented, without calling them again. Raises
    Unsupported for a runtime NumPy scalar, which tensors accept as a number."""
    if any(type(v) is ArrayProxy and v.scalar for v in (left, right)):
        raise unsupported("a NumPy scalar with an object of another type", DATA_DEPENDENT)
    bare = [_without_operators(v) for v in (left, right)]
    if any(v is None for v in bare):
        return NotImplemented
    if fn in _EQUALITY:
        return (left is right) is (fn is operator.eq)
    return fn(*bare)  # raises with the class names


def _without_operators(value: object) -> object:
    """An object without operators whose class has the name of the class of `value`, for the message of a TypeError; None if
    that class has a C base, which may have operators."""
    kind = type(value)
    if kind is FakeTensor:
        return _empty_class(class_of_fake(cast(FakeTensor, value)).__name__)()
    if not may_define_operators(kind):
        return value if value is not None else _empty_class("NoneType")()
    if any(not _native.made_by_python(b) and b is not object for b in kind.__mro__):
        return None
    return _empty_class(kind.__name__)()


def _empty_class(name: str) -> type:
    return type(name, (), {})


def truth(vm: VM, value: object) -> bool:
    """`bool(value)`."""
    call_site = vm.frames.take_call_site()
    kind = type(value)
    if kind is FakeTensor:
        tensor = cast(FakeTensor, value)
        if is_handled(vm.trace.call, (tensor,)):
            return bool(vm.call_native(bool, (tensor,)))
        return bool(
            number_semantics.symbolic_item(vm, tensor) if vm.env.numbers.guards_conditions else tensor
        )
    if kind in SIMPLE_TYPES:
        return bool(value)
    if kind in NUMBERS or kind is UnbackedComparison:
        return bool(value)
    if kind is NumberProxy:
        if vm.conditional_jumps.joined_numbers:
            raise text_proxy.unreadable("bool() of a number that a tensor holds", value)
        return bool(cast(NumberProxy, value).condition())
    if kind in SEQUENCE_PROXIES:
        return True
    if isinstance(value, NumpyNumber):
        return bool(value.number)
    if kind in (Generator, VMCallable):
        return True
    vm.env.facts.use_lookups(kind)
    for name in ("__bool__", "__len__"):
        how, found, _ = vm.type_info(kind).find(name)
        if how is FUNCTION:
            vm.frames.call_site = with_result_handler(call_site, _TRUTH_RESULT_HANDLERS[name])
            return _checked_truth(name, vm.call_function(found, (value,)))
        if how is not ABSENT:
            break
    if isinstance(value, CONTAINER_BASES):
        return container_len(vm, value) != 0
    handler = METHODS.get((kind, "__len__"))
    if handler is not None:
        return bool(handler(vm, value))
    vm.env.facts.check_readable(value)
    return bool(vm.call_native(bool, (value,)))


_TRUTH_RESULT_HANDLERS = {
    "__bool__": result_polyfills.checked_bool,
    "__len__": result_polyfills.length_as_bool,
}


def _checked_truth(name: str, result: object) -> bool:
    """Truth value from the result of `__bool__` or `__len__`. Raises as the interpreter would."""
    if name == "__len__":
        return checked_length(result) != 0
    if type(result) is not bool:
        raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
    return result


_BOOLS = frozenset({NumberProxy, UnbackedComparison})


def same(vm: VM, left: object, right: object) -> bool:
    """`left is right`. Guards that two environment objects are distinct."""
    if left is right:
        vm.env.facts.use_constant(left)
        return True
    if is_constant(left) and same_leaf(left, right):
        vm.env.facts.use_constant(left)
        vm.env.facts.use_constant(right)
        return False
    if type(left) is FakeTensor and type(right) is FakeTensor:
        if not possible_tensors(left).isdisjoint(possible_tensors(right)):
            raise unsupported("the identity of a tensor, which a branch decides", DATA_DEPENDENT)
    if not _BOOLS.isdisjoint((type(left), type(right))):  # True and False are one object each
        if vm.class_of(left) is bool and vm.class_of(right) is bool:
            raise text_proxy.unreadable("the identity of a bool that data decide", left, right)
        return False
    if OpaqueProxy in (type(left), type(right)):
        if vm.class_of(left) is vm.class_of(right):
            raise text_proxy.unreadable("the identity of an object that changes decides", left, right)
        return False
    if type(left) in NUMBERS or type(right) in NUMBERS:
        both = number_semantics.is_number(left) and number_semantics.is_number(right)
        return both and _is_same_number(vm.env, left, right)
    a, b = vm.env.sources.get(id(left)), vm.env.sources.get(id(right))
    texts = [type(v) for v in (left, right) if type(v) in (str, text_proxy.TextProxy)]
    if len(texts) == 2 and text_proxy.TextProxy in texts and (a is not None or b is not None):
        raise text_proxy.unreadable("the identity of a string that changes decides", left, right)
    if a is not None and b is not None and a is not b and not (a.kind == "const" and b.kind == "const"):
        known = all(is_identity(v) and not vm.env.sources.is_guarded_by_code(v) for v in (left, right))
        if _class_of(left) is _class_of(right) and not known and not is_constant(left):
            vm.env.facts.guard("distinct", a, (a, b), key=b)
    return False


def _class_of(value: object) -> type:
    return value.scalar if isinstance(value, NumpyNumber) else type(value)


def _is_same_number(env: Environment, left: object, right: object) -> bool:
    """`left is right` of two numbers, one of them symbolic. Guards whether an object of the environment is another."""
    (a, first), (b, second) = _located(env, left), _located(env, right)
    if a is None or b is None:  # a result
        plain: object = specialize(left)
        return same_leaf(plain, specialize(right)) and is_interned(plain)
    a, b = (b, a) if a.kind == "const" else (a, b)
    if first is not second:
        env.facts.guard("distinct", a, (a, b), key=b)
    elif b.kind == "const":
        env.facts.guard("id", a, first)
    else:
        env.facts.guard("alias", b, a)
    return first is second


def _located(env: Environment, number: object) -> tuple[Source | None, object]:
    """Where the environment holds a number (None for a symbolic result), and the object of this call."""
    if isinstance(number, (Int, Float)):
        return env.numbers.source_of(number), number.node.value
    return env.sources.get(id(number)) or env.sources.const(number), number


def _among(vm: VM, value: object, candidates: Iterable[object]) -> bool:
    """Whether one of the candidates is or equals `value`."""
    vm.env.facts.use_nan(value)
    return any(value is v or truth(vm, binary(vm, operator.eq, v, value)) for v in candidates)


def _own_items(vm: VM, container: list[object] | tuple[object, ...] | collections.deque[object]) -> _Items:
    """The items of a sequence, whatever an `__iter__` of its class in Python returns."""
    if python_method(vm, container, "__iter__") is None:
        return elements(vm, container)
    base = next(b for b in (list, tuple, collections.deque) if isinstance(container, b))
    view = container_contents.native_view(vm.env, container, deep=False)
    return [wrap_values.to_fake(vm.env, v) for v in base.__iter__(view)]


def contains(vm: VM, value: object, container: object) -> bool:
    """`value in container`."""
    call_site = vm.frames.take_call_site()
    vm.env.facts.use_nan(value)
    if vm.env.native_views.stale:
        container_contents.refresh_copies(vm.env)
    if type(container) in SEQUENCE_PROXIES:
        container = without_proxies(container)
    kind = type(container)
    if may_define_operators(kind):
        found = python_method(vm, container, "__contains__")
        if found is not None:
            vm.frames.call_site = call_site
            return truth(vm, vm.call_function(found, (container, value)))
        falls_back = vm.type_info(kind).find("__contains__")[0] is ABSENT
        if kind is Generator or (falls_back and python_method(vm, container, "__iter__") is not None):
            return _among(vm, value, iterate_lazily(vm, container))
    if isinstance(container, (dict, set, frozenset)):
        value = specialize(value)
    if isinstance(container, dict):
        return contains_key(vm, container, lookup_key(vm, container, value))
    if isinstance(container, (list, tuple, collections.deque)) and not (
        is_constant(value) and NUMBERS.isdisjoint(map(type, container))
    ):
        return _among(vm, value, _own_items(vm, container))
    if id(container) in vm.env.sources and hasattr(kind, "__next__"):
        raise unsupported(
            f"`in` of an environment {kind.__qualname__}, which advances it", UNSUPPORTED_OBJECT
        )
    vm.env.facts.check_readable(container, "__contains__")
    if isinstance(container, (set, frozenset)):
        vm.env.facts.use_differences(value)
    if isinstance(container, set) and id(container) in vm.env.sources:
        container = container_contents.open_read_only(vm.env, container)
    elif isinstance(container, CONTAINER_BASES) and id(container) in vm.env.sources:
        container = container_contents.open_for_native(vm.env, container)
    return bool(vm.call_native(operator.contains, (container, value)))
