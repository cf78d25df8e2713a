"""The harness itself: a world that differs is reported."""

import functools

import pytest
import torch

import smelt
from tests.harness.catalogue import DEVICE, PYTHON, TORCH, Compilation, Unlike, program, tensor

# What rows say of graphs is not compared on a GPU, and programs make some tensors themselves.
pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="about the CPU")


def wrong(fn, kind):
    """`fn` with one thing done differently."""

    @functools.wraps(fn)
    def call(x, kept):
        out = fn(x, kept)
        if kind == "value":
            out["y"].add_(1)
        elif kind == "identity":
            out["x"] = x.view_as(x)
        elif kind == "storage":
            out["view"] = out["view"].clone()
        elif kind == "copy":
            out["kept"] = list(out["kept"])
        elif kind == "argument":
            kept.append(1)
        elif kind == "closure":
            fn.__closure__[0].cell_contents.append(2)
        elif kind == "rng":
            torch.rand(1)
        elif kind == "raises":
            raise ValueError("no")
        elif kind == "stride":
            out["y"] = out["y"].t().contiguous().t()
        elif kind == "type":
            out["n"] = float(out["n"])
        elif kind == "printed":
            print("x")
        elif kind == "mode":
            torch.set_grad_enabled(False)
        elif kind == "iterator":
            next(out["it"])
        elif kind == "gradient":
            out["g"] = 2 * out["g"].detach() - out["g"] if x.requires_grad else out["g"]
        return out

    return call


KINDS = "value identity storage copy argument closure rng raises stride type printed mode iterator gradient".split()


@pytest.mark.parametrize("kind", KINDS)
def test_reports_a_difference(kind, monkeypatch):
    @program(graphs=1)
    def world():
        log = []

        def fn(x, kept):
            log.append(len(kept))
            y = x.detach() * 2
            return {"y": y, "view": y[0], "x": x, "kept": kept, "n": 3, "it": iter([1, x]), "g": x * 3}

        kept = [tensor(2)]
        return fn, [(tensor(3, 4, requires_grad=True), kept)] * 3

    world()
    real = smelt.compile
    monkeypatch.setattr(smelt, "compile", lambda fn, **options: real(wrong(fn, kind), **options))
    before = torch.is_grad_enabled()
    with pytest.raises(AssertionError, match="call 0"):
        world()
    torch.set_grad_enabled(before)


def adding(**said):
    """A row whose function is one graph."""

    @program(**said)
    def world():
        return lambda x: x + 1, [(tensor(3),)] * 3

    return world


@pytest.mark.parametrize(
    "said", [dict(graphs=0), dict(graphs=2), dict(graphs=1, later=1), dict(graphs=1, breaks=["output"])]
)
def test_a_row_says_what_is_compiled(said):
    adding(graphs=1)()
    with pytest.raises(AssertionError, match=r"@program\(graphs=1\) is what happened"):
        adding(**said)()


def test_graphs_of_later_calls_are_counted():
    @program(graphs=1)
    def world():
        return lambda x: x + 1, [(tensor(3),), (tensor(3),), (tensor(4, 2),)]

    with pytest.raises(AssertionError, match=r"@program\(graphs=1, later=1\) is what happened"):
        world()


def test_a_program_that_breaks_says_so():
    def factory():
        def fn(x):
            return x + len(open("/dev/null").read())

        return fn, [(tensor(3),)] * 3

    with pytest.raises(
        AssertionError, match=r"@program\(graphs=1, breaks=\('input-output',\)\) is what happened"
    ):
        program(graphs=1)(factory)()


def test_a_failure_of_the_backend_cannot_be_said():
    def fails(graph, config):
        raise ZeroDivisionError("oh")

    with pytest.raises(AssertionError, match="backend-failed"):
        adding(graphs=0, eager=["backend-failed"], backend=fails)()


def test_a_row_without_its_numbers_is_an_error():
    with pytest.raises(TypeError, match="graphs"):
        adding()
    with pytest.raises(AssertionError, match="no reason of smelt/reasons.py"):
        adding(graphs=1, breaks=["tired"])


def test_another_version_of_python_or_torch_may_differ_with_a_reason():
    adding(graphs=7, unlike={PYTHON: Unlike("bytecode", Compilation(1))})()
    adding(graphs=7, unlike={PYTHON: Unlike("bytecode")})()
    adding(graphs=7, unlike={TORCH: Unlike("operators", Compilation(1))})()
    adding(graphs=1, unlike={"2.7": Unlike("bytecode", Compilation(7))})()
    with pytest.raises(AssertionError, match=r"the row says @program\(graphs=2\)"):
        adding(graphs=1, unlike={PYTHON: Unlike("bytecode", Compilation(2))})()
