"""Graphs over two GPUs: each kernel runs on the GPU that its result is on, on that GPU's current stream."""

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


def test_with_gradients_the_call_runs_eagerly():
    """Autograd's engine orders a backward by the stream of one device."""
    want, got = Pipeline(), Pipeline()
    compiled, x = smelt.compile(got), torch.randn(3, 8, device="cuda:0")
    for _ in range(2):
        for run in (want, compiled):
            sum(t.sum().to("cuda:0") for t in run(x)).backward()
    for p, q in zip(want.parameters(), got.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)
    assert inspect.graph_count(compiled) == 0
    assert any("with gradients" in str(reason) for reason in inspect.reasons(compiled))


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
