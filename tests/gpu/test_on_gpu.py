"""smelt on a GPU beside eager: graphs, memory, devices, gradients. Where torch has no CUDA, on the simulated device."""

import pytest
import torch
from torch import nn

import smelt
from smelt.report import inspect
from tests.harness import simulated

# Inside the process that has the simulated device, the tests simply run.
ELSEWHERE = not torch.cuda.is_available() or simulated.inside()
pytestmark = [pytest.mark.simulated_cuda] if ELSEWHERE else []


def check(fn, *args):
    """Compiled and eager agree, twice, in one graph; gives what was compiled."""
    compiled = smelt.compile(fn)
    for _ in range(2):
        torch.testing.assert_close(compiled(*args), fn(*args))
    assert inspect.graph_count(compiled) == 1 and not inspect.reasons(compiled)
    return compiled


def test_operators_on_the_current_stream():
    x, weight = torch.randn(5, 300, device="cuda"), torch.randn(300, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        check(lambda x, w: ((x * 2 + w).relu()).softmax(-1), x, weight)
    torch.cuda.current_stream().wait_stream(side)


def test_the_second_device_is_used_while_the_first_is_current():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    check(lambda x: x.sin() + 1, torch.randn(7, device="cuda:1"))
    assert torch.cuda.current_device() == 0


def test_temporaries_share_an_arena_that_is_given_back():
    def fn(x):
        return ((x @ x).relu() @ x).sum(0)

    x = torch.randn(64, 64, device="cuda")
    compiled = smelt.compile(fn)
    x @ x  # cuBLAS takes a workspace of its own
    compiled(x)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = compiled(x)
    assert torch.cuda.memory_allocated() - before <= 512 + result.nbytes
    assert torch.cuda.max_memory_allocated() - before <= 2 * x.nbytes + 512


@pytest.mark.parametrize(
    "fn, most",
    [
        (lambda x: (x @ x).relu() * 2, 1),
        (lambda x: (x @ x).sin() @ x, 2),
        (lambda x: (lambda y: (y.sin() @ x) + y)(x @ x), 3),
        (lambda x: (x @ x).flip(0) + 1, 2),
        (lambda x: (lambda y: y + y.t())(x @ x), 2),
        (lambda x: (lambda y: (y + x, y - x))((x @ x).cos()), 2),
    ],
)
def test_results_take_the_place_of_operands_where_these_end(fn, most):
    x = torch.randn(512, 512, device="cuda", dtype=torch.float64) / 23
    before = x.clone()
    compiled = check(fn, x)
    assert torch.equal(x, before)
    torch.cuda.reset_peak_memory_stats()
    there = torch.cuda.memory_allocated()
    compiled(x)
    assert torch.cuda.max_memory_allocated() - there <= most * x.nbytes


def test_numbers_on_the_cpu_are_passed_by_value():
    x = torch.randn(9, device="cuda")
    scale, whole = torch.tensor(1.5), torch.tensor(3)
    compiled = check(lambda x, s, n: x * s + n, x, scale, whole)
    scale.fill_(2.5)
    torch.testing.assert_close(compiled(x, scale, whole), x * 2.5 + 3)


def test_python_numbers_that_change():
    compiled = smelt.compile(lambda x, n: x * n + n)
    x = torch.randn(4, device="cuda")
    for n in (1.5, 2.5, 3.5, 4.5):
        torch.testing.assert_close(compiled(x, n), x * n + n)
    assert not inspect.reasons(compiled)


def test_parts_on_the_cpu_run_there():
    def fn(x, y):
        return x.sin() + 1, (y.cos() * 2).sum(), (x * 2).cpu() + y

    check(fn, torch.randn(6, device="cuda"), torch.randn(6))


@pytest.mark.parametrize(
    "fn", (lambda x: x + torch.ones(3), lambda x: torch.cat([x, torch.ones(2)]), lambda x: x @ torch.ones(3))
)
def test_operands_on_different_devices_are_eagers_error(fn):
    x = torch.randn(3, device="cuda")
    with pytest.raises(RuntimeError, match="same device"):
        smelt.compile(fn)(x)


def test_inputs_that_begin_anywhere():
    memory = torch.arange(40.0, device="cuda")
    check(lambda x: x * 2, memory[1:17])
    check(lambda x: x.sum(1), memory[3:4].expand(5).as_strided((5, 3), (0, 1)))
    compiled = smelt.compile(lambda x: x.sin() * 2)
    for begin in (0, 1, 2, 3, 4, 7):
        x = memory[begin : begin + 32]
        torch.testing.assert_close(compiled(x), x.sin() * 2)

    def grows(x):
        x.mul_(2)
        return x + 1

    theirs, ours = memory.clone(), memory.clone()
    want, got = grows(theirs[1:9]), smelt.compile(grows)(ours[1:9])
    assert torch.equal(want, got) and torch.equal(theirs, ours)


@pytest.mark.parametrize("dtype", (None, torch.bfloat16))
def test_a_module_trains(dtype):
    def steps(compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        run = compile(model)
        for step in range(4):
            x = torch.randn(8, 12, generator=torch.Generator().manual_seed(step)).to("cuda")
            with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
                loss = run(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().cpu() for p in model.parameters()]

    for want, got in zip(steps(lambda m: m), steps(smelt.compile), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-2 if dtype else 1e-5)


def test_an_optimizer_steps():
    def steps(compile):
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(n, 7, device="cuda")) for n in (3, 50, 4)]
        optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        step = compile(optimizer.step)
        for number in range(3):
            for p in parameters:
                p.grad = torch.cos(p.detach() + number)
            step()
        return [p.detach() for p in parameters]

    for want, got in zip(steps(lambda f: f), steps(smelt.compile), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_memory_is_flat_over_many_calls():
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).to("cuda")
    compiled, x = smelt.compile(model), torch.randn(16, 32, device="cuda")

    def step():
        model.zero_grad(set_to_none=True)
        compiled(x).square().sum().backward()

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for number in range(1000):
        step()
        if number % 100 == 0:
            torch.cuda.empty_cache()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before


@pytest.mark.parametrize("reduction", ("mean", "sum", "none"))
@pytest.mark.parametrize("ignored", (-100, 2))
@pytest.mark.parametrize("rows, classes", [(1, 5), (6, 1), (37, 40), (600, 33_000)])
def test_cross_entropy(rows, classes, ignored, reduction):
    """The target's logit is found in the pass that reads the row for its softmax."""

    def fn(x, y):
        return nn.functional.cross_entropy(x.float(), y, ignore_index=ignored, reduction=reduction)

    y = torch.randint(0, classes, (rows,), device="cuda")
    y[0] = min(y[0].item(), classes - 1) if rows == 1 else ignored if ignored < classes else y[0]
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(rows, classes, device="cuda").to(dtype)
        given, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        got, want = smelt.compile(fn)(given, y), fn(other, y)
        torch.testing.assert_close(got, want)
        got.sum().backward()
        want.sum().backward()
        torch.testing.assert_close(given.grad, other.grad)
        check(fn, x, y)


def test_cross_entropy_where_all_targets_are_ignored():
    def fn(x, y):
        return nn.functional.cross_entropy(x, y), nn.functional.nll_loss(x, y, reduction="sum")

    x, y = torch.randn(8, 5, device="cuda"), torch.full((8,), -100, device="cuda")
    for got, want in zip(smelt.compile(fn)(x, y), fn(x, y)):
        torch.testing.assert_close(got, want, equal_nan=True)


def test_infinite_logits_beside_the_target():
    def fn(x, y):
        return nn.functional.cross_entropy(x, y, reduction="sum"), nn.functional.nll_loss(x, y)

    x, y = torch.randn(4, 9, device="cuda"), torch.tensor([0, 1, 2, 3], device="cuda")
    x[0, 5] = -torch.inf
    check(fn, x, y)


@pytest.mark.skipif(not ELSEWHERE, reason="a failed assertion on a GPU ends its context")
@pytest.mark.parametrize("wrong", (5, -1, 1 << 40))
def test_a_target_that_is_no_class_raises(wrong):
    compiled = smelt.compile(lambda x, y: nn.functional.cross_entropy(x, y))
    x, y = torch.randn(8, 5, device="cuda"), torch.zeros(8, dtype=torch.int64, device="cuda")
    compiled(x, y)
    y[3] = wrong
    with pytest.raises((IndexError, RuntimeError)):
        compiled(x, y)


def test_slopes_of_gelu():
    """Against the formula in float64, in units of the slopes' size, which is one."""
    x = torch.linspace(-12, 12, 20_001, device="cuda")
    compiled = smelt.compile(torch.ops.aten.gelu_backward, fullgraph=True)
    exact = x.double()
    below = (1 + torch.erf(exact / 2**0.5)) / 2
    want = below + exact * torch.exp(-exact * exact / 2) / (2 * torch.pi) ** 0.5
    assert (compiled(torch.ones_like(x), x) - want).abs().max() < 3e-7
    assert compiled(torch.ones(2, device="cuda"), torch.tensor([-100.0, 100.0], device="cuda")).tolist() == [
        0,
        1,
    ]


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
@pytest.mark.parametrize(
    "size, window, shift", ((56, 7, 3), (28, 7, 3), (64, 8, 4), (60, 5, 2), (36, 12, 5), (210, 7, 3))
)
def test_shifted_windows(size, window, shift, dtype):
    """Positions of 8 and 16 bits that are divided: NVIDIA's assemblers get packed sums of those wrong."""
    n, channels = size // window, 96

    def shifted_back(windows, residual):
        images = (
            windows.view(4, n, n, window, window, channels).transpose(2, 3).reshape(4, size, size, channels)
        )
        rolled = torch.roll(images, (shift, shift), (1, 2))
        added = residual + rolled
        return rolled, added, nn.functional.layer_norm(added, (channels,))

    windows = torch.randn(4 * n * n, window * window, channels, device="cuda").to(dtype)
    residual = torch.randn(4, size, size, channels, device="cuda")
    check(shifted_back, windows, residual)
