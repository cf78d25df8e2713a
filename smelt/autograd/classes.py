"""What it means to run an operator of the forward a second time, in the backward: one class for each, one table.

A class says how much work that is, and whether it may be done: always, only for a memory budget below 1, or never. Each ban
carries its reason, which reports show.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch._ops import OpOverload

from smelt.graph.effects import effects
from smelt.graph.ir import Node, TensorSpec, argument_nodes

aten = torch.ops.aten


@dataclass(frozen=True)
class OperatorClass:
    """`work`: simple operations for each element of the largest tensor that takes part (products: see `work_of`)."""

    name: str
    recompute: Literal["always", "budget", "never"]
    work: int
    reason: str


VIEW = OperatorClass("view", "always", 0, "looks at memory that is kept anyway")
CREATION = OperatorClass("creation", "always", 1, "reads nothing")
POINTWISE = OperatorClass("pointwise", "always", 1, "fuses into the kernel that reads it")
TRANSCENDENTAL = OperatorClass(
    "transcendental", "always", 8, "fuses as well, but a polynomial an element shows: only for fewer bytes"
)
MOVEMENT = OperatorClass("movement", "always", 2, "reads each element once, as reading a saved copy would")
ROWS = OperatorClass(
    "rows", "always", 16, "a small reduction and a pointwise pass, over a row that is in cache"
)
REDUCTION = OperatorClass("reduction", "budget", 1, "reads much to give little: its result is cheap to keep")
STATISTICS = OperatorClass(
    "statistics",
    "budget",
    8,
    "normalizes by statistics that are cheap to keep; its result comes back from them",
)
SCAN = OperatorClass("scan", "budget", 8, "runs one element after the other")
PRODUCT = OperatorClass("product", "budget", 2, "as dear as the backward itself")
SORT = OperatorClass("sort", "budget", 32, "dear, and gives indices")
SCATTER = OperatorClass(
    "scatter", "budget", 4, "adds in an order of its own: a second run may round otherwise"
)
OTHER = OperatorClass("other", "budget", 64, "in no table, so taken for dear")
RANDOM = OperatorClass("random", "never", 16, "a second run would draw other numbers")
EFFECT = OperatorClass("effect", "never", 0, "writes memory")
OPAQUE = OperatorClass(
    "opaque", "never", 0, "a foreign operator: nobody says that a second run gives the same"
)
VALUE_DEPENDENT = OperatorClass(
    "value-dependent", "never", 0, "its result's size, or a number, is read from memory"
)
INPUT = OperatorClass("input", "never", 0, "given by the caller")


# Names of ATen operators (all their overloads), class by class. Those with torch's tag `pointwise` need no entry.
_NAMES: dict[OperatorClass, str] = {
    CREATION: "full zeros ones scalar_tensor arange eye linspace empty empty_strided empty_like zeros_like ones_like "
    "full_like new_empty new_zeros new_ones new_full new_empty_strided empty_permuted tril_indices triu_indices",
    POINTWISE: "_to_copy copy fill tril triu lift_fresh_copy _prelu_kernel hardswish hardswish_backward "
    "hardtanh_backward leaky_relu_backward elu_backward hardsigmoid_backward native_dropout_backward view_copy",
    TRANSCENDENTAL: "acos acosh asin asinh atan atan2 atanh celu cos cosh digamma elu erf erfc erfinv exp exp2 expm1 "
    "float_power gelu gelu_backward hypot i0 igamma igammac lgamma log log10 log1p log2 logaddexp logaddexp2 logit "
    "logit_backward log_sigmoid_forward mish mvlgamma polygamma selu sigmoid sigmoid_backward silu silu_backward sin sinc "
    "sinh softplus tan tanh tanh_backward xlogy glu softplus_backward mish_backward",
    MOVEMENT: "cat stack constant_pad_nd flip roll repeat index index_select gather embedding take take_along_dim "
    "_unsafe_index slice_scatter select_scatter diagonal_scatter as_strided_scatter repeat_interleave pixel_shuffle "
    "pixel_unshuffle channel_shuffle im2col upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d _reshape_copy",
    ROWS: "_softmax _log_softmax _safe_softmax",
    REDUCTION: "sum mean prod amax amin max min any all argmax argmin aminmax var std var_mean std_mean norm "
    "linalg_vector_norm logsumexp nansum nanmean count_nonzero dist trace mse_loss l1_loss smooth_l1_loss huber_loss "
    "nll_loss_forward nll_loss2d_forward binary_cross_entropy _adaptive_avg_pool2d _adaptive_avg_pool3d avg_pool2d "
    "avg_pool3d max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d median nanmedian",
    STATISTICS: "native_layer_norm native_group_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
    "_native_batch_norm_legit_no_training native_batch_norm _batch_norm_with_update _batch_norm_with_update_functional "
    "_batch_norm_no_update _fused_rms_norm",
    SCAN: "cumsum cumprod cummax cummin logcumsumexp",
    PRODUCT: "mm addmm bmm baddbmm addbmm addmv mv dot vdot addr linear matmul convolution _convolution "
    "convolution_overrideable mkldnn_convolution _scaled_dot_product_flash_attention "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math "
    "_scaled_dot_product_fused_attention_overrideable mkldnn_rnn_layer _thnn_fused_lstm_cell _thnn_fused_gru_cell "
    "_cudnn_rnn _cdist_forward _addmm_activation _trilinear einsum",
    SORT: "sort topk kthvalue mode unique_dim _unique2 searchsorted bucketize argsort msort",
    SCATTER: "scatter scatter_add scatter_reduce index_put index_add index_copy index_fill index_reduce masked_scatter put",
}
_BY_NAME = {name: kind for kind, names in _NAMES.items() for name in names.split()}

# Results that are the argument's memory although the schema calls them fresh.
_SAME_MEMORY = frozenset({aten._unsafe_view.default})

_CLASSES: dict[Any, OperatorClass] = {}


def class_of(node: Node) -> OperatorClass:
    """The class of an aten node; depends on its target alone (`pow`: also on the exponent)."""
    if node.op != "call_function":
        return INPUT
    found = _CLASSES.get(node.target)
    if found is None:
        found = _CLASSES[node.target] = _class_of(node.target)
    if found is POINTWISE and node.target in _POWERS and not _cheap_power(node):
        return TRANSCENDENTAL
    return found


def _class_of(op: Any) -> OperatorClass:
    if op is operator.getitem:
        return VIEW
    if not isinstance(op, OpOverload):
        return OPAQUE
    does = effects(op)
    if does.random:
        return RANDOM
    if does.writes:
        return EFFECT
    if does.data_dependent or does.dynamic_shape:
        return VALUE_DEPENDENT
    if op.namespace not in ("aten", "prims"):
        return OPAQUE
    if does.view or op in _SAME_MEMORY:
        return VIEW
    named = _BY_NAME.get(op._schema.name.split("::")[1])
    if named is not None and not (named is REDUCTION and torch.Tag.pointwise in op.tags):  # max.other
        return named
    return POINTWISE if torch.Tag.pointwise in op.tags else OTHER


_POWERS = frozenset(getattr(aten.pow, name) for name in aten.pow.overloads())


def _cheap_power(node: Node) -> bool:
    exponent = node.args[1]
    return isinstance(exponent, (int, float)) and exponent in (0, 0.5, 1, 2, 3, -0.5, -1, -2)


def viewed(node: Node) -> Node | None:
    """What a node looks at: the argument whose memory its result shares. None for fresh results."""
    if node.op != "call_function" or class_of(node) is not VIEW:
        return None
    source: Any = node.args[0]
    if node.target is operator.getitem:
        return viewed(source)
    if node.target not in _SAME_MEMORY:
        does = effects(node.target)
        name = next(r.arg for r in does.results if r.kind == "view")
        source = does.argument(name, node.args, node.kwargs)
    return source if isinstance(source, Node) else None


def work_of(node: Node) -> int:
    """Simple operations that running the node again costs."""
    kind = class_of(node)
    sizes = [_numel(n.spec) for n in argument_nodes(node)]
    if kind is PRODUCT:
        return 2 * _product_work(node, sizes)
    return kind.work * max([_numel(node.spec), *sizes])


def _product_work(node: Node, sizes: list[int]) -> int:
    """Multiplications. Of two matrices (n, k) and (k, m), n*k*m is the root of the product of the three sizes; for a
    batch, a convolution or attention this is their order of magnitude."""
    largest = sorted([_numel(node.spec), *sizes])[-3:]
    return math.isqrt(math.prod(largest))


def _numel(spec: Any) -> int:
    if isinstance(spec, TensorSpec):
        return math.prod(spec.shape)  # type: ignore[arg-type]
    if isinstance(spec, tuple):
        return max(map(_numel, spec), default=0)
    return 1
