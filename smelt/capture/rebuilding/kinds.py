"""How a compiled frame rebuilds the objects that were made during capture: one row per kind of object.

A row (`Kind`) names the objects needed to create one, and writes Python that creates and fills it. Objects of mutable
kinds can be created empty and filled later, which is how cycles come back as cycles. No row runs user code: instances
are made by the `__new__` of their built-in base, state is stored by `object.__setattr__` and the built-in base's methods.

Constants (leaf values) are objects that no one can tell apart from an equal one: numbers, strings, dtypes, types, ...
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import functools
import gc
import math
import pathlib
import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from smelt.capture.base.frames import Generator
from smelt.capture.standins import texts
from smelt.capture.standins.arrays import DTYPES, Array, BoundMethod
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.trace.symbols import NUMBERS


class Text(Protocol):
    """Gives the expression for an object that is already available in the compiled frame."""

    def __call__(self, x: object) -> str: ...

    def constant(self, x: object, hint: str) -> str:
        """The expression for an object that is known by identity."""
        ...

    def number(self, x: Any) -> str:
        """The expression for a symbolic number."""
        ...


LITERALS = frozenset({int, bool, str, bytes, type(None)})  # their repr is their source
CONSTANTS: frozenset[type] = frozenset(
    {
        float,
        complex,
        type(...),
        type(NotImplemented),
        range,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        torch.finfo,
        torch.iinfo,
        type(torch.ops.aten.add),
        type(torch.ops.aten.add.Tensor),
        types.BuiltinFunctionType,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
        types.ClassMethodDescriptorType,
        types.GetSetDescriptorType,
        types.MemberDescriptorType,
        types.CodeType,
        types.ModuleType,
        types.GenericAlias,
        types.UnionType,
        datetime.date,
        datetime.time,
        datetime.datetime,
        datetime.timedelta,
        datetime.timezone,
        decimal.Decimal,
        pathlib.PosixPath,
        pathlib.WindowsPath,
    }
)
_TPFLAGS_HEAPTYPE = 1 << 9


def is_bound(x: Any) -> bool:
    """Whether a C function is the method of an instance."""
    return x.__self__ is not None and not isinstance(x.__self__, (type, types.ModuleType))


def is_constant(x: object) -> bool:
    """Whether `x` can stand in the compiled frame as itself."""
    kind = type(x)
    if kind is types.BuiltinFunctionType:
        return not is_bound(x)
    if kind in LITERALS or kind in CONSTANTS or isinstance(x, enum.Enum):
        return True
    return isinstance(x, type) and "<locals>" not in x.__qualname__ and id(x) not in _made_classes


_made_classes: dict[int, weakref.ref[type]] = {}  # made during a capture: each call makes its own


def note_class(cls: type) -> None:
    """`cls` was made by a trace."""
    key = id(cls)
    _made_classes[key] = weakref.ref(cls, lambda _: _made_classes.pop(key, None))


@dataclass(frozen=True)
class Kind:
    """`needs`: objects that must exist before creation. `create`: the expression that makes the object out of them.

    Kinds that can be created empty also have `empty` (the expression), `fill` (statements; `name` is the object's) and
    `holds` (what fill refers to). `named`: has statements even where no cycle asks for them.
    """

    needs: Callable[[Any], Iterable[object]]
    create: Callable[[Any, Text], str]
    empty: Callable[[Any, Text], str] | None = None
    fill: Callable[[Any, Text, str], list[str]] | None = None
    holds: Callable[[Any], Iterable[object]] = lambda x: ()
    named: bool = False


def unsupported(x: object, why: str = "") -> Unsupported:
    detail = f"a {type(x).__module__}.{type(x).__qualname__} made inside the function leaves it"
    return Unsupported(Reason(UNSUPPORTED_OBJECT, detail + (f": {why}" if why else "")))


# --------------------------------------------------------------------------------------- built-in containers


def _list_text(items: Iterable[object], text: Text) -> str:
    return "[" + ", ".join(map(text, items)) + "]"


def _tuple_text(items: tuple[object, ...], text: Text) -> str:
    inner = ", ".join(map(text, items))
    return f"({inner},)" if len(items) == 1 else f"({inner})"


def _dict_text(items: dict[Any, Any], text: Text) -> str:
    return "{" + ", ".join(f"{text(k)}: {text(v)}" for k, v in _items(items)) + "}"


def _items(x: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """In order, which an OrderedDict keeps for itself."""
    return collections.OrderedDict.items(x) if isinstance(x, collections.OrderedDict) else dict.items(x)


def _pairs(x: dict[Any, Any]) -> list[object]:
    return [part for pair in _items(x) for part in pair]


def _extend(x: Any, text: Text, name: str) -> list[str]:
    return [f"{name}.extend({_list_text(x, text)})"] if x else []


def _update(x: Any, text: Text, name: str) -> list[str]:
    return [f"{name}.update({_dict_text(x, text)})"] if x else []


def _set_text(x: Iterable[object], text: Text) -> str:
    return "{" + ", ".join(map(text, x)) + "}" if x else "set()"


def _deque_text(x: collections.deque[Any], text: Text) -> str:
    limit = "" if x.maxlen is None else f", {x.maxlen}"
    return f"deque({_list_text(x, text)}{limit})"


def _empty_deque(x: collections.deque[Any], text: Text) -> str:
    return f"deque((), {x.maxlen})"


def _cell_contents(x: types.CellType) -> list[object]:
    try:
        return [x.cell_contents]
    except ValueError:
        return []


def _fill_cell(x: types.CellType, text: Text, name: str) -> list[str]:
    return [f"{name}.cell_contents = {text(v)}" for v in _cell_contents(x)]


def _function_holds(f: types.FunctionType) -> list[object]:
    type_parameters = getattr(f, "__type_params__", ()) or None  # from 3.12 on
    return [f.__defaults__, f.__kwdefaults__, f.__annotations__ or None, type_parameters, *_pairs(f.__dict__)]


def _function_needs(f: types.FunctionType) -> list[object]:
    return [f.__closure__, f.__defaults__]


def _function_text(f: types.FunctionType, text: Text) -> str:
    parts = ", ".join((repr(f.__name__), text(f.__defaults__), text(f.__closure__)))
    scope = text.constant(f.__globals__, "globals")
    return f"FunctionType({text.constant(f.__code__, f'code_of_{f.__name__}')}, {scope}, {parts})"


def _function_fill(f: types.FunctionType, text: Text, name: str) -> list[str]:
    lines = [f"{name}.__qualname__ = {f.__qualname__!r}"]
    if f.__kwdefaults__:
        lines.append(f"{name}.__kwdefaults__ = {text(f.__kwdefaults__)}")
    if f.__annotations__:
        lines.append(f"{name}.__annotations__ = {text(f.__annotations__)}")
    if f.__dict__:
        lines.append(f"{name}.__dict__.update({_dict_text(f.__dict__, text)})")
    return lines


def _partial_text(p: functools.partial[Any], text: Text) -> str:
    keywords = f", **{_dict_text(p.keywords, text)}" if p.keywords else ""
    args = "".join(f", {text(a)}" for a in p.args)
    return f"partial({text(p.func)}{args}{keywords})"


def _view_kind(how: str) -> Kind:
    """`keys()`, `values()`, `items()` of a dictionary, which only the collector can tell."""
    return Kind(gc.get_referents, lambda x, text: f"{text(gc.get_referents(x)[0])}.{how}()")


_VIEWS = ("keys", "values", "items")


def _method_parts(x: types.MethodType) -> tuple[object, ...]:
    return (x.__self__,) if type(x.__self__) is Generator else (x.__func__, x.__self__)


def _method_text(x: types.MethodType, text: Text) -> str:
    if type(x.__self__) is Generator:
        return f"{text(x.__self__)}.{x.__func__.__name__}"
    return f"MethodType({text(x.__func__)}, {text(x.__self__)})"


_DTYPE = Kind(lambda x: (), lambda x, text: f"numpy_dtype({x.name!r})")
_NUMPY_SCALAR = Kind(lambda x: (), lambda x, text: f"numpy_dtype({x.dtype.name!r}).type({text(x.item())})")


_SMALL_ARRAY = 4096  # bytes


def _is_small_array(x: Any) -> bool:
    """Whether the source can hold the array's values."""
    return (
        x.base is None
        and x.flags.c_contiguous
        and x.flags.writeable
        and x.dtype in DTYPES.values()
        and x.nbytes <= _SMALL_ARRAY
    )


_NUMPY_ARRAY = Kind(
    lambda x: (), lambda x, text: f"from_bytes({x.tobytes()!r}, {x.dtype.name!r}).reshape({x.shape!r}).copy()"
)


def _array_text(x: Any, text: Text) -> str:
    return f"{text(x.tensor)}.numpy(){'[()]' if x.scalar else ''}"


KINDS: dict[type, Kind] = {
    tuple: Kind(lambda x: x, _tuple_text),
    list: Kind(lambda x: x, _list_text, lambda x, text: "[]", _extend, lambda x: x),
    dict: Kind(_pairs, _dict_text, lambda x, text: "{}", _update, _pairs),
    set: Kind(lambda x: x, _set_text),
    frozenset: Kind(lambda x: x, lambda x, text: f"frozenset({_set_text(x, text)})"),
    collections.deque: Kind(lambda x: x, _deque_text, _empty_deque, _extend, lambda x: x),
    collections.OrderedDict: Kind(
        _pairs,
        lambda x, text: f"OrderedDict({_dict_text(x, text)})",
        lambda x, text: "OrderedDict()",
        _update,
        _pairs,
    ),
    collections.defaultdict: Kind(
        lambda x: [x.default_factory, *_pairs(x)],
        lambda x, text: f"defaultdict({text(x.default_factory)}, {_dict_text(x, text)})",
        lambda x, text: f"defaultdict({text(x.default_factory)})",
        _update,
        _pairs,
    ),
    slice: Kind(
        lambda x: (x.start, x.stop, x.step),
        lambda x, text: f"slice({text(x.start)}, {text(x.stop)}, {text(x.step)})",
    ),
    types.MethodType: Kind(_method_parts, _method_text),
    types.BuiltinFunctionType: Kind(
        lambda x: (x.__self__,), lambda x, text: f"({text(x.__self__)}).{x.__name__}"
    ),
    Array: Kind(lambda x: (x.tensor,), _array_text),
    BoundMethod: Kind(lambda x: (x.array,), lambda x, text: f"{text(x.array)}.{x.name}"),
    types.MappingProxyType: Kind(
        lambda x: _pairs(dict(x)), lambda x, text: f"MappingProxyType({_dict_text(dict(x), text)})"
    ),
    functools.partial: Kind(lambda x: (x.func, *x.args, *_pairs(x.keywords)), _partial_text),
    types.CellType: Kind(
        _cell_contents,
        lambda x, text: f"CellType({', '.join(map(text, _cell_contents(x)))})",
        lambda x, text: "CellType()",
        _fill_cell,
        _cell_contents,
    ),
    **dict.fromkeys(NUMBERS, Kind(lambda x: (), lambda x, text: text.number(x))),
    types.SimpleNamespace: Kind(
        lambda x: _pairs(vars(x)),
        lambda x, text: f"SimpleNamespace(**{_dict_text(vars(x), text)})",
        lambda x, text: "SimpleNamespace()",
        lambda x, text, name: [f"{name}.__dict__.update({_dict_text(vars(x), text)})"] if vars(x) else [],
        lambda x: _pairs(vars(x)),
    ),
    **{
        type(getattr(kind(), how)()): _view_kind(how)
        for kind in (dict, collections.OrderedDict)
        for how in _VIEWS
    },
    torch.Size: Kind(tuple, lambda x, text: f"torch.Size({_list_text(x, text)})"),
    bytearray: Kind(lambda x: (), lambda x, text: f"bytearray({bytes(x)!r})"),
    types.FunctionType: Kind(
        _function_needs, _function_text, _function_text, _function_fill, _function_holds, named=True
    ),
}


def _text_text(x: texts.Text, text: Text) -> str:
    return f"{text.constant(x.how, x.how.__name__)}({', '.join(map(text, x.args))})"


def _shown_text(x: texts.Shown, text: Text) -> str:
    if x.is_plain:
        return text(x.tensor)
    facts = (x.grad_fn, x.fake.requires_grad, x.is_parameter)
    return f"{text.constant(texts.Display, 'Display')}({', '.join(map(text, (x.tensor, *facts)))})"


KINDS |= {
    texts.Text: Kind(lambda x: x.args, _text_text),
    texts.Shown: Kind(lambda x: (x.tensor,), _shown_text),
    texts.Verbatim: Kind(
        lambda x: (x.text,), lambda x, text: f"{text.constant(texts.Verbatim, 'Verbatim')}({text(x.text)})"
    ),
}


def _as_parameter(given: torch.Tensor, requires_grad: bool) -> torch.nn.Parameter:
    """What a graph gave where the user made an nn.Parameter: a torch-level graph has made it one."""
    return given if type(given) is torch.nn.Parameter else torch.nn.Parameter(given, requires_grad)


# Names that the source of a compiled frame may use.
NAMES: dict[str, Any] = {
    "OrderedDict": collections.OrderedDict,
    "defaultdict": collections.defaultdict,
    "deque": collections.deque,
    "partial": functools.partial,
    "MethodType": types.MethodType,
    "MappingProxyType": types.MappingProxyType,
    "SimpleNamespace": types.SimpleNamespace,
    "as_parameter": _as_parameter,
    "CellType": types.CellType,
    "FunctionType": types.FunctionType,
    "set_attribute": object.__setattr__,
    "set_type_attribute": type.__setattr__,
    "delete_attribute": object.__delattr__,
    "delete_type_attribute": type.__delattr__,
    "torch": torch,
    "from_numpy": torch.from_numpy,
    "numpy_dtype": np.dtype,
    "from_bytes": np.frombuffer,
    "math": math,
    "float32": np.float32,
    **{f.__name__: f for f in (abs, float, int, max, min, round)},
}


# --------------------------------------------------------------------------------------- instances of any class


@dataclass(frozen=True)
class _Base:
    """The built-in part of an instance: how it is created and filled, and what it refers to (`parts`: when filled)."""

    name: str
    base: type
    holds: Callable[[Any], Iterable[object]]
    create: Callable[[Any, str, Text], str]
    fill: Callable[[Any, Text, str], list[str]]
    immutable: bool = False
    parts: Callable[[Any], Iterable[object]] = lambda x: ()


def _fill_ordered(x: Any, text: Text, name: str) -> list[str]:
    items = collections.OrderedDict.items(x)
    return [f"OrderedDict.__setitem__({name}, {text(k)}, {text(v)})" for k, v in items]


def _ordered_pairs(x: Any) -> list[object]:
    return [part for pair in collections.OrderedDict.items(x) for part in pair]


def _fill_by(method: str, body: Callable[[Any, Text], str]) -> Callable[[Any, Text, str], list[str]]:
    def fill(x: Any, text: Text, name: str) -> list[str]:
        inner = body(x, text)
        return [] if inner in ("{}", "[]", "set()") else [f"{method}({name}, {inner})"]

    return fill


def _nothing(x: Any, text: Text, name: str) -> list[str]:
    return []


def _new(base: str) -> Callable[[Any, str, Text], str]:
    return lambda x, cls, text: f"{base}.__new__({cls})"


def _new_from(base: type[Any]) -> Callable[[Any, str, Text], str]:
    """Numbers and strings: made from the plain value."""
    plain = {str: str.__str__, int: int.__int__, float: float.__float__}[base]
    return lambda x, cls, text: f"{base.__name__}.__new__({cls}, {text(plain(x))})"


def _new_tuple(x: Any, cls: str, text: Text) -> str:
    return f"tuple.__new__({cls}, {_tuple_text(_tuple_items(x), text)})"


def _exception_args(x: BaseException) -> tuple[Any, ...]:
    found: tuple[Any, ...] = BaseException.args.__get__(x)  # type: ignore[attr-defined]
    return found


def _native_bases(x: BaseException) -> list[type]:
    """The classes of C that an exception's class inherits from, nearest first."""
    return [k for k in type(x).__mro__ if not k.__flags__ & _TPFLAGS_HEAPTYPE]


def _new_exception(x: BaseException, cls: str, text: Text) -> str:
    made = text(_native_bases(x)[0])
    return f"{made}.__new__({', '.join((cls, *map(text, _exception_args(x))))})"


_EVERY_EXCEPTION = frozenset(vars(BaseException)) | frozenset(vars(BaseExceptionGroup))
_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)


def _exception_fields(x: BaseException) -> dict[str, Any]:
    """What an exception has besides `args` and attributes: fields of its classes of C, and what it comes from."""
    found: dict[str, Any] = {}
    for cls in _native_bases(x):
        for name, field in cls.__dict__.items():
            if type(field) in _FIELDS and name not in _EVERY_EXCEPTION and cls is not object:
                try:
                    found[name] = field.__get__(x)
                except (AttributeError, TypeError):  # not set
                    continue
    found["__cause__"], found["__context__"] = x.__cause__, x.__context__
    found = {name: value for name, value in found.items() if value is not None}
    if x.__suppress_context__ is not (x.__cause__ is not None):
        found["__suppress_context__"] = x.__suppress_context__
    return found


def _fill_exception(x: BaseException, text: Text, name: str) -> list[str]:
    return [f"set_attribute({name}, {n!r}, {text(v)})" for n, v in _exception_fields(x).items()]


def _tuple_items(x: Any) -> tuple[object, ...]:
    return tuple(tuple.__iter__(x))


def _fill_deque(x: Any, text: Text, name: str) -> list[str]:
    items = list(collections.deque.__iter__(x))
    return [f"deque.__init__({name}, {_list_text(items, text)}, {x.maxlen})"]


def _fill_defaultdict(x: Any, text: Text, name: str) -> list[str]:
    return [f"defaultdict.__init__({name}, {text(x.default_factory)}, {_dict_text(x, text)})"]


def _list_items(x: Any) -> list[object]:
    return list(list.__iter__(x))


def _set_items(x: Any) -> list[object]:
    return list(set.__iter__(x))


# The first row whose base is in the class's MRO applies.
BASES: tuple[_Base, ...] = (
    _Base("OrderedDict", collections.OrderedDict, _ordered_pairs, _new("OrderedDict"), _fill_ordered),
    _Base(
        "defaultdict",
        collections.defaultdict,
        lambda x: [x.default_factory, *_pairs(x)],
        _new("defaultdict"),
        _fill_defaultdict,
    ),
    _Base("dict", dict, _pairs, _new("dict"), _fill_by("dict.update", _dict_text)),
    _Base(
        "list",
        list,
        _list_items,
        _new("list"),
        _fill_by("list.extend", lambda x, text: _list_text(_list_items(x), text)),
    ),
    _Base(
        "set",
        set,
        _set_items,
        _new("set"),
        _fill_by("set.update", lambda x, text: _set_text(_set_items(x), text)),
    ),
    _Base(
        "deque", collections.deque, lambda x: list(collections.deque.__iter__(x)), _new("deque"), _fill_deque
    ),
    _Base("tuple", tuple, _tuple_items, _new_tuple, _nothing, immutable=True),
    _Base("str", str, lambda x: (), _new_from(str), _nothing, immutable=True),
    _Base("int", int, lambda x: (), _new_from(int), _nothing, immutable=True),
    _Base("float", float, lambda x: (), _new_from(float), _nothing, immutable=True),
    _Base(
        "BaseException",
        BaseException,
        _exception_args,
        _new_exception,
        _fill_exception,
        immutable=True,
        parts=lambda x: _exception_fields(x).values(),
    ),
    _Base("object", object, lambda x: (), _new("object"), _nothing),
)


def _slot_names(cls: type) -> list[str]:
    """Names of the `__slots__` of a class and its bases, mangled, without `__dict__` and `__weakref__`."""
    names = []
    for k in cls.__mro__:
        slots = k.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                names.append(f"_{k.__name__.lstrip('_')}{name}" if private else name)
    return names


def _slots(x: object, names: list[str]) -> dict[str, object]:
    found = {}
    for name in names:
        try:
            found[name] = object.__getattribute__(x, name)
        except AttributeError:
            continue
    return found


def _attributes(x: object) -> dict[str, Any]:
    try:
        own: dict[str, Any] = object.__getattribute__(x, "__dict__")
    except AttributeError:
        return {}
    return own


@functools.lru_cache(maxsize=4096)
def _instance_kind(cls: type) -> Kind | str:
    """How instances of a Python class are rebuilt, or why they cannot be."""
    base = next(b for b in BASES if b.base in cls.__mro__)
    if any("__del__" in k.__dict__ for k in cls.__mro__):
        return "its class has a finalizer"
    if "<locals>" not in cls.__qualname__ and cls.__module__ == "builtins" and not base.immutable:
        return "a native object"
    if not base.immutable:
        try:
            base.base.__new__(cls)  # type: ignore[call-overload]
        except TypeError:
            return "a native object"
    names = _slot_names(cls)

    def holds(x: object) -> list[object]:
        return [*base.holds(x), *base.parts(x), *_slots(x, names).values(), *_pairs(_attributes(x))]

    def create(x: object, text: Text) -> str:
        return base.create(x, text(cls), text)

    def fill(x: object, text: Text, name: str) -> list[str]:
        lines = base.fill(x, text, name)
        lines += [f"set_attribute({name}, {slot!r}, {text(v)})" for slot, v in _slots(x, names).items()]
        own = _attributes(x)
        return [*lines, f"set_attribute({name}, '__dict__', {_dict_text(own, text)})"] if own else lines

    def needs(x: object) -> list[object]:
        return list(base.holds(x)) if base.immutable else []

    return Kind(needs, create, create, fill, holds, named=True)


def _result_tuple(cls: type) -> Kind:
    """C structure sequences (torch.return_types.max, time.struct_time): called with a tuple of their items."""
    return Kind(lambda x: tuple(x), lambda x, text: f"{text(cls)}({_tuple_text(tuple(x), text)})")


def kind_of(x: object) -> Kind:
    """How `x`, made during capture, is rebuilt. Raises Unsupported."""
    cls = type(x)
    found = KINDS.get(cls)
    if found is not None:
        return found
    if isinstance(x, np.dtype) and x in DTYPES.values():
        return _DTYPE
    if isinstance(x, np.generic) and x.dtype in DTYPES.values():
        return _NUMPY_SCALAR
    if cls is np.ndarray and _is_small_array(x):
        return _NUMPY_ARRAY
    if hasattr(cls, "n_sequence_fields"):
        return _result_tuple(cls)
    if not cls.__flags__ & _TPFLAGS_HEAPTYPE and not isinstance(x, BaseException):
        raise unsupported(x)
    if cls.__module__.startswith("smelt.capture."):
        raise unsupported(x, "an unfinished generator or the like")
    kind = _instance_kind(cls)  # type: ignore[arg-type]
    if isinstance(kind, str):
        raise unsupported(x, kind)
    return kind
