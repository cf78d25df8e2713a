"""Programs with in-place writes: the functional aten graph must compute what eager computes, including aliasing."""

from types import SimpleNamespace

import pytest
import torch

import smelt
from smelt.errors import Unsupported
from smelt.graph.operator_effects import _classify, effects
from tests.harness.traced import check, trace


def t(*shape):
    torch.manual_seed(0)
    return torch.randn(*shape)


def add_inplace(x):
    x.add_(1)
    return x


def add_then_read(x):
    y = x * 2
    y.add_(x, alpha=3)
    return y + 1


def write_row(x):
    x[0] = 5
    return x.sum()


def write_row_of_intermediate(x):
    y = x + 1
    y[1:3] *= 2
    y[0, ::2] = x[1, ::2]
    return y, y[1]


def old_view_sees_write(x):
    y = x.clone()
    row = y[1]
    y.mul_(3)
    return row + 1, row


def base_sees_write_through_views(x):
    y = x.clone()
    y.t()[2].view(2, 2).zero_()
    return y


def output_is_view_of_written_input(x):
    x.mul_(2)
    return x.t(), x[1:]


def view_of_input_written(x):
    v = x.view(-1)[3:7]
    v.fill_(9)
    return v, x * 1


def masked(x):
    y = x.clone()
    y[x > 0] = 0
    y.masked_fill_(x < -1, 7)
    return y


def index_put(x):
    i = torch.tensor([0, 2])
    y = x.clone()
    y[i] += 1
    y.index_put_((i, i), torch.tensor([1.0, 2.0]), accumulate=True)
    return y


def copy_with_cast(x):
    y = torch.zeros(4, 4, dtype=torch.float64)
    y.copy_(x)
    z = torch.zeros(4, 4, dtype=torch.int32)
    z.copy_(x)
    return y, z


def copy_broadcast(x):
    y = torch.empty(3, 4, 4)
    y.copy_(x)
    y[0].copy_(x[0])
    return y


def out_variant(x):
    y = torch.empty(4, 4)
    torch.add(x, 1, out=y)
    torch.mm(x, x.t(), out=y)
    return y


def out_into_slice(x):
    y = torch.zeros(8, 4)
    torch.mul(x, 2, out=y[2:6])
    return y


def split_parts(x):
    y = x.clone()
    a, b = y.split(2, 1)
    a.add_(b)
    c, d, e, f = y.unbind(0)
    d.sub_(c)
    return y, b, e


def transposed_base(x):
    y = x.t().clone(memory_format=torch.preserve_format)
    y.add_(x)
    return y.view(4, 4) if y.is_contiguous() else y


def diagonal(x):
    y = x.clone()
    y.diagonal().zero_()
    return y


def dtype_kept(x):
    n = torch.arange(4)
    n.mul_(2)
    n += 3
    b = x > 0
    b.logical_not_()
    return n, b


def squeeze_unsqueeze(x):
    y = x.clone()
    y.unsqueeze(0)[0, 1].squeeze().neg_()
    return y


def as_strided(x):
    y = x.clone()
    y.as_strided((2, 2), (5, 1)).fill_(1)
    return y


def detached(x):
    y = x.clone()
    y.detach().add_(1)
    return y


def running_statistics(x, mean, var):
    return torch.nn.functional.batch_norm(x, mean, var, training=True)


def random_inplace(x):
    y = torch.empty_like(x)
    y.uniform_(-1, 1)
    y[0].normal_()
    return torch.nn.functional.dropout(x + y, 0.5), y


def input_returned_twice(x):
    y = x.add_(1)
    return y, x, x.view(-1)


def written_twice(x):
    a = x[0]
    a.add_(1)
    x.mul_(2)
    a.add_(1)
    return a * 1


def foreach(x):
    a, b = x.clone(), x.sin()
    torch._foreach_add_([a, b], 1.0)
    torch._foreach_mul_([a, b], [b, b])
    return a, b


def complex_views(x):
    c = torch.view_as_complex(x.clone().view(4, 2, 2))
    c.mul_(1j)
    return torch.view_as_real(c)


PROGRAMS = [v for v in list(globals().values()) if getattr(v, "__module__", "") == __name__ and v is not t]


@pytest.mark.parametrize(
    "program", [p for p in PROGRAMS if p is not running_statistics], ids=lambda p: p.__name__
)
def test_same_as_eager(program):
    traced = check(program, t(4, 4))
    writes = [n for n in traced.aten_graph if n.op == "call_function" and hasattr(n.target, "_schema")]
    writes = [n for n in writes if effects(n.target).writes]
    assert all(str(n.target) == "aten.copy_.default" for n in writes)
    assert len(writes) == len(traced.mutated)


@pytest.mark.parametrize(
    "program", [add_inplace, write_row, output_is_view_of_written_input, input_returned_twice]
)
@pytest.mark.parametrize(
    "layout", [lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[1:]], ids=["t", "step", "offset"]
)
def test_input_layouts(program, layout):
    if program is input_returned_twice and not layout(t(4, 4)).is_contiguous():
        pytest.skip("view(-1) of a strided tensor is an error")
    check(program, layout(t(4, 4)))


def test_batch_norm_statistics():
    check(running_statistics, t(4, 3, 2, 2), torch.zeros(3), torch.ones(3), rtol=1e-6, atol=1e-6)


def test_inputs_that_share_memory():
    base = t(4, 4)
    check(lambda a, b: a + b, base, base[1])
    check(lambda a, b: a.add_(b.sum()) + b, base, base[1])
    check(lambda a, b: (a.mul_(2), b.add_(a))[1], base[:2], base[2:])
    with pytest.raises(Unsupported, match="share memory"):
        trace(lambda a, b: a.add_(b.sum()), [base, base.view(torch.int32)])
    with pytest.raises(RuntimeError, match="refer to a single memory location"):  # as in eager
        trace(lambda a, b: a.add_(b), [base, base[1]])


def test_returned_constant_is_a_copy():
    _, traced = trace(lambda x: torch.tensor([1.0, 2.0]), [t(2)])
    from smelt.graph.graph_interpreter import run

    first = run(traced.aten_graph, [])[0]
    first.add_(1)
    assert run(traced.aten_graph, [])[0].tolist() == [1.0, 2.0]


def shape_changed_inplace(x):
    y = x.clone()
    z = y[0]
    z.unsqueeze_(0)
    z += 1
    y.t_()
    y[0].mul_(2)
    w = (x * 2).unsqueeze_(0).squeeze_(0)
    return y, z, w


def test_shape_changes_in_place():
    check(shape_changed_inplace, t(4, 4))
    check(torch.matmul, t(3), t(3, 2))
    with pytest.raises(Unsupported, match="input tensor"):
        trace(lambda x: x.t_(), [t(2, 3)])


def test_a_gradient_that_is_a_view_of_a_tensor_written_by_the_backward():
    x, y, x1, y1 = (torch.randn(s, s).requires_grad_() for s in (4, 2, 4, 2))

    def fn(x, y):
        return x.as_strided_scatter(y, (2, 2), (1, 2))

    compiled = smelt.compile(fn, fullgraph=True)
    tangent = torch.randn(4, 4)
    with torch.no_grad():
        x1.copy_(x), y1.copy_(y)
    compiled(x, y).backward(tangent)
    fn(x1, y1).backward(tangent)
    assert torch.equal(x.grad, x1.grad) and torch.equal(y.grad, y1.grad)


def test_data_dependent_sizes_without_a_torch_tag():
    """torch 2.11 has no tag for `_unique`."""
    unique = torch.ops.aten._unique.default
    assert _classify(SimpleNamespace(_schema=unique._schema, tags=[])).dynamic_shape
    assert not _classify(SimpleNamespace(_schema=torch.ops.aten.sort.default._schema, tags=[])).dynamic_shape
