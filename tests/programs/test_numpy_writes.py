"""Programs of NumPy: functions, creation of arrays of arrays, and writes into arrays of the environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import smelt
from smelt.report.inspect import entries, reasons

Array = np.ndarray[Any, Any]
SHORT = np.dtype("int16")
FUNCTIONS: dict[str, Callable[[Array], Any]] = {
    "norm": lambda x: x / np.linalg.norm(x),
    "norms of rows": lambda x: np.linalg.norm(x.reshape(2, 3), axis=1, keepdims=True),
    "largest": lambda x: np.linalg.norm(x, np.inf),
    "mesh": lambda x: np.meshgrid(x, x[:2] + 1),
    "sparse mesh": lambda x: np.meshgrid(x, x + 1, indexing="ij", sparse=True),
    "parts": lambda x: (x.real * 2, np.imag(x) + 1),
    "shifted": lambda x: (np.fft.fftshift(x), np.fft.ifftshift(x.reshape(2, 3), axes=1)),
    "ints": lambda x: (x * 1.7 - 3).astype(int),
    "bools and floats": lambda x: x.astype(bool).astype(float) + 8,
    "a dtype of the environment": lambda x: (np.ones(6, SHORT) * x, x.astype(SHORT)),
    "array of arrays": lambda x: np.array([x, x + 1]) * 2,
    "array of scalars": lambda x: np.array([x.max(), x.min()]),
    "array of elements": lambda x: np.array([[x[0], x[1]], [x[2], 5]]),
    "array of another type": lambda x: np.asarray((x, x * 2), dtype=np.float32),
    "copies": lambda x: (np.array(x), np.asarray(x) + 1, np.ascontiguousarray(x.reshape(2, 3).T)),
    "gradient": lambda x: np.gradient(x.astype(float)),
    "appended": lambda x: np.append(x, x[:2]),
    "products": lambda x: np.kron(x[:2], x),
}


def write_element(x):
    x[0] = 5
    return x + 1


def add_in_place(x):
    x += 1
    y = x
    y -= 3
    return x * 2, y is x


def write_slices(x):
    x[1:3] *= 2
    x[::2] = x[::2] + 1
    x.reshape(2, 3)[1] = 9
    return x * 1


def write_by_mask(x):
    x[x < 2] = 0
    return x * 1


def write_by_index(x):
    x[[0, 2]] = np.array([5, 6])
    x[np.array([1])] = x[3]
    return x + 0


def swap(x):
    x[0], x[1] = x[1], x[0]
    first = x[0]
    x[0] = 9
    return first, x


def write_by_tensor(x):
    t = torch.from_numpy(x)
    t.add_(1)
    x[0] = 3
    return t * 1


def write_a_copy(x):
    y = x.copy()
    y[0] = 7
    return y, x + 1


WRITES = (
    write_element,
    add_in_place,
    write_slices,
    write_by_mask,
    write_by_index,
    swap,
    write_by_tensor,
    write_a_copy,
)


def same(got: Any, want: Any) -> None:
    if isinstance(want, (list, tuple)):
        assert type(got) is type(want) and len(got) == len(want)
        for g, w in zip(got, want):
            same(g, w)
        return
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        assert torch.equal(got, want)
    elif isinstance(want, (np.ndarray, np.generic)):
        assert (got.dtype, got.shape, got.strides) == (want.dtype, want.shape, want.strides)
        np.testing.assert_allclose(got, want, rtol=1e-6)
    else:
        assert got == want


@pytest.mark.parametrize("dtype", [float, np.float32, int])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, dtype: type) -> None:
    compiled = smelt.compile(FUNCTIONS[name], fullgraph=True)
    for start in (0, -2):
        x = np.arange(start, start + 6).astype(dtype)
        same(compiled(x), FUNCTIONS[name](x))
    assert len(entries(compiled)) == 1


@pytest.mark.parametrize("dtype", [float, np.float32, int, np.uint8])
@pytest.mark.parametrize("program", WRITES, ids=lambda f: f.__name__)
def test_writes_change_the_array(program: Callable[[Array], Any], dtype: type) -> None:
    compiled = smelt.compile(program, fullgraph=True)
    for n in range(3):
        eager, ours = (np.arange(n, n + 6).astype(dtype) for _ in range(2))
        same(compiled(ours), program(eager))
        same(ours, eager)


def test_writes_that_raise() -> None:
    def out_of_bounds(x):
        x[9] = 1

    def of_another_shape(x):
        x[:2] = np.ones(3)

    def too_large(x):
        x[0] = 300

    for program in (out_of_bounds, of_another_shape, too_large):
        with pytest.raises((IndexError, ValueError, OverflowError)) as eager:
            program(np.zeros(6, np.uint8))
        with pytest.raises(type(eager.value)) as ours:
            smelt.compile(program)(np.zeros(6, np.uint8))
        assert str(ours.value) == str(eager.value)


def test_other_inputs_must_not_share_the_array() -> None:
    def program(x, y):
        x += 1
        return x.sum(), y * 2

    compiled = smelt.compile(program)
    others = (lambda x: np.ones(3), lambda x: x[3:6], torch.from_numpy, lambda x: x, lambda x: x[1:4])
    for other in (*others, *others):
        eager, ours = np.arange(8.0), np.arange(8.0)
        same(compiled(ours[:3], other(ours)[:3]), program(eager[:3], other(eager)[:3]))
        same(ours, eager)


def test_arrays_side_by_side_are_one_entry_and_an_overlap_breaks_the_graph() -> None:
    def program(x, y):
        x[:] = y * 2
        y -= 1
        return x + y

    compiled = smelt.compile(program, fullgraph=True)
    for n in range(3):
        eager, ours = np.arange(n, n + 8.0), np.arange(n, n + 8.0)
        same(compiled(ours[:4], ours[4:]), program(eager[:4], eager[4:]))
        same(ours, eager)
    assert len(entries(compiled)) == 1
    overlapping = smelt.compile(program)
    eager, ours = np.arange(8.0), np.arange(8.0)
    same(overlapping(ours[:4], ours[2:6]), program(eager[:4], eager[2:6]))
    same(ours, eager)
    assert "shares memory" in str(reasons(overlapping))


def test_an_array_beside_tensors() -> None:
    def program(x, t):
        x[0] = 5
        t.add_(torch.from_numpy(x))
        return t * 2

    compiled = smelt.compile(program, fullgraph=True)
    for n in range(2):
        (x, t), (ours, tensor) = ((np.arange(n, n + 3.0), torch.ones(3).double()) for _ in range(2))
        assert torch.equal(compiled(ours, tensor), program(x, t))
        same(ours, x)
        assert torch.equal(tensor, t)
