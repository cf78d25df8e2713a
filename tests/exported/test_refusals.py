"""What cannot be exported is refused with the user's line and what to do; other arguments, with their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt import Dim
from smelt.errors import ExportError, InputError, Unsupported

STATE = {"calls": 0}
X = torch.randn(4, 6)


def counts(x: Any) -> Any:
    STATE["calls"] += 1  # line of counts
    return x + 1


def prints(x: Any) -> Any:
    print("hello")  # line of prints
    return x + 1


def branches(x: Any) -> Any:
    if x.sum() > 0:  # line of branches
        print(end="")
        return x + 1
    return x - 1


def selects(x: Any) -> Any:
    return x[x > 0]  # line of selects


class Remembers(nn.Module):
    def forward(self, x: Any) -> Any:
        self.seen = x * 2  # line of Remembers
        return x + 1


class Grows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 6))

    def forward(self, x: Any) -> Any:
        self.cache = torch.cat([self.cache, x])
        return self.cache.sum()


def line_of(name: str) -> int:
    text = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(text, 1) if line.endswith(f"# line of {name}"))


@pytest.mark.parametrize(
    "model, what",
    [
        (counts, "sets the entry 'calls'"),
        (prints, "calls print"),
        (branches, "Keep effects out of both branches"),
        (Remembers(), "sets the attribute 'seen' of the model"),
    ],
)
def test_effects_and_breaks_name_the_line(model: Any, what: str) -> None:
    name = getattr(model, "__name__", type(model).__name__)
    with pytest.raises(ExportError, match=re.escape(what)) as caught:
        smelt.export(model, (X,))
    assert f"test_refusals.py:{line_of(name)} in" in str(caught.value)
    assert STATE["calls"] == 0


def test_the_error_of_capture_is_chained() -> None:
    with pytest.raises(ExportError) as caught:
        smelt.export(branches, (X,))
    assert isinstance(caught.value.__cause__, Unsupported)


@pytest.mark.parametrize(
    "model, args, what",
    [
        (selects, (X,), "sizes that data decide"),
        (Grows(), (X,), "a buffer of a program keeps its sizes"),
        (lambda x, f: f(x), (X, torch.relu), "f is .*relu: a program takes tensors"),
        (lambda x: (x, {1, 2}), (X,), "the result contains a builtins.set"),
        (lambda x: torch.rand(3) + __import__("random").random(), (X,), "random"),
        (lambda x: x.to_sparse(), (X,), "."),
    ],
)
def test_other_refusals(model: Any, args: Any, what: str) -> None:
    with pytest.raises(ExportError, match=what):
        smelt.export(model, args)


def test_exceptions_of_the_model_propagate() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        smelt.export(lambda x: x @ x, (X,))
    with pytest.raises(TypeError, match="missing a required argument"):
        smelt.export(counts, ())
    with pytest.raises(TypeError, match="model must be a function"):
        smelt.export(None, ())  # type: ignore[arg-type]


# ---- declarations


def at_least_four(x: Any) -> Any:
    return x + 1 if x.shape[0] > 3 else x - 1  # line of at_least_four


def fixed(x: Any) -> Any:
    return x + torch.ones(4, 1)  # line of fixed


def added(x: Any, y: Any) -> Any:
    return x + y  # line of added


@pytest.mark.parametrize(
    "model, args, shapes, words, declaration",
    [
        (
            at_least_four,
            (X,),
            [{0: Dim("b", max=64)}],
            "needs it from 4 to 64",
            '{0: Dim("b", min=4, max=64)}',
        ),
        (fixed, (X,), [{0: Dim("b", max=64)}], "works for size 4 only", "{'x': {0: None}}"),
        (
            added,
            (X, X + 1),
            [{0: Dim("b", max=64)}, {0: Dim("c", max=64)}],
            "dimension 0 of x, the Dim 'b', must equal dimension 0 of y, the Dim 'c'",
            "{'x': {0: Dim(\"c\", max=64)}}",
        ),
    ],
)
def test_contradictions(model: Any, args: Any, shapes: Any, words: str, declaration: str) -> None:
    with pytest.raises(ExportError) as caught:
        smelt.export(model, args, dynamic_shapes=shapes)
    text = str(caught.value)
    assert words in text and declaration in text
    assert f"test_refusals.py:{line_of(model.__name__)} in" in text


def test_the_declaration_to_paste_works() -> None:
    batch = Dim("b", min=4, max=64)
    program = smelt.export(at_least_four, (X,), dynamic_shapes={"x": {0: batch}})
    with pytest.raises(InputError, match=r"dimension 0 of x, the Dim 'b', must be from 4 to 64, got 3"):
        program(torch.zeros(3, 6))


def test_auto_takes_what_the_program_allows() -> None:
    program = smelt.export(at_least_four, (X,), dynamic_shapes=[{0: Dim.AUTO, 1: Dim.STATIC}])
    assert torch.equal(program(torch.zeros(100, 6)), torch.ones(100, 6))
    with pytest.raises(InputError, match="dimension 0 of x must be at least 4, got 3"):
        program(torch.zeros(3, 6))


def test_torchs_dims() -> None:
    batch = torch.export.Dim("batch", min=2, max=8)
    program = smelt.export(added, (X, X + 1), dynamic_shapes=({0: batch}, {0: batch}))
    assert program(torch.zeros(8, 6), torch.zeros(8, 6)).shape == (8, 6)
    with pytest.raises(InputError, match="from 2 to 8, got 9"):
        program(torch.zeros(9, 6), torch.zeros(9, 6))
    program = smelt.export(added, (X, X + 1), dynamic_shapes=[{0: torch.export.Dim.AUTO}] * 2)
    assert program(torch.zeros(9, 6), torch.zeros(9, 6)).shape == (9, 6)


@pytest.mark.parametrize(
    "shapes, what",
    [
        ({"z": None}, "dynamic_shapes names 'z'; there are 'x', 'y'"),
        ({"x": {2: Dim.AUTO}}, r"dynamic_shapes\[x\] names 2; there are 0, 1"),
        ({"x": {0: 5}}, r"dynamic_shapes\[x\]\[0\] is 5, the example has size 4"),
        ({"x": {0: "b"}}, "must be a Dim"),
        ({"x": {0: 2 * torch.export.Dim("b")}}, "computed from another Dim: declare Dim.AUTO"),
        ({"x": {0: Dim("b", min=5)}}, "the example has size 4"),
        (
            {"x": {0: Dim("b")}, "y": {1: Dim("b")}},
            "the Dim 'b' is 4 in dimension 0 of x and 6 in dimension 1 of y",
        ),
        ([{0: Dim("b")}, None, None], "has 3 entries"),
        (3, "must be None, a dict or a sequence"),
    ],
)
def test_declarations_that_do_not_fit(shapes: Any, what: str) -> None:
    with pytest.raises(ExportError, match=what):
        smelt.export(added, (X, X + 1), dynamic_shapes=shapes)
    with pytest.raises(ExportError, match="size 1: give one with at least 2"):
        smelt.export(added, (X[:1], X[:1] + 1), dynamic_shapes=[{0: Dim("b")}, None])


@pytest.mark.parametrize(
    "make",
    [lambda: Dim("1"), lambda: Dim("a", min=-1), lambda: Dim("a", min=3, max=2), lambda: Dim("a", max=True)],
)
def test_dims_that_cannot_be(make: Any) -> None:
    with pytest.raises(ValueError, match=r"smelt\.Dim"):
        make()


# ---- arguments


def takes(x: Any, options: Any, y: Any = None) -> Any:
    x = x * options["scale"] + len(options["names"])
    return x if y is None else x + y


OPTIONS = {"scale": 2.0, "names": ["a", "b"]}


@pytest.mark.parametrize(
    "args, what",
    [
        ((3, OPTIONS), "x must be a Tensor, got int"),
        ((X.double(), OPTIONS), "x must have dtype torch.float32, got torch.float64"),
        ((X[0], OPTIONS), "x must have 2 dimensions, got 1"),
        ((X[:, :5], OPTIONS), "dimension 1 of x must be 6, got 5"),
        ((X[:1], OPTIONS), "dimension 0 of x, the Dim 'b', must be from 2 to 9, got 1"),
        ((torch.randn(6, 4).t(), OPTIONS), r"dimension 1 of x must have stride 1, got 4.*contiguous"),
        ((X, {**OPTIONS, "scale": 3.0}), r"options\['scale'\] must be 2.0, got 3.0"),
        ((X, {**OPTIONS, "scale": 2}), r"options\['scale'\] must be 2.0, got 2"),
        ((X, {**OPTIONS, "names": ["a"]}), r"options\['names'\] must have length 2"),
        ((X, {"names": []}), "options"),
        ((X, [OPTIONS]), "options must be a builtins.dict, got a list of length 1"),
        ((X, OPTIONS, X), "y was left at its default None at the export: leave it out"),
    ],
)
def test_arguments_of_another_kind(args: Any, what: str) -> None:
    program = smelt.export(takes, (X, OPTIONS), dynamic_shapes={"x": {0: Dim("b", max=9)}})
    torch.testing.assert_close(program(X[:3], OPTIONS), takes(X[:3], OPTIONS))
    with pytest.raises(InputError, match=what):
        program(*args)
    with pytest.raises(ValueError):
        program(*args)


def test_sizes_that_must_be_equal() -> None:
    batch = Dim("b", max=9)
    program = smelt.export(added, (X, X + 1), dynamic_shapes=[{0: batch}, {0: batch}])
    with pytest.raises(InputError, match="dimension 0 of y must be 3, as dimension 0 of x is, got 4"):
        program(torch.zeros(3, 6), torch.zeros(4, 6))


def test_where_smelt_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from smelt import compatibility, eager_only

    monkeypatch.setattr(compatibility, "compiler", lambda: eager_only)
    with pytest.raises(smelt.errors.Unavailable, match=r"smelt\.export"):
        smelt.export(added, (X, X))
    monkeypatch.setattr(compatibility, "unavailable", "another torch")
    with pytest.raises(smelt.errors.Unavailable, match=r"smelt\.load: another torch"):
        smelt.load("m.smelt")
