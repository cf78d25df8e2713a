"""The recompile limit: so many variants of a function, then it stays eager, and one warning says what keeps changing."""

from __future__ import annotations

import linecache
import logging
from typing import Any

import pytest
import torch

import smelt
from smelt import _native
from smelt.config import Config
from smelt.errors import Unsupported
from smelt.report.inspect import entries, reasons

X = torch.ones(2)
FACTORS = {name: float(i + 2) for i, name in enumerate("abcdefghijklmnop")}


def named(x: Any, mode: str, kind: str = "sum") -> Any:
    return x * FACTORS[mode] + len(kind)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="smelt")
    return caplog


def call_all(compiled: Any, modes: str, **more: Any) -> None:
    with torch.no_grad():
        for mode in modes:
            assert compiled(X, mode, **more).tolist() == named(X, mode, **more).tolist()


def test_eight_variants_then_eager(warnings: pytest.LogCaptureFixture) -> None:
    compiled = smelt.compile(named, backend="eager", dynamic=False)
    call_all(compiled, "abcdefgh")
    assert len(entries(compiled)) == 8 == Config().recompile_limit and not warnings.records
    call_all(compiled, "ijklmnop" * 2)
    assert len(entries(compiled)) == 8
    assert [r.kind.id for r in reasons(compiled)] == ["recompile-limit"]
    (warning,) = warnings.records
    text = warning.getMessage()
    assert text.startswith(
        "smelt: named runs eagerly: recompile-limit: the function was recompiled too often (8 times"
    )
    assert "L['mode'] was 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i')" in text
    assert f"at {__file__}:" in text and "recompile_limit" in text


def test_what_was_compiled_still_answers() -> None:
    compiled = smelt.compile(named, backend="eager", dynamic=False, options={"recompile_limit": 2})
    call_all(compiled, "abcd")
    before = _native.state()
    call_all(compiled, "abab")
    after = _native.state()
    assert after["hits"] - before["hits"] == 4 and after["callbacks"] == before["callbacks"]


def test_nothing_is_asked_any_more() -> None:
    compiled = smelt.compile(named, backend="eager", dynamic=False, options={"recompile_limit": 2})
    call_all(compiled, "abc")
    before = _native.state()["callbacks"]
    call_all(compiled, "cdef")
    assert _native.state()["callbacks"] == before


def test_each_compiled_function_counts_for_itself() -> None:
    first, second = (
        smelt.compile(named, backend="eager", dynamic=False, options={"recompile_limit": n}) for n in (2, 4)
    )
    for compiled in (first, second):
        call_all(compiled, "abcdef")
    assert [len(entries(c)) for c in (first, second)] == [2, 4]


def test_methods_of_one_class_count_for_themselves() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any, mode: str) -> Any:
            return named(x, mode)

    options = {"recompile_limit": 2}
    models = [smelt.compile(Model(), backend="eager", dynamic=False, options=options) for _ in range(2)]
    for model in models:
        call_all(model, "abc")
        assert len(entries(model)) == 2 and len(reasons(model)) == 1


def test_the_warning_names_all_that_changed(warnings: pytest.LogCaptureFixture) -> None:
    compiled = smelt.compile(named, backend="eager", dynamic=False, options={"recompile_limit": 2})
    call_all(compiled, "a", kind="sum")
    call_all(compiled, "b", kind="sum")
    call_all(compiled, "b", kind="mean")
    text = warnings.records[0].getMessage()
    assert "L['mode'] was 'a', 'b'" in text and "L['kind'] was 'sum', 'mean'" in text


def test_reset_begins_anew() -> None:
    compiled = smelt.compile(named, backend="eager", dynamic=False, options={"recompile_limit": 2})
    call_all(compiled, "abc")
    smelt.reset()
    assert not entries(compiled) and not reasons(compiled)
    call_all(compiled, "cd")
    assert len(entries(compiled)) == 2 and not reasons(compiled)


def test_with_fullgraph_the_limit_is_an_error() -> None:
    compiled = smelt.compile(
        named, backend="eager", dynamic=False, options={"recompile_limit": 2}, fullgraph=True
    )
    call_all(compiled, "ab")
    with pytest.raises(Unsupported, match="recompile-limit"):
        call_all(compiled, "c")


def test_shapes_are_named(warnings: pytest.LogCaptureFixture) -> None:
    compiled = smelt.compile(lambda x: x * 2, backend="eager", dynamic=False, options={"recompile_limit": 2})
    with torch.no_grad():
        for n in (2, 3, 4):
            assert compiled(torch.ones(n)).shape == (n,)
    assert "L['x'].shape was (2,), (3,), (4,)" in warnings.records[0].getMessage()


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mode = "a"

    def forward(self, x: Any) -> Any:
        y = x + 1
        return y * FACTORS[self.mode]  # the operation


class Outer(Scale):
    def forward(self, x: Any) -> Any:
        y = x.sin()
        return super().forward(y)


class Sized(Scale):
    def forward(self, x: Any) -> Any:
        y = x.cos()
        y = y + len(self.mode * (ord(self.mode[0]) - 90))  # the operation
        return y.sum()


@pytest.mark.parametrize("module", [Scale, Sized, Outer])
def test_the_line_is_that_of_the_operation(module: type[Scale]) -> None:
    model = module()
    compiled = smelt.compile(model, backend="eager", dynamic=False, options={"recompile_limit": 3})
    with torch.no_grad():
        for model.mode in "abcd":
            torch.testing.assert_close(compiled(X), model(X))
    (reason,) = reasons(compiled)
    assert reason.line is not None
    operation = linecache.getline(reason.line.filename, reason.line.line)
    assert operation.rstrip().endswith("# the operation"), reason
