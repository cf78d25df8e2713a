"""Nested graphs, and intermediate results by the names of modules."""

import pytest
import torch
from torch import nn

import smelt
from smelt import fx


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, y, double=False):
        y = self.linear(x).relu_() + y
        return (y * 2, x) if double else (y, y.sum())


class Tied(nn.Module):
    """One module is called thrice, once otherwise; a parameter of one is read by another."""

    def __init__(self):
        super().__init__()
        self.cell = Cell()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4)))
        self.outer = nn.Linear(4, 4)

    def forward(self, x):
        a, b = self.cell(x, 1.0)
        c, d = self.cell(a, 1.0)
        e, _ = self.cell(c, b, double=True)
        return self.layers(e) @ self.cell.linear.weight + d + self.outer(x)


FORMS = {
    "proxies": {},
    "functions": {"leaves": ()},
    "captured": {},
    "captured functions": {"leaves": ()},
    "aten": {"level": "aten"},
}


def traced(module, x, form):
    example = {} if form in ("proxies", "functions") else {"example_inputs": (x,)}
    return smelt.symbolic_trace(module, **example, **FORMS[form])


@pytest.mark.parametrize("form", FORMS)
def test_nested_graphs_compute_the_same(form):
    torch.manual_seed(0)
    module, x = Tied(), torch.randn(3, 4)
    nested = fx.nest(traced(module, x, form))
    torch.testing.assert_close(nested(x), module(x))
    inner = [path for path, m in nested.named_modules() if path and isinstance(m, fx.GraphModule)]
    assert {"cell", "layers", "layers.1"} <= set(inner)
    assert {id(p) for p in nested.parameters()} == {id(p) for p in module.parameters()}
    nested(x).sum().backward()


def test_the_code_of_each_module():
    module = Tied()
    nested = fx.nest(smelt.symbolic_trace(module))
    assert nested.layers.code.count("getattr") == 2
    assert type(nested.layers).__name__ == "Sequential"
    assert "linear.weight" in nested.code


@pytest.mark.parametrize("form", FORMS)
def test_features_are_what_hooks_see(form):
    torch.manual_seed(0)
    last = nn.Sequential(nn.Linear(4, 2), nn.Tanh())
    module, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), last), torch.randn(3, 4)
    seen = {}
    for name in ("1", "2.0", "2"):
        module.get_submodule(name).register_forward_hook(
            lambda m, args, out, name=name: seen.update({name: out.clone()})
        )
    module(x)
    for m in module.modules():
        m._forward_hooks.clear()
    found = fx.features(traced(module, x, form), {"1": "first", "2.0": "middle", "2": "last"})(x)
    for key, name in (("first", "1"), ("middle", "2.0"), ("last", "2")):
        torch.testing.assert_close(found[key], seen[name])


@pytest.mark.parametrize("form", FORMS)
def test_a_module_called_self(form):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("self", nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
            self.output = nn.Linear(4, 4)

        def forward(self, x):
            return self.output(getattr(self, "self")(x)) + x  # noqa: B009

    module, x = nn.Sequential(Attention()), torch.randn(2, 4)
    gm = traced(module, x, form)
    torch.testing.assert_close(fx.nest(gm)(x), module(x))
    torch.testing.assert_close(traced(module[0], x, form)(x), module(x))


@pytest.mark.parametrize("form", ["proxies", "captured"])
def test_modes_of_modules_stay(form):
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    module[1].eval()
    gm = traced(module, torch.randn(3, 4), form)
    made = [fx.nest(gm), fx.features(gm, ["0"])]
    assert [m.training for m in module] == [True, False] and all(m.training for m in made)


def test_an_unknown_name_is_an_error():
    gm = smelt.symbolic_trace(nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(smelt.errors.OptionError, match="no node and no module is called 'linaer'"):
        fx.features(gm, ["linaer"])


def test_features_of_torchvision_and_timm():
    """torchvision.models.feature_extraction, which timm's `features_only` with torch.fx uses, is the reference."""
    extraction = pytest.importorskip("torchvision.models.feature_extraction")
    models = pytest.importorskip("torchvision.models")
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    programs = [
        (models.resnet18().eval(), {"layer1": "a", "layer3": "b", "avgpool": "c"}, 64),
        (timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2).eval(), {"blocks.0": "a", "norm": "b"}, 32),
    ]  # fmt: skip
    for module, names, size in programs:
        x = torch.randn(1, 3, size, size)
        with torch.no_grad():
            seen = {}
            hooks = [
                module.get_submodule(n).register_forward_hook(
                    lambda m, a, out, k=k: seen.update({k: out.clone()})
                )
                for n, k in names.items()
            ]
            module(x)
            for hook in hooks:
                hook.remove()
            for example in ({}, {"example_inputs": (x,)}):
                found = fx.features(smelt.symbolic_trace(module, **example), names)(x)
                for key, value in seen.items():
                    torch.testing.assert_close(found[key], value)
            if module is programs[0][0]:
                reference = extraction.create_feature_extractor(module, names)(x)
                assert {k: v.shape for k, v in reference.items()} == {k: v.shape for k, v in found.items()}
