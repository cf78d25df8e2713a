"""The simulated device does what tests of smelt take for granted: the same values as on the CPU, and CUDA's rules."""

import copy
import functools
import threading

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.simulated_cuda

A, B = torch.randn(4, 5), torch.randn(5, 4)


def on(device: str, *tensors: torch.Tensor, requires_grad: bool = False) -> list[torch.Tensor]:
    """Copies there."""
    return [t.detach().clone().to(device).requires_grad_(requires_grad) for t in tensors]


OPERATORS = {
    "add": lambda a, b: a + b.t() * 2,
    "mm": lambda a, b: (a @ b).relu(),
    "linear": lambda a, b: F.linear(a, a, a[:, 0]),
    "softmax": lambda a, b: a.softmax(1).log(),
    "layer_norm": lambda a, b: F.layer_norm(a, (5,), b[:, 0], b[:, 1]),
    "sum": lambda a, b: a.sum(0, keepdim=True) / a.mean(),
    "cat": lambda a, b: torch.cat([a, b.t()], 1),
    "where": lambda a, b: torch.where(a > 0, a, b.t()),
    "index": lambda a, b: a[torch.tensor([0, 2, 0])],
    "embedding": lambda a, b: F.embedding(torch.tensor([[1, 1], [0, 3]], device=a.device), a),
    "sort": lambda a, b: a.sort(1).values,
    "split": lambda a, b: torch.stack([t.sum() for t in a.split(2)]),
    "conv2d": lambda a, b: F.conv2d(a[None, None], b[None, None, :3, :3], padding=1),
    "depthwise": lambda a, b: F.conv2d(a[None].repeat(2, 1, 1), b[:2, None, None, :3], groups=2),
    "batch_norm": lambda a, b: F.batch_norm(a, None, None, training=True),
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None], b.t()[None], a[None]),
    "cross_entropy": lambda a, b: F.cross_entropy(a, torch.tensor([0, 1, 2, 3], device=a.device)),
    "dropout": lambda a, b: F.dropout(a, 0.0) * 3,
    "einsum": lambda a, b: torch.einsum("ij,jk->ki", a, b),
    "view": lambda a, b: a.t().reshape(2, 10)[:, ::2].unsqueeze(0).expand(3, 2, 5).permute(2, 0, 1),
    "in place": lambda a, b: a.clone().mul_(2).t().add_(b)[1:],
    "complex": lambda a, b: torch.view_as_real(torch.complex(a, a).conj() * 1j),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_and_their_gradients_are_the_cpus(name):
    results = []
    for device in ("cpu", "cuda"):
        a, b = on(device, A, B, requires_grad=True)
        out = OPERATORS[name](a, b)
        (out * out).sum().backward()
        results.append([t for t in (out, a.grad, b.grad) if t is not None])
    assert len(results[0]) == len(results[1])
    for want, got in zip(*results):
        assert got.device == torch.device("cuda:0") and got.stride() == want.stride()
        torch.testing.assert_close(got.cpu(), want)


# ------------------------------------------------------------------------------------------------- tensors and memory


def test_a_tensor_has_the_keys_of_cuda():
    x = torch.empty(3, device="cuda")
    assert x.is_cuda and str(x.device) == "cuda:0" and x.untyped_storage().device == x.device
    assert torch._C._dispatch_keys(x).has(torch._C.DispatchKey.CUDA)
    assert x.cpu().device.type == "cpu" and torch.tensor([1], device="cuda").item() == 1
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        x.numpy()


def test_views_share_memory_and_versions():
    x = torch.zeros(4, 4, device="cuda")
    views = [x[1], x.t(), x.view(16), x.as_strided((2,), (1,)), x.detach(), x.view(torch.int32)]
    assert all(v.untyped_storage().data_ptr() == x.data_ptr() and v._base is not None for v in views[:4])
    before = x._version
    x.t()[0].fill_(7)
    assert x._version == before + 1 == views[1]._version
    assert x[:, 0].tolist() == [7] * 4 and views[2][4] == 7


def test_what_is_saved_and_then_written_is_found():
    x = torch.ones(3, device="cuda", requires_grad=True)
    y = x.exp()
    z = y.mul(y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_out_is_resized():
    x, out = torch.ones(300, device="cuda"), torch.empty(0, device="cuda")
    assert torch.add(x, x, out=out) is out and out.tolist() == [2] * 300
    view = out[:1]
    out.resize_(5000).fill_(3)
    assert view.item() == 3 and view.data_ptr() == out.data_ptr()


def test_a_tensor_is_given_another_ones_data():
    x, y = torch.ones(2, device="cuda"), torch.zeros(3, device="cuda")
    x.data = y
    torch.empty(0, device="cuda").set_(y).add_(5)
    assert x.tolist() == y.tolist() == [5, 5, 5]


def test_copies_both_ways():
    host, x = torch.arange(6.0).view(2, 3), torch.zeros(2, 3, device="cuda")
    x.copy_(host.half())
    host[0].copy_(x[1])
    host[1] = torch.full((), 9, device="cuda")
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]] and host.tolist() == [[3, 4, 5], [9, 9, 9]]
    assert x.to(torch.float64).to("cpu", torch.int64).tolist() == x.tolist()


def test_memory_is_counted():
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x = torch.empty(1000, device="cuda")
    y = x.sort().values  # its kernel allocates
    assert torch.cuda.memory_allocated() == before + 8192
    del x, y
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= before + 8192
    assert torch.cuda.memory_allocated(1) == 0


def test_inference_tensors():
    with torch.inference_mode():
        x = torch.ones(3, device="cuda")
        x.view(3, 1).add_(1)
    assert x.is_inference() and x.tolist() == [2, 2, 2]


# --------------------------------------------------------------------------------------------------- devices, streams


def test_two_devices():
    x = torch.ones(3, device="cuda:1")
    assert str((x.sort().indices * 2).device) == "cuda:1" and torch.cuda.current_device() == 0
    with torch.cuda.device(1):
        assert str(torch.zeros(1, device="cuda").device) == "cuda:1" and torch.cuda.current_device() == 1
    assert str(x.cuda().device) == "cuda:0" and torch.cuda.device_count() == 2
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.empty(1, device="cuda:2")


@pytest.mark.parametrize("other", ["cpu", "cuda:1"])
def test_operands_must_be_on_one_device(other):
    x, y = torch.ones(3, 3, device="cuda"), torch.ones(3, 3, device=other)
    for f in (torch.add, torch.mm, torch.maximum):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            f(x, y)
    assert (x + torch.tensor(2.0)).sum() == 27


def test_gradients_flow_between_devices():
    x = torch.ones(3, requires_grad=True)
    y = x.to("cuda:0").exp().to("cuda:1") * 2
    y.cpu().sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.ones(3).exp())


def test_autograds_threads_are_on_their_device():
    seen = []
    x = torch.ones(2, device="cuda:1", requires_grad=True)
    y = x * 1
    y.register_hook(lambda g: seen.append((torch.cuda.current_device(), threading.current_thread())))
    y.sum().backward()
    [(device, thread)] = seen
    assert device == 1 and thread is not threading.main_thread()


def test_streams():
    first, s, t = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream(device=1)
    assert len({first.cuda_stream, s.cuda_stream, t.cuda_stream, 0}) == 4
    with torch.cuda.stream(s):
        assert torch.cuda.current_stream() == s != first
        assert torch.accelerator.current_stream().native_handle == s.cuda_stream
        event = s.record_event()
    t.wait_stream(s)
    event.synchronize()
    torch.cuda.synchronize()
    torch.ones(3, device="cuda").record_stream(s)
    assert torch.cuda.current_stream() == first and t.device.index == 1 and event.query()


def test_what_torch_says_of_it():
    assert torch.cuda.is_available() and torch.cuda.is_initialized() and torch.cuda.is_bf16_supported()
    assert torch.cuda.get_device_capability() == (9, 0) and torch.cuda.get_device_name() == "simulated"
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert not torch.cuda.is_current_stream_capturing()


# ------------------------------------------------------------------------------------------------------------ programs


def test_autocast():
    a, b = on("cuda", A, B, requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        product = a @ b
        assert product.dtype == F.linear(a, a).dtype == torch.bfloat16
        assert product.softmax(1).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ b).dtype == torch.float32
    product.sum().backward()
    assert a.grad.dtype == torch.float32


def test_random_numbers_are_the_cpus():
    def draw(device: str) -> list[torch.Tensor]:
        torch.manual_seed(3)
        made = [torch.randn(3, device=device), torch.rand(3, device=device), torch.randperm(4, device=device)]
        return [*made, F.dropout(torch.ones(9, device=device))]

    for host, device in zip(draw("cpu"), draw("cuda")):
        assert host.tolist() == device.tolist()


def test_a_generator_is_of_a_device():
    ours, theirs = torch.Generator("cuda"), torch.Generator()
    for generator in (ours, theirs):
        generator.manual_seed(5)
    drawn = [torch.randn(2, 3, device="cuda", generator=ours) for _ in range(2)]
    assert [d.tolist() for d in drawn] == [torch.randn(2, 3, generator=theirs).tolist() for _ in range(2)]
    assert ours.device == torch.device("cuda:0") and ours.get_state().equal(theirs.get_state())
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.randn(3, device="cuda", generator=theirs)


MODELS = {
    "mlp": lambda: torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)),
    "convolutions": lambda: torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 8)), torch.nn.Conv1d(1, 4, 3, padding=1), torch.nn.BatchNorm1d(4)
    ),
    "transformer": lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    "lstm": lambda: torch.nn.LSTM(8, 8, 2),
    "gru": lambda: torch.nn.GRU(8, 8, bidirectional=True),
}


OPTIMIZERS = {
    "adamw": functools.partial(
        torch.optim.AdamW, eps=1e-3
    ),  # gradients of 0 are noise, which a small one scales up
    "fused": functools.partial(torch.optim.AdamW, eps=1e-3, fused=True),
    "sgd": functools.partial(torch.optim.SGD, momentum=0.9),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_cpus(name, optimizer):
    def train(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        optimize = OPTIMIZERS[optimizer](model.parameters(), lr=0.01)
        for _ in range(2):
            optimize.zero_grad()
            out = model(x)
            out = out[0] if isinstance(out, tuple) else out
            out.sin().mean().backward()
            optimize.step()
        return [*model.parameters(), *model.buffers(), model.eval()(x.detach())[0]]

    model, x = MODELS[name](), torch.randn(3, 8)
    x = x[None] if name == "transformer" else x
    want = train(copy.deepcopy(model), x)
    got = train(model.to("cuda"), x.to("cuda"))
    assert all(t.is_cuda for t in got)
    for w, g in zip(want, got):
        torch.testing.assert_close(g.cpu(), w, rtol=1e-4, atol=1e-5)
