"""`ArrayProxy` behaves as NumPy or refuses: type, dtype, shape, strides and values, over real tensors instead of fakes."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import smelt
from smelt.capture.proxies import numpy_ufuncs
from smelt.capture.proxies.array_proxy import ArrayProxy
from smelt.errors import Unsupported

DTYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64")
NUMBERS: tuple[Any, ...] = (2, 1.5, True, np.float64(2), np.float32(0.5), np.int8(3), -3, 300)
UFUNCS = [*numpy_ufuncs.BY_RESULT, *numpy_ufuncs.BY_OPERANDS, *numpy_ufuncs.BY_ITSELF]
NAMES = (
    "sum", "prod", "mean", "std", "var", "max", "min", "argmax", "argmin", "any", "all", "cumsum", "cumprod", "sort",
    "ravel", "transpose", "squeeze", "diff", "ptp",
)  # fmt: skip


def made(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(len(dtype))
    kind = np.dtype(dtype).kind
    if kind != "f":
        low = 0 if kind in "bu" else -5
        return random.integers(low, 2 if kind == "b" else 9, shape).astype(dtype)
    array = (random.standard_normal(shape) * 3).astype(dtype)
    array.flat[:3] = np.nan, np.inf, -0.0
    return array


def traced(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(traced, value))
    return ArrayProxy(torch.from_numpy(value)) if isinstance(value, np.ndarray) else value


def agree(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """`function` of arrays is `function` of what stands for them, unless that is refused."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            want, error = function(*args, **kwargs), None
        except Exception as e:
            want, error = None, type(e)
        try:
            got = function(*map(traced, args), **kwargs)
        except Unsupported:
            return
        except Exception as e:
            assert type(e) is error, (function, args, kwargs)
            return
    assert error is None, (function, args, kwargs)
    same(want, got)


def same(want: Any, got: Any) -> None:
    if isinstance(want, (list, tuple)):
        assert len(want) == len(got)
        for w, g in zip(want, got):
            same(w, g)
        return
    found = got.tensor.numpy()
    found = found[()] if got.scalar else found
    assert (type(want), want.dtype, want.shape) == (type(found), found.dtype, found.shape)
    assert want.strides == found.strides or want.size == 0
    tolerance = 2e-2 if want.dtype == np.float16 else 1e-4
    np.testing.assert_allclose(found.astype(float), want.astype(float), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda u: u.__name__)
def test_ufuncs(ufunc: Any) -> None:
    for dtype in DTYPES:
        array = made(dtype, (2, 3))
        if ufunc.nin == 1:
            agree(ufunc, array)
            agree(ufunc, array.T)
            continue
        for number in NUMBERS:
            agree(ufunc, array, number)
            agree(ufunc, number, array)
        for other in DTYPES:
            agree(ufunc, array, made(other, (3, 2) if ufunc is np.matmul else (2, 3)))


@pytest.mark.parametrize("name", NAMES)
def test_functions_of_one_array(name: str) -> None:
    for dtype, shape in itertools.product(DTYPES, ((4,), (2, 3), (3, 1, 2))):
        agree(getattr(np, name), made(dtype, shape))
        agree(getattr(np, name), made(dtype, shape), axis=0)
        agree(getattr(np, name), made(dtype, shape), axis=-1, keepdims=True)


@pytest.mark.parametrize("name", ["concatenate", "stack", "vstack", "hstack", "dstack"])
def test_joining_functions(name: str) -> None:
    for a, b in itertools.product(DTYPES, DTYPES):
        agree(getattr(np, name), [made(a, (2, 3)), made(b, (2, 3))])


@pytest.mark.parametrize(
    "key",
    [
        0, -1, slice(1, None), slice(None, None, 2), ..., None, (slice(None), 1), (0, 1), (..., 0), (None, slice(None), 1),
        [0, 1], ([0, 1], [2, 0]), (slice(None), [2, 0]), np.array([1, 0]), (1, np.array([0, 2])), slice(None, None, -1),
        np.int64(1), (slice(None), slice(2, 0)), 7, (0, 0, 0), True,
    ],
    ids=repr,
)  # fmt: skip
def test_subscripts(key: Any) -> None:
    for dtype in ("int32", "float32"):
        agree(lambda a: a[key], made(dtype, (2, 3)))
        agree(lambda a: a.T[key], made(dtype, (2, 3)))


LIMITS = (-(2**40), -100_000, -129, -1, 0, 127, 255, 256, 100_000, 2**40)
WITH_A_NUMBER: dict[str, Callable[..., Any]] = {
    "clip from": lambda a, n: np.clip(a, n, None),
    "clip to": lambda a, n: a.clip(max=n),
    "clip between": lambda a, n: np.clip(a, -n, n),
    "full like": lambda a, n: np.full_like(a, n),
    "maximum": np.maximum,
    "at most": lambda a, n: a <= n,
    "equal": lambda a, n: n == a,
    "difference": lambda a, n: n - a,
    "mask": lambda a, n: a & n,
    "where": lambda a, n: np.where(a > 1, a, n),
}


@pytest.mark.parametrize("name", WITH_A_NUMBER)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_numbers_that_a_dtype_cannot_hold(name: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    a = np.array([limits.min, 0, 1, 5, limits.max], dtype)
    for number in LIMITS:
        agree(WITH_A_NUMBER[name], a, number)


def test_what_torch_computes_otherwise_is_refused_and_what_it_computes_alike_is_not() -> None:
    a = ArrayProxy(torch.arange(4, dtype=torch.uint8))
    assert np.clip(a, 1, 2).tensor.tolist() == [1, 1, 2, 2]  # type: ignore[attr-defined]
    with pytest.raises(Unsupported, match="other values"):
        np.clip(a, -5, None)  # type: ignore[call-overload]


@pytest.mark.parametrize("other", [None, "a", object, 1j, {1}, b"a"], ids=repr)
def test_comparisons_with_other_objects_are_elementwise(other: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        array = x.numpy()
        return array == other, other != array, array.sum() == other

    x = torch.arange(3.0)
    for found, expected in zip(smelt.compile(program)(x), program(x)):
        assert type(found) is type(expected) and np.array_equal(found, expected)
