"""What a trace records, what it refuses, and that both graphs compute what the program computes."""

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from smelt.errors import SmeltError, Unsupported
from smelt.graph.graph_interpreter import run
from smelt.graph.ir import Line
from smelt.graph.verify_graph import verify
from smelt.tracing.record.trace import Trace
from tests.harness.traced import check, flatten, trace


def targets(graph):
    return [getattr(n.target, "__name__", str(n.target)) for n in graph if n.op.startswith("call")]


def test_only_the_outermost_call_is_recorded():
    _, traced = trace(lambda x, w: F.layer_norm(x, (4,), w), [torch.randn(2, 4), torch.randn(4)])
    assert targets(traced.torch_graph) == ["layer_norm"]
    (norm, item) = [n for n in traced.aten_graph if n.op == "call_function"]
    assert str(norm.target) == "aten.native_layer_norm.default"
    assert norm.source.target is F.layer_norm and item.source is norm.source


def test_metadata_is_read_without_a_trace():
    def program(x):
        assert x.device.type == "cpu" and x.is_contiguous() and x.dim() == 2 and len(x) == 2
        return x.view(x.shape[0] * x.size(1)) if x.dtype == torch.float32 else x

    _, traced = trace(program, [torch.randn(2, 4)])
    assert targets(traced.torch_graph) == ["view"]


def test_nodes_have_user_lines():
    recorder = Trace(lambda: Line("user.py", 3, "f"))
    with recorder:
        y = recorder.fake(torch.randn(2)) + 1
    traced = recorder.finish([y])
    assert traced.aten_graph.nodes[1].line == traced.torch_graph.nodes[1].line == Line("user.py", 3, "f")


def test_one_fake_per_tensor_and_only_used_inputs():
    x, unused = torch.randn(2), torch.randn(3)
    recorder = Trace()
    with recorder:
        fake = recorder.fake(x)
        assert recorder.fake(x) is fake and recorder.real(fake) is x and recorder.is_input(fake)
        recorder.fake(unused)
        out = fake * 2
    traced = recorder.finish([out, fake])
    assert traced.inputs == (fake,) or [id(f) for f in traced.inputs] == [id(fake)]
    assert traced.example_inputs()[0] is x
    assert run(traced.aten_graph, [x])[1] is x


def test_parameters_stay_parameters():
    parameter = torch.nn.Parameter(torch.randn(2))
    recorder = Trace()
    with recorder:
        fake = recorder.fake(parameter)
        assert isinstance(fake, torch.nn.Parameter) and fake.requires_grad and fake.is_leaf
        with torch.no_grad():
            out = fake * 2
    assert not recorder.finish([out]).needs_grad


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.item(), lambda x: bool(x), lambda x: float(x), lambda x: x.tolist(), lambda x: x.numpy(),
        lambda x: x[x > 0], lambda x: x.nonzero(), lambda x: torch.equal(x, x + 1), lambda x: x.data_ptr(),
    ],
)  # fmt: skip
def test_values_cannot_be_read(read):
    with pytest.raises(Unsupported, match="data-dependent"):
        trace(lambda x: read(x) or x, [torch.randn(1)])


def test_constants_are_folded():
    def program(x):
        scale = torch.tensor(3)
        length = (torch.arange(4).sum() * scale).item()
        assert length == 18 and torch.tensor([1, 2]).tolist() == [1, 2]
        return x * length

    check(program, torch.randn(2))


def test_a_written_constant_is_not_folded():
    def program(x):
        scale = torch.tensor(3)
        scale.add_(1)
        return x * scale.item()

    with pytest.raises(Unsupported, match="data-dependent"):
        trace(program, [torch.randn(2)])


def test_subclasses_and_layouts_are_refused():
    class Plain(torch.Tensor):
        pass

    class Counted(torch.Tensor):
        def __len__(self):
            return 7

    assert Trace().fake(torch.randn(2).as_subclass(Plain)).subclass is Plain
    for odd in (torch.randn(2).as_subclass(Counted), torch.eye(2).to_sparse()):
        with pytest.raises(Unsupported):
            Trace().fake(odd)


def test_changes_autograd_cannot_follow_are_refused():
    for program in (
        lambda x: setattr(x, "data", x + 1),
        lambda x: x.resize_(7),
        lambda x: x.register_hook(print),
    ):
        with pytest.raises(Unsupported):
            trace(lambda x: program(x) or x, [torch.randn(2)])


def test_a_fake_outside_its_trace_raises():
    recorder = Trace()
    with recorder:
        fake = recorder.fake(torch.randn(2))
    with pytest.raises(SmeltError, match="outside of its trace"):
        fake + 1
    assert "FakeTensor([2]" in repr(fake)


def test_paused():
    recorder = Trace()
    with recorder, recorder.paused():
        assert torch.ones(2).sum().item() == 2
    assert not recorder.tape.aten.graph.nodes


def test_autocast():
    def program(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            y = F.linear(x, w)
            with torch.autocast("cpu", enabled=False):
                z = F.linear(x, w)
            return y, z, F.linear(x, w).float()

    traced = check(program, torch.randn(2, 3), torch.randn(4, 3))
    assert "set_autocast_enabled" in targets(traced.torch_graph)
    assert not torch.is_autocast_enabled("cpu")


def test_gradients_through_the_torch_graph():
    def program(x, w):
        with torch.no_grad():
            scale = w.abs().max()
        return F.linear(x, w / scale).relu(), (w * 2).detach()

    x, w = torch.randn(2, 3), torch.randn(4, 3, requires_grad=True)
    recorder, traced = trace(program, [x, w], grad=True)
    assert traced.needs_grad and [o.requires_grad for o in traced.outputs] == [True, False]
    got, want = run(traced.torch_graph, [recorder.real(f) for f in traced.inputs]), program(x, w)
    (grad,), (expected,) = (torch.autograd.grad(out[0].sum(), w) for out in (got, want))
    torch.testing.assert_close(grad, expected)
    assert not got[1].requires_grad and torch.is_grad_enabled()


def test_operators_under_vmap_are_recorded_one_by_one():
    def program(x, y):
        return (
            torch.vmap(lambda a, b: (a * b).sum(-1))(x, y) + torch.func.grad(lambda v: (v**2).sum())(x)[:, 0]
        )

    traced = check(program, torch.randn(3, 4), torch.randn(3, 4), rtol=1e-6, atol=1e-6)
    verify(traced.torch_graph)


def test_autograd_inside_the_program():
    def program(x):
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (grad,) = torch.autograd.grad((leaf**3).sum(), leaf)
        return grad

    check(program, torch.randn(3))


@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_stays_one_operator(mask, causal):
    if mask and causal:
        pytest.skip("refused by torch")
    q, k, v = (torch.randn(2, 4, 5, 8) for _ in range(3))
    m = {None: None, "bool": torch.rand(5, 5) > 0.2, "float": torch.randn(5, 5)}[mask]
    traced = check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, m, is_causal=causal), q, k, v)
    assert any("flash_attention_for_cpu" in str(n.target) for n in traced.aten_graph)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions_keep_their_layout(layout):
    x, w = torch.randn(2, 8, 6, 6).to(memory_format=layout), torch.randn(4, 8, 3, 3)
    check(lambda x, w: F.max_pool2d(F.conv2d(x, w, padding=1).relu_(), 2), x, w)
    check(lambda x, w: F.batch_norm(F.conv2d(x, w), w[:, 0, 0, 0], w[:, 1, 0, 0].abs()), x, w)
    check(lambda x, w: F.interpolate(x, scale_factor=2, mode="bilinear") + F.pad(x, (3, 3, 3, 3)), x, w)


def test_recurrent_layers():
    for layer in (torch.nn.LSTM(3, 4, 2), torch.nn.GRU(3, 4, bidirectional=True)):
        check(lambda x: flatten(layer(x)), torch.randn(5, 2, 3), rtol=1e-6, atol=1e-6)


def test_errors_equal_eager():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        trace(lambda x: x @ x, [torch.randn(2, 3)])
    with pytest.raises(IndexError):
        trace(lambda x: x[5], [torch.randn(2, 3)])


def test_dropout_draws_as_in_eager():
    check(lambda x: F.dropout(torch.rand(4) + x, 0.5) + torch.randn(4), torch.randn(4))


def test_real_tensors_in_native_code_with_cached_results():
    """The second layer's results come from the cache, with its parameters still real."""
    for _ in range(2):
        layer = torch.nn.GRU(3, 4)
        check(lambda x, layer=layer: flatten(layer(x)), torch.randn(5, 2, 3), rtol=1e-6, atol=1e-6)


def modes() -> list[object]:
    return [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]


@pytest.mark.parametrize("pops", [0, 1, 2, 3])
def test_modes_left_by_a_raising_program_are_restored(pops):
    class Outer(TorchDispatchMode):
        pass

    with torch.device("cpu"), torch.device("meta"), Outer():
        before = modes()
        with pytest.raises(ZeroDivisionError), Trace():
            for _ in range(pops):
                torch._C._pop_torch_function_stack()
            for _ in range(pops - 1):
                torch._C._pop_torch_dispatch_stack(None)
            raise ZeroDivisionError
        assert all(a is b for a, b in zip(modes(), before, strict=True))


def test_a_mode_that_was_not_left_is_removed():
    before = modes()
    with Trace():
        torch.device("meta").__enter__()
    assert modes() == before


def test_leaving_an_outer_mode_is_refused():
    with torch.device("meta"):
        before = modes()
        with pytest.raises(Unsupported, match="mode of torch"), Trace():
            torch._C._pop_torch_function_stack()
            torch._C._pop_torch_function_stack()
        assert modes() == before
