"""Graphs on a GPU that raise: the call is made again, and random numbers are those of the program."""

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.report import inspect
from smelt.runtime.generator_states import GeneratorStates

pytestmark = pytest.mark.simulated_cuda


def test_what_was_drawn_before_a_check_fails_is_drawn_again():
    def fn(x, y, seen):
        seen.append(1)
        dropped = F.dropout(x, 0.5)
        z = y + torch.rand_like(y)
        if not torch.isfinite(z).all():
            raise ValueError("not finite")
        return dropped + z * torch.rand(3, device="cuda")

    compiled, x = smelt.compile(fn, fullgraph=True), torch.randn(3, device="cuda")
    for bad in (False, True, False, True, True, False):
        y = torch.full((3,), torch.inf if bad else 1.0, device="cuda")
        outcomes = []
        for function in (fn, compiled):
            torch.manual_seed(1)
            seen = []
            try:
                outcomes.append((function(x, y, seen), None))
            except ValueError as error:
                outcomes.append((None, str(error)))
            outcomes[-1] += (seen, torch.get_rng_state())
        torch.testing.assert_close(outcomes[1][0], outcomes[0][0])
        assert outcomes[1][1:3] == outcomes[0][1:3] and torch.equal(outcomes[1][3], outcomes[0][3])
    assert inspect.graph_count(compiled) == 1


def test_a_device_is_refused_before_a_size():
    def fn(x, n):
        try:
            return x @ torch.ones(n + 2)
        except RuntimeError as error:
            return str(error)

    compiled, x = smelt.compile(fn), torch.randn(3, device="cuda")
    for n in (0, 1, 0):
        assert compiled(x, n) == fn(x, n)
        assert "same device" in fn(x, n)


class Generator:
    """Of a GPU: its offset is all that draws change."""

    def __init__(self, offset):
        self.offset = offset

    def get_offset(self):
        return self.offset

    def set_offset(self, offset):
        self.offset = offset


def test_generators_of_gpus_are_put_back_where_they_were(monkeypatch):
    gpus = (Generator(4), Generator(12))
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    for names, moved in ((["cuda:1"], [20, 12]), (["cuda:0", "cpu"], [4, 24]), (["cpu"], [20, 24])):
        gpus[0].offset, gpus[1].offset = 4, 12
        torch.manual_seed(0)
        states = GeneratorStates(list(map(torch.device, names)))
        restart = states.read()
        want = torch.rand(2)
        gpus[0].offset, gpus[1].offset = 20, 24
        states.restore(restart)
        assert [g.offset for g in gpus] == moved
        assert torch.equal(torch.rand(2), want) == ("cpu" in names)


def test_nothing_is_asked_of_a_generator_while_work_is_captured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "default_generators", (None,))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    states = GeneratorStates([torch.device("cuda:0")])
    states.restore(states.read())
