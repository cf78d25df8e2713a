"""What only a GPU shows: work that is still under way, streams, CUDA graphs, indices beyond 32 bits."""

import functools
import subprocess
import sys

import pytest
import torch
from torch import nn

import smelt
from smelt.report import inspect
from tests.harness.threads import in_threads

if torch.version.cuda is None or not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)


def fn(x, w):
    """Products, whose results are in the arena, between kernels."""
    return ((x @ w).relu() @ w).softmax(-1).sum(0) + 1


def test_calls_on_two_streams_do_not_share_memory():
    compiled = smelt.compile(fn)
    xs = [torch.randn(512, 512, device="cuda") for _ in range(2)]
    w = torch.randn(512, 512, device="cuda") / 20
    want = [fn(x, w) for x in xs]
    streams = [torch.cuda.Stream() for _ in xs]
    torch.cuda.synchronize()
    for _ in range(50):
        got = []
        for x, stream in zip(xs, streams):
            with torch.cuda.stream(stream):
                got.append(compiled(x, w))
        torch.cuda.synchronize()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_result_can_be_dropped_while_the_gpu_computes():
    compiled = smelt.compile(fn)
    w = torch.randn(256, 256, device="cuda") / 15
    x = torch.randn(256, 256, device="cuda")
    want = fn(x, w)
    torch.cuda._sleep(20_000_000)
    for _ in range(100):
        got = compiled(x, w)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_threads_on_streams_of_their_own():
    compiled = smelt.compile(fn)
    w = torch.randn(128, 128, device="cuda") / 10
    compiled(w, w)

    def work(seed):
        stream = torch.cuda.Stream()
        x = torch.randn(64, 128, generator=torch.Generator().manual_seed(seed)).cuda()
        want = fn(x, w)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(50):
                torch.testing.assert_close(compiled(x, w), want, rtol=1e-4, atol=1e-4)

    torch.cuda.synchronize()
    in_threads([functools.partial(work, seed) for seed in range(4)])


def test_gradients_on_a_side_stream():
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).cuda()
    x = torch.randn(32, 64, device="cuda")
    model(x).square().sum().backward()
    want = [p.grad.clone() for p in model.parameters()]
    compiled, side = smelt.compile(model), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            compiled(x).square().sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    torch.testing.assert_close([p.grad for p in model.parameters()], want, rtol=1e-4, atol=1e-4)


def warmed_up(call):
    """As torch asks for before a capture: on another stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)


def test_a_compiled_function_in_a_cuda_graph():
    compiled = smelt.compile(fn)
    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda") / 8
    warmed_up(lambda: compiled(x, w))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = compiled(x, w)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(got, fn(x, w), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(compiled(x, w), fn(x, w), rtol=1e-4, atol=1e-4)
    assert not inspect.reasons(compiled)


def test_a_training_step_in_a_cuda_graph():
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4)).cuda()
    compiled, x = smelt.compile(model), torch.randn(16, 32, device="cuda")

    def step(call):
        for p in model.parameters():
            p.grad = None
        call(x).square().sum().backward()

    warmed_up(lambda: step(compiled))
    graph = torch.cuda.CUDAGraph()
    for p in model.parameters():
        p.grad = None
    with torch.cuda.graph(graph):
        compiled(x).square().sum().backward()
    got = [p.grad for p in model.parameters()]
    x.normal_()
    graph.replay()
    step(model)
    torch.testing.assert_close(got, [p.grad for p in model.parameters()], rtol=1e-4, atol=1e-4)


def test_memory_is_given_back_to_the_driver():
    compiled = smelt.compile(lambda x: (x.sin() @ x).relu() @ x)
    x = torch.randn(2048, 2048, device="cuda")
    compiled(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    for _ in range(10):
        compiled(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved
    want = (x.double().sin() @ x.double()).relu() @ x.double()
    torch.testing.assert_close(compiled(x), want.float(), rtol=1e-4, atol=1e-2)


def needs(gigabytes):
    free, _ = torch.cuda.mem_get_info()
    if free < gigabytes << 30:
        pytest.skip(f"needs {gigabytes} GiB of a GPU's memory")


def test_more_elements_than_32_bits_count():
    needs(16)
    x = torch.zeros((1 << 31) + 4099, device="cuda", dtype=torch.int8)
    x[-5:] = torch.arange(5, device="cuda", dtype=torch.int8)
    got = smelt.compile(lambda x: x * 2 + 1)(x)
    assert got[-5:].tolist() == [1, 3, 5, 7, 9] and int(got[: 1 << 31].amax()) == 1


def test_a_reduction_over_more_elements_than_32_bits_count():
    needs(16)
    x = torch.ones((3, (1 << 30) + 7), device="cuda", dtype=torch.int8)
    x[:, -1] = 5
    got = smelt.compile(lambda x: (x.amax(1), (x + 1).sum(1)))(x)
    assert got[0].tolist() == [5] * 3 and got[1].tolist() == [2 * x.shape[1] + 4] * 3


def test_offsets_beyond_32_bits_between_few_elements():
    needs(16)
    memory = torch.zeros((1 << 32) + 8, device="cuda", dtype=torch.int8)
    x = memory.as_strided((2, 5), (1 << 32, 1))
    x.copy_(torch.arange(10, device="cuda").view(2, 5))
    assert smelt.compile(lambda x: x + 1)(x).tolist() == (x + 1).tolist()


CONTEXTS = """
import threading, torch, smelt

compiled = smelt.compile(lambda x: (x * 2).sin().sum(0), mode="reduce-overhead")

def step():
    x = torch.randn(5, 6, device="cuda", requires_grad=True)
    compiled(x).sum().backward()  # on autograd's thread of the device, which has no context at first
    torch.testing.assert_close(x.grad, 2 * (x * 2).cos())

for _ in range(5):
    step()
for _ in range(3):
    errors = []
    def on_thread():
        try:
            step()
        except BaseException as error:
            errors.append(error)
    thread = threading.Thread(target=on_thread)
    thread.start()
    thread.join()
    assert not errors, errors
"""


def test_cuda_graphs_on_threads_without_a_context():
    """In a process of its own, where no earlier backward ran."""
    done = subprocess.run([sys.executable, "-c", CONTEXTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
