"""Jagged nested tensors: their values, offsets and lengths are inputs of the graph, and results are nested tensors again."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nested import nested_tensor_from_jagged as from_jagged

import smelt
from smelt.errors import Unsupported
from smelt.report.inspect import entries, graph_count
from tests.harness.agreement import check_no_failure

# Torch warns that nested tensors are a prototype.
pytestmark = pytest.mark.filterwarnings("ignore:.*nested.*:UserWarning")


def nested(*lengths, width=3, requires_grad=True, seed=0):
    torch.manual_seed(seed)
    rows = [torch.randn(n, width) for n in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=requires_grad)


def jagged(*offsets, width=3, requires_grad=True, seed=0):
    """Values and offsets."""
    torch.manual_seed(seed)
    values = torch.randn(offsets[-1], width, requires_grad=requires_grad)
    return values, torch.tensor(offsets)


def same(mine, theirs):
    """Compare results. Ragged sizes of results with new offsets differ."""
    assert type(mine) is type(theirs)
    if isinstance(mine, (tuple, list)):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs):
            same(a, b)
    elif not isinstance(mine, torch.Tensor):
        assert isinstance(mine, torch.SymInt) or mine == theirs
    elif mine.is_nested:
        assert (mine.requires_grad, mine._is_view()) == (theirs.requires_grad, theirs._is_view())
        assert (mine.dim(), mine._ragged_idx) == (theirs.dim(), theirs._ragged_idx)
        assert mine._metadata_cache.keys() == theirs._metadata_cache.keys()
        for name in ("_values", "_offsets", "_lengths"):
            same(getattr(mine, name), getattr(theirs, name))
    else:
        torch.testing.assert_close(mine.detach(), theirs.detach())


def plain(value):
    """The tensors with gradients in a result, nested ones as their values."""
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in plain(v)]
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return []
    return [value.values() if value.is_nested else value]


def gradients(out, args):
    """The gradients of the arguments, nested ones as type, values and offsets."""
    leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    losses = [t.sin().sum() for t in plain(out)]
    found = torch.autograd.grad(losses, leaves, allow_unused=True) if losses and leaves else ()
    return [parts(g) for g in found]


def parts(x):
    """What a gradient consists of."""
    return (type(x), x.values(), x.offsets()) if isinstance(x, torch.Tensor) and x.is_nested else x


def check(fn, *calls, differentiable=True, graphs=None, **options):
    """Compare results and gradients of each call, eager and compiled in one graph."""
    compiled = smelt.compile(fn, **{"fullgraph": True, **options})
    for make in calls:
        mine, theirs = make(), make()
        got, want = compiled(*mine), fn(*theirs)
        same(got, want)
        if differentiable:
            same(gradients(got, mine), gradients(want, theirs))
    check_no_failure(compiled)
    assert graphs is None or graph_count(compiled) == graphs
    return compiled


BACKENDS = ("smelt", "aot_eager")


def pointwise(x):
    return (x * 2).sin(), x.clamp(min=0) + F.silu(x), torch.where(x > 0, x, -x)


def broadcast(x):
    return x * torch.arange(3.0), x + torch.ones(2, 1, 3)


def feed_forward(x):
    return F.gelu(F.linear(x, torch.full((4, 3), 0.5), torch.ones(4))) @ torch.ones(4, 2)


def normalized(x):
    return F.layer_norm(x, (3,)), x.softmax(-1), F.rms_norm(x, (3,))


def rearranged(x):
    return x.transpose(1, 2), x.unsqueeze(-1), torch.cat([x, x + 1], -1), x.chunk(3, -1)


def split(x):
    return [part.cos() for part in x.unbind()], x[1] * 2, [row.sum() for row in x]


def padded(x):
    return x.to_padded_tensor(0.5) * 2


def taken_apart(x):
    return x.values().sum(0), x.offsets(), x.values()


def rebuilt(x):
    y = from_jagged(x.values().exp(), x.offsets())
    return x * y, y.values().sum()


def without_history(x):
    with torch.no_grad():
        y = x * 2
    return y + 1, y.requires_grad, x.detach(), x.requires_grad


def written(x):
    y = (x * 2).add_(1)
    y.mul_(x)
    return y


def summed(x):
    return x.sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fn",
    [
        pointwise,
        broadcast,
        feed_forward,
        normalized,
        rearranged,
        split,
        padded,
        taken_apart,
        rebuilt,
        without_history,
        written,
        summed,
    ],
)
def test_a_nested_tensor_is_an_input(fn, backend):
    check(fn, lambda: (nested(2, 4),), backend=backend)


def scaled(values, offsets):
    return from_jagged(values * 2, offsets) * 3


def viewed(values, offsets):
    return from_jagged(values, offsets)


def with_limits(values, offsets):
    return from_jagged(values, offsets, min_seqlen=2, max_seqlen=4) + 1


def with_holes(values, offsets):
    return from_jagged(values.cos(), offsets, torch.tensor([1, 2, 1])) * 2


def from_lengths(values, offsets):
    return from_jagged(values.cos(), lengths=offsets.diff()) * 2


def twice(values, offsets):
    return from_jagged(values * 2, offsets) + from_jagged(values * 3, offsets)


def copied_offsets(values, offsets):
    return from_jagged(values * 2, offsets.clone()), from_jagged(values * 3, offsets.clone())


def own_offsets(values, offsets):
    inside = torch.tensor([0, 1, 9])
    return from_jagged(values, inside) * from_jagged(torch.ones_like(values), inside)


def with_empty_component(values, offsets):
    x = from_jagged(values, torch.tensor([0, 0, 4, 9]))
    return x.to_padded_tensor(1.0), x.unbind()


def without_rows(values, offsets):
    return from_jagged(values[:0] * 2, offsets * 0).to_padded_tensor(1.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fn",
    [
        with_empty_component,
        without_rows,
        scaled,
        viewed,
        with_limits,
        with_holes,
        from_lengths,
        twice,
        copied_offsets,
        own_offsets,
    ],
)
def test_a_nested_tensor_is_built_inside(fn, backend):
    check(fn, lambda: jagged(0, 2, 5, 9), backend=backend)


def test_a_list_of_tensors_is_built_inside():
    def stacked(a, b):
        return torch.nested.as_nested_tensor([a, b], layout=torch.jagged).tanh()

    check(stacked, lambda: (torch.ones(2, 3, requires_grad=True), torch.ones(4, 3, requires_grad=True)))


def test_an_input_may_be_a_view_of_another():
    def multiplied(x, values, offsets):
        return x * from_jagged(values * 2, offsets), values + 1

    def make():
        values, offsets = jagged(0, 2, 5, 9)
        return from_jagged(values, offsets), values, offsets

    compiled = smelt.compile(multiplied, fullgraph=True)
    mine, theirs = make(), make()
    got, want = compiled(*mine), multiplied(*theirs)
    same(got, want)
    same(gradients(got, mine[1:]), gradients(want, theirs[1:]))


def test_metadata_is_that_of_the_nested_tensor():
    def metadata(x):
        return (
            x.is_nested, x.layout, x.dtype, x.dim(), x.size(0), x.size(-1), len(x), x.numel(), x.is_contiguous(),
            x.shape == (x * 2).shape, x.shape[1] == x.size(1), x.shape[1] == 2, isinstance(x, nn.Parameter), type(x),
        )  # fmt: skip

    check(metadata, lambda: (nested(2, 4),), lambda: (nn.Parameter(nested(2, 4)),))


def test_a_ragged_size_belongs_to_the_offsets():
    """Returned sizes equal those of the argument and of results with its offsets, and differ from all others."""
    compiled = smelt.compile(lambda x: ((x * 2).shape, x.transpose(1, 2).stride(), x * 3), fullgraph=True)
    for x in (nested(2, 4), nested(1, 3, 3)):
        shape, stride, y = compiled(x)
        assert shape == x.shape == y.shape
        assert stride == x.transpose(1, 2).stride()
        assert y.offsets() is x.offsets()
        assert shape[1] != nested(2, 4).shape[1]


def added_or_not(x, y):
    return x + y if x.shape == y.shape else x * 3


def test_offsets_that_become_another_tensor_recompile():
    x = nested(2, 4)
    twin = from_jagged(x.values().detach() + 1, x.offsets())
    check(added_or_not, lambda: (x, twin), lambda: (x, nested(2, 4)), lambda: (x, twin), graphs=2)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_offsets_of_arguments_are_distinct_or_not(order):
    def added(values, first, second):
        return added_or_not(from_jagged(values, first), from_jagged(values * 2, second))

    values, offsets = jagged(0, 2, 5, 9)
    calls = (values, offsets, offsets), (values, offsets, offsets.clone())
    check(added, *(lambda i=i: calls[i] for i in order), graphs=2)


def test_different_ragged_sizes_cannot_be_added():
    def added(x, y):
        try:
            return x + y
        except RuntimeError as error:
            return x, "cannot call binary pointwise function" in str(error)

    check(added, lambda: (nested(2, 4), nested(2, 4)))
    with pytest.raises(RuntimeError, match="cannot call binary pointwise function add"):
        smelt.compile(lambda x, y: x + y, fullgraph=True)(nested(2, 4), nested(2, 4))


@pytest.mark.parametrize("fn", [torch.sin, padded, split])
def test_batch_and_lengths_are_dynamic(fn):
    batches = (2, 4), (3, 4, 5), (2, 2, 6, 7)
    calls = [lambda n=n: (nested(*n, width=9),) for n in batches]
    check(
        fn, *calls, dynamic=True, graphs=3 if fn is split else 1
    )  # unbind has one result for each component


def test_all_sizes_are_dynamic():
    calls = [lambda n=n, w=w: (nested(*n, width=w),) for n, w in (((2, 4), 9), ((3, 4, 5), 7))]
    check(lambda x: (x.sin(), x.stride(), x.to_padded_tensor(0.0)), *calls, dynamic=True, graphs=1)


def test_dynamic_sizes_are_found():
    calls = [lambda o=o: jagged(*o) for o in ((0, 2, 5, 9), (0, 1, 4, 6, 8), (0, 3, 4, 5, 6, 11))]
    check(scaled, *calls, graphs=2)


def test_what_another_call_has_is_guarded():
    values, offsets = jagged(0, 2, 6, requires_grad=False)
    calls = (
        nested(2, 4), nested(2, 4, requires_grad=False), from_jagged(values, offsets),
        from_jagged(values, offsets, torch.tensor([1, 3])), nested(2, 4),
    )  # fmt: skip
    check(lambda x: (x * 2).transpose(1, 2), *(lambda x=x: (x,) for x in calls), graphs=4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention(backend):
    def attention(x, w, is_causal=False):
        q, k, v = (t.contiguous().unflatten(-1, (2, 4)) for t in F.linear(x, w).chunk(3, -1))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=0.3)
        return out.transpose(1, 2).flatten(-2)

    def make():
        return nested(2, 5, width=8), torch.eye(24, 8, requires_grad=True)

    check(attention, make, backend=backend)
    with pytest.raises(RuntimeError, match="No viable backend"):  # as in eager
        smelt.compile(attention, fullgraph=True, backend=backend)(*make(), is_causal=True)


def test_softmax_over_the_ragged_dimension():
    def make():
        return jagged(0, 2, 5, 9, requires_grad=False)

    check(lambda values, offsets: from_jagged(values, offsets).softmax(1), make)
    check(lambda x: x.softmax(1), lambda: (nested(2, 4, requires_grad=False),))
    compiled = smelt.compile(lambda x: x.softmax(1))  # torch's gradient is not the derivative
    x, y = nested(2, 4), nested(2, 4)
    same(gradients(compiled(x), [x]), gradients(y.softmax(1), [y]))


def test_sums_over_the_ragged_dimension_have_gradients():
    """Eager has none for these."""
    compiled = smelt.compile(lambda x: (x.sum(1), x.sum(-1), x.mean(1)), fullgraph=True)
    x = nested(2, 4)
    got = compiled(x)
    rows = x.detach().unbind()
    same(got[0].detach(), torch.stack([r.sum(0) for r in rows]))
    same(got[1].values().detach(), torch.cat([r.sum(1) for r in rows]))
    (gradient,) = torch.autograd.grad(got[0].sum() + 2 * got[1].values().sum(), x)
    same(gradient.values(), torch.full((6, 3), 3.0))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(3)
        self.position = nested(2, 4, requires_grad=False)

    def forward(self, x):
        return self.norm(self.project(x)).relu() + from_jagged(self.position.values(), x.offsets())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_trains(backend):
    mine, theirs = Encoder(), Encoder()
    compiled = smelt.compile(mine, fullgraph=True, backend=backend)
    for model, run in ((mine, compiled), (theirs, theirs)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for seed in (1, 2, 3):
            optimizer.zero_grad()
            run(nested(2, 4, seed=seed)).values().square().mean().backward()
            optimizer.step()
    for a, b in zip(mine.parameters(), theirs.parameters()):
        same(a, b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_is_a_nested_tensor(backend):
    compiled = smelt.compile(lambda x: (x * x).sin(), fullgraph=True, backend=backend)
    x, hooked = nested(2, 4), []
    x.register_hook(hooked.append)
    compiled(x).values().sum().backward()
    assert len(hooked) == 1
    assert x.grad.shape == x.shape
    y = nested(2, 4)
    (y * y).sin().values().sum().backward()
    same(parts(x.grad), parts(y.grad))


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives(backend):
    def second(fn):
        x = nested(2, 4)
        (first,) = torch.autograd.grad(fn(x).values().sum(), x, create_graph=True)
        return parts(torch.autograd.grad(first.values().sum(), x)[0])

    def fn(x):
        return (x * x).sin()

    same(second(smelt.compile(fn, fullgraph=True, backend=backend)), second(fn))


def test_writes_reach_the_argument():
    def doubled(x):
        x.mul_(2)
        x.values().add_(1)
        return x + 1

    def view_written(values, offsets):
        y = from_jagged(values, offsets)
        y.mul_(2)
        return y, values * 3

    check(doubled, lambda: (nested(2, 4, requires_grad=False),))
    x, y = nested(2, 4, requires_grad=False), nested(2, 4, requires_grad=False)
    smelt.compile(doubled, fullgraph=True)(x), doubled(y)
    same(x, y)
    check(view_written, lambda: jagged(0, 2, 5, 9, requires_grad=False))


def test_identity():
    def objects(x):
        return x, x.contiguous() is x, x.float() is x, (x * 2).offsets() is x.offsets()

    x = nested(2, 4)
    got = smelt.compile(objects, fullgraph=True)(x)
    assert got[0] is x
    assert got[1:] == (True, True, True)


def in_place_with_gradients(x):
    y = x * 1
    torch.compiler.is_compiling()
    return y.requires_grad_() * 2


def attribute_of_the_program(x):
    return x * x.factor


def held_values(x):
    return x._values * 2 if x.grad is None else x


def checked_by_data(x):
    return x * 2 if x.values().sum() > 1e6 else x * 3


@pytest.mark.parametrize(
    "fn", [in_place_with_gradients, attribute_of_the_program, held_values, checked_by_data]
)
def test_what_is_not_captured_runs_in_eager(fn):
    def make():
        x = nested(2, 4)
        x.factor = 5
        return (x,)

    with pytest.raises(Unsupported):
        smelt.compile(fn, fullgraph=True)(*make())
    compiled = smelt.compile(fn)
    for _ in range(2):
        mine, theirs = make(), make()
        got, want = compiled(*mine), fn(*theirs)
        same(got, want)
        same(gradients(got, mine), gradients(want, theirs))


def test_a_nested_tensor_lives_across_a_graph_break():
    def broken(x):
        y = x * 2
        smelt.graph_break()
        return y.sin() + x

    compiled = smelt.compile(broken)
    mine, theirs = nested(2, 4), nested(2, 4)
    got, want = compiled(mine), broken(theirs)
    same(got, want)
    same(gradients(got, [mine]), gradients(want, [theirs]))


def test_numbers_that_change_are_symbols() -> None:
    compiled = smelt.compile(lambda x, n: x * 2 + n)
    for n in range(6):
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(n + 1, 3)], layout=torch.jagged)
        assert torch.equal(compiled(nested, n).values(), nested.values() * 2 + n)
    assert len(entries(compiled)) <= 3
