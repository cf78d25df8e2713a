"""`mode="reduce-overhead"`, simulated: when graphs are captured and replayed, and that nobody's memory is written."""

import logging

import pytest
import torch
from torch import nn

import smelt
from tests.harness.threads import in_threads
from tests.simulated import cuda

pytestmark = pytest.mark.simulated_cuda
GRAPHS = {"cuda_graphs": True}


def randn(*shape):
    return torch.randn(*shape, device="cuda")


def replays(call):
    """What it returns, and how many graphs were replayed."""
    before = cuda.Graph.replays
    result = call()
    return result, cuda.Graph.replays - before


def fn(x, w):
    return (x * w).sin().sum(1), x + 1


def test_the_third_call_is_captured_and_replayed():
    x, w = randn(4, 5), randn(5)
    compiled = smelt.compile(fn, options=GRAPHS)
    counts = []
    for _ in range(5):
        x.normal_()
        got, count = replays(lambda: compiled(x, w))
        torch.testing.assert_close(got, fn(x, w))
        counts.append(count)
        del got
    assert counts == [0, 0, 1, 1, 1]


def test_what_is_held_is_not_overwritten():
    x, w = randn(4, 5), randn(5)
    compiled = smelt.compile(fn, options=GRAPHS)
    for _ in range(3):
        compiled(x, w)
    held, want = [], []
    for k in range(4):
        x.fill_(k)
        result, count = replays(lambda: compiled(x, w))
        assert count == (k == 0)  # later ones find the first one's results held
        held.append(result)
        want.append(fn(x, w))
    for got, expected in zip(held, want):
        torch.testing.assert_close(got, expected)
    view = held[0][1][2:]
    del held, result, got
    assert replays(lambda: compiled(x, w))[1] == 0  # a view holds it as well
    del view
    assert replays(lambda: compiled(x, w))[1] == 1


def test_inputs_at_changing_addresses_are_copied():
    w = randn(5)
    compiled = smelt.compile(fn, options=GRAPHS)
    kept, counts = [], []
    for _ in range(6):
        kept.append(randn(4, 5))
        got, count = replays(lambda: compiled(kept[-1], w))
        torch.testing.assert_close(got, fn(kept[-1], w))
        del got
        counts.append(count)
    assert counts == [0, 0, 1, 1, 1, 1]
    got, count = replays(
        lambda: compiled(kept[0], randn(5))
    )  # w was where it is, and is elsewhere now: another graph
    assert count == 1


def test_what_is_written_is_written_where_it_is():
    def step(x, state):
        state.mul_(2).add_(x)
        return state.sum()

    compiled = smelt.compile(step, options=GRAPHS)
    x, ours = randn(8), randn(8)
    theirs = ours.clone()
    for k in range(6):
        before = ours._version
        got, count = replays(lambda: compiled(x, ours))
        torch.testing.assert_close((got, ours), (step(x, theirs), theirs))
        assert count == (k >= 2) and ours._version > before
        del got


def test_a_training_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(6), nn.GELU(), nn.Flatten(0)).to("cuda")
    compiled = smelt.compile(model, options=GRAPHS)
    x = randn(5, 6)

    def step(run):
        model.zero_grad()
        run(x).square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    total = 0
    for _ in range(6):
        x.normal_()
        want = step(model)
        model.zero_grad()
        got, count = replays(lambda: step(compiled))
        total += count
        torch.testing.assert_close(got, want)
    assert total >= 6  # forward and backward, from the third step on


@pytest.mark.parametrize("size", [5, 9])
def test_a_backward_on_a_thread_without_a_context(size):
    """Autograd's thread of a device has one only once something there needed it."""
    in_threads([lambda: loss_gradient(size)])


def loss_gradient(size):
    compiled = smelt.compile(lambda x: (x * 2).sin().sum(0), options=GRAPHS)
    for _ in range(5):
        x = randn(size, 6).requires_grad_()
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, 2 * (x * 2).cos())


@pytest.mark.parametrize("device", [0, 1])
def test_calls_on_threads_without_a_context(device):
    """The first call of every kind on such a thread: a run, a capture, a replay."""
    x, w = torch.randn(4, 5, device=f"cuda:{device}"), torch.randn(5, device=f"cuda:{device}")
    compiled = smelt.compile(fn, options=GRAPHS)
    want = fn(x, w)
    for _ in range(5):
        in_threads([lambda: torch.testing.assert_close(compiled(x, w), want)])


def test_gradients_that_accumulate_are_kept():
    torch.manual_seed(0)
    model = nn.LayerNorm(6).to("cuda")
    compiled = smelt.compile(model, options=GRAPHS)
    inputs = [randn(5, 6) for _ in range(7)]

    def accumulated(run):
        model.zero_grad()
        for x in inputs:
            run(x).square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    for _ in range(2):
        torch.testing.assert_close(accumulated(compiled), accumulated(model))


def test_numbers_and_other_devices_run_without_a_graph(caplog):
    compiled = smelt.compile(lambda x, s: x * s, options=GRAPHS)
    x = randn(4)
    with caplog.at_level(logging.INFO, "smelt"):
        for s in (torch.tensor(2.0), torch.tensor(3.0), torch.tensor(4.0), torch.tensor(5.0)):
            got, count = replays(lambda: compiled(x, s))
            torch.testing.assert_close(got, x * s)
            assert count == 0
    assert "its kernels are given numbers" in caplog.text


def test_results_that_are_views():
    x = randn(4, 6)
    inside = smelt.compile(lambda x: (x + 1).t(), options=GRAPHS)
    of_input = smelt.compile(lambda x: (x[1:], x + 1), options=GRAPHS)
    for k in range(5):
        got, count = replays(lambda: inside(x))
        assert torch.equal(got, (x + 1).t()) and got._is_view() and count == (k >= 2)
        views, count = replays(lambda: of_input(x))
        assert views[0]._base is x and count == 0
        del got, views


def test_smelt_reset_lets_go_of_graphs():
    x, w = randn(400, 5), randn(5)
    compiled = smelt.compile(fn, options=GRAPHS)
    before = torch.cuda.memory_allocated()
    for _ in range(4):
        compiled(x, w)
    assert torch.cuda.memory_allocated() > before
    smelt.reset()
    assert torch.cuda.memory_allocated() <= before


def test_the_mode_sets_the_option():
    compiled = smelt.compile(lambda x: x * 2, mode="reduce-overhead")
    x = randn(3)
    for k in range(4):
        got, count = replays(lambda: compiled(x))
        assert torch.equal(got, x * 2) and count == (k >= 2)
        del got
