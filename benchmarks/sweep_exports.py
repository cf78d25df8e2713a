"""Exported models in another process and in C++, beside the compiled call; and calls that a program must refuse.

    python -m benchmarks.sweep_exports [--kind models|transformers|timm|others ...] [--only PART-OF-A-NAME ...] [--all]
        [--driver FOLDER] [--limit SECONDS] [--out DIR]

models: the ten of `make bench`. transformers, timm: 20 each of the models of `sweep_models` (`--all`: all of them). others:
a U-Net, an LSTM and a detector, written here. Each is exported with a dynamic batch, text also with a dynamic length; where
the export asks for a narrower range, with that. A program is saved, then loaded by a process without the compiler and by a
C++ program: results for up to three sets of sizes must have the compiled call's bits.

Each argument is then passed with sizes out of range, another dtype, another rank, in another layout and with another type,
and left out: each such call must be an error that names the argument, in C++ with the same text.

A row: the size of the file without its weights, the time of `smelt.load` with the weights in a file beside, how many
calls were refused, and the steps that failed. `--driver` keeps the C++ program, whose compilation takes minutes.
"""

from __future__ import annotations

import argparse
import datetime
import inspect
import os
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F

import smelt
from benchmarks import errors, measure, models, sweep_models, weights
from benchmarks.compare_training import no_worse
from benchmarks.models import tensors
from benchmarks.sweep_program_files import build
from smelt.errors import InputError
from smelt.exported.program import Program

RESULTS = Path(__file__).parent / "results"
BATCH, LENGTH = smelt.Dim("batch", min=1, max=16), smelt.Dim("length", min=2, max=64)
TOLERANCE = (
    1e-3  # of the largest magnitude: eager and the compiled call are compared closely in `sweep_models`
)
MOST_SIZE = 250_000  # bytes of a program of the ten without weights

TRANSFORMERS = (
    "albert", "bart", "bert", "bloom", "deberta-v2", "distilbert", "electra", "roberta", "falcon", "gemma3_text", "gpt2",
    "gpt_neox", "llama", "mamba", "mixtral", "modernbert", "opt", "phi3", "qwen3", "t5",
)  # fmt: skip
TIMM = (
    "beit", "coat", "convnext", "deit", "densenet", "efficientnet", "eva", "ghostnet", "hrnet", "inception_v3",
    "levit", "maxxvit", "mlp_mixer", "mobilenetv3", "nfnet", "pvt_v2", "resnet", "swin_transformer_v2", "vgg",
    "vision_transformer",
)  # fmt: skip

_LOADER = """
import sys, time, torch, smelt
folder = sys.argv[1]
seconds = []
for _ in range(5):
    start = time.perf_counter()
    program = smelt.load(folder + "/beside.smelt", folder + "/beside.safetensors")
    seconds.append(time.perf_counter() - start)
program = smelt.load(folder + "/m.smelt")
calls = torch.load(folder + "/python.pt", weights_only=False)
results = [program(**call) for call in calls]
compiler = "smelt.callables smelt.capture smelt.codegen smelt.guards smelt.ops smelt.tracing llvmlite sympy torch._dynamo"
imported = [m for m in sys.modules if m.startswith(tuple(compiler.split()))]
torch.save((results, seconds, imported), folder + "/python-results.pt")
"""

Inputs = dict[str, Any]
Dims = dict[str, dict[int, Any]]


# ---------------------------------------------------------------------------------------------------- what is exported


class UNet(nn.Module):
    """Two levels down and up, with skip connections."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()

        def block(before: int, after: int) -> nn.Module:
            layers: list[nn.Module] = []
            for channels in (before, after):
                layers += [nn.Conv2d(channels, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
            return nn.Sequential(*layers)

        self.down = nn.ModuleList([block(3, width), block(width, 2 * width)])
        self.bottom = block(2 * width, 4 * width)
        sizes = ((4 * width, 2 * width), (2 * width, width))
        self.rise = nn.ModuleList([nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in sizes])
        self.up = nn.ModuleList([block(a, b) for a, b in sizes])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """`image`: (batch, 3, height, width) -> (batch, 2, height, width)."""
        x, skips = image, []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for rise, block in zip(self.rise, self.up):
            x = block(torch.cat([rise(x), skips.pop()], 1))
        return self.head(x)


class Tagger(nn.Module):
    """A bidirectional LSTM of two layers over embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.lstm = nn.LSTM(16, 12, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 5)

    def forward(self, tokens: torch.Tensor) -> Any:
        """`tokens`: (batch, length) -> scores (batch, length, 5), and the last states."""
        states, last = self.lstm(self.embedding(tokens))
        return self.head(states), last


class Detector(nn.Module):
    """A one-stage detector: two levels of features, boxes from the centers of cells, the best of all levels, and a matrix
    that suppresses overlapping boxes."""

    def __init__(self, classes: int = 4, width: int = 16, best: int = 20) -> None:
        super().__init__()
        self.best, self.classes = best, classes
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, 4, 3), nn.BatchNorm2d(width), nn.SiLU())
        self.deep = nn.Sequential(nn.Conv2d(width, width, 3, 2, 1), nn.BatchNorm2d(width), nn.SiLU())
        self.lateral = nn.Conv2d(width, width, 1)
        self.scores, self.sides = nn.Conv2d(width, classes, 3, 1, 1), nn.Conv2d(width, 4, 3, 1, 1)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """`images`: (batch, 3, height, width). Boxes (batch, best, 4), scores and labels (batch, best)."""
        fine = self.stem(images)
        coarse = self.deep(fine)
        fine = self.lateral(fine) + F.interpolate(coarse, size=fine.shape[-2:], mode="nearest")
        boxes, scores = zip(*(self._level(x, stride) for x, stride in ((fine, 4), (coarse, 8))))
        boxes, scores = torch.cat(boxes, 1), torch.cat(scores, 1)
        best, at = scores.flatten(1).topk(self.best)
        boxes = boxes.gather(1, (at // self.classes)[..., None].expand(-1, -1, 4))
        labels = at % self.classes
        same = labels[:, :, None] == labels[:, None]
        overlap = (self._overlaps(boxes) * same).triu(1).amax(1)
        return {"boxes": boxes, "scores": torch.where(overlap > 0.5, 0.0, best), "labels": labels}

    def _level(self, x: torch.Tensor, stride: int) -> tuple[torch.Tensor, torch.Tensor]:
        ys, xs = (torch.arange(n, device=x.device, dtype=x.dtype) * stride + stride / 2 for n in x.shape[-2:])
        y, x_ = torch.meshgrid(ys, xs, indexing="ij")
        centers = torch.stack([x_, y], -1).reshape(-1, 2)
        sides = self.sides(x).exp().clamp(max=50).flatten(2).transpose(1, 2) * stride
        boxes = torch.cat([centers - sides[..., :2], centers + sides[..., 2:]], -1)
        return boxes, self.scores(x).sigmoid().flatten(2).transpose(1, 2)

    def _overlaps(self, boxes: torch.Tensor) -> torch.Tensor:
        low = torch.maximum(boxes[:, :, None, :2], boxes[:, None, :, :2])
        high = torch.minimum(boxes[:, :, None, 2:], boxes[:, None, :, 2:])
        common = (high - low).clamp(min=0).prod(-1)
        area = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
        return common / (area[:, :, None] + area[:, None] - common)


def _unet() -> tuple[nn.Module, list[Inputs], Dims]:
    sizes = ((2, 3, 32, 48), (5, 3, 48, 32), (1, 3, 64, 64))
    return (
        UNet(),
        [{"image": torch.randn(size)} for size in sizes],
        {"image": {0: BATCH, 2: smelt.Dim.AUTO, 3: smelt.Dim.AUTO}},
    )


def _lstm() -> tuple[nn.Module, list[Inputs], Dims]:
    sizes = ((2, 16), (3, 24), (1, 7))
    return (
        Tagger(),
        [{"tokens": torch.randint(0, 100, size)} for size in sizes],
        {"tokens": {0: BATCH, 1: LENGTH}},
    )


def _detector() -> tuple[nn.Module, list[Inputs], Dims]:
    return Detector(), [{"images": torch.rand(n, 3, 64, 96)} for n in (2, 5, 1)], {"images": {0: BATCH}}


OTHERS: dict[str, Callable[[], tuple[nn.Module, list[Inputs], Dims]]] = {
    "U-Net": _unet,
    "LSTM": _lstm,
    "detector": _detector,
}


def names(kind: str, everything: bool) -> list[str]:
    """The models of a kind."""
    if kind in ("models", "others"):
        return list({"models": models.MODELS, "others": OTHERS}[kind])
    return (
        sweep_models.BUILDERS[kind][0]()
        if everything
        else list({"transformers": TRANSFORMERS, "timm": TIMM}[kind])
    )


def built(kind: str, name: str) -> tuple[nn.Module, list[Inputs], Dims]:
    """A model in eval mode, the keyword arguments of its calls and the declarations of its sizes."""
    if kind == "others":
        model, calls, dims = OTHERS[name]()
        weights.fill(model)
        return model.eval(), calls, dims
    if kind == "models":
        model, inputs = models.build(name)
        for module in model.modules():
            if hasattr(module, "config"):
                module.config.use_cache = False
    else:
        model, inputs = (
            sweep_models.architecture(name, tiny=True)
            if kind == "transformers"
            else sweep_models.family(name)
        )
    first = next(iter(inspect.signature(model.forward).parameters))
    inputs = {first if key == "x" else key: x for key, x in inputs.items()}
    is_text = not next(iter(inputs.values())).is_floating_point()
    sizes = ((2, 16), (3, 24), (1, 7)) if is_text else ((2,), (5,), (1,))
    dims = {0: BATCH, 1: LENGTH} if is_text else {0: BATCH}
    return model.eval(), [_sized(inputs, size) for size in sizes], dict.fromkeys(inputs, dims)


def _sized(inputs: Inputs, size: tuple[int, ...]) -> Inputs:
    """Other values of other first sizes."""
    made = {}
    for name, x in inputs.items():
        shape = (*size, *x.shape[len(size) :])
        is_float = x.is_floating_point()
        made[name] = torch.randn(shape) if is_float else torch.randint(int(x.min()), int(x.max()) + 1, shape)
    return made


# ------------------------------------------------------------------------------------------------------- bad arguments


def bad_calls(model: nn.Module, call: Inputs, dims: Dims) -> Iterator[tuple[str, str, Inputs]]:
    """Calls that the program of a model must refuse: what is wrong, the argument, and all arguments."""
    others = [name for name, d in dims.items() if d]
    for name, x in call.items():
        for dim in range(x.dim()):
            d = dims[name].get(dim)
            if d is smelt.Dim.AUTO:
                continue
            sizes = (x.shape[dim] + 1,) if d is None else (d.min - 1, d.max + 1)
            for size in sizes:
                yield f"size {size} of {dim}", name, {**call, name: _resized(x, dim, size)}
            if d is not None and len(others) > 1:
                yield f"another size of {dim}", name, {**call, name: _resized(x, dim, x.shape[dim] + 1)}
        for dtype in (torch.float64, torch.bfloat16, torch.int32, torch.bool):
            yield f"{dtype}", name, {**call, name: x.to(dtype)}
        yield "a rank more", name, {**call, name: x[None]}
        yield "a rank less", name, {**call, name: x[0]}
        yield "other strides", name, {**call, name: x.transpose(0, -1).contiguous().transpose(0, -1)}
        for value in (None, 3, "text", [x]):
            yield f"a {type(value).__name__}", name, {**call, name: value}
        yield "left out", name, {key: v for key, v in call.items() if key != name}
    yield "unknown", "unheard_of", {**call, "unheard_of": next(iter(call.values()))}
    parameters = inspect.signature(model.forward).parameters.values()
    for p in parameters:
        if p.name not in call and p.default is None:
            yield "passed", p.name, {**call, p.name: next(iter(call.values()))}


def _resized(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    return torch.cat([x] * (size // x.shape[dim] + 1), dim).narrow(dim, 0, size).contiguous()


def refusal(program: Program, call: Inputs) -> str | None:
    """The text of a call's error, or None for a result."""
    try:
        program(**call)
    except (InputError, TypeError) as error:
        return f"InputError: {error}"
    return None


# ------------------------------------------------------------------------------------------------------------ one model


def exported(model: nn.Module, calls: list[Inputs], dims: Dims) -> Program | str:
    """The program of a model, or why there is none."""
    try:
        return smelt.export(model, (), calls[0], dynamic_shapes=dims)
    except Exception as error:
        return _first_line(error)


def declared_by(error: str, dims: Dims) -> Dims | None:
    """The declarations with the one that an error tells to write, which narrows a range; None if it tells another."""
    text = re.search(r"Declare dynamic_shapes=(\{.*: Dim\(.*\)\}\})$", error)
    if text is None:
        return None
    [[(_, narrow)]] = [of.items() for of in eval(text[1], {"Dim": smelt.Dim}).values()]

    def narrowed(d: Any) -> Any:
        return narrow if isinstance(d, smelt.Dim) and d.name == narrow.name else d

    return {key: {dim: narrowed(d) for dim, d in of.items()} for key, of in dims.items()}


def _is_within(call: Inputs, dims: Dims) -> bool:
    return all(
        d.min <= call[name].shape[dim] <= d.max
        for name, of in dims.items()
        for dim, d in of.items()
        if isinstance(d, smelt.Dim)
    )


def _sizes_text(dims: Dims) -> str:
    named = {
        d.name: f"{d.name} {d.min} to {d.max}"
        for of in dims.values()
        for d in of.values()
        if isinstance(d, smelt.Dim)
    }
    return ", ".join(named.values())


def row(kind: str, name: str, driver: Path) -> dict[str, Any]:
    """What is found of a model. The key "failed" holds the step and the reason of each failure."""
    torch.manual_seed(0)
    try:
        model, calls, dims = built(kind, name)
        with torch.no_grad():
            eager = [tensors(model(**call)) for call in calls]
    except Exception as error:
        return {"skipped": _first_line(error)}
    program = exported(model, calls, dims)
    while isinstance(program, str):
        narrower = declared_by(program, dims)
        if narrower is None:
            return {"failed": [f"export: {program}"]}
        dims = narrower
        program = exported(model, calls, dims)
    found: dict[str, Any] = {"failed": [], "sizes": _sizes_text(dims)}
    calls = [call for call in calls if _is_within(call, dims)]
    with torch.no_grad():
        compiled = smelt.compile(model, fullgraph=True)
        for key, of in dims.items():
            for dim, d in of.items():
                bounds = {} if d is smelt.Dim.AUTO else {"min": d.min, "max": d.max}
                smelt.mark_dynamic(calls[0][key], dim, **bounds)
        want = [tensors(compiled(**call)) for call in calls]
    for call, w, e in zip(calls, want, eager):
        if errors.of_lists(w, e) < TOLERANCE:
            continue
        float64 = sweep_models.beside_float64(model, call, smelt=w, eager=e)
        if not no_worse(float64):
            found["failed"].append(f"compile: differs from eager; from float64: {float64}")
    with tempfile.TemporaryDirectory() as folder:
        _in_other_processes(program, model, calls, dims, want, found, driver, Path(folder))
    return found


def _in_other_processes(
    program: Program,
    model: nn.Module,
    calls: list[Inputs],
    dims: Dims,
    want: list[list[torch.Tensor]],
    found: dict[str, Any],
    driver: Path,
    folder: Path,
) -> None:
    failed: list[str] = found["failed"]
    program.save(folder / "m.smelt")
    program.save(folder / "beside.smelt", folder / "beside.safetensors")
    found["bytes"] = (folder / "beside.smelt").stat().st_size
    bad = list(bad_calls(model, calls[0], dims))
    refusals = [refusal(program, call) for _, _, call in bad]
    found["bad"], found["refused"] = len(bad), 0
    for (what, argument, _), text in zip(bad, refusals):
        is_right = text is not None and argument in text
        found["refused"] += is_right
        if not is_right:
            failed.append(f"{argument}, {what}: {'accepted' if text is None else text}")

    torch.save(calls, folder / "python.pt")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command: list[Any] = [sys.executable, "-c", _LOADER, folder]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        failed.append(f"load: {_last_line(done.stderr)}")
    else:
        results, seconds, imported = torch.load(folder / "python-results.pt", weights_only=False)
        found["load_ms"] = 1e3 * min(seconds)
        failed += [f"load: imports {m}" for m in imported[:1]]
        failed += differences("load", [tensors(r) for r in results], want)

    cpp = [((), tuple(call.items())) for call in (*calls, *(call for _, _, call in bad))]
    (folder / "cpp.pt").write_bytes(torch._C._pickle_save(tuple(cpp)))
    command = [driver / "run_program", *(folder / name for name in ("m.smelt", "cpp.pt", "cpp-results.pt"))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        failed.append(f"C++: {_last_line(done.stderr) or f'exit {done.returncode}'}")
        return
    results = torch._C._pickle_load_obj((folder / "cpp-results.pt").read_bytes())
    failed += differences("C++", [tensors(r) for r in results[: len(calls)]], want)
    for (what, argument, _), text, wanted in zip(bad, results[len(calls) :], refusals):
        if wanted is not None and text != wanted:
            failed.append(f"C++, {argument}, {what}: {text!r:.150}, Python {wanted!r:.150}")


def differences(step: str, found: list[list[torch.Tensor]], want: list[list[torch.Tensor]]) -> list[str]:
    """The calls whose results do not have the compiled call's bits."""

    def same(a: torch.Tensor, b: torch.Tensor) -> bool:
        alike = a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
        return alike and torch.equal(a.nan_to_num(), b.nan_to_num())

    return [
        f"{step}: call {i} differs"
        for i, (f, w) in enumerate(zip(found, want))
        if not w or len(f) != len(w) or not all(map(same, f, w))
    ]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:400]


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][:400]


def _send_row(kind: str, name: str, options: Any, pipe: Any) -> None:
    signal.setitimer(signal.ITIMER_PROF, options.limit)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        pipe.send(row(kind, name, options.driver))
    except Exception as error:
        pipe.send({"failed": [_first_line(error)]})


def in_a_process(kind: str, name: str, options: Any) -> dict[str, Any]:
    """A row, measured in a process of its own: a crash is a row. This process forks while it has one thread."""
    context = get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_send_row, args=(kind, name, options, theirs))
    process.start()
    theirs.close()
    try:
        found = dict(ours.recv())
    except EOFError:
        process.join()
        found = {"failed": [f"died: {process.exitcode}"]}
    process.join()
    return found


# ------------------------------------------------------------------------------------------------------------ the table


def line(kind: str, name: str, found: dict[str, Any]) -> str:
    """A row of the table."""
    if "skipped" in found:
        return f"| {kind} | {name} | | | | | skipped: {found['skipped']} |"
    if "bytes" not in found:
        return f"| {kind} | {name} | | | | | {'; '.join(found['failed'])} |"
    size = f"{found['bytes'] / 1e3:.0f}"
    milliseconds = f"{found['load_ms']:.1f}" if "load_ms" in found else ""
    outcome = "; ".join(found["failed"]) or "ok"
    sizes = found["sizes"]
    return f"| {kind} | {name} | {sizes} | {size} | {milliseconds} | {found['refused']} of {found['bad']} | {outcome} |"


def table(rows: dict[tuple[str, str], dict[str, Any]], command: str) -> str:
    """The table, with its totals."""
    measured = [found for found in rows.values() if "skipped" not in found]
    bad, refused = (sum(found.get(key, 0) for found in measured) for key in ("bad", "refused"))
    right = sum(not found["failed"] for found in measured)
    facts = (
        str(datetime.date.today()), measure.machine()["cpu"], f"torch {torch.__version__}",
        f"transformers {transformers.__version__}", f"timm {version('timm')}",
    )  # fmt: skip
    return "\n".join(
        [
            "# Exported models",
            "",
            f"{', '.join(facts)}, one thread. Command: `{command}`.",
            "",
            f"{right} of {len(measured)} models: exported with dynamic sizes, saved, loaded in another process without the "
            "compiler and in C++, with the compiled call's bits for two or three sets of sizes. Of "
            f"{bad} calls with a bad argument, {refused} are errors that name it, in C++ with the same text.",
            "",
            "| kind | model | sizes | kB without weights | load without weights, ms | refused | outcome |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *(line(*key, found) for key, found in rows.items()),
            "",
        ]
    )


KINDS = ("models", "others", "timm", "transformers")


def main() -> None:
    """Measure the models and write the table after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--all", action="store_true", help="all models of transformers and timm")
    parser.add_argument(
        "--driver", type=Path, default=None, help="the folder of the C++ program, built if it is not there"
    )
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of CPU time a model")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        options.driver = options.driver or Path(folder)
        if not (options.driver / "run_program").exists():
            options.driver.mkdir(parents=True, exist_ok=True)
            build(options.driver)
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for kind in options.kind or KINDS:
            for name in names(kind, options.all):
                if options.only and not any(part in name for part in options.only):
                    continue
                rows[kind, name] = in_a_process(kind, name, options)
                print(line(kind, name, rows[kind, name]), flush=True)
                if options.out:
                    options.out.mkdir(parents=True, exist_ok=True)
                    command = "python -m benchmarks.sweep_exports" + " --all" * options.all
                    (options.out / "exports.md").write_text(table(rows, command))


if __name__ == "__main__":
    main()
