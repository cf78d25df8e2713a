"""`Array` stands for a NumPy array, over a fake of the tensor that shares its memory.

NumPy's own functions find an `Array` among their arguments and hand the call over (`__array_ufunc__`,
`__array_function__`). What the result looks like (type, dtype, shape, strides, whether it is a view) is found by a trial:
the NumPy function itself on ones of the same layouts (`numpy_trial.py`). Torch then computes the values, and what it gives
must look like the trial's result, or the call is refused. `numpy_ufuncs.py` and `numpy_functions.py` have the tables of what
torch computes; `array_proxy_methods.py` gives `Array` its operators and methods. What is in no table is refused before
anything runs, and so is whatever reads a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any, cast

import numpy as np
import torch

from smelt._native import isinstance
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_CALL, UNSUPPORTED_EFFECT, Reason, ReasonKind
from smelt.torch_private import DisableTorchFunction
from smelt.tracing.fake.fake_tensor import FakeTensor, check_class

DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.bool: np.dtype(np.bool_), torch.uint8: np.dtype(np.uint8), torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16), torch.int32: np.dtype(np.int32), torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16), torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64),
}  # fmt: skip
TORCH_DTYPES = {found: dtype for dtype, found in DTYPES.items()}


def refusal(what: str, kind: ReasonKind = UNSUPPORTED_CALL) -> Unsupported:
    """The refusal of what a program does with an `Array`: `what` it is, before the words "of a traced NumPy array"."""
    return Unsupported(Reason(kind, f"{what} of a traced NumPy array"))


def is_traceable(value: np.ndarray) -> bool:
    """Whether a tensor can look at an outside array."""
    regular = all(s >= 0 and s % value.itemsize == 0 for s in value.strides)
    return value.dtype in TORCH_DTYPES and value.dtype.isnative and regular and value.flags.writeable


class Array:
    """An array whose elements `tensor` holds. `scalar`: it stands for a NumPy scalar (np.float32) rather than an array of no
    dimensions. `from_environment`: its memory is that of an outside array."""

    __slots__ = ("from_environment", "scalar", "tensor")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: torch.Tensor, scalar: bool = False, from_environment: bool = False) -> None:
        check_class(tensor, "an array")
        self.tensor, self.scalar, self.from_environment = tensor, scalar, from_environment

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Of NumPy."""
        return DTYPES[self.tensor.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        """As of the array."""
        return tuple(self.tensor.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes, as NumPy counts them."""
        return tuple(s * self.itemsize for s in self.tensor.stride())

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.tensor.dim()

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.tensor.numel()

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    def example(self) -> np.generic | np.ndarray:
        """A real array or NumPy scalar of the same type and dtype."""
        return self.dtype.type(1) if self.scalar else np.empty(0, self.dtype)

    def check_own(self) -> None:
        """Raises Unsupported for the memory of an outside array, which the program is about to write."""
        if self.from_environment:
            raise refusal("a write to the memory", UNSUPPORTED_EFFECT)

    def __getattr__(self, name: str) -> object:
        if hasattr(np.ndarray, name):
            raise refusal(f"attribute {name}")
        raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}")


def has_scalar(value: object, depth: int = 4) -> bool:
    """Whether a NumPy scalar that is known at run time only is among arguments: it is no number to torch's functions."""
    if type(value) in (list, tuple, dict) and depth:
        items = value.values() if isinstance(value, dict) else value
        return any(has_scalar(item, depth - 1) for item in cast("Iterable[object]", items))
    return type(value) is Array and value.scalar


class BoundMethod:
    """`array.name` before it is called: of an array, whoever calls it."""

    __slots__ = ("array", "name")

    def __init__(self, array: Array, name: str) -> None:
        self.array, self.name = array, name

    def __call__(self, *args: object, **kwargs: object) -> object:
        return getattr(self.array, self.name)(*args, **kwargs)


def attribute(array: Array, name: str) -> object:
    """`array.name` as the VM reads it."""
    if isinstance(getattr(Array, name, None), FunctionType):
        return BoundMethod(array, name)
    return array.dtype.type if name == "__class__" and array.scalar else getattr(array, name)


def hidden_refusal(error: BaseException | None) -> Unsupported | None:
    """The refusal that NumPy's C code met and turned into `error`."""
    while error is not None and not isinstance(error, Unsupported):
        error = error.__cause__ or error.__context__
    return error


def storage_of(tensor: torch.Tensor) -> int:
    """What tells storages apart, of a fake or of a real tensor."""
    elem = tensor.elem if type(tensor) is FakeTensor else tensor
    with DisableTorchFunction():
        return elem.untyped_storage()._cdata
