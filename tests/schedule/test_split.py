"""Long reductions over few rows, with several threads."""

from dataclasses import replace
from math import prod

import pytest
import torch

from smelt.loops.kernel_ir import ReduceStage
from smelt.loops.lazy_tensor import Map
from smelt.ops.lowering import lower
from smelt.schedule.schedule_program import fuse
from smelt.schedule.split_reductions import split_reductions
from smelt.targets import cuda
from tests.harness.schedule_interpreter import run
from tests.harness.scheduled import check, costs, kernels, scheduled
from tests.harness.traced import traced


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def rows_of(f, *inputs):
    """For each kernel with reductions: its outer points."""
    found = []
    for kernel in kernels(scheduled(f, *inputs)[0]):
        if any(isinstance(s, ReduceStage) for s in kernel.stages):
            n = 1
            for loop in kernel.outer:
                n *= loop.size
            found.append(n)
    return found


X = torch.randn(512, 512)
IMAGES = torch.randn(8, 16, 48, 48).to(memory_format=torch.channels_last)


def test_a_sum_of_everything_is_cut():
    check(lambda x: x.sum(), X, n_kernels=2, n_externs=0, rtol=1e-4, atol=1e-3)
    assert rows_of(lambda x: x.sum(), X) == [8, 1]


def test_the_loss_fuses_into_the_parts():
    check(lambda x, y: ((x - y) ** 2).mean(), X, X + 1, n_kernels=2, n_externs=0)


@pytest.mark.parametrize("kind", ["amax", "amin", "prod", "any", "all"])
def test_other_kinds(kind):
    x = X.sign() if kind == "prod" else X > 5 if kind in ("any", "all") else X
    f = {"prod": lambda x: x.prod(), "any": lambda x: x.any(), "all": lambda x: x.all()}
    check(f.get(kind, lambda x: getattr(x, kind)()), x, n_kernels=2, n_externs=0)


def test_positions_are_not_cut():
    check(lambda x: x.argmax(), X, n_kernels=1, n_externs=0)


def test_few_columns_are_cut_many_are_not():
    over_pixels = lambda x: x.sum((0, 2, 3))  # noqa: E731
    check(over_pixels, IMAGES, n_kernels=2, n_externs=0, rtol=1e-4, atol=1e-3)
    assert rows_of(over_pixels, IMAGES) == [8 * 16, 16]
    assert rows_of(over_pixels, IMAGES.contiguous()) == [16]  # a row for each channel: enough for two threads
    assert rows_of(lambda x: x.sum(0), X) == [512]


def test_a_length_that_no_number_of_parts_divides_stays_whole():
    x = torch.randn(131101)  # a prime
    check(lambda x: x.sum(), x, n_kernels=1, n_externs=0, rtol=1e-4, atol=1e-3)


def test_statistics_that_depend_on_one_another():
    check(lambda x: torch.var_mean(x, (0, 2, 3)), IMAGES, n_externs=0, rtol=1e-4, atol=1e-4)
    norm = lambda x: torch.nn.functional.layer_norm(x, x.shape)  # noqa: E731
    check(norm, X, n_externs=0, rtol=1e-4, atol=1e-4)


def test_one_thread_keeps_one_kernel():
    torch.set_num_threads(1)
    check(lambda x: x.sum(), X, n_kernels=1, n_externs=0, rtol=1e-4, atol=1e-3)


def test_the_input_that_is_overwritten_is_read_before():
    def f(x, total):
        s = x.sum()
        x.add_(1)
        total.add_(s)
        return x.sum()

    check(f, X.clone(), torch.zeros(()), n_externs=0, rtol=1e-4, atol=1e-2)


def test_the_lowered_program_stays_as_it_was():
    """What reads a reduction that was split is made anew, through views, scans, masks and ATen calls."""

    def f(x, w):
        s = x.sum()
        return (x - s).cumsum(0).sum(1), torch.nn.functional.pad(s.view(1), (1, 1)) @ w, x.mul_(s)

    graph, real = traced(f, X.clone(), torch.randn(3, 4))
    program = lower(graph, costs())
    before = [(step, getattr(step, "definition", None), step.order) for step in program.steps]
    other = split_reductions(program, costs(threads=2))
    assert [(step, getattr(step, "definition", None), step.order) for step in program.steps] == before
    assert (
        len(other.steps) == len(program.steps) + 1 and split_reductions(program, costs(threads=1)) is program
    )
    assert sorted(step.order for step in other.steps) == [step.order for step in other.steps]
    expected = f(*(t.clone() for t in real))
    for got, want in zip(run(fuse(other, costs()), real), expected):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-2)


def test_a_sum_of_what_is_in_memory_anyway():
    """A product reads it, so the sum reads that, along memory; where it came from says nothing. With a GPU's costs."""

    def f(q, k, v, w):
        x = torch.stack([q, k, v], 1).permute(0, 3, 1, 2, 4).reshape(-1, 96)
        return x @ w, x.sum(0)

    heads = [torch.randn(256, 2, 64, 16) for _ in range(3)]
    graph, real = traced(f, *heads, torch.randn(96, 8))
    gpu = replace(cuda.COSTS, threads=132)
    schedule = fuse(lower(graph, gpu), gpu)
    sums = [k for k in kernels(schedule) if any(isinstance(s, ReduceStage) for s in k.stages)]
    parts, whole = (prod(loop.size for loop in k.outer) for k in sums)
    assert parts >= 132 * 96 and whole == 96
    for got, want in zip(run(schedule, real), f(*real)):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


def test_what_is_read_on_several_ways_is_looked_at_once():
    def f(x):
        for _ in range(6):
            x = x.sin() * x.cos() + x
        return x.sum(), x.mean()

    program = lower(traced(f, torch.randn(300, 1000))[0], costs())
    looked_at: list[int] = []

    def counted(step):
        definition = getattr(step, "definition", None)
        if not isinstance(definition, Map):
            return step
        body = lambda *given: looked_at.append(step.order) or definition.body(*given)  # noqa: E731
        step.definition = replace(definition, body=body)
        return step

    split_reductions(
        replace(program, steps=tuple(map(counted, program.steps))), replace(cuda.COSTS, threads=132)
    )
    assert looked_at and len(looked_at) == len(set(looked_at))
