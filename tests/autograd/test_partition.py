"""What is kept from forward to backward, program by program; results and gradients are eager's."""

import pytest
import torch
import torch.nn.functional as F

from smelt.autograd.memory import Memory
from tests.autograd.joints import check

pytestmark = pytest.mark.timeout(60)


def leaf(*shape, **options):
    return torch.randn(*shape, **options).requires_grad_()


def kinds(parts):
    return [(s.kind, s.name) for s in parts.saved]


def test_two_cosines_save_one_tensor():
    _, parts = check(lambda x: x.cos().cos(), leaf(8))
    assert kinds(parts) == [("primal", "primals_1")]
    assert parts.nbytes == 0


def test_of_equal_sizes_the_nearest_to_its_use_is_kept():
    joint, parts = check(lambda x, w: (x @ w).exp().sum(), leaf(4, 4), leaf(4, 4))
    assert ("temporary", "exp") in kinds(parts)
    assert parts.nbytes == Memory(joint).eager_bytes() == 64


def test_activations_between_products_are_computed_again():
    def mlp(x, a, b):
        return (F.gelu(x @ a) @ b).sum()

    joint, parts = check(mlp, leaf(4, 8), leaf(8, 16), leaf(16, 8))
    assert parts.nbytes == 4 * 16 * 4  # the first product; eager keeps its gelu as well
    assert Memory(joint).eager_bytes() == 2 * parts.nbytes


def test_views_are_taken_again():
    def split(x, w):
        q, k, v = (x @ w).chunk(3, dim=-1)
        return (q.t() @ k).sin() @ v.t()

    _, parts = check(split, leaf(4, 6), leaf(6, 12))
    assert [s.spec.shape for s in parts.saved if s.kind == "temporary"] == [(4, 12), (4, 4)]


def test_dropout_runs_once():
    check(lambda x, w: F.dropout(x @ w, 0.4).relu() @ w, leaf(8, 8), leaf(8, 8))


def test_a_mask_is_smaller_than_what_it_is_made_of():
    _, parts = check(lambda x, w: (x @ w).clamp(min=0.0).sum(), leaf(4, 4), leaf(4, 4))
    assert [(s.spec.dtype, s.nbytes) for s in parts.saved if s.kind == "temporary"] == [(torch.bool, 16)]


def test_an_input_that_eager_does_not_keep_is_not_kept():
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


def test_what_is_written_to_an_input_is_kept_there():
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


def test_an_output_that_is_a_view_is_kept_instead_of_its_base():
    _, parts = check(lambda x, w: (x @ w).exp().t(), leaf(2, 4), leaf(4, 3))
    assert [s.kind for s in parts.saved if s.kind != "primal"] == ["output"]
    _, parts = check(lambda x, w: (x @ w).exp()[:, 1:], leaf(2, 4), leaf(4, 3))
    assert [s.kind for s in parts.saved if s.kind != "primal"] == ["temporary"]
