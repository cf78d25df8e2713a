"""Programs with gradients: results, gradients and mutations are the compiled call's, bit for bit."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.errors import ExportError, InputError
from smelt.exported import program_plans
from smelt.exported.program import Program
from tests.harness.exported import same, tensors
from tests.harness.processes import start


def loss_of(result: Any) -> torch.Tensor:
    """A number that depends on each result that requires grad, with other weights for each."""
    wanted = [t for t in tensors(result) if t.requires_grad]
    return torch.stack([(t * (i + 1)).float().square().sum() for i, t in enumerate(wanted)]).sum()


def leaves(args: tuple[Any, ...]) -> list[torch.Tensor]:
    return [t for t in tensors(args) if t.requires_grad]


def grads(of: Any) -> list[torch.Tensor | None]:
    found = [t.grad for t in of]
    for t in of:
        t.grad = None
    return found


def check(model: nn.Module, args: tuple[Any, ...], folder: Path, others: Any = (), **options: Any) -> Program:
    """Two steps of a loaded program on these and on other arguments: results, gradients and state as the compiled call's."""
    ref = copy.deepcopy(model)
    smelt.export(model, args, gradients=True, **options).save(folder / "m.smelt")
    assert all(map(same, ref.state_dict().values(), model.state_dict().values()))
    program = smelt.load(folder / "m.smelt")
    run = smelt.compile(ref, fullgraph=True, dynamic=bool(options) or None)
    params = dict(ref.named_parameters())
    for call in (args, *others, args):
        torch.manual_seed(1)
        want = run(*call)
        loss_of(want).backward()
        wanted = grads([*leaves(call), *params.values()])
        torch.manual_seed(1)
        got = program(*call)
        assert same(want, got)
        assert [t.requires_grad for t in tensors(want)] == [t.requires_grad for t in tensors(got)]
        loss_of(got).backward()
        own = dict(program.named_parameters())
        assert set(own) <= set(params)
        found = grads([*leaves(call), *(own.get(name, torch.empty(0)) for name in params)])
        assert any(g is not None for g in found)
        for a, b in zip(wanted, found, strict=True):
            assert (a is None and b is None) or (a is not None and b is not None and same(a, b))
    for name, buffer in ref.named_buffers():
        if name in program.state:
            assert same(buffer, program.state[name]), name
    return program


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def test_parameters_and_inputs(tmp_path: Path) -> None:
    x = torch.randn(8, 16, requires_grad=True)
    program = check(mlp(), (x,), tmp_path)
    assert [name for name, _ in program.named_parameters()] == [name for name, _ in mlp().named_parameters()]
    assert all(p.is_leaf and p.requires_grad for p in program.parameters())


def test_dynamic_sizes(tmp_path: Path) -> None:
    with smelt.config.set(native_gemm=False):  # of products for all sizes, as the program has them
        dims = {"input": {0: smelt.Dim("batch", min=2, max=64)}}
        others = [(torch.randn(n, 16, requires_grad=True),) for n in (2, 33, 64)]
        check(mlp(), (torch.randn(8, 16, requires_grad=True),), tmp_path, others, dynamic_shapes=dims)


class Norms(nn.Module):
    """Buffers that training writes, a random mask, a frozen and a tied parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.25)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Linear(8, 8)
        self.frozen = nn.Parameter(torch.randn(8), requires_grad=False)
        self.tied = self.last.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.pool(self.drop(torch.relu(self.norm(self.first(x)))))
        y = self.last(y.mean((2, 3))) @ self.tied
        return y * self.frozen


def test_training_mode(tmp_path: Path) -> None:
    torch.manual_seed(0)
    check(Norms(), (torch.randn(4, 3, 8, 8),), tmp_path)


class Heads(nn.Module):
    """Several results on one trunk; one without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.tanh(self.trunk(x))
        left, right = self.left(y), self.right(y)
        return {"left": left, "right": right, "best": left.argmax(-1)}


def test_several_results(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 4)
    program = check(Heads(), (x,), tmp_path)
    ref = Heads()
    ref.load_state_dict(dict(program.state))
    run = smelt.compile(ref, fullgraph=True)
    for name, other in (("left", "right"), ("right", "left")):
        for of in (run, program):
            of(x)[name].square().sum().backward()
        for n, p in program.named_parameters():
            q = ref.get_parameter(n)
            assert (p.grad is None) == (q.grad is None) == n.startswith(other)
            assert p.grad is None or same(p.grad, q.grad), n
        grads([*program.parameters(), *ref.parameters()])


def test_gradients_of_some_results_are_sums(tmp_path: Path) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.sin() * y, x.exp() + y, (x * y).tanh()

    x, y = (torch.randn(5, requires_grad=True) for _ in range(2))
    program = smelt.export(f, (x, y), gradients=True)
    wanted = torch.autograd.grad([f(x, y)[0].sum(), f(x, y)[2].sum()], [x, y])
    a, _, c = program(x, y)
    found = torch.autograd.grad([a.sum(), c.sum()], [x, y])
    assert all(map(torch.allclose, found, wanted))


class WithLoss(nn.Module):
    """A result that another one is computed from: two nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        logits = self.head(torch.relu(self.body(x)))
        return nn.functional.cross_entropy(logits, y), logits


def test_loss_and_logits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(7, 6, requires_grad=True), torch.randint(5, (7,))
    program = check(WithLoss(), (x, y), tmp_path)
    ref = WithLoss()
    ref.load_state_dict(dict(program.state))
    run = smelt.compile(ref, fullgraph=True)
    for use in (lambda r: r[0], lambda r: r[1].sum()):
        for of in (run, program):
            use(of(x, y)).backward()
        for a, b in zip(grads(ref.parameters()), grads(program.parameters()), strict=True):
            assert a is not None and b is not None and same(a, b)


def test_training_gives_the_compiled_losses(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x, y = WithLoss(), torch.randn(7, 6), torch.randint(5, (7,))
    smelt.export(model, (x, y), gradients=True).save(tmp_path / "m.smelt")
    program = smelt.load(tmp_path / "m.smelt")
    run = smelt.compile(model, fullgraph=True)
    losses = []
    for of, params in ((run, model.parameters()), (program, program.parameters())):
        optimizer = torch.optim.AdamW(params, lr=0.01)
        found = []
        for _ in range(10):
            loss, _ = of(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    assert losses[0] == losses[1] and losses[0][-1] < losses[0][0]
    program.save(tmp_path / "trained.smelt")  # trained weights and which of them require grad are in the file
    again = smelt.load(tmp_path / "trained.smelt")
    assert [n for n, _ in again.named_parameters()] == [n for n, _ in program.named_parameters()]
    assert same(again(x, y)[1].detach(), run(x, y)[1].detach())


def test_another_process_trains_without_the_compiler(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 16)
    program = smelt.export(mlp(), (x,), gradients=True)
    program.save(tmp_path / "m.smelt")
    program(x).square().sum().backward()
    torch.save(x, tmp_path / "x.pt")
    done = start(f"""
import sys, torch, smelt
folder = {str(tmp_path)!r}
program = smelt.load(folder + "/m.smelt")
program(torch.load(folder + "/x.pt")).square().sum().backward()
compiler = "smelt.callables smelt.capture smelt.codegen smelt.guards smelt.ops smelt.tracing llvmlite sympy"
assert [m for m in sys.modules if m.startswith(tuple(compiler.split()))] == []
torch.save([p.grad for p in program.parameters()], folder + "/grads.pt")
""")
    assert done.returncode == 0, done.stderr
    assert all(map(same, torch.load(tmp_path / "grads.pt"), grads(program.parameters())))


def test_a_graph_outlives_its_program(tmp_path: Path) -> None:
    x = torch.randn(8, 16, requires_grad=True)
    program = smelt.export(mlp(), (x,), gradients=True)
    program.save(tmp_path / "m.smelt")
    y = smelt.load(tmp_path / "m.smelt")(x)
    gc.collect()
    [found] = torch.autograd.grad(y.square().sum(), x)
    [wanted] = torch.autograd.grad(program(x).square().sum(), x)
    assert same(found, wanted)


def test_what_autograd_checks() -> None:
    x = torch.randn(8, 16, requires_grad=True)
    program = smelt.export(mlp(), (x,), gradients=True)
    y = program(x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()
    y = program(x)
    with torch.no_grad():
        dict(program.named_parameters())["3.weight"].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    [g] = torch.autograd.grad(program(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        g.sum().backward()
    with torch.no_grad():
        assert program(x).grad_fn is None


def test_arguments_that_require_grad() -> None:
    x = torch.randn(3)
    needing = x.clone().requires_grad_()
    with pytest.raises(InputError, match="x requires grad, but the program was exported without gradients"):
        smelt.export(lambda x: x * 2, (needing,))(needing)
    program = smelt.export(lambda x, y: x * y, (needing, x), gradients=True)
    assert program(x, x).grad_fn is None and program(needing, x).grad_fn is not None
    with pytest.raises(InputError, match="y requires grad, but did not at the export"):
        program(needing, needing)
    with torch.no_grad():
        assert same(program(needing, needing), x * x)
    detached = smelt.export(lambda x: x.detach() * 2, (needing,), gradients=True)
    assert same(detached(needing), x * 2)


def view_of_input(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1)


def two_views(x: torch.Tensor) -> Any:
    y = x * 2
    return y, y[0]


def flagged(x: torch.Tensor) -> torch.Tensor:
    x.retain_grad()
    return x * 2


WEIGHT = torch.ones(4, 4, requires_grad=True)


def weight_of_one_branch(x: torch.Tensor) -> torch.Tensor:
    return x @ WEIGHT if x.sum() > 0 else x * 2


@pytest.mark.parametrize(
    "f, message",
    [
        (weight_of_one_branch, "reads a tensor that requires grad in one branch of a condition"),
        (view_of_input, "returns a view of an input or of another result"),
        (two_views, "returns a view of an input or of another result"),
        (flagged, "sets requires_grad or retain_grad of its inputs"),
    ],
)
def test_refused(f: Callable[..., Any], message: str) -> None:
    x = torch.randn(3, 4, requires_grad=True) * 1
    with pytest.raises(ExportError, match=message):
        smelt.export(f, (x,), gradients=True)


def test_plans_of_another_torch_are_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(8, 16, requires_grad=True)
    program = smelt.export(mlp(), (x,), gradients=True)
    program.save(tmp_path / "m.smelt")
    monkeypatch.setattr(program_plans, "_refusal", lambda target: "its plans are for torch 9")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        again = smelt.load(tmp_path / "m.smelt")
        again(x).square().sum().backward()
    assert [str(w.message) for w in found] == [
        "smelt: the program is compiled again for this machine: its plans are for torch 9"
    ]
    assert found[0].filename == __file__
    program(x).square().sum().backward()
    assert all(map(same, grads(again.parameters()), grads(program.parameters())))
