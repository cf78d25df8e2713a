"""Shape functions against the operators themselves, on a CPU: dtypes, shapes and strides."""

from __future__ import annotations

import warnings
from itertools import islice

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from smelt.graph.operator_effects import effects
from smelt.ops import layouts
from smelt.ops.layouts.meta_layouts import CPU, like, to_meta
from tests.harness.operator_database import op_db
from tests.harness.processes import start

aten = torch.ops.aten


def on_meta(value):
    """`value`, a meta tensor laid out as it if it is a tensor."""
    if not isinstance(value, torch.Tensor):
        return torch.device("meta") if isinstance(value, torch.device) else value
    storage = torch.UntypedStorage(value.untyped_storage().nbytes(), device="meta")
    empty = torch.empty(0, dtype=value.dtype, device="meta")
    return empty.set_(storage, value.storage_offset(), value.size(), value.stride())


def layout(value, blind=False):
    """Shape, strides and dtype of each tensor; `blind`: without the strides of dimensions of size 1."""
    found = [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]
    strides = [tuple(s for n, s in zip(t.shape, t.stride()) if n != 1 or not blind) for t in found]
    return [(t.shape, s, t.dtype) for t, s in zip(found, strides)]


def is_plain(t):
    return t.layout is torch.strided and not (t.is_conj() or t.is_neg() or t.is_quantized)


class Compare(TorchDispatchMode):
    """Asks for the layouts of each operator that runs beneath, and compares."""

    def __init__(self):
        super().__init__()
        self.asked = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        want = func(*args, **kwargs)
        info = effects(func)
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if info.view or info.writes or not all(map(is_plain, tensors)):
            return want
        metas, meta_kwargs = tree_map(on_meta, (args, kwargs))
        for ask in (layouts.of_cpp, layouts.of_row):
            got = ask(func, metas, meta_kwargs)
            if got is not NotImplemented:
                self.asked += 1
                # Where operands are converted, the stride of a dimension of size 1 may be another.
                results = [t for t in tree_leaves(want) if isinstance(t, torch.Tensor)]
                blind = len({t.dtype for t in (*tensors, *results)}) > 1
                assert layout(got, blind) == layout(want, blind), f"{func} of {layout((args, kwargs))}"
                break
        return want


def transposed(value):
    """The same numbers with the last two dimensions exchanged in memory."""
    if isinstance(value, torch.Tensor) and value.dim() >= 2:
        return value.transpose(-1, -2).contiguous().transpose(-1, -2)
    return value


def channels_last(value):
    """The same numbers with the second dimension innermost in memory."""
    if isinstance(value, torch.Tensor) and value.dim() >= 3:
        return value.movedim(1, -1).contiguous().movedim(-1, 1)
    return value


def with_gaps(value):
    if isinstance(value, torch.Tensor) and value.dim():
        return torch.stack([value, value], -1)[..., 0]
    return value


_NAMES = """
    abs add addmm all amax argmax avg_pool2d baddbmm bitwise_and bmm cat clamp clone cos cumsum div eq erf exp
    floor fmod full_like gather gelu gt heaviside hypot index_add isin isnan layer_norm lerp log log_softmax logical_not
    masked_fill max mean min mm mul ne nn.functional.avg_pool2d nn.functional.batch_norm
    nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose2d nn.functional.embedding
    nn.functional.gelu nn.functional.glu nn.functional.hardswish nn.functional.hardtanh nn.functional.interpolate
    nn.functional.layer_norm nn.functional.leaky_relu nn.functional.max_pool2d nn.functional.mse_loss nn.functional.pad
    nn.functional.relu nn.functional.scaled_dot_product_attention nn.functional.silu nn.functional.softmax
    nn.functional.softplus ones_like pow prod remainder roll round scatter scatter_add sigmoid sign softmax sort sub sum
    tanh topk tril where zeros_like
"""


def database(names, without):
    """Those operators of torch's database, by name and variant."""
    names = frozenset(names.split())
    found = [op for op in op_db if op.name in names and op.variant_test_name not in without]
    return {f"{op.name}.{op.variant_test_name}".strip("."): op for op in found}


OPERATORS = database(
    _NAMES, without=("jagged", "area", "constant", "circular", "padding", "padding_inverted")
)


def samples(op, dtype, most, ways, **settings):
    """The first `most` sample inputs of an operator, as they are and laid out in each of `ways`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in list(islice(op.sample_inputs("cpu", dtype, **settings), most)):
            yield sample
            yield from (sample.transform(way) for way in ways)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operator_database(name, dtype):
    op = OPERATORS[name]
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip("no such dtype")
    compare = Compare()
    for changed in samples(op, dtype, 6, (transposed, with_gaps)):
        with compare:
            op(changed.input, *changed.args, **changed.kwargs)
    assert compare.asked


_WITH_GRADIENTS = """
    nn.functional.adaptive_avg_pool2d nn.functional.avg_pool2d nn.functional.batch_norm nn.functional.conv1d
    nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose1d nn.functional.conv_transpose2d
    nn.functional.conv_transpose3d nn.functional.cross_entropy nn.functional.elu nn.functional.embedding
    nn.functional.gelu nn.functional.group_norm nn.functional.hardsigmoid nn.functional.hardswish
    nn.functional.hardtanh nn.functional.interpolate nn.functional.layer_norm nn.functional.leaky_relu
    nn.functional.max_pool2d nn.functional.mish nn.functional.mse_loss nn.functional.pad nn.functional.relu
    nn.functional.scaled_dot_product_attention nn.functional.silu nn.functional.smooth_l1_loss
    nn.functional.softplus nn.functional.threshold index_put index_select log_softmax select sigmoid softmax std_mean
    tanh true_divide var var_mean where __getitem__
"""
GRADIENTS = database(_WITH_GRADIENTS, without=("jagged", "replicate_negative"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(GRADIENTS))
def test_gradients_of_operator_database(name, dtype):
    """What the backward runs, for gradients that are laid out as the output and otherwise."""
    op = GRADIENTS[name]
    if dtype not in op.supported_backward_dtypes("cpu"):
        pytest.skip("no such dtype")
    compare = Compare()
    for changed in samples(op, dtype, 4, (transposed, channels_last), requires_grad=True):
        for lay_out in (torch.randn_like, lambda out: transposed(torch.randn_like(out))):
            with compare:
                out = op(changed.input, *changed.args, **changed.kwargs)
                out = [o for o in tree_leaves(out) if isinstance(o, torch.Tensor) and o.requires_grad]
                if out:
                    torch.autograd.backward(out, [lay_out(o) for o in out])
    assert compare.asked


# ---- random layouts


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
UNARY = [
    torch.exp,
    torch.sqrt,
    torch.neg,
    torch.relu,
    torch.abs,
    torch.sigmoid,
    torch.isnan,
    torch.clone,
    torch.sign,
]
BINARY = [
    torch.add,
    torch.mul,
    torch.sub,
    torch.div,
    torch.maximum,
    torch.lt,
    torch.eq,
    torch.pow,
    torch.remainder,
]


@st.composite
def tensors(draw, shape):
    """A tensor of `shape`: its dimensions permuted in memory, some with gaps, some expanded; some sizes are 1."""
    order = draw(st.permutations(range(len(shape))))
    sizes = [draw(st.sampled_from([n, n, n, 1])) for n in shape]
    gap = [draw(st.sampled_from([1, 1, 1, 2])) for _ in shape]
    dense = torch.ones([sizes[d] * gap[d] for d in order], dtype=draw(st.sampled_from(DTYPES)))
    result = dense.permute([order.index(d) for d in range(len(shape))])
    result = result[tuple(slice(None, None, g) for g in gap)]
    if draw(st.booleans()):
        result = result.expand(shape)
    return result


@st.composite
def operands(draw, count):
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=4))
    values = [draw(tensors(shape[draw(st.integers(0, len(shape))) :])) for _ in range(count)]
    if count == 2 and draw(st.booleans()):
        values[draw(st.integers(0, 1))] = draw(st.sampled_from([2, -1.5, True]))
    return values


def check(function, values):
    compare = Compare()
    try:
        function(*values)
    except (RuntimeError, TypeError):  # not of these dtypes
        return
    with compare:
        function(*values)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(UNARY), operands(1))
def test_unary(function, values):
    check(function, values)


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(BINARY), operands(2))
def test_binary(function, values):
    check(function, values)


@settings(max_examples=300, deadline=None)
@given(operands(2), st.data())
def test_where(values, data):
    shape = next((v.shape for v in values if isinstance(v, torch.Tensor)), ())
    check(torch.where, [data.draw(tensors(list(shape))) != 0, *values])


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([torch.sum, torch.amax, torch.mean, torch.softmax, torch.cumsum]),
    st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4).flatmap(tensors),
    st.integers(-1, 0),
)
def test_along_a_dimension(function, value, dim):
    check(function, [value, dim])


@settings(max_examples=100, deadline=None)
@given(
    n=st.sampled_from([1, 2, 3]),
    batch=st.integers(1, 2),
    channels=st.sampled_from([1, 2, 4]),
    groups=st.sampled_from([1, 2]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
    dilation=st.integers(1, 2),
    last=st.booleans(),
    is_transposed=st.booleans(),
)
def test_convolution(n, batch, channels, groups, kernel, stride, padding, dilation, last, is_transposed):
    x = torch.ones(batch, channels * groups, *[6] * n)
    weight = torch.ones(4 * groups, channels, *[kernel] * n)
    if is_transposed:
        weight = torch.ones(channels * groups, 4, *[kernel] * n)
    if last:
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    options = [[stride] * n, [padding] * n, [dilation] * n, is_transposed, [0] * n, groups]
    compare = Compare()
    with compare:
        out = aten.convolution.default(x, weight, None, *options)
        for wanted in ([True] * 3, [False, True, True], [True, True, False]):
            grad, bias = torch.ones_like(out), [out.shape[1]]
            aten.convolution_backward.default(grad, x, weight, bias, *options, wanted)
    assert compare.asked


# ---- dtypes


def meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    "dtypes", [(torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32)]
)
@pytest.mark.parametrize("wanted", [[True] * 3, [True, False, True], [False, True, False]])
@pytest.mark.parametrize("transposed", [False, True])
def test_layer_norm_backward(dtypes, wanted, transposed):
    x = torch.randn(300, 40, 8).to(dtypes[0])
    x = x.transpose(0, 1) if transposed else x
    weight, bias = torch.randn(8).to(dtypes[1]), torch.randn(8).to(dtypes[1])
    _, mean, rstd = torch.native_layer_norm(x, [8], weight, bias, 1e-5)
    args = torch.randn_like(x), x, [8], mean, rstd, weight, bias, wanted
    operator = aten.native_layer_norm_backward.default
    meta = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in args]
    for got, want in zip(layouts.on_metas(operator, meta, {}, device=CPU), operator(*args), strict=True):
        assert (got is None) is (want is None)
        assert want is None or (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)


def assert_same_layouts(operator, args):
    on_metas = layouts.of_row(operator, [on_meta(a) for a in args], {})
    assert on_metas is not NotImplemented
    for got, want in zip(on_metas, operator(*args), strict=True):
        assert (got is None) is (want is None)
        assert want is None or layout(got) == layout(want)


DTYPES_OF_NORMS = [(torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32)]


@pytest.mark.parametrize("dtypes", DTYPES_OF_NORMS)
@pytest.mark.parametrize("lay_out", [torch.clone, transposed, channels_last])
@pytest.mark.parametrize("shape", [(2, 4, 5, 7), (3, 4, 6), (3, 4), (2, 4, 3, 4, 5), (2, 4, 1, 1)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(dtypes, lay_out, shape, training):
    x = lay_out(torch.randn(shape).to(dtypes[0]))
    weight, bias, mean, var = torch.rand(4, 4).to(dtypes[1])
    settings = training, 0.1, 1e-5
    assert_same_layouts(aten._native_batch_norm_legit.default, (x, weight, bias, mean, var, *settings))
    assert_same_layouts(
        aten._native_batch_norm_legit_functional.default, (x, weight, bias, mean, var, *settings)
    )
    if training:
        assert_same_layouts(aten._native_batch_norm_legit.no_stats, (x, weight, bias, *settings))
    _, *saved = aten.native_batch_norm.default(x, weight, bias, mean, var, *settings)
    for grad in (torch.randn_like(x), torch.randn(shape).to(x.dtype)):
        for wanted in ([True] * 3, [False, True, True], [True, False, False]):
            args = grad, x, weight, mean, var, *saved, training, 1e-5, wanted
            assert_same_layouts(aten.native_batch_norm_backward.default, args)


@pytest.mark.parametrize("dtypes", DTYPES_OF_NORMS)
@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True), (False, False)])
def test_statistics_of_norms(dtypes, given):
    """Their dtype depends on which parameters are given."""
    x = torch.randn(3, 4, 6).to(dtypes[0])
    weight, bias = (torch.rand(4).to(dtypes[1]) if g else None for g in given)
    running = torch.rand(2, 4).to(dtypes[1])
    assert_same_layouts(
        aten._native_batch_norm_legit_no_training.default, (x, weight, bias, *running, 0.1, 1e-5)
    )
    assert_same_layouts(aten._native_batch_norm_legit.default, (x, weight, bias, *running, True, 0.1, 1e-5))
    assert_same_layouts(aten.native_group_norm.default, (x, weight, bias, 3, 4, 6, 2, 1e-5))
    assert_same_layouts(aten.native_layer_norm.default, (x.transpose(1, 2), [4], weight, bias, 1e-5))


@pytest.mark.parametrize("dtypes", DTYPES_OF_NORMS)
@pytest.mark.parametrize(
    "shape, lay_out",
    [
        ((2, 4, 5, 7), torch.clone),
        ((2, 4, 5, 7), channels_last),
        ((3, 4, 6), torch.clone),
        ((3, 4), torch.clone),
    ],
)
def test_group_norm(dtypes, shape, lay_out):
    x = lay_out(torch.randn(shape).to(dtypes[0]))
    weight, bias = torch.rand(2, 4).to(dtypes[1])
    sizes = shape[0], 4, x.numel() // (4 * shape[0]), 2
    assert_same_layouts(aten.native_group_norm.default, (x, weight, bias, *sizes, 1e-5))
    _, *saved = aten.native_group_norm.default(x, weight, bias, *sizes, 1e-5)
    for wanted in ([True] * 3, [True, False, False]):
        args = torch.randn_like(x), x, *saved, weight, *sizes, wanted
        assert_same_layouts(aten.native_group_norm_backward.default, args)


def found_as_on_a_cpu(operator, args):
    got = layouts.on_metas(operator, [on_meta(a) for a in args], {}, device=CPU)
    assert layout(got) == layout(operator(*args))


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("mode", ["replication", "reflection"])
def test_padding_keeps_the_memory_format(mode, dims):
    x = channels_last(torch.randn((2, 4, 3, 4, 5)[: dims + 2]))
    pad, backward = (
        getattr(aten, f"{mode}_pad{dims}d").default,
        getattr(aten, f"{mode}_pad{dims}d_backward").default,
    )
    ends = [1, 1] * dims
    found_as_on_a_cpu(pad, (x, ends))
    for gradient in (pad(x, ends), pad(x, ends).contiguous()):
        found_as_on_a_cpu(backward, (gradient, x, ends))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 0, 8)])
@pytest.mark.parametrize("lay_out", [torch.clone, transposed, lambda x: x.transpose(0, 1)])
def test_the_fast_path_of_an_encoder_layer(lay_out, shape, norm_first):
    x = lay_out(torch.randn(shape))
    norm = torch.rand(8), torch.rand(8)
    attention = torch.rand(24, 8), torch.rand(24), torch.rand(8, 8), torch.rand(8)
    products = torch.rand(6, 8), torch.rand(6), torch.rand(8, 6), torch.rand(8)
    args = x, 8, 2, *attention, True, norm_first, 1e-5, *norm, *norm, *products
    found_as_on_a_cpu(aten._transformer_encoder_layer_fwd.default, args)


@pytest.mark.parametrize("shape", [(2, 4, 3), (2, 4, 3, 5), (2, 4, 3, 5, 6)])
def test_the_gradient_of_a_gated_linear_unit(shape):
    x = channels_last(torch.randn(shape)) if len(shape) > 3 else torch.randn(shape)
    found_as_on_a_cpu(aten.glu_backward.default, (aten.glu.default(x, 1), x, 1))


@pytest.mark.parametrize(
    "func, args",
    [
        (aten.bitwise_and.Tensor, [meta(3), meta(3)]),
        (aten.ceil.default, [meta(2, 3, dtype=torch.bool)]),
        pytest.param(
            aten.bmm.default,
            [meta(2, 3, 4), meta(2, 4, 3, dtype=torch.int64)],
            marks=pytest.mark.skipif(torch.__version__ < "2.12", reason="torch 2.11 multiplies them"),
        ),
        (aten.leaky_relu.default, [meta(4, dtype=torch.int64)]),
    ],
    ids=lambda v: str(v) if isinstance(v, torch._ops.OpOverload) else "",
)
def test_what_has_no_kernel_raises(func, args):
    with pytest.raises(RuntimeError, match="not implemented for|expected scalar type"):
        layouts.on_metas(func, args, {}, device=CPU)


def test_zeros_and_indices_are_no_reason_to_refuse():
    whole = meta(4, dtype=torch.int64)
    assert layouts.on_metas(aten.remainder.Tensor, [whole, whole], {}, device=CPU).shape == (4,)
    assert layouts.on_metas(
        aten.gather.default, [meta(2, 3), 1, meta(2, 5, dtype=torch.int64)], {}, device=CPU
    ).shape == (2, 5)


def test_random_numbers_are_not_drawn():
    before = torch.get_rng_state()
    layouts.on_metas(aten.randn_like.default, [meta(3)], {}, device=CPU)
    layouts.on_metas(aten.bernoulli.p, [meta(3), 0.5], {}, device=CPU)
    assert torch.equal(torch.get_rng_state(), before)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=5), st.randoms())
def test_what_is_like_tensors_with_gaps(sizes, random):
    base = torch.empty([n + gap for n, gap in sizes])
    dims = random.sample(range(len(sizes)), len(sizes))
    x = base[tuple(slice(0, n) for n, _ in sizes)].permute(dims)
    wanted = torch.empty_like(x).stride()
    assert like(to_meta(x)).stride() == wanted


def test_what_is_like_a_tensor_for_which_there_is_no_memory():
    large = torch.empty_strided((1 << 40, 8, 64, 96), (3 * 64 * 768, 96, 3 * 768, 1), device="meta")
    assert like(large).stride() == (64 * 768, 96, 768, 1)


def test_few_elements_are_tried():
    """An operator in no table: asked of the operator itself when it is small."""
    x = torch.ones(4, 6).t()
    assert layouts.of_cpp(aten.addr.default, [on_meta(x)], {}) is NotImplemented
    got = layouts.of_zeros(aten.addr.default, [on_meta(x), meta(6), meta(4)], {})
    assert layout(got) == layout(torch.addr(x, torch.ones(6), torch.ones(4)))
    assert layouts.of_zeros(aten.eye.default, [1 << 20], {"device": torch.device("meta")}) is NotImplemented


# ---- imports

PROGRAM = """
import sys
import torch
import smelt
from torch import nn

class A(nn.Module):
    def forward(self, x):
        return torch.exp(2 * x)

def example(x, mod):
    return torch.log(mod(x))

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(10, 16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 10)

    def forward(self, tokens):
        h = self.embed(tokens)
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv(self.norm(h)).chunk(3, -1))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + a.transpose(1, 2).flatten(2)
        return torch.cat([self.out(h).softmax(-1), torch.zeros_like(h).masked_fill(h > 0, 1.0)], -1)

image = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(8, 8, 1),
    nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), nn.GELU(),
)
before = set(sys.modules)
with torch.no_grad():
    for fn, args in (
        (example, (torch.randn(5, 5, 5), A())),
        (Attention().eval(), (torch.randint(10, (2, 7)),)),
        (image.eval(), (torch.randn(2, 3, 32, 32),)),
    ):
        assert (smelt.compile(fn, fullgraph=True)(*args) - fn(*args)).abs().max() < 1e-5
mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.1), nn.Linear(8, 5))
for loss, target in ((nn.functional.cross_entropy, torch.randint(5, (2,))), (nn.functional.mse_loss, torch.randn(2, 5))):
    smelt.compile(lambda x: loss(mlp(x), target), fullgraph=True)(torch.randn(2, 4)).backward()
for layer in (image.train(), Attention()):
    layer_input = torch.randn(2, 3, 64, 64) if layer is image else torch.randint(10, (2, 7))
    smelt.compile(layer, fullgraph=True)(layer_input).sum().backward()
heavy = ("sympy", "mpmath", "torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes")
print(sorted(m for m in set(sys.modules) - before if m in heavy))
"""


def test_a_first_call_imports_no_compiler_of_torch():
    done = start(PROGRAM)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
