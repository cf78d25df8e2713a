"""`smelt.explain`: what a user reads of a call."""

import json

import torch

import smelt
from smelt import events


def toy(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


def lines_of(rows):
    return [row["line"]["text"] for row in rows]


def test_a_break_is_told_with_its_line_and_what_to_do():
    explanation = smelt.explain(toy)(torch.randn(10), torch.ones(10))
    data = explanation.to_dict()
    [broke] = data["breaks"]
    assert broke["id"] == "data-dependent-condition" and "torch.where" in broke["hint"]
    assert broke["line"]["text"] == "if b.sum() < 0:" and broke["line"]["file"] == __file__
    text = str(explanation)
    assert text.startswith("toy: 2 graphs, 1 break, 0 recompiles, 2 entries, compiled in ")
    assert "test_explain.py:" in text and "if b.sum() < 0:" in text and "fix: Compute both sides" in text
    assert max(map(len, text.splitlines())) <= 120
    at = {(row["line"], event) for row in data["lines"] for event in row["events"]}
    assert (broke["line"]["line"], "break") in at and (broke["line"]["line"] - 1, "captured") in at
    assert "if b.sum() < 0:" in data["sources"][0]["text"]


def test_all_of_it_is_json():
    data = smelt.explain(toy)(torch.randn(10, requires_grad=True), torch.ones(10)).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert {"version", "frames", "graphs", "kernels", "memory", "phases", "lines", "sources"} <= data.keys()


def test_the_result_is_the_calls_and_nothing_stays_subscribed():
    x, y = torch.randn(10), torch.ones(10)
    calls = []

    def f(a, b):
        calls.append(1)
        return toy(a, b)

    torch.testing.assert_close(smelt.explain(f)(x, y).result, toy(x, y))
    assert len(calls) == 1
    seen = []
    with events.subscribed(seen.append):
        smelt.explain(f)(x, y)
        seen.clear()
        explanation = smelt.explain(smelt.compile(f))
        events.emit("capture-start", "nobody", attempt=None)
    assert [e.name for e in seen] == ["nobody"]
    assert "nobody" not in str(explanation(x, y))
