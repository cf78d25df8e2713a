"""Stored entries whose graph breaks: what continues after the break must be found, too."""

from dataclasses import replace

import pytest
import torch

import smelt
from smelt import config, pipeline
from smelt.config import Config
from smelt.errors import BackendError
from smelt.report import inspect
from smelt.warm import add_plans, entry_store

pytestmark = pytest.mark.usefixtures("warm")

x = torch.ones(2, 3)


def program():
    def f(x):
        x = x + 1
        smelt.graph_break()
        x = x * 2
        smelt.graph_break()
        return x * 3

    return f


def hashed_at_the_end(x):
    x = x + 1
    smelt.graph_break()
    x = x * 2
    smelt.graph_break()
    return x * 3, hash("text")


def entries(compiled):
    return [len(record.entries) for _, record in inspect.records(compiled)]


def test_code_after_a_break_whose_entry_is_gone_compiles():
    smelt.compile(program())(x)
    *_, last = entry_store.known()
    for digest, _ in list(entry_store.entries_under(last, (), Config())):
        entry_store.drop(last, digest, Config())
    compiled = smelt.compile(program())
    for _ in range(3):
        assert torch.equal(compiled(x), program()(x))
    assert entries(compiled) == [1, 1, 1]


def test_no_part_is_kept_if_the_last_one_cannot_be():
    compiled = smelt.compile(hashed_at_the_end)
    compiled(x)
    assert entries(compiled) == [1, 1, 1]
    assert not list(entry_store.known())


@pytest.mark.parametrize("is_gone", [False, True])
def test_plans_for_other_sizes_bring_back_no_entry(is_gone):
    compiled = smelt.compile(lambda x: x.sum(0) * 3, dynamic=True)
    compiled(torch.ones(3, 4))
    [key] = entry_store.known()
    [(digest, _)] = entry_store.entries_under(key, (), Config())
    if is_gone:
        entry_store.drop(key, digest, Config())
    for n in (2, 5, 64, 1000):
        compiled(torch.ones(n, n))
    assert bool(list(entry_store.known())) is not is_gone


def test_a_plan_that_serves_other_sizes_is_stored_once(monkeypatch):
    added = []
    monkeypatch.setattr(add_plans, "keep", lambda *arguments, **options: added.append(arguments))
    compiled = smelt.compile(lambda x: x * 3 + 1, dynamic=True)
    for n in range(4, 12):
        assert torch.equal(compiled(torch.ones(n, 3)), torch.full((n, 3), 4.0))
    assert list(entry_store.known()) and not added


def later_part(needs_grad, fullgraph):
    """A found entry that needs another plan: for other sizes, or a backward."""
    weight = torch.ones(4, 4, requires_grad=needs_grad)
    compiled = []
    for _ in range(2):

        def f(x):
            return (x @ weight).sum(0) * 3

        compiled.append(smelt.compile(f, dynamic=None if needs_grad else True, fullgraph=fullgraph))
        with torch.set_grad_enabled(needs_grad):
            total = compiled[-1](torch.ones(7, 4)).sum()
    assert [entries(c) for c in compiled] == [[1], []]
    if needs_grad:
        return lambda: torch.autograd.grad(total, weight)[0], torch.full((4, 4), 21.0)
    return lambda: compiled[-1](torch.ones(64, 4)), torch.full((4,), 768.0)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_a_part_of_a_found_entry_that_cannot_be_compiled_runs_eagerly(monkeypatch, caplog, needs_grad):
    call, wanted = later_part(needs_grad, False)
    monkeypatch.setattr(pipeline, "lower_graph", lambda *_: 1 / 0)
    assert torch.equal(call(), wanted)
    assert "could not be compiled: ZeroDivisionError" in caplog.text
    if not needs_grad:
        assert torch.equal(call(), wanted)
        assert len(caplog.records) == 1  # it is tried once


@pytest.mark.parametrize("needs_grad", [False, True])
def test_a_part_of_a_found_entry_that_cannot_be_compiled_raises_with_fullgraph(monkeypatch, needs_grad):
    call, _ = later_part(needs_grad, True)
    monkeypatch.setattr(pipeline, "lower_graph", lambda *_: 1 / 0)
    with pytest.raises(BackendError, match="a part of .* could not be compiled: ZeroDivisionError"):
        call()


FACTOR = 2


def reads_a_global():
    def f(x):
        x = x + 1
        smelt.graph_break()
        return x * FACTOR

    return f


def test_stances_hold_for_code_after_a_break(monkeypatch):
    smelt.compile(reads_a_global())(x)
    compiled = smelt.compile(reads_a_global())
    compiled(x)
    assert not any(entries(compiled))  # it was found
    monkeypatch.setitem(globals(), "FACTOR", 3)
    with torch.compiler.set_stance("eager_on_recompile"):
        assert torch.equal(compiled(x), (x + 1) * 3)
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="recompile"):
        compiled(x)
    assert torch.equal(compiled(x), (x + 1) * 3)


def scaled():
    def f(x):
        return x.softmax(-1) * x.shape[0]

    return f


@pytest.mark.parametrize("part", ["graphs", "plans"])
@pytest.mark.parametrize("gradients", [False, True])
def test_a_damaged_entry_is_a_miss_with_one_warning(part, gradients, caplog):
    def call(compiled, n):
        x = torch.linspace(-1, 1, 3 * n).view(n, 3).requires_grad_(gradients)
        with torch.set_grad_enabled(gradients):
            result = compiled(x)
            return [result, *(torch.autograd.grad(result.square().sum(), x) if gradients else ())]

    call(smelt.compile(scaled(), dynamic=True), 4)
    (key,) = entry_store.known()
    [(digest, stored)] = entry_store.entries_under(key, (), config.defaults())
    entry_store.drop(key, digest, config.defaults())
    if part == "graphs":
        damaged = replace(stored, graphs=stored.graphs[:-9] + b"x" * 9)
    else:
        damaged = replace(
            stored, plans=tuple(replace(p, steps=p.steps[:-9] + b"x" * 9) for p in stored.plans)
        )
    entry_store.keep(key, damaged.to_bytes(), config.defaults())
    compiled = smelt.compile(scaled(), dynamic=True)
    for n in (4, 5, 6):
        torch.testing.assert_close(call(compiled, n), call(scaled(), n))
    warned = [record.getMessage() for record in caplog.records if "stored entry" in record.getMessage()]
    assert len(warned) == 1 + (part == "plans" and gradients), warned
