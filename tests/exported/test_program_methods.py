"""Several methods in one file, and new weights for a program that runs."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.errors import ExportError, InputError
from tests.harness.exported import same


class Coder(nn.Module):
    """Two methods that share a weight; one of them writes a buffer that the other reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4))
        self.bias = nn.Parameter(torch.zeros(8))
        self.register_buffer("calls", torch.zeros(()))
        self.scale = torch.full((8,), 2.0)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.tanh(x @ self.weight.t() + self.bias) * self.scale

    def decode(self, z: torch.Tensor, *, sharp: bool = False) -> Any:
        return {"x": z / self.scale @ self.weight, "calls": self.calls * 1, "sharp": sharp}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encode(x))["x"]


@pytest.fixture
def model() -> Coder:
    torch.manual_seed(0)
    return Coder()


X, Z = torch.randn(3, 4), torch.randn(5, 8)


def exported(model: Coder, folder: Path, **options: Any) -> Any:
    methods = {"encode": (X,), "decode": {"z": Z, "sharp": True}, "forward": (X,)}
    shapes = {"encode": {"x": {0: smelt.Dim("rows", min=2, max=9)}}}
    smelt.export(model, methods=methods, dynamic_shapes=shapes, **options).save(folder / "m.smelt")
    return smelt.load(folder / "m.smelt")


def test_methods_share_the_state(model: Coder, tmp_path: Path) -> None:
    program = exported(model, tmp_path)
    eager = copy.deepcopy(model).requires_grad_(False)
    assert program.methods == ("encode", "decode", "forward")
    assert sorted(program.state) == ["bias", "calls", "scale", "weight"]
    for _ in range(2):
        for x in (X, torch.randn(9, 4)):
            assert torch.allclose(program.method("encode")(x), eager.encode(x))
        assert torch.allclose(program(X), eager.encode(X))  # the first method is the program's own
        found, wanted = program.method("decode")(Z, sharp=True), eager.decode(Z, sharp=True)
        assert torch.allclose(found["x"], wanted["x"]) and same(found["calls"], wanted["calls"])
        assert torch.allclose(program.method("forward")(X), eager(X))
    assert program.method("decode").state is program.state
    assert repr(program.method("decode")) == "<smelt program decode(z, *, sharp=False)>"
    with pytest.raises(InputError, match=r"dimension 0 of x, the Dim 'rows', must be from 2 to 9, got 10"):
        program(torch.randn(10, 4))
    with pytest.raises(KeyError, match="has no method code, only encode, decode, forward"):
        program.method("code")
    assert model.calls == 0


def test_methods_with_gradients(model: Coder, tmp_path: Path) -> None:
    program = exported(model, tmp_path, gradients=True)
    run = copy.deepcopy(model)
    for x in (X, torch.randn(7, 4)):
        wanted = run.encode(x)
        found = program.method("encode")(x)
        (found.square().sum() + program.method("decode")(Z, sharp=True)["x"].sum()).backward()
        (wanted.square().sum() + run.decode(Z, sharp=True)["x"].sum()).backward()
        for name, p in program.named_parameters():
            grad = run.get_parameter(name).grad
            assert p.grad is not None and grad is not None and torch.allclose(p.grad, grad, atol=1e-5)


def test_wrong_calls(model: Coder) -> None:
    with pytest.raises(TypeError, match="pass the arguments of the model itself as methods"):
        smelt.export(model, (X,), methods={"encode": (X,)})
    with pytest.raises(TypeError, match="the arguments of the method encode are a tuple, or a dict"):
        smelt.export(model, methods={"encode": X})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="dynamic_shapes is a dict by the names of methods"):
        smelt.export(model, methods={"encode": (X,)}, dynamic_shapes={"x": {}})
    with pytest.raises(AttributeError, match="code"):
        smelt.export(model, methods={"code": (X,)})

    class Effect(Coder):
        def encode(self, x: torch.Tensor) -> torch.Tensor:
            self.last = x
            return x

    with pytest.raises(ExportError, match="sets the attribute 'last' of the model"):
        smelt.export(Effect(), methods={"encode": (X,)})


# ---- update_weights


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.register_buffer("whole", torch.arange(6.0))
        self.register_buffer("part", self.whole[:4])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x))) * self.part + self.whole.sum()


@pytest.mark.parametrize("gradients", [False, True])
def test_new_weights(gradients: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, other, x = Tied(), Tied(), torch.randn(3, 4)
    other.whole.mul_(2)
    smelt.export(model, (x,), gradients=gradients).save(tmp_path / "m.smelt")
    program = smelt.load(tmp_path / "m.smelt")
    before = dict(program.state)
    program.update_weights({n: t for n, t in other.state_dict().items() if n in before and n != "part"})
    with torch.no_grad():
        assert torch.allclose(program(x), other(x))
        assert torch.allclose(smelt.load(tmp_path / "m.smelt")(x), model(x))  # the file is as it was
    state = program.state
    assert state["part"].data_ptr() == state["whole"].data_ptr()
    for name, tensor in before.items():
        assert (
            (state[name] is tensor) == tensor.requires_grad == (gradients and name not in ("whole", "part"))
        )
    if gradients:
        program(x).sum().backward()
        assert all(p.grad is not None for p in program.parameters())


def test_updated_weights_are_freed() -> None:
    program = smelt.export(nn.Linear(3, 3), (torch.ones(3, 3),))
    old = weakref.ref(program.state["weight"])
    program.update_weights({"weight": torch.zeros(3, 3)})
    gc.collect()
    assert old() is None


def test_a_buffer_that_shares_the_memory_of_a_parameter() -> None:
    model = nn.Linear(3, 3)
    model.register_buffer("alias", model.weight.detach())
    model.forward = lambda x: x @ model.weight + model.get_buffer("alias")  # type: ignore[method-assign]
    program = smelt.export(model, (torch.ones(3, 3),), gradients=True)
    [parameter] = program.parameters()
    program.update_weights({"alias": torch.full((3, 3), 5.0)})
    assert [id(p) for p in program.parameters()] == [id(parameter)]
    assert torch.equal(program(torch.ones(3, 3)), torch.full((3, 3), 20.0))


def test_wrong_weights_are_named_and_change_nothing() -> None:
    x = torch.randn(3, 4)
    program = smelt.export(nn.Linear(4, 2), (x,))
    wanted = program(x)
    good = {"weight": torch.zeros(2, 4)}
    for name, value, text in (
        ("gain", torch.zeros(2), "the program has no weight gain"),
        (
            "bias",
            torch.zeros(3),
            r"the weight bias must be torch.float32 of \(2,\) on the CPU, got torch.float32 of \(3,\)",
        ),
        (
            "bias",
            torch.zeros(2).double(),
            r"bias must be torch.float32 of .* got torch.float64 of \(2,\) on cpu",
        ),
        ("bias", torch.zeros(2, device="meta"), r"got torch.float32 of \(2,\) on meta"),
        ("bias", torch.zeros(2).to_sparse(), "got torch.float32 of .*sparse_coo"),
        ("bias", [0.0, 0.0], "got a list"),
    ):
        with pytest.raises(InputError, match=text):
            program.update_weights({**good, name: value})  # type: ignore[dict-item]
    assert same(program(x), wanted)


def test_a_call_reads_old_or_new_weights() -> None:
    """Threads call while weights change: each result is that of one set of weights, and the last one is the new one's."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(1000)), nn.Parameter(torch.zeros(1000))

        def forward(self, x: torch.Tensor) -> Any:
            return x + self.a, x + self.b

    program = smelt.export(Both(), (torch.zeros(1000),))
    wrong, done = [], threading.Event()

    def call() -> None:
        while not done.is_set():
            a, b = program(torch.zeros(1000))
            if not (torch.equal(a, b) and a.min() == a.max()):
                wrong.append((a, b))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(200):
        program.update_weights(dict.fromkeys("ab", torch.full((1000,), float(n))))
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong and program(torch.zeros(1000))[0].eq(199).all()
