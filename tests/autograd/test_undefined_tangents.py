"""A backward with undefined tangents: the same gradients as with zeros for them, and None for gradients that stay
zero."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.autograd import undefined_tangents
from smelt.autograd.partition import partition
from smelt.config import DEFAULT
from smelt.graph.graph_callable import GraphFunction
from smelt.graph.ir import Graph, Node, TensorSpec
from smelt.graph.operator_effects import effects
from smelt.graph.verify_graph import verify
from smelt.ops import linearity
from smelt.ops.registry import REGISTRY
from tests.harness.joints import copies_of, joint_of, saved_values

aten = torch.ops.aten
A, B = torch.randn(3, 4), torch.randn(3, 4)
INDEX = torch.tensor([[0, 1, 2, 0]])
ROWS = torch.tensor([0, 2])
PAIR = [torch.tensor([1, 2])]
IMAGE, FILTER = torch.randn(1, 4, 6, 6), torch.randn(2, 4, 3, 3)
GEOMETRY = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)

# For each entry of the table: a call with nonzero arguments.
EXAMPLES = {
    "add": (aten.add.Tensor, A, B),
    "sub": (aten.sub.Tensor, A, B),
    "rsub": (aten.rsub.Tensor, A, B),
    "mul": (aten.mul.Tensor, A, B),
    "div": (aten.div.Tensor, A, B),
    "dot": (aten.dot.default, A[0], B[0]),
    "vdot": (aten.vdot.default, A[0], B[0]),
    "mm": (aten.mm.default, A, B.t()),
    "bmm": (aten.bmm.default, A[None], B.t()[None]),
    "mv": (aten.mv.default, A, B[0]),
    "addmm": (aten.addmm.default, A[0, :3], A, B.t()),
    "baddbmm": (aten.baddbmm.default, torch.ones(1, 3, 3), A[None], B.t()[None]),
    "addcmul": (aten.addcmul.default, A, B, A),
    "addcdiv": (aten.addcdiv.default, A, B, A),
    "lerp": (aten.lerp.Scalar, A, B, 0.3),
    "where": (aten.where.self, A > 0, A, B),
    "cat": (aten.cat.default, [A, B], 1),
    "stack": (aten.stack.default, [A, B]),
    "convolution": (aten.convolution.default, IMAGE, FILTER, torch.ones(2), *GEOMETRY),
    "index_put": (aten.index_put.default, A, PAIR, B[:2], True),
    "_unsafe_index_put": (aten._unsafe_index_put.default, A, PAIR, B[:2], True),
    "scatter_add": (aten.scatter_add.default, A, 0, INDEX, B),
    "scatter": (aten.scatter.src, A, 0, INDEX, B),
    "slice_scatter": (aten.slice_scatter.default, A, B[:2], 0, 1, 3),
    "select_scatter": (aten.select_scatter.default, A, B[0], 0, 1),
    "diagonal_scatter": (aten.diagonal_scatter.default, A, B[:, 0]),
    "as_strided_scatter": (aten.as_strided_scatter.default, A, B[0], [4], [1], 4),
    "index_add": (aten.index_add.default, A, 0, ROWS, B[:2]),
    "masked_fill": (aten.masked_fill.Scalar, A, B > 0, 0.0),
    "constant_pad_nd": (aten.constant_pad_nd.default, A, [1, 1], 0.0),
    "copy": (aten.copy.default, A, B),
    "embedding": (aten.embedding.default, A, INDEX),
    "neg": (aten.neg.default, A),
    "sum": (aten.sum.dim_IntList, A, [0]),
    "mean": (aten.mean.dim, A, [0]),
    "clone": (aten.clone.default, A),
    "_to_copy": (aten._to_copy.default, A),
    "cumsum": (aten.cumsum.default, A, 0),
    "flip": (aten.flip.default, A, [0]),
    "roll": (aten.roll.default, A, [1]),
    "index": (aten.index.Tensor, A, PAIR),
    "index_select": (aten.index_select.default, A, 0, ROWS),
    "gather": (aten.gather.default, A, 0, INDEX),
    "tril": (aten.tril.default, A),
    "triu": (aten.triu.default, A),
    "repeat": (aten.repeat.default, A, [2, 1]),
    "trace": (aten.trace.default, A),
    "_conj_physical": (aten._conj_physical.default, A),
    "real": (aten.real.default, A),
    "imag": (aten.imag.default, A + 1j * B),
    "_unsafe_view": (aten._unsafe_view.default, A, [12]),
    "_reshape_copy": (aten._reshape_copy.default, A, [12]),
    "view_copy": (aten.view_copy.default, A, [12]),
    "channel_shuffle": (aten.channel_shuffle.default, IMAGE, 2),
    "pixel_shuffle": (aten.pixel_shuffle.default, IMAGE, 2),
    "pixel_unshuffle": (aten.pixel_unshuffle.default, IMAGE, 2),
    "im2col": (aten.im2col.default, IMAGE, [2, 2], [1, 1], [0, 0], [1, 1]),
    "col2im": (aten.col2im.default, torch.randn(1, 4, 4), [4, 4], [2, 2], [1, 1], [0, 0], [2, 2]),
    "zeros_like": (aten.zeros_like.default, A),
    "new_zeros": (aten.new_zeros.default, A, [2]),
    # not in the table, but by their schemas
    "t": (aten.t.default, A),
    "tanh_backward": (aten.tanh_backward.default, A, B),
    "native_layer_norm_backward": (
        aten.native_layer_norm_backward.default, A, B, [4], torch.zeros(3, 1), torch.ones(3, 1), torch.ones(4),
        torch.ones(4), [True, True, True],
    ),
    "embedding_dense_backward": (aten.embedding_dense_backward.default, A, ROWS.new_tensor([0, 1, 1]), 5, -1, False),
    "convolution_backward": (
        aten.convolution_backward.default, torch.randn(1, 2, 4, 4), IMAGE, FILTER, [2], *GEOMETRY, [True, True, True],
    ),
}  # fmt: skip


def tensors(value):
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in tensors(v)]


def zeroed(value):
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    return [zeroed(v) for v in value] if isinstance(value, list) else 0.0


def test_every_entry_has_an_example():
    names = {key.removeprefix("aten::") for key, facts in REGISTRY.declared() if "linear" in facts}
    assert names <= EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_linear_operators_map_zeros_to_zeros(name):
    op, *args = EXAMPLES[name]
    does = effects(op)
    sets = list(linearity.linear_in(op, does))
    assert sets
    for names in sets:
        given = [
            zeroed(a) if n in names and isinstance(a, (torch.Tensor, list)) else a
            for n, a in zip(does.names, args)
        ]
        assert all(torch.all(t == 0) for t in tensors(op(*given)))
        for kept in () if "zeros" in name else names:  # all of the set are needed
            partly = [a if n == kept else g for n, a, g in zip(does.names, args, given)]
            if isinstance(does.argument(kept, tuple(args), {}), (torch.Tensor, list)):
                assert any(torch.any(t != 0) for t in tensors(op(*partly)))


def combined(x, y, times):
    """`x + times * y`, also for lists."""
    return [combined(a, b, times) for a, b in zip(x, y)] if isinstance(x, list) else x + times * y


@pytest.mark.parametrize("name", EXAMPLES)
def test_linear_operators_preserve_sums(name):
    op, *args = EXAMPLES[name]
    does = effects(op)
    for names in linearity.linear_in(op, does):

        def given(times, names=names):
            return [
                combined(a, args[i], times) if n in names and isinstance(a, (torch.Tensor, list)) else a
                for i, (n, a) in enumerate(zip(does.names, args))
            ]

        for once, again, both in zip(*(tensors(op(*given(times))) for times in (0, 2, 1))):
            torch.testing.assert_close(once + again, 2 * both)


def two_heads(x, w, v):
    hidden = F.layer_norm(x @ w, (4,))
    return hidden.tanh().sum(0), (hidden[:, :2] * v).relu(), hidden.view(-1).cumsum(0), torch.cat([x, v], 1)


def shares(x, w, v):
    both = torch.stack([x, w]).unbind()
    return both[0].sin(), both[1] + v.sum(), (x - w).t(), 3 * (w + x)


@pytest.mark.parametrize("program", [two_heads, shares])
def test_all_sets_of_undefined_tangents(program):
    inputs = [
        torch.randn(4, 4).requires_grad_(),
        torch.randn(4, 4).requires_grad_(),
        torch.randn(4, 2).requires_grad_(),
    ]
    joint, primals = joint_of(program, *inputs)
    parts = partition(joint, DEFAULT)
    tangents = [torch.randn(joint.graph.placeholders[len(primals) + k].spec.shape) for k in range(4)]
    given = copies_of(primals)
    returned = GraphFunction(parts.forward)(*given)
    saved = saved_values(parts, given, returned, joint.n_outputs)
    for undefined in itertools.chain.from_iterable(itertools.combinations(range(4), n) for n in range(5)):
        graph = undefined_tangents.without_tangents(parts.backward, frozenset(undefined))
        verify(graph, functional=True)
        assert len(graph.placeholders) == len(saved) + 4 - len(undefined)
        got = GraphFunction(graph)(*saved, *(t for k, t in enumerate(tangents) if k not in undefined))
        outputs = program(*inputs)
        defined = [k for k in range(4) if k not in undefined]
        want = [None] * 3
        if defined:
            want = torch.autograd.grad(
                [outputs[k] for k in defined], inputs, [tangents[k] for k in defined], allow_unused=True
            )
        of_inputs = {id(t): e for t, e in zip(inputs, want)}
        for g, e in zip(got, (of_inputs[id(primals[i])] for i in joint.gradients)):
            assert e is not None or g is None or not g.any()
            if e is not None:
                torch.testing.assert_close(torch.zeros_like(e) if g is None else g, e)


def test_gradients_that_stay_zero_are_none_and_cost_nothing():
    joint, primals = joint_of(
        lambda x, y: (x.sin(), y.cos()), torch.randn(3).requires_grad_(), torch.randn(3).requires_grad_()
    )
    graph = undefined_tangents.without_tangents(partition(joint, DEFAULT).backward, frozenset({1}))
    found = dict(zip(joint.gradients, graph.output.args[0]))
    assert found[1] is None and found[0] is not None
    assert [str(n.target) for n in graph if n.op == "call_function"] == [
        "aten.cos.default",
        "aten.mul.Tensor",
    ]


@pytest.mark.parametrize("stride", [(4, 1), (1, 3), (0, 1), (8, 2)])
def test_materialized_zeros_have_the_recorded_strides(stride):
    spec = TensorSpec((3, 4), stride, torch.float32, torch.device("cpu"))
    tangent = Node("placeholder", "tangents_1", (), {}, "tangents_1", spec)
    other = Node("placeholder", "tangents_2", (), {}, "tangents_2", spec)
    seen = Node("call_function", aten.as_strided.default, (tangent, [2], [stride[1]], 0), {}, "seen", None)
    larger = Node("call_function", aten.maximum.default, (tangent, other), {}, "larger", spec)
    graph = Graph("aten")
    graph.nodes = [tangent, other, seen, larger, Node("output", "output", ((larger, seen),), {}, "output")]
    without = undefined_tangents.without_tangents(graph, frozenset({0}))
    verify(without)
    (made,) = (
        n for n in without if n.op == "call_function" and n.spec.stride == stride and n.name != "larger"
    )
    assert made.spec == spec
    found, nothing = GraphFunction(without)(torch.full((3, 4), -1.0))
    assert torch.equal(found, torch.zeros(3, 4)) and nothing is None


HEADS = {
    "cholesky": lambda z: torch.linalg.cholesky(z @ z.T + torch.eye(3)),
    "fft": lambda z: torch.fft.fft2(z).real,
    "svd": lambda z: torch.linalg.svdvals(z),
    "put": lambda z: z.put(torch.tensor([1, 2]), torch.ones(2)),
    "logcumsumexp": lambda z: z.logcumsumexp(0),
    "scatter_reduce": lambda z: z.scatter_reduce(0, torch.zeros(1, 3, dtype=torch.int64), z[:1], "mean"),
    "xlogy": lambda z: z.exp().xlogy(2 + z.abs()),
    "cond": lambda z: torch.cond(z.sum() > 0, lambda z: (z @ z).sin(), lambda z: (z @ z).cos(), (z,)),
}


@pytest.mark.parametrize("head", HEADS)
def test_a_result_that_is_not_differentiated_gives_no_gradient(head) -> None:
    """This holds for all operators that its formulas use, and after its history was freed."""
    y, z = torch.randn(3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    leaf, z_before = z, z * 2
    z_before.sum().backward(retain_graph=False)
    leaf.grad = None
    a, _ = smelt.compile(lambda y, z: (y * 2, HEADS[head](z)))(y, z_before)
    a.sum().backward()
    assert leaf.grad is None and torch.equal(y.grad, torch.full((3,), 2.0))
    a, _ = smelt.compile(lambda y, z: (y * 2, HEADS[head](z)))(y, leaf)
    a.sum().backward()
    assert leaf.grad is None


def test_a_value_zero_for_each_tangent_alone_is_computed_for_both() -> None:
    """An empty store makes one gradient zero; with the other it is added, and reads a saved value."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.t().clone()
        y[:, :0] = 3
        return -x.t(), y.clamp_(-9, 9)

    x = torch.randn(0, 4, requires_grad=True)
    a, b = smelt.compile(f)(x)
    (a.sum() + b.sum()).backward()
    assert x.grad is not None and x.grad.shape == (0, 4)


@pytest.mark.parametrize("rows", [0, 5])
@pytest.mark.parametrize(
    "overwrite",
    [
        torch.Tensor.zero_,
        lambda t: t.fill_(3),
        lambda t: t.copy_(torch.ones(t.shape)),
        lambda t: t[:].mul_(0),
    ],
)
def test_the_gradient_of_an_overwritten_value_is_zero_not_none(overwrite, rows):
    """Also where another output, which is not differentiated, adds a gradient: optimizers skip None."""

    def f(x):
        y = x.clone()
        overwrite(y)
        x.add_(1)
        return y, x * 2

    found = []
    for call in (f, smelt.compile(f)):
        x = torch.ones(rows, requires_grad=True)
        y, z = call(x * 1)
        [of_y] = torch.autograd.grad(y.sum(), x, retain_graph=True, allow_unused=True)
        [of_both] = torch.autograd.grad(y.sum() + z.sum(), x, retain_graph=True)
        found.append([of_y, of_both])
    for got, want in zip(*found):
        assert got is not None and torch.equal(got, want)
