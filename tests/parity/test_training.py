"""What users do with results of a compiled function and with backward: eager's gradients, errors and hooks."""

from __future__ import annotations

import functools
import gc
import itertools
import threading
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from tests.harness.threads import in_threads
from tests.harness.training import both, gradients, leaf, raised


def layer(x, w):
    return (x @ w).tanh() * w.sum()


# ---------------------------------------------------------------------------------------------- calls of backward


@both()
def test_one_backward(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    y = f(x, w)
    y.sum().backward()
    return y, gradients(x, w)


@both()
def test_retain_graph_gives_the_same_each_time(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    y = f(x, w)
    found = []
    for _ in range(3):
        y.pow(2).sum().backward(retain_graph=True)
        found.append(gradients(x, w))
        x.grad = w.grad = None
    return found


@both()
def test_backward_twice_raises(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    y = f(x, w).sum()
    y.backward()
    error = raised(y.backward)
    assert error is not None and error[1].startswith("Trying to backward through the graph a second time")
    return error, gradients(x, w)


@both()
def test_backward_after_one_that_retained_raises_only_then(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    y = f(x, w).sum()
    y.backward(retain_graph=True)
    y.backward()
    return raised(y.backward), gradients(x, w)


@both()
def test_backward_twice_where_nothing_is_saved(compile):
    f, x = compile(lambda x: (x + 1).t()), leaf(2, 3)
    y = f(x)
    tangent = torch.randn(3, 2)
    y.backward(tangent)
    y.backward(tangent)
    return gradients(x)


@both()
def test_backward_of_each_output_in_turn(compile):
    """Outputs that share nothing: the first backward frees nothing that the second needs."""
    f, x, w = compile(lambda x, w: (x.sin() * 2, w.exp() + 1)), leaf(3), leaf(3)
    a, b = f(x, w)
    a.sum().backward()
    b.sum().backward()
    return gradients(x, w)


@both()
def test_backward_of_each_output_in_turn_through_what_they_share(compile):
    def fn(x):
        h = x.sin()
        return h * 2, h.exp()

    f, x = compile(fn), leaf(3)
    a, b = f(x)
    a.sum().backward()
    return raised(lambda: b.sum().backward()), gradients(x)


@both()
def test_backward_without_grad_mode(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    y = f(x, w).sum()
    with torch.no_grad():
        y.backward()
    return gradients(x, w)


@both()
def test_create_graph_first_order(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    found = torch.autograd.grad(f(x, w).sum(), (x, w), create_graph=True)
    return [g.detach() for g in found]


@pytest.mark.parametrize("backend", ["aot_eager", "smelt"])
def test_second_order_is_right_or_says_what_to_do(backend):
    def second(fn):
        torch.manual_seed(0)
        x, w = leaf(2, 3), leaf(3, 3)
        g, h = torch.autograd.grad(fn(x, w).pow(2).sum(), (x, w), create_graph=True)
        (g.pow(2).sum() + h.pow(2).sum()).backward()
        return x.grad, w.grad

    try:
        got = second(smelt.compile(layer, backend=backend))
    except RuntimeError as error:
        assert "smelt" in str(error)
        return
    for g, want in zip(got, second(layer)):
        torch.testing.assert_close(g, want)


@both()
def test_accumulation_over_steps(compile):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    f, kept = compile(model), []
    for step in range(3):
        f(torch.randn(5, 3)).pow(2).sum().backward()
        kept.append([p.grad for p in model.parameters()])
        assert all(a is b for a, b in zip(kept[0], kept[-1])), step
    return gradients(*model.parameters())


@both()
def test_zero_grad_to_none_and_to_zero(compile):
    model = nn.Linear(3, 2)
    f, found = compile(model), []
    for to_none in (True, False, False, True):
        model.zero_grad(set_to_none=to_none)
        f(torch.randn(5, 3)).pow(2).sum().backward()
        found.append(gradients(*model.parameters()))
    return found


@both()
def test_several_calls_then_one_backward(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    total = sum(f(x * k, w).sum() for k in range(3))
    total.backward()
    return gradients(x, w)


@both()
def test_chained_calls(compile):
    f, x, w = compile(layer), leaf(3, 3), leaf(3, 3)
    f(f(f(x, w), w), w).sum().backward()
    return gradients(x, w)


@both()
def test_backward_of_an_older_call_after_newer_ones(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    results = [f(x + k, w).sum() for k in range(3)]
    found = []
    for y in reversed(results):
        y.backward()
        found.append(gradients(x, w))
    return found


@both()
def test_results_dropped_without_backward(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    for _ in range(3):
        f(x, w)
    y = f(x, w)
    y.sum().backward()
    return gradients(x, w)


@both()
def test_what_is_saved_is_freed(compile):
    """By the backward, even while the result lives; without one, with the result."""

    def alive(reference):
        gc.collect()
        return reference() is not None

    f, w, found = compile(lambda x, w: (x * w).exp()), leaf(3), []
    x = leaf(3)
    reference, y = weakref.ref(x), f(x, w)
    del x
    found.append(alive(reference))
    del y
    found.append(alive(reference))
    h = torch.randn(3)
    reference, y = weakref.ref(h), f(h, w)
    del h
    found.append(alive(reference))
    y.sum().backward()
    found.append(alive(reference))
    return found, gradients(w)


# ------------------------------------------------------------------------------------------------------- grad


def three(x, w, b):
    h = x * w
    return h.sin(), h + b, b.exp()


@both()
@pytest.mark.parametrize("wanted", ["x", "w", "b", "xw", "wb", "bx", "xwb", "xx"])
def test_grad_of_subsets(compile, wanted):
    f = compile(three)
    inputs = dict(x=leaf(2, 3), w=leaf(2, 3), b=leaf(3))
    total = sum(y.pow(2).sum() for y in f(**inputs))
    found = torch.autograd.grad(total, [inputs[name] for name in wanted])
    return found, [t.grad for t in inputs.values()]


@both()
@pytest.mark.parametrize("outputs", [c for n in (1, 2, 3) for c in itertools.combinations(range(3), n)])
def test_grad_of_some_outputs_leaves_out_what_they_do_not_use(compile, outputs):
    f, x, w, b = compile(three), leaf(2, 3), leaf(2, 3), leaf(3)
    results = f(x, w, b)
    chosen = [results[i] for i in outputs]
    tangents = [torch.randn_like(y) for y in chosen]
    found = torch.autograd.grad(chosen, (x, w, b), tangents, retain_graph=True, allow_unused=True)
    again = torch.autograd.grad(chosen, (x, w, b), tangents, retain_graph=True, allow_unused=True)
    strict = raised(lambda: torch.autograd.grad(chosen, (x, w, b), tangents))
    return found, again, strict


@both()
def test_some_outputs_leave_grad_none(compile):
    f, x, w, b = compile(three), leaf(2, 3), leaf(2, 3), leaf(3)
    f(x, w, b)[2].sum().backward()
    first = gradients(x, w, b)
    f(x, w, b)[0].sum().backward()
    return first, gradients(x, w, b)


@both()
def test_outputs_in_turn_with_retain_graph(compile):
    f, x, w, b = compile(three), leaf(2, 3), leaf(2, 3), leaf(3)
    found = []
    results = f(x, w, b)
    for y in (*results, *reversed(results)):
        y.pow(2).sum().backward(retain_graph=True)
        found.append(gradients(x, w, b))
    return found


@both()
def test_allow_unused(compile):
    def fn(x, w, unused):
        return x * 2 + w.detach() + unused.shape[0]

    f, x, w, unused = compile(fn), leaf(3), leaf(3), leaf(3)
    found = torch.autograd.grad(f(x, w, unused).sum(), (x, w, unused), allow_unused=True)
    zeros = torch.autograd.grad(f(x, w, unused).sum(), (x, w, unused), materialize_grads=True)
    strict = raised(lambda: torch.autograd.grad(f(x, w, unused).sum(), (x, w, unused)))
    return found, zeros, strict


@both()
def test_grad_with_respect_to_what_is_between(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    h = x.sin()
    y = f(h, w)
    z = y.exp()
    return torch.autograd.grad(z.sum(), (h, y)), [x.grad, w.grad]


@both()
def test_backward_with_chosen_inputs(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    f(x, w).sum().backward(inputs=[w])
    return gradients(x, w)


@both()
def test_batched_tangents(compile):
    """`is_grads_batched` runs the backward under vmap."""
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    y = f(x, w)
    return torch.autograd.grad(y, (x, w), torch.randn(4, *y.shape), is_grads_batched=True)


@both()
@pytest.mark.parametrize("vectorize", [False, True])
def test_jacobian(compile, vectorize):
    f, w = compile(layer), leaf(3, 3)
    x = torch.randn(2, 3)
    return torch.autograd.functional.jacobian(lambda x: f(x, w), x, vectorize=vectorize)


# ---------------------------------------------------------------------------------------------------- tangents

TANGENTS = {
    "contiguous": lambda y: torch.randn(y.shape),
    "transposed": lambda y: torch.randn(y.shape[1], y.shape[0]).t(),
    "every second": lambda y: torch.randn(y.shape[0], 2 * y.shape[1])[:, ::2],
    "expanded": lambda y: torch.randn(()).expand(y.shape),
    "a row": lambda y: torch.randn(y.shape[1]).expand(y.shape),
    "a column": lambda y: torch.randn(y.shape[0], 1).expand(y.shape),
    "with an offset": lambda y: torch.randn(y.numel() + 1)[1:].view(y.shape),
    "other strides of the same size": lambda y: torch.empty_strided(y.shape, (1, y.shape[0])).normal_(),
    "zeros": lambda y: torch.zeros(y.shape),
    "conjugate bit, real": lambda y: torch.randn(y.shape, dtype=torch.complex64).conj().real,
    "negative bit": lambda y: torch.randn(y.shape, dtype=torch.complex64).conj().imag,
    "double": lambda y: torch.randn(y.shape, dtype=torch.float64),
    "requires grad": lambda y: leaf(*y.shape),
    "itself": lambda y: y.detach(),
}


@both()
@pytest.mark.parametrize("name", TANGENTS)
def test_tangents(compile, name):
    f, x, w = compile(layer), leaf(4, 4), leaf(4, 4)
    y = f(x, w)
    tangent = TANGENTS[name](y)
    before = tangent.detach().clone()
    y.backward(tangent)
    assert torch.equal(tangent, before)
    return gradients(x, w)


@both()
def test_tangents_change_from_call_to_call(compile):
    f, x, w = compile(layer), leaf(4, 4), leaf(4, 4)
    found = []
    for make in TANGENTS.values():
        y = f(x, w)
        y.backward(make(y))
        found.append(gradients(x, w))
    return found


@both()
def test_tangents_of_other_memory_formats(compile):
    f = compile(lambda x, w: F.conv2d(x, w).relu())
    found = []
    for form in (torch.contiguous_format, torch.channels_last):
        x, w = leaf(2, 3, 5, 5), leaf(4, 3, 3, 3)
        y = f(x, w)
        y.backward(torch.randn(y.shape).to(memory_format=form))
        found.append(gradients(x, w))
    return found


@both()
def test_inputs_of_other_memory_formats(compile):
    f = compile(lambda x, w: F.max_pool2d(F.conv2d(x, w), 2) * 2)
    x = torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
    w = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    f(x, w).sum().backward()
    return gradients(x, w)


@both()
def test_a_tangent_of_the_wrong_shape_raises(compile):
    f, x = compile(lambda x: x.sin()), leaf(2, 3)
    return raised(lambda: f(x).backward(torch.ones(3, 2))), raised(lambda: f(x).backward()), gradients(x)


@both()
def test_gradients_do_not_share_memory(compile):
    f, x, w = compile(lambda x, w: x + w), leaf(3), leaf(3)
    tangent = torch.randn(3)
    f(x, w).backward(tangent)
    x.grad.mul_(2)
    return gradients(x, w), tangent


@both()
def test_gradients_do_not_share_memory_with_what_is_saved(compile):
    f, x, w = compile(lambda x, w: (x * w).sum()), leaf(3), leaf(3)
    y = f(x, w)
    y.backward(retain_graph=True)
    with torch.no_grad():
        x.grad.add_(5)
        w.grad.add_(7)
    y.backward()
    return gradients(x, w), x, w


@both()
def test_some_tangents_of_several_are_none(compile):
    f, x, w, b = compile(three), leaf(2, 3), leaf(2, 3), leaf(3)
    y = f(x, w, b)
    torch.autograd.backward([y[0].sum(), y[2]], [None, torch.randn(3)])
    return gradients(x, w, b)


@both()
def test_tangents_that_eager_operators_leave_undefined(compile):
    """A node between that returns no gradient for one of two outputs."""

    class First(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a + b

        @staticmethod
        def backward(ctx, g):
            return g, None

    f, x, w, b = compile(three), leaf(2, 3), leaf(2, 3), leaf(3)
    p, q, _ = f(x, w, b)
    First.apply(p, q).sum().backward()
    return gradients(x, w, b)


# ------------------------------------------------------------------------------------------------------- hooks


@both()
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("computed", [False, True])
def test_hook_on_an_input(compile, when, computed):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    h, seen = (x * 1.5 if computed else x), []

    def hook(g):
        seen.append(g.clone())
        return g * 2

    if when == "before":
        h.register_hook(hook)
    y = f(h, w).sum()
    if when == "after":
        h.register_hook(hook)
    y.backward()
    return seen, gradients(x, w)


@both()
def test_hook_on_an_output(compile):
    f, x, w, b, seen = compile(three), leaf(2, 3), leaf(2, 3), leaf(3), []
    results = f(x, w, b)
    for i, y in enumerate(results):
        y.register_hook(lambda g, i=i: (seen.append((i, g.clone())), g * (i + 2))[1])
    sum(y.sum() for y in results).backward()
    return sorted(seen, key=lambda pair: pair[0]), gradients(x, w, b)


@both()
def test_hook_on_an_output_without_a_gradient(compile):
    f, x, w, b, seen = compile(three), leaf(2, 3), leaf(2, 3), leaf(3), []
    results = f(x, w, b)
    results[0].register_hook(seen.append)
    results[2].sum().backward()
    return seen, gradients(x, w, b)


@both()
def test_outputs_in_a_row_of_which_each_is_computed_from_the_one_before(compile):
    """What flows into one of them may be the tangent of the next, as it is."""

    def fn(x):
        x = x * 1
        y = x + 1
        return x, y, -y

    f, x, found = compile(fn), leaf(2, 3), []
    for y in f(x):
        (y * torch.arange(6.0).view(2, 3)).sum().backward(retain_graph=True)
        found.append(x.grad.clone())
    return found


@both()
def test_gradient_with_respect_to_an_output_that_another_uses(compile):
    def fn(x, w):
        logits = x @ w
        return logits.pow(2).sum(), logits

    f, x, w = compile(fn), leaf(2, 3), leaf(3, 3)
    loss, logits = f(x, w)
    return torch.autograd.grad(loss, logits, allow_unused=True)


@both()
def test_hook_that_is_removed_again(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    y = f(x, w)
    handle = y.register_hook(lambda g: g * 10)
    y.sum().backward(retain_graph=True)
    handle.remove()
    y.sum().backward()
    return gradients(x, w)


@both()
def test_hooks_on_parameters(compile):
    model, seen = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), []
    for p in model.parameters():
        p.register_hook(lambda g: g * 3)
        p.register_post_accumulate_grad_hook(lambda p: seen.append(tuple(p.grad.shape)))
    f = compile(model)
    for _ in range(2):
        f(torch.randn(5, 3)).sum().backward()
    return sorted(seen), gradients(*model.parameters())


@both()
def test_an_optimizer_in_hooks_after_accumulation(compile):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizers = {p: torch.optim.SGD([p], 0.1, momentum=0.9) for p in model.parameters()}

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    f = compile(model)
    for _ in range(3):
        f(torch.randn(5, 3)).pow(2).sum().backward()
    return list(model.parameters())


@both()
def test_retained_gradients(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    h = x * 2
    y = f(h, w)
    h.retain_grad()
    y.retain_grad()
    y.exp().sum().backward()
    return gradients(h, y, x, w)


@both()
def test_hook_on_the_node_of_a_result(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    y, seen = f(x, w), []
    y.grad_fn.register_prehook(lambda grads: (seen.append(grads[0].clone()), (grads[0] * 2,))[1])
    y.sum().backward()
    return seen, gradients(x, w)


@both()
def test_a_hook_that_raises(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)

    def hook(g):
        raise KeyError("hook")

    y = f(x, w)
    handle = y.register_hook(hook)
    error = raised(lambda: y.sum().backward(retain_graph=True))
    handle.remove()
    y.sum().backward()
    return error, gradients(x, w)


@both()
def test_backward_inside_a_hook(compile):
    f, x, w, other = compile(layer), leaf(2, 3), leaf(3, 3), leaf(2, 3)
    y = f(x, w)

    @torch.enable_grad()
    def hook(g):
        f(other, w.detach()).sum().backward()

    y.register_hook(hook)
    y.sum().backward()
    return gradients(x, w, other)


@both()
def test_hooks_of_saved_tensors(compile):
    """What is packed is unpacked for the backward, and gives the same gradients."""
    f, x, w, found = compile(layer), leaf(2, 3), leaf(3, 3), []
    with torch.autograd.graph.save_on_cpu():
        y = f(x, w)
    y.sum().backward()
    found += gradients(x, w)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: [t.detach().clone()], lambda held: held[0]):
        y = f(x, w)
    with torch.no_grad():
        x.add_(1)  # packed as a copy: eager does not mind
    y.sum().backward()
    return found, gradients(x, w)


@both(ahead=False)  # the mode looks at every gradient
@pytest.mark.filterwarnings("ignore")
def test_anomaly_mode(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    with torch.autograd.detect_anomaly(check_nan=True):
        f(x, w).sum().backward()
        error = raised(lambda: f(x, w * float("nan")).sum().backward())
    return gradients(x), error and error[0]


def nan_in_the_backward(x):
    y = x * 0
    return y.sqrt().sum()


@both(ahead=False)
def test_anomaly_mode_names_the_line_of_the_forward(compile):
    f, x = compile(nan_in_the_backward), leaf(2, 3)
    with warnings.catch_warnings(record=True) as caught, torch.autograd.detect_anomaly():
        warnings.simplefilter("always")
        error = raised(lambda: f(x).backward())
    last = str(caught[-1].message).partition("\n (Trig")[0].splitlines()[-2:]
    return error and error[0], "MulBackward0" in str(caught[-1].message), last


# ----------------------------------------------------------------------------------------------- other threads


@both()
def test_backward_on_another_thread(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    y = f(x, w)
    in_threads([lambda: y.sum().backward()])
    return gradients(x, w)


@both()
def test_each_thread_trains_its_own(compile):
    f, found = compile(layer), {}
    inputs = [(leaf(4, 3), leaf(3, 3)) for _ in range(4)]
    f(*inputs[0]).sum().backward()
    x, w = inputs[0]
    x.grad = w.grad = None

    def train(number):
        x, w = inputs[number]
        for _ in range(20):
            f(x, w).pow(2).sum().backward()
        found[number] = gradients(x, w)

    in_threads(functools.partial(train, n) for n in range(4))
    return [found[n] for n in range(4)]


@both()
def test_first_backwards_of_one_graph_at_once(compile):
    """The backward is compiled by whichever comes first."""
    f, x, w, found = compile(layer), leaf(4, 3), leaf(3, 3), {}
    y = f(x, w).sum()
    start = threading.Barrier(4)

    def run(number):
        start.wait()
        found[number] = torch.autograd.grad(y, (x, w), retain_graph=True)

    in_threads(functools.partial(run, n) for n in range(4))
    return [found[n] for n in range(4)]


# ------------------------------------------------------------------------------------ dtypes, sizes, switches


@both()
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_dtypes(compile, dtype):
    f, x, w = compile(lambda x, w: (x * w + x.sin()).mean()), leaf(2, 3, dtype=dtype), leaf(3, dtype=dtype)
    f(x, w).abs().backward()
    return gradients(x, w)


@both()
def test_mixed_dtypes(compile):
    f, x, w = compile(lambda x, w: (x.double() * w).float() + x), leaf(2, 3), leaf(3, dtype=torch.float64)
    f(x, w).pow(2).sum().backward()
    return gradients(x, w)


@both()
def test_no_elements_and_no_dimensions(compile):
    f, found = compile(lambda x, w: (x * w).sin()), []
    for shape in ((), (0,), (2, 0), (1, 1)):
        x, w = leaf(*shape), leaf()
        f(x, w).sum().backward()
        found.append(gradients(x, w))
    return found


@both()
def test_shapes_change_from_call_to_call(compile):
    f, w, found = compile(layer), leaf(3, 3), []
    for rows in (2, 5, 2, 7):
        x = leaf(rows, 3)
        f(x, w).sum().backward()
        found.append(gradients(x))
    return found, gradients(w)


@both()
def test_requires_grad_is_toggled_between_calls(compile):
    f, x, w, found = compile(layer), leaf(2, 3), leaf(3, 3), []
    for need_x, need_w in [(True, True), (True, False), (False, True), (False, False), (True, True)]:
        x.requires_grad_(need_x)
        w.requires_grad_(need_w)
        x.grad = w.grad = None
        y = f(x, w)
        if y.requires_grad:
            y.sum().backward()
        found.append((y.detach(), y.requires_grad, gradients(x, w)))
    return found


@both()
def test_requires_grad_is_switched_off_before_backward(compile):
    f, x, w = compile(layer), leaf(2, 3), leaf(3, 3)
    y = f(x, w).sum()
    w.requires_grad_(False)
    return raised(y.backward), gradients(x, w)


@both()
def test_grad_mode_is_switched_between_calls(compile):
    f, x, w, found = compile(layer), leaf(2, 3), leaf(3, 3), []
    for enabled in (True, False, True, False, True):
        with torch.set_grad_enabled(enabled):
            y = f(x, w)
        found.append(y)
        if enabled:
            y.sum().backward()
    with torch.inference_mode():
        found.append(f(x, w).is_inference())
    f(x, w).sum().backward()
    return found, gradients(x, w)


@both()
def test_outputs_that_need_no_gradient(compile):
    def fn(x, w):
        h = x @ w
        values, order = h.sort()
        return values, order, h.argmax(-1), h > 0, h.detach(), None, 3, {"loss": h.sum(), "n": h.shape[0]}

    f, x, w = compile(fn), leaf(2, 3), leaf(3, 3)
    result = f(x, w)
    (result[0].pow(2).sum() + result[-1]["loss"]).backward()
    return result, gradients(x, w)


@both()
def test_integer_and_boolean_inputs(compile):
    def fn(table, ids, mask, scale):
        return (table[ids] * mask[:, None]).sum(0) * scale

    f, table = compile(fn), leaf(5, 3)
    for scale in (1, 2.5):
        f(table, torch.tensor([1, 1, 4]), torch.tensor([True, False, True]), scale).sum().backward()
    return gradients(table)


@both()
def test_numbers_that_change(compile):
    f, x, found = compile(lambda x, k: (x * k).sin() * k), leaf(3), []
    for k in (0.5, 1.5, 2.5, 3.5, 4.5):
        f(x, k).sum().backward()
        found.append(gradients(x))
    return found


@both()
def test_history_of_inputs(compile):
    encoder, decoder = nn.Linear(3, 4), nn.Linear(4, 2)
    f = compile(layer)
    w = leaf(4, 4)
    h = encoder(torch.randn(5, 3))
    decoder(f(h, w)).pow(2).mean().backward()
    return gradients(w, *encoder.parameters(), *decoder.parameters())


@both()
def test_one_tensor_as_two_arguments(compile):
    f, x = compile(lambda a, b: (a * b.sin()).sum()), leaf(3)
    f(x, x).backward()
    first = gradients(x)
    f(x, leaf(3)).backward()
    return first, gradients(x)


@both()
def test_another_parameter_takes_the_place_of_one(compile):
    model = nn.Linear(3, 2)
    f, x = compile(model), torch.randn(4, 3)
    f(x).sum().backward()
    old, model.weight = model.weight, nn.Parameter(torch.randn(2, 3))
    f(x).sum().backward()
    return gradients(old, model.weight, model.bias)


@both()
def test_data_of_a_parameter_is_replaced(compile):
    model = nn.Linear(3, 2)
    f, x = compile(model), torch.randn(4, 3)
    f(x).pow(2).sum().backward()
    model.weight.data = torch.randn(2, 3)
    f(x).pow(2).sum().backward()
    return gradients(*model.parameters())


@both()
def test_a_complex_number_among_real_tensors(compile):
    """Its conjugate is taken of a number in the place of a tensor."""

    def f(x):
        y = (x @ x) * (1 + 2j)
        return torch.view_as_real(y), (y / (2 - 1j)).abs(), (x @ x) / (1 - 2j)

    g, x = compile(f), leaf(3, 3)
    parts, size, rest = g(x)
    (parts.sin().sum() + size.sum() + rest.imag.sum()).backward()
    return parts, size, rest, gradients(x)


@pytest.mark.parametrize("kind", (nn.LSTM, nn.GRU, nn.RNN))
@pytest.mark.parametrize("backend", ("aot_eager", "smelt"))
def test_recurrent_layers_keep_what_their_backward_reads(kind, backend):
    torch.manual_seed(0)
    layer, x = kind(3, 4), torch.rand(5, 2, 3, requires_grad=True)
    seen = []
    for fn in (layer, smelt.compile(layer, backend=backend)):
        with torch.backends.cudnn.flags(enabled=False):  # cuDNN differentiates them once
            (first,) = torch.autograd.grad(fn(x)[0].sin().sum(), x, create_graph=True)
        seen.append([first, *torch.autograd.grad(first.pow(2).sum(), layer.parameters())])
    torch.testing.assert_close(*seen)
