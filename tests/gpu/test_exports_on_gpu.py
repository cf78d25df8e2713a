"""Exported programs on a GPU: their files hold machine code, and load without the compiler and Triton."""

import pytest

from tests.harness.gpu_processes import close, needs_gpu, process

pytestmark = needs_gpu

PROGRAM = """
import json, sys
import torch
from torch import nn
import smelt

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.tied = self.body.weight
        self.register_buffer("calls", torch.zeros(2))
        self.register_buffer("on_host", torch.tensor(3.0))
    def forward(self, x, scale=1.0):
        self.calls += x.detach().sum()
        hidden = self.body(x).tanh() * self.on_host.to(x.device)
        return {"out": self.head(hidden).softmax(-1) * scale, "hidden": (hidden, x.shape[0])}

def model():
    torch.manual_seed(0)
    made = Model().cuda()
    made.on_host = made.on_host.cpu()
    return made

def called(target, gradients):
    x = torch.linspace(-1, 1, 30).view(5, 6).cuda().requires_grad_(gradients)
    seen = []
    for _ in range(3):
        with torch.set_grad_enabled(gradients):
            out = target(x, scale=0.5)
        seen.append(plain(out))
        if gradients:
            inputs = [x, *(p for _, p in sorted(target.named_parameters()))]
            loss = out["out"].square().sum() + out["hidden"][0].sum()
            seen.append(plain(torch.autograd.grad(loss, inputs)))
            seen.append(plain(torch.autograd.grad(target(x, scale=0.5)["out"][0, 0], x)))
    return seen

def main():
    path, what, gradients = sys.argv[1], sys.argv[2], sys.argv[3] == "gradients"
    x = torch.linspace(-1, 1, 30).view(5, 6).cuda().requires_grad_(gradients)
    if what == "export":
        program = smelt.export(model(), (x,), {"scale": 0.5}, gradients=gradients)
        program.save(path)
        print(json.dumps([called(program, gradients), called(model(), gradients)]))
        return
    program = smelt.load(path)
    devices = {name: str(t.device) for name, t in program.state.items()}
    got = called(program, gradients)
    state = plain(dict(program.state))
    program.save(path + ".again")
    again = plain(dict(smelt.load(path + ".again").state))
    program.update_weights({"head.bias": torch.ones(3).cuda()})
    try:
        program.update_weights({"head.bias": torch.ones(3)})
    except smelt.errors.InputError as error:
        message = str(error)
    try:
        with torch.no_grad():
            program(x.detach().cpu(), scale=0.5)
    except smelt.errors.InputError as error:
        message += str(error)
    changed = model()
    with torch.no_grad():
        changed.head.bias.fill_(1)
        updated = [plain(t(x.detach(), scale=0.5)["out"]) for t in (program, changed)]
    compiler = ("smelt.capture", "smelt.tracing", "smelt.codegen", "smelt.pipeline", "llvmlite", "triton")
    modules = sorted({m for m in sys.modules if m.startswith(compiler)})
    print(json.dumps([got, called(model(), gradients), devices, state == again, updated, message, modules]))
"""


@pytest.mark.parametrize("gradients", ["", "gradients"])
def test_a_program_runs_without_triton_and_the_compiler(tmp_path, gradients):
    path = str(tmp_path / "model.smelt")
    assert close(*process(tmp_path, PROGRAM, [path, "export", gradients], compiles=True))
    got, eager, devices, is_same, updated, message, modules = process(
        tmp_path, PROGRAM, [path, "load", gradients], compiles=False
    )
    assert close(got, eager) and close(*updated) and is_same
    assert devices["head.weight"] == devices["calls"] == "cuda:0" and devices["on_host"] == "cpu"
    assert (
        "on cuda:0, got torch.float32 of (3,) on cpu" in message
        and "x must have device cuda:0, got cpu" in message
    )
    assert modules == []


REFUSED = """
import json
import torch, smelt

def message(call):
    try:
        call()
    except smelt.errors.ExportError as error:
        return str(error)

def main():
    x = torch.ones(4, 3).cuda()
    rows = {"x": {0: smelt.Dim("rows")}}
    print(json.dumps([message(lambda: smelt.export(lambda x: x.exp(), (x,), dynamic_shapes=rows))]))
"""


def test_dynamic_sizes_are_refused(tmp_path):
    (message,) = process(tmp_path, REFUSED, [], compiles=True)
    assert "programs on GPUs have fixed sizes" in message


OTHER_GPU = """
import json
import torch
from smelt import _native

def main():
    torch.zeros(1).cuda()
    major, minor = torch.cuda.get_device_capability(0)
    triple = "x86_64-unknown-linux-gnu"
    print(json.dumps([_native.lacking(triple, [f"sm_{n}"]) for n in (10 * major + minor, 10 * major + minor + 1)]))
"""


def test_plans_for_another_kind_of_gpu_are_not_taken(tmp_path):
    same, other = process(tmp_path, OTHER_GPU, [], compiles=False)
    assert same is None and "its plans are for a GPU sm_" in other
