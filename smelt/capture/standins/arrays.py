"""NumPy arrays: `Array` stands for one, over a fake of the tensor that shares its memory.

NumPy's own functions find an `Array` among their arguments and hand the call over (`__array_ufunc__`,
`__array_function__`). What the result looks like (type, dtype, shape, strides, whether it is a view) is found by a trial:
the NumPy function itself on ones of the same layouts. Torch then computes the values, and what it gives must look like
the trial's result, or the call is refused. Functions in no table are refused before anything runs.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import _numpy as _torch_numpy

from smelt.errors import Unsupported
from smelt.reasons import DATA_DEPENDENT, UNSUPPORTED_CALL, UNSUPPORTED_EFFECT, Reason, ReasonKind
from smelt.trace.fake import FakeTensor

tnp: Any = _torch_numpy
DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.bool: np.dtype(np.bool_), torch.uint8: np.dtype(np.uint8), torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16), torch.int32: np.dtype(np.int32), torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16), torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64),
}  # fmt: skip
_TORCH = {found: dtype for dtype, found in DTYPES.items()}


def _refuse(what: str, kind: ReasonKind = UNSUPPORTED_CALL) -> Unsupported:
    return Unsupported(Reason(kind, f"{what} of a traced NumPy array"))


def is_traceable(value: np.ndarray[Any, Any]) -> bool:
    """Whether a tensor can look at an outside array."""
    regular = all(s >= 0 and s % value.itemsize == 0 for s in value.strides)
    return value.dtype in _TORCH and value.dtype.isnative and regular and value.flags.writeable


class Array:
    """`scalar`: a NumPy scalar (np.float32) rather than an array of no dimensions. `outside`: memory of an outside array."""

    __slots__ = ("outside", "scalar", "tensor")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: torch.Tensor, scalar: bool = False, outside: bool = False) -> None:
        self.tensor, self.scalar, self.outside = tensor, scalar, outside

    @property
    def dtype(self) -> np.dtype[Any]:
        return DTYPES[self.tensor.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(s * self.itemsize for s in self.tensor.stride())

    @property
    def ndim(self) -> int:
        return self.tensor.dim()

    @property
    def size(self) -> int:
        return self.tensor.numel()

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def T(self) -> Any:
        return apply(np.transpose, (self,), {})

    def example(self) -> Any:
        """A real array or NumPy scalar of the same type and dtype."""
        return self.dtype.type(1) if self.scalar else np.empty(0, self.dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "reduce" and ufunc in _REDUCTIONS:
            return apply(_REDUCTIONS[ufunc], args, {"axis": 0, **kwargs})
        if method != "__call__" or kwargs:
            raise _refuse(f"numpy.{ufunc.__name__}.{method} with {sorted(kwargs)}")
        return apply_ufunc(ufunc, args)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return apply(function, args, kwargs)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise _refuse("NumPy code reads the values", DATA_DEPENDENT)

    def __getattr__(self, name: str) -> Any:
        if hasattr(np.ndarray, name):
            raise _refuse(f"attribute {name}")
        raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return iter([self[i] for i in range(self.shape[0])])

    def __getitem__(self, key: Any) -> Any:
        return _checked(operator.getitem, (self, key), {}, lambda: self.tensor[_index(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self._check_own()
        operator.setitem(
            _stand_in(self), _map(_stand_in, key), _map(_stand_in, value)
        )  # raises what it raises
        source = value.tensor if isinstance(value, Array) else _constant(value, None)
        self.tensor[_index(key)] = source.to(self.tensor.dtype)

    def _check_own(self) -> None:
        if self.outside:
            raise _refuse("a write to the memory", UNSUPPORTED_EFFECT)

    def astype(self, dtype: Any, **kwargs: Any) -> Any:
        wanted = _TORCH.get(np.dtype(dtype))
        if kwargs or wanted is None or (self.tensor.is_floating_point() and not wanted.is_floating_point):
            raise _refuse("this cast")
        return _checked(_method("astype"), (self, dtype), {}, lambda: self.tensor.to(wanted, copy=True))

    def copy(self, order: str = "C") -> Any:
        return _checked(_method("copy"), (self, order), {}, lambda: self.tensor.clone())

    def flatten(self) -> Any:
        return _checked(_method("flatten"), (self,), {}, lambda: self.tensor.reshape(-1).clone())

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        wanted = shape[0] if len(shape) == 1 else shape
        return apply(np.reshape, (self, (wanted,) if isinstance(wanted, int) else wanted), kwargs)

    def transpose(self, *axes: Any) -> Any:
        return apply(np.transpose, (self, *((axes,) if len(axes) > 1 else axes)), {})

    def dot(self, other: Any) -> Any:
        return apply(np.dot, (self, other), {})


class BoundMethod:
    """`array.name` before it is called: of an array, whoever calls it."""

    __slots__ = ("array", "name")

    def __init__(self, array: Array, name: str) -> None:
        self.array, self.name = array, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.array, self.name)(*args, **kwargs)


def attribute(array: Array, name: str) -> Any:
    """`array.name` as the VM reads it."""
    if isinstance(getattr(Array, name, None), FunctionType):
        return BoundMethod(array, name)
    return array.dtype.type if name == "__class__" and array.scalar else getattr(array, name)


def hidden_refusal(error: BaseException | None) -> Unsupported | None:
    """The refusal that NumPy's C code met and turned into `error`."""
    while error is not None and not isinstance(error, Unsupported):
        error = error.__cause__ or error.__context__
    return error


def _value_read(name: str) -> Callable[..., Any]:
    def read(self: Array, *args: Any, **kwargs: Any) -> Any:
        raise _refuse(f"{name} reads the value", DATA_DEPENDENT)

    return read


_READERS = "bool int float index complex contains repr str format reduce_ex copy deepcopy"
for _name in _READERS.split():
    setattr(Array, f"__{_name}__", _value_read(f"__{_name}__"))
for _name in ("tolist", "item", "tobytes", "nonzero"):
    setattr(Array, _name, _value_read(_name))


def _method(name: str) -> Callable[..., Any]:
    """A method of arrays and NumPy scalars as a function."""
    return lambda array, *args, **kwargs: getattr(array, name)(*args, **kwargs)


# --------------------------------------------------------------------------------------------------- the trial


def _stand_in(value: Any) -> Any:
    """Ones (of integers zeros, which are always good indices) laid out as an `Array`: in memory of their own, so that views
    are told from copies."""
    if not isinstance(value, Array):
        return value
    fill = value.dtype.type(0 if value.dtype.kind in "iu" else 1)
    if value.scalar:
        return fill
    extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.tensor.stride())) if value.size else 0
    memory = np.full(extent, fill)
    return np.lib.stride_tricks.as_strided(memory, value.shape, value.strides)


def _map(fn: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `fn` applied to what its tuples, lists and dictionaries hold."""
    if type(value) in (list, tuple):
        return type(value)(_map(fn, v) for v in value)
    if type(value) is dict:
        return {k: _map(fn, v) for k, v in value.items()}
    return fn(value)


def _arrays_in(value: Any) -> Iterator[Array]:
    if isinstance(value, Array):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _arrays_in(v)
    elif isinstance(value, dict):
        yield from _arrays_in(list(value.values()))


def _checked(function: Any, args: Any, kwargs: Any, compute: Callable[[], Any]) -> Any:
    """What `compute` gives, as the `Array` that `function` gives. Raises what `function` raises on ones."""
    operands: list[tuple[Array, Any]] = []

    def stand_in(value: Any) -> Any:
        made = _stand_in(value)
        if isinstance(value, Array):
            operands.append((value, made))
        return made

    seen = _map(stand_in, args), _map(stand_in, kwargs)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        like = function(*seen[0], **seen[1])
    try:
        got = compute()
    except (
        NotImplementedError,
        RuntimeError,
        TypeError,
        ValueError,
        IndexError,
    ) as error:  # NumPy itself did it
        raise _refuse(f"{function!r} ({error})") from error
    return _dressed(function, like, got, operands)


def _dressed(function: Any, like: Any, got: Any, operands: list[tuple[Array, Any]]) -> Any:
    if isinstance(like, (list, tuple)) and isinstance(got, (list, tuple)) and len(like) == len(got):
        return type(like)(_dressed(function, a, b, operands) for a, b in zip(like, got))
    if not isinstance(like, (np.ndarray, np.generic)) or not isinstance(got, torch.Tensor):
        raise _refuse(f"{function!r} with a result that is no array")
    if DTYPES.get(got.dtype) != like.dtype or tuple(got.shape) != like.shape:
        raise _refuse(f"{function!r}, whose result torch gives another dtype or shape,")
    if isinstance(like, np.generic):
        return Array(got, scalar=True)
    owner = next((array for array, ones in operands if _is_view(like, ones)), None)
    return _laid_out(function, like, got, owner, operands)


def _laid_out(function: Any, like: Any, got: torch.Tensor, owner: Array | None, operands: Any) -> Any:
    """`got` with the memory of the trial's result: a view exactly where that is one, else with its strides."""
    shares = any(storage_of(got) == storage_of(array.tensor) for array, _ in operands)
    strides = tuple(s // like.itemsize for s in like.strides)
    same = all(n == 1 or a == b for n, a, b in zip(got.shape, got.stride(), strides)) or not got.numel()
    if owner is not None and (not shares or not same):
        raise _refuse(f"{function!r}, a view that torch does not give,")
    if owner is None and (shares or not same):
        got = torch.empty_strided(got.shape, strides, dtype=got.dtype).copy_(got)
    elif tuple(got.stride()) != strides and got.numel():  # of dimensions of size 1
        got = got.as_strided(got.shape, strides)
    return Array(got, outside=owner is not None and owner.outside)


def _is_view(like: Any, ones: Any) -> bool:
    return isinstance(ones, np.ndarray) and np.may_share_memory(like, ones)


def storage_of(tensor: torch.Tensor) -> int:
    elem = tensor.elem if type(tensor) is FakeTensor else tensor
    with torch._C.DisableTorchFunction():
        return elem.untyped_storage()._cdata


# ------------------------------------------------------------------------------------------------------ ufuncs


def _sign(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.isnan(), x, x.sign()) if x.is_floating_point() else x.sign()


# By the dtype in which a function computes: that of its result, that which its operands have in common, or their own.
_BY_RESULT: dict[Any, Callable[..., Any]] = {
    np.add: torch.add, np.subtract: torch.sub, np.multiply: torch.mul, np.true_divide: torch.true_divide,
    np.floor_divide: torch.floor_divide, np.remainder: torch.remainder, np.power: torch.pow, np.negative: torch.neg,
    np.positive: torch.positive, np.absolute: torch.abs, np.sign: _sign, np.sqrt: torch.sqrt, np.square: torch.square,
    np.exp: torch.exp, np.exp2: torch.exp2, np.expm1: torch.expm1, np.log: torch.log, np.log2: torch.log2,
    np.log10: torch.log10, np.log1p: torch.log1p, np.sin: torch.sin, np.cos: torch.cos, np.tan: torch.tan,
    np.arcsin: torch.asin, np.arccos: torch.acos, np.arctan: torch.atan, np.sinh: torch.sinh, np.cosh: torch.cosh,
    np.tanh: torch.tanh, np.arcsinh: torch.asinh, np.arccosh: torch.acosh, np.arctanh: torch.atanh,
    np.floor: torch.floor, np.ceil: torch.ceil, np.trunc: torch.trunc, np.rint: torch.round,
    np.maximum: torch.maximum, np.minimum: torch.minimum, np.arctan2: torch.atan2, np.hypot: torch.hypot,
    np.bitwise_and: torch.bitwise_and, np.bitwise_or: torch.bitwise_or, np.bitwise_xor: torch.bitwise_xor,
    np.invert: torch.bitwise_not, np.left_shift: torch.bitwise_left_shift, np.right_shift: torch.bitwise_right_shift,
    np.matmul: torch.matmul,
}  # fmt: skip
_BY_OPERANDS: dict[Any, Callable[..., Any]] = {
    np.equal: torch.eq, np.not_equal: torch.ne, np.less: torch.lt, np.less_equal: torch.le, np.greater: torch.gt,
    np.greater_equal: torch.ge,
}  # fmt: skip
_BY_ITSELF: dict[Any, Callable[..., Any]] = {
    np.isnan: torch.isnan, np.isinf: torch.isinf, np.isfinite: torch.isfinite, np.logical_not: torch.logical_not,
    np.logical_and: torch.logical_and, np.logical_or: torch.logical_or, np.logical_xor: torch.logical_xor,
}  # fmt: skip
_REDUCTIONS = {np.add: np.sum, np.multiply: np.prod, np.maximum: np.max, np.minimum: np.min}
# What torch refuses or leaves open for integers that NumPy defines: zero divisors, negative powers.
_CAREFUL = (np.floor_divide, np.remainder, np.power, np.left_shift, np.right_shift)
_SMALL = 8  # what any integer may be shifted by


def apply_ufunc(ufunc: Any, args: tuple[Any, ...]) -> Any:
    """`ufunc(*args)` with an `Array` among the arguments."""

    def compute() -> Any:
        stand_ins = [_stand_in(a) for a in args]
        if ufunc in _BY_RESULT:
            dtype = _result_dtype(ufunc, stand_ins)
            if dtype == np.bool_ and ufunc in _NOT_OF_BOOLEANS:
                raise _refuse(f"numpy.{ufunc.__name__} of booleans")
            return _BY_RESULT[ufunc](*(_operand(a, dtype) for a in args))
        if ufunc in _BY_OPERANDS:
            dtype = np.result_type(*stand_ins)
            if not all(_fits(a, dtype) for a in args):
                raise _refuse("a comparison with a number out of range")
            return _BY_OPERANDS[ufunc](*(_operand(a, dtype) for a in args))
        return _BY_ITSELF[ufunc](*(_operand(a, None) for a in args))

    if ufunc not in _BY_RESULT and ufunc not in _BY_OPERANDS and ufunc not in _BY_ITSELF:
        raise _refuse(f"numpy.{ufunc.__name__}")
    if ufunc in _CAREFUL and not _is_safe(ufunc, args):
        raise _refuse(f"numpy.{ufunc.__name__} of integers that are not known")
    return _checked(ufunc, args, {}, compute)


_NOT_OF_BOOLEANS = (np.absolute, np.floor, np.ceil, np.trunc, np.matmul)


def _fits(value: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a number can be cast to `dtype` unchanged."""
    if not isinstance(value, int) or dtype.kind not in "iu":
        return True
    return bool(np.iinfo(dtype).min <= value <= np.iinfo(dtype).max)


def _is_safe(ufunc: Any, args: tuple[Any, ...]) -> bool:
    """Floating-point operands, or a second operand that is a positive constant."""
    second = args[1]
    if isinstance(second, (int, np.integer)) and not isinstance(second, bool) and second > 0:
        return ufunc not in (np.left_shift, np.right_shift) or bool(second < _SMALL)
    return np.issubdtype(np.result_type(*(_stand_in(a) for a in args)), np.floating)


def _result_dtype(ufunc: Any, stand_ins: list[Any]) -> np.dtype[Any]:
    with np.errstate(all="ignore"):
        found: np.dtype[Any] = ufunc(*stand_ins).dtype
    return found


def _operand(value: Any, dtype: np.dtype[Any] | None) -> torch.Tensor:
    """An operand as a tensor of `dtype` (None: its own)."""
    if isinstance(value, Array):
        return value.tensor if dtype is None else value.tensor.to(_torch_dtype(dtype))
    return _constant(value, dtype)


def _constant(value: Any, dtype: np.dtype[Any] | None) -> torch.Tensor:
    """Numbers, NumPy scalars and arrays made by the program, which are copied."""
    if not isinstance(value, (int, float, bool, np.generic, np.ndarray)):
        raise _refuse(f"an operand of type {type(value).__name__}")
    known = np.asarray(value)
    known = known if dtype is None else known.astype(dtype)
    return torch.tensor(known.tolist(), dtype=_torch_dtype(known.dtype)).reshape(known.shape)


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    if dtype not in _TORCH:
        raise _refuse(f"dtype {dtype}")
    return _TORCH[dtype]


def _binary(ufunc: Any, *, swapped: bool = False) -> Callable[[Array, Any], Any]:
    def method(self: Array, other: Any) -> Any:
        if not isinstance(other, (Array, int, float, bool, np.generic, np.ndarray)):
            if isinstance(other, (list, tuple)):
                other = np.asarray(other)
            else:
                return NotImplemented
        return apply_ufunc(ufunc, (other, self) if swapped else (self, other))

    return method


def _in_place(ufunc: Any) -> Callable[[Array, Any], Any]:
    def method(self: Array, other: Any) -> Any:
        result = apply_ufunc(ufunc, (self, other))
        if self.scalar:
            return result
        self._check_own()
        if result.shape != self.shape or not np.can_cast(result.dtype, self.dtype, "same_kind"):
            raise _refuse("an in-place operation that changes dtype or shape")
        self.tensor.copy_(result.tensor)
        return self

    return method


for _name, _ufunc in {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": np.power, "matmul": np.matmul, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "lshift": np.left_shift, "rshift": np.right_shift,
}.items():  # fmt: skip
    setattr(Array, f"__{_name}__", _binary(_ufunc))
    setattr(Array, f"__r{_name}__", _binary(_ufunc, swapped=True))
    setattr(Array, f"__i{_name}__", _in_place(_ufunc))
for _name, _ufunc in {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}.items():  # fmt: skip
    setattr(Array, f"__{_name}__", _binary(_ufunc))


def _unary(ufunc: Any) -> Callable[[Array], Any]:
    return lambda self: apply_ufunc(ufunc, (self,))


for _name, _ufunc in {
    "neg": np.negative,
    "pos": np.positive,
    "abs": np.absolute,
    "invert": np.invert,
}.items():
    setattr(Array, f"__{_name}__", _unary(_ufunc))


# --------------------------------------------------------------------------------------------------- functions

_FUNCTION_NAMES = """
    sum prod mean std var max min amax amin argmax argmin any all cumsum cumprod ptp concatenate stack vstack hstack dstack
    column_stack split array_split hsplit vsplit where clip reshape transpose ravel swapaxes moveaxis expand_dims squeeze
    broadcast_to zeros_like ones_like full_like empty_like copy dot outer inner vdot tensordot einsum trace diagonal diag
    tril triu flip fliplr flipud roll tile repeat sort round around atleast_1d atleast_2d count_nonzero rot90 take diff
    shape ndim size
"""
_FUNCTIONS = frozenset(getattr(np, name) for name in _FUNCTION_NAMES.split())
_PRODUCTS = frozenset(
    (np.dot, np.inner, np.outer, np.vdot, np.tensordot, np.einsum)
)  # torch has none of booleans
_FACTS = {np.shape: lambda a: a.shape, np.ndim: lambda a: a.ndim, np.size: lambda a: a.size}
_METHODS = (
    "sum prod mean std var max min argmax argmin any all cumsum cumprod clip ravel swapaxes squeeze diagonal trace repeat "
    "round take"
)


def apply(function: Any, args: Any, kwargs: Any) -> Any:
    """`function(*args, **kwargs)` of NumPy with an `Array` among the arguments."""
    if function not in _FUNCTIONS:
        raise _refuse(f"numpy.{getattr(function, '__name__', function)}")
    if function in _FACTS and len(args) == 1 and isinstance(args[0], Array):
        return _FACTS[function](args[0])
    if "out" in kwargs or "where" in kwargs:
        raise _refuse(f"numpy.{function.__name__} with out or where")
    implemented = getattr(tnp, function.__name__, None)
    if implemented is None or (
        function in _PRODUCTS and any(a.dtype == np.bool_ for a in _arrays_in((args, kwargs)))
    ):
        raise _refuse(f"numpy.{function.__name__}")

    def compute() -> Any:
        found = implemented(*_map(_for_torch, args), **_map(_for_torch, kwargs))
        return _map(lambda v: v.tensor if isinstance(v, tnp.ndarray) else v, found)

    return _checked(function, args, kwargs, compute)


def _for_torch(value: Any) -> Any:
    if isinstance(value, Array):
        return tnp.ndarray(value.tensor)
    if isinstance(value, (np.ndarray, np.generic)):
        return tnp.ndarray(_constant(value, None))
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return tnp.dtype(np.dtype(value).name)
    return value


def _function_method(name: str) -> Callable[..., Any]:
    function = getattr(np, name)
    return lambda self, *args, **kwargs: apply(function, (self, *args), kwargs)


for _name in _METHODS.split():
    setattr(Array, _name, _function_method(_name))


def _index(key: Any) -> Any:
    """An index for a tensor. NumPy's `None`, slices, integers, lists and integer arrays mean the same in torch."""
    if isinstance(key, tuple):
        return tuple(_index(k) for k in key)
    if isinstance(key, Array):
        if key.dtype == np.bool_:
            raise _refuse("indexing by a mask")
        return key.tensor.to(torch.int64)
    if isinstance(key, (np.ndarray, np.generic)):
        return (
            _constant(key, None).to(torch.int64)
            if np.issubdtype(key.dtype, np.integer)
            else _constant(key, None)
        )
    if isinstance(key, list):
        return _index(np.asarray(key))
    if isinstance(key, slice) and key.step is not None and key.step < 0:
        raise _refuse("a slice with a negative step")
    return key
