"""Operators of `torch.library` that write their arguments: with kernels for CPUs only, in all forms of schemas; and those
that a backward calls for their effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.report.inspect import reasons
from tests.harness.agreement import compare, observe

LIBRARY = torch.library.Library("smelt_test_writes", "FRAGMENT")


def define(schema: str, kernel: Callable[..., Any]) -> None:
    LIBRARY.define(schema)
    LIBRARY.impl(schema.split("(")[0], kernel, "CPU")


def bump(x, y):
    x.add_(y)


def bump_all(x, ys):
    for y in ys:
        y.add_(x)


def fill(x, out):
    for y in out:
        y.copy_(x)


def copy_if(x, y=None):
    if y is not None:
        y.copy_(x)


def step(x, y):
    x.add_(1)
    x.add_(y)


define("bump(Tensor(a!) x, Tensor y) -> ()", bump)
define("bump_all(Tensor x, Tensor(a!)[] ys) -> ()", bump_all)
define("fill(Tensor x, *, Tensor(a!)[] out) -> ()", fill)
define("copy_if(Tensor x, Tensor(a!)? y=None) -> ()", copy_if)
define("step(Tensor(a!) x, Tensor y) -> ()", step)
define("grown(Tensor(a!) x, Tensor y) -> Tensor(a!)", lambda x, y: x.add_(y))
define("both(Tensor(a!) x, Tensor(b!) y) -> (Tensor(a!), Tensor(b!))", lambda x, y: (x.add_(1), y.add_(x)))
define("copied(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", lambda x, out: out.copy_(x))
define("total(Tensor(a!) x) -> Tensor", lambda x: x.add_(1).sum(0))
OPS = torch.ops.smelt_test_writes

PROGRAMS: dict[str, Callable[..., Any]] = {
    "one": lambda x, y: (OPS.bump(x, y), x * 2)[1],
    "rows and columns": lambda x, y: (OPS.bump(x[1], y[0]), OPS.bump(x.t()[0], y[:, 1]), x * 2)[2],
    "a transposed one": lambda x, y: (OPS.bump(x.t(), y.t() * 2), x * 2)[1],
    "one row from another": lambda x, y: (OPS.bump(x[0], x[1]), x * 2)[1],
    "a list": lambda x, y: (OPS.bump_all(x, [y, x.clone(), y * 2]), x + y)[1],
    "a list of results": lambda x, y: (OPS.fill(x, out=[y, z := y * 3]), y + z)[1],
    "optional": lambda x, y: (OPS.copy_if(x), OPS.copy_if(x, y), y * 2)[2],
    "a temporary one": lambda x, y: (z := x * 2, OPS.bump(z, y), z + 1)[2],
    "returned": lambda x, y: OPS.grown(x, y) * 2 + x,
    "two returned": lambda x, y: [z * 2 for z in OPS.both(x, y)],
    "out": lambda x, y: OPS.copied(x + 1, out=y) + y,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_shape_function_is_needed_to_write(name: str) -> None:
    program = PROGRAMS[name]
    compiled = smelt.compile(program, fullgraph=True)
    for rows in (3, 3, 5, 6, 7):
        eager, ours = ((torch.ones(rows, 4), torch.full((rows, 4), 2.0)) for _ in range(2))
        compare(observe(compiled, ours, 0), observe(program, eager, 0))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (OPS.bump_all(x + 1, [x, x]), x * 2)[1],
        lambda x: (OPS.step(x, x), x * 2)[1],
        lambda x: (OPS.step(x[1:], x[1:]), x * 2)[1],
    ],
)
def test_an_operand_given_twice_breaks_the_graph(program: Callable[..., Any]) -> None:
    """The functional variant writes copies, of which each operand would have its own."""
    compiled = smelt.compile(program)
    compare(observe(compiled, (torch.ones(3),), 0), observe(program, (torch.ones(3),), 0))
    assert "share memory" in str(reasons(compiled))


def test_a_new_result_needs_a_shape_function() -> None:
    def program(x):
        return OPS.total(x) + 1

    compiled = smelt.compile(program)
    compare(observe(compiled, (torch.ones(3, 2),), 0), observe(program, (torch.ones(3, 2),), 0))
    assert "has no shape function" in str(reasons(compiled))


def test_gradients_beside_a_write() -> None:
    def program(x, y):
        OPS.bump(y, x.detach() + 1)
        loss = (x * y).sum()
        loss.backward()
        return loss, x.grad

    eager, ours = ((torch.ones(3, requires_grad=True), torch.ones(3)) for _ in range(2))
    compare(observe(smelt.compile(program), ours, 0), observe(program, eager, 0))


SCHEMAS = [
    ("again(Tensor(a!) x, Tensor y) -> Tensor", lambda x, y: x.add_(y).clone(), lambda x, y: x.clone(), False),
    ("again(Tensor(a!) x, Tensor[] y) -> Tensor", lambda x, y: x.mul_(y[0] + 1) + 1, lambda x, y: x.clone(), True),
    ("again(Tensor(a!) x, Tensor y) -> ()", lambda x, y: (x.sub_(y), None)[1], None, False),
]  # fmt: skip


@pytest.mark.parametrize("at_once", [True, False], ids=["one function", "functions made anew"])
def test_an_operator_may_be_defined_again(at_once: bool) -> None:
    """With another schema or kernel, as where a cell of a notebook runs twice."""

    def made(takes_list: bool) -> Callable[..., Any]:
        return lambda x, y: (torch.ops.smelt_test_again.again(x, [y] if takes_list else y), x * 2)[1]

    def program(x, y, takes_list):
        return torch.ops.smelt_test_again.again(x, [y] if takes_list else y), x * 2

    compiled = smelt.compile(program, fullgraph=True)
    for schema, kernel, shapes, takes_list in (*SCHEMAS, *SCHEMAS):
        with torch.library._scoped_library("smelt_test_again", "FRAGMENT") as library:
            library.define(schema)
            library.impl("again", kernel, "CPU")
            if shapes is not None:
                library.impl("again", shapes, "Meta")
            eager, ours = ((torch.zeros(2), torch.ones(2)) for _ in range(2))
            if at_once:
                compare(observe(compiled, (*ours, takes_list), 0), observe(program, (*eager, takes_list), 0))
            else:
                fn = made(takes_list)
                compare(observe(smelt.compile(fn, fullgraph=True), ours, 0), observe(fn, eager, 0))


# ---- sizes that a fake kernel creates


def _new() -> Any:
    return torch.library.get_ctx().new_dynamic_size()


def _old() -> Any:
    return torch.library.get_ctx().create_unbacked_symint(min=2, max=100)


SIZED: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "above": (
        "(Tensor x, float low) -> Tensor",
        lambda x, low: x[x > low],
        lambda x, low: x.new_empty([_new()]),
    ),
    "places": (
        "(Tensor x) -> Tensor",
        lambda x: x.nonzero().contiguous(),
        lambda x: x.new_empty([_old(), x.dim()], dtype=torch.int64),
    ),
    "signs": (
        "(Tensor x) -> (Tensor, Tensor, Tensor)",
        lambda x: (x[x > 0], x[x < 0].expand(3, -1).contiguous(), x.sum()),
        lambda x: (x.new_empty([_new()]), x.new_empty([3, _new()]), x.new_empty(())),
    ),
    "rows": (
        "(Tensor x, Tensor m) -> (Tensor, Tensor)",
        lambda x, m: (x[m], x[m].repeat(1, 2)),
        lambda x, m: (x.new_empty([n := _new(), x.shape[1]]), x.new_empty([n, x.shape[1] * 2])),
    ),
}  # fmt: skip
for name, (schema, kernel, fake) in SIZED.items():
    define(name + schema, kernel)
    torch.library.register_fake(f"smelt_test_writes::{name}", fake, lib=LIBRARY)

SIZED_PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "used": lambda x: OPS.above(x, 0.0) * 2,
    "of a result": lambda x: OPS.above(OPS.above(x * 2, -1.0), 0.5).sum(),
    "places": lambda x: OPS.places(x.relu()) + 1,
    "several": lambda x: [y * 2 for y in OPS.signs(x)],
    "joined": lambda x: torch.cat([OPS.above(x, 0.0), x.flatten(), OPS.above(x, 0.0)]),
    "rows": lambda x: (lambda a, b: (a + 1, b.sum(0)))(*OPS.rows(x, x[:, 0] > 0)),
}


@pytest.mark.parametrize("program", SIZED_PROGRAMS.values(), ids=SIZED_PROGRAMS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_fake_kernels_that_create_sizes(program: Callable[[torch.Tensor], Any]) -> None:
    compiled = smelt.compile(program, fullgraph=True)
    generator = torch.Generator().manual_seed(0)
    for rows in (4, 4, 5, 6):
        x = torch.randn(rows, 3, generator=generator)
        for given in (x, -x, x.abs(), -x.abs()):
            compare(observe(compiled, (given,), 0), observe(program, (given,), 0))


def test_a_created_size_that_is_no_dimension_breaks_the_graph() -> None:
    define("twice_above(Tensor x) -> Tensor", lambda x: x[x > 0].repeat(2))
    torch.library.register_fake(
        "smelt_test_writes::twice_above", lambda x: x.new_empty([_new() * 2]), lib=LIBRARY
    )

    def program(x):
        return OPS.twice_above(x) + 1

    compiled = smelt.compile(program)
    x = torch.randn(5)
    compare(observe(compiled, (x,), 0), observe(program, (x,), 0))
    assert "data-dependent-shape" in str(reasons(compiled))


# ---- operators that a backward calls without using their results

SEEN: list[list[float]] = []


def see(x: torch.Tensor) -> torch.Tensor:
    SEEN.append(x.tolist())
    return x.clone()


define("see(Tensor x) -> ()", lambda x: SEEN.append(x.tolist()))
define("see_copy(Tensor x) -> Tensor", see)
LIBRARY.impl("see", lambda x: None, "Meta")
LIBRARY.impl("see_copy", torch.empty_like, "Meta")


class SeesGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        OPS.see(grad)
        return grad * 2


class SeesAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(y)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (y,) = ctx.saved_tensors
        OPS.see(y)
        OPS.see_copy(grad + y)
        OPS.see_copy(other.sin())
        return grad * 2 + y, other


SEEING: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    "one": lambda x, y: (SeesGradient.apply(x.sin()) * y, y * 2),
    "two": lambda x, y: (SeesGradient.apply(x.sin()), SeesGradient.apply(y.cos())),
    "with saved values": lambda x, y: SeesAll.apply(x.sin(), y.cos()),
}


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=["first", "second", "both"])
@pytest.mark.parametrize("name", SEEING)
def test_a_backward_calls_what_eager_calls(name: str, used: tuple[int, ...]) -> None:
    program = SEEING[name]

    def run(fn: Callable[..., Any]) -> tuple[list[list[float]], list[torch.Tensor | None]]:
        SEEN.clear()
        x, y = (torch.tensor([a], requires_grad=True) for a in (0.5, 0.25))
        out = fn(x, y)
        sum(out[i].sum() for i in used).backward()
        return sorted(SEEN), [x.grad, y.grad]

    expected = run(program)
    compiled = smelt.compile(program, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(run(compiled), expected)
