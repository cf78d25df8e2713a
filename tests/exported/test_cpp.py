"""Programs in C++ processes: the runtime that `smelt package` ships gives the bits of the program in Python."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import smelt
from benchmarks.sweep_program_files import SOURCES, build
from smelt.cli.app import app
from smelt.errors import InputError
from smelt.exported import cpp_project, program_file
from smelt.exported.cpp_project import example_arguments, runtime_files
from smelt.exported.program import Program
from smelt.exported.program_file import Contents
from smelt.exported.weights_file import write_weights
from tests.harness.exported import exported_model, same, section, tensors, with_section
from tests.harness.inner_graphs import MODELS, REFUSED, made

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler"),
    pytest.mark.timeout(900),  # most of it is the compilation of the runtime
]


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder of the programs in `tests/exported/cpp/`, built where that has not been done from these sources for this
    torch."""
    compiler = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    key = hashlib.sha256(repr((torch.__version__, compiler, inspect.getsource(build))).encode())
    for path in (*runtime_files().values(), *sorted(SOURCES.iterdir()), Path(cpp_project.__file__)):
        key.update(path.read_bytes())
    folder = ROOT / "build/cpp" / key.hexdigest()[:16]
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            build(Path(made, "programs"))
            Path(made, "programs").rename(folder)
    return folder


@pytest.fixture
def driver(built: Path) -> Path:
    return built / "run_program"


Call = tuple[tuple[Any, ...], dict[str, Any]]


def started(
    executable: Path, folder: Path, calls: Sequence[Any], *options: object
) -> subprocess.CompletedProcess[str]:
    """Runs a C++ program on the exported program `m.smelt` in `folder` and on the `calls` that it takes."""
    (folder / "calls.pt").write_bytes(torch._C._pickle_save(tuple(calls)))
    command = [executable, *(folder / name for name in ("m.smelt", "calls.pt", "results.pt")), *options]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=250)


def results_of(executable: Path, folder: Path, calls: Sequence[Any], *options: object) -> Any:
    """What the C++ program writes."""
    done = started(executable, folder, calls, *options)
    assert done.returncode == 0, done.stderr
    return torch._C._pickle_load_obj((folder / "results.pt").read_bytes())


def in_cpp(driver: Path, folder: Path, program: Program, calls: list[Call], threads: int = 0) -> list[Any]:
    """The results of calls in a C++ process; of one that raises InputError its text."""
    program.save(folder / "m.smelt")
    pairs = [(args, tuple(kwargs.items())) for args, kwargs in calls]
    return list(results_of(driver, folder, pairs, threads))


def in_python(program: Program, calls: list[Call]) -> list[Any]:
    results = []
    for args, kwargs in calls:
        try:
            results.append(program(*args, **kwargs))
        except (InputError, TypeError) as error:
            results.append(f"InputError: {error}")
    return results


# ---- models


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "T5", "ResNet-50", "Swin-tiny"])
def test_model(name: str, driver: Path, tmp_path: Path) -> None:
    """Dynamic sizes, several threads: the bits of the program in Python."""
    made = exported_model(name)
    program = made.program
    calls: list[Call] = [((), call) for call in made.calls]
    wanted = in_python(program, calls)  # the compiled call's bits: test_exported_models.py
    results = in_cpp(driver, tmp_path, program, calls, threads=2)
    for result, want in zip(results, wanted, strict=True):
        assert tensors(want) and len(tensors(result)) == len(tensors(want))
        assert all(map(same, tensors(result), tensors(want)))


# ---- arguments and results


class Nest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(
        self, batch: Any, pair: Any, *rest: Any, scale: float = 2.0, mode: str = "sum", **more: Any
    ) -> Any:
        y = self.layer(batch["x"]) * scale + pair[0]
        y = y.sum(0) if mode == "sum" else y
        return {"y": y, "more": [r + 1 for r in rest], "of": (more["a"], pair[1] * 2, None, mode)}


def nest() -> tuple[Program, Call]:
    torch.manual_seed(0)
    rows = smelt.Dim("rows", min=1, max=9)
    args = ({"x": torch.randn(3, 4)}, (torch.randn(3), 5), torch.ones(2))
    kwargs = {"scale": 0.5, "a": torch.zeros(1)}
    dims = {"batch": {"x": {0: rows}}, "pair": None, "rest": None, "scale": None, "a": None}
    return smelt.export(Nest(), args, kwargs, dynamic_shapes=dims), (args, kwargs)


def test_arguments_and_messages(driver: Path, tmp_path: Path) -> None:
    program, (args, kwargs) = nest()
    x, (y, n), one = args
    calls: list[Call] = [
        (args, kwargs),
        (({"x": torch.randn(9, 4)}, (y, n), one), kwargs),
        ((x, (y, n), one), {**kwargs, "mode": "sum"}),
        ((), {}),
        (args, {}),
        ((x, (y, n)), kwargs),
        ((x, (y, n), one, one), kwargs),
        (args, {**kwargs, "b": y}),
        ((x,), {**kwargs, "batch": x}),
        ((x, (y, n), one), {**kwargs, "mode": "mean"}),
        ((x, (y, n), one), {**kwargs, "scale": 0.25}),
        ((x, (y, n), one), {**kwargs, "scale": 1}),
        ((x, (y, 6), one), kwargs),
        ((x, (y, n, 1), one), kwargs),
        ((x, [y, y], one), kwargs),
        (({"z": x["x"]}, (y, n), one), kwargs),
        (({"x": torch.randn(10, 4)}, (y, n), one), kwargs),
        (({"x": torch.randn(3, 5)}, (y, n), one), kwargs),
        (({"x": torch.randn(3, 4, 1)}, (y, n), one), kwargs),
        (({"x": torch.randn(3, 4).double()}, (y, n), one), kwargs),
        (({"x": torch.randn(4, 3).t()}, (y, n), one), kwargs),
        ((x["x"], (y, n), one), kwargs),
        ((x, (3, n), one), kwargs),
        ((x, (y, "text's"), one), kwargs),
    ]
    found, wanted = in_cpp(driver, tmp_path, program, calls), in_python(program, calls)
    texts = [w for w in wanted if isinstance(w, str)]
    assert len(texts) > 15 and len(wanted) - len(texts) == 3
    for f, w in zip(found, wanted, strict=True):
        assert same(f, w), (f, w)


class Sides(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclasses.dataclass(slots=True)
class Slotted:
    x: torch.Tensor


@dataclasses.dataclass
class Options:
    sides: Sides
    scale: float
    others: list[Slotted]


def of_fields(options: Options, sides: Sides) -> Any:
    y = options.sides.left * options.scale + options.sides[1] + options.others[0].x
    left, right = sides
    return {"y": y - left + right, "options": options, "sides": sides, "made": Slotted(y)}


def test_named_tuples_and_dataclasses(driver: Path, tmp_path: Path) -> None:
    """C++ passes the fields, as a tuple or a dict, and gets a dict; arguments are returned as they were passed."""
    x, y, z = torch.randn(3), torch.randn(3), torch.randn(3)
    arguments = Options(Sides(x, y), 2.0, [Slotted(z)]), Sides(z, x)
    program = smelt.export(of_fields, arguments)
    sides, swapped = {"left": x, "right": y}, {"right": y, "left": x}
    wanted = program(*arguments)
    calls: list[Call] = [
        (((sides, 2.0, [{"x": z}]), {"left": z, "right": x}), {}),
        ((((x, y), 2.0, [(z,)]), {"right": x, "left": z}), {}),
        (((swapped, 2.0, [{"x": z}]), (z, x)), {}),
        (((sides, 3.0, [{"x": z}]), (z, x)), {}),
        (((sides, 2.0), (z, x)), {}),
        (((sides, 2.0, [{"x": z}]), {"left": z, "rigth": x}), {}),
        ((((x, y.double()), 2.0, [{"x": z}]), (z, x)), {}),
        ((x, (z, x)), {}),
    ]
    found = in_cpp(driver, tmp_path, program, calls)
    for f, ((options, others), _) in zip(found[:3], calls):
        result = {"y": wanted["y"], "options": options, "sides": others, "made": {"x": wanted["made"].x}}
        assert same(f, result), f
    for text, what in zip(
        found[3:],
        (
            "options.scale must be 2.0, got 3.0",
            "options must be a tests.exported.test_cpp.Options, got a tuple of length 2",
            "sides must be a tests.exported.test_cpp.Sides, got a dict with keys ['left', 'rigth']",
            "options.sides[1] must have dtype torch.float32, got torch.float64",
            "options must be a tests.exported.test_cpp.Options, got a Tensor of (3,)",
        ),
        strict=True,
    ):
        assert isinstance(text, str) and what in text, text


@pytest.mark.skipif(REFUSED, reason="torch.cond calls torch.compile there, which breaks the graph")
@pytest.mark.parametrize("name", MODELS)
def test_graphs_inside_of_graphs(name: str, driver: Path, tmp_path: Path) -> None:
    _, args, program = made(name)
    calls: list[Call] = [(of, {}) for of in args]
    found = in_cpp(driver, tmp_path, program, calls, threads=4)
    assert all(map(same, found, in_python(program, calls)))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = x * 2
        return self.last + self.calls


def test_state_is_the_programs(driver: Path, tmp_path: Path) -> None:
    program = smelt.export(Counter(), (torch.ones(2),))
    calls: list[Call] = [((torch.full((2,), float(i)),), {}) for i in range(4)]
    found = in_cpp(driver, tmp_path, program, calls)
    assert all(map(same, found, in_python(program, calls)))


def test_numbers_of_arguments(driver: Path, tmp_path: Path) -> None:
    def scaled(x: torch.Tensor, n: int, f: float) -> Any:
        return x * (n // 2) + f**2, n + 1, x.shape[0] * 2

    x = torch.randn(6, 2)
    program = smelt.export(scaled, (x, 7, 0.5), dynamic_shapes=({0: smelt.Dim("n", max=20)}, None, None))
    calls: list[Call] = [
        ((x, 7, 0.5), {}),
        ((torch.randn(20, 2), 7, 0.5), {}),
        ((x, 8, 0.5), {}),
        ((x, 7, 1.5), {}),
    ]
    assert all(map(same, in_cpp(driver, tmp_path, program, calls), in_python(program, calls)))


def test_sixteen_threads(driver: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 2))
    x = torch.randn(3, 4)
    program = smelt.export(model, (x,), dynamic_shapes=[{0: smelt.Dim("n", max=99)}])
    calls: list[Call] = [((torch.randn(n, 4),), {}) for n in (2, 3, 17, 99, 100)]
    found = in_cpp(driver, tmp_path, program, calls, threads=16)
    assert all(map(same, found, in_python(program, calls)))


# ---- methods and weights


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 4)
        self.register_buffer("calls", torch.zeros(()))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.relu(self.inner(x))

    def decode(self, z: torch.Tensor) -> Any:
        return self.outer(z), self.calls * 1


def test_methods_and_new_weights(driver: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, z = torch.randn(3, 4), torch.randn(3, 6)
    rows = {0: smelt.Dim("rows", max=8)}
    program = smelt.export(
        Pair(), methods={"encode": (x,), "decode": (z,)}, dynamic_shapes={"decode": {"z": rows}}
    )
    other = {name: tensor.detach() for name, tensor in Pair().named_parameters()}
    calls: list[Any] = [
        ((x,), (), "encode"),
        ((z,), (), "decode"),
        ((torch.randn(8, 6),), (), "decode"),
        ((torch.randn(9, 6),), (), "decode"),
        ((x,), (), "code"),
        ((x,), (), None, other),
        ((x,), (), "encode"),
        ((z,), (), "decode", {"outer.bias": other["outer.bias"] + 1}),
        ((x,), (), None, {"outer.bias": torch.zeros(4), "inner.bias": torch.zeros(4)}),
        ((x,), (), None, {"outer.bias": torch.zeros(4, dtype=torch.int64)}),
        ((x,), (), None, {"bias": torch.zeros(4)}),
        ((z,), (), "decode"),
        ((x.clone().requires_grad_(),), (), "encode"),
    ]

    def in_python(args: Any, kwargs: Any, method: Any, weights: Any = None) -> Any:
        try:
            if weights is not None:
                program.update_weights(weights)
            return (program if method is None else program.method(method))(*args)
        except (InputError, KeyError) as error:
            return f"InputError: {error.args[0]}"

    program.save(tmp_path / "m.smelt")
    found = results_of(driver, tmp_path, calls)
    wanted = [in_python(*call) for call in calls]
    assert [isinstance(w, str) for w in wanted].count(True) == 6
    for f, w in zip(found, wanted, strict=True):
        assert same(f, w), (f, w)


def test_weights_change_while_threads_run(driver: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 4)
    smelt.export(nn.Linear(4, 64), (x,)).save(tmp_path / "m.smelt")
    sets = tuple({n: p.detach() for n, p in nn.Linear(4, 64).named_parameters()} for _ in range(2))
    (tmp_path / "sets.pt").write_bytes(torch._C._pickle_save(sets))
    results_of(driver, tmp_path, [((x,), ())], 4, tmp_path / "sets.pt")


def test_weights_beside_the_program(driver: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, beside = torch.randn(3, 4), tmp_path / "m.smelt.safetensors"
    program = smelt.export(nn.Linear(4, 6), (x,))
    program.save(tmp_path / "m.smelt", beside)
    other = nn.Linear(4, 6)
    for weights in (None, other.state_dict()):
        if weights is not None:  # another tool writes them
            write_weights(beside, weights)
            program.update_weights(weights)
        (found,) = results_of(driver, tmp_path, [((x,), ())])
        assert same(found, program(x))
    write_weights(beside, {"weight": torch.ones(4, 6), "bias": torch.ones(6)})
    done = started(driver, tmp_path, [])
    text = f"the weight weight must be torch.float32 of (6, 4), the file of weights {beside} has torch.float32 of (4, 6)"
    assert done.returncode == 2 and text in done.stderr, done
    beside.unlink()
    assert "its weights are in another file" in started(driver, tmp_path, []).stderr


def test_targets(driver: Path, tmp_path: Path) -> None:
    """The program takes the first target that the processor can run; code of a wider one would end the process."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), torch.randn(3, 4)
    levels = ("x86-64-v4", "x86-64-v2", "x86-64-v3")
    program = smelt.export(model, (x,), targets=levels)
    assert same(in_cpp(driver, tmp_path, program, [((x,), {})]), [program(x)])


# ---- gradients


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.second(x))


class GPT(nn.Module):
    """A small GPT; its head is tied to its embedding. Gives its loss and its logits."""

    def __init__(self, words: int = 64, width: int = 32, length: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> Any:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        logits = self.head(self.norm(self.blocks(x)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits


class Normed(nn.Module):
    """Buffers that training writes; the loss alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(x), y)


def trained_in_python(
    step: Any, named: Any, batches: list[Any], steps: int, rate: float
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses, and the gradients of the first step."""
    named = dict(named)
    optimizer = torch.optim.AdamW(named.values(), lr=rate, foreach=False)
    losses, gradients = [], {}
    for i in range(steps):
        result = step(*batches[i % len(batches)])
        loss = result if isinstance(result, torch.Tensor) else result[0]
        optimizer.zero_grad()
        loss.backward()
        gradients = gradients or {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients


def test_training_a_gpt(built: Path, tmp_path: Path) -> None:
    """Fifty steps of AdamW in C++: the losses of Python, where the compiled model and the program have the same bits."""
    torch.manual_seed(0)
    model = GPT()
    batches = [(torch.randint(64, (4, 16)), torch.randint(64, (4, 16))) for _ in range(3)]
    smelt.export(model, batches[0], gradients=True).save(tmp_path / "m.smelt")
    losses, _, gradients = results_of(built / "train_program", tmp_path, batches, 50, 0.003)
    program = smelt.load(tmp_path / "m.smelt")
    wanted, wanted_gradients = trained_in_python(program, program.named_parameters(), batches, 50, 0.003)
    run = smelt.compile(model, fullgraph=True)
    assert trained_in_python(run, model.named_parameters(), batches, 50, 0.003)[0] == wanted
    assert wanted[-1] < wanted[0] - 1
    assert len(gradients) == 28 and same(gradients, wanted_gradients)
    assert losses[0] == wanted[0] and losses == pytest.approx(
        wanted, rel=1e-5
    )  # libtorch's AdamW rounds otherwise


@pytest.mark.parametrize("n", [6, 9])
def test_training_with_buffers_and_other_sizes(n: int, built: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Normed()
    example = torch.randn(6, 4), torch.randint(3, (6,))
    rows = smelt.Dim("rows", min=2, max=9)
    smelt.export(model, example, dynamic_shapes=({0: rows}, {0: rows}), gradients=True).save(
        tmp_path / "m.smelt"
    )
    batches = [(torch.randn(n, 4), torch.randint(3, (n,)))]
    losses, state, gradients = results_of(built / "train_program", tmp_path, batches, 5, 0.01)
    program = smelt.load(tmp_path / "m.smelt")
    wanted, wanted_gradients = trained_in_python(program, program.named_parameters(), batches, 5, 0.01)
    assert gradients and same(gradients, wanted_gradients) and losses == pytest.approx(wanted, rel=1e-5)
    for name, tensor in program.state.items():
        assert torch.allclose(state[name], tensor, atol=1e-4), name


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).tanh()
        y = torch.cond(x.sum() > 0, lambda a: self.second(a).sigmoid() @ a, lambda a: a.cos() @ a, (h,))
        return (y + h).square().mean()


@pytest.mark.skipif(REFUSED, reason="torch.cond calls torch.compile there, which breaks the graph")
def test_training_with_graphs_inside_of_the_graph(built: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 4).abs()
    batches = [(-x,), (x,)]
    smelt.export(Choosing(), (x,), gradients=True).save(tmp_path / "m.smelt")
    losses, _, gradients = results_of(built / "train_program", tmp_path, batches, 6, 0.01)
    program = smelt.load(tmp_path / "m.smelt")
    wanted, wanted_gradients = trained_in_python(program, program.named_parameters(), batches, 6, 0.01)
    assert same(gradients, wanted_gradients) and losses == pytest.approx(wanted, rel=1e-5)


# ---- files


@pytest.fixture(scope="module", params=[False, True], ids=["inference", "gradients"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    path = tmp_path_factory.mktemp("whole") / "m.smelt"
    dims = [{0: smelt.Dim("n", max=9)}]
    smelt.export(model, (torch.randn(3, 4),), dynamic_shapes=dims, gradients=request.param).save(path)
    return path.read_bytes()


def refusal(driver: Path, folder: Path, data: bytes) -> str:
    (folder / "m.smelt").write_bytes(data)
    done = started(driver, folder, [])
    assert done.returncode == 2, done
    return done.stderr


def test_files_of_others_are_refused_with_what_to_do(driver: Path, data: bytes, tmp_path: Path) -> None:
    assert "not a program of smelt" in refusal(driver, tmp_path, b"PK" * 40)
    assert "a program of format 9" in refusal(driver, tmp_path, data[:8] + b"\x09" + data[9:])
    assert "bytes are expected" in refusal(driver, tmp_path, data[:-64])
    at = len(data) // 2
    assert "is damaged" in refusal(driver, tmp_path, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    tables = section(data, b"tables")
    version = torch.__version__.encode()
    other = tables.replace(version, b"9.9" + b"0" * (len(version) - 3))
    text = refusal(driver, tmp_path, with_section(data, b"tables", other))
    assert "its plans are for torch 9.9" in text and "C++ cannot compile the program again: export" in text
    other = tables.replace(b"s\x04avx2", b"s\x04ssse")
    if other != tables:
        assert "this processor lacks ssse" in refusal(driver, tmp_path, with_section(data, b"tables", other))


def test_damaged_files(built: Path, data: bytes, tmp_path: Path) -> None:
    """Flips, truncations and forged sections: refused, or right (benchmarks/sweep_program_files.py has more of them)."""
    (tmp_path / "m.smelt").write_bytes(data)
    command = [built / "fuzz_program", tmp_path / "m.smelt", tmp_path / "damaged.smelt", 400, 0]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    refused, loaded = (int(word) for word in done.stdout.split() if word.isdigit())
    assert refused + loaded == 400 and loaded > 20 and refused > 200


# ---- projects


def test_a_project_holds_its_program_and_the_runtime(tmp_path: Path) -> None:
    """`python -m benchmarks.sweep_program_files` builds one with CMake."""
    program, _ = nest()
    program.save(tmp_path / "m.smelt")
    folder = tmp_path / "project"
    done = CliRunner().invoke(app, ["package", str(tmp_path / "m.smelt"), "-o", str(folder)])
    assert done.exit_code == 0, done.output
    assert {"CMakeLists.txt", "main.cpp", "m.smelt", "smelt"} == {p.name for p in folder.iterdir()}
    assert (
        'make_dict({{std::string("x"), random({3, 4}, {4, 1}, at::kFloat)}})'
        in (folder / "main.cpp").read_text()
    )
    done = CliRunner().invoke(app, ["package", str(tmp_path / "none.smelt"), "-o", str(folder)])
    assert done.exit_code == 2


def read_contents(program: Program, folder: Path) -> Contents:
    program.save(folder / "m.smelt")
    return program_file.read(folder / "m.smelt")


def test_a_project_with_a_file_of_weights(tmp_path: Path) -> None:
    """Its example takes fields of classes as dicts."""
    x, a, b, c, d = (torch.ones(3) for _ in range(5))
    program = smelt.export(of_fields, (Options(Sides(x, a), 2.0, [Slotted(b)]), Sides(c, d)))
    assert (
        'make_dict({{std::string("left"), random({3}, {1}, at::kFloat)}, {std::string("right"), random('
        in (", ".join(example_arguments(read_contents(program, tmp_path).tables.methods[0])))
    )
    files = tmp_path / "w.smelt", tmp_path / "w.safetensors"
    smelt.export(nn.Linear(3, 2), (x,)).save(*files)
    folder = tmp_path / "project"
    command = ["package", str(files[0]), "-o", str(folder)]
    assert CliRunner().invoke(app, [*command, "--weights", str(tmp_path / "none")]).exit_code == 2
    refused = CliRunner().invoke(app, command)
    assert (
        refused.exit_code
        and "its weights are in another file" in str(refused.exception or "") + refused.output
    )
    assert CliRunner().invoke(app, [*command, "--weights", str(files[1])]).exit_code == 0
    text = 'load(argc > 1 ? argv[1] : "w.smelt", argc > 2 ? argv[2] : "w.safetensors")'
    assert text in (folder / "main.cpp").read_text() and (folder / "w.safetensors").is_file()
