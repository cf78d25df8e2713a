"""Programs about tensors as Python objects: attributes, conversions, indexing, data that becomes a tensor."""

from __future__ import annotations

import collections

import torch
import torch.nn.functional as F

from tests.harness.catalogue import Compilation, Unlike, asserts_on_gpu, program, tensor


def three(*shape: int, **kwargs) -> list:
    return [(tensor(*shape, **kwargs),) for _ in range(3)]


# -------------------------------------------------------------------------------------------------- attributes


@program(graphs=1)
def transposes_and_real_parts():
    def fn(x):
        return x.T, x.mT, x.H, x.mH, x.real, x.data.sin()

    return fn, three(3, 4)


@program(graphs=0)
def metadata():
    def fn(x):
        facts = (
            x.shape,
            x.size(),
            x.size(-1),
            x.ndim,
            x.dim(),
            x.numel(),
            x.nelement(),
            len(x),
            x.stride(),
            x.itemsize,
        )
        return (
            facts,
            x.dtype,
            x.device,
            x.layout,
            x.is_cuda,
            x.requires_grad,
            x.type(),
            x.nbytes,
            x.element_size(),
        )

    return fn, three(3, 4)


@program(graphs=0)
def kinds_of_dtypes():
    def fn(x):
        return (
            x.is_floating_point(),
            x.is_complex(),
            x.is_signed(),
            torch.finfo(x.dtype).eps,
            torch.iinfo(torch.int8).max,
        )

    return fn, [(tensor(3),), (tensor(3, dtype=torch.float64),), (tensor(3),)]


@program(graphs=1)
def leaves_and_gradients_are_read():
    def fn(x):
        y = x * 2
        return y, x.is_leaf, x.grad, x.grad_fn, y.is_leaf

    return fn, three(3)


@program(graphs=1)
def a_gradient_is_used():
    x = tensor(3, requires_grad=True)
    x.sum().backward()

    def fn(y):
        return y - 0.1 * x.grad

    return fn, three(3), x


@program(graphs=1)
def detached_and_data():
    def fn(x):
        y = (x * 2).detach()
        z = x.data
        return y, z + 1, z.requires_grad

    return fn, three(3)


@program(graphs=1)
def data_is_assigned():
    x = tensor(3)

    def fn(y):
        x.data = y * 2
        return x + 1

    return fn, three(3), x


@program(graphs=1)
def attributes_on_a_result():
    def fn(x):
        y = x * 2
        y.tag = "doubled"
        return y, y.tag

    return fn, three(3)


@program(graphs=1)
def attributes_on_a_temporary():
    def fn(x):
        y = x * 2
        y.scale = 3
        return y.sin() * y.scale

    return fn, three(3)


@program(graphs=1)
def an_attribute_of_an_argument():
    x = tensor(3)
    x.factor = 3.0

    def fn(y):
        return y * x.factor + x

    return fn, three(3)


@program(graphs=1)
def shapes_as_numbers():
    def fn(x):
        b, *rest = x.shape
        flat = x.reshape(b, torch.Size(rest).numel())
        return (
            flat * x.shape[-1],
            x.shape + (1,),
            x.shape[1:],
            tuple(x.shape),
            list(x.shape),
            x.shape == (2, 3, 4),
        )

    return fn, three(2, 3, 4)


@program(graphs=1)
def sizes_in_calls():
    def fn(x):
        return (
            x.new_zeros(x.shape),
            torch.zeros(*x.size()),
            torch.ones(x.shape[::-1]),
            x.expand(2, *x.shape),
            x.view(-1),
        )

    return fn, three(3, 4)


# ------------------------------------------------------------------------------------------------- conversions


@program(graphs=1)
def every_form_of_to():
    def fn(x, y):
        return (
            x.to(torch.float64), x.to("cpu"), x.to(torch.device("cpu"), torch.int32), x.to(y), x.to(dtype=torch.float16),
            x.to("cpu", non_blocking=True), x.to(torch.float32, copy=True), x.to(memory_format=torch.contiguous_format),
        )  # fmt: skip

    return fn, [(tensor(3), tensor(2, dtype=torch.float64)) for _ in range(3)]


@program(graphs=1)
def to_that_changes_nothing_is_the_same_object():
    def fn(x):
        return x.to(torch.float32) is x, x.cpu() is x, x.contiguous() is x, x.float() is x, x + 1

    return fn, three(3)


@program(graphs=1)
def types_by_name():
    def fn(x):
        return (
            x.double(),
            x.half(),
            x.int(),
            x.long(),
            x.bool(),
            x.bfloat16(),
            x.type(torch.int64),
            x.type("torch.DoubleTensor"),
        )

    return fn, three(3)


@program(graphs=1)
def type_as_and_promotion():
    def fn(x, n):
        return (
            x.type_as(n),
            x + n,
            torch.result_type(x, n),
            torch.promote_types(x.dtype, n.dtype),
            n / 2,
            n // 2,
            n * 1.5,
        )

    return fn, [(tensor(3), tensor(3, dtype=torch.int64)) for _ in range(3)]


@program(graphs=1, breaks=["data-dependent-value"])
def item_and_tolist():
    def fn(x):
        return x.sum().item(), x.tolist(), float(x[0]), int(x[1])

    return fn, three(3)


@program(graphs=1)
def a_branch_on_a_value():
    def fn(x):
        if x.sum() > 0:
            return x * 2
        return x - 1

    return fn, [(torch.ones(3),), (-torch.ones(3),), (torch.ones(3),)]


@program(graphs=1)
def known_values_are_read():
    def fn(x):
        n = torch.tensor([1, 2, 3])
        return x * n.sum().item() + n.max().tolist() + int(n[0]) + len(n.tolist()) + bool(n.any())

    return fn, three(3)


@program(graphs=1)
def known_values_after_another_tensor_was_written():
    def fn(x):
        y = torch.zeros(3)
        y.add_(x)
        n = torch.tensor([1, 2, 3])
        return y * n.sum().item()

    return fn, three(3)


@program(graphs=1)
def a_known_value_that_was_written():
    def fn(x):
        n = torch.tensor([1, 2, 3])
        n[0] = 7
        return x * n[0].item()

    return fn, three(3)


@program(graphs=1)
def formatting_a_tensor():
    def fn(x):
        return x + 1, f"{x.shape} {x.dtype}", str(x)

    return fn, three(2)


# ------------------------------------------------------------------------------------------ tensors as sequences


@program(graphs=1)
def iteration_and_unpacking():
    def fn(x):
        a, b, c = x
        first, *rest = x
        return (
            a + b - c,
            first,
            sum(rest),
            [row * 2 for row in x],
            max(len(r) for r in x),
            list(enumerate(x))[1][0],
        )

    return fn, three(3, 4)


@program(graphs=1)
def zipped_and_reversed():
    def fn(x, y):
        return (
            torch.stack([a * b for a, b in zip(x, y)]),
            torch.stack(list(reversed(list(x)))),
            dict(zip("abc", x)),
        )

    return fn, [(tensor(3, 4), tensor(3, 4)) for _ in range(3)]


@program(graphs=1, breaks=["data-dependent-condition"])
def membership_in_a_tensor():
    def fn(x):
        return x * 2, 1.0 in x.exp()

    return fn, [(torch.ones(3),), (torch.zeros(3),), (torch.ones(3),)]


@program(graphs=1, later=2)
def identity_in_containers():
    def fn(x, y):
        table = {id(x): 1, id(y): 2}
        return x + table[id(y)], any(t is y for t in (x, y)), x is y, {x: 1}[x]

    return fn, [(tensor(3), tensor(3)) for _ in range(3)]


@program(graphs=1)
def named_results():
    def fn(x):
        values, indices = x.max(dim=1)
        top = x.topk(2)
        q, r = torch.linalg.qr(x)
        return values, indices, top, top.values, torch.sort(x).indices, x.min(0)[1], q @ r, torch.aminmax(x)

    return fn, three(3, 3)


# ---------------------------------------------------------------------------------------------------- indexing


@program(graphs=1)
def indexing_forms():
    def fn(x):
        i = torch.tensor([0, 2])
        return (
            x[0], x[-1], x[..., 1], x[None], x[:, None, 1:], x[1:, ::2], x[[0, 1]], x[i], x[:, i], x[i, 1], x[0, ..., -1],
            x[x.shape[0] - 1], x[slice(0, 2)], x[(0, 1)], x[True], x[[True, False, True]], x[:, [2, 0]], x[range(2)],
        )  # fmt: skip

    return fn, three(3, 4)


@program(graphs=1)
def indexing_by_a_mask():
    def fn(x):
        return x[x > 0].sum() + x.masked_fill(x > 0, 0.0)

    return fn, three(3, 4)


@program(graphs=1)
def assignment_forms():
    def fn(x):
        y = x.clone()
        y[0] = 1
        y[:, 1] = y[:, 2] * 2
        y[..., -1] += 3
        y[[0, 2], 1] = torch.tensor([5.0, 6.0])
        y[y > 1] = 0.5
        y[torch.tensor([True, False, True])] *= 2
        y[1:, None, :2] = 7
        y[-1] = x[0]
        return y

    return fn, three(3, 4)


@program(graphs=1)
def assignment_to_an_argument():
    def fn(x):
        x[0, 1:] = 0
        x[1].mul_(2)
        x.T[2] += 1
        return x.sum()

    return fn, three(3, 4)


@program(graphs=1)
def assignment_through_a_mask_of_values():
    def fn(x, y):
        z = torch.zeros_like(x)
        z[x > 0] = 1.0
        z.masked_fill_(y < 0, -1.0)
        return z

    return fn, [(tensor(3, 4), tensor(3, 4)) for _ in range(3)]


@program(graphs=2, breaks=["data-dependent-value", "data-dependent-value"])
def an_index_that_is_computed():
    def fn(x):
        y = x.clone()
        y[x[:, 0].argmax(), 0] = 9.0
        return y, y[x[0].argmin() % 3]

    return fn, three(3, 4)


@program(graphs=1)
def an_index_out_of_range():
    def fn(x):
        try:
            return x[7]
        except IndexError as e:
            return x * 2, str(e)

    return fn, three(3)


@program(graphs=1)
def an_index_from_a_tensor_of_one_element():
    def fn(x):
        n = torch.tensor(1)
        return x[n], x[n:], [10, 20, 30][n], x[:, n]

    return fn, three(3, 4)


def rows(*numbers: int, requires_grad: bool = False) -> list:
    """Calls with a table and a tensor that holds the number of a row."""
    return [(tensor(4, 3, 5, requires_grad=requires_grad), torch.tensor(n)) for n in numbers]


@program(graphs=1)
def a_row_whose_number_is_in_a_tensor():
    def fn(table, step):
        return table[step] * 2 + table[step + 1][0], table[step].shape

    return fn, rows(2, 0, -2)


@program(graphs=1)
def gradients_of_a_row_whose_number_is_in_a_tensor():
    def fn(table, step):
        return table[step].sin() @ table[0].T

    return fn, rows(2, 0, -1, requires_grad=True)


@program(graphs=1)
def a_row_of_a_table_that_was_written_before():
    def fn(table, step):
        table += 1
        return table[step].exp()

    return fn, rows(2, 0, 3)


@asserts_on_gpu
@program(graphs=1)
def a_row_out_of_range_whose_number_is_in_a_tensor():
    def fn(table, step):
        try:
            return table[step] * 2
        except IndexError as e:
            return str(e)

    return fn, rows(1, 4, -9)


@program(graphs=1, breaks=["data-dependent-value"])
def a_row_that_is_returned():
    def fn(table, step):
        row = table[step]
        return row, row.view(-1), row + 1

    return fn, rows(2, 0, 3)


@program(graphs=1, breaks=["data-dependent-value"])
def a_row_that_is_written():
    def fn(table, step):
        row = table[step]
        row += 1
        return row * 2

    return fn, rows(2, 0, 3)


@program(graphs=2, later=2, breaks=["data-dependent-value"])
def a_row_of_a_table_that_is_written_afterwards():
    def fn(table, step):
        table = table * 1
        row = table[step].view(-1)
        table += 1
        return row * 2

    return fn, rows(2, 0, 3)


@program(graphs=2, later=2, breaks=["data-dependent-condition", "data-dependent-value"])
def a_row_that_lives_on_behind_a_break():
    def fn(table, step):
        row = table[step]
        if table.sum() > 1000:
            return row
        row.add_(1)
        return row + table.sum()

    return fn, rows(2, 0, 3)


@program(
    graphs=1,
    later=1,
    breaks=["data-dependent-value", "unsupported-call", "unsupported-call", "unsupported-call"],
)
def a_row_that_is_asked_where_it_is():
    def fn(table, step):
        row = table[step]
        return row * row.storage_offset(), row._base is table

    return fn, rows(2, 0, 3)


@program(graphs=2, breaks=["data-dependent-value"])
def a_row_that_is_laid_out_as_no_copy_is():
    def fn(table, step):
        row = table.transpose(0, 2)[step]
        return row * 2, row.stride(), row.is_contiguous()

    return fn, rows(2, 0, 3)


@program(graphs=1)
def where_in_every_form():
    def fn(x, y):
        return (
            torch.where(x > 0, x, y),
            torch.where(x > 0, 1.0, x),
            torch.where(x > 0, x, 0),
            x.where(x > 0, y),
            torch.where(x > 0, 1, 2),
        )

    return fn, [(tensor(3), tensor(3)) for _ in range(3)]


@program(graphs=1)
def where_without_values():
    def fn(x):
        rows, columns = torch.where(x > 0)
        return x[rows, columns].sum()

    return fn, three(3, 3)


@program(graphs=1)
def gather_and_scatter():
    def fn(x):
        i = x.argsort(-1)
        y = x.gather(1, i)
        return (
            y,
            torch.zeros_like(x).scatter_(1, i, y),
            torch.zeros(3).index_add_(0, torch.tensor([0, 2, 0]), x[:, 0]),
            x.take_along_dim(i, 1),
        )

    return fn, three(3, 4)


# ------------------------------------------------------------------------------------------------- construction


@program(graphs=1)
def tensors_of_python_data():
    def fn(x):
        return (
            x + torch.tensor([1.0, 2.0, 3.0]), torch.tensor(3), torch.tensor([[1, 2], [3, 4]]), torch.tensor(True),
            torch.tensor([1, 2.5]), torch.tensor((1, 2), dtype=torch.float64), torch.as_tensor([1, 2]), torch.tensor([]),
            torch.asarray([1.0]), torch.scalar_tensor(2.0), torch.tensor(range(3)),
        )  # fmt: skip

    return fn, three(3)


@program(graphs=1)
def tensors_of_sizes():
    def fn(x):
        return x + torch.tensor(x.shape[0]), torch.tensor(x.shape), torch.tensor([len(x), x.dim()])

    return fn, three(3)


@program(graphs=1)
def tensors_of_tensors():
    def fn(x):
        return (
            torch.as_tensor(x) is x,
            torch.as_tensor(x, dtype=torch.float64),
            torch.stack([x, x]),
            torch.asarray(x) + 1,
        )

    return fn, three(3)


@program(graphs=1)
def a_tensor_of_zero_dimensional_tensors():
    def fn(x):
        return torch.tensor([x[0], x[1]]), torch.tensor(x.sum())

    return fn, three(3)


@program(graphs=1)
def ranges_and_fills():
    def fn(x):
        n = x.shape[0]
        return (
            torch.arange(n), torch.arange(1.0, n, 0.5), torch.linspace(0, 1, n), torch.logspace(0, 1, 3), torch.eye(n),
            torch.full((n,), 2.5), torch.full_like(x, 1), torch.zeros(n, dtype=torch.int32), x.new_full((2,), 3),
            x.new_tensor([1, 2]), x.new_ones(2, 2), torch.empty(0), torch.tril(torch.ones(n, n)), torch.tril_indices(n, n),
        )  # fmt: skip

    return fn, three(3)


@program(graphs=1)
def questions_about_tensors():
    def fn(x):
        return (
            x + 1,
            torch.is_tensor(x),
            isinstance(x, torch.Tensor),
            torch.is_floating_point(x),
            torch.numel(x),
            type(x) is torch.Tensor,
            issubclass(type(x), torch.Tensor),
            hasattr(x, "shape"),
            callable(x.sum),
        )

    return fn, three(3)


# --------------------------------------------------------------------------------------------------- operations


@program(graphs=1)
def products_by_einsum():
    def fn(x, y):
        return (
            torch.einsum("ij,jk->ik", x, y),
            torch.einsum("ij->j", x),
            torch.einsum("i...,i...->...", x, x),
            torch.einsum(x, [0, 1], y, [1, 2], [0, 2]),
        )

    return fn, [(tensor(3, 4), tensor(4, 2)) for _ in range(3)]


@program(graphs=1)
def operators_with_numbers_on_both_sides():
    def fn(x):
        return (
            2 - x,
            2 / (x.abs() + 1),
            2**x,
            -x,
            +x,
            abs(x),
            x % 2,
            ~(x > 0),
            (x > 0) & (x < 1),
            (x > 0) ^ True,
            x @ x,
            3 // (x.abs() + 1),
        )

    return fn, three(3)


@program(graphs=1)
def in_place_operators():
    def fn(x):
        y = z = x * 1
        y += 1
        y -= 0.5
        y *= 2
        y /= 3
        y **= 2
        y @= torch.eye(3)
        return y, y is z

    return fn, three(3, 3)


@program(graphs=1)
def comparisons_of_everything():
    def fn(x, y):
        return (
            x == y,
            x != 1,
            x < y,
            (x >= y).all(),
            torch.allclose(torch.ones(2), torch.ones(2)),
            x.eq(y).sum(),
            x == None,  # noqa: E711
        )  # noqa: E711

    return fn, [(tensor(3), tensor(3)) for _ in range(3)]


@program(graphs=1)
def out_arguments():
    def fn(x):
        out = torch.empty(3)
        a = torch.add(x, 1, out=out)
        torch.mul(out, 2, out=out)
        return out, a is out

    return fn, three(3)


@program(graphs=1)
def functions_by_name():
    def fn(x):
        return (
            [getattr(torch, n)(x) for n in ("sin", "cos", "exp")],
            getattr(x, "relu")(),
            getattr(F, "gelu")(x),
        )  # noqa: B009

    return fn, three(3)


@program(graphs=1)
def unbound_methods():
    def fn(x):
        return (
            torch.Tensor.add(x, 1),
            torch.Tensor.view(x, -1),
            list(map(torch.relu, x)),
            torch.Tensor.__mul__(x, 2),
        )

    return fn, three(3, 2)


@program(graphs=1)
def complex_numbers():
    def fn(x):
        z = torch.complex(x, x * 2)
        return z.abs(), z.real, z * z, torch.view_as_real(z), z.conj() * 2

    return fn, three(3)


@program(graphs=1)
def a_spectrum():
    def fn(x):
        return torch.fft.irfft(torch.fft.rfft(x) * 2, n=8), torch.fft.fft(x).abs()

    return fn, three(8)


@program(graphs=1, breaks=["unsupported-call", "unsupported-object"])
def sparse_tensors():
    def fn(x):
        return (x.to_sparse() @ x).relu()

    return fn, three(3, 3)


@program(
    graphs=2,
    breaks=["unsupported-call"],
    unlike={
        "torch 2.11": Unlike(
            "quantize_per_tensor has no shape function, so its result is an argument of a resume function",
            Compilation(1, breaks=("unsupported-call", "unsupported-call")),
        )
    },
)
def quantized_tensors():
    def fn(x):
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize() + 1

    return fn, three(3)


@program(graphs=0, breaks=["unsupported-object"])
def a_sparse_argument():
    def fn(x, y):
        return x @ y

    return fn, [(tensor(3, 3).to_sparse(), tensor(3, 2)) for _ in range(3)]


@program(graphs=1, breaks=["unsupported-call", "unsupported-object"])
def nested_tensors():
    def fn(x, y):
        return torch.nested.to_padded_tensor(torch.nested.nested_tensor([x, y]), 0.0) * 2

    return fn, [(tensor(2, 3), tensor(1, 3)) for _ in range(3)]


@program(graphs=1)
def strides_of_views():
    def fn(x):
        return (
            x.t(),
            x[:, ::2],
            x.expand(2, 3, 4),
            x.unfold(1, 2, 1),
            x.as_strided((2, 2), (1, 2)),
            x.movedim(0, 1),
            x.unflatten(1, (2, 2)),
            x.narrow(1, 0, 2),
        )

    return fn, three(3, 4)


@program(graphs=1)
def channels_last():
    def fn(x):
        y = x.to(memory_format=torch.channels_last)
        return y, y.is_contiguous(), y.is_contiguous(memory_format=torch.channels_last), y + 1, y.contiguous()

    return fn, three(1, 2, 3, 4)


@program(graphs=1)
def unique_and_nonzero():
    def fn(x):
        return torch.unique(x), x.nonzero(), torch.bincount(x), torch.unique_consecutive(x)

    return fn, three(5, dtype=torch.int64)


@program(graphs=1)
def swapping_parts():
    def fn(x):
        x[0], x[1] = x[1].clone(), x[0].clone()
        a, b = x.chunk(2)
        a, b = b, a
        return torch.cat([a, b]), torch.split(x, [1, 3]), x.tensor_split(3), torch.hstack([a, b])

    return fn, three(4, 2)


@program(graphs=1)
def a_deque_of_tensors():
    def fn(x):
        window = collections.deque(maxlen=2)
        for row in x:
            window.append(row)
        return sum(window), list(window)

    return fn, three(4, 2)


@program(graphs=1)
def copies_of_tensors():
    import copy

    def fn(x):
        return copy.copy(x) * 2, copy.deepcopy(x) * 3, x.clone(), copy.deepcopy([x, x])

    return fn, three(3)


@program(graphs=1)
def requires_grad_is_set():
    def fn(x):
        y = x.clone().requires_grad_()
        return y * 2, y.requires_grad

    return fn, three(3)


@program(graphs=1)
def padding_and_pooling():
    def fn(x):
        return (
            F.pad(x, (1, 1), value=2.0),
            F.max_pool1d(x, 2),
            F.interpolate(x, scale_factor=2.0),
            F.one_hot(torch.tensor([0, 2]), 3),
        )

    return fn, three(1, 2, 4)


@program(graphs=1)
def rows_from_the_end():
    def fn(x):
        return reversed(x), reversed(x.sum()), [row * 2 for row in reversed(x)]

    return fn, three(3, 2)


@program(graphs=1)
def tensors_of_lists_of_tensors():
    def fn(x):
        low, high, at = x.min(), x.max(), x.argmax()
        return (
            torch.tensor([low, high]),
            torch.tensor([[low, 1.5], [high, 2]], dtype=torch.float64),
            torch.as_tensor([at, 7]),
            torch.asarray((at, low)),
            torch.tensor([at], dtype=torch.float32),
            torch.tensor([x.any(), x.all()]),
            torch.tensor([[x[:1], 2.5], [x[None, 1:2], low]]),
            x.new_tensor([at, high]),
            x.half().new_tensor([high]),
        )

    return fn, three(5)


@program(graphs=1)
def tensors_of_an_argument_s_list():
    def fn(values, scale):
        return torch.tensor(values) * scale, torch.tensor([*values, scale], dtype=torch.float64)

    return fn, [([tensor(3).sum(), tensor(3).sum()], 2.0) for _ in range(3)]


@program(graphs=2, breaks=["data-dependent-value"])
def tensors_of_lists_whose_conversion_may_raise():
    def fn(x):
        y = x * 2
        return torch.tensor([y.sum().long(), y.numel()], dtype=torch.int8) + 1

    return fn, [(torch.ones(2),)] * 3
