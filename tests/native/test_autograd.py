"""The native autograd node on hand-made forwards and backwards, against eager's own nodes.

Most tests use one program, `program(x, w) = exp(x * w), sin(x * w)`, whose backward reads an input of each kind: both
primals, the first output and the product, a temporary. It comes as Python callables and as native plans.
"""

from __future__ import annotations

import gc
import threading
import time
import warnings
import weakref
from contextlib import contextmanager

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from smelt import _native
from smelt.codegen.plan_loading import load
from smelt.plan.register_liveness import with_frees
from smelt.plan.steps import Aten, Plan, Reg, View
from smelt.plan.verify_plan import verify
from tests.harness.threads import in_threads

aten = torch.ops.aten
F32 = torch.float32
SECOND = "for higher derivatives use smelt.disable on it"


def layout(shape, dtype=F32):
    strides = torch.empty(shape, device="meta").stride()
    return (tuple(shape), tuple(strides), dtype)


def native(n_inputs, calls, outputs, **options):
    """A plan of ATen calls: each is (operator, *arguments), arguments that are Reg are registers, and defines the next
    register. What no one returns is freed after its last use."""
    steps = [
        Aten(op, args, {}, (n_inputs + i,), user_visible=op.namespace == "smelt_test_node")
        for i, (op, *args) in enumerate(calls)
    ]
    n = n_inputs + len(calls)
    steps = with_frees(steps, range(0), outputs)
    plan = Plan(n_inputs, (), n, tuple(steps), tuple(outputs), **options)
    verify(plan)
    return load(plan)


def differentiable(forward, backward, shapes, **more):
    """Outputs of these shapes, all differentiable; by default all is saved that `program` saves."""
    spec = {
        "forward": forward,
        "n_outputs": len(shapes),
        "differentiable": [(k, *layout(s)) for k, s in enumerate(shapes)],
        "gradients": (0, 1),
        "saved": [("primal", 0), ("primal", 1), ("output", 0), ("temporary", 0)],
        "backward": backward,
        "name": "TestBackward",
    }
    return _native.Differentiable({**spec, **more})


# ---------------------------------------------------------------------------------------------------- the program


def program(x, w):
    t = x * w
    return t.exp(), t.sin()


def python_forward(inputs):
    x, w = inputs
    t = x * w
    return [t.exp(), t.sin(), t]


def python_backward(mask):
    def backward(arguments):
        x, w, e, t, *tangents = arguments
        tangents.reverse()
        g = torch.zeros_like(t)
        if mask[0]:
            g = g + tangents.pop() * e
        if mask[1]:
            g = g + tangents.pop() * t.cos()
        return g * w, g * x

    return backward


def native_forward():
    calls = [(aten.mul.Tensor, Reg(0), Reg(1)), (aten.exp.default, Reg(2)), (aten.sin.default, Reg(2))]
    return native(2, calls, (3, 4, 2))


def native_backward(mask):
    x, w, e, t = map(Reg, range(4))
    n = 4 + sum(mask)
    calls = []

    def call(*step):
        calls.append(step)
        return Reg(n + len(calls) - 1)

    parts = []
    if mask[0]:
        parts.append(call(aten.mul.Tensor, Reg(4), e))
    if mask[1]:
        parts.append(call(aten.mul.Tensor, Reg(n - 1), call(aten.cos.default, t)))
    g = call(aten.add.Tensor, *parts) if len(parts) == 2 else parts[0]
    outputs = (call(aten.mul.Tensor, g, w).index, call(aten.mul.Tensor, g, x).index)
    return native(n, calls, outputs)


KINDS = {"python": (lambda: python_forward, python_backward), "plan": (native_forward, native_backward)}


@pytest.fixture(params=KINDS)
def compiled(request):
    """`compiled(x, w)` is `program` with a native node. `masks` are the backwards that were asked for."""
    forward, backward = KINDS[request.param]
    masks = []

    def compile_backward(mask, reach=0, requested=()):
        masks.append(mask)
        return backward(mask)  # also the gradients that are not requested, which the node drops

    d = differentiable(forward(), compile_backward, [(3, 4), (3, 4)])

    def call(x, w):
        return d((x, w))

    call.masks, call.d = masks, d
    return call


def leaves(seed=0, shape=(3, 4)):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, requires_grad=True) for _ in range(2)]


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def agree(compiled, use, expected=program):
    """`use(f, x, w)` gives the same whether `f` is eager's program or the compiled one."""
    same(use(compiled, *leaves()), use(expected, *leaves()))


def raised(action):
    with pytest.raises(RuntimeError) as info:
        action()
    return str(info.value)


# ------------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_gradients_for_each_set_of_tangents(compiled, used):
    def use(f, x, w):
        outputs = f(x, w)
        sum((k + 2) * outputs[k].sum() for k in used).backward()
        return [x.grad, w.grad, *outputs]

    agree(compiled, use)
    agree(compiled, use)
    assert compiled.masks == [(0 in used, 1 in used)]  # once
    assert list(compiled.d.backwards) == compiled.masks


def test_the_backward_is_compiled_when_it_is_first_needed(compiled):
    outputs = compiled(*leaves())
    assert compiled.masks == []
    outputs[0].sum().backward()
    assert compiled.masks == [(True, False)]


def node_of(output):
    """Of several outputs each has a node of its own between it and the one of the graph."""
    return output.grad_fn.next_functions[0][0]


def test_undefined_tangents_give_undefined_gradients(compiled):
    y = compiled(*leaves())[0]
    assert y.grad_fn(None) is None and node_of(y)(None) == (None, None)
    assert compiled.masks == []


@pytest.mark.parametrize(
    "gradient",
    [
        lambda y: torch.ones(()).expand(y.shape),
        lambda y: torch.arange(12.0).reshape(4, 3).t(),
        lambda y: torch.arange(24.0).reshape(3, 8)[:, ::2],
        lambda y: torch.arange(12.0, dtype=torch.float64).reshape(3, 4),
        lambda y: torch._neg_view(torch.arange(12.0).reshape(3, 4)),
        lambda y: torch.complex(torch.zeros(3, 4), torch.arange(12.0).reshape(3, 4)).conj().imag,
        lambda y: torch._efficientzerotensor((3, 4)),
        lambda y: torch.nn.Parameter(torch.arange(12.0).reshape(3, 4)),
    ],
    ids=["expanded", "transposed", "strided", "double", "negated", "imaginary", "zero", "parameter"],
)
def test_tangents_in_any_layout(compiled, gradient):
    def use(f, x, w):
        y = f(x, w)[0]
        y.backward(gradient(y))
        return x.grad, w.grad

    agree(compiled, use)


def test_a_sparse_tangent(compiled):
    def use(f, x, w):
        f(x, w)[0].backward(torch.eye(3, 4).to_sparse())
        return [x.grad.to_dense() if x.grad.is_sparse else x.grad]

    agree(compiled, use)


def test_a_tangent_of_another_shape_or_dtype_raises(compiled):
    y = compiled(*leaves())[0]
    assert raised(lambda: y.backward(torch.ones(2))) == raised(
        lambda: program(*leaves())[0].backward(torch.ones(2))
    )
    one = {"saved": [], "n_outputs": 1}
    alone = differentiable(
        lambda i: [i[0] * i[1]], lambda mask: lambda tangents: tangents * 2, [(3, 4)], **one
    )
    (alone,) = alone(tuple(leaves()))
    for bad in (torch.ones(4, 3), torch.ones(3, 4, dtype=torch.float64)):
        assert "gradient of Float[3, 4] is expected, got" in raised(lambda: alone.grad_fn(bad))


def test_batches_of_tangents(compiled):
    def use(f, x, w):
        y, z = f(x, w)
        batch = torch.arange(24.0).reshape(2, 3, 4)
        first = torch.autograd.grad((y, z), (x, w), (batch, batch + 1), is_grads_batched=True)
        second = torch.autograd.functional.jacobian(lambda *i: f(*i)[0].sum(1), (x, w), vectorize=True)
        return first, second

    agree(compiled, use)


def test_transforms_of_a_backward_raise(compiled):
    x, w = leaves()
    y = compiled(x, w)[0]
    pullback = torch.func.vmap(lambda g: torch.autograd.grad(y, x, g, retain_graph=True))
    text = raised(lambda: pullback(torch.ones(2, 3, 4)))
    assert "transforms of torch.func" in text and "compiled backward function within vmap/grad/vjp" in text


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(compiled, reentrant):
    def use(f, x, w):
        h = x * 2
        y = checkpoint(lambda *i: sum(f(*i)).sin(), h, w, use_reentrant=reentrant)
        (y * y).sum().backward()
        return x.grad, w.grad

    agree(compiled, use)


def test_inputs_that_repeat_and_that_are_no_leaves(compiled):
    def twice(f, x, w):
        sum(o.sum() for o in f(x, x)).backward()
        return x.grad

    def inner(f, x, w):
        (f(x * 2, w.t().contiguous().t())[0] * f(x, w + 1)[1]).sum().backward()
        return x.grad, w.grad

    agree(compiled, twice)
    agree(compiled, inner)


def test_only_some_inputs_require_grad(compiled):
    def use(f, x, w):
        w = w.detach()
        y, z = f(x, w)
        (y * z).sum().backward()
        assert w.grad is None
        return x.grad

    agree(compiled, use)


def test_gradients_of_chosen_inputs(compiled):
    def use(f, x, w):
        h = x * 2
        y, z = f(h, w)
        first = torch.autograd.grad(y.sum(), h, retain_graph=True)
        second = torch.autograd.grad((y + z).sum(), (w, x), retain_graph=True)
        z.sum().backward(inputs=[w])
        assert x.grad is None
        return first, second, w.grad

    agree(compiled, use)
    agree(compiled, lambda f, x, w: f(x, w)[0].sum().backward(inputs=(x,)) or (x.grad, w.grad is None))


def test_gradients_accumulate(compiled):
    def use(f, x, w):
        for _ in range(3):
            f(x, w)[0].sum().backward()
        return x.grad, w.grad

    agree(compiled, use)


# ---------------------------------------------------------------------------------------------- without a node


def test_no_node_without_gradients(compiled):
    x, w = leaves()
    with torch.no_grad():
        outputs = compiled(x, w)
    outputs += compiled(x.detach(), w.detach())
    with torch.inference_mode():
        outputs += compiled(x, w)
    assert len(outputs) == 6 and all(o.grad_fn is None and not o.requires_grad for o in outputs)
    same(outputs[:2], program(x.detach(), w.detach()))


def test_the_forward_runs_beneath_autograd_and_autocast():
    seen = []

    def forward(inputs):
        product = inputs[0] @ inputs[1]
        seen.append((product.requires_grad, product.dtype, product.view(-1)._base is None))
        return (product,)

    x, w = leaves(shape=(4, 4))
    d = differentiable(
        forward,
        lambda mask: lambda a: (seen.append(a[0].mm(a[1]).requires_grad), None),
        [(4, 4)],
        saved=[("primal", 0), ("primal", 1)],
    )
    with torch.autocast("cpu", torch.bfloat16):
        d((x, w))[0].sum().backward()
    assert seen == [(False, F32, True), False]


# ------------------------------------------------------------------------------------------------ what comes out


def test_an_input_that_is_returned_is_the_very_object():
    def both(forward):
        return differentiable(
            forward, lambda mask: lambda a: (a[0] * 2, None), [(3, 4), (3, 4)], saved=(), gradients=(0, 1)
        )

    for d in (both(lambda i: (i[0], i[0] * 2)), both(native(2, [(aten.add.Tensor, Reg(0), Reg(0))], (0, 2)))):
        x, w = leaves()
        same_x, y = d((x, w))
        assert same_x is x and x.is_leaf and y.grad_fn.name() == "TestBackward"
        (same_x * 3 + y).sum().backward()
        same(x.grad, torch.full((3, 4), 5.0))


def test_a_tensor_that_is_returned_twice_is_one_object():
    calls = [(aten.mul.Tensor, Reg(0), Reg(1))]
    for forward in (lambda i: (i[0] * i[1],) * 2, native(2, calls, (2, 2))):
        d = differentiable(
            forward,
            lambda mask: lambda a: (a[2] * a[1], a[2] * a[0]) if mask == (True, False) else None,
            [(3, 4), (3, 4)],
            saved=[("primal", 0), ("primal", 1)],
        )
        x, w = leaves()
        a, b = d((x, w))
        assert a is b
        (2 * a + 3 * b).sum().backward()
        same([x.grad, w.grad], [5 * w, 5 * x])


def test_nothing_may_be_returned():
    d = differentiable(
        lambda i: (None, i[0] * 2, 7),
        lambda mask: lambda a: [a[0] * 2, None],
        [()] * 3,
        saved=(),
        differentiable=[(1, *layout((3, 4)))],
    )
    x, w = leaves()
    nothing, y, seven = d((x, w))
    y.sum().backward()
    assert nothing is None and seven == 7 and w.grad is None
    same(x.grad, torch.full((3, 4), 2.0))


def test_what_is_not_differentiable_has_no_history():
    d = differentiable(
        lambda i: (i[0].exp(), i[0].argmax(1), i[0] + 1),
        lambda mask: lambda a: (a[1] * a[0], None),
        [()] * 3,
        differentiable=[(0, *layout((3, 4)))],
        saved=[("output", 0)],
    )
    x, w = leaves()
    y, i, z = d((x, w))
    assert y.requires_grad and not i.requires_grad and not z.requires_grad
    y.sum().backward()
    same(x.grad, y.detach())


def test_an_output_may_be_a_view_of_an_input():
    plan = Plan(1, (), 2, (View(1, 0, (4,), (1,), 4, user_visible=True),), (1,))
    d = differentiable(
        load(plan),
        lambda mask: lambda a: [torch.cat([torch.zeros(1, 4), a[0][None], torch.zeros(1, 4)])],
        [(4,)],
        saved=(),
        gradients=(0,),
    )

    def use(f, x, w):
        h = x * 2
        v = f(h)
        assert v._base is h
        (v * v).sum().backward(retain_graph=True)
        first = x.grad.clone()
        v.mul_(3)  # through the view the base changes, and its history
        h.sum().backward()
        return first, x.grad, h, v

    same(use(lambda h: d((h,))[0], *leaves()), use(lambda h: h[1], *leaves()))


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_input_that_the_forward_writes(kind, view):
    """As x.mul_(w) does: the very object is returned, with the node as its new history."""
    if kind == "plan":
        old = Aten(aten.clone.default, (Reg(0),), {}, (2,))
        product = Aten(aten.mul.Tensor, (Reg(0), Reg(1)), {}, (3,))
        write = Aten(aten.copy_.default, (Reg(0), Reg(3)), {}, (None,), user_visible=True)
        forward = load(Plan(2, (), 4, (old, product, write), (0, 2)))
    else:

        def forward(inputs):
            x, w = inputs
            old = x.clone()
            x.copy_(x * w)
            torch.autograd.graph.increment_version(x)
            return x, old

    d = differentiable(
        forward,
        lambda mask: lambda a: (a[2] * a[0], a[2] * a[1]),
        [(3, 4)],
        saved=[("primal", 1), ("temporary", 0)],
    )

    def use(f, x, w):
        h = x * 2
        base = h
        if view:
            base = torch.cat([h, h + 1])
            h = base[:3]
        version = h._version
        out = f(h, w)
        assert out is h and h._version > version
        (h * h).sum().backward(retain_graph=True)
        (base * 3).sum().backward()
        return x.grad, w.grad, h, base

    same(use(lambda h, w: d((h, w))[0], *leaves()), use(lambda h, w: h.mul_(w), *leaves()))


# ---------------------------------------------------------------------------------------------- saved values, graph


def test_the_graph_can_be_kept_and_is_freed(compiled):
    def use(f, x, w):
        y = f(x, w)[0].sum()
        y.backward(retain_graph=True)
        y.backward()
        return x.grad, w.grad, raised(y.backward)

    got, want = use(compiled, *leaves()), use(program, *leaves())
    same(got[:2], want[:2])
    assert got[2] == want[2] and "second time" in want[2]


@pytest.mark.parametrize("what", ["x", "w", "y", "z"])
def test_version_checks(compiled, what):
    """z is saved by neither; the others by both."""

    def use(f, x, w):
        a, b = x * 1, w * 1
        y, z = f(a, b)
        with torch.no_grad():
            {"x": a, "w": b, "y": y, "z": z}[what].add_(1)
        if what == "z":
            y.sum().backward()
            return x.grad
        return raised(y.sum().backward)

    got, want = use(compiled, *leaves()), use(program, *leaves())
    if what == "z":
        same(got, want)
    else:
        text = (
            "one of the variables needed for gradient computation has been modified by an inplace operation"
        )
        assert text in got and text in want


def test_saved_values_go_through_hooks(compiled):
    def use(f, x, w):
        packed, unpacked = [], []

        def pack(t):
            packed.append(t)
            return len(packed) - 1

        def unpack(i):
            unpacked.append(i)
            return packed[i]

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            y, z = f(x, w)
        assert unpacked == []
        (y + z).sum().backward()
        storages = {t.untyped_storage().data_ptr() for t in packed}
        return len(storages), len(set(unpacked)) == len(packed), x.grad, w.grad

    agree(compiled, use)


def test_saved_values_on_another_device(compiled):
    def use(f, x, w):
        with torch.autograd.graph.save_on_cpu():
            y, z = f(x, w)
        (y * z).sum().backward()
        return x.grad, w.grad

    agree(compiled, use)


def test_an_inference_tensor_cannot_be_saved(compiled):
    with torch.inference_mode():
        i = torch.ones(3, 4)
    x, w = leaves()
    assert raised(lambda: compiled(x, i)) == raised(lambda: x * i)


def test_numbers_are_saved_as_numbers():
    seen = []

    def backward(arguments):
        seen.append(arguments[:2])
        return [arguments[2] * arguments[0] * arguments[1]]

    scale = native(
        3, [(aten.mul.Tensor, Reg(2), Reg(0)), (aten.mul.Tensor, Reg(3), Reg(1))], (4,), numbers=(0, 1)
    )
    forward = native(
        3, [(aten.mul.Tensor, Reg(0), Reg(1)), (aten.mul.Tensor, Reg(3), Reg(2))], (4,), numbers=(1, 2)
    )
    for made in (lambda mask: backward, lambda mask: scale):
        d = differentiable(forward, made, [(3, 4)], gradients=(0,), saved=[("primal", 1), ("primal", 2)])
        x, _ = leaves()
        d((x, 3, 0.5))[0].sum().backward()
        same(x.grad, torch.full((3, 4), 1.5))
    assert seen == [(3, 0.5)] and [type(n) for n in seen[0]] == [int, float]
    with pytest.raises(TypeError, match="cannot save input 1"):
        differentiable(lambda i: (i[0] * 2,), made, [(3, 4)], gradients=(0,), saved=[("primal", 1)])((x, "s"))


@contextmanager
def operator(name, schema, function):
    """An operator from outside torch, torch.ops.smelt_test_node.<name>."""
    library = torch.library.Library("smelt_test_node", "FRAGMENT")
    library.define(name + schema)
    library.impl(name, function, "CPU")
    try:
        yield getattr(torch.ops.smelt_test_node, name).default
    finally:
        library._destroy()


@pytest.mark.parametrize("keep", [False, True])
def test_saved_values_are_freed_as_the_plan_goes(keep):
    """The plan reads x first; when its second step runs, only a kept graph still holds x."""
    alive = []

    def look(t):
        alive.append(ref() is not None)
        return t.clone()

    with operator("look", "(Tensor t) -> Tensor", look) as op:
        x, w = leaves()
        h = (x * 2).clone()
        ref = weakref.ref(h)
        plan = native(2, [(aten.mul.Tensor, Reg(0), Reg(1)), (op, Reg(2))], (3,))
        d = differentiable(
            lambda i: (i[0] * i[0] / 2,), lambda mask: plan, [(3, 4)], gradients=(0,), saved=[("primal", 0)]
        )
        (y,) = d((h,))
        y = y.sum()
        del h
        y.backward(retain_graph=keep)
        assert alive == [keep] and (ref() is not None) == keep
        same(x.grad, 4 * x)


def test_views_in_a_plan_outlive_what_they_view():
    """The saved values are only the plan's. After the view is taken, memory of their size is asked for and filled."""
    n = 1 << 16
    steps = (
        View(3, 0, (n,), (1,), 0),
        Aten(aten.split.Tensor, (Reg(1), n // 2), {}, (4, 5)),
        Aten(aten.full.default, ([n], 7.0), {}, (6,)),
        Aten(aten.full.default, ([n], 7.0), {}, (7,)),
        Aten(aten.cat.default, ([Reg(4), Reg(5)],), {}, (8,)),
        Aten(aten.mul.Tensor, (Reg(3), Reg(8)), {}, (9,)),
        Aten(aten.mul.Tensor, (Reg(9), Reg(2)), {}, (10,)),
    )
    plan = load(Plan(3, (), 11, tuple(with_frees(steps, range(0), (10,))), (10,)))
    d = differentiable(
        lambda i: (i[0] * 1, i[0].sin(), i[0].cos()),
        lambda mask: plan,
        [(n,)],
        n_outputs=1,
        gradients=(0,),
        saved=[("temporary", 0), ("temporary", 1)],
    )
    x, _ = leaves(shape=(n,))
    d((x,))[0].sum().backward()
    same(x.grad, (x.sin() * x.cos()).detach())


def test_saved_values_die_with_the_graph(compiled):
    x, w = leaves()
    h = x * 2
    ref = weakref.ref(h)
    y = compiled(h, w)[0]
    del h
    assert ref() is not None
    del y
    assert ref() is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_gradient_is_taken_not_copied(kind):
    made = []

    def make(t):
        result = t * 2
        made.append(result.data_ptr())
        return result

    with operator("make", "(Tensor t) -> Tensor", make) as op:
        plan = native(1, [(op, Reg(0))], (1,))
        backward = plan if kind == "plan" else lambda a: (make(a[0]),)
        d = differentiable(lambda i: (i[0] * 2,), lambda mask: backward, [(3, 4)], gradients=(0,), saved=())
        x, _ = leaves()
        d((x,))[0].sum().backward()
        assert [x.grad.data_ptr()] == made


# ----------------------------------------------------------------------------------------------- second derivatives


def test_create_graph_gives_gradients_that_cannot_be_differentiated(compiled):
    x, w = leaves()
    y = compiled(x, w)[0].sum()
    first = torch.autograd.grad(y, (x, w), create_graph=True)
    same(first, torch.autograd.grad(program(x, w)[0].sum(), (x, w)))
    assert SECOND in raised(lambda: first[0].sum().backward(retain_graph=True))
    assert SECOND in raised(lambda: torch.autograd.grad(first[0].sum(), w, retain_graph=True))
    assert SECOND in raised(lambda: torch.autograd.grad((first[1] * x).sum(), x))


def test_create_graph_and_tangents_with_a_history(compiled):
    x, w = leaves()
    scale = torch.tensor(2.0, requires_grad=True)
    y = (compiled(x, w)[1] * scale).sum()
    (gx,) = torch.autograd.grad(y, x, create_graph=True)
    assert SECOND in raised(lambda: torch.autograd.grad(gx.sum(), scale))


def test_create_graph_where_the_backward_is_constant():
    """x + 1: the gradient is the tangent, its history is its own."""
    for backward in (native(1, [], (0,)), lambda a: a):
        d = differentiable(lambda i: (i[0] + 1,), lambda mask: backward, [(3, 4)], gradients=(0,), saved=())

        def use(f, x, w):
            y = f(x)
            (g,) = torch.autograd.grad((y * y * w).sum(), x, create_graph=True)
            g.sum().backward()
            return g, x.grad, w.grad

        same(use(lambda x: d((x,))[0], *leaves()), use(lambda x: x + 1, *leaves()))


def test_create_graph_accumulates(compiled):
    def use(f, x, w):
        for _ in range(2):
            f(x, w)[0].sum().backward(create_graph=True)
        result = x.grad.detach().clone(), x.grad.requires_grad
        x.grad = w.grad = None  # the cycle
        return result

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        agree(compiled, use)


# -------------------------------------------------------------------------------------------------------- hooks


def test_hooks_run_as_in_eager(compiled):
    def use(f, x, w):
        log = []
        h = x * 2
        h.retain_grad()
        x.register_hook(lambda g: log.append(("x", g.clone())))
        x.register_post_accumulate_grad_hook(lambda t: log.append(("x.grad", t.grad.clone())))
        h.register_hook(lambda g: g * 2)
        y, z = f(h, w)
        y.retain_grad()
        y.register_hook(lambda g: g * 3)
        y.register_hook(lambda g: log.append(("y", g.clone())))
        z.register_hook(lambda g: torch.zeros_like(g))
        (y * y + z).sum().backward()
        return log, h.grad, y.grad, x.grad, w.grad

    def names(log):
        return sorted((name, t.sum().item()) for name, t in log)

    got, want = use(compiled, *leaves()), use(program, *leaves())
    assert [n for n, _ in names(got[0])] == [n for n, _ in names(want[0])]
    same([v for _, v in names(got[0])], [v for _, v in names(want[0])])
    same(got[1:], want[1:])


def test_hooks_of_the_node(compiled):
    x, w = leaves()
    y, z = compiled(x, w)
    node = node_of(y)
    assert node is node_of(z) and node.name() == "TestBackward" and "<TestBackward>" in repr(y)
    assert [f.variable is leaf for (f, _), leaf in zip(node.next_functions, (x, w))] == [True, True]
    log = []
    for output in (y, z):
        output.grad_fn.register_prehook(lambda tangents: log.append([t is None for t in tangents]) or None)
    node.register_hook(lambda gradients, tangents: log.append((len(gradients), len(tangents))) or None)
    y.sum().backward()
    assert log == [[False], (2, 1)]


def test_the_profiler_names_the_node(compiled):
    with torch.profiler.profile() as profile:
        compiled(*leaves())[0].sum().backward()
    assert any("TestBackward" in event.key for event in profile.key_averages())


def test_anomaly_mode(compiled):
    x, w = leaves()
    with torch.autograd.detect_anomaly(check_nan=True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = compiled(x, w)[0]
        assert "test_anomaly_mode" in "".join(y.grad_fn.metadata["traceback_"])
        text = raised(lambda: y.backward(torch.full((3, 4), torch.nan)))
    assert "TestBackward' returned nan values" in text
    assert any("test_anomaly_mode" in str(c.message) for c in caught)


# -------------------------------------------------------------------------------------------------------- errors


class Broken(Exception):
    pass


def test_an_error_while_compiling_comes_out_and_may_be_overcome(compiled):
    broken = [Broken("once")]

    def compile_backward(mask):
        if broken:
            raise broken[0]
        return python_backward(mask)

    d = differentiable(python_forward, compile_backward, [(3, 4), (3, 4)])

    def use(f, x, w):
        y = f(x, w)[0].sum()
        if f is not program:
            with pytest.raises(Broken) as info:
                y.backward()
            assert info.value is broken.pop()
        y.backward()
        return x.grad, w.grad

    agree(lambda x, w: d((x, w)), use)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_errors_of_the_code_itself_come_out(where):
    def broken(*arguments):
        raise Broken("here")

    forward = broken if where == "forward" else python_forward
    d = differentiable(forward, lambda mask: broken, [(3, 4), (3, 4)])
    with pytest.raises(Broken, match="here"):
        d(tuple(leaves()))[0].sum().backward()


def test_backwards_that_return_something_else():
    for backward, error, text in (
        (lambda a: (None,), RuntimeError, "returned 1 gradients, 2 are expected"),
        (lambda a: (1, 2), TypeError, "returned a int for a gradient"),
        (lambda a: 1, TypeError, "must return a sequence"),
    ):
        d = differentiable(python_forward, lambda mask, b=backward: b, [(3, 4), (3, 4)])
        with pytest.raises(error, match=text):
            d(tuple(leaves()))[0].sum().backward()
    for made, error in ((3, TypeError), (native(2, [], (0, 1)), ValueError)):
        d = differentiable(python_forward, lambda mask, m=made: m, [(3, 4), (3, 4)])
        with pytest.raises(error, match="Differentiable: the "):
            d(tuple(leaves()))[0].sum().backward()


def test_wrong_calls_and_specs_raise(compiled):
    with pytest.raises(TypeError, match="one tuple"):
        compiled.d(list(leaves()))
    with pytest.raises(TypeError, match="inputs expected, got 1"):
        compiled.d((leaves()[0],))
    for wrong, text in (
        ({"extra": 1}, "unknown key 'extra'"),
        ({"saved": [("other", 0)]}, "unknown kind of saved value other"),
        ({"saved": [("output", 2)]}, "no such output"),
        ({"differentiable": [(2, *layout(()))]}, "no such output"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            differentiable(python_forward, python_backward, [(3, 4), (3, 4)], **wrong)
    with pytest.raises(TypeError, match="backward must be callable"):
        differentiable(python_forward, None, [(3, 4), (3, 4)])
    with pytest.raises(ValueError, match="too few inputs or outputs"):
        differentiable(native(2, [], (0,)), python_backward, [(3, 4), (3, 4)])
    with pytest.raises(TypeError, match="is missing"):
        _native.Differentiable({"forward": python_forward})
    d = differentiable(lambda i: [i[0] * 1], python_backward, [(3, 4), (3, 4)])
    with pytest.raises(RuntimeError, match="the forward returned 1 values, 3 are expected"):
        d(tuple(leaves()))


# ---------------------------------------------------------------------------------------------- threads, lifetimes


def test_backward_in_another_thread(compiled):
    def use(f, x, w):
        y = f(x, w)[0].sum()
        in_threads([y.backward])
        return x.grad, w.grad

    agree(compiled, use)


def test_concurrent_calls(compiled):
    def work(seed):
        for i in range(100):
            x, w = leaves(seed * 1000 + i)
            y, z = compiled(x, w)
            (y + z).sum().backward()
            a, b = x.detach().requires_grad_(), w.detach().requires_grad_()
            y, z = program(a, b)
            (y + z).sum().backward()
            same([x.grad, w.grad], [a.grad, b.grad])

    in_threads([lambda s=s: work(s) for s in range(4)])
    assert compiled.masks == [(True, True)]


def test_threads_that_need_one_backward_compile_it_once():
    compiling, lock = [], threading.RLock()

    def compile_backward(mask):
        compiling.append(mask)
        other = threading.Thread(target=lambda: free.append(lock.acquire(blocking=False)))
        other.start()
        other.join()
        time.sleep(0.1)
        return python_backward(mask)

    free = []
    d = differentiable(python_forward, compile_backward, [(3, 4), (3, 4)], lock=lock)
    in_threads([lambda: d(tuple(leaves()))[0].sum().backward() for _ in range(4)])
    assert compiling == [(True, False)] and free == [False]  # and the lock of the spec was held


def test_one_graph_differentiated_by_several_threads(compiled):
    x, w = leaves()
    y = compiled(x, w)[0].sum()
    results = []
    in_threads(
        [
            lambda: [results.append(torch.autograd.grad(y, (x, w), retain_graph=True)) for _ in range(20)]
            for _ in range(4)
        ]
    )
    want = torch.autograd.grad(program(x, w)[0].sum(), (x, w))
    assert len(results) == 80
    for got in results:
        same(got, want)


def test_the_collector_sees_through_it():
    class Owner:
        pass

    owner = Owner()
    owner.d = differentiable(python_forward, lambda mask, o=owner: python_backward(mask), [(3, 4), (3, 4)])
    owner.d(tuple(leaves()))[0].sum().backward()
    ref = weakref.ref(owner)
    del owner
    gc.collect()
    assert ref() is None


def test_a_graph_outlives_its_differentiable():
    class Owner:
        pass

    owner = Owner()
    owner.d = differentiable(python_forward, lambda mask, o=owner: python_backward(mask), [(3, 4), (3, 4)])
    x, w = leaves()
    y = owner.d((x, w))[0]
    ref = weakref.ref(owner)
    del owner
    gc.collect()
    y.sum().backward()
    a, b = leaves()
    program(a, b)[0].sum().backward()
    same([x.grad, w.grad], [a.grad, b.grad])
    del y
    gc.collect()
    assert ref() is None


def test_a_graph_that_dies_without_the_gil(compiled):
    """The engine frees the nodes that it has passed while it runs native code."""
    for _ in range(20):
        x, w = leaves()
        forward, backward = KINDS["plan"]
        y = differentiable(forward(), backward, [(3, 4), (3, 4)])((x, w))[0]
        loss = (y * 2).sum()
        del y
        hold = [loss]
        in_threads([lambda hold=hold: hold.pop().backward()])
        assert x.grad is not None


def test_a_backward_inside_a_backward(compiled):
    """As checkpoints do it. The outer one's Python code runs beneath autograd, so it leaves that first."""

    def backward(arguments):
        x, w = leaves(3)
        included = torch._C._dispatch_tls_local_include_set()
        nothing = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
        with torch._C._ForceDispatchKeyGuard(included, nothing), torch.enable_grad():
            compiled(x, w)[0].sum().backward()
        return x.grad, w.grad

    d = differentiable(python_forward, lambda mask: backward, [(3, 4), (3, 4)])
    x, w = leaves()
    d((x, w))[0].sum().backward()
    a, b = leaves(3)
    program(a, b)[0].sum().backward()
    same([x.grad, w.grad], [a.grad, b.grad])
