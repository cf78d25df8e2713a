"""A torch for AMD's GPUs, simulated: the same plans, loaded and launched by HIP (`native/devices/hip_driver.cpp`)."""

import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import smelt
from smelt import _native
from smelt.report import inspect
from tests.simulated import cuda

pytestmark = pytest.mark.simulated_cuda

AMD = {"amd": True}


@pytest.fixture(scope="module", autouse=True)
def _amd():
    """For the whole process, which has one driver."""
    properties = cuda._properties

    def of_amd(device):
        return SimpleNamespace(
            **{**vars(properties(device)), "gcnArchName": "gfx942:sramecc+:xnack-", "warp_size": 64}
        )

    torch.version.hip = "6.4.43482"
    torch.cuda._get_device_properties = of_amd


def check(fn, *args, **options):
    """Compiled and eager agree, several times, as one graph; the launches of the last call."""
    function = smelt.compile(fn, fullgraph=True, options={**AMD, **options})
    for _ in range(4):
        want = fn(*args)
        cuda.forget_launches()
        torch.testing.assert_close(function(*args), want)
    assert inspect.graph_count(function) == 1
    return cuda.launches()


def test_without_being_asked_calls_run_eagerly():
    function, x = smelt.compile(lambda x: x.sin() + 1), torch.randn(5, device="cuda")
    torch.testing.assert_close(function(x), x.sin() + 1)
    assert inspect.graph_count(function) == 0
    [reason] = inspect.reasons(function)
    assert "never been run on GPUs of AMD" in str(reason) and "SMELT_AMD" in str(reason)


def test_so_they_do_on_other_processors(monkeypatch):
    of_another = SimpleNamespace(**{**vars(cuda._properties(0)), "gcnArchName": "gfx1030"})
    monkeypatch.setattr(torch.cuda, "_get_device_properties", lambda device: of_another)
    function, x = smelt.compile(lambda x: x.cos() + 1, options=AMD), torch.randn(5, device="cuda")
    torch.testing.assert_close(function(x), x.cos() + 1)
    assert inspect.graph_count(function) == 0
    assert any("compiled for gfx1030" in str(reason) for reason in inspect.reasons(function))


def test_operators_become_one_kernel_on_the_current_stream():
    x, weight = torch.randn(5, 300, device="cuda"), torch.randn(300, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        [launch] = check(lambda x, w: ((x * 2 + w).relu()).softmax(-1), x, weight)
    assert launch.stream == side.cuda_stream and launch.device == 0


def test_the_second_device_is_used_while_the_first_is_current():
    [launch] = check(lambda x: x.sin() + 1, torch.randn(7, device="cuda:1"))
    assert launch.device == 1 and torch.cuda.current_device() == 0


def test_one_graph_on_two_devices():
    x = torch.randn(6, device="cuda:0")
    launches = check(lambda x: ((x * 2 + 1).to("cuda:1").sin() + 1).to("cuda:0").cos() * 3, x)
    assert [launch.device for launch in launches] == [0, 1, 0]


def test_numbers_on_the_cpu_are_passed_by_value():
    x = torch.randn(9, device="cuda")
    assert len(check(lambda x, s, n: x * s + n, x, torch.tensor(1.5), torch.tensor(3))) == 1


def test_a_thread_has_the_first_device_until_it_is_told_otherwise():
    x = torch.randn(5, device="cuda:1")
    function = smelt.compile(lambda x: x.exp() + 3, fullgraph=True, options=AMD)
    given = []
    thread = threading.Thread(target=lambda: given.extend(function(x) for _ in range(2)))
    thread.start()
    thread.join()
    assert len(given) == 2
    for t in given:
        torch.testing.assert_close(t, x.exp() + 3)


def test_training():
    """The backward runs on autograd's thread of the device."""

    def steps(compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to("cuda")
        call = compile(model)
        for _ in range(3):
            call(torch.ones(3, 8, device="cuda")).softmax(-1).square().sum().backward()
        return [p.grad for p in model.parameters()]

    cuda.forget_launches()
    want, got = steps(lambda model: model), steps(lambda model: smelt.compile(model, options=AMD))
    torch.testing.assert_close(got, want)
    assert cuda.launches()


def test_launches_of_the_same_code_stay_apart():
    """Their table would be a kernel's parameter."""
    tensors = [torch.randn(3 + k, device="cuda") for k in range(5)]
    assert len(check(lambda tensors: [t * 2 + 1 for t in tensors], tensors)) == 5


def test_modes_for_nvidia_change_nothing():
    replays = cuda.Graph.replays
    x, weight = (torch.randn(16, 16, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for option in ("cuda_graphs", "max_autotune"):
        assert check(lambda x, w: (x @ w).relu() + 1, x, weight, **{option: True})
    assert cuda.Graph.replays == replays


def test_shared_memory_need_not_be_asked_for():
    kernel = _native.DeviceKernel(cuda.image(1, "p"), "large", 64, 60 << 10)
    kernel.load(0)
    kernel.load(1)
    assert kernel.is_loaded(0) and kernel.is_loaded(1)


def test_its_errors_are_hips():
    x = torch.randn(4, device="cuda")
    function = smelt.compile(lambda x: x * 3, options=AMD)
    function(x)
    cuda.fail_next(700)
    with pytest.raises(RuntimeError, match="hipErrorIllegalAddress"):
        function(x)
    torch.testing.assert_close(function(x), x * 3)


def test_it_compiles_no_ptx():
    with pytest.raises(RuntimeError, match="compiles no PTX"):
        _native.link_ptx(b"", 0)
