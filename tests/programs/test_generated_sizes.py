"""Random programs that are valid for all sizes, compiled with `dynamic=True`, and programs that the sweep over them found.

`python -m benchmarks.sweep_sized_programs` runs thousands of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt import events
from smelt.report.inspect import entries
from tests.harness.agreement import check_no_failure, same
from tests.harness.generate import Seeded
from tests.harness.generate_sizes import SizedOptions, write_sized_program
from tests.harness.generated_sizes import outcome_of, sized

PROGRAMS = 20


@pytest.fixture(autouse=True)
def _one_thread() -> object:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("grad", [False, True], ids=["", "gradients"])
def test_programs_agree_with_eager_at_all_sizes(grad: bool) -> None:
    for seed in range(PROGRAMS // 2):
        program, calls, _ = sized(1_000_000 + seed, SizedOptions(grad, statements=6))
        found = outcome_of(program, calls, verify=True)
        assert found.problem is None, f"{found.problem}\n{program.source}"


def test_programs_are_valid_and_various() -> None:
    sources = [write_sized_program(Seeded(seed), SizedOptions()).source for seed in range(1500)]
    for source in sources:
        compile(source, "program", "exec")
    bodies = "\n".join(sources)
    for text in (
        ".reshape(", ".unflatten(", ".expand(", "torch.cat(", "F.pad(", " @ ", "softmax(", "F.layer_norm(", ".cumsum(",
        ".gather(", ".index_put(",
        ".add_(", "+= 2", ".sort(", " if ", "torch.arange(", "F.cross_entropy(", "F.conv1d(", "F.one_hot(",
        ".unfold(", ".diagonal(", "F.dropout(", "F.scaled_dot_product_attention(", ".batch_norm(", "torch.complex(",
        ".conj()", "view_as_real(", ".conj().imag", ".view_as(",
    ):  # fmt: skip
        assert bodies.count(text) > 10, text


# ---------------------------------------------------------------------------------------------------- found by the sweep

Sizes = Sequence[tuple[int, int]]
SIZES: Sizes = ((4, 7), (5, 3), (1, 6), (0, 5), (9, 9), (3, 1), (16, 8))
Program = Callable[[torch.Tensor], object]

FOUND: dict[str, Program] = {
    "a slice beyond one row": lambda x: (x[:2], x[-2:] + 1, x[1:3]),
    "a place beyond one row": lambda x: x[0 if x.shape[0] == 1 else x.shape[0] // 2 : 3],
    "added to no rows": lambda x: x.index_add(0, torch.arange(x.shape[0]) // 2, x),
    "of one size of a tensor": lambda x: F.one_hot(torch.arange(x.shape[0]) % 3, 3),
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    f = FOUND[name]
    compiled = smelt.compile(f, dynamic=True, options={"recompile_limit": 32})
    for p, q in SIZES:
        x = torch.arange(float(p * q)).reshape(p, q)
        same(compiled(x), f(x), f"{p}, {q}")
    check_no_failure(compiled)


@pytest.mark.parametrize("first", [0, 1, 5])
def test_a_row_that_is_not_there_is_an_error(first: int) -> None:
    """Also where another dimension is a symbol."""
    compiled = smelt.compile(lambda x: x[first] + 1, dynamic=True)
    for p, q in SIZES:
        if p > first:
            same(compiled(torch.ones(p, q)), torch.ones(q) + 1)
        else:
            with pytest.raises(IndexError, match="out of bounds"):
                compiled(torch.ones(p, q))
    check_no_failure(compiled)


@pytest.mark.parametrize("write", ["add_", "copy_"])
def test_what_overlaps_at_some_sizes_is_an_error_there(write: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        getattr(y[:2], write)(y[-3:-1])
        return y

    compiled = smelt.compile(f, dynamic=True)
    for p in (11, 4, 5, 12, 3, 4, 30):
        x = torch.arange(float(p * 3)).reshape(p, 3)
        try:
            want = f(x)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match="single memory location"):
                compiled(x)
            assert p == 4, error
        else:
            same(compiled(x), want)
    check_no_failure(compiled)


PLACES: dict[str, Program] = {
    "a row": lambda x: x[3] * 2,
    "a row from the end": lambda x: x[-3] * 2,
    "rows": lambda x: (x * 2)[3:].sum(0),
    "rows from the end": lambda x: (x * 2)[-3:].sum(0),
    "a row is written": lambda x: torch.select_scatter(x, x[0] * 0, 0, 3),
    "halves": lambda x: [half + 1 for half in x.chunk(2)],
    "windows": lambda x: x.unfold(0, 3, 2).sum(-1),
    "a diagonal": lambda x: (x @ x.t()).diagonal(1) * 2,
    "padded by a size": lambda x: torch.nn.functional.pad(x, (0, x.shape[0])),
    "columns beyond the fifth": lambda x: torch.cat([x, x, x], 1)[:, 5:] * 2,
    "pooled twice": lambda x: F.max_pool2d(F.avg_pool2d(x.repeat(8, 8)[None], 4), 4),
}


@pytest.mark.parametrize("name", PLACES)
def test_one_code_for_all_sizes(name: str) -> None:
    f = PLACES[name]
    compiled = smelt.compile(f, dynamic=True)
    stages: list[str] = []
    with events.subscribed(lambda event: stages.append(event.name)):
        for p, q in ((9, 7), (8, 6), (30, 5), (12, 12), (7, 9)):
            x = torch.arange(float(p * q)).reshape(p, q)
            same(compiled(x), f(x), f"{p}, {q}")
    assert stages.count("lower") == len(entries(compiled)) <= 2  # of equal sizes and of others
    check_no_failure(compiled)


PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expanded": lambda x: x[:, :1].expand(-1, x.shape[1]),
    "columns": lambda x: x[:, 1:-1],
    "every second": lambda x: x[::2, ::2],
    "transposed": lambda x: x.t(),
    "rows": lambda x: x[1:],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("part", PARTS)
def test_a_kept_copy_of_an_input_may_lie_in_another_way(part: str, dynamic: bool) -> None:
    """The backward reads what autograd of eager would compute again of nothing else: a dense copy of an input with gaps."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.tril(-1)
        return (y - 12).clamp(-9, 9), torch.maximum(y, y)

    compiled = smelt.compile(f, dynamic=dynamic)
    for p, q in ((8, 9), (5, 7), (12, 6)):
        found = []
        for run in (compiled, f):
            given = (torch.arange(float(p * q)) * 7).remainder(11).sub(4).reshape(p, q)
            x = PARTS[part](given).detach().requires_grad_()
            results = run(x)
            loss = sum((r * torch.arange(r.numel()).reshape(r.shape).remainder(5)).sum() for r in results)
            assert isinstance(loss, torch.Tensor)
            found.append((results, torch.autograd.grad(loss, x)[0]))
        same(*found)
    check_no_failure(compiled)


def test_a_backward_knows_sizes_that_its_inputs_do_not_have() -> None:
    compiled = smelt.compile(lambda x: x.sum() * 2, dynamic=True, options={"verify_stages": True})
    for p, q in ((3, 4), (5, 6)):
        x = torch.ones(p, q, requires_grad=True)
        compiled(x).backward()
        same(x.grad, torch.full((p, q), 2.0))
    check_no_failure(compiled)
