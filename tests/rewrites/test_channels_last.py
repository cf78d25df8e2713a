"""Images of half precision are channels-last inside of graphs; what the caller sees lies as in eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from smelt import pipeline
from smelt.autograd.partition import Partition, partition
from smelt.backends import smelt as backend
from smelt.graph.graph_printer import code
from smelt.graph.ir import Graph, Node
from smelt.graph.memory_format import is_channels_last_layout, is_last
from smelt.graph.verify_graph import verify
from smelt.rewrites.channels_last import to_channels_last
from smelt.targets import cuda
from smelt.tracing.backward.joint import Joint

pytestmark = pytest.mark.simulated_cuda

aten = torch.ops.aten
CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
bf16 = torch.bfloat16


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Graph, Graph]]]:
    """The aten graphs that were compiled: as traced, and with images channels-last."""
    found: list[tuple[Graph, Graph]] = []

    def recorded(graph: Graph, *backward: Any) -> Any:
        made = to_channels_last(graph, *backward)
        verify(made.graph, functional=True)
        found.append((graph, made.graph))
        return made

    monkeypatch.setattr(pipeline, "to_channels_last", recorded)
    yield found


class Block(nn.Module):
    """A residual block of 3x3 and 1x1 convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.narrow = nn.Conv2d(channels, channels, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norms[0](self.wide(x)))
        return F.relu(x + self.norms[1](self.narrow(h)))


class Net(nn.Module):
    """A stem of three channels, two blocks, a mean over pixels."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.blocks = nn.Sequential(Block(channels), Block(channels))
        self.last = nn.Linear(channels, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.last(self.blocks(x).mean((2, 3)))


def build_module(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build().cuda()


def images(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype).cuda()


def convolutions(graph: Graph) -> list[Node]:
    return [node for node in graph if node.target in CONVOLUTIONS]


def copies(graph: Graph) -> list[str]:
    """What is copied into another layout."""
    return [str(n.args[0]) for n in graph if n.target is aten.clone.default]


def check_channels_last(graph: Graph) -> None:
    """All that convolutions read and give is channels-last."""
    found = convolutions(graph)
    assert found
    for node in found:
        count = 2 if node.target is CONVOLUTIONS[0] else 3
        *read, weight = (a.spec for a in node.args[:count])
        assert all(map(is_last, read)) and is_channels_last_layout(weight), f"{node}\n{code(graph)}"
        results = node.spec if isinstance(node.spec, tuple) else (node.spec,)
        assert all(is_channels_last_layout(s) for s in results if s is not None and len(s.shape) == 4), code(
            graph
        )


def check_same(found: Any, expected: Any) -> None:
    """Tensors laid out alike, and equal within half precision's rounding of their largest elements."""
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
        a, b = a.float().cpu(), b.float().cpu()
        torch.testing.assert_close(a, b, rtol=0.05, atol=0.05 * float(b.abs().max()))


def step(call: Any, module: nn.Module, x: Tensor) -> list[Tensor]:
    """The result, then the gradients of parameters and image."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(5)
    with torch.autocast("cuda", bf16):
        out = call(x)
    out.backward(torch.linspace(-1, 1, out.numel()).cuda().to(out.dtype).view(out.shape))
    return [out.detach(), *(p.grad for p in module.parameters()), x.grad]  # type: ignore[list-item]


def test_inference_changes_layouts_where_it_casts(graphs):
    net = build_module(Net).eval()
    x = images(2, 3, 32, 32)
    with torch.no_grad(), torch.autocast("cuda", bf16):
        check_same([smelt.compile(net, fullgraph=True)(x)], [net(x)])
    [(traced, graph)] = graphs
    check_channels_last(graph)
    assert not any(is_last(node.args[0].spec) for node in convolutions(traced))
    assert copies(graph) == [] and len(graph.nodes) == len(traced.nodes)


def test_training_copies_values_that_the_caller_holds(graphs):
    net = build_module(Net)
    x = images(4, 3, 32, 32)
    expected = step(net, net, x)
    net = build_module(Net)
    check_same(step(smelt.compile(net, fullgraph=True), net, x), expected)
    [(_, graph)] = graphs
    check_channels_last(graph)
    # Three gradients of 3x3 weights, that of the image, and the tangent of the mean, which was expanded. Also those of the
    # two 1x1 weights, if the CPU is one for which torch takes oneDNN: of that, dimensions of size 1 have other strides.
    copied = [n.spec.shape[2:] for n in graph if n.target is aten.clone.default]
    narrow = copied.count((1, 1))
    assert len(copied) - narrow == 5 and copied.count((3, 3)) == 3
    assert narrow in (0, 2)


def test_a_model_of_half_precision_copies_image_and_weights(graphs):
    net = build_module(Net).to(bf16).eval()
    x = images(2, 3, 32, 32, dtype=bf16)
    with torch.no_grad():
        check_same([smelt.compile(net)(x)], [net(x)])
    [(_, graph)] = graphs
    check_channels_last(graph)
    assert len(copies(graph)) == 4  # of 1x1 weights both layouts are one


def test_channels_last_images_are_not_copied(graphs):
    net = build_module(Net).to(bf16, memory_format=torch.channels_last).eval()
    x = images(2, 3, 32, 32, dtype=bf16).to(memory_format=torch.channels_last)
    with torch.no_grad():
        check_same([smelt.compile(net)(x)], [net(x)])
    assert copies(graphs[0][1]) == []


class Returned(nn.Module):
    """Gives images: a convolution's result that the next one reads, and views of another."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = F.relu(self.a(x))
        z = self.b(y)
        return y, z, z.flatten(1), z[:, 2:5], z.sigmoid().permute(0, 2, 3, 1)


def test_returned_images_and_their_views():
    net = build_module(Returned).to(bf16)
    x = images(2, 8, 6, 5, dtype=bf16)
    with torch.no_grad():
        found, expected = smelt.compile(net, fullgraph=True)(x), net(x)
    check_same(found, expected)
    found[1].fill_(3)
    assert bool((found[2] == 3).all()) and bool((found[3] == 3).all())
    assert [t._is_view() for t in found] == [t._is_view() for t in expected]


def test_a_returned_image_is_not_saved_twice(monkeypatch):
    kept: list[tuple[Partition, Partition]] = []

    def both(traced: Any, joint: Joint, config: Any, *further: Any) -> Any:
        kept.append((partition(traced.joint, config), partition(joint, config)))
        return compiled(traced, joint, config, *further)

    compiled = backend.compile_joint
    monkeypatch.setattr(backend, "compile_joint", both)

    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
            self.norm = nn.BatchNorm2d(8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = F.relu(self.norm(self.a(x)))
            return y, self.b(y)

    def run(call: Any, net: nn.Module) -> list[Tensor]:
        y, z = call(x)
        (y.float().sin().sum() + z.float().cos().sum()).backward()
        return [y.detach(), z.detach(), *(p.grad for p in net.parameters())]  # type: ignore[list-item]

    x = images(2, 8, 6, 5, dtype=bf16)
    net = build_module(Features).to(bf16)
    expected = run(net, net)
    net = build_module(Features).to(bf16)
    check_same(run(smelt.compile(net, fullgraph=True), net), expected)
    [(as_traced, last)] = kept
    assert last.nbytes <= as_traced.nbytes
    assert any(
        n.target is aten.convolution_backward.default and is_last(n.args[1].spec) for n in last.backward
    )


class Mutated(nn.Module):
    """Keeps the last image in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.register_buffer("seen", torch.zeros(2, 8, 6, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        self.seen.copy_(x.detach())
        return self.b(x * 2)


def test_mutated_inputs_keep_their_layout():
    net, other = (build_module(Mutated).to(bf16) for _ in range(2))
    x = images(2, 8, 6, 5, dtype=bf16)
    with torch.no_grad():
        check_same([smelt.compile(net, fullgraph=True)(x), net.seen], [other(x), other.seen])


class Mixed(nn.Module):
    """Operators of many kinds between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(8, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.halves = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.norm = nn.GroupNorm(4, 16)
        self.squeeze, self.excite = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.rows = nn.LayerNorm(8)
        self.last = nn.Linear(8 * 8 * 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm(self.depthwise(self.a(x))))
        left, right = x.chunk(2, 1)
        x = torch.cat([self.halves[0](left), F.avg_pool2d(self.halves[1](right), 3, 1, 1)], 1)
        x = x * self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))).sigmoid()
        x = F.interpolate(F.dropout(x, 0.3), scale_factor=2)
        x = self.rows(self.up(F.pad(x, (1, 1, 1, 1))).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.last(F.adaptive_max_pool2d(x, 8).flatten(1))


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_operators_between_convolutions(graphs, training, monkeypatch):
    # A bias is added behind what was rounded where a GPU's libraries convolve: other numbers win a maximum then.
    monkeypatch.setattr(cuda, "COSTS", replace(cuda.COSTS, depthwise_taps=0, depthwise_elements=0))
    x = images(2, 8, 6, 6)
    net = build_module(Mixed).train(training)
    expected = step(net, net, x)
    net = build_module(Mixed).train(training)
    check_same(step(smelt.compile(net, fullgraph=True), net, x), expected)
    [(_, graph)] = graphs
    for node in convolutions(graph):
        assert all(is_channels_last_layout(a.spec) for a in node.args[:2]), f"{node}\n{code(graph)}"


class Pair(nn.Module):
    """Two convolutions, and what may speak against their layout."""

    def __init__(self, channels: int = 16, **second: Any) -> None:
        super().__init__()
        self.a = nn.Conv2d(channels, channels, 3, padding=1)
        self.b = nn.Conv2d(channels, channels, 3, padding=1, **second)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x)))


def _changed(graphs: list[tuple[Graph, Graph]]) -> bool:
    return any(made is not traced for traced, made in graphs)


@pytest.mark.parametrize(
    ("settings", "dtype", "training", "expected"),
    [
        ({}, bf16, False, True),
        ({}, torch.float16, False, True),
        ({}, torch.float32, False, False),
        ({"channels": 4}, bf16, False, False),
        ({"groups": 16}, bf16, True, True),
        ({"groups": 2}, bf16, True, False),
        ({"channels": 64, "groups": 4}, bf16, False, True),
    ],
)
def test_profitability(graphs, settings, dtype, training, expected):
    net = build_module(lambda: Pair(**settings)).to(dtype)
    x = images(2, settings.get("channels", 16), 8, 8, dtype=dtype)
    with torch.set_grad_enabled(training):
        check_same([smelt.compile(net)(x).detach()], [net(x).detach()])
    assert _changed(graphs) is expected


def test_the_option_turns_it_off(graphs):
    net = build_module(Pair).to(bf16)
    with torch.no_grad():
        smelt.compile(net, options={"channels_last": False})(images(2, 16, 8, 8, dtype=bf16))
    assert graphs == []


@pytest.mark.parametrize("setting", ["deterministic", "enabled"])
def test_not_with_deterministic_or_benchmark_settings(graphs, monkeypatch, setting):
    monkeypatch.setattr(torch.backends.cudnn, setting, setting == "deterministic")
    net = build_module(Pair).to(bf16)
    with torch.no_grad():
        smelt.compile(net)(images(2, 16, 8, 8, dtype=bf16))
    assert graphs == []
