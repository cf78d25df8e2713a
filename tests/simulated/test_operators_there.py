"""Operators that a GPU computes in another way than a CPU, and kernels that only a GPU's code has to print."""

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.ops import layouts
from smelt.report import inspect
from tests.simulated import cuda

pytestmark = pytest.mark.simulated_cuda


def check(fn, *args, launches=None):
    """Results of the only graph are eager's, twice; so many launches the second time."""
    compiled = smelt.compile(fn, fullgraph=True)
    for _ in range(2):
        cuda.forget_launches()
        got = compiled(*args)
        found = len(cuda.launches())
        torch.testing.assert_close(got, fn(*args), equal_nan=True)
    assert launches is None or found == launches
    return compiled


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 3)], ids=str)
def test_what_has_no_element_is_no_launch(shape):
    x = torch.randn(shape, device="cuda")
    check(lambda x: (x + 1, x.t() * 2 if x.dim() == 2 else x.exp()), x, launches=0)


def test_what_has_no_element_is_no_part_of_a_launch():
    tensors = [torch.randn(n, device="cuda") for n in (0, 5, 0, 7)]
    check(lambda ts: [t * 2 for t in ts], tensors, launches=1)
    check(lambda ts: [t * 2 for t in ts], tensors[::2], launches=0)


@pytest.mark.parametrize("shape", [(0, 0), (0, 2, 2), (2, 0, 0)], ids=str)
@pytest.mark.parametrize(
    "fn", [torch.linalg.inv, torch.linalg.cholesky, lambda a: a.mT @ torch.linalg.qr(a)[0]]
)
def test_matrices_without_elements_have_gradients(fn, shape):
    """Passes that look for attention and for products see views of nothing."""
    x = torch.randn(shape, dtype=torch.float64, device="cuda", requires_grad=True)
    compiled = smelt.compile(fn, fullgraph=True)
    compiled(x).sum().backward()
    assert compiled(x).shape == fn(x).shape and x.grad.shape == x.shape


def test_a_sum_of_nothing():
    check(lambda x: (x.sum(1) + 1, x.sum(0) + 1), torch.randn(0, 3, device="cuda"))


def test_a_mean_is_the_product_that_it_is_on_a_gpu():
    """By a factor, as `MeanOps` of ATen; a CPU divides."""
    x = torch.arange(300.0).reshape(100, 3) + torch.tensor([0, 0, 1])
    product, quotient = x.sum(1) * torch.tensor(1 / 3), x.sum(1) / 3
    assert not product.equal(quotient)
    mean = smelt.compile(lambda x: x.mean(1), fullgraph=True)
    assert mean(x.cuda()).cpu().equal(product) and mean(x).equal(quotient)
    assert mean(torch.ones(3, 0, device="cuda")).isnan().all()


def test_a_sum_of_what_no_tensor_holds():
    """As masked reductions count elements where there is no mask."""

    def fn(x):
        return x.sum(1) / torch.ones_like(x).sum(1), torch.arange(60, device="cuda").view(3, 20).sum(0)

    check(fn, torch.randn(3, 20, device="cuda"))


@pytest.mark.parametrize("like", [torch.zeros_like, torch.ones_like])
@pytest.mark.parametrize("there", ["cuda", "cpu"])
def test_tensors_like_another_on_a_device_that_is_named(like, there):
    def fn(x):
        return like(x, device=there, dtype=torch.float64).to("cuda") * 2

    check(fn, torch.randn(3, 4, device="cuda").t())
    check(fn, torch.randn(3, 4))


def test_the_logarithm_of_a_softmax_without_dimensions():
    x = torch.randn((), device="cuda", requires_grad=True)
    compiled = smelt.compile(lambda x: x.log_softmax(0), fullgraph=True)
    compiled(x).backward()
    assert compiled(x).item() == 0 and x.grad.item() == 0


@pytest.mark.parametrize("shape", [(), (5, 7), (0, 3)], ids=str)
def test_the_logarithm_of_a_sigmoid_keeps_nothing(shape):
    x, y = (torch.randn(shape, device="cuda").mul_(20).requires_grad_() for _ in range(2))
    with torch.no_grad():
        y.copy_(x)
    result = smelt.compile(F.logsigmoid, fullgraph=True)(x)
    torch.testing.assert_close(result, F.logsigmoid(y))
    tangent = torch.randn_like(result)
    result.backward(tangent)
    F.logsigmoid(y).backward(tangent)
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_backward_of_a_softmax_rounds_the_product(dtype):
    """As native/cuda/SoftMax.cu, which multiplies by an operator of its own. The simulated device does what a CPU does, so
    that is written out."""
    torch.manual_seed(0)
    g, y = torch.randn(64, 33).to(dtype), torch.randn(64, 33).softmax(-1).to(dtype)
    product = (g * y).float()
    want = (product - y.float() * product.sum(-1, keepdim=True)).to(dtype)
    backward = torch.ops.aten._softmax_backward_data
    got = smelt.compile(lambda g, y: backward(g, y, -1, dtype), fullgraph=True)(g.cuda(), y.cuda())
    torch.testing.assert_close(got.cpu(), want, rtol=torch.finfo(dtype).eps, atol=1e-7)
    in_float = (y.float() * (g.float() - (g.float() * y.float()).sum(-1, keepdim=True))).to(dtype)
    assert not torch.equal(want, in_float)


def test_counts_are_where_the_values_are():
    x = torch.tensor([0, 2, 2, 1], device="cuda")
    compiled = check(lambda x: torch.bincount(x, minlength=3) * 2, x)
    assert compiled(x).device == x.device


def test_lengths_that_zeros_do_not_fit():
    x, lengths = torch.randn(5, device="cuda"), torch.tensor([1, 2, 2], device="cuda")

    def fn(x, lengths):
        return torch.segment_reduce(x, "max", lengths=lengths, axis=0, unsafe=False)

    compiled = smelt.compile(fn)
    torch.testing.assert_close(compiled(x, lengths), fn(x, lengths))
    with pytest.raises(RuntimeError, match="lengths"):
        compiled(x, lengths + 1)
    assert inspect.graph_count(compiled) == 1 and not inspect.reasons(compiled)


def test_pivots_are_counted_from_one_where_they_are_tried():
    """Zeros would have a GPU write in front of the tensor, which it does not check; here they raise."""
    LU, pivots = torch.linalg.lu_factor(torch.randn(3, 3, dtype=torch.float64, device="cuda"))
    b = torch.randn(3, 2, dtype=torch.float64, device="cuda")
    given = []

    class Tried(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func in (torch.ops.aten.lu_unpack.default, torch.ops.aten.linalg_lu_solve.default):
                given.append(args[1].min().item())
            return func(*args, **(kwargs or {}))

    metas = [torch.empty_like(t, device="meta") for t in (LU, pivots, b)]
    with Tried():
        layouts.on_metas(torch.ops.aten.lu_unpack.default, metas[:2], {}, torch.device("cuda", 0))
        layouts.on_metas(torch.ops.aten.linalg_lu_solve.default, metas, {}, torch.device("cuda", 0))
    assert given and min(given) == 1
    check(lambda a, p, b: (*torch.lu_unpack(a, p), torch.linalg.lu_solve(a, p, b)), LU, pivots, b)


def test_kernels_of_the_jiterator_are_not_given_what_stands_for_tensors():
    """They are launched on addresses."""
    kernel = torch.cuda.jiterator._create_jit_fn("template <typename T> T twice(T x) { return x + x; }")
    compiled = smelt.compile(lambda x: kernel(x) + 1)
    with pytest.raises((AssertionError, AttributeError)):  # there is none here
        compiled(torch.ones(3, device="cuda"))
    found = [
        *inspect.reasons(compiled),
        *(b for _, r in inspect.records(compiled) for b in r.breaks),
    ]
    assert any("jiterator" in reason.detail for reason in found)
