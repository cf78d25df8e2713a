"""smelt on the simulated GPU: what its driver is asked to launch. What can be seen on any GPU: tests/gpu/test_on_gpu.py."""

import pytest
import torch

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


def test_a_kernel_that_the_driver_refuses_is_its_error():
    compiled = smelt.compile(lambda x: x * 3)
    x = torch.randn(4, device="cuda")
    compiled(x)
    cuda.fail_next(700)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        compiled(x)
    torch.testing.assert_close(compiled(x), x * 3)
