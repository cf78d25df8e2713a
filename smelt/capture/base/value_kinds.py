"""Kinds of values on the VM's stack: sentinels, leaf constants, builtin containers."""

from __future__ import annotations

import collections
import enum
import types
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import torch

from smelt._native import isinstance
from smelt.capture.base.bytecode import PY313
from smelt.capture.base.call_handlers import unsupported
from smelt.capture.base.class_caches import cached_by_class
from smelt.capture.base.native_functions import runs_natively
from smelt.reasons import UNSUPPORTED_OBJECT
from smelt.torch_private import OpOverload, OpOverloadPacket


class Sentinel:
    """A unique marker that never equals a user's value."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"


NULL = Sentinel("NULL")  # an empty local, or the stack entry of an unbound callable's owner
MISSING = Sentinel("MISSING")


def unbound_callable(function: object) -> tuple[object, object]:
    """The two stack entries of a callable without an owner, below its arguments."""
    return (function, NULL) if PY313 else (NULL, function)


def callee_and_args(stack: list[object], index: int) -> tuple[object, list[object]]:
    """The callable at `index` of the stack, and its arguments including its owner. Its entries are those of
    `unbound_callable`, or the callable and its owner."""
    first, second = stack[index : index + 2]
    if first is NULL:
        return second, stack[index + 2 :]
    return first, stack[index + 2 if second is NULL else index + 1 :]


try:
    from string.templatelib import Interpolation, Template  # type: ignore[import-not-found]
except ImportError:
    TEMPLATE = INTERPOLATION = None
else:  # from 3.14 on: the classes of t-strings
    TEMPLATE, INTERPOLATION = Template, Interpolation

FunctionType = types.FunctionType
MethodType = types.MethodType
BuiltinType = types.BuiltinFunctionType
CellType = types.CellType
ModuleType = types.ModuleType

# Immutable values without identity: guarded by equality; they contain no other objects.
LEAF_TYPES: frozenset[type] = frozenset({
    int, float, bool, str, bytes, complex, type(None), type(NotImplemented), type(...), slice, range, torch.dtype,
    torch.device, torch.layout, torch.memory_format, torch.Size, torch.finfo, torch.iinfo,
})  # fmt: skip

# Values that a trace depends on through their identity alone.
IDENTITY_TYPES: frozenset[type] = frozenset({
    FunctionType, BuiltinType, ModuleType, types.CodeType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType, types.GenericAlias,
    types.UnionType, types.MappingProxyType, type(torch.ops.aten), OpOverloadPacket, OpOverload, type(torch.ops),
    *(type(np.dtype(code)) for code in "?bhilqBHILQefdFD"),
})  # fmt: skip

CONTAINER_TYPES: frozenset[type] = frozenset({
    list, dict, set, collections.OrderedDict, collections.defaultdict, collections.deque, collections.Counter,
})  # fmt: skip
# of the user's objects
Container: TypeAlias = "list[Any] | dict[Any, Any] | set[Any] | collections.deque[Any]"
C = TypeVar("C", bound=Container)
CONTAINER_BASES = (list, dict, set, collections.deque)  # the base classes of containers

IMMUTABLE_TYPE_FLAG = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE


def is_identity(value: object) -> bool:
    """Whether `value` is guarded by identity: functions, classes, modules, enum members."""
    return type(value) in IDENTITY_TYPES or isinstance(value, (type, enum.Enum, types.ModuleType))


def has_identity_hash(value: object) -> bool:
    """Whether dictionaries and sets look `value` up by its identity."""
    kind = type(value)
    hashed = kind.__hash__ is object.__hash__  # type: ignore[comparison-overlap]
    return hashed and kind.__eq__ is object.__eq__  # type: ignore[comparison-overlap]


def is_plain_key(key: object) -> bool:
    """Whether guards may look `key` up: a constant or an object guarded by identity, compared without Python code."""
    if is_constant(key):
        return True
    if type(key) is tuple or type(key) is frozenset:
        return all(map(is_plain_key, key))
    return has_identity_hash(key) or (is_identity(key) and type(type(key).__eq__) is not FunctionType)


def is_special_name(name: str) -> bool:
    """Whether attributes of this name have a meaning in Python or C: `__add__`, `__dictoffset__`."""
    return name.startswith("__") and name.endswith("__")


def has_python_hash(key: object) -> bool:
    """Whether `hash(key)` runs user code."""
    if type(key) is tuple or type(key) is frozenset:
        return any(map(has_python_hash, key))
    hashed = type(key).__hash__
    return type(hashed) is FunctionType and not runs_natively(hashed)


def is_lookup_key(key: object) -> bool:
    """Whether guards may look `key` up by itself: a plain key, or a tensor, which dictionaries look up by identity."""
    return type(key) in _TENSORS or is_plain_key(key)


def is_same_key(a: object, b: object) -> bool:
    """Whether two keys are equal for a dictionary; tensors are compared by identity."""
    return a is b or (type(a) not in _TENSORS and type(b) not in _TENSORS and bool(a == b))


_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})


def is_constant(value: object) -> bool:
    """A leaf, or a tuple or frozenset of constants."""
    if type(value) in LEAF_TYPES:
        return True
    return (type(value) is tuple or type(value) is frozenset) and all(map(is_constant, value))


_SHARED_TYPES = frozenset(
    (type(None), bool, type(...), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format)
)


def is_interned(constant: object) -> bool:
    """Whether CPython has a single object for all constants equal to this one."""
    if type(constant) is int:
        return -5 <= constant <= 256
    if isinstance(constant, (str, bytes, tuple)) and type(constant) is not torch.Size:
        return len(constant) == 0 or (len(constant) == 1 and not isinstance(constant, tuple))
    return type(constant) in _SHARED_TYPES


def is_nan(value: object) -> bool:
    """Whether `value` is a number that does not equal itself."""
    return (type(value) is float or type(value) is complex) and value != value


_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_NO_FIELDS = frozenset(
    ("__traceback__", "__context__", "__cause__", "__suppress_context__", "__dict__", "characters_written")
)


@cached_by_class
def exception_fields(cls: type) -> tuple[str, ...]:
    """The C fields from which the text of such an exception is formatted."""
    bases = [k for k in cls.__mro__ if issubclass(k, BaseException)]
    return tuple(
        n for k in bases for n, v in k.__dict__.items() if type(v) in _FIELDS and n not in _NO_FIELDS
    )


def items_of(container: object) -> list[Any]:
    """Contents of a container, read without user code: pairs of a dictionary, elements of the others. Raises Unsupported for
    an OrderedDict whose keys have a Python `__hash__`, which its iterators call."""
    if isinstance(container, collections.OrderedDict):
        if any(map(has_python_hash, dict.keys(container))):
            raise unsupported("keys of an OrderedDict with a __hash__ in Python", UNSUPPORTED_OBJECT)
        return list(collections.OrderedDict.items(container))
    if isinstance(container, dict):
        return list(dict.items(container))
    if isinstance(container, list):
        return list.__getitem__(container, slice(None))
    kind = set if isinstance(container, set) else collections.deque
    return list(kind.__iter__(container))  # type: ignore[arg-type]


def dict_base(obj: dict[object, object]) -> type[dict[object, object]]:
    """The class whose methods can change `obj`: those of `dict` do not update the key order of an OrderedDict."""
    return collections.OrderedDict if isinstance(obj, collections.OrderedDict) else dict


def cell_value(cell: CellType) -> object:
    """The contents of a cell; MISSING if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def module_dict(module: ModuleType) -> dict[str, object]:
    """`module.__dict__`, read without its class's `__getattribute__`."""
    return cast("dict[str, object]", ModuleType.__getattribute__(module, "__dict__"))


def module_name(module: ModuleType) -> str:
    """`module.__name__`, read without its class's `__getattribute__`."""
    return str(module_dict(module).get("__name__"))


def instance_dict(obj: object) -> dict[str, object] | None:
    """`obj.__dict__` of an instance, read without its class's `__getattribute__`; None if it has none."""
    if type(obj).__dictoffset__ == 0:
        return None
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None
