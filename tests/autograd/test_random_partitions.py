"""Random programs: partitions are valid, save no more than eager and no more than needed; gradients equal eager's."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from smelt.autograd.min_cut import minimum
from smelt.autograd.min_cut_problem import CutProblem
from smelt.autograd.partition import partition
from smelt.config import DEFAULT
from tests.harness.differentiable import arguments, function, instructions, returned
from tests.harness.joints import check, joint_of

pytestmark = pytest.mark.timeout(280)
quick = settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def differentiable(run):
    outputs = run(*[t.clone() if not t.requires_grad else t for t in arguments()])
    return any(o.requires_grad for o in outputs)


@quick
@given(
    instructions,
    returned,
    st.sampled_from([1.0, 1.0, 0.5, 0.0]),
    st.none() | st.sets(st.integers(0, 2), min_size=1),
)
def test_random_programs(steps, outputs, budget, through):
    torch.manual_seed(0)
    run = function(steps, outputs)
    if differentiable(run):
        config = replace(DEFAULT, activation_memory_budget=budget)
        # Gradients that reach an input through several nodes are rounded to bfloat16 one by one; eager rounds their sum.
        tolerance = 3e-2 if any(name == "half" for name, *_ in steps) else 1e-4
        check(run, *arguments(), config=config, through=through, rtol=tolerance, atol=tolerance / 10)


def least_bytes(problem, bans):
    """The minimum over all sets of saved values."""
    options = {n: k for n in problem.cone(bans) if (k := problem.save_option(n)) is not None}
    free = {n for n, k in options.items() if k.nbytes == 0}
    costly = [n for n in options if n not in free]
    if len(costly) > 13:
        return None
    sets = (set(s) for k in range(len(costly) + 1) for s in itertools.combinations(costly, k))
    return min(sum(options[n].nbytes for n in s) for s in sets if possible(problem, bans, free | s))


def possible(problem, bans, saved):
    stack, seen = list(problem.read), set()
    while stack:
        node = stack.pop()
        if node in seen or node in saved or node.op == "get_attr":
            continue
        if node in bans:
            return False
        seen.add(node)
        stack += problem.arguments(node)
    return True


@quick
@given(instructions.filter(lambda steps: len(steps) <= 6), returned)
@example([("mm", 0, 1), ("gelu", 0, 0), ("mm", 0, 2)], [0])
def test_cuts_are_minimal(steps, outputs):
    run = function(steps, outputs)
    if not differentiable(run):
        return
    problem = CutProblem(joint_of(run, *arguments())[0])
    bans = {**problem.bans(), **problem.chain_bans(problem.bans())}
    least = least_bytes(problem, bans)
    assert least is None or minimum(problem, bans).nbytes == least


def test_bytes_grow_with_the_budget():
    def run(x, y, z, written):
        for _ in range(6):
            x = torch.nn.functional.dropout((x @ y).sin() @ z + x, 0.1)
        return x

    joint, _ = joint_of(run, *arguments())
    budgets = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    parts = [partition(joint, replace(DEFAULT, activation_memory_budget=b)) for b in budgets]
    sizes = [p.nbytes for p in parts]
    assert sizes == sorted(sizes) and len(set(sizes)) > 3
    assert {s.spec.dtype for s in parts[0].saved if s.kind == "temporary"} == {torch.bool}  # dropout masks
    for budget in budgets:
        check(
            run, *arguments(), config=replace(DEFAULT, activation_memory_budget=budget), rtol=1e-4, atol=1e-5
        )
