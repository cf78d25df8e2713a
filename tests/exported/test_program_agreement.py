"""Calls that differ from the example in what is easily forgotten: a program does as the model, or refuses them by name."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.errors import ExportError, InputError, ProgramError
from smelt.exported import result_nest
from tests.harness.exported import same


def relu_or_not(x: Any, act: Any = torch.relu) -> Any:
    return act(x) if act else x


def with_list(x: Any, factors: Any = [1, 2]) -> Any:  # noqa: B006
    return x * factors[0]


def with_tensor(x: Any, y: Any = torch.ones(3)) -> Any:  # noqa: B008
    return x + y


@pytest.mark.parametrize(
    "f, example, call, message",
    [
        (relu_or_not, (), (None,), "act was left at its default at the export: leave it out"),
        (relu_or_not, (None,), (), "act was passed at the export: pass it"),
        (with_list, (), ([1.0, 2],), r"factors was left at its default \[1, 2\] at the export"),
        (with_tensor, (), (torch.zeros(3),), "y was left at its default at the export"),
        (with_tensor, (torch.zeros(3),), (), "y was passed at the export"),
    ],
    ids=["function", "none", "list", "tensor", "passed-tensor"],
)
def test_defaults_without_a_form_in_a_file(
    f: Callable[..., Any], example: tuple[Any, ...], call: tuple[Any, ...], message: str
) -> None:
    x = -torch.ones(3)
    program = smelt.export(f, (x, *example))
    assert same(program(x, *example), f(x, *example))
    with pytest.raises(InputError, match=message):
        program(x, *call)


def summed(x: Any, *rest: Any, scale: float = 1.0, **more: Any) -> Any:
    return (x + sum(rest) + sum(more.values())) * scale


@pytest.mark.parametrize(
    "n, names, message",
    [
        (1, ("a",), "rest had length 2 at the export, got 1"),
        (3, ("a",), "rest had length 2 at the export, got 3"),
        (2, (), "a was passed at the export: pass it"),
        (2, ("a", "b"), "b was not passed at the export: leave it out"),
    ],
)
def test_variadic_arguments(n: int, names: tuple[str, ...], message: str) -> None:
    x = torch.ones(3)
    program = smelt.export(summed, (x, x, x), {"a": x})
    assert same(program(x, x, x, a=x, scale=1.0), 4 * x)
    with pytest.raises(InputError, match=message):
        program(x, *[x] * n, **dict.fromkeys(names, x))


def test_a_list_as_default_may_be_passed() -> None:
    x = torch.ones(3)
    assert same(smelt.export(with_list, (x,))(x, [1, 2]), x)


def test_the_order_of_other_keywords() -> None:
    def f(*, last: Any, **parts: Any) -> Any:
        return torch.cat([*parts.values(), last])

    a, b, c = torch.zeros(1), torch.ones(2), torch.ones(3) * 2
    program = smelt.export(f, (), {"a": a, "last": c, "b": b})
    assert same(program(last=c, a=a, b=b), f(last=c, a=a, b=b))
    with pytest.raises(InputError, match="pass the keywords a, b in this order"):
        program(b=b, a=a, last=c)


class Tied(nn.Module):
    """Replaces a buffer whose tensor has another name."""

    def __init__(self, attribute: bool) -> None:
        super().__init__()
        tensor = torch.ones(2)
        self.attribute = attribute
        if attribute:
            self.other = tensor
        else:
            self.register_buffer("other", tensor)
        self.register_buffer("last", tensor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x + 1
        return self.other + self.last


@pytest.mark.parametrize("attribute", [False, True])
def test_a_replaced_buffer_with_two_names(attribute: bool) -> None:
    with pytest.raises(
        ExportError, match=r"replaces the buffer last, whose tensor is also (the model\.)?other"
    ):
        smelt.export(Tied(attribute), (torch.ones(2),))


class Replacing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.last + x
        return self.last


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Replacing(), Replacing(), nn.BatchNorm1d(2)])

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.parts[0](x) * self.parts[1](y), self.parts[2](torch.stack([x, y, x - y]))


def test_replaced_buffers_of_layers_and_arguments_that_were_results() -> None:
    model = Nested()
    eager = copy.deepcopy(model)
    program = smelt.export(model, (torch.zeros(2), torch.ones(2)))
    (first, _), (other, _) = program(torch.ones(2), torch.zeros(2)), eager(torch.ones(2), torch.zeros(2))
    for _ in range(3):
        whole, others = torch.stack([first, first]), torch.stack([other, other])
        (first, a), (other, b) = program(whole[0], whole[1]), eager(others[0], others[1])
        torch.testing.assert_close((first, a), (other, b.detach()))


class WithConstants(nn.Module):
    """Has a layer of the name that constants of graphs get."""

    def __init__(self) -> None:
        super().__init__()
        self.constant = nn.ParameterList([nn.Parameter(torch.full((2,), 7.0))])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.constant[0] + torch.tensor([1.0, 2.0])


def test_constants_have_names_of_their_own() -> None:
    x = torch.zeros(2)
    assert same(smelt.export(WithConstants(), (x,))(x), torch.tensor([8.0, 9.0]))


class Adding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.ones(2))

    def forward(self, x: torch.Tensor) -> Any:
        self.sum.add_(1)
        return self.sum, x * self.sum


class Weighing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> Any:
        x.add_(1)
        return self.weight, x * self.weight


@pytest.mark.parametrize("model, name", [(Adding(), "sum"), (Weighing(), "weight")], ids=["buffer", "weight"])
def test_an_argument_that_is_state(model: nn.Module, name: str) -> None:
    program = smelt.export(model, (torch.zeros(2),))
    tensor, _ = program(torch.ones(2))
    assert tensor.data_ptr() == program.state[name].data_ptr()
    for argument in (tensor.detach(), program.state[name].view(2)):
        with pytest.raises(InputError, match=f"x must share no memory with the state '{name}'"):
            program(argument)


def set_entry(x: Any, d: Any) -> Any:
    d["n"] = 5
    return x + 1


def copy_entry(x: Any, d: Any) -> Any:
    d["a"] = d["b"]
    return x + 1


def add_to_entry(x: Any, d: Any) -> Any:
    d["a"] += x
    return x + 1


def test_entries_of_arguments_that_were_so_before() -> None:
    x, y = torch.ones(2), torch.zeros(2)
    with pytest.raises(ExportError, match="sets the entry 'n' of d at .* in set_entry"):
        smelt.export(set_entry, (x, {"n": 5}))
    with pytest.raises(ExportError, match="sets the entry 'a' of d at .* in copy_entry"):
        smelt.export(copy_entry, (x, {"a": y, "b": y}))
    program, d = smelt.export(add_to_entry, (x, {"a": y.clone()})), {"a": y}
    program(x, d)
    assert d["a"] is y and torch.equal(y, x)


def needs_grad(x: Any) -> Any:
    return x * 2 if x.requires_grad else x * 3


def is_parameter(x: Any) -> Any:
    return x * 2 if isinstance(x, nn.Parameter) else x * 3


def test_what_autograd_says_of_arguments() -> None:
    x = torch.ones(2)
    program = smelt.export(needs_grad, (x,))
    with pytest.raises(InputError, match=r"x\.requires_grad must be False, got True.*in needs_grad"):
        program(x.clone().requires_grad_())
    program = smelt.export(lambda x: x * 2, (x,))
    with torch.no_grad():
        assert same(program(x.clone().requires_grad_()), x * 2)
    program = smelt.export(is_parameter, (x,))
    with pytest.raises(InputError, match=r"must be a Tensor, got a Parameter of \(2,\): pass it with"):
        program(nn.Parameter(x))


@dataclasses.dataclass
class Doubling:
    y: Any

    def __post_init__(self) -> None:
        self.y = self.y * 2


class DoublingPair(namedtuple("DoublingPair", "a b")):
    def __new__(cls, a: Any, b: Any = None) -> Any:
        return super().__new__(cls, a * 2, b)


@dataclasses.dataclass(slots=True, frozen=True, kw_only=True)
class Slotted:
    y: Any
    n: int = 3


@dataclasses.dataclass
class WithMore:
    y: Any


@dataclasses.dataclass
class FromOther:
    y: Any
    other: dataclasses.InitVar[Any]

    def __post_init__(self, other: Any) -> None:
        self.y = self.y + other


def test_results_are_not_constructed_twice() -> None:
    def f(x: Any) -> Any:
        return Doubling(x + 1), DoublingPair(x + 1, 3), Slotted(y=x + 1)

    x = torch.ones(2)
    result, wanted = smelt.export(f, (x,))(x), f(x)
    assert list(map(type, result)) == list(map(type, wanted))
    assert same([result[0].y, *result[1], result[2].y], [wanted[0].y, *wanted[1], wanted[2].y])
    assert result[2].n == 3


def test_results_that_are_more_than_their_fields() -> None:
    def with_more(x: Any) -> Any:
        made = WithMore(x + 1)
        made.more = x  # type: ignore[attr-defined]
        return made

    with pytest.raises(ExportError, match="WithMore with the attribute 'more', which is no field"):
        smelt.export(with_more, (torch.ones(2),))
    with pytest.raises(ExportError, match="the result contains a .*FromOther"):
        smelt.export(lambda x: FromOther(x, x), (torch.ones(2),))


@pytest.mark.parametrize(
    "module, name, fields",
    [("os", "system", ("command",)), ("subprocess", "Popen", ("args",)), (__name__, "WithMore", ())],
)
def test_results_construct_nothing_else(module: str, name: str, fields: tuple[str, ...]) -> None:
    constant = result_nest.ResultNode("constant", "false", ())
    made = result_nest.ResultNode("fields", (module, name, fields), (0,) * len(fields))
    with pytest.raises(ProgramError, match=f"{module}.{name}, which is no named tuple and no dataclass"):
        result_nest.build([constant, made], [], lambda path: None)


def test_loaded_in_inference_mode(tmp_path: Path) -> None:
    smelt.export(Adding(), (torch.zeros(2),)).save(tmp_path / "m.smelt")
    with torch.inference_mode():
        program = smelt.load(tmp_path / "m.smelt")
        program(torch.ones(2))
    assert torch.equal(program(torch.ones(2))[1], torch.full((2,), 3.0))


def test_builtins_have_no_signature() -> None:
    with pytest.raises(ExportError, match="has no signature: export a Python function that calls it"):
        smelt.export(torch.relu, (torch.ones(2),))


def test_a_program_inside_of_a_compiled_function() -> None:
    program, x = smelt.export(nn.Linear(4, 4), (torch.ones(2, 4),)), torch.randn(2, 4)
    assert same(smelt.compile(lambda x: program(x) * 2)(x), program(x) * 2)


_AT_EXIT = """
import atexit, sys, torch, smelt
programs = []
atexit.register(lambda: print(programs[0](torch.ones(2000, 64)).shape))
programs.append(smelt.load(sys.argv[1]))
programs[0](torch.ones(2, 64))
import weakref
assert not any(f.atexit and "mmap" in repr(i.func) for f, i in weakref.finalize._registry.items())
"""


def test_code_stays_until_the_end(tmp_path: Path) -> None:
    """Threads may run it while the process exits."""
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU())
    rows = [{0: smelt.Dim("n", min=1)}]
    smelt.export(model, (torch.ones(4, 64),), dynamic_shapes=rows).save(tmp_path / "m.smelt")
    done = subprocess.run(
        [sys.executable, "-c", _AT_EXIT, str(tmp_path / "m.smelt")], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "torch.Size([2000, 64])\n"), done.stderr


def test_the_least_size_of_a_tensor_that_is_not_computed_with() -> None:
    def f(x: Any, y: Any) -> Any:
        return y * 2 if x.shape[0] == 1 else y

    x, y, n = torch.ones(4, 2), torch.ones(3), smelt.Dim("n", min=1, max=9)
    with pytest.raises(
        ExportError, match='needs it at least 2.*Declare dynamic_shapes=.*Dim."n", min=2, max=9'
    ):
        smelt.export(f, (x, y), dynamic_shapes=[{0: n}, None])
    program = smelt.export(f, (x, y), dynamic_shapes=[{0: smelt.Dim("n", min=2)}, None])
    assert same(program(x[:2], y), y)
    with pytest.raises(InputError, match="dimension 0 of x must be at least 2, got 1"):
        program(x[:1], y)


def test_a_bound_that_no_size_reaches_contradicts_no_declaration() -> None:
    def f(x: Any) -> Any:
        return x.repeat(2, 1).argmax(1).float()[:, None]

    program = smelt.export(f, (torch.randn(5, 4),), dynamic_shapes=[{0: smelt.Dim("n", min=2)}])
    x = torch.randn(7, 4)
    assert same(program(x), f(x))
