"""Parameters that get the contents of other tensors between calls: `swap_tensors`, and what torch does with it."""

import contextlib

import pytest
import torch
from torch import nn

import smelt
from tests.harness.agreement import check_no_failure, same

STATE = {"weight": torch.full((2, 3), 3.0), "bias": torch.full((2,), 1.0)}


@contextlib.contextmanager
def swapping():
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def swap(model):
    torch.utils.swap_tensors(model.weight, nn.Parameter(torch.full((2, 3), 2.0)))


def convert(model):
    with swapping():
        model.double().float()


def load(model):
    with swapping():
        model.load_state_dict(STATE)


def assign(model):
    with swapping():
        model.load_state_dict(STATE, assign=True)


def assign_without_swap(model):
    model.load_state_dict(STATE, assign=True)


CHANGES = [swap, convert, load, assign, assign_without_swap]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("grad", [False, True])
def test_calls_around_the_change(change, grad):
    def program(compile):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        run, x = compile(model), torch.ones(2, 3)
        with torch.set_grad_enabled(grad):
            found = [run(x).detach() for _ in range(2)]
            change(model)
            found += [run(x).detach() for _ in range(2)]
            if grad:
                run(x).square().sum().backward()
                found.append(model.weight.grad)
        return found

    compiled = []
    got = program(lambda f: compiled.append(smelt.compile(f)) or compiled[-1])
    same(got, program(lambda f: f))
    check_no_failure(compiled[0])


@pytest.mark.parametrize("change", [swap, convert, load])
def test_training_around_the_change(change):
    def program(compile):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        run, x, losses = compile(model), torch.ones(2, 3), []
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for step in range(5):
            loss = run(x).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            del loss
            if step == 2:
                change(model)
        return losses

    same(program(smelt.compile), program(lambda f: f))


@pytest.mark.parametrize("grad", [False, True])
def test_results_of_a_call_are_swapped(grad):
    def program(compile):
        x = torch.ones(3, requires_grad=grad)
        a, b = (t.detach() for t in compile(lambda x: (x * 2, x + 1))(x))
        torch.utils.swap_tensors(a, b)
        return a, b

    same(program(smelt.compile), program(lambda f: f))


def test_arguments_are_swapped():
    def program(compile):
        x, a, b = torch.ones(3), torch.ones(3), torch.full((3,), 2.0)
        run = compile(lambda x, y: x * y)
        found = [run(x, a)]
        torch.utils.swap_tensors(a, b)
        return [*found, run(x, a), run(x, b)]

    same(program(smelt.compile), program(lambda f: f))
