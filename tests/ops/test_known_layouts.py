"""Rules for layouts: what they say of symbolic sizes is what torch says of numbers, and they are silent where it depends."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from smelt import _native
from smelt.graph.ir import TensorSpec
from smelt.graph.tensor_specs import empty_like_spec, make_spec, with_sizes
from smelt.ops.layout_rules import _RULES, OF_SEVERAL, known_layout
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


X = dense(S, T, 4)
IMAGES = channels_last(S, 4, T, T)
WHERE = dense(S, T, dtype=torch.int64)
ONCE = [1], [1], [1], False, [0]
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
    if isinstance(value, tuple):
        return [at(v, numbers) for v in value]
    return evaluate(value, numbers) if isinstance(value, Expr) else value


def named(call: Any) -> str:
    func, args, kwargs = call
    shapes = ", ".join(str(getattr(a, "shape", a)) for a in args)
    return f"{func}({shapes}{''.join(f', {k}={v}' for k, v in kwargs.items())})"


@pytest.mark.parametrize("call", CALLS, ids=named)
def test_a_rule_says_what_torch_says(call: Any) -> None:
    func, args, kwargs = call
    layout = known_layout(func, args, kwargs, spec_of)
    assert layout is not None
    shape, stride, offset = layout
    for s, t in itertools.product(SIZES, repeat=2):
        numbers = {S: s, T: t}
        out = on_metas(func, [at(a, numbers) for a in args], kwargs, CPU)
        out = out[0] if func in OF_SEVERAL else out
        assert tuple(evaluate(n, numbers) for n in shape) == out.size()
        assert tuple(evaluate(n, numbers) for n in stride) == out.stride()
        assert evaluate(offset, numbers) == out.storage_offset()


def test_each_rule_is_tried() -> None:
    assert _RULES.keys() <= {func for func, *_ in CALLS}


@pytest.mark.parametrize(
    ("func", "args", "kwargs"),
    [
        (aten.add.Tensor, (X, dense(T, 4)), {}),  # broadcast
        (aten.add.Tensor, (X, turned(S, T, 4)), {}),
        (aten.add.Tensor, (X, dense(S, 4, 4)), {}),  # an error, unless they are equal
        (aten.add.Tensor, (IMAGES, dense(S, 4, T, T)), {}),
        (aten.relu.default, (channels_last(S, 1, T, T),), {}),
        (aten._softmax.default, (IMAGES, 1, False), {}),
        (aten.convolution.default, (turned(S, 4, T, T), dense(6, 4, 3, 3), None, *ONCE, 1), {}),
        (aten.add_.Tensor, (X, X), {}),
        (aten.view.default, (X, (-1, 4)), {}),
        (aten.view.default, (turned(S, T), (S * T,)), {}),
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
        (aten.sum.dim_IntList, (X, None), {}),
        (aten.sum.dim_IntList, (X, (3,)), {}),
        (aten.embedding.default, (dense(9), WHERE), {}),
        (aten.mm.default, (dense(S, T), dense(S, T)), {}),
        (aten.mm.default, (X, X), {}),
        (aten.addmm.default, (dense(T), dense(S, T), dense(T, 4)), {}),
        (aten.addmm.default, (dense(1, 4), dense(S, T), dense(T, 4)), {}),
        (aten.bmm.default, (dense(S, T, 4), dense(T, 4, S)), {}),
        (aten._softmax.default, (turned(S, T), -1, False), {}),
        (aten.clone.default, (turned(S, T),), {}),
        (aten._to_copy.default, (X,), {"memory_format": torch.channels_last}),
        (aten.relu_.default, (X,), {}),
        (aten.cumsum.default, (X, 0), {}),
    ],
)
def test_elsewhere_torch_is_asked(func: Any, args: Any, kwargs: Any) -> None:
    assert known_layout(func, args, kwargs, spec_of) is None


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
