"""The harness itself: a world that differs is reported."""

import functools

import pytest
import torch

import smelt
from tests.harness.catalogue import program, tensor


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
    @program()
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


def test_counts_graphs():
    @program(graphs=0)
    def world():
        def fn(x):
            return x + 1

        return fn, [(tensor(3),)] * 3

    with pytest.raises(AssertionError, match="1 graphs"):
        world()


def test_notices_what_is_not_captured():
    @program(graphs=1)
    def world():
        def fn(x):
            return x + len(open("/dev/null").read())

        return fn, [(tensor(3),)] * 3

    with pytest.raises(AssertionError, match="not captured"):
        world()
