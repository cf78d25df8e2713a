"""Files that an expression opens, uses and drops: one break, after which the function is compiled."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import smelt
from smelt.report import inspect
from tests.harness.agreement import same

# ruff: noqa: SIM115


def opened(path: str) -> object:
    return open(path, "w")


def opened_with_names(path: str) -> object:
    return open(path, mode="w")


def opened_below(path: str) -> object:
    return opened(path)


def generator(x, path):
    y = x.sin()
    open(path, "w").write("".join(str(i) for i in range(3)))
    return y.cos(), len(open(path).read())


def list_comprehension(x, path):
    y = x.sin()
    open(path, "w").write(",".join([str(n) for n in x.shape]))
    return y.cos()


def ternary(x, path):
    y = x.sin()
    open(path, "w").write("many" if len(x) > 2 else "few")
    return y.cos()


def condition_on_a_tensor(x, path):
    y = x.sin()
    open(path, "w").write("positive" if x.sum() > 0 else "negative")
    return y.cos()


def keyword(x, path):
    y = x.sin()
    open(path, mode="w").write("a" if len(x) else "b")
    return y.cos()


def closure(x, path):
    scale = 5
    y = x.sin()
    open(path, "w").write("".join(str(i + scale) for i in range(3)))
    scale += 1
    return y.cos() * scale


def value(x, path):
    y = x.sin()
    written = open(path, "w").write("a" if len(x) else "b") + len(open(path).read())
    return y.cos() * written


def in_a_loop(x, path):
    for k in range(3):
        open(path, "a").write("".join(str(i + k) for i in range(3)))
        x = x.cos()
    return x


def handled(x, path):
    y = x.sin()
    try:
        open(path, "w").write(5 if len(x) else "text")
    except TypeError:
        return y
    return y.cos()


def function(x, path):
    y = x.sin()
    opened(path).write("text")
    return y.cos(), len(open(path).read())


def function_with_names(x, path):
    y = x.sin()
    opened_with_names(path).write("text")
    return y.cos()


def function_of_a_function(x, path):
    y = x.sin()
    opened_below(path).write("text")
    return y.cos()


PROGRAMS: tuple[Callable[[torch.Tensor, str], object], ...] = (
    generator, list_comprehension, ternary, condition_on_a_tensor, keyword, closure, value, in_a_loop, handled, function,
    function_with_names, function_of_a_function,
)  # fmt: skip


def calls(fn: Callable[[torch.Tensor, str], object], path: Path) -> list[object]:
    torch.manual_seed(0)
    path.write_text("")
    return [(fn(torch.randn(n), str(path)), path.read_text()) for n in (3, 3, 3)]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_the_function_is_compiled_after_the_break(fn, tmp_path):
    compiled = smelt.compile(fn)
    same(calls(compiled, tmp_path / "text"), calls(fn, tmp_path / "text"))
    records = [record for _, record in inspect.records(compiled)]
    assert not [reason for record in records for reason in record.reasons]
    assert {b.kind.id for record in records for b in record.breaks} == {"input-output"}


def returned(x, path):
    return x.sin() * open(path, "w").write("".join(str(i) for i in range(3)))


def with_a_value_below(x, path):
    y = x.sin()
    sizes = [open(path, "w").write("a" if len(x) else "b"), len(open(path).read())]
    return y * sum(sizes)


def method_in_a_variable(x, path):
    y = x.sin()
    write = open(path, "w").write if len(x) else None
    write("text")
    size = len(open(path).read())
    return y.cos(), size


@pytest.mark.parametrize("fn", [returned, with_a_value_below, method_in_a_variable])
def test_files_close_as_in_eager(fn, tmp_path):
    same(calls(smelt.compile(fn), tmp_path / "text"), calls(fn, tmp_path / "text"))


def wrong(x, path):
    y = x.sin()
    opened(path).write(5)
    return y


def wrong_ternary(x, path):
    y = x.sin()
    open(path, "w").write(5 if len(x) else "b")
    return y


@pytest.mark.parametrize("fn", [wrong, wrong_ternary])
def test_errors_name_the_users_frames(fn, tmp_path):
    def frames(run: Callable[..., object]) -> list[tuple[str, int | None]]:
        with pytest.raises(TypeError) as error:
            run(torch.ones(3), str(tmp_path / "text"))
        entries = traceback.extract_tb(error.value.__traceback__)
        return [(entry.name, entry.lineno) for entry in entries if entry.name.startswith("wrong")]

    compiled = smelt.compile(fn)
    assert frames(compiled) == frames(compiled) == frames(fn)
