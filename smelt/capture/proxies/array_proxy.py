"""`ArrayProxy`, the proxy of a NumPy array over a fake of the tensor that shares its memory.

NumPy's own functions dispatch to an `ArrayProxy` among their arguments (`__array_ufunc__`, `__array_function__`). A trial
run determines the result's type, dtype, shape, strides and aliasing: the NumPy function itself on ones of the same
layouts (`numpy_trial.py`). Torch computes the values, and its result must match the trial's, or the call is refused.
`numpy_ufuncs.py` and `numpy_functions.py` have the tables of supported functions; `array_proxy_methods.py` gives
`ArrayProxy` its operators and methods. Functions in no table, and everything that reads a value, are refused before
anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any, cast

import numpy as np
import torch

from smelt._native import isinstance
from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_CALL, Reason, ReasonKind
from smelt.torch_private import DisableTorchFunction
from smelt.tracing.fake.fake_tensor import FakeTensor, check_class

DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.bool: np.dtype(np.bool_), torch.uint8: np.dtype(np.uint8), torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16), torch.int32: np.dtype(np.int32), torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16), torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64),
}  # fmt: skip
TORCH_DTYPES = {found: dtype for dtype, found in DTYPES.items()}


def refusal(what: str, kind: ReasonKind = UNSUPPORTED_CALL) -> Unsupported:
    """Refusal of an operation `what` on an `ArrayProxy`; the reason appends "of a traced NumPy array"."""
    return Unsupported(Reason(kind, f"{what} of a traced NumPy array"))


def is_traceable(value: np.ndarray) -> bool:
    """Whether a tensor can share the memory of an environment array."""
    regular = all(s >= 0 and s % value.itemsize == 0 for s in value.strides)
    return value.dtype in TORCH_DTYPES and value.dtype.isnative and regular and value.flags.writeable


class ArrayProxy:
    """An array with the elements of `tensor`. `scalar`: a NumPy scalar (np.float32) rather than a 0-d array."""

    __slots__ = ("scalar", "tensor")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: torch.Tensor, scalar: bool = False) -> None:
        check_class(tensor, "an array")
        self.tensor, self.scalar = tensor, scalar

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """NumPy dtype."""
        return DTYPES[self.tensor.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(self.tensor.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in bytes, as in NumPy."""
        return tuple(s * self.itemsize for s in self.tensor.stride())

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.tensor.dim()

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.tensor.numel()

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    def example(self) -> np.generic | np.ndarray:
        """A real array or NumPy scalar of the same type and dtype."""
        return self.dtype.type(1) if self.scalar else np.empty(0, self.dtype)

    def __getattr__(self, name: str) -> object:
        if hasattr(np.ndarray, name):
            raise refusal(f"attribute {name}")
        raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}")


def has_scalar(value: object, depth: int = 4) -> bool:
    """Whether the arguments contain a runtime NumPy scalar, which torch's functions do not accept as a number."""
    if type(value) in (list, tuple, dict) and depth:
        items = value.values() if isinstance(value, dict) else value
        return any(has_scalar(item, depth - 1) for item in cast("Iterable[object]", items))
    return type(value) is ArrayProxy and value.scalar


class BoundMethod:
    """`owner.name`, a method bound to an array or a string that a proxy stands for."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: object, name: str) -> None:
        self.owner, self.name = owner, name

    def __call__(self, *args: object, **kwargs: object) -> object:
        return getattr(self.owner, self.name)(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        raise Unsupported(Reason(UNSUPPORTED_CALL, "a comparison of methods"))

    __hash__ = None  # type: ignore[assignment]


def load_array_attr(array: ArrayProxy, name: str) -> object:
    """`array.name` as the VM reads it."""
    if name == "tolist" and not array.scalar:
        return array.tensor.tolist  # whose numbers may be unbacked
    if isinstance(getattr(ArrayProxy, name, None), FunctionType):
        return BoundMethod(array, name)
    return getattr(array, name)


def hidden_refusal(error: BaseException | None) -> Unsupported | None:
    """The refusal that NumPy's C code replaced by `error`, or None."""
    while error is not None and not isinstance(error, Unsupported):
        error = error.__cause__ or error.__context__
    return error


def storage_of(tensor: torch.Tensor) -> int:
    """Identity of the storage of a fake or real tensor."""
    elem = tensor.elem if type(tensor) is FakeTensor else tensor
    with DisableTorchFunction():
        return elem.untyped_storage()._cdata
