"""A second process finds entries on GPUs: their kernels as machine code, without the compiler and without Triton."""

import json

import pytest

from tests.harness.gpu_processes import close, needs_gpu
from tests.harness.gpu_processes import process as gpu_process

pytestmark = needs_gpu

PROGRAMS = """
import json, sys
import torch
import torch.nn.functional as F
from torch import nn
import smelt

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layers = nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.register_buffer("calls", torch.zeros(()))
    def forward(self, x, scale=1.0):
        self.calls += 1
        return {"out": x + self.layers(self.norm(x)) * scale, "parts": (x.mean(-1), [x.amax()])}

class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
    def forward(self, x):
        hidden = self.body(x).tanh()
        return {"loss": self.head(hidden).square().mean() + hidden.mean(), "hidden": hidden}

def constants(x, step):
    table = torch.tensor([1.0, 2.0, 3.0], device=x.device)
    return x * table + step, x.exp().cpu().numpy().shape

def many(xs):
    return [x * 2 + i for i, x in enumerate(xs)]

def inference(make, args):
    def case(prepare):
        torch.manual_seed(0)
        target = make()
        call = prepare(target.cuda().eval() if isinstance(target, nn.Module) else target)
        with torch.no_grad():
            return [plain(call(*args)) for _ in range(5)]
    return case

def training(prepare):
    torch.manual_seed(3)
    module = Loss().cuda()
    target, x = prepare(module), torch.randn(5, 6).cuda().requires_grad_()
    seen = []
    for name in ("loss", "loss", *sys.argv[2:]):
        module.zero_grad()
        out = target(x)
        out[name].sum().backward()
        seen += [plain(out), plain(x.grad), [plain(p.grad) for p in module.parameters() if p.grad is not None]]
        with torch.no_grad():  # an optimizer would import torch's compiler, and sympy
            for p in module.parameters():
                p -= 0.1 * (0 if p.grad is None else p.grad)
    return seen

def sized(prepare):
    torch.manual_seed(4)
    call, seen = prepare(lambda x: (x.softmax(-1) * 2, x.sum(0).relu())), []
    for n in (5, 6, 7):
        x = torch.randn(n, 9).cuda()
        with torch.no_grad():
            seen.append(plain(call(x)))
    return seen

def sized_training(prepare):
    call, seen = prepare(lambda x, y: ((x.sin() * y).softmax(-1) * x.shape[0]).square().sum()), []
    for n in (5, 6, 7):
        x, y = (torch.linspace(a, 1, 4 * n).view(n, 4).cuda().requires_grad_() for a in (-1, 0))
        loss = call(x, y)
        seen += [plain(loss), plain(torch.autograd.grad(loss, (x, y)))]
    return seen

x = torch.linspace(-1, 1, 12).view(4, 3).cuda()
CASES = {
    "block": inference(Block, (torch.linspace(-2, 2, 32).view(4, 8).cuda(), 0.5)),
    "constants": inference(lambda: constants, (x, torch.tensor(2.0))),
    "many": inference(lambda: many, ([x, x + 1, x[:2], x.T.contiguous()],)),
    "training": training,
    "sized": sized,
    "sized training": sized_training,
}

def main():
    outcome = {name: [case(smelt.compile), case(lambda f: f)] for name, case in CASES.items() if name in sys.argv[1]}
    compiler = ("smelt.capture", "smelt.tracing", "smelt.codegen", "smelt.pipeline", "llvmlite", "triton", "sympy")
    modules = sorted({m for m in sys.modules if m.startswith(compiler)})
    print(json.dumps([outcome, modules]))
"""


def process(folder, cases, *more, compiles, **variables):
    """What `main` prints in a process with warm starts."""
    arguments = [json.dumps(cases), *more]
    return gpu_process(folder, PROGRAMS, arguments, compiles=compiles, SMELT_WARM_START="1", **variables)


@pytest.mark.parametrize("name", ["block", "constants", "many", "training", "sized", "sized training"])
def test_a_second_process_imports_neither_triton_nor_the_compiler(tmp_path, name):
    cold, _ = process(tmp_path, [name], compiles=True)
    warm, imported = process(tmp_path, [name], compiles=False)
    assert imported == []
    (got, eager), (first, _) = warm[name], cold[name]
    assert close(got, eager) and got == first


def test_cuda_graphs_are_captured_again(tmp_path):
    options = {"SMELT_CUDA_GRAPHS": "1"}
    process(tmp_path, ["many"], compiles=True, **options)
    warm, imported = process(tmp_path, ["many"], compiles=False, **options)
    assert imported == [] and close(*warm["many"])


def test_a_backward_that_no_entry_has_is_compiled_and_added(tmp_path):
    process(tmp_path, ["training"], compiles=True)
    outcome, imported = process(tmp_path, ["training"], "hidden", compiles=True)
    assert "smelt.pipeline" in imported and "smelt.capture" not in imported
    assert close(*outcome["training"])
    outcome, imported = process(tmp_path, ["training"], "hidden", compiles=False)
    assert imported == [] and close(*outcome["training"])
