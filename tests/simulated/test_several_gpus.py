"""Graphs over two GPUs: each kernel runs on the GPU that its result is on, on that GPU's current stream; in a backward, on
that of the forward."""

import threading

import pytest
import torch
from torch import nn

import smelt
from smelt.report import inspect
from tests.simulated import cuda

pytestmark = pytest.mark.simulated_cuda


class Pipeline(nn.Module):
    """A model whose second half is on the second GPU."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16)).to("cuda:0")
        self.second = nn.Sequential(nn.Linear(16, 4), nn.ReLU()).to("cuda:1")

    def forward(self, x):
        h = self.first(x)
        return self.second(h.to("cuda:1")).softmax(-1), h * 2


def check(fn, *args):
    """Compiled and eager agree, on several calls, as one graph; the launches of the last."""
    compiled = smelt.compile(fn, fullgraph=True)
    with torch.no_grad():
        for _ in range(4):
            want = fn(*args)
            cuda.forget_launches()
            got = compiled(*args)
            torch.testing.assert_close(got, want)
    assert inspect.graph_count(compiled) == 1
    return cuda.launches()


@pytest.mark.parametrize("mode", (None, "reduce-overhead"))
def test_a_model_on_two_gpus_is_one_graph(mode):
    model, x = Pipeline().eval(), torch.randn(3, 8, device="cuda:0")
    compiled = smelt.compile(model, fullgraph=True, mode=mode)
    with torch.no_grad():
        for _ in range(6):
            cuda.forget_launches()
            torch.testing.assert_close(compiled(x), model(x))
    assert {launch.device for launch in cuda.launches()} == {0, 1}
    assert torch.cuda.current_device() == 0


def test_kernels_run_on_the_current_stream_of_their_gpu():
    x = torch.randn(6, device="cuda:0")
    streams = [torch.cuda.Stream(device) for device in (0, 1)]
    with torch.cuda.stream(streams[1]), torch.cuda.stream(streams[0]):
        launches = check(lambda x: ((x * 2 + 1).to("cuda:1").sin() + 1).to("cuda:0").cos() * 3, x)
    assert {(launch.device, launch.stream) for launch in launches} == {
        (device, stream.cuda_stream) for device, stream in enumerate(streams)
    }
    assert [launch.device for launch in launches] == [0, 1, 0]


def test_equal_kernels_of_two_gpus_are_two_launches():
    """Launches by one are of one GPU, whose tables they are."""
    many = [torch.randn(3 + k, device=f"cuda:{k % 2}") for k in range(8)]
    launches = check(lambda many: [t * 2 + 1 for t in many], many)
    assert sorted(launch.device for launch in launches) == [0, 1]


def test_parts_of_the_cpu_and_of_both_gpus():
    def fn(x, y, z, n):
        return (x * 2 + n).cpu() + z, (y.cos() + n).to(x.device) + x, z.sin().to(y.device) * y

    args = torch.randn(5, device="cuda:0"), torch.randn(5, device="cuda:1"), torch.randn(5), torch.tensor(1.5)
    assert {launch.device for launch in check(fn, *args)} == {0, 1}


def test_inputs_on_the_second_gpu_are_written_also_at_odd_addresses():
    def fn(x, y):
        y.add_(x.to(y.device))
        x.mul_(2)
        return y.sum()

    compiled = smelt.compile(fn, fullgraph=True)
    memories = [[torch.arange(17.0, device=f"cuda:{d}") for d in (0, 1)] for _ in range(2)]
    for _ in range(3):
        results = [f(*(m[1:9] for m in memory)) for f, memory in zip((fn, compiled), memories, strict=True)]
        torch.testing.assert_close(results[1], results[0])
        torch.testing.assert_close(memories[1], memories[0])


def test_what_an_operator_leaves_as_the_current_device_is_put_back():
    @torch.library.custom_op("smelt_tests::goes_elsewhere", mutates_args=())
    def goes_elsewhere(x: torch.Tensor) -> torch.Tensor:
        torch.cuda.set_device(1)
        return x + 1

    goes_elsewhere.register_fake(torch.empty_like)
    x = torch.randn(5, device="cuda:0")
    try:
        got = smelt.compile(lambda x: goes_elsewhere(x * 2) * 3, fullgraph=True)(x)
    finally:
        torch.cuda.set_device(0)
    torch.testing.assert_close(got, (x * 2 + 1) * 3)


def test_threads_that_have_no_context_get_the_devices():
    x = torch.randn(5, device="cuda:0")
    compiled = smelt.compile(lambda x: x.exp() + 3, fullgraph=True)
    compiled(x)
    given = []
    thread = threading.Thread(target=lambda: given.extend(compiled(x) for _ in range(2)))
    thread.start()
    thread.join()
    for t in given:
        torch.testing.assert_close(t, x.exp() + 3)
    assert len(given) == 2


def trained(model, call, steps=3):
    """The losses and gradients of some steps."""
    losses = []
    for k in range(steps):
        torch.manual_seed(k)
        a, b = call(torch.randn(3, 8, device="cuda:0"))
        loss = a.square().sum().to("cuda:0") + b.sin().sum()
        loss.backward()
        losses.append(loss.detach())
    return losses, [p.grad for p in model.parameters()]


def test_training_on_two_gpus_is_one_graph():
    want, got = Pipeline(), Pipeline()
    compiled = smelt.compile(got, fullgraph=True)
    expected = trained(want, want)
    cuda.forget_launches()
    torch.testing.assert_close(trained(got, compiled), expected)
    assert inspect.graph_count(compiled) == 1 and not inspect.reasons(compiled)
    assert {launch.device for launch in cuda.launches()} == {0, 1} and torch.cuda.current_device() == 0


def handles(streams):
    return [stream.cuda_stream for stream in streams]


def two_streams():
    return [torch.cuda.Stream(device) for device in (0, 1)]


@pytest.mark.parametrize("last", ("cuda:0", "cuda:1"))
def test_a_backward_runs_on_the_streams_that_the_forward_had(last):
    """The engine knows that of the result; the other waits for it, and it for the other."""

    def fn(x, y):
        return ((x.sin() * 2).to("cuda:1") * y.cos()).to(last).exp()

    x, y = (torch.randn(6, device=f"cuda:{d}", requires_grad=True) for d in (0, 1))
    compiled, streams = smelt.compile(fn, fullgraph=True), two_streams()
    want = torch.autograd.grad(fn(x, y).sum(), (x, y))
    for _ in range(2):
        with torch.cuda.stream(streams[1]), torch.cuda.stream(streams[0]):
            result = compiled(x, y).sum()
        cuda.forget_launches()
        cuda.forget_waits()
        torch.testing.assert_close(torch.autograd.grad(result, (x, y)), want)
    assert {launch.stream for launch in cuda.launches()} == set(handles(streams))
    own = int(last[-1])
    other, engines = streams[1 - own].cuda_stream, streams[own].cuda_stream
    assert (other, engines) in cuda.waits()
    assert (engines, other) in cuda.waits()[cuda.waits().index((other, engines)) + 1 :]


def test_what_is_current_afterwards_is_what_was():
    """Also where the backward raises: on the engine's threads, which others use."""

    def fn(x):
        return (x.to("cuda:1").sin() * 2).to("cuda:0") * x

    x = torch.randn(6, device="cuda:0", requires_grad=True)
    compiled, alone = smelt.compile(fn, fullgraph=True), smelt.compile(lambda x: x.sin() * 2, fullgraph=True)
    streams = two_streams()
    for fails in (False, True):
        with torch.cuda.stream(streams[1]), torch.cuda.stream(streams[0]):
            result = compiled(x).sum()
        if fails:
            with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
                cuda.fail_next(700)
                result.backward()
        else:
            result.backward()
        for device in (0, 1):
            y = torch.randn(6, device=f"cuda:{device}", requires_grad=True)
            cuda.forget_launches()
            torch.testing.assert_close(torch.autograd.grad(alone(y).sum(), y)[0], 2 * y.detach().cos())
            default = torch.cuda.default_stream(device).cuda_stream
            assert {launch.stream for launch in cuda.launches()} == {default}


def test_gradients_of_results_on_either_gpu():
    def fn(x, y):
        h = x.sin() * 3
        return h.to("cuda:1") * y, h.exp(), (y * 2).cpu()

    x, y = (torch.randn(6, device=f"cuda:{d}", requires_grad=True) for d in (0, 1))
    compiled = smelt.compile(fn, fullgraph=True)
    for asked in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)):
        given = []
        for call in (fn, compiled):
            results = [call(x, y)[k] for k in asked]
            tangents = [torch.full_like(r, 0.5 + k) for k, r in enumerate(results)]
            for retain_graph in (True, False):
                grads = torch.autograd.grad(
                    results, (x, y), tangents, retain_graph=retain_graph, allow_unused=True
                )
            given.append([torch.zeros(()) if g is None else g for g in grads])
        torch.testing.assert_close(given[1], given[0])


def test_weights_that_both_gpus_read():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(8, 8).to("cuda:0"))

        def forward(self, x):
            h = (x @ self.weight).relu().to("cuda:1")
            return h @ self.weight.to("cuda:1").t(), h.to("cuda:0").mean()

    want, got = Tied(), Tied()
    expected = trained(want, want)
    torch.testing.assert_close(trained(got, smelt.compile(got, fullgraph=True)), expected)


def test_second_derivatives_over_two_gpus():
    def fn(x):
        return (x.sin().to("cuda:1") * 2).exp().to("cuda:0") * x

    def second(call, x):
        (first,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)

    x = torch.randn(6, device="cuda:0", requires_grad=True)
    torch.testing.assert_close(second(smelt.compile(fn, fullgraph=True), x), second(fn, x))


def test_threads_that_train_side_by_side():
    """Each on streams of its own; the engine's threads, one for each GPU, run all of their backwards."""
    models = [Pipeline() for _ in range(4)]
    expected = trained(models[0], models[0])
    calls = [smelt.compile(model, fullgraph=True) for model in models[1:]]
    given = {}

    def train(k):
        streams = two_streams()
        with torch.cuda.stream(streams[1]), torch.cuda.stream(streams[0]):
            given[k] = trained(models[k + 1], calls[k])

    threads = [threading.Thread(target=train, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == 3
    for result in given.values():
        torch.testing.assert_close(result, expected)


def test_memory_of_training_is_given_back():
    model = Pipeline()
    compiled = smelt.compile(model, fullgraph=True)
    trained(model, compiled)
    before = [torch.cuda.memory_allocated(d) for d in (0, 1)]
    trained(model, compiled, 10)
    assert [torch.cuda.memory_allocated(d) for d in (0, 1)] == before


def test_memory_of_both_is_given_back():
    model, x = Pipeline().eval(), torch.randn(3, 8, device="cuda:0")
    compiled = smelt.compile(model)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        before = [torch.cuda.memory_allocated(d) for d in (0, 1)]
        for _ in range(20):
            compiled(x)
    assert [torch.cuda.memory_allocated(d) for d in (0, 1)] == before
