"""Operators and methods of `ArrayProxy`: as in `numpy.ndarray`, or refused.

They are separate from the class because they create arrays through the trial run (`numpy_trial.py`), which imports
`ArrayProxy`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, cast

import numpy as np
import torch

from smelt._native import isinstance
from smelt.capture.proxies.array_proxy import TORCH_DTYPES, ArrayProxy, refusal
from smelt.capture.proxies.numpy_functions import apply
from smelt.capture.proxies.numpy_trial import check_against_trial
from smelt.capture.proxies.numpy_ufuncs import REDUCTIONS, apply_ufunc, constant_tensor
from smelt.reasons import DATA_DEPENDENT

_Method = Callable[..., object]  # (array, ...)


# ------------------------------------------------------------------------------------------ NumPy's protocols


def _array_ufunc(self: ArrayProxy, ufunc: np.ufunc, method: str, *args: object, **kwargs: object) -> object:
    if method == "reduce" and ufunc in REDUCTIONS:
        return apply(REDUCTIONS[ufunc], args, {"axis": 0, **kwargs})
    if method != "__call__" or kwargs:
        raise refusal(f"numpy.{ufunc.__name__}.{method} with {sorted(kwargs)}")
    return apply_ufunc(ufunc, args)


def _array(self: ArrayProxy, *args: object, **kwargs: object) -> object:
    raise refusal("NumPy code reads the values", DATA_DEPENDENT)


# ------------------------------------------------------------------------------------------------ as a sequence


def _len(self: ArrayProxy) -> int:
    if not self.shape:
        raise TypeError("len() of unsized object")
    return self.shape[0]


def _iter(self: ArrayProxy) -> Iterator[object]:
    if not self.shape:
        raise TypeError("iteration over a 0-d array")
    return iter([_getitem(self, i) for i in range(self.shape[0])])


def _getitem(self: ArrayProxy, key: object) -> object:
    return check_against_trial(
        operator.getitem, (self, key), {}, lambda array, key: array.tensor[_index(key)]
    )


def _setitem(self: ArrayProxy, key: object, value: object) -> None:
    check_against_trial(_with_item, (self, key, value), {}, _with_item_in_torch)
    _write(self.tensor, key, value)


def _with_item(array: np.ndarray, key: object, value: object) -> np.ndarray:
    copy = array.copy()
    operator.setitem(cast("MutableMapping[object, object]", copy), key, value)
    return copy


def _with_item_in_torch(array: ArrayProxy, key: object, value: object) -> torch.Tensor:
    copy = array.tensor.clone()
    _write(copy, key, value)
    return copy


def _write(tensor: torch.Tensor, key: object, value: object) -> None:
    source = (value.tensor if isinstance(value, ArrayProxy) else constant_tensor(value)).to(tensor.dtype)
    if not isinstance(key, ArrayProxy) or key.dtype != np.bool_:
        tensor[_index(key)] = source
    elif source.dim() or key.shape != tuple(tensor.shape):
        raise refusal("indexing by a mask")
    else:
        tensor.copy_(torch.where(key.tensor, source, tensor))


def _index(key: object) -> Any:
    """`key` as a tensor index. NumPy's `None`, slices, integers, lists and integer arrays mean the same in torch."""
    if isinstance(key, tuple):
        return tuple(_index(k) for k in key)
    if isinstance(key, ArrayProxy):
        if key.dtype == np.bool_:
            raise refusal("indexing by a mask")
        return key.tensor.to(torch.int64)
    if isinstance(key, (np.ndarray, np.generic)):
        index = constant_tensor(key)
        return index.to(torch.int64) if np.issubdtype(key.dtype, np.integer) else index
    if isinstance(key, list):
        return _index(np.asarray(key))
    if isinstance(key, slice) and key.step is not None and key.step < 0:
        raise refusal("a slice with a negative step")
    return key


# ------------------------------------------------------------------------------------------------------ methods


def _astype(self: ArrayProxy, dtype: type | str | np.dtype[np.generic], **kwargs: object) -> object:
    wanted = TORCH_DTYPES.get(np.dtype(dtype))
    if kwargs or wanted is None:
        raise refusal("this cast")
    return check_against_trial(
        _method_caller("astype"), (self, dtype), {}, lambda array, _: array.tensor.to(wanted, copy=True)
    )


def _real(self: ArrayProxy) -> object:
    return check_against_trial(operator.attrgetter("real"), (self,), {}, lambda array: array.tensor)


def _imag(self: ArrayProxy) -> object:
    return check_against_trial(
        operator.attrgetter("imag"), (self,), {}, lambda array: torch.zeros_like(array.tensor)
    )


def _copy(self: ArrayProxy, order: str = "C") -> object:
    return check_against_trial(
        _method_caller("copy"), (self, order), {}, lambda array, _: array.tensor.clone()
    )


def _flatten(self: ArrayProxy) -> object:
    return check_against_trial(
        _method_caller("flatten"), (self,), {}, lambda array: array.tensor.reshape(-1).clone()
    )


def _reshape(self: ArrayProxy, *shape: object, **kwargs: object) -> object:
    new_shape = shape[0] if len(shape) == 1 else shape
    return apply(np.reshape, (self, (new_shape,) if isinstance(new_shape, int) else new_shape), kwargs)


def _transpose(self: ArrayProxy, *axes: object) -> object:
    return apply(np.transpose, (self, *((axes,) if len(axes) > 1 else axes)), {})


def _method_caller(name: str) -> _Method:
    """A method of arrays and NumPy scalars as a function."""
    return lambda array, *args, **kwargs: getattr(array, name)(*args, **kwargs)


def _function_method(name: str) -> _Method:
    """The method implemented by NumPy's function of the same name."""
    function = getattr(np, name)
    return lambda self, *args, **kwargs: apply(function, (self, *args), kwargs)


def _refused_reader(name: str) -> _Method:
    def read(self: ArrayProxy, *args: object, **kwargs: object) -> object:
        raise refusal(f"{name} reads the value", DATA_DEPENDENT)

    return read


# ---------------------------------------------------------------------------------------------------- operators


def _binary(ufunc: np.ufunc, *, swapped: bool = False) -> _Method:
    def method(self: ArrayProxy, other: object) -> object:
        if not isinstance(other, (ArrayProxy, int, float, bool, np.generic, np.ndarray)):
            if isinstance(other, torch.Tensor):
                return NotImplemented
            if not isinstance(other, (list, tuple)):  # NumPy makes an array of objects of it
                raise refusal(f"numpy.{ufunc.__name__} of a {type(other).__name__}")
            other = np.asarray(other)
        return apply_ufunc(ufunc, (other, self) if swapped else (self, other))

    return method


def _inplace(ufunc: np.ufunc) -> _Method:
    def method(self: ArrayProxy, other: object) -> object:
        result = cast(ArrayProxy, apply_ufunc(ufunc, (self, other)))
        if self.scalar:
            return result
        if result.shape != self.shape or not np.can_cast(result.dtype, self.dtype, "same_kind"):
            raise refusal("an in-place operation that changes dtype or shape")
        self.tensor.copy_(result.tensor)
        return self

    return method


def _unary(ufunc: np.ufunc) -> _Method:
    return lambda self: apply_ufunc(ufunc, (self,))


_ARITHMETIC: dict[str, np.ufunc] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "pow": np.power, "matmul": np.matmul, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "lshift": np.left_shift, "rshift": np.right_shift,
}  # fmt: skip
_COMPARISONS: dict[str, np.ufunc] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_UNARY: dict[str, np.ufunc] = {
    "neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert,
}  # fmt: skip
_FUNCTIONS = (
    "sum prod mean std var max min argmax argmin any all cumsum cumprod clip ravel swapaxes squeeze diagonal trace repeat "
    "round take"
)
_READERS = "bool int float index complex contains repr str format reduce_ex copy deepcopy"

METHODS: dict[str, object] = {
    "__array_ufunc__": _array_ufunc,
    "__array_function__": lambda self, function, types, args, kwargs: apply(function, args, kwargs),
    "__array__": _array,
    "__len__": _len,
    "__iter__": _iter,
    "__getitem__": _getitem,
    "__setitem__": _setitem,
    "T": property(_transpose),
    "real": property(_real),
    "imag": property(_imag),
    "astype": _astype,
    "copy": _copy,
    "flatten": _flatten,
    "reshape": _reshape,
    "transpose": _transpose,
    "dot": lambda self, other: apply(np.dot, (self, other), {}),
    **{f"__{name}__": _refused_reader(f"__{name}__") for name in _READERS.split()},
    **{name: _refused_reader(name) for name in ("tolist", "item", "tobytes", "nonzero")},
    **{f"__{name}__": _binary(ufunc) for name, ufunc in (_ARITHMETIC | _COMPARISONS).items()},
    **{f"__r{name}__": _binary(ufunc, swapped=True) for name, ufunc in _ARITHMETIC.items()},
    **{f"__i{name}__": _inplace(ufunc) for name, ufunc in _ARITHMETIC.items()},
    **{f"__{name}__": _unary(ufunc) for name, ufunc in _UNARY.items()},
    **{name: _function_method(name) for name in _FUNCTIONS.split()},
}
for _name, _method in METHODS.items():
    setattr(ArrayProxy, _name, _method)
