"""Entries that no other process may use are not stored, and a report says why."""

import warnings

import pytest
import torch

import smelt
from smelt import config
from smelt.report import inspect
from smelt.warm import entry_store

pytestmark = pytest.mark.usefixtures("warm")

x = torch.ones(2, 3)
HOLDER = [object()]
WEIGHT = torch.ones(2, 3, requires_grad=True)


def order_of_texts(x):
    return [x * len(name) for name in {"a", "bb"}]


def hashed(x):
    return x + 1, hash("text")


def addressed(x):
    return x + 1, id(HOLDER) % 2


def breaks(x):
    x = x + 1
    smelt.graph_break()
    return x * 2, hash("text")


@torch.enable_grad()
def gradients_of_views(x):
    y = WEIGHT * x
    return y, y[0]


def data_dependent(x):
    return x[x > 0] * 2


def warns(x):
    x = x + 1
    warnings.warn("careful", stacklevel=1)
    return x * 2


@pytest.mark.parametrize(
    "program, why",
    [
        (order_of_texts, "the order of a set"),
        (hashed, "the result of hash"),
        (addressed, "the result of id"),
        (breaks, "after a graph break, it depends on the process: the result of hash"),
        (gradients_of_views, "its graph is not one plan"),
        (data_dependent, "its sizes depend on data"),
        (warns, "its frame calls warn of the compiler"),
    ],
)
def test_an_entry_without_a_stored_form_is_not_kept(program, why):
    compiled = smelt.compile(program)
    compiled(x)
    reasons = [reason for _, record in inspect.records(compiled) for reason in record.not_kept]
    assert any(why in reason for reason in reasons), reasons
    assert not list(entry_store.known())


def test_a_report_says_why():
    text = str(smelt.explain(hashed)(x))
    assert "is not stored for other processes: it depends on the process: the result of hash" in text.replace(
        "\n", " "
    )


def test_options_turn_it_off():
    with config.set(warm_start=False):
        smelt.compile(lambda x: x * 3)(x)
    assert not list(entry_store.known())
