"""The values saved between forward and backward, program by program; results and gradients equal eager's."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from smelt.autograd.save_costs import Memory
from smelt.config import Config
from tests.harness.joints import check

pytestmark = pytest.mark.timeout(60)


def leaf(*shape, **options):
    return torch.randn(*shape, **options).requires_grad_()


def kinds(parts):
    return [(s.kind, s.name) for s in parts.saved]


def test_two_cosines_save_one_tensor():
    _, parts = check(lambda x: x.cos().cos(), leaf(8))
    assert kinds(parts) == [("primal", "primals_1"), ("alias", "primals_1_alias")]
    assert parts.nbytes == 0


def test_of_values_of_equal_size_the_nearest_to_its_use_is_saved():
    joint, parts = check(lambda x, w: (x @ w).exp().sum(), leaf(4, 4), leaf(4, 4))
    assert ("temporary", "exp") in kinds(parts)
    assert parts.nbytes == Memory(joint).eager_bytes() == 64


def test_activations_between_products_are_recomputed():
    def mlp(x, a, b):
        return (F.gelu(x @ a) @ b).sum()

    joint, parts = check(mlp, leaf(4, 8), leaf(8, 16), leaf(16, 8))
    assert parts.nbytes == 4 * 16 * 4  # the first product; eager keeps its gelu as well
    assert Memory(joint).eager_bytes() == 2 * parts.nbytes


def test_views_are_recomputed():
    def split(x, w):
        q, k, v = (x @ w).chunk(3, dim=-1)
        return (q.t() @ k).sin() @ v.t()

    _, parts = check(split, leaf(4, 6), leaf(6, 12))
    assert [s.spec.shape for s in parts.saved if s.kind == "temporary"] == [(4, 12), (4, 4)]


def test_dropout_runs_once():
    check(lambda x, w: F.dropout(x @ w, 0.4).relu() @ w, leaf(8, 8), leaf(8, 8))


def test_a_mask_is_saved_instead_of_its_operand():
    _, parts = check(lambda x, w: (x @ w).clamp(min=0.0).sum(), leaf(4, 4), leaf(4, 4))
    assert [(s.spec.dtype, s.nbytes) for s in parts.saved if s.kind == "temporary"] == [(torch.bool, 16)]


def test_an_input_that_eager_does_not_save_is_not_saved():
    x, y = leaf(4), torch.randn(4)
    _, parts = check(lambda x, y: (x + y).exp(), x, y)
    assert [s.kind for s in parts.saved] == ["output"]


def test_an_overwritten_input():
    x, y = leaf(4), torch.randn(4)

    def program(x, y):
        out = x * y.cos()
        y.add_(1)
        return out

    check(program, x, y)


def test_the_new_value_of_a_written_input_is_saved_as_the_input():
    x, y = leaf(4), torch.randn(4)

    def program(x, y):
        y.mul_(3)
        return x * y

    _, parts = check(program, x, y)
    assert [s.kind for s in parts.saved] == ["primal"]


def test_normalizations_and_losses():
    def block(x, w, g, b, target):
        y = F.layer_norm(x @ w, (16,), g, b)
        return F.cross_entropy(F.softmax(y, -1), target)

    check(block, leaf(8, 16), leaf(16, 16), leaf(16), leaf(16), torch.randint(16, (8,)))


def test_convolution_and_batch_norm():
    mean, var = torch.zeros(4), torch.ones(4)

    def block(x, w, g, b, mean, var):
        y = F.conv2d(x, w, padding=1)
        y = F.relu(F.batch_norm(y, mean, var, g, b, training=True))
        return F.max_pool2d(y, 2)

    check(block, leaf(2, 3, 8, 8), leaf(4, 3, 3, 3), leaf(4), leaf(4), mean, var)


def test_describe_is_a_table():
    _, parts = check(lambda x, w: (x @ w).exp().sum(), leaf(4, 4), leaf(4, 4))
    text = str(parts)
    assert "exp" in text and "float32[4, 4]" in text and "64 bytes beyond primals and outputs" in text


def test_an_output_view_is_saved_instead_of_its_base():
    _, parts = check(lambda x, w: (x @ w).exp().t(), leaf(2, 4), leaf(4, 3))
    assert [s.kind for s in parts.saved if s.kind != "primal"] == ["output"]
    _, parts = check(lambda x, w: (x @ w).exp()[:, 1:], leaf(2, 4), leaf(4, 3))
    assert [s.kind for s in parts.saved if s.kind != "primal"] == ["temporary"]


def temporaries(parts):
    found = ((tuple(s.spec.shape), s.spec.dtype) for s in parts.saved if s.kind == "temporary")
    return sorted(found, key=str)


NORMALIZATIONS = {
    "layer": lambda y, g, b, mean, var: F.layer_norm(y.movedim(1, -1), (4,), g, b).movedim(-1, 1),
    "group": lambda y, g, b, mean, var: F.group_norm(y, 2, g, b),
    "batch": lambda y, g, b, mean, var: F.batch_norm(y, mean, var, g, b, training=True),
    "batch, no statistics": lambda y, g, b, mean, var: F.batch_norm(y, None, None, g, b, training=True),
    "batch, evaluation": lambda y, g, b, mean, var: F.batch_norm(y, mean, var, g, b, training=False),
    "instance": lambda y, g, b, mean, var: F.instance_norm(y, weight=g, bias=b),
    "no weights": lambda y, g, b, mean, var: F.group_norm(y, 2) * (g + b).view(4, 1, 1),
}


@pytest.mark.parametrize(
    "layout", [torch.contiguous_format, torch.channels_last], ids=["dense", "channels last"]
)
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_normalized_values_are_recomputed_from_statistics(name, layout):
    def block(x, w, g, b, v, mean, var):
        y = NORMALIZATIONS[name](F.conv2d(x, w), g, b, mean, var)
        return F.conv2d(torch.tanh(y), v)

    image = torch.randn(2, 3, 8, 8).to(memory_format=layout).requires_grad_()
    weights = leaf(4, 3, 3, 3), leaf(4), leaf(4), leaf(2, 4, 3, 3)
    _, parts = check(block, image, *weights, torch.randn(4), torch.rand(4) + 0.5)
    large = [shape for shape, _ in temporaries(parts) if len(shape) == 4 and shape[-1] == 6]
    assert large == [(2, 4, 6, 6)], (
        parts
    )  # the convolution's result, neither the normalized value nor its tanh


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_softmax_of_long_rows_is_recomputed_from_statistics(dtype):
    """The classes of a language model: the logarithms are not saved, and rows are not reduced twice."""

    def loss(x, w, t):
        return F.cross_entropy((x @ w).float(), t, ignore_index=3, label_smoothing=0.1)

    x, w, t = leaf(4, 8, dtype=dtype), leaf(8, 1024, dtype=dtype), torch.tensor([1, 1023, 3, 5])
    _, parts = check(loss, x, w, t)
    reductions = [n.target for n in parts.backward if n.target is torch.ops.aten._log_softmax.default]
    assert not reductions
    if dtype is torch.bfloat16:  # in float32 the logits are no smaller than their logarithms
        assert sorted(shape for shape, _ in temporaries(parts) if shape) == [(4, 1), (4, 1), (4, 1024)], parts
        _, least = check(loss, x, w, t, config=Config(activation_memory_budget=0.0))
        assert (4, 1) not in [shape for shape, _ in temporaries(least)]


def test_log_softmax_of_short_rows_saves_no_statistics():
    _, parts = check(
        lambda x, t: F.cross_entropy(x.sin().float(), t), leaf(4, 8, dtype=torch.bfloat16), torch.arange(4)
    )
    assert (4, 1) not in [shape for shape, _ in temporaries(parts)]


def test_rounded_statistics_are_not_used():
    x, g = leaf(4, 8, dtype=torch.bfloat16), leaf(8, dtype=torch.bfloat16)
    check(lambda x, g: F.layer_norm(x.sin(), (8,), g).cos(), x, g)


def test_running_statistics_may_change_before_the_backward_runs():
    mean, var = torch.zeros(4), torch.ones(4)
    _, parts = check(
        lambda x, g, mean, var: F.batch_norm(x, mean, var, g, None, training=True),
        leaf(8, 4),
        leaf(4),
        mean,
        var,
    )
    assert all(s.name not in ("primals_3", "primals_4") for s in parts.saved)
    assert all(s.kind != "primal" or s.index < 2 for s in parts.saved)


def test_dropout_masks_are_saved_as_bool():
    _, parts = check(lambda x, w: F.dropout(x @ w, 0.4), leaf(8, 4), leaf(4, 4))
    assert temporaries(parts) == [((8, 4), torch.bool)]


@pytest.mark.parametrize("size, dtype", [(8, torch.uint8), (40, torch.int16), (200, torch.int32)])
def test_indices_are_saved_in_the_smallest_integer_type(size, dtype):
    _, parts = check(lambda x: F.max_pool2d(x * 2, 2), leaf(1, 1, size, size))
    assert temporaries(parts) == [((1, 1, size // 2, size // 2), dtype)]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.sort(-1)[0],
        lambda x: x.topk(3, 0)[0],
        lambda x: x.max(1)[0],
        lambda x: x.median(0)[0],
        lambda x: x.cummax(0)[0],
        lambda x: x.kthvalue(2, 1)[0],
        lambda x: x.mode(-1)[0],
        lambda x: F.adaptive_max_pool2d(x[None], 2),
        lambda x: F.max_pool3d(x[None, None], 2),
    ],
)
def test_all_kinds_of_indices(program):
    _, parts = check(
        lambda x: program(x * 2), leaf(4, 6) if "3d" not in str(program.__code__.co_names) else leaf(4, 4, 4)
    )
    assert temporaries(parts)[-1][1] is torch.uint8


@pytest.mark.parametrize("activation", [F.relu, F.relu6, lambda x: F.threshold(x, 0.3, 7.0)])
def test_a_mask_is_saved_where_an_activation_has_no_other_reader(activation):
    x = torch.tensor([[1.0, float("nan"), -1.0, 0.0], [0.3, 6.0, 7.0, -0.0]]).requires_grad_()
    _, parts = check(lambda x, w: activation(x * w) * 3, x, leaf(4))
    assert [s.spec.dtype for s in parts.saved if s.nbytes] in ([], [torch.bool])
    _, parts = check(lambda x, w: activation(x @ w) @ w, leaf(4, 4), leaf(4, 4))
    assert [s.spec.dtype for s in parts.saved if s.nbytes] == [torch.float32]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.adaptive_avg_pool2d(x, 3),
        lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
        lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
        lambda x: F.avg_pool3d(x, 2),
    ],
)
def test_values_read_for_their_shape_are_not_saved(program):
    _, parts = check(lambda x, w: program((x @ w) + 1), leaf(1, 4, 6, 6), leaf(6, 6))
    assert parts.nbytes == 0


def test_chains_of_recomputed_values_are_bounded():
    def residual(x, w):
        for _ in range(12):
            x = x + torch.tanh(x) @ w
            x = torch.sin(x)
        return x

    def pointwise(x):
        for _ in range(20):
            x = x.sin()
        return x

    check(residual, leaf(4, 4), leaf(4, 4) / 4)
    _, parts = check(pointwise, leaf(16))
    assert len(temporaries(parts)) == 3 and parts.nbytes == 3 * 64


def test_checkpoints_recompute_their_regions():
    def block(x, w, v):
        return torch.tanh(torch.tanh(x @ w) @ v)

    def program(x, w, v, checkpoints):
        x = x * 2
        for _ in range(3):
            x = checkpoint(block, x, w, v, use_reentrant=False) if checkpoints else block(x, w, v)
        return x

    given = leaf(4, 4), leaf(4, 4), leaf(4, 4)
    joint, parts = check(lambda x, w, v: program(x, w, v, True), *given)
    assert temporaries(parts) == 3 * [((4, 4), torch.float32)]  # the inputs of the regions
    assert parts.nbytes == Memory(joint).eager_bytes()
    assert sum(n.target is torch.ops.aten.mm.default for n in parts.forward) == 6
    _, parts = check(lambda x, w, v: program(x, w, v, False), *given)
    assert parts.nbytes == 6 * 64


def test_a_checkpoint_with_a_smaller_output_than_input():
    _, parts = check(
        lambda x, w: checkpoint(lambda x: (x @ w).sum(0), x.sin(), use_reentrant=False).exp().sin(),
        leaf(32, 4),
        leaf(4, 4),
    )
    assert sum(n.target is torch.ops.aten.mm.default for n in parts.forward) == 1
