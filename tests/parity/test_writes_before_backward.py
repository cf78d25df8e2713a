"""What is written between forward and backward: eager minds where a result that is differentiated has saved it."""

from __future__ import annotations

import itertools

import pytest
import torch

import smelt
from tests.harness.training import both, gradients, leaf, raised

# What of a result that only a break reads is dead when the program writes.
READERS = {
    "item": lambda x: x.amax().item(),
    "tolist": lambda x: x.prod(1).tolist()[0],
    "condition": lambda x: 2.0 if x.norm() > 0 else 3.0,
    "numpy": lambda x: float(x.exp().detach().cpu().numpy()[0, 0]),
    "local": lambda x: len(str([x.amax(1)])),
    "list": lambda x: [[x.std()].pop().item()][0],
}


@pytest.mark.parametrize("reader", READERS)
@both(whole=False)
def test_a_value_read_for_what_a_break_asks(compile, reader):
    read = READERS[reader]

    def fn(x):
        x = x * 1
        v = torch.where(x > 1, x, x) + read(x)
        x[:, 1].neg_()
        return x, v

    x = leaf(3, 4)
    y, v = compile(fn)(x)
    kind = raised(lambda: (y * v.detach() + v * v).sum().backward())
    return y, v, kind, gradients(x)


@both(whole=False)
def test_what_a_function_below_leaves_at_its_break(compile):
    def inner(x):
        peak = x.amax(1)
        print(end="")
        return float(peak.max().detach())

    def fn(x):
        x = x * 1
        v = torch.where(x > 0, x, 2 * x)
        v = v + inner(x)
        x.neg_()
        return x, v

    x = leaf(3, 4)
    y, v = compile(fn)(x)
    (y.sum() + (v * v).sum()).backward()
    return gradients(x)


# One result is computed from what is saved for another.
TWO = {
    "mask": lambda x, w: (torch.where(x > 0, x, w), x.amax(1)),
    "relu": lambda x, w: (x.relu() * 2, x.sin()),
    "clamp": lambda x, w: (x.clamp(-1, 1) @ w, x.prod(1)),
    "view": lambda x, w: (x.t().clamp(-1, 1) @ w, x.t() @ w),
    "one product": lambda x, w: ((x @ w).tanh(), x * x),
    "a chain": lambda x, w: (x.cos().sin().exp(), x.sin()),
    "three": lambda x, w: (x.clamp(0, 1), x.sin().clamp(0, 1), x.cos() * w),
    "maximum": lambda x, w: (torch.maximum(x, w), x * w, w * w),
}
WRITES = {
    "an input": lambda x, w, results: x.add_(1),
    "another": lambda x, w, results: w[0].add_(1),
    "a part": lambda x, w, results: x[:, 1].neg_(),
    "a result": lambda x, w, results: results[0].mul_(2),
    "the last": lambda x, w, results: results[-1].mul_(2),
}


@pytest.mark.parametrize("kind", ["leaf", "inside"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("results", TWO)
@both()
def test_only_results_that_have_saved_what_is_written_mind(compile, results, write, kind):
    def fn(x, w):
        if kind == "inside":
            x = x + w
        return x, w, *TWO[results](x, w)

    f = compile(fn)
    found = []
    for which in range(len(TWO[results](leaf(4, 4), leaf(4, 4)))):
        x, w = leaf(4, 4), leaf(4, 4)
        seen, held, *made = f(x, w)
        with torch.no_grad():
            WRITES[write](seen, held, made)
        error = raised(made[which].sum().backward)
        found.append(error or gradients(x, w))  # eager has some gradients when it raises
    return found


@both()
def test_what_eager_saves_is_read_through_the_view_that_the_program_holds(compile):
    def fn(x):
        x = x * 1
        whole = x.reshape(-1).view_as(x)
        return x * 2, (x * 2).clamp(-9, 9), x.amax(), whole

    x = leaf(2, 3)
    results = compile(fn)(x)
    sum(r.sum() for r in results).backward()
    return results, gradients(x)


def _layers(x, u, v, w):
    first = torch.tanh(x @ u)
    second = torch.tanh(first @ v)
    return first, second, torch.sin(second @ w)


@both()
@pytest.mark.parametrize("written", ["", "x", "u", "v", "w", "uw"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_only_requested_gradients_read_what_is_written(compile, written, create_graph):
    """The engine runs only the nodes on paths to what is differentiated: the others may have saved what is written."""
    f, found = compile(_layers), []
    for results, inputs in itertools.product(
        ("f", "s", "t", "st", "fst"), ("f", "s", "u", "v", "w", "fw", "su")
    ):
        torch.manual_seed(0)
        tensors = {name: leaf(4, 4) for name in "xuvw"}
        tensors |= zip("fst", f(*tensors.values()))
        with torch.no_grad():
            for name in written:
                tensors[name].add_(1)
        loss = sum(tensors[name].sum() for name in results)
        inputs = [tensors[name] for name in inputs]
        try:
            gradients = torch.autograd.grad(loss, inputs, allow_unused=True, create_graph=create_graph)
            found.append([None if g is None else g.detach() for g in gradients])
        except RuntimeError as error:
            found.append(str(error)[:60])
    return found


@both()
def test_the_gradient_of_a_result_itself_reads_nothing(compile):
    """`backward(inputs=[result])`: the gradient arrives there, and no other is computed."""
    total, x = compile(lambda x: x + 1), leaf(3)
    result = total(x)
    result.sum().backward()
    result.sum().backward(inputs=[result])
    several = compile(_layers)(leaf(4, 4), *(w := [leaf(4, 4) for _ in range(3)]))
    with torch.no_grad():
        w[2].add_(1)
    several[1].sum().backward(inputs=[several[1]])
    return result.grad, several[1].grad


def _quotient(x, b, d):
    return torch.tanh((x / b) @ d)


def _quotient_and_its_use(x, b, d):
    quotient = x / b
    return quotient, torch.tanh(quotient @ d)


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("write", ["b.add_(1)", "b.data = b + 1", "x.mul_(2)"])
@pytest.mark.parametrize(
    "hooks, are_copies",
    [
        ((lambda t: t, lambda t: t), False),
        ((lambda t: (t.detach(),), lambda t: t[0]), False),
        ((lambda t: t.data, lambda t: t), False),
        ((lambda t: t.clone(), lambda t: t), True),
    ],
)
def test_hooks_that_return_what_is_written(hooks, are_copies, write, backend):
    """Eager's quotient was saved before; here it is computed again from what the hooks return."""

    def gradients(run):
        torch.manual_seed(0)
        x, b, d = leaf(3, 3), leaf(3), leaf(3, 3)
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            y = run(x, b, d)
        with torch.no_grad():
            exec(write)
        return torch.autograd.grad(y.sum(), d)

    want, run = gradients(_quotient), smelt.compile(_quotient, backend=backend)
    try:
        got = gradients(run)
    except RuntimeError as error:
        assert not are_copies and "saved-tensor hooks got was modified" in str(error)
    else:
        torch.testing.assert_close(got, want)


@both()
def test_hooks_of_views_that_eager_reads_too(compile):
    """No value is computed again: what the hooks return is read as eager reads it."""
    x, w = leaf(2, 3), leaf(4, 3)
    with torch.autograd.graph.save_on_cpu():
        y = compile(torch.nn.functional.linear)(x, w)
    with torch.no_grad():
        w.add_(1)
    return torch.autograd.grad(y.sum(), x)


@both()
def test_gradients_that_nobody_requests_are_not_computed(compile):
    """The gradient of `b`, computed from zeros in its place, would not be a number."""
    x, b, d = leaf(3, 3), leaf(3), leaf(3, 3)
    _, y = compile(_quotient_and_its_use)(x, b, d)
    with torch.no_grad():
        b.add_(1)
    with torch.autograd.detect_anomaly(check_nan=True):
        return torch.autograd.grad(y.sum(), d)


def test_hooks_unpack_each_saved_value_once():
    packed, unpacked = [], []

    def pack(t):
        packed.append(t)
        return len(packed) - 1

    def unpack(i):
        unpacked.append(i)
        return packed[i]

    x, b, d = leaf(3, 3), leaf(3), leaf(3, 3)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        _, y = smelt.compile(_quotient_and_its_use)(x.sin(), b, d)
    with torch.no_grad():
        b.add_(1)
    torch.autograd.grad(y.sum(), d)
    assert unpacked and len(unpacked) == len({*unpacked})
