"""Rules for layouts: what they say of symbolic sizes is what torch says of numbers, and they are silent where it depends."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest
import torch

from smelt import _native
from smelt.graph.ir import TensorSpec
from smelt.graph.tensor_specs import empty_like_spec, make_spec, with_sizes
from smelt.ops.layout_rules import _RULES, known_layout
from smelt.ops.layouts import on_metas
from smelt.shapes.expr import Expr, Size, Sym, contiguous_stride, evaluate

aten = torch.ops.aten
S, T = Sym("s0", 2), Sym("s1", 2)
SIZES = (2, 3, 6, 7, 12, 64)
META = torch.device("meta")
CPU = torch.device("cpu")


def dense(*shape: Size, dtype: torch.dtype = torch.float32) -> TensorSpec:
    return make_spec(shape, contiguous_stride(shape), dtype, CPU)


def turned(*shape: Size) -> TensorSpec:
    """Of two dimensions more, the last two of which are exchanged in memory."""
    spec = dense(*shape[:-2], shape[-1], shape[-2])
    return make_spec(shape, (*spec.stride[:-2], spec.stride[-1], spec.stride[-2]), spec.dtype, CPU)


def channels_last(n: Size, c: Size, h: Size, w: Size) -> TensorSpec:
    spec = dense(n, h, w, c)
    images, *pixels, channel = spec.stride
    return make_spec((n, c, h, w), (images, channel, *pixels), spec.dtype, CPU)


def part(*shape: Size) -> TensorSpec:
    """With gaps: of a tensor that is longer in its last dimension, and twice as long in its first but one."""
    spec = dense(shape[0], 2 * shape[1], *shape[2:-1], shape[-1] + 3)
    return make_spec(shape, spec.stride, spec.dtype, CPU)


X = dense(S, T, 4)
IMAGES = channels_last(S, 4, T, T)
WHERE = dense(S, T, dtype=torch.int64)
ONCE = [1], [1], [1], False, [0]
SAME, MASK = ([1, 1], [1, 1], [1, 1], False, [0, 0]), [True, True, True]
LIKE = [
    getattr(aten, name).default
    for name in ("empty_like", "zeros_like", "ones_like", "rand_like", "randn_like", "clone", "_to_copy")
]
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.add.Tensor, (X, X), {}),
    (aten.add.Tensor, (X, 2), {"alpha": 3}),
    (aten.mul.Tensor, (X, dense()), {}),
    (aten.gt.Scalar, (X, 1), {}),
    (aten.where.self, (dense(S, T, dtype=torch.bool), dense(S, T), dense(S, T)), {}),
    (aten.gelu.default, (X,), {"approximate": "tanh"}),
    (aten.tanh_backward.default, (X, X), {}),
    (aten.view.default, (X, (S * T, 4)), {}),
    (aten.view.default, (X, (S, T * 2, 2)), {}),
    (aten.view.default, (X, (-1, 4)), {}),
    (aten.view.default, (turned(S, T, 4), (S, T, 2, 2)), {}),
    (aten.view.default, (turned(S, 1, T, 4), (S, 1, 1, -1, 4)), {}),
    (aten.add.Tensor, (X, dense(T, 4)), {}),
    (aten.add.Tensor, (X, turned(S, T, 4)), {}),
    (aten.add.Tensor, (IMAGES, dense(S, 4, T, T)), {}),
    (aten.mul.Tensor, (IMAGES, channels_last(1, 4, 1, 1)), {}),
    (aten.relu.default, (channels_last(S, 1, T, T),), {}),
    (aten.gelu.default, (channels_last(1, 4, S // 2 + 1, T),), {}),
    (aten.where.ScalarSelf, (dense(S, T, dtype=torch.bool), 0, dense(T)), {}),
    (aten.floor_divide.default, (WHERE, 2), {}),
    (aten.complex.default, (turned(S, T), dense(S, T)), {}),
    (aten.masked_fill.Scalar, (turned(S, T), dense(T, dtype=torch.bool), 1), {}),
    (aten.masked_fill.Tensor, (X, dense(S, T, 4, dtype=torch.bool), dense()), {}),
    (aten.copy.default, (turned(S, T), dense(T)), {}),
    (aten.slice_scatter.default, (turned(S, T, 4), dense(S, T, 2), 2, 1, 3), {}),
    (aten.select_scatter.default, (turned(S, T, 4), dense(S, T), 2, 1), {}),
    *(
        (f.default, (turned(S, T),), {})
        for f in (aten.zero, aten.normal_functional, aten.uniform, aten.exponential)
    ),
    (aten.index_fill.int_Scalar, (turned(S, T, 4), 2, dense(1, dtype=torch.int64), 1.0), {}),
    (aten.index_fill.int_Tensor, (turned(S, T, 4), 2, dense(1, dtype=torch.int64), dense()), {}),
    (aten.index_copy.default, (turned(S, T, 4), 2, dense(1, dtype=torch.int64), dense(S, T, 1)), {}),
    *(
        (op, (x,), {})
        for op in LIKE
        for x in (X, turned(S, T, 4), part(S, T, 4), IMAGES, channels_last(S, 1, T, 2))
    ),
    (aten.zeros_like.default, (IMAGES,), {"memory_format": torch.contiguous_format}),
    (aten.ones_like.default, (dense(S, 4, T, T),), {"memory_format": torch.channels_last}),
    (aten.full_like.default, (part(S, T, 4), 2.0), {}),
    (aten.fill.Scalar, (turned(S, T), 2.0), {}),
    (aten.fill.Tensor, (turned(S, T), dense()), {}),
    (aten.bernoulli.p, (dense(S, T), 0.5), {}),
    (aten.flip.default, (turned(S, T, 4), (0, 2)), {}),
    *(
        (op, ((S, 1, T),), {"device": META})
        for op in (aten.zeros.default, aten.ones.default, aten.empty.memory_format)
    ),
    (aten.full.default, ((S * T, 0), 2.0), {"device": META}),
    (aten.rand.default, ((S, T),), {"device": META}),
    (aten.randn.default, ((S, T),), {"device": META}),
    (aten.randint.default, (9, (S, T)), {"device": META}),
    (aten.randint.low, (2, 9, (S, T)), {"device": META}),
    (aten.arange.default, (S,), {"device": META}),
    (aten.arange.start, (2, S + T), {"device": META}),
    (aten.arange.start_step, (0, S + T, 2), {"device": META}),
    (aten.new_zeros.default, (X, (T, S)), {}),
    (aten.new_ones.default, (X, (T, S)), {}),
    (aten.new_empty.default, (X, (T, S)), {}),
    (aten.new_full.default, (X, (T, S), 1.0), {}),
    (aten.empty_strided.default, ((S, T), (1, S)), {"device": META}),
    (aten.new_empty_strided.default, (X, (S, T), (1, S)), {}),
    (aten.slice_backward.default, (X, (S + 2, T, 4), 0, 2, 1 << 62, 1), {}),
    (aten.select_backward.default, (X, (S, 3, T, 4), 1, 0), {}),
    (aten.unfold_backward.default, (dense(S, T, 2), (S, 2 * T), 1, 2, 2), {}),
    (aten.squeeze.dim, (turned(S, 1, 1, T), 1), {}),
    (aten.squeeze.dim, (turned(S, T), 1), {}),
    (aten.squeeze.dims, (turned(S, 1, 1, T), (1, -2, 3)), {}),
    (aten.unbind.int, (turned(S, 3, T), -2), {}),
    (aten.view_as_real.default, (dense(S, T, dtype=torch.complex64),), {}),
    (aten.view_as_complex.default, (dense(S, T, 2),), {}),
    (aten.alias.default, (turned(S, T),), {}),
    *((op, (turned(S, T, 4),), {}) for op in (aten.tril.default, aten.triu.default)),
    (aten.roll.default, (turned(S, T, 4), (1, 2), (0, 2)), {}),
    (aten.cumsum.default, (turned(S, T), 0), {}),
    (aten.cummax.default, (turned(S, T), 0), {}),
    (aten.mean.dim, (IMAGES, (2, 3), True), {}),
    (aten.sum.default, (X,), {}),
    (aten.max.dim, (turned(S, T), 0), {}),
    (aten.argmax.default, (turned(S, T), -1, True), {}),
    (aten.var_mean.correction, (X, (1,)), {"correction": 1}),
    (aten.logsumexp.default, (turned(S, T), (0,)), {}),
    (aten._softmax.default, (turned(S, T), -1, False), {}),
    (aten._safe_softmax.default, (X, -1), {}),
    (aten._softmax_backward_data.default, (X, turned(S, T, 4), 1, torch.float32), {}),
    (aten._log_softmax_backward_data.default, (turned(S, T), turned(S, T), 1, torch.float32), {}),
    (aten.scatter.src, (turned(S, T), 1, WHERE, dense(S, T)), {}),
    (aten.scatter.value, (turned(S, T), 1, WHERE, 2.0), {}),
    (aten.scatter_add.default, (turned(S, T), 1, WHERE, dense(S, T)), {}),
    (aten.gather.default, (turned(S, T), 1, WHERE), {}),
    (aten.index_select.default, (turned(S, 3, T), 1, dense(T, dtype=torch.int64)), {}),
    (aten.index_add.default, (turned(S, T), 0, dense(S, dtype=torch.int64), dense(S, T)), {}),
    (aten.index.Tensor, (X, [None, dense(S, dtype=torch.int64)]), {}),
    (
        aten.index.Tensor,
        (turned(4, T, S), [dense(T, 1, dtype=torch.int64), None, dense(S, dtype=torch.int64)]),
        {},
    ),
    (aten.index_put.default, (turned(S, T), [dense(T, dtype=torch.int64)], dense(T, T)), {}),
    (aten.sort.stable, (turned(S, T, 4),), {"stable": True, "dim": 1}),
    (
        aten.convolution_backward.default,
        (channels_last(S, 8, T, T), IMAGES, dense(8, 4, 3, 3), [8], *SAME, 1, MASK),
        {},
    ),
    (
        aten.convolution_backward.default,
        (dense(S, 8, T, T), dense(S, 4, T, T), dense(8, 4, 3, 3), [8], *SAME, 1, MASK),
        {},
    ),
    (aten.native_layer_norm.default, (turned(S, T, 4), (4,), dense(4), None, 1e-5), {}),
    (aten.native_group_norm.default, (dense(S, 4, T), None, None, S, 4, T, 2, 1e-5), {}),
    (aten._native_batch_norm_legit.default, (IMAGES, *[dense(4)] * 4, True, 0.1, 1e-5), {}),
    (aten._native_batch_norm_legit_functional.default, (IMAGES, *[dense(4)] * 4, True, 0.1, 1e-5), {}),
    (aten.native_batch_norm_backward.default, (IMAGES, IMAGES, *[dense(4)] * 5, True, 1e-5, MASK), {}),
    (
        aten.native_layer_norm_backward.default,
        (X, X, (4,), dense(S, T, 1), dense(S, T, 1), dense(4), dense(4), MASK),
        {},
    ),
    (aten.cat.default, ([X, X, dense(0)], 1), {}),
    (aten.cat.default, ([IMAGES, channels_last(S, 3, T, T)], 1), {}),
    (aten.cat.default, ([IMAGES, dense(S, 3, T, T)], -3), {}),
    (aten.stack.default, ([turned(S, T)] * 3, -1), {}),
    (aten.constant_pad_nd.default, (IMAGES, (1, 2, 3, 0)), {}),
    (aten.constant_pad_nd.default, (X, (0, 0, S, 2)), {}),
    (aten.replication_pad2d.default, (IMAGES, (1, -1, -2, 0)), {}),
    (aten.replication_pad3d.default, (dense(2, S, T, 9, 8), (1, -1, -2, 0, 3, 4)), {}),
    (aten.repeat.default, (turned(S, T), (2, 1, T)), {}),
    (aten.max_pool2d_with_indices.default, (IMAGES, (1, 1), (1, 1)), {}),
    (aten.upsample_nearest2d.default, (IMAGES, (9, 9)), {}),
    (aten._unsafe_view.default, (X, (4 * S, T)), {}),
    (aten.permute.default, (X, (2, 0, -2)), {}),
    (aten.permute.default, (turned(S, T, 4), (2, 0, 1)), {}),
    (aten.transpose.int, (X, -1, 0), {}),
    (aten.t.default, (dense(S, T),), {}),
    (aten.expand.default, (dense(1, T), (S, S, T)), {}),
    (aten.expand.default, (turned(S, 1), (T, S, 5)), {}),
    (aten.expand.default, (turned(S, T), (1, -1, T)), {}),
    (aten.expand.default, (turned(S, T), (3, 1, 1, -1, -1)), {}),
    (aten.unsqueeze.default, (X, 0), {}),
    (aten.unsqueeze.default, (X, 1), {}),
    (aten.unsqueeze.default, (X, -1), {}),
    (aten.unsqueeze.default, (turned(S, T), -2), {}),
    (aten.detach.default, (turned(S, T),), {}),
    (aten.sum.dim_IntList, (X, (1,)), {}),
    (aten.sum.dim_IntList, (turned(S, T, 4), (0, -1), True), {"dtype": torch.float64}),
    (aten.embedding.default, (dense(9, 4), WHERE), {}),
    (aten.embedding.default, (dense(9, T), WHERE, 1), {}),
    (aten.mm.default, (dense(S, T), turned(T, 4)), {}),
    (aten.mm.default, (turned(S, T), dense(T, S)), {}),
    (aten.addmm.default, (dense(4), dense(S, T), dense(T, 4)), {"beta": 2}),
    (aten.addmm.default, (dense(S, 4), turned(S, T), dense(T, 4)), {}),
    (aten.bmm.default, (turned(S, T, 4), dense(S, 4, T)), {}),
    (aten._softmax.default, (X, -1, False), {}),
    (aten._log_softmax.default, (X, 1, False), {}),
    (aten.clone.default, (X,), {}),
    (aten.clone.default, (turned(S, T),), {"memory_format": torch.contiguous_format}),
    (aten._to_copy.default, (X,), {"dtype": torch.float64}),
    (aten.add.Tensor, (IMAGES, IMAGES), {}),
    (aten.mul.Tensor, (IMAGES, dense()), {}),
    (aten.relu.default, (IMAGES,), {}),
    (aten.clone.default, (IMAGES,), {}),
    (aten._to_copy.default, (IMAGES,), {"dtype": torch.float64}),
    (aten._native_batch_norm_legit_no_training.default, (dense(S, 4, T, T), *[dense(4)] * 4, 0.1, 1e-5), {}),
    (aten._native_batch_norm_legit_no_training.default, (IMAGES, *[dense(4)] * 4, 0.1, 1e-5), {}),
    (aten.convolution.default, (dense(S, 4, T + 2, T), dense(6, 4, 3, 3), None, *ONCE, 1), {}),
    (aten.convolution.default, (IMAGES, dense(6, 2, 1, 1), dense(6), [2], [0], [1], False, [0], 2), {}),
    (
        aten.convolution.default,
        (IMAGES, channels_last(4, 2, 3, 3), None, [2, 1], [1, 0], [1, 1], True, [1, 0], 1),
        {},
    ),
    (
        aten.convolution.default,
        (dense(S, 4, 2 * T), dense(8, 1, 2), dense(8), [2], [1], [2], False, [0], 4),
        {},
    ),
    (aten.convolution.default, (dense(2, 4, T, 4, S), dense(5, 4, 2, 1, 2), None, *ONCE, 1), {}),
]


def spec_of(value: Any) -> TensorSpec | None:
    return value if isinstance(value, TensorSpec) else None


def at(value: Any, numbers: dict[Sym, int]) -> Any:
    if isinstance(value, TensorSpec):
        return empty_like_spec(with_sizes(value, lambda size: evaluate(size, numbers)), META)
    if isinstance(value, (list, tuple)):
        return [at(v, numbers) for v in value]
    return evaluate(value, numbers) if isinstance(value, Expr) else value


def named(call: Any) -> str:
    func, args, kwargs = call
    shapes = ", ".join(str(getattr(a, "shape", a)) for a in args)
    return f"{func}({shapes}{''.join(f', {k}={v}' for k, v in kwargs.items())})"


@pytest.mark.parametrize("call", CALLS, ids=named)
def test_a_rule_says_what_torch_says(call: Any) -> None:
    func, args, kwargs = call
    layouts = known_layout(func, args, kwargs, spec_of)
    assert layouts is not None
    for s, t in itertools.product(SIZES, repeat=2):
        agrees(layouts, func, args, kwargs, {S: s, T: t})


def agrees(layouts: Any, func: Any, args: Any, kwargs: Any, numbers: dict[Sym, int]) -> None:
    out = on_metas(func, at(args, numbers), kwargs, CPU)
    several = isinstance(layouts, list)
    assert len(layouts) == len(out) if several else isinstance(out, torch.Tensor)
    for layout, result in zip(layouts if several else [layouts], out if several else [out]):
        if layout is None or result is None:
            continue
        shape, stride, offset = layout
        assert tuple(evaluate(n, numbers) for n in shape) == result.size()
        assert tuple(evaluate(n, numbers) for n in stride) == result.stride()
        assert evaluate(offset, numbers) == result.storage_offset()


# ---- operands with random sizes, in any layout

LIKE_OPERANDS = [
    aten.relu.default,
    aten.clone.default,
    aten.empty_like.default,
    aten._to_copy.default,
    aten.exp.default,
]


def laid_out(draw: Random, shape: tuple[Size, ...]) -> TensorSpec:
    """Dimensions in any order in memory, perhaps with gaps; some expanded."""
    order = draw.sample(range(len(shape)), len(shape))
    step: Size = draw.choice((1, 1, 1, 2))
    stride: list[Size] = [0] * len(shape)
    for d in order:
        stride[d] = step
        step = step * shape[d] * draw.choice((1, 1, 1, 1, 3))
    if draw.random() < 0.2:
        stride[draw.randrange(len(shape))] = 0
    if draw.random() < 0.3:
        stride = [draw.choice((1, 7, S)) if n == 1 else step for n, step in zip(shape, stride)]
    return make_spec(shape, tuple(stride), torch.float32, CPU)


@pytest.mark.parametrize("seed", range(100))
def test_operands_in_any_layout(seed: int) -> None:
    draw = Random(seed)
    shape = tuple(
        draw.choice((S, T, S * T, T // 2, 1, 1, 2, 3)) for _ in range(draw.choice((1, 2, 3, 4, 4, 5)))
    )
    smaller = shape[draw.randrange(len(shape)) if draw.random() < 0.3 else 0 :]
    other = tuple(1 if draw.random() < 0.2 else n for n in smaller)
    x, y = laid_out(draw, shape), laid_out(draw, other)
    dims = draw.sample(range(len(shape)), draw.randrange(1, len(shape) + 1))
    index = make_spec((T,), (1,), torch.int64, CPU)
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        *((op, (x,), {}) for op in LIKE_OPERANDS),
        (aten.add.Tensor, (x, y), {}),
        (aten.mul.Tensor, (y, x), {}),
        (aten.mul.Tensor, (x, 2), {}),
        (aten.mean.dim, (x, dims, draw.random() < 0.5), {}),
        (aten.squeeze.dims, (x, dims), {}),
        (aten.cat.default, ([x, x], dims[0]), {}),
        (aten.stack.default, ([x, x], dims[0]), {}),
        (aten.sort.stable, (x,), {"stable": True, "dim": dims[0]}),
        (aten.index.Tensor, (x, [None] * dims[0] + [index]), {}),
        (aten.view.default, (x, (*shape[: dims[0]], 1, *shape[dims[0] :])), {}),
        (aten.tril.default, (x,), {}) if len(shape) > 1 else (aten.t.default, (x,), {}),
    ]
    for func, args, kwargs in calls:
        layouts = known_layout(func, args, kwargs, spec_of)
        found = layouts if isinstance(layouts, list) else [layouts]
        if any(layout is None or layout[1] is None for layout in found):
            continue  # torch is asked
        for s, t in ((2, 5), (7, 4), (6, 6), (3, 64)):
            agrees(layouts, func, args, kwargs, {S: s, T: t})


def test_each_rule_is_tried() -> None:
    assert _RULES.keys() <= {func for func, *_ in CALLS}


@pytest.mark.parametrize(
    ("func", "args", "kwargs"),
    [
        (aten.add.Tensor, (X, dense(S, 4, 4)), {}),  # an error, unless they are equal
        (aten.gather.default, (X, 1, dense(T, T, 4, dtype=torch.int64)), {}),  # an error, unless T <= S
        (aten.index_put.default, (X, [dense(S, dtype=torch.int64)], dense(T, T, 4)), {}),
        (aten.cat.default, ([X, dense(S, S, 4)], 0), {}),
        (aten.add_.Tensor, (X, X), {}),
        (aten.view.default, (X, (-1, 3)), {}),
        (aten.view.default, (X, (S, T)), {}),
        (aten.view.default, (X, (S * T, S)), {}),
        (aten.permute.default, (X, (0, 0, 1)), {}),
        (aten.permute.default, (X, (0, 1)), {}),
        (aten.permute.default, (X, (0, 1, 3)), {}),
        (aten.transpose.int, (X, 0, 3), {}),
        (aten.t.default, (X,), {}),
        (aten.expand.default, (dense(S, 4), (T, 4)), {}),
        (aten.expand.default, (dense(S, 4), (-1, S, 4)), {}),
        (aten.expand.default, (dense(S, 4), (4,)), {}),
        (aten.unsqueeze.default, (X, 4), {}),
        (aten.unsqueeze.default, (X, -5), {}),
        (aten.sum.dim_IntList, (X, (3,)), {}),
        (aten.embedding.default, (dense(9), WHERE), {}),
        (aten.mm.default, (dense(S, T), dense(S, T)), {}),
        (aten.mm.default, (X, X), {}),
        (aten.addmm.default, (dense(T), dense(S, T), dense(T, 4)), {}),
        (aten.addmm.default, (dense(1, 4), dense(S, T), dense(T, 4)), {}),
        (aten.bmm.default, (dense(S, T, 4), dense(T, 4, S)), {}),
        (aten.relu_.default, (X,), {}),
        (aten.baddbmm.default, (X, X, X), {}),
    ],
)
def test_elsewhere_torch_is_asked(func: Any, args: Any, kwargs: Any) -> None:
    assert known_layout(func, args, kwargs, spec_of) is None


def test_strides_of_what_may_be_cropped_to_nothing_are_tried() -> None:
    layout = known_layout(aten.constant_pad_nd.default, (X, (0, 0, -S, 2)), {}, spec_of)
    assert layout == ((S, T - S + 2, 4), None, 0)


def test_tensors_made_like_others() -> None:
    source = torch.empty(6, 4, device="meta")
    turned_source = source.t()
    for like in (source, turned_source, torch.empty(0, device="meta"), source[1:, 2]):
        made, looking = _native.fresh_like(like), _native.view_like(like, source)
        for tensor in (made, looking):
            assert (tensor.shape, tensor.stride()) == (like.shape, like.stride())
            assert (tensor.dtype, tensor.device) == (like.dtype, like.device)
            assert tensor.storage_offset() == like.storage_offset()
            assert tensor._base is None and not tensor.requires_grad and tensor._version == 0
        assert made.untyped_storage()._cdata != like.untyped_storage()._cdata
        assert made.untyped_storage().nbytes() == like.untyped_storage().nbytes()
        assert looking.untyped_storage()._cdata == source.untyped_storage()._cdata
        made.add_(1)
        assert like._version == 0
    with torch.inference_mode():
        like = torch.empty(3, device="meta")
    assert _native.fresh_like(like).is_inference() and not _native.fresh_like(source).is_inference()
    for wrong in (torch.ones(2), 3, None):
        with pytest.raises(TypeError):
            _native.fresh_like(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            _native.view_like(source, wrong)  # type: ignore[arg-type]
