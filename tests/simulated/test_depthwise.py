"""Depthwise convolutions of channels-last images in half precision, generated or not, and their gradients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt
from smelt import events
from smelt.codegen.triton.compile import Request
from smelt.codegen.triton.kernel_source import Source
from smelt.codegen.triton.value_expressions import Dialect
from smelt.graph.tensor_specs import spec_of
from smelt.ops import cudnn_warm_up
from smelt.targets import cuda
from tests.harness.cudnn import convolve_with_cudnn
from tests.harness.simulated import ROOT

pytestmark = pytest.mark.simulated_cuda

bf16, f16 = torch.bfloat16, torch.float16
# (images, channels, height, width, window, stride, padding, dilation)
SIZES = [
    (2, 16, 8, 8, 3, 1, 1, 1),
    (2, 16, 9, 9, 3, 2, 1, 1),
    (2, 24, 9, 7, 5, 2, 2, 1),
    (2, 24, 11, 11, 3, 1, 2, 2),
    (1, 16, 7, 12, 3, 3, 0, 1),
    (2, 8, 6, 9, 3, 3, 3, 2),
    (1, 16, 9, 9, 7, 1, 3, 1),
    (3, 8, 5, 1, 3, 1, 1, 1),
]


@pytest.fixture(params=["generated", "large"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Whether everything is small enough to be generated, or only what is as fast for large images."""
    if request.param == "large":
        monkeypatch.setattr(cuda, "COSTS", replace(cuda.COSTS, depthwise_elements=0))
    yield request.param
    smelt.reset()


def externs(seen: list[events.Event]) -> list[str]:
    return [name for e in seen if e.kind == "plan" for name in e.data["externs"]]


def tensors(size: tuple[int, ...], dtype: torch.dtype, bias: bool) -> list[Tensor]:
    n, c, h, w, k, *_ = size
    made = [
        torch.randn(n, c, h, w, device="cuda").to(dtype).to(memory_format=torch.channels_last),
        torch.randn(c, 1, k, k, device="cuda").to(dtype),
    ]
    made += [torch.randn(c, device="cuda").to(dtype)] if bias else []
    return [t.requires_grad_() for t in made]


def results(fn, given: list[Tensor], tangent: Tensor | None = None) -> list[Tensor]:  # type: ignore[no-untyped-def]
    out = fn(*given)
    tangent = torch.ones_like(out) if tangent is None else tangent.to(out.dtype)
    return [out, *torch.autograd.grad(out, given, tangent)]


def check_near(
    got: list[Tensor],
    expected: list[Tensor],
    exact: list[Tensor],
    stride: Callable[[Tensor], Sequence[int]] = Tensor.stride,
) -> None:
    """Laid out as eager's results (`expected`), and about as near to those of float64."""
    for mine, eager, want in zip(got, expected, exact, strict=True):
        assert stride(mine) == stride(eager) and mine.dtype == eager.dtype
        errors = [float((t.double() - want).norm() / want.norm()) for t in (mine, eager)]
        # A bias is added to what was rounded, as cuDNN's results are; a CPU adds it before.
        assert errors[0] <= 2 * max(errors[1], torch.finfo(mine.dtype).eps / 4)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_results_and_gradients(size, kind):
    dtype = f16 if size[6] == 2 else bf16
    *_, stride, padding, dilation = size
    given = tensors(size, dtype, bias=size[0] == 2)

    def f(x, weight, bias=None):
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups=x.shape[1])

    tangent = torch.randn_like(f(*given))
    exact = results(f, [g.detach().double().requires_grad_() for g in given], tangent)
    seen: list[events.Event] = []
    with events.subscribed(seen.append):
        got = results(smelt.compile(f, fullgraph=True), given, tangent)
    window = size[4] ** 2
    forward = kind == "generated" or window <= 9 * stride**2
    calls = externs(seen)
    assert ("aten.convolution.default" not in calls) == forward
    if kind == "generated":
        assert not calls
    check_near(got, results(f, given, tangent), exact)


def stride_over_elements(t: Tensor) -> list[int]:
    """Strides of dimensions that have several elements. Eager calls the CPU's library here, not cuDNN: the two differ in
    the stride of the one channel of a weight's gradient."""
    return [step for step, size in zip(t.stride(), t.shape, strict=True) if size > 1]


ANY_SIZE = [(2, 9, 8), (3, 6, 11), (2, 16, 16), (5, 7, 7)]  # images, height, width


@pytest.mark.parametrize("window, stride", [(3, 1), (3, 2), (5, 2)])
def test_sizes_that_change(window, stride, kind, monkeypatch):
    """One text serves them, forward and backward."""
    convolve_with_cudnn(monkeypatch)

    def f(x, weight, bias):
        return F.conv2d(x, weight, bias, stride, window // 2, groups=16) * 2

    compiled = smelt.compile(f, fullgraph=True, dynamic=True)
    seen: list[events.Event] = []
    with events.subscribed(seen.append):
        for n, h, w in ANY_SIZE:
            given = tensors((n, 16, h, w, window), bf16, bias=True)
            got = results(compiled, given)
            exact = results(f, [g.detach().double().requires_grad_() for g in given])
            check_near(got, results(f, given), exact, stride_over_elements)
    assert sum(e.kind == "entry-installed" for e in seen) == 1
    calls = externs(seen)
    assert "aten.convolution.default" not in calls
    assert ("aten.convolution_backward.default" in calls) == (kind == "large")


def test_what_follows_is_part_of_the_kernel(kind):
    size = (2, 16, 8, 8, 3, 1, 1, 1)
    x, weight = (t.detach() for t in tensors(size, bf16, False))

    def f(x, weight, scale, shift):
        return F.hardswish(F.conv2d(x, weight, None, 1, 1, groups=16) * scale + shift)

    scale, shift = (torch.randn(1, 16, 1, 1, device="cuda", dtype=bf16) for _ in range(2))
    seen: list[events.Event] = []
    with events.subscribed(seen.append), torch.no_grad():
        got = smelt.compile(f, fullgraph=True)(x, weight, scale, shift)
    torch.testing.assert_close(got, f(x, weight, scale, shift), rtol=0.05, atol=0.05)
    (plan,) = (e for e in seen if e.kind == "plan")
    assert (
        not plan.data["externs"] and plan.data["kernels"] == 2
    )  # one copies the weight, channels side by side


def test_a_thread_reads_the_windows_of_one_vector(monkeypatch):
    """Where windows are summed up: each load is code of its own, which took seconds to compile."""
    printed: list[Source] = []
    source_of = Request.printed

    def kept(request: Request, dialect: Dialect) -> Source:
        printed.append(source_of(request, dialect))
        return printed[-1]

    monkeypatch.setattr(Request, "printed", kept)
    x, weight = tensors((16, 64, 14, 14, 3), bf16, False)
    with torch.no_grad():
        smelt.compile(lambda x, w: F.conv2d(x, w, None, 1, 1, 1, 64).mean((2, 3)), fullgraph=True)(x, weight)
    (source,) = (s for s in printed if "tl.reduce" in s.text)
    assert source.constants["XBLOCK"] * source.constants["RBLOCK"] <= 8 * 32 * source.warps


def test_padding_hides_nothing_but_the_border():
    """An infinite weight times what is outside is not in the result where the window is inside."""
    size = (1, 8, 6, 6, 3, 1, 1, 1)
    x, weight = (t.detach() for t in tensors(size, bf16, False))
    x[0, 3, 2, 2] = float("inf")
    x[0, 4, 1, 1] = float("nan")
    compiled = smelt.compile(lambda x, w: F.conv2d(x, w, None, 1, 1, groups=8), fullgraph=True)
    with torch.no_grad():
        got, want = compiled(x, weight), F.conv2d(x, weight, None, 1, 1, groups=8)
    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got.isinf(), want.isinf())


class Net(torch.nn.Module):
    """An inverted residual block: a product of pixels, a convolution by channels, another product."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.wide = torch.nn.Conv2d(16, 32, 1)
        self.each = torch.nn.Conv2d(32, 32, 5, padding=2, groups=groups)
        self.narrow = torch.nn.Conv2d(32, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.narrow(F.relu(self.each(F.relu(self.wide(x)))))


@pytest.mark.parametrize("groups", [1, 32])
def test_convolutions_of_the_backward_are_called_ahead(groups, monkeypatch):
    """By groups alone, what ATen computes, a call for each gradient; where autograd runs backwards, and nowhere else."""
    monkeypatch.setattr(cuda, "COSTS", replace(cuda.COSTS, depthwise_elements=0))
    monkeypatch.setattr(cudnn_warm_up, "is_cudnns", lambda *given: True)
    begun, threads = [], []
    real = cudnn_warm_up.begin

    def begin(graph, backward, **more):
        begun.append(list(cudnn_warm_up.convolutions(graph, backward, more["costs"], more["device"])))
        threads.append(real(graph, backward, **more))

    monkeypatch.setattr(cudnn_warm_up, "begin", begin)
    net = Net(groups).cuda()
    x = torch.randn(2, 16, 8, 8, device="cuda").to(memory_format=torch.channels_last)
    compiled = smelt.compile(net, fullgraph=True)
    with torch.autocast("cuda", bf16):
        compiled(x).sum().backward()
    (calls,) = begun
    if groups == 1:
        assert calls == [] and threads == [None]
        return
    assert [wanted for *_, wanted in calls] == [(True, False, False), (False, True, False)]
    assert all(grad.shape == (2, 32, 8, 8) and grad.stride[1] == 1 for grad, *_ in calls)
    threads[0].join(60)
    assert not threads[0].is_alive()


def test_what_fails_ahead_is_not_noticed():
    """Nothing is said of it, and the thread of autograd goes on."""
    spec = torch.empty(2, 8, 4, 4, dtype=bf16)

    def refused(*given):
        raise RuntimeError("out of memory")

    device = torch.device("cuda", 0)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(cudnn_warm_up, "BACKWARD", refused)
        cudnn_warm_up._warm([(*[spec_of(spec, device)] * 3, ((1, 1),), (True, False, False))], device)
    x = torch.ones(3, device="cuda", requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2, 2]


ENDS = """
import threading, time
from tests.simulated import compiled
compiled.activate()
import torch
from smelt.graph.tensor_specs import spec_of
from smelt.ops import cudnn_warm_up

begun = threading.Event()

def slow(*given):
    begun.set()
    time.sleep(0.2)

cudnn_warm_up.BACKWARD = slow
cudnn_warm_up.convolutions = lambda *given: [(*[spec_of(torch.empty(2, 8, 4, 4), "cuda:0")] * 3, (), k) for k in range(9999)]
cudnn_warm_up.begin(None, set(), None, torch.device("cuda", 0))
begun.wait()
print("ends")
"""


def test_a_process_ends_while_convolutions_are_called_ahead():
    done = subprocess.run([sys.executable, "-c", ENDS], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
