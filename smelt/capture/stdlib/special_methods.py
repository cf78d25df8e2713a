"""Functions that call one special method of their argument (`abs`, `hash`, `str`, `int`, ...), and the module `operator`."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable

from smelt.capture.base.call_handlers import BUILTINS, Args, Handler, Kwargs, breakable, builtin
from smelt.capture.base.native_functions import check_decimals
from smelt.capture.base.type_lookup import ABSENT
from smelt.capture.base.value_kinds import MethodType, has_identity_hash
from smelt.capture.environment import container_contents
from smelt.capture.semantics.attributes import python_method
from smelt.capture.semantics.values import formatting
from smelt.capture.semantics.values.displayed_names import use_names
from smelt.capture.vm.vm import VM
from smelt.tracing.fake.fake_tensor import FakeTensor

_TEXT_FUNCTIONS = (repr, str, format)


def _depends_on_identity(fn: Callable[..., object], value: object) -> bool:
    """Whether the hash or text of `value` depends on its identity."""
    text_method: object = type(value).__repr__
    return has_identity_hash(value) if fn is hash else text_method is object.__repr__


def _register_unary(fn: Callable[..., object], name: str, fallbacks: tuple[str, ...] = ()) -> None:
    """Register `fn(x)`, which calls the special method `name` of `x`, or one of `fallbacks` if its class has none
    (`object.__str__` does not count). Methods in Python are interpreted."""

    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        for candidate in (name, *fallbacks) if args else ():
            python_version = python_method(vm, args[0], candidate)
            if python_version is not None:
                return vm.call_function(python_version, tuple(args), kwargs)
            how, found, _ = vm.type_info(type(args[0])).find(candidate)
            if how is not ABSENT and found is not object.__str__:
                break
        if fn is hash and args and type(args[0]) is FakeTensor:
            return BUILTINS[id](vm, args, kwargs)  # `Tensor.__hash__`
        if fn is abs or fn is round:
            check_decimals(*args)
        if args and fn in _TEXT_FUNCTIONS:
            use_names(vm, args[0])
        if args and _depends_on_identity(fn, args[0]):
            vm.env.facts.use_identity(args[0])
        if fn is hash and args and type(args[0]) is MethodType:
            vm.env.facts.use_identity(args[0].__self__)
        return vm.call_native(
            fn, [vm.native_argument(container_contents.native_view(vm.env, a)) for a in args], kwargs
        )

    BUILTINS[fn] = handler


_fn: Callable[..., object]
for _fn, _name in (
    (abs, "__abs__"),
    (round, "__round__"),
    (hash, "__hash__"),
    (repr, "__repr__"),
    (format, "__format__"),
):
    _register_unary(_fn, _name)
_register_unary(str, "__str__", ("__repr__",))
_register_unary(bytes, "__bytes__")
_register_unary(int, "__int__", ("__index__",))
_register_unary(float, "__float__")
_register_unary(complex, "__complex__")
formatting.install()


@builtin(bool)
@breakable
def _bool(vm: VM, args: Args, kwargs: Kwargs) -> bool:
    return vm.truth(args[0]) if args else False


_native_fspath: Callable[..., object] = os.fspath


@builtin(os.fspath)
def _fspath(vm: VM, args: Args, kwargs: Kwargs) -> object:
    found = python_method(vm, args[0], "__fspath__") if args else None
    return _native_fspath(*args, **kwargs) if found is None else vm.call_function(found, tuple(args))


def _operator(fn: Callable[..., object]) -> Handler:
    return lambda vm, args, kwargs: vm.binary(fn, *args)


for _name in [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and_",
    "or_",
    "xor",
    "lshift",
    "rshift",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "iadd", "isub", "imul", "imatmul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift",
]:  # fmt: skip
    BUILTINS[getattr(operator, _name)] = _operator(getattr(operator, _name))
BUILTINS[operator.getitem] = lambda vm, args, kwargs: vm.subscript(*args)
BUILTINS[operator.contains] = lambda vm, args, kwargs: vm.contains(args[1], args[0])
BUILTINS[operator.is_] = lambda vm, args, kwargs: vm.is_same(*args)
BUILTINS[operator.truth] = lambda vm, args, kwargs: vm.truth(args[0])
BUILTINS[operator.not_] = lambda vm, args, kwargs: not vm.truth(args[0])
