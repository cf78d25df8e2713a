"""Numbers, strings, containers and sizes that differ at each call, and that the program needs: after the recompile limit the
graph breaks there, and the rest stays compiled."""

from __future__ import annotations

import copy
import string
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt import _native
from smelt.config import Config
from smelt.errors import Unsupported
from smelt.report.inspect import records
from tests.harness.agreement import same

CALLS = 26
FACTORS = {name: i + 2.0 for i, name in enumerate(string.ascii_lowercase)}
Program = Callable[[torch.Tensor, Any], Any]


def looked_up() -> Program:
    return lambda x, name: (x + 1).sin() * FACTORS[name] + x


def in_a_generator() -> Program:
    return lambda x, name: x * sum(FACTORS[n] for n in (name,))


def in_a_nested_function() -> Program:
    def f(x: torch.Tensor, name: str) -> Any:
        def factor() -> float:
            return FACTORS[name]

        return (x * factor()).relu()

    return f


def counted() -> Program:
    counts: dict[str, int] = {}

    def f(x: torch.Tensor, name: str) -> Any:
        counts[name] = counts.get(name, 0) + 1
        return x * counts[name], list(counts.items())

    return f


def logged() -> Program:
    results: dict[str, torch.Tensor] = {}

    def f(x: torch.Tensor, name: str) -> Any:
        y = x.cos()
        results[f"{name}/mean"] = y.mean()
        results[f"{name}/largest"] = y.max()
        return y + x, dict(results)

    return f


class Adapters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.adapters = nn.ModuleDict({name: nn.Linear(3, 3) for name in FACTORS})
        self.head = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self.head(self.adapters[name](x).relu())


def formatted(x: torch.Tensor, step: int) -> Any:
    return x + len(f"{step:05d} of {step * 7}"), f"step {step}"


def indexed() -> Program:
    table = [float(i * i) for i in range(CALLS)]
    return lambda x, step: x * table[step] + step


def decided(x: torch.Tensor, step: int) -> Any:
    if step in (3, 7, 20):
        return x * 100
    return (x - 1 if step % 2 else x * step).exp()


class Recorder:
    pass


def set_by_name() -> Program:
    recorder = Recorder()

    def f(x: torch.Tensor, step: int) -> Any:
        setattr(recorder, f"at_{step}", x.sum())
        return x * step, dict(vars(recorder))

    return f


def tuple_as_key() -> Program:
    positions: dict[tuple[int, int], torch.Tensor] = {}

    def f(x: torch.Tensor, step: int) -> Any:
        key = x.shape[0], step // 2
        if key not in positions:
            positions[key] = torch.arange(x.shape[0]) * float(step)
        return x.t() + positions[key], len(positions)

    return f


def growing_list() -> Program:
    history: list[torch.Tensor] = []

    def f(x: torch.Tensor, step: int) -> Any:
        history.append(x.mean())
        return torch.stack(history).sum() * x.exp(), len(history)

    return f


def method_of_the_latest_name() -> Program:
    """The text is on the stack as the graph breaks: at the index, and in an argument of its method."""
    names: list[str] = []
    outs: list[torch.Tensor] = []

    def f(x: torch.Tensor, step: int) -> Any:
        names.append(f"layer{step}")
        outs.append(x * 2)
        if names[-1].startswith("layer1"):
            x = x + 1
        return x.exp() * names[-1].count(names[step // 2]), names[-1].rsplit("r", 1)

    return f


def sizes() -> Iterator[int]:
    yield from range(2, 2 + CALLS)


def rows_in_a_loop(x: torch.Tensor, size: int) -> Any:
    total = x.new_zeros(3)
    for row in x.t().repeat(size, 1).sin():
        total = total * 0.5 + row.sum()
    return total.exp()


def steps_of_a_network() -> Program:
    torch.manual_seed(0)
    network, head = nn.GRU(2, 4), nn.Linear(4, 2)
    return lambda x, size: head(network(x.t().repeat(size, 1).sin())[0]).relu()


def size_as_a_key() -> Program:
    scales: dict[int, float] = {}

    def f(x: torch.Tensor, size: int) -> Any:
        y = x.repeat(1, size).cos()
        if y.shape[1] not in scales:
            scales[y.shape[1]] = y.shape[1] ** -0.5
        return (y * scales[y.shape[1]]).exp(), len(scales)

    return f


def text_of_a_size(x: torch.Tensor, size: int) -> Any:
    y = x.repeat(1, size).cos()
    return y * len(str(y.shape[1])) + y, f"{y.shape[1]}"[-1]


def in_a_list_of_floats(x: torch.Tensor, step: int) -> Any:
    """Torch's parser of arguments drops the exception of the first read of a list's float, and reads it again."""
    scales = [1.5 + step / 4, 2.0]
    return torch.ops.aten.upsample_nearest2d((x + 1)[None, None], None, scales).sin()


def reports() -> Program:
    """New keys at each call, in a dictionary of the caller's."""

    def f(x: torch.Tensor, losses: dict[str, float]) -> Any:
        total = sum(losses[name] for name in losses)
        return (x * total).tanh(), len(losses)

    return f


def new_reports() -> Iterator[dict[str, float]]:
    yield from ({f"loss_{i}": i + 0.5, f"penalty_{i}": 2.0} for i in range(CALLS))


def names() -> Iterator[str]:
    yield from string.ascii_lowercase


def steps() -> Iterator[int]:
    yield from range(CALLS)


PROGRAMS = [
    *((make, names) for make in (looked_up, in_a_generator, in_a_nested_function, counted, logged, Adapters)),
    (lambda: formatted, steps),
    *((lambda f=f: f, steps) for f in (decided, in_a_list_of_floats)),
    (lambda: rows_in_a_loop, sizes),
    (lambda: text_of_a_size, sizes),
    *((make, sizes) for make in (steps_of_a_network, size_as_a_key)),
    (reports, new_reports),
    *((make, steps) for make in (indexed, set_by_name, tuple_as_key, growing_list)),
    (method_of_the_latest_name, steps),
]


@pytest.mark.parametrize("make, values", PROGRAMS, ids=lambda f: f.__name__)
def test_the_graph_breaks_at_the_value(make: Any, values: Any) -> None:
    eager, compiled = make(), smelt.compile(make())
    for value in values():
        x = torch.randn(2, 3)
        same(compiled(x, value), eager(x, value))
    found = dict(records(compiled))
    assert not [r for record in found.values() for r in record.reasons]
    assert all(len(record.entries) < 3 * Config().recompile_limit for record in found.values())
    assert {r.kind.id for record in found.values() for r in record.breaks} <= {
        "changing-value",
        "unsupported-object",
        "data-dependent-value",
    }
    before = _native.state()
    for value in values():  # no value is new to the entries
        compiled(x, value)
    assert _native.state()["hits"] > before["hits"]


def test_the_reason_names_the_value_and_its_line() -> None:
    compiled = smelt.compile(formatted)
    for step in range(12):
        compiled(torch.ones(2), step)
    (reason,) = {r for _, record in records(compiled) for r in record.breaks}
    assert reason.kind.id == "changing-value" and reason.line.function == "formatted"
    assert reason.detail == "characters of text with L['step'] in it, which differs from call to call"
    compiled = smelt.compile(lambda x, name, other: x * FACTORS[name] + len(other))
    for name in string.ascii_lowercase[:12]:
        compiled(torch.ones(2), name, "the same")
    (reason,) = {r for _, record in records(compiled) for r in record.breaks}
    assert "text with L['name'] in it" in reason.detail


@pytest.mark.parametrize(
    "pairs",
    [
        lambda n: [(i, j) for i in range(n) for j in range(i)],
        lambda n: [[i * j for j in range(i)] for i in range(n)],
        lambda n: {i: {j * j for j in range(i)} for i in range(n)},
    ],
)
def test_a_comprehension_of_numbers_runs_as_a_whole(pairs: Callable[[int], Any]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return y * len(str(pairs(y.shape[0])))

    compiled = smelt.compile(program)
    for step in range(CALLS):
        x = torch.randn(2 + step % 14)
        same(compiled(x), program(x))
    found = dict(records(compiled))
    assert len(found) < 6 and not [r for record in found.values() for r in record.reasons]


def test_a_method_of_a_changing_text_gives_its_result_to_the_resume_function() -> None:
    """The guards of what follows are about the result, not about the text: one resume entry for each result."""
    compiled = smelt.compile(lambda x, name: x * (2 if name.startswith("a") else 3))
    for step in range(CALLS):
        x, name = torch.randn(3), f"{'ab'[step % 2]}{step}"
        same(compiled(x, name), x * (3 if step % 2 else 2))
    _, (_, rest) = records(compiled)
    assert len(rest.entries) == 2


@pytest.mark.parametrize("options", [{"fullgraph": True}, {"dynamic": False}], ids=str)
def test_values_stay_guarded_where_the_user_asks_for_it(options: dict[str, bool]) -> None:
    """One graph has no breaks, and with `dynamic=False` all numbers are specialized."""
    compiled = smelt.compile(looked_up(), **options)
    for name in "abcdefgh":
        compiled(torch.ones(2), name)
    if "dynamic" in options:
        compiled(torch.ones(2), "i")
        assert [r.kind.id for _, record in records(compiled) for r in record.reasons] == ["recompile-limit"]
    else:
        with pytest.raises(Unsupported, match="recompiled too often"):
            compiled(torch.ones(2), "i")


class Seen:
    last: Any = None


OF_ANY_CLASS: list[Any] = [
    None, 1, 2.5, "text", (1, 2), b"bytes", 1j, [1], {"a": 1}, int, len, torch.ones(2), torch.ones(2, 2), torch.ones(()),
    nn.Linear(1, 1), ValueError("no"), Recorder(), slice(1), torch.float32, 1 << 70, {1}, range(3),
]  # fmt: skip


def passed_on(x: torch.Tensor, value: Any) -> Any:
    Seen.last = [value]
    return x.sin() + 1, (value, x)


def test_an_argument_of_any_class_is_passed_on() -> None:
    compiled = smelt.compile(passed_on)
    for value in OF_ANY_CLASS * 3:
        x = torch.randn(2)
        result, (returned, _) = compiled(x, value)
        same(result, x.sin() + 1)
        assert returned is value and Seen.last[0] is value
    ((_, record),) = records(compiled)
    assert not record.reasons and not record.breaks
    before = _native.state()
    compiled(torch.ones(2), complex)
    assert _native.state()["hits"] == before["hits"] + 1


USES: list[Program] = [
    lambda x, value: x + (1 if value is None else 2),
    lambda x, value: x + (1 if None is value else 2),
    lambda x, value: x + (value is not True),
    lambda x, value: x + isinstance(value, (tuple, torch.Tensor)),
    lambda x, value: (x, type(value), callable(value)),
    lambda x, value: x + (2 if value.__class__ in (int, str) else 3),
    lambda x, value: (x, f"{value}"[:4]),
    lambda x, value: x + (1 if hasattr(value, "__len__") else 2),
    lambda x, value: x * value if isinstance(value, float) else x,
    lambda x, value: (x, copy.copy(x) is value),
]


@pytest.mark.parametrize("program", USES)
def test_an_argument_of_any_class_that_is_used(program: Program) -> None:
    compiled = smelt.compile(program)
    for value in OF_ANY_CLASS * 2:
        x = torch.randn(2)
        same(compiled(x, value), program(x, value))
    assert {r.kind.id for _, record in records(compiled) for r in record.reasons} <= {"recompile-limit"}


def test_an_argument_of_any_class_is_stored() -> None:
    """A module stores parameters and modules in dictionaries of their own; `raise` takes exceptions alone."""
    module = nn.Linear(1, 1)

    def program(x: torch.Tensor, value: Any) -> Any:
        module.extra = value
        try:
            raise value
        except Exception as error:
            return x + 1, type(error), sorted(dict(module.named_children()))

    compiled = smelt.compile(program)
    for value in OF_ANY_CLASS * 2:
        x, found = torch.randn(2), []
        for function in (program, compiled):
            found.append(function(x, value))
            del module.extra
        same(found[1], found[0])


def test_flags_beside_a_value_that_is_read() -> None:
    dtypes = torch.float32, torch.bool, torch.int64, torch.int32

    def program(x: torch.Tensor, flag: bool, other: bool | None, dtype: torch.dtype) -> torch.Tensor:
        y = x.sin() if flag else x.cos()
        return (y if other is None else y + 1).to(dtype)

    compiled = smelt.compile(program)
    for step in range(CALLS * 2):
        arguments = bool(step % 2), (None, True, False)[step % 3], dtypes[step % 4]
        x = torch.randn(3)
        same(compiled(x, *arguments), program(x, *arguments))
    assert not [r for _, record in records(compiled) for r in record.reasons]
