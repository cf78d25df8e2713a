"""smelt on the simulated GPU: what its driver is asked to launch. What can be seen on any GPU: tests/gpu/test_on_gpu.py."""

import pytest
import torch
from torch import nn

import smelt
from smelt.report import inspect
from tests.simulated import cuda

pytestmark = pytest.mark.simulated_cuda


def check(fn, *args, graphs=1):
    """Compiled and eager agree, twice; the launches of the second call."""
    compiled = smelt.compile(fn)
    for _ in range(2):
        want = fn(*args)
        cuda.forget_launches()
        got = compiled(*args)
        torch.testing.assert_close(got, want)
    assert inspect.graph_count(compiled) == graphs and not inspect.reasons(compiled)
    return cuda.launches()


def test_operators_become_one_kernel_on_the_current_stream():
    x, weight = torch.randn(5, 300, device="cuda"), torch.randn(300, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        [launch] = check(lambda x, w: ((x * 2 + w).relu()).softmax(-1), x, weight)
    assert launch.stream == side.cuda_stream and launch.device == 0


def test_the_second_device_is_used_while_the_first_is_current():
    x = torch.randn(7, device="cuda:1")
    [launch] = check(lambda x: x.sin() + 1, x)
    assert launch.device == 1 and torch.cuda.current_device() == 0


def test_numbers_on_the_cpu_are_passed_by_value():
    x = torch.randn(9, device="cuda")
    scale, whole = torch.tensor(1.5), torch.tensor(3)
    assert len(check(lambda x, s, n: x * s + n, x, scale, whole)) == 1
    scale.fill_(2.5)
    check(lambda x, s, n: x * s + n, x, scale, whole)


def test_parts_on_the_cpu_run_there():
    def fn(x, y):
        return x.sin() + 1, (y.cos() * 2).sum(), (x * 2).cpu() + y

    assert len(check(fn, torch.randn(6, device="cuda"), torch.randn(6))) == 1


def test_a_mask_on_the_cpu_selects_as_many_as_it_says():
    x, mask = torch.randn(4, device="cuda"), torch.tensor([True, False, True, True])
    compiled = smelt.compile(lambda x, mask: x[mask] * 2)
    torch.testing.assert_close(compiled(x, mask), x[mask] * 2)


def parameters(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, 8, generator=generator).to("cuda") for n in range(1, 21)]


@pytest.mark.parametrize("foreach", (False, True))
def test_an_optimizer_updates_all_parameters_by_few_launches(foreach):
    def steps(compile):
        weights = [nn.Parameter(p) for p in parameters(0)]
        optimizer = torch.optim.AdamW(weights, lr=1e-2, foreach=foreach)
        step = compile(optimizer.step)
        for seed in range(1, 5):
            for p, grad in zip(weights, parameters(seed), strict=True):
                p.grad = grad
            cuda.forget_launches()
            step()
        return [t for p in weights for t in (p.detach(), *optimizer.state[p].values())]

    want, got = steps(lambda f: f), steps(smelt.compile)
    assert len(cuda.launches()) == 2  # of sizes that are multiples of 16, and others
    torch.testing.assert_close(got, want)


def test_more_parts_than_a_launch_has():
    tensors = [torch.randn(3 + k % 5, device="cuda") for k in range(300)]

    def scales(tensors):
        for t in tensors:
            t.mul_(2.0)

    want = [t * 2 for t in tensors]
    compiled = smelt.compile(scales)
    compiled([t.clone() for t in tensors])
    cuda.forget_launches()
    compiled(tensors)
    assert len(cuda.launches()) == 3
    torch.testing.assert_close(tensors, want)


def test_numbers_on_the_cpu_in_several_launches_by_one():
    def scales(tensors, scale):
        return [t * scale for t in tensors]

    tensors = [torch.randn(3 + k, device="cuda") for k in range(5)]
    assert len(check(scales, tensors, torch.tensor(1.5))) == 1
    assert len(check(scales, tensors, torch.tensor(1.5, dtype=torch.float64))) == 1


def test_casts_of_weights_are_one_launch():
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(6))).to("cuda")
    compiled, x = smelt.compile(model), torch.randn(4, 16, device="cuda")
    for _ in range(2):
        cuda.forget_launches()
        with torch.autocast("cuda", torch.bfloat16):
            got = compiled(x)
    assert len(cuda.launches()) == 1  # of weights, biases and the input
    with torch.autocast("cuda", torch.bfloat16):
        torch.testing.assert_close(got, model(x))


def test_a_kernel_that_the_driver_refuses_is_its_error():
    compiled = smelt.compile(lambda x: x * 3)
    x = torch.randn(4, device="cuda")
    compiled(x)
    cuda.fail_next(700)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        compiled(x)
    torch.testing.assert_close(compiled(x), x * 3)


def test_the_logarithms_of_a_cross_entropy_are_in_no_memory():
    """One kernel for the rows, one for the mean."""
    x, y = torch.randn(600, 300, device="cuda"), torch.randint(0, 300, (600,), device="cuda")
    assert len(check(nn.functional.cross_entropy, x, y)) == 2
