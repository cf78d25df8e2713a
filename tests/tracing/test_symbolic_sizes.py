"""Functions traced once with symbolic sizes compute at other sizes what eager computes; unsupported ones are
refused."""

import pytest
import torch
from torch.nn import functional as F

from smelt.errors import NeedsFixedSize, Unsupported, VerificationError
from smelt.graph.graph_printer import code
from smelt.graph.verify_graph import verify
from smelt.shapes.expr import Sym
from smelt.shapes.substitute import substitute
from smelt.tracing.fake.fake_tensor import fake_numel, fake_shape, fake_stride
from smelt.tracing.symbolic.sym_numbers import Int
from tests.harness.sizes import check_gradients, check_sizes
from tests.harness.traced import trace

SIZES = [(5, 6), (3, 7), (9, 10), (2, 31), (11, 4), (8, 8), (2, 2), (7, 3), (64, 2), (6, 5), (40, 70)]
CLOSE = (1e-4, 1e-4)
WEIGHTS = [
    torch.randn(n, m, generator=torch.Generator().manual_seed(n * m)) / 3
    for n, m in ((8, 24), (8, 8), (8, 32), (32, 8))
]
FILTER = torch.arange(4 * 3 * 3 * 3).view(4, 3, 3, 3) / 100


def matrix(b, s):
    return [torch.randn(b, s)]


def rows(b, s):
    return [torch.randn(b, s, 8)]


def images(b, s):
    return [torch.randn(b, 3, 6, s), FILTER]


def transformer_layer(x, wq, wo, w1, w2):
    b, s, d = x.shape
    h = F.layer_norm(x, (d,))
    q, k, v = (t.view(b, s, 2, d // 2).transpose(1, 2) for t in (h @ wq).chunk(3, -1))
    causal = torch.ones(s, s, dtype=torch.bool).tril()
    a = (q @ k.transpose(-2, -1) / (d // 2) ** 0.5).masked_fill(~causal, -1e9).softmax(-1) @ v
    x = x + a.transpose(1, 2).reshape(b, s, d) @ wo
    return x + F.gelu(F.layer_norm(x, (d,)) @ w1) @ w2


def writes(x):
    y = torch.zeros(x.size(0), x.size(1), 8)
    y[:, :, 2:4] = x[..., None]
    y[:, :2].zero_()
    y[:, -1] += 3
    y.view(-1, 8)[1:].mul_(2)
    y.transpose(0, 1)[1:].add_(1)
    return y


def writes_input(x):
    x.mul_(2)
    x[:, 1:].add_(x[:, :-1] * 1.0)
    return x.sum(), x


def by_halves(x):
    half = x.size(1) // 2
    return x[:, :half] + 1, x[:, half:] * 2


def writes_cache(x, cache):
    cache[:, : x.size(1)] = x
    return cache[:, : x.size(1)].sum(1)


# name: (function, inputs by size, dimensions with symbols)
BOTH = {0: (0, 1)}
PROGRAMS = {
    "pointwise": (lambda x: (x + 1).relu() * x, matrix, BOTH),
    "mean": (lambda x: (x.mean(-1), x.mean((0, 1)), x.var(0), x.amax(1)), rows, BOTH),
    "number": (lambda x: x / x.size(0) + x.size(1) ** -0.5 + x.numel(), matrix, BOTH),
    "view": (lambda x: (x.view(x.size(0) * x.size(1), 8) * 2, x.view(-1, 4) + 1, x.flatten()), rows, BOTH),
    "reshape": (lambda x: x.permute(2, 0, 1).reshape(8, -1) + 1, rows, BOTH),
    "slice": (lambda x: (x[:, :-1] + 1, x[:, 1:], x[:, -1], x[:, ::2] * 2), matrix, BOTH),
    "slice_of_table": (
        lambda x, t: x + t[:, : x.size(1)],
        lambda b, s: [torch.randn(b, s), torch.randn(1, 64)],
        BOTH,
    ),
    "halves": (by_halves, matrix, BOTH),
    "fixed_slice": (lambda x: x[:, :3] + x[:, 2:5], matrix, BOTH),
    "arange": (
        lambda x: (torch.arange(x.size(1))[None] < x.size(0), torch.arange(2, 2 * x.size(0), 3)),
        matrix,
        BOTH,
    ),
    "tril": (lambda x: (x.tril(), torch.full((x.size(1), x.size(1)), -1.0).triu(1)), matrix, BOTH),
    "new": (lambda x: (x.new_zeros(x.size(1), 3), torch.ones(*x.shape), torch.zeros_like(x)), matrix, BOTH),
    "expand": (lambda x: x[:, None].expand(-1, 4, -1).reshape(x.size(0), -1), matrix, BOTH),
    "cat": (
        lambda x, y: torch.cat([x, y, x], 1),
        lambda b, s: [torch.randn(b, s), torch.randn(b, 3)],
        {0: (0, 1), 1: (0,)},
    ),
    "split": (lambda x: [t * 2 for t in (*x.split([3, 5], -1), *x.chunk(4, -1))], rows, BOTH),
    "stack": (lambda x: (torch.stack([x, x], 1), x.repeat(2, 3), F.pad(x, (1, 2))), matrix, BOTH),
    "linear": (lambda x, w: F.linear(x, w.t()), lambda b, s: [torch.randn(b, s, 8), WEIGHTS[0]], BOTH),
    "products": (lambda x: (x @ x.t(), torch.einsum("ij,kj->ik", x, x), torch.outer(x[0], x[:, 0])), matrix, BOTH),
    "norms": (lambda x: (F.layer_norm(x, (8,)), F.rms_norm(x, (8,)), x.softmax(1), x.log_softmax(0)), rows, BOTH),
    "embedding": (
        lambda i, w: F.embedding(i, w),
        lambda b, s: [torch.randint(0, 8, (b, s)), WEIGHTS[0]],
        BOTH,
    ),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda b, s: [torch.randn(b, 2, s, 8) for _ in range(3)],
        dict.fromkeys(range(3), (0, 2)),
    ),
    "transformer": (transformer_layer, lambda b, s: [torch.randn(b, s, 8), *WEIGHTS], BOTH),
    "random": (lambda x: (F.dropout(x, 0.5), torch.rand(x.size(0), 3), torch.randn_like(x)), matrix, BOTH),
    "sort": (lambda x: (x.sort(1), x.cumsum(0), x.flip(1)), matrix, BOTH),
    "indexing": (lambda x: (x[torch.tensor([0, 1])], x.index_select(1, torch.tensor([1]))), matrix, BOTH),
    "convolution": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=1).relu().mean((2, 3)),
        images,
        {0: (0, 3)},
    ),
    "pools": (lambda x, w: (F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)), images, {0: (0, 3)}),
    "writes": (writes, matrix, BOTH),
    "losses": (
        lambda x: (
            F.binary_cross_entropy_with_logits(x, torch.zeros_like(x)),
            F.mse_loss(x, x.tanh()),
            F.cross_entropy(x, torch.zeros(x.size(0), dtype=torch.long)),
            x / x.norm(dim=-1, keepdim=True),
        ),
        matrix,
        BOTH,
    ),
    "channels_last": (
        lambda x, w: F.conv2d(x.to(memory_format=torch.channels_last), w, padding=1).relu(),
        images,
        {0: (0, 3)},
    ),
    "writes_cache": (
        writes_cache,
        lambda b, s: [torch.randn(b, s, 8), torch.zeros(b, 64, 8)],
        {0: (0, 1), 1: (0,)},
    ),
    "writes_input": (writes_input, matrix, BOTH),
    "condition": (lambda x: x * 2 if x.size(0) < x.size(1) else x - 1, matrix, BOTH),
    "condition_of_product": (lambda x: x * 2 if x.size(0) * x.size(1) > 20 else x, matrix, BOTH),
    "even": (lambda x: x * 2 if x.size(1) % 2 == 0 else x, matrix, BOTH),
    "same_sizes": (
        lambda x, y: x + y if x.shape == y.shape else x,
        lambda b, s: [torch.randn(b, s), torch.randn(b, s)],
        {0: (0, 1), 1: (0, 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_trace_for_all_sizes(name):
    torch.manual_seed(0)
    check_sizes(*PROGRAMS[name], SIZES, CLOSE)


NO_GRADIENTS = {"arange", "new", "writes_cache", "writes_input"}  # the last ones write leaves


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in NO_GRADIENTS])
def test_one_joint_graph_for_all_sizes(name):
    torch.manual_seed(0)
    check_gradients(*PROGRAMS[name], SIZES)


def test_results_that_are_views_by_symbolic_sizes():
    def function(x):
        y = x * 2
        return y, y.view(y.size(0) * y.size(1))

    _, traced = trace(function, [matrix(5, 6)[0].requires_grad_()], grad=True, symbolic=BOTH, joint=True)
    value, view = traced.joint.results
    assert (value.kind, value.index, value.steps) == ("value", 0, ())
    at = substitute(view, dict(zip(traced.sizes, (7, 9))))
    assert (at.kind, at.index, [step.args[1] for step in at.steps]) == ("value", 0, [[63]])


AT_SOME_SIZE = {
    "diagonal": lambda x: x.diagonal() + 1,
    "pieces": lambda x: x.split(300, 0),
    "chunks_of_two": lambda x: x.split(2, 1),
    "chunks": lambda x: x.chunk(3, 0),
    "halves": lambda x: [half + 1 for half in x.chunk(2, 0)],
    "split_by_sizes": lambda x: x.split([2, x.size(0) - 2], 0),
    "windows": lambda x: x.unfold(0, 3, 2) + 1,
    "diagonals": lambda x: ((x @ x.t()).diagonal(2) + 1, (x @ x.t()).diagonal(-1)),
    "many_rows_left_out": lambda x: x[5:] + 1,
    "pools": lambda x: F.max_pool2d(x.repeat(1, 100)[None, None], 6),
    "svd": torch.linalg.svdvals,
    "largest": lambda x: x.topk(3, 0)[0],
    "gather": lambda x: x.gather(1, torch.zeros(4, 1, dtype=torch.long)),
    "slice": lambda x: x[:300] + 1,
    "shuffle": lambda x: F.pixel_shuffle(x[None, None].expand(1, 4, -1, -1), 2),
}


@pytest.mark.parametrize("name", AT_SOME_SIZE)
@pytest.mark.parametrize("width", [3, 300])
def test_changes_at_some_size_are_guarded_or_refused(name, width):
    sizes = [(7,), (6,), (2,), (3,), (299,), (301,), (400,), (700,)]
    try:
        check_sizes(AT_SOME_SIZE[name], lambda n: [torch.randn(n, width)], {0: (0,)}, sizes, CLOSE)
    except NeedsFixedSize as error:
        assert error.symbols == {Sym("s0", 2)}


def guards_of(function, make=matrix):
    return check_sizes(function, make, BOTH, SIZES, CLOSE)[1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.t().contiguous().view(-1) + x.reshape(-1),
        lambda x: x.numel() >= 4 and x[None].squeeze(0) * x.size(0) if x.size(0) > 0 else x,
        lambda x: x[:, None].expand(-1, 4, -1).reshape(x.size(0), -1) @ torch.ones(4 * x.size(1), 3),
        lambda x: x[: x.size(0), : x.size(1) + 7] + x,
        lambda x: x.view(x.size(0), -1, 1) if x.size(0) * 48 == 48 * x.size(0) else x,
    ],
)
def test_conditions_that_hold_for_all_sizes_need_no_guard(function):
    assert guards_of(function) == []


def test_guards_are_not_repeated():
    def function(x):
        for _ in range(3):
            x = (x[:, :-2] + 1) if x.size(1) > 4 else x
        return x

    (guard,) = guards_of(lambda x: x[:, :-2] + 1 if x.size(1) > 3 else x)
    assert str(guard[0]).count("<") == 1
    assert len(guards_of(function)) <= 3


SYMBOLIC = {
    "diagonal": lambda x: x.diagonal() + 1,
    "diagonal_with_offset": lambda x: torch.diag(x, 1),
    "diagonal_of_the_shorter": lambda x: F.pad(x, (x.size(1), 1)).diagonal() + 1,
    "as_strided": lambda x: x.as_strided((2, 2), (1, 1)),
    "int_argument": lambda x: torch.linspace(0, 1, x.size(0)),
    "triangle": lambda x: torch.tril_indices(x.size(0), x.size(0), -1),
    "small_kth": lambda x: x.kthvalue(4, 1)[0],
    "largest": lambda x: x.topk(3, 1)[0],
    "reflection": lambda x: F.pad(x[None], (2, 2), mode="reflect"),
    "inplace_unsqueeze": lambda x: (x + 1).unsqueeze_(0) * 1,
    "inplace_transpose": lambda x: (x + 1).t_().unsqueeze_(1).squeeze_() * 2,
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_functions_that_keep_sizes_symbolic(name):
    check_sizes(SYMBOLIC[name], matrix, BOTH, SIZES, CLOSE)


REFUSED = {
    "value": lambda x: x + sum(range(x.size(0))),
    "index_out_of_range": lambda x: x[5],
    "view_by_two": lambda x: x.view(-1, 2),
    "pieces": lambda x: x.unbind(0),
    "broadcast_with_a_number": lambda x: x + torch.ones(6),
    "product_with_a_number": lambda x: x @ torch.ones(6, 2),
    "as_strided_of_a_part": lambda x: x[:, 1:].as_strided((2, 2), (1, 1)),
    "triangle_of_no_square": lambda x: torch.tril_indices(x.size(0), x.size(1)),
    "draws_in_an_order": lambda x: (x * 1).t().bernoulli_(0.5),
    "two_small": lambda x: x[:, 5:] + 1,
    "wrong_shapes": lambda x: x + x.t(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_functions_that_need_fixed_sizes_are_refused(name):
    with pytest.raises(NeedsFixedSize) as error:
        trace(REFUSED[name], matrix(5, 6), symbolic=BOTH)
    assert error.value.symbols <= {Sym("s0", 2), Sym("s1", 2)} and error.value.symbols


def test_data_dependent_sizes_stay_unsupported():
    with pytest.raises(Unsupported):
        trace(lambda x: x.nonzero(), matrix(5, 6), symbolic=BOTH)


def transposed(b, s):
    return [torch.randn(s, b).t()]


def shared(b, s):
    x = torch.randn(b, s)
    return [x, x.view(-1)[:3]]


def test_inputs_that_share_memory_have_one_key():
    fakes = []

    def record(*xs):
        fakes.extend(xs)
        return xs[0] + 1

    for symbolic in ({0: (0, 1), 1: (0,)}, {0: (0, 1)}, {1: (0,)}):
        trace(record, [*shared(5, 6), torch.zeros(3)], symbolic=symbolic)
    for x, y, z in zip(fakes[::3], fakes[1::3], fakes[2::3]):
        assert x.storage_key == y.storage_key != z.storage_key


def test_offsets_of_inputs_in_shared_memory_are_unknown():
    with pytest.raises(NeedsFixedSize, match="inputs share memory"):
        trace(lambda x, y: y.as_strided((2,), (1,)), shared(5, 6), symbolic={0: (0, 1)})


def test_inputs_used_only_for_a_size_stay():
    _, traced = trace(lambda x, y: y.new_ones(x.size(1), 2), matrix(5, 6) + matrix(3, 4), symbolic=BOTH)
    assert set(traced.sizes) == {Sym("s0", 2), Sym("s1", 2)}  # all that are in the input's spec
    size_input = traced.sizes[Sym("s1", 2)]
    assert (size_input.source.dim, size_input.hint) == (1, 6)
    assert tuple(traced.inputs[size_input.input].spec.shape) == (Sym("s0", 2), Sym("s1", 2))
    assert traced.aten_graph.output.spec[0].shape == (Sym("s1", 2), 2)
    assert [tuple(t.shape) for t in traced.example_inputs()[:1]] == [(5, 6)]


def test_other_inputs_have_no_symbols():
    _, traced = trace(lambda x: x.sum(0), matrix(5, 6), symbolic={0: (0,)})
    assert traced.aten_graph.output.spec[0].shape == (6,)
    assert set(traced.sizes) == {Sym("s0", 2)}


def test_the_program_sees_symbolic_numbers():
    seen = []

    def function(x):
        seen.extend([*x.shape, x.size(0), *x.stride(), x.numel(), *x[1:].size(), x.dim()])
        fake = x
        assert list(map(str, map(type, fake_shape(fake)))) == [str(Int), str(Int)]
        assert fake_stride(fake)[1] == 1 and type(fake_numel(fake)) is Int
        return x

    trace(function, matrix(5, 6), symbolic=BOTH)
    assert [type(n) for n in seen] == [Int, Int, Int, Int, int, Int, Int, Int, int]


def test_code_runs_at_all_sizes():
    inputs = matrix(5, 6)
    _, traced = trace(
        lambda x: (x.view(-1)[: x.size(1)] + 1).expand(x.size(0), -1) - x, inputs, symbolic=BOTH
    )
    assert "s1 = " in code(traced.aten_graph)
    scope = {}
    exec(code(traced.aten_graph), scope)
    x = torch.randn(3, 9)
    numbers = [9 if str(n.symbol.size) == "s1" else 3 for n in traced.numbers]
    assert torch.equal(scope["forward"](x, *numbers)[0], (x.view(-1)[:9] + 1).expand(3, -1) - x)


def test_the_verifier_reports_a_symbol_without_an_input():
    _, traced = trace(lambda x: x + 1, matrix(5, 6), symbolic=BOTH)
    verify(traced.aten_graph)
    placeholder = traced.aten_graph.placeholders[0]
    placeholder.spec = None
    with pytest.raises(VerificationError, match="s0 is the size of no placeholder"):
        verify(traced.aten_graph)


def test_fixed_sizes_are_traced_as_before():
    def function(x):
        return writes(x), x[:, :-1].mean(), torch.arange(x.size(1))

    _, fixed = trace(function, matrix(5, 6))
    _, symbolic = trace(function, matrix(5, 6), symbolic=BOTH)
    assert fixed.sizes == {}
    calls = ([n.target for n in t.aten_graph if n.op == "call_function"] for t in (fixed, symbolic))
    assert next(calls) == next(calls)


def test_kernels_are_not_run_at_unrelated_sample_sizes():
    """ATen's batch norm on a CPU writes one mean per channel of the image, whatever the size of its argument."""

    def norm(x, mean, variance):
        return F.batch_norm(x, mean, variance, training=True)

    inputs = [torch.randn(5, 6, 7), torch.zeros(6), torch.ones(6)]
    with pytest.raises(NeedsFixedSize, match="consistent"):
        trace(norm, inputs, symbolic={0: (0, 1, 2)})
    trace(norm, inputs, symbolic={0: (0, 2)})
