"""Random small programs with gradients: eager and smelt must agree on results, what autograd knows of them, and gradients.

A program is Python text: expressions and statements from two lists, in blocks that change modes, branch on values or catch
errors. `SMELT_EXAMPLES=5000` draws more of them, and other ones each time.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: F401 - for the programs
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint  # noqa: F401

import smelt
from smelt.report.inspect import reasons

EXAMPLES = int(os.environ.get("SMELT_EXAMPLES", "0"))
SEEDS = range(60) if not EXAMPLES else [random.randrange(1 << 40) for _ in range(EXAMPLES)]


class Twice(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b + 1

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b * 2, g * a * 3


class InPlace(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.mark_dirty(a)
        return a.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 4


linear = torch.nn.Linear(4, 4)


def block(a: torch.Tensor) -> torch.Tensor:
    return torch.tanh(linear(a))


EXPRESSIONS = [
    "{a} * {b}", "{a} + {b}", "{a}.sin()", "{a}.relu()", "{a}.detach()", "{a}.clone()", "{a}.t()", "{a}.t().contiguous()",
    "{a}[1:].sum(0) + {b}", "{a}.softmax(-1)", "F.dropout({a}, 0.3)", "torch.rand_like({a}) * {b}", "{a}.expand(4, 4) + 1",
    "Twice.apply({a}, {b})", "checkpoint(block, {a}, use_reentrant=False)", "checkpoint(block, {a}, use_reentrant=True)",
    "linear({a})", "torch.where({a} > 0, {a}, {b})", "{a}.detach().requires_grad_()", "{a}.data * 2", "{a} @ {b}",
    "torch.autograd.grad({a}.sin().sum(), {a}, create_graph=True)[0] if {a}.requires_grad else {a} * 2",
    "F.layer_norm({a}, (4,))", "{a}.unbind(0)[0] + {b}", "{a}.chunk(2)[0].repeat(2, 1)", "{a}.diagonal() * {b}",
]  # fmt: skip
STATEMENTS = [
    "{a}.add_({b})", "{a}.mul_(2)", "{a}[0] = 0", "{a}[1].add_({b}[0])", "{a}.t()[0].mul_(3)", "{a}.copy_({b})",
    "{a}.clamp_(-1, 1)", "{a}.register_hook(lambda g: g * 2)", "{a}.retain_grad()", "{a} = InPlace.apply({a})",
    "{a}.detach_()", "{a}.requires_grad_()", "{a}.masked_fill_({b} > 0, 0.5)", "print('x')", "{a}.note = 3",
    "log.append({a})", "log.append({a}.sum().item() > 1e9)", "torch.set_grad_enabled(not torch.is_grad_enabled())",
]  # fmt: skip
BLOCKS = [
    "with torch.no_grad():", "with torch.enable_grad():", "with torch.autocast('cpu', torch.bfloat16):",
    "if {a}.sum() > 0:", "if {a}.requires_grad:", "for _ in range(2):", "try:",
]  # fmt: skip


def lines(draw: random.Random, names: list[str], depth: int, count: int) -> list[str]:
    found: list[str] = []
    for _ in range(count):
        kind, a, b = draw.random(), draw.choice(names), draw.choice(names)
        if kind < 0.55:
            target = draw.choice([*names, "v0", "v1"])
            found.append(f"{target} = {draw.choice(EXPRESSIONS).format(a=a, b=b)}")
            if depth == 0 and target not in names:
                names.append(target)
        elif kind < 0.85 or depth > 1:
            found.append(draw.choice(STATEMENTS).format(a=a, b=b))
        else:
            head = draw.choice(BLOCKS).format(a=a)
            inner = lines(draw, names, depth + 1, draw.randrange(1, 3))
            found += [head, *(f"    {line}" for line in inner)]
            if head == "try:":
                found += ["except RuntimeError:", "    log.append('error')"]
    return found


def program(seed: int) -> tuple[str, Callable[..., Any]]:
    draw = random.Random(seed)
    names = ["x", "y", "w"]
    body = lines(draw, names, 0, draw.randrange(3, 9))
    body += ["torch.set_grad_enabled(True)", f"return {', '.join(draw.sample(names, 3))}"]
    source = "def f(x, y, w, log):\n" + "".join(f"    {line}\n" for line in body)
    filename = f"<random gradients {seed}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    scope = dict(globals())
    exec(compile(source, filename, "exec"), scope)
    return source, scope["f"]


def facts(t: Any) -> Any:
    if not isinstance(t, torch.Tensor):
        return t
    try:
        name = t.grad_fn is not None  # one node stands for many of eager
        return t.shape, t.dtype, t.stride(), t.requires_grad, t.is_leaf, name, t.retains_grad, vars(t)
    except RuntimeError as e:  # torch refuses to say: a view made without gradients was written with them
        return str(e)


def observe(fn: Callable[..., Any], seed: int) -> tuple[list[Any], list[torch.Tensor]]:
    """What can be compared by `==`, and tensors of values and gradients."""
    torch.manual_seed(seed)
    x, source, w = torch.randn(4, 4).requires_grad_(), torch.randn(4, 4).requires_grad_(), torch.randn(4, 4)
    given, log = (x, source * 1.5, w), []
    linear.zero_grad()
    error, out = None, ()
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            out = fn(*given, log)
        except Exception as e:
            error = (type(e), str(e))
    torch.set_grad_enabled(True)
    shown = [*out, *given, *log]
    tensors = [t for t in shown if isinstance(t, torch.Tensor)]
    values = [t.detach().clone() for t in tensors]
    settings = [
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
        torch.get_rng_state().tolist(),
    ]
    same = [[a is b for a in tensors] for b in tensors]
    found = [error, [facts(t) for t in shown], settings, same]
    if error is None:
        found.append(backward(tensors))
        if found[-1] is None:
            values += [t.grad for t in (x, source, *linear.parameters()) if t.grad is not None]
    return found, values


def backward(tensors: list[torch.Tensor]) -> str | None:
    """The error of a backward from all tensors that were computed."""
    try:
        for t in tensors:
            if t.requires_grad and t.grad_fn is not None:
                t.sum().backward(retain_graph=True)
    except RuntimeError as e:
        if "can be differentiated once" in str(
            e
        ):  # an input was written, which eager notices when it comes to it
            return "modified by an inplace operation"
        # how often a tensor was written is not eager's where no gradient is recorded
        return re.sub(
            r".*(modified by an inplace operation).*", r"\1", re.sub(r"\d+", "N", str(e)), flags=re.S
        )
    return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", SEEDS)
def test_random_program(seed: int) -> None:
    source, f = program(seed)
    compiled = smelt.compile(f, backend="eager" if seed % 3 == 0 else "smelt")
    for number in (1, 2, 1):
        want, values = observe(f, number)
        got, found = observe(compiled, number)
        assert got == want, source
        assert len(found) == len(values), source
        for a, b in zip(found, values):
            torch.testing.assert_close(
                a, b, rtol=1e-4, atol=1e-4, equal_nan=True, msg=lambda m: f"{m}\n{source}"
            )
    kinds = {r.kind.id for r in reasons(compiled)}
    assert not kinds & {"internal-error", "backend-failed"}, f"{reasons(compiled)}\n{source}"
