"""Programs compute what the compiled call computes, in another process, without the compiler."""

from __future__ import annotations

import collections
import copy
import dataclasses
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt import _native
from smelt.errors import InputError
from smelt.exported import program_file
from smelt.exported.program import Program
from tests.harness.exported import results_elsewhere, same

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Outputs:
    logits: torch.Tensor
    count: int
    others: Any = None


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).eval()


def compiled(model: Any, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return smelt.compile(model, fullgraph=True)(*args, **kwargs)


def test_fixed_sizes(tmp_path: Path) -> None:
    model, x = mlp(), torch.randn(8, 16)
    program = smelt.export(model, (x,))
    assert same(program(x), compiled(model, x))
    [result] = results_elsewhere(program, [((x,), {})], tmp_path)
    assert same(result, compiled(model, x))
    assert repr(program) == "<smelt program Sequential(input)>"
    assert list(program.state) == list(model.state_dict())
    assert "torch.ops.aten.gelu" in program.graph and "is 0.weight" in program.graph
    program = smelt.load(tmp_path / "m.smelt")
    environment: dict[str, Any] = {}
    exec(program.code, environment)
    assert "torch.nn.functional.gelu" in program.code
    [result] = environment["forward"](x, *model.state_dict().values())
    assert torch.equal(result, model(x))


def test_dynamic_sizes(tmp_path: Path) -> None:
    with smelt.config.set(
        native_gemm=False
    ):  # a program generates a product only where its code covers all sizes
        _check_dynamic_sizes(tmp_path)


def _check_dynamic_sizes(tmp_path: Path) -> None:
    model, example = mlp(), torch.randn(8, 16)
    batch = smelt.Dim("batch", min=1, max=64)
    program = smelt.export(model, (example,), dynamic_shapes={"input": {0: batch}})
    calls = [torch.randn(n, 16) for n in (1, 2, 8, 33, 64)]
    run = smelt.compile(model, fullgraph=True, dynamic=True)
    with torch.no_grad():
        run(example)
        wanted = [run(x) for x in calls]
    results = results_elsewhere(program, [((x,), {}) for x in calls], tmp_path)
    assert all(map(same, results, wanted))


def softmax(x: torch.Tensor) -> torch.Tensor:
    """A row whose length is dynamic: kernels differ by the number of vectors in a row."""
    return torch.softmax(x * 2, -1) + x.mean(-1, keepdim=True)


def test_lengths_have_the_compiled_calls_bits() -> None:
    program = smelt.export(softmax, (torch.randn(4, 24),), dynamic_shapes=({1: smelt.Dim("n", max=300)},))
    run = smelt.compile(softmax, dynamic=True)
    for n in (24, 16, 32, 128, 256):  # others have the plan for all sizes
        x = torch.randn(4, n)
        assert same(program(x), run(x)), n


def test_the_last_plan_is_for_all_sizes() -> None:
    """Called alone, for sizes that other plans are for."""
    program = smelt.export(softmax, (torch.randn(4, 24),), dynamic_shapes=({1: smelt.Dim("n", max=300)},))
    contents = program._shared.contents()
    [target] = contents.tables.targets
    assert len(target.plans) > 2
    last = (contents.stored(target.plans[-1]), tuple(contents.state[name] for name in target.constants[-1]))
    program._plans._loaded = _native.ProgramPlans(contents.stored(target.code), (last,))
    for n in range(2, 301, 7):
        x = torch.randn(4, n)
        torch.testing.assert_close(program(x), softmax(x))
    with pytest.raises(InputError, match="from 2 to 300, got 301"):
        program(torch.randn(4, 301))


def nested(x: Any, batch: Any, *rest: Any, scale: float = 2.0, **named: Any) -> Any:
    y = x * scale + batch["a"][0] + rest[0] + named["z"].left
    return {
        "y": y,
        "again": y,
        "input": x,
        "pair": Pair(y.sum(), named["z"]),
        "list": [None, 1, 1.5, True, "text", x.shape, x.shape[0] * 3],
        "outputs": Outputs(y.t(), 7, (batch,)),
    }


def test_nested_structures() -> None:
    x, a, r, z = (torch.randn(4, 6) for _ in range(4))
    n = smelt.Dim("n", max=100)
    dynamic = {"x": {0: n}, "batch": {"a": [{0: n}]}, "rest": ({0: n},), "z": ({0: n}, None)}
    program = smelt.export(nested, (x, {"a": [a]}, r), {"z": Pair(z, 3)}, dynamic_shapes=dynamic)
    for size in (4, 9):
        x, a, r, z = (torch.randn(size, 6) for _ in range(4))
        args, kwargs = (x, {"a": [a]}, r), {"z": Pair(z, 3)}
        result, wanted = program(*args, **kwargs), nested(*args, **kwargs)
        outputs, others = result.pop("outputs"), wanted.pop("outputs")
        assert list(result) == list(wanted)
        torch.testing.assert_close(result["y"], wanted["y"])
        assert result["again"] is result["y"] and result["input"] is x
        assert type(result["pair"]) is Pair and result["pair"].right is kwargs["z"]
        assert result["list"] == wanted["list"] and type(result["list"][5]) is torch.Size
        assert type(outputs) is Outputs and outputs.count == others.count and outputs.others[0] is args[1]
        assert outputs.logits.data_ptr() == result["y"].data_ptr()


def test_arguments_bind_as_the_models() -> None:
    def f(a: Any, b: Any, c: Any = 3, *, d: Any = None) -> Any:
        return a - b * c

    x, y = torch.ones(2), torch.full((2,), 5.0)
    program = smelt.export(f, (x,), {"b": y})
    wanted = f(x, y)
    for result in (program(x, y), program(a=x, b=y), program(b=y, a=x), program(x, b=y, c=3, d=None)):
        assert same(result, wanted)
    with pytest.raises(TypeError, match="missing a required argument: 'b'"):
        program(x)
    with pytest.raises(InputError, match="c was left at its default 3"):
        program(x, y, 4)


class Counting(nn.Module):
    """Writes buffers in place, in layers and by assignment."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("steps", torch.zeros(3))
        self.register_buffer("last", torch.zeros(4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps[1] += 1
        self.last = self.last + self.norm(x)
        return self.last * self.steps[1]


def test_buffers_are_state(tmp_path: Path) -> None:
    model = Counting()
    eager, before = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    program = smelt.export(model, (torch.randn(4, 6),))
    for i in range(3):
        x = torch.randn(4, 6)
        with torch.no_grad():
            torch.testing.assert_close(program(x), eager(x))
        if i == 1:
            program.save(tmp_path / "m.smelt")
            program = smelt.load(tmp_path / "m.smelt")
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(program.state[name], value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert smelt.load(tmp_path / "m.smelt").state["steps"][1] == 2, "a call changes no file"


def test_aliases_and_writes() -> None:
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        z = y * 2
        return x, z, z.view(-1), y[0]

    x, y = torch.zeros(2, 3), torch.ones(2, 3)
    program = smelt.export(f, (x.clone(), y))
    first, z, flat, row = program(x, y)
    assert first is x and torch.equal(x, torch.ones(2, 3))
    assert flat.data_ptr() == z.data_ptr() and row.data_ptr() == y.data_ptr()
    with pytest.raises(InputError, match="x, y must share no memory"):
        program(y.view(2, 3), y)


def test_random_draws_are_the_generators() -> None:
    def f(x: Any) -> Any:
        return torch.nn.functional.dropout(x, 0.5, True)

    x = torch.ones(100)
    program = smelt.export(f, (x,))
    torch.manual_seed(1)
    result = program(x)
    torch.manual_seed(1)
    assert same(result, compiled(f, x))


def test_tied_weights_and_views_share_memory(tmp_path: Path) -> None:
    flat = torch.arange(12.0)

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight
            self.register_buffer("rows", flat.view(4, 3)[1:3])
            self.register_buffer("column", flat[2::3])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) + self.b(x) + self.rows.sum() + self.column.sum()

    model, x = Tied(), torch.randn(5, 3)
    program = smelt.export(model, (x,))
    program.save(tmp_path / "m.smelt")
    loaded = smelt.load(tmp_path / "m.smelt")
    assert sorted(loaded.state) == ["a.weight", "column", "rows"]
    assert same(loaded(x), compiled(model, x))
    loaded.state["rows"][0, 2] = -1
    assert loaded.state["column"][1] == -1
    for weight in loaded.state.values():
        assert weight.untyped_storage().data_ptr() % 64 == 0


def compiled_again(program: Program, tmp_path: Path, **changes: Any) -> tuple[Program, list[str]]:
    contents = program._shared.contents()
    targets = tuple(replace(t, **changes) for t in contents.tables.targets)
    changed = replace(contents, tables=replace(contents.tables, targets=targets))
    program_file.write(tmp_path / "other.smelt", changed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = smelt.load(tmp_path / "other.smelt")
    return loaded, [str(w.message) for w in caught]


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"torch": "1.0.0"}, "plans are for torch 1.0.0"),
        ({"needs": ("avx9",)}, "this processor lacks avx9"),
        ({"triple": "riscv64-unknown-linux-gnu"}, "its plans are for riscv64"),
    ],
)
def test_another_machine_compiles_again(tmp_path: Path, changes: Any, why: str) -> None:
    model, x = mlp(), torch.randn(8, 16)
    program = smelt.export(model, (x,), dynamic_shapes=[{0: smelt.Dim("n", max=64)}])
    loaded, messages = compiled_again(program, tmp_path, **changes)
    assert len(messages) == 1 and why in messages[0]
    for n in (8, 64):
        x = torch.randn(n, 16)
        assert same(loaded(x), program(x))


def test_this_processor_has_the_features_of_its_code() -> None:
    program = smelt.export(mlp(), (torch.randn(8, 16),))
    [target] = program._shared.contents().tables.targets
    assert _native.lacking(target.triple, target.needs) is None
