"""Traceable wrapper subclasses: `__torch_dispatch__` is part of the program, inner tensors are inputs and results."""

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map

import smelt
from smelt.errors import Unsupported
from smelt.report.inspect import graph_count, records
from tests.harness.agreement import check_no_failure
from tests.harness.wrappers import Pair, Plainly, Quantized, shown

aten = torch.ops.aten
X = torch.arange(6.0).reshape(2, 3) / 3 - 0.5


def pair(rows=2, dtype=torch.float32, label=""):
    first = torch.arange(rows * 3.0).reshape(rows, 3).to(dtype) / 3 - 0.5
    return Pair(first, first.cos(), label)


def check(fn, *calls, graphs=None, **options):
    """Compare each call eager and compiled, results and arguments, and count graphs."""
    compiled = smelt.compile(fn, **{"fullgraph": True, **options})
    for make in calls:
        mine, theirs = make(), make()
        with torch.no_grad():
            assert shown(compiled(*mine)) == shown(fn(*theirs))
        assert shown(mine) == shown(theirs)
    check_no_failure(compiled)
    assert graphs is None or graph_count(compiled) == graphs
    return compiled


def arithmetic(p):
    return p + 1, p * p, 2 - p, p.sum(), (p @ p.t()).relu().softmax(-1)


def several_results(p):
    top, bottom = p.chunk(2)
    values, places = p.sort(1)
    return top * bottom, values, places


def rearranged(p):
    return (
        torch.cat([p, p], 1),
        torch.stack([p, p + 1]),
        p.view(3, 2) * 1,
        p[0].sin(),
        p.T.contiguous(),
        p[:, 1:] + 0,
    )


def metadata(p):
    return (
        p.shape,
        p.dtype,
        p.dim(),
        p.size(0),
        p.stride(),
        len(p),
        isinstance(p, Pair),
        type(p).__name__,
        p.numel(),
    )


def parts(p):
    names, label = p.__tensor_flatten__()
    return [getattr(p, name).sin() for name in names], label, p.first, p.swapped() * 2


def written(p):
    p.first.add_(1)
    q = p.clone()
    q.mul_(2).add_(p)
    return q, p


def kept(p):
    return {"same": p, "again": [p, p * 1]}


def converted(p):
    return p.to(torch.float64), p.half().float(), torch.zeros_like(p), p.new_ones(2)


@pytest.mark.parametrize("backend", ["smelt", "eager", "aot_eager"])
@pytest.mark.parametrize(
    "program", [arithmetic, several_results, rearranged, metadata, parts, written, kept, converted]
)
def test_a_wrapper_as_an_argument(program, backend):
    check(program, lambda: (pair(),), lambda: (pair(),), backend=backend)


def test_torch_s_own_wrapper():
    def fn(x):
        return x.exp() + x.a, x.mean(0), TwoTensor(x.b, x.a) * 3

    check(fn, *[lambda: (TwoTensor(X.clone(), X + 1),)] * 2, graphs=1)


def test_a_checkpoint_without_gradients():
    def fn(p):
        return torch.utils.checkpoint.checkpoint(lambda q: q.sin() * 2, p, use_reentrant=True)

    compiled = smelt.compile(fn, fullgraph=True)
    for _ in range(2):
        assert shown(compiled(pair())) == shown(fn(pair()))
    assert graph_count(compiled) == 1


def test_wrappers_of_wrappers():
    check(lambda p: (p.sin() + 1, p.first.second), lambda: (Pair(pair(), pair()),), graphs=1)


def test_a_view_of_a_result_that_nothing_else_shows():
    check(lambda p: (p * 2).view(-1), *[lambda: (pair(),)] * 2, graphs=1)
    check(lambda p: (p * 2).chunk(2), *[lambda: (pair(),)] * 2, fullgraph=False)


@pytest.mark.parametrize("backend", ["smelt", "eager"])
def test_a_wrapper_created_inside(backend):
    def fn(x):
        p = Pair(x, x + 1, "made")
        q = (p * 2).swapped()
        return q.first + q.second, p, Pair(p.first, q.first), p.label

    check(fn, *[lambda: (X.clone(),)] * 2, graphs=1, backend=backend)


@pytest.mark.parametrize("kind", [Quantized, Plainly])
@pytest.mark.parametrize("as_parameter", [False, True])
def test_a_quantized_weight(kind, as_parameter):
    torch.manual_seed(0)
    layer = nn.Linear(3, 4, bias=False)
    weight = kind.of(torch.randn(4, 3))
    layer.weight = nn.Parameter(weight, requires_grad=False)

    def fn(x):
        return layer(x) if as_parameter else x @ weight.t(), weight.bits, weight.clone(), kind.of(x)

    check(fn, *[lambda: (X.clone(),)] * 3, graphs=1)


def test_a_quantized_weight_below_gradients():
    layer = nn.Linear(3, 4)
    layer.weight = nn.Parameter(Quantized.of(torch.randn(4, 3)), requires_grad=False)

    def gradients(fn):
        x = X.clone().requires_grad_()
        fn(x).square().sum().backward()
        found = x.grad, layer.bias.grad
        layer.bias.grad = None
        return found

    compiled = smelt.compile(layer, fullgraph=True)
    torch.testing.assert_close(gradients(compiled), gradients(layer))


def test_guards_see_the_class_the_metadata_the_context_and_inner_tensors():
    def fn(p):
        return p * 2 + len(getattr(p, "label", "none")), p.size(0)

    makes = (
        lambda: (pair(),), lambda: (pair(),), lambda: (pair(3),), lambda: (pair(dtype=torch.float64),), lambda: (X.clone(),),
        lambda: (pair(label="other"),), lambda: (Pair(X, X),), lambda: (Pair(pair(), pair()),), lambda: (pair(),),
    )  # fmt: skip
    check(fn, *makes)


def sizes_read(p):
    return p.shape, p.size(0) + 1, p.stride(), p.sum(1), p.numel()


def reshaped(p):
    return p.reshape(p.shape[0] * 3).cos(), (p * 2).permute(1, 0).contiguous(), torch.zeros_like(p), p


class Sized(Pair):
    """Its handler reads the sizes that operators take."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        if func is aten.view.default:
            pair, size = args
            count = 1
            for n in size:
                count = count * n
            return cls(pair.first.view(size) * len(size), pair.second.view(count).view(size))
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.mark.parametrize("program", [arithmetic, sizes_read, reshaped, parts])
def test_sizes_that_change(program):
    check(program, *[lambda n=n: (pair(n),) for n in (2, 5, 7, 4, 9)], graphs=2)


def test_sizes_that_a_handler_reads():
    def sized(n):
        return Sized(pair(n).first, pair(n).second)

    check(lambda p: p.view(p.shape[0] * 3, 1) * 1, *[lambda n=n: (sized(n),) for n in (2, 5, 7, 4)], graphs=2)


def test_results_with_sizes_that_change():
    """A wrapper that is created of a plain tensor."""
    weight = pair(4)

    def fn(x):
        q = x @ weight.t()
        return q, q.sum(1), q.shape, q.reshape(q.size(0), 2, 2).transpose(0, 1).contiguous(), Pair(x, x + 1)

    check(fn, *[lambda n=n: (torch.ones(n, 3),) for n in (2, 5, 7, 4, 9)], graphs=2)


def test_effects_of_a_handler_are_replayed():
    seen = []

    class Seen(Pair):
        @classmethod
        def __torch_dispatch__(cls, func, types, args, kwargs=None):
            seen.append(func)
            return func(*tree_map(lambda t: t.first if isinstance(t, cls) else t, args), **(kwargs or {}))

    def fn(p):
        return (p + 1).sin() + (p * 2).first if hasattr(p * 2, "first") else (p + 1).sin()

    compiled = smelt.compile(fn, fullgraph=True)
    counts = []
    for function in (fn, compiled, compiled):
        seen.clear()
        result = function(Seen(X, X + 1))
        counts.append((seen[:], shown(result)))
    assert counts[0] == counts[1] == counts[2]


def test_a_break_between_operators():
    def fn(p):
        q = p.sin()
        if q.first.sum() > -100:
            q = q + 1
        return q * 2

    compiled = check(fn, *[lambda: (pair(),)] * 3, fullgraph=False)
    assert [reason.kind.id for _, record in records(compiled) for reason in record.breaks] == [
        "data-dependent-condition"
    ]


def test_an_error_of_a_handler_is_eager_s():
    def fn(w):
        try:
            return w.exp()
        except NotImplementedError as error:
            return str(error)

    check(fn, lambda: (Plainly.of(X),), fullgraph=False)


def written_in_place(p):
    return p.add_(1)


def a_view_leaves(p):
    return p.view(-1)


def an_attribute_is_set(p):
    p.label = "new"
    return p * 1


@pytest.mark.parametrize("program", [written_in_place, a_view_leaves, an_attribute_is_set])
def test_what_is_not_captured(program):
    """Whole graphs refuse it with a reason, others break there."""

    def made():
        return TwoTensor(X.clone(), X.clone())

    with pytest.raises(Unsupported, match="TwoTensor"):
        smelt.compile(program, fullgraph=True)(made())
    compiled = smelt.compile(program)
    for _ in range(2):
        mine, theirs = made(), made()
        assert shown(compiled(mine)) == shown(program(theirs))
        assert shown(mine) == shown(theirs)
    check_no_failure(compiled)
