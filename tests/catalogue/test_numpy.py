"""Programs that use NumPy inside the compiled function."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import torch

from tests.harness.catalogue import program, tensor


def array(*shape: int, dtype: type = np.float32) -> np.ndarray:
    if np.issubdtype(dtype, np.floating):
        return np.random.randn(*shape).astype(dtype)
    return np.random.randint(1, 10, shape).astype(dtype)


def three(*shape: int, dtype: type = np.float32) -> list:
    return [(array(*shape, dtype=dtype),) for _ in range(3)]


@program(graphs=1)
def elementwise_on_arrays():
    def fn(a, b):
        return (
            a * 2 + b,
            np.sin(a) - np.exp(b),
            -a / (np.abs(b) + 1),
            a**2,
            np.sqrt(np.abs(a)),
            np.maximum(a, b),
        )

    return fn, [(array(3, 4), array(3, 4)) for _ in range(3)]


@program(graphs=1)
def reductions_of_arrays():
    def fn(a):
        return (
            np.sum(a), a.sum(axis=0), np.mean(a), a.mean(axis=1, keepdims=True), np.max(a, axis=0), a.min(), np.prod(a),
            a.std(), a.var(axis=0), np.argmax(a), a.argmin(axis=1), np.any(a > 0), (a > 0).all(axis=0), np.cumsum(a, axis=1),
        )  # fmt: skip

    return fn, three(3, 4)


@program(graphs=1, later=1)
def dtype_rules():
    def fn(a, i):
        return (
            a + 1,
            a + 1.5,
            a + i,
            i / 2,
            i // 2,
            i * 1.5,
            i.sum(),
            i.mean(),
            a.astype(np.float64) + a,
            (i > 2).sum(),
            i**2,
        )

    return fn, [
        (array(3), array(3, dtype=np.int64)),
        (array(3), array(3, dtype=np.int32)),
        (array(3), array(3, dtype=np.int64)),
    ]


@program(graphs=1)
def scalars_of_numpy():
    def fn(a):
        s = a.sum()
        return (
            s,
            s * 2,
            np.float64(2.0) * a,
            a * np.float32(3),
            a[0, 0] + 1,
            type(s) is np.float32,
            isinstance(s, np.floating),
        )

    return fn, three(3, 4)


@program(graphs=1)
def indexing_of_arrays():
    def fn(a):
        return a[0], a[1:, ::2], a[..., None], a[:, [0, 2]], a[-1, -1], a[a.shape[0] - 1], a[:, np.newaxis, 0]

    return fn, three(3, 4)


@program(graphs=2, breaks=["unsupported-call"])
def indexing_by_a_mask():
    def fn(a):
        return a[a > 0].sum() + a.size

    return fn, three(3, 4)


@program(graphs=1)
def shapes_of_arrays():
    def fn(a):
        return (
            a.reshape(-1),
            a.T,
            a.reshape(2, 6),
            a.ravel(),
            a.transpose(1, 0),
            a.flatten(),
            np.expand_dims(a, 0),
            a[None].squeeze(0),
            a.swapaxes(0, 1),
        )

    return fn, three(3, 4)


@program(graphs=1)
def facts_of_arrays():
    def fn(a):
        return (
            a * a.shape[0],
            a.ndim,
            a.size,
            a.dtype,
            a.dtype == np.float32,
            len(a),
            isinstance(a, np.ndarray),
            a.itemsize,
        )

    return fn, three(3, 4)


@program(graphs=1)
def joining_arrays():
    def fn(a, b):
        return (
            np.concatenate([a, b]),
            np.stack([a, b], axis=1),
            np.vstack((a, b)),
            np.hstack([a, b]),
            np.where(a > b, a, b),
            np.split(a, 3),
        )

    return fn, [(array(3, 4), array(3, 4)) for _ in range(3)]


@program(graphs=1)
def arrays_made_inside():
    def fn(a):
        return (
            a + np.arange(4),
            a * np.ones(4, dtype=np.float32),
            np.zeros((3, 4)) + a,
            np.linspace(0, 1, 4) * a,
            np.full(4, 2.0),
            np.eye(3) @ a,
            np.zeros_like(a) - a,
        )

    return fn, three(3, 4)


@program(graphs=1)
def products_of_arrays():
    def fn(a, b):
        return a @ b, np.dot(a, b), np.matmul(a, b), np.einsum("ij,jk->ik", a, b), np.outer(a[0], b[0])

    return fn, [(array(3, 4), array(4, 2)) for _ in range(3)]


@program(graphs=1)
def a_tensor_becomes_an_array():
    def fn(x):
        a = x.numpy()
        return np.sum(a * 2), a + 1, a.shape

    return fn, [(tensor(3, 4),) for _ in range(3)]


@program(graphs=1)
def an_array_becomes_a_tensor():
    def fn(a):
        x = torch.from_numpy(a)
        return x.relu() + torch.as_tensor(a) * 2, torch.tensor(a), torch.from_numpy(a * 2).sum()

    return fn, three(3, 4)


@program(graphs=1)
def there_and_back():
    def fn(x):
        return torch.from_numpy(np.tanh(x.detach().cpu().numpy() * 2)) + x

    return fn, [(tensor(3, 4),) for _ in range(3)]


@program(graphs=1)
def a_tensor_that_requires_grad():
    def fn(x):
        try:
            return x.numpy()
        except RuntimeError as e:
            return x.detach().numpy() * 2, str(e)

    return fn, [(tensor(3, requires_grad=True),) for _ in range(3)]


@program(graphs=1)
def an_array_is_written():
    def fn(a):
        a[0] = 1.0
        a += 2
        return a.sum()

    return fn, three(3, 4)


@program(graphs=2, breaks=["data-dependent-value"])
def an_array_made_inside_is_written():
    def fn(a):
        out = np.zeros(3, dtype=np.float32)
        out[0] = a.sum()
        out[1:] = a[0, :2]
        return out

    return fn, three(3, 4)


@program(graphs=1)
def an_argument_comes_back():
    def fn(a):
        return a, a[0], {"a": a}

    return fn, three(3, 4)


@program(graphs=1)
def random_numbers_of_numpy():
    def fn(a):
        return a + np.random.rand(4)

    return fn, three(3, 4)


@program(graphs=1, breaks=["random-state"])
def a_generator_of_numpy():
    def fn(a):
        return a + np.random.default_rng(3).standard_normal(4)

    return fn, three(3, 4)


@program(graphs=2, later=1, breaks=["data-dependent-value"])
def branches_on_values():
    def fn(a):
        if a.sum() > 0:
            return a * 2
        return a - 1

    return fn, [(np.ones(3),), (-np.ones(3),), (np.ones(3),)]


@program(
    graphs=3,
    later=2,
    breaks=[
        "data-dependent-value",
        "data-dependent-value",
        "data-dependent-value",
        "data-dependent-value",
        "data-dependent-value",
    ],
)
def conversions_to_python():
    def fn(a):
        return a.tolist(), float(a[0]), int(a[1]), a.item(0), list(a), bool((a > 0).any())

    return fn, three(3)


@program(graphs=1)
def lists_of_integers():
    def fn(a):
        rows = (a * 2).reshape(2, 3).tolist()
        return rows, [n + 1 for n in a.tolist()], np.arange(3).tolist()

    return fn, three(6, dtype=np.int64)


@program(graphs=1)
def arrays_like_tensors():
    def fn(x):
        ones, halves = np.ones_like(x.t(), dtype=np.float64), np.full_like(x, 0.5)
        return ones, halves + 1, np.zeros_like(x.sum(0), dtype=np.dtype("int32"))

    return fn, [(tensor(3, 4),), (tensor(3, 4),), (tensor(3, 4),)]


@program(graphs=1)
def iteration_over_an_array():
    def fn(a):
        total = 0
        for row in a:
            total = total + row * 2
        first, *rest = a
        return total, first, len(rest)

    return fn, three(3, 4)


@program(graphs=1)
def constants_of_numpy():
    table = np.arange(4, dtype=np.float32)

    def fn(x):
        return x * torch.from_numpy(table) + np.pi + float(np.float32(0.5)) + np.sqrt(4)

    return fn, [(tensor(3, 4),) for _ in range(3)]


@program(graphs=1)
def array_attributes_of_an_object():
    class Holder:
        def __init__(self):
            self.mean = np.full(4, 0.5, dtype=np.float32)

        def __call__(self, a):
            return (a - self.mean) / np.float32(2)

    return Holder(), three(3, 4)


@program(graphs=1, later=3)
def shapes_of_arrays_change():
    def fn(a):
        return np.tanh(a).mean(axis=-1)

    return fn, [(array(3, 4),), (array(3, 4).astype(np.float64),), (array(2, 5),), (array(4, 3).T,)]


@program(graphs=1, later=2)
def integers_of_every_width():
    def fn(a):
        return a + a, a * 2, a % 3, a & 1, a << 1, ~a, a.astype(np.float32) / 2, np.bitwise_xor(a, 1)

    return fn, [(array(4, dtype=np.int32),), (array(4, dtype=np.uint8),), (array(4, dtype=np.int64),)]


@program(graphs=1)
def clipping_and_rounding():
    def fn(a):
        return (
            np.clip(a, -0.5, 0.5),
            a.clip(0, None),
            np.round(a, 1),
            np.floor(a),
            np.sign(a),
            np.isnan(a),
            np.isfinite(a),
        )

    return fn, three(3, 4)


@program(graphs=3, breaks=["unsupported-call", "unsupported-call"])
def sorting_arrays():
    def fn(a):
        return (
            np.sort(a, axis=-1),
            np.argsort(a, axis=0),
            a.copy(),
            np.flip(a, 0),
            np.roll(a, 1),
            np.tile(a, (2, 1)),
            np.repeat(a, 2, axis=0),
        )

    return fn, three(3, 4)


@program(graphs=1, breaks=["unsupported-call", "unsupported-call", "unsupported-call", "unsupported-call"])
def what_torch_has_not():
    def fn(a):
        return np.unique(a), np.interp(a[0], np.arange(4.0), a[1]), np.percentile(a, 50), a[::-1]

    return fn, three(3, 4)


@program(graphs=1, breaks=["unsupported-object", "unsupported-object", "unsupported-object"])
def strings_and_structures():
    names = np.array(["a", "b"])

    def fn(x):
        return x * len(names), names[0], str(names.dtype)

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=1)
def a_constant_array_becomes_a_tensor():
    def fn(x):
        table = torch.from_numpy(np.linspace(0, 1, 4, dtype=np.float32).reshape(2, 2))
        return x @ table, torch.as_tensor(np.arange(3)), torch.tensor(np.ones(2)), table

    return fn, [(tensor(3, 2),) for _ in range(3)]


@program(graphs=0, eager=["unsupported-effect"])
def a_constant_array_is_written_beside_its_tensor():
    def fn(x):
        a = np.zeros(2, dtype=np.float32)
        t = torch.from_numpy(a)
        a[0] = 5.0
        y = x + t
        t.add_(1)
        return y, a[1] * 2, t

    return fn, [(tensor(3, 2),) for _ in range(3)]


@program(graphs=0, eager=["unsupported-object"])
def an_array_and_its_tensor_are_returned():
    def fn(x):
        a = np.zeros(2, dtype=np.float32)
        return a, torch.from_numpy(a), x + 1

    return fn, [(tensor(3, 2),) for _ in range(3)]


@program(graphs=1)
def scalars_in_tensors():
    def fn(x, a):
        y = x + 0
        y[..., 0] = np.log(np.exp(a[0]) - 1)
        y[y > 1] = a[1] * 2
        return y

    return fn, [(tensor(3, 2), np.random.rand(2) + 0.5) for _ in range(3)]


@program(graphs=3, breaks=["data-dependent-value"] * 3)
def scalars_given_to_torch():
    def fn(x, a):
        y = x.clamp(min=a.sum())
        y = y.fill_(a[0])
        return torch.full((2,), a[1]), y

    return fn, [(tensor(3, 2), np.random.rand(2)) for _ in range(3)]


@program(graphs=1, breaks=["data-dependent-value"])
def scalars_that_tensors_do_not_take():
    def fn(x, a):
        y = x + 0
        try:
            y[0] = a[0] + a[1]
        except TypeError as e:
            return str(e)
        return y

    return fn, [(tensor(3, 2), array(2)) for _ in range(3)]


@program(graphs=1)
def arrays_as_indices_of_tensors():
    def fn(x, a, mask):
        y = x[a] * 2 + x[a.astype(np.int32), None, :, 0]
        y[..., mask] = 1.0
        return y.sum(), y

    return fn, [(tensor(3, 2, 2), np.array([0, 2]), np.array([True, False])) for _ in range(3)]


@program(graphs=2, breaks=["data-dependent-value"] * 2)
def scalars_and_tables_as_indices_of_tensors():
    def fn(x, a):
        y = x * 2
        return x[a[0]] + 1, y[..., a.reshape(1, 2)[0, 1]]

    return fn, [(tensor(3, 2), np.array(a)) for a in ([0, 1], [1, 0], [0, 1])]


def masked():
    return np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False])


@program(graphs=2, breaks=["unsupported-object"] * 4)
def masked_arrays_from_closures():
    array = masked()

    def fn(x):
        return x * float(array.sum()), array.count(), array.mask[1], array.fill_value, array, type(array)

    return fn, [(tensor(3),)] * 3


@program(graphs=1, breaks=["data-dependent-value"] + ["unsupported-object"] * 3)
def masked_arrays_as_arguments():
    def fn(x, array):
        array[0] = np.ma.masked
        return x + float(array.sum()), array, array.mask.tolist()

    return fn, [(tensor(3), masked()) for _ in range(3)]


@program(graphs=1)
def arrays_of_other_dtypes_that_are_made_inside():
    def fn(x):
        return (
            x * 2,
            np.fft.fft(np.arange(4.0)),
            np.fft.fft(np.arange(4.0))[1],
            np.char.upper(np.array(["a", "bcd"])),
            np.str_("ab"),
            np.bytes_(b"a\0b"),
            np.zeros((0, 3), dtype="U3"),
            np.array(["2020-01-01"], dtype="M8[D]").astype("i8"),
            np.array([1, 2], dtype=">i4"),
        )

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def tensors_of_lists_of_arrays():
    def fn(x):
        a, n = x.numpy(), x.int().numpy()
        return (
            torch.tensor([a, a + 1]),
            torch.tensor([[n], (n * 2,)]),
            torch.as_tensor((a, a * 3), dtype=torch.float64),
        )

    return fn, [(tensor(3),) for _ in range(3)]


@program(graphs=2, breaks=["unsupported-call"])
def a_tensor_of_arrays_and_lists():
    def fn(x):
        a = x.numpy()
        return torch.tensor([a, [1.0, 2.0, 3.0]]) * 2

    return fn, [(tensor(3),) for _ in range(3)]


@pytest.mark.parametrize(
    "operation", ["add", "sub", "mul", "truediv", "pow", "matmul", "iadd", "imul", "isub"]
)
@program(graphs=1)
def operators_of_a_tensor_and_an_array(operation):
    def fn(t, a, b):
        return apply(t, a), apply(t.double(), np.ones(3)), t, a + b

    apply = getattr(operator, operation)
    return fn, [(tensor(3), array(3), array(3)) for _ in range(3)]


@program(graphs=1, later=2)
def a_tensor_equals_an_array():
    def fn(t, a):
        return t == a, a == t, t != a, t == np.ones(3), (t == a).sum()

    rows = [(torch.ones(3), np.array([1, 2, 1])), (torch.ones(3), np.ones(3)), (torch.ones(2, 1), np.ones(3))]
    return fn, rows


@program(graphs=1)
def an_array_divided_by_a_tensor_and_logic():
    def fn(t, a, mask):
        return a / t, 2.0 / t, (t > 0) & mask, (t > 0) | mask

    return fn, [(tensor(3), array(3), np.array([True, False, True])) for _ in range(3)]


@program(graphs=0, eager=["user-exception"])
def an_operator_of_an_array_and_a_tensor_raises():
    def fn(t, a):
        return a - t.exp()

    return fn, [(tensor(3), array(3)) for _ in range(3)]
