"""Compiling imports neither torch's compiler nor sympy, which take seconds."""

from tests.harness.processes import start

PROGRAMS = """
lambda x: x.logsumexp(0), lambda x: x.norm(), lambda x: x.norm(3, 1), lambda x: torch.linalg.vector_norm(x, 0),
lambda x: torch.dist(x, x * 2), lambda x: x.trace(), lambda x: x.std(0), lambda x: torch.std_mean(x, 1),
lambda x: torch.var_mean(x), lambda x: torch.aminmax(x.detach())[0] * x, lambda x: torch.logaddexp(x, x * 2),
lambda x: torch.logaddexp2(x, x * 2), lambda x: x.sigmoid().logit(), lambda x: torch.sinc(x), lambda x: x.frac(),
lambda x: torch.heaviside(x.detach(), x.detach()) * x, lambda x: F.selu(x), lambda x: F.hardshrink(x),
lambda x: F.logsigmoid(x),
lambda x: F.softshrink(x), lambda x: F.pixel_shuffle(x.view(1, 4, 2, 2), 2), lambda x: torch.rot90(x),
lambda x: F.pixel_unshuffle(x.view(1, 1, 4, 4), 2), lambda x: torch.channel_shuffle(x.view(1, 4, 2, 2), 2),
lambda x: F.mse_loss(x, x * 2), lambda x: F.smooth_l1_loss(x, x * 2), lambda x: F.huber_loss(x, x * 2),
lambda x: x.tril() + x.triu(1), lambda x: torch.lerp(x, x * 2, 0.3), lambda x: F.mish(x) + F.elu(x) + F.celu(x),
lambda x: x.nan_to_num(), lambda x: F.glu(x), lambda x: x.cumsum(0), lambda x: torch.eye(4) * x,
"""
CHILD = f"""
import sys, torch, smelt
import torch.nn.functional as F
for program in [{PROGRAMS}]:
    for requires_grad in (False, True):
        x = torch.rand(4, 4, requires_grad=requires_grad)
        out = smelt.compile(program)(x)
        if requires_grad:
            sum(t.sum() for t in (out if isinstance(out, tuple) else (out,))).backward()
        loaded = {{"sympy", "torch._dynamo", "torch._inductor"}} & sys.modules.keys()
        assert not loaded, (program.__code__.co_names, requires_grad, loaded)
"""


def test_no_compiler_of_torch() -> None:
    done = start(CHILD)
    assert done.returncode == 0, done.stderr
