"""Models over sizes that change from call to call, each compiled once for all of them, against eager.

    python -m benchmarks.sweep_sizes models [--sets 30] [--seed 1]
    python -m benchmarks.sweep_sizes transformers|timm [--sets 4]
        [--only PART-OF-A-NAME ...] [--every N] [--modes eval,train] [--limit SECONDS] [--jobs N]
        [--why] [--rival] [--out DIR]

models: those of `sizes.py`, with random sets of sizes. transformers, timm: the models of `sweep_models`, with four sets:
batches and lengths of text; batches, heights and widths of pictures, or batches alone where eager takes no other pictures.
A model runs with `dynamic=True`. Outputs, and in train mode gradients and buffers, are compared with eager's; where
they are further apart than the tolerance, both are compared with eager in float64, and agree where smelt's error is at
most twice eager's, as in `sweep_models`; or where rounding alone decides, as next to the kink of a ReLU, whose gradient
jumps: the model in float64, compiled, gives what eager gives of it to one part in a thousand million. If not, in eval
mode, all is compared again with the running statistics of the model's own activations. A row says how many entries the
function, or one of its resume functions, came to have, and why graphs broke or calls ran eagerly. Each row is measured
in a process of its own on one thread. `--why` prints why captures began again.

`--rival` fills two columns, over the same calls: how many entries smelt makes by default (`dynamic=None`), and how often
torch.compile, by default and with the backend "eager", compiles the function or one of its resume functions.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import logging
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from benchmarks import errors, measure, sizes, weights

# isort: split
import torch
import transformers
from torch import nn
from torch._dynamo import convert_frame
from torch.utils._python_dispatch import TorchDispatchMode

import smelt
from benchmarks import sweep_models
from benchmarks.compare_training import no_worse, tensors
from smelt.report import inspect

TOLERANCE = 1e-4  # of the largest magnitude of a tensor
GRADIENT_TOLERANCE = 1e-3
EXACT = 1e-9  # the same of float64
FEW = 2  # entries that a model may have; one more where a size is 1, or comes to 1
TEXTS = ((2, 16), (3, 11), (5, 24), (2, 7))
# Sizes in use, of which no map at a stride of 32 is a single row or column, and at 64 none but of odd ones: a size of 0 or 1
# is a number, so that such maps have entries of their own, which is not what is counted here.
PICTURES = ((2, 160, 160), (3, 192, 160), (4, 128, 192), (2, 224, 224))
PATCHED = ((2, 140, 140), (3, 168, 140), (4, 112, 168), (2, 224, 224))  # for patches of 14
Inputs = dict[str, Any]
Sets = Callable[[nn.Module, Inputs], Iterator[Inputs]]


# ---------------------------------------------------------------------------------------------------- what is called


def names(kind: str) -> list[str]:
    return list(sizes.CASES) if kind == "models" else sweep_models.BUILDERS[kind][0]()


def built(kind: str, name: str, train: bool, sets: int, seed: int) -> tuple[nn.Module, list[Inputs]]:
    """The model `name` with filled weights, and the inputs of its calls."""
    if kind == "models":
        case, draw = sizes.CASES[name], random.Random(seed)
        model = case.build()
        weights.fill(model)
        return model.train(train), [case.draw(draw) for _ in range(sets)]
    if kind == "transformers":
        model, inputs = sweep_models.architecture(name, tiny=True)
        return model.train(train), _taken(model, [_text(inputs, *size) for size in TEXTS[:sets]])
    model, inputs = sweep_models.family(name)
    model.train(train)
    for pictures in (PICTURES, PATCHED):
        found = _taken(model, [_picture(inputs, *size) for size in pictures[:sets]])
        if len(found) >= min(sets, 3):
            return model, found
    batches = range(2, 2 + sets)
    return model, _taken(model, [{"x": torch.randn(n, *inputs["x"].shape[1:])} for n in batches])


def _text(inputs: Inputs, batch: int, length: int) -> Inputs:
    """Other values for tensors whose first sizes are 2 and 16."""
    made = {}
    for name, value in inputs.items():
        if name == "bbox":
            made[name] = torch.zeros(batch, length, 4, dtype=torch.long)
        else:
            made[name] = torch.randint(3, int(value.max()) + 1, (batch, length))
    return made


def _picture(inputs: Inputs, batch: int, height: int, width: int) -> Inputs:
    return {"x": torch.randn(batch, inputs["x"].shape[1], height, width)}


def _taken(model: nn.Module, calls: list[Inputs]) -> list[Inputs]:
    """Those that the model takes."""
    found = []
    for inputs in calls:
        try:
            with torch.no_grad():
                copy.deepcopy(model)(**inputs)
        except Exception:
            continue
        found.append(inputs)
    return found


# ------------------------------------------------------------------------------------------------------- a comparison


def entries_of(compiled: Any) -> int:
    """How many entries the function has, or that of its resume functions which has most."""
    return max((len(record.entries) for _, record in inspect.records(compiled)), default=0)


def left_by(model: nn.Module, call: Any, inputs: Inputs, train: bool) -> dict[str, Any]:
    """What a call leaves: outputs, gradients, buffers."""
    torch.manual_seed(0)
    model.zero_grad(set_to_none=True)
    if not train:
        with torch.no_grad():
            outputs = list(tensors(call(**inputs)))
        return {"outputs": dict(enumerate(outputs)), "gradients": {}, "buffers": {}}
    outputs = list(tensors(call(**inputs)))
    generator = torch.Generator().manual_seed(1)
    used = [t for t in outputs if t.is_floating_point() and t.requires_grad]
    torch.stack([(t * torch.randn(t.shape, generator=generator)).sum() for t in used]).sum().backward()
    return {
        "outputs": {i: t.detach() for i, t in enumerate(outputs)},
        "gradients": {k: p.grad for k, p in model.named_parameters() if p.grad is not None},
        "buffers": {k: b.clone() for k, b in model.named_buffers()},
    }


def difference(got: dict[str, Any], want: dict[str, Any]) -> float:
    """The largest, gradients weighted as their tolerance is."""
    return max(
        errors.largest(got["outputs"], want["outputs"]),
        errors.of_gradients(got["gradients"], want["gradients"]) * TOLERANCE / GRADIENT_TOLERANCE,
        errors.largest(got["buffers"], want["buffers"], 1e-3),
    )


def beside_float64(
    model: nn.Module, buffers: Inputs, inputs: Inputs, train: bool, **who: dict[str, Any]
) -> dict[str, float] | str:
    """How far each is from eager in float64, of a model that begins with these buffers. Eager's is the largest of several
    errors, at inputs that rounding might have given: where a ReLU is next to its kink, gradients jump, and either may be on
    the wrong side."""

    def begun(made: nn.Module) -> nn.Module:
        made.load_state_dict(errors.in_double(buffers), strict=False)
        return made

    try:
        exact = begun(errors.double_of(model))
        want = left_by(exact, exact, errors.in_double(inputs), train)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:100]
    found = {name: difference(errors.in_double(left), want) for name, left in who.items()}
    for moved in _moved(inputs):
        eager = begun(copy.deepcopy(model))
        again = left_by(eager, eager, moved, train)
        found["eager"] = max(found["eager"], difference(errors.in_double(again), want))
    return found


def in_float64(model: nn.Module, buffers: Inputs, inputs: Inputs, train: bool) -> float:
    """How far the model in float64, compiled, is from itself in eager; infinite where that cannot be compared."""
    try:
        eager, ours = (copy.deepcopy(model).double() for _ in range(2))
        for made in (eager, ours):
            made.load_state_dict(errors.in_double(buffers), strict=False)
        given = errors.in_double(inputs)
        got = left_by(ours, smelt.compile(ours, dynamic=True), given, train)
        return difference(got, left_by(eager, eager, given, train))
    except Exception:
        return float("inf")


def _moved(inputs: Inputs, times: int = 24) -> Iterator[Inputs]:
    """The inputs with values that differ in the last digit, if they are of floating point."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(times if all(v.is_floating_point() for v in inputs.values()) else 0):
        yield {k: v * (1 + 1e-7 * torch.randn(v.shape, generator=generator)) for k, v in inputs.items()}


class _Operators(TorchDispatchMode):
    """Records which run, and the shapes of what they give."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, list[torch.Size]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.found.append((func, [t.shape for t in tensors(out)]))
        return out


def comes_to_one(model: nn.Module, calls: list[Inputs]) -> bool:
    """Whether a size that an operator gives is 1 in one call and more in another, as 7 // 4 is; as far as all calls run the
    same operators."""
    found = []
    for inputs in calls:
        with torch.no_grad(), _Operators() as ran:
            copy.deepcopy(model)(**inputs)
        found.append(ran.found)
    for each in zip(*found):
        if len({func for func, _ in each}) > 1:
            return False
        for shapes in zip(*(shapes for _, shapes in each)):
            if len({len(s) for s in shapes}) == 1 and any(
                min(sizes) == 1 < max(sizes) for sizes in zip(*shapes)
            ):
                return True
    return False


def compared(model: nn.Module, calls: list[Inputs], train: bool) -> dict[str, Any]:
    """A row: entries, errors of each call, reasons."""
    theirs, compiled = copy.deepcopy(model), smelt.compile(model, dynamic=True)
    apart, counts, float64 = [], [], []
    start = time.perf_counter()
    for inputs in calls:
        before = {k: b.clone() for k, b in theirs.named_buffers()}
        want = left_by(theirs, theirs, inputs, train)
        got = left_by(model, compiled, inputs, train)
        apart.append(difference(got, want))
        if apart[-1] > TOLERANCE:
            found = beside_float64(theirs, before, inputs, train, smelt=got, eager=want)
            if isinstance(found, dict) and not no_worse(found):
                found["smelt in float64"] = in_float64(theirs, before, inputs, train)
            float64.append(found)
        model.load_state_dict(theirs.state_dict())  # rounding errors of running statistics do not add up
        counts.append(entries_of(compiled))
    ones = any(1 in t.shape for inputs in calls for t in inputs.values()) or comes_to_one(theirs, calls)
    shapes = ["x".join(map(str, next(iter(inputs.values())).shape)) for inputs in calls]
    return {
        "sets": len(set(shapes)),
        "entries": counts[-1],
        "most": FEW + ones,
        "new": [s for s, before, now in zip(shapes, [0, *counts], counts) if now > before],
        "error": max(apart),
        "float64": float64,
        "reasons": [str(r) for r in inspect.reasons(compiled)],
        "seconds": time.perf_counter() - start,
    }


# ---------------------------------------------------------------------------------------------- with other compilers


def by_default(model: nn.Module, calls: list[Inputs], train: bool) -> int | str:
    """How many entries smelt makes that is told nothing about sizes."""
    compiled = smelt.compile(model)
    failed = _failure(model, compiled, calls, train)
    return failed or entries_of(compiled)


def by_rival(model: nn.Module, calls: list[Inputs], train: bool) -> int | str:
    """How often torch.compile compiles one frame. What it has no graph for is compiled once, too."""
    torch._dynamo.reset()  # clears the counts
    failed = _failure(model, torch.compile(model, backend="eager"), calls, train)
    return failed or max(convert_frame.FRAME_COMPILE_COUNTER.values(), default=0)


def _failure(model: nn.Module, compiled: Any, calls: list[Inputs], train: bool) -> str:
    """The class of what the calls raise, if they do."""
    try:
        for inputs in calls:
            left_by(model, compiled, inputs, train)
    except Exception as error:
        return type(error).__name__
    return ""


OTHERS: dict[str, Callable[[nn.Module, list[Inputs], bool], int | str]] = {
    "by default": by_default,
    "torch.compile": by_rival,
}


def _row(kind: str, name: str, train: bool, options: Any, pipe: Any) -> None:
    signal.setitimer(signal.ITIMER_PROF, options.limit)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        model, calls = built(kind, name, train, options.sets, options.seed)
    except Exception as error:
        pipe.send({"skipped": f"{type(error).__name__}: {error}".splitlines()[0][:100]})
        return
    if len(calls) < 2:
        pipe.send({"skipped": "eager takes one set of sizes"})
        return
    others = {name: copy.deepcopy(model) for name in OTHERS} if options.rival else {}
    try:
        row = compared(model, calls, train)
        if verdict(row) == "differs" and not train and any(b.is_floating_point() for b in model.buffers()):
            model, calls = built(kind, name, train, options.sets, options.seed)
            sweep_models.take_statistics(model, calls[0])
            row = {**compared(model, calls, train), "own_statistics": True}
        for name, other in others.items():
            signal.setitimer(signal.ITIMER_PROF, options.limit)
            row[name] = OTHERS[name](other, calls, train)
        pipe.send(row)
    except Exception as error:
        if options.why:
            logging.exception("raised")
        pipe.send({"raised": f"{type(error).__name__}: {error}".splitlines()[0][:300]})


def measured(
    kind: str, chosen: list[tuple[str, str]], options: Any
) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Yield the rows of the models and modes `chosen` as they finish, `options.jobs` at a time. This process forks while it
    has one thread."""
    context = get_context("fork")
    running: dict[Any, tuple[tuple[str, str], Any]] = {}
    todo = chosen[::-1]
    while todo or running:
        while todo and len(running) < options.jobs:
            name, mode = todo.pop()
            ours, theirs = context.Pipe()
            process = context.Process(target=_row, args=(kind, name, mode == "train", options, theirs))
            process.start()
            theirs.close()
            running[ours] = (name, mode), process
        for pipe in wait(list(running)):
            key, process = running.pop(pipe)
            try:
                row = dict(pipe.recv())
            except EOFError:
                row = {}
            process.join()
            yield key, row or {"raised": f"died: {process.exitcode}"}


# ---------------------------------------------------------------------------------------------------------- the table


def verdict(row: dict[str, Any]) -> str:
    """What became of a model."""
    if "skipped" in row or "raised" in row:
        return "skipped" if "skipped" in row else "raised"
    if not all(no_worse(found) or _rounding_decides(found) for found in row["float64"]):
        return "differs"
    return "few" if row["entries"] <= row["most"] else "many"


def _rounding_decides(found: dict[str, float] | str) -> bool:
    return isinstance(found, dict) and found.get("smelt in float64", 1.0) < EXACT


def line(name: str, mode: str, row: dict[str, Any]) -> str:
    what = verdict(row)
    if what in ("skipped", "raised"):
        return f"| {name} | {mode} | {what} | | | | | | {row.get('skipped') or row.get('raised')} |"
    reasons = "; ".join(r.partition(". ")[0].rpartition("site-packages/")[2] for r in row["reasons"])
    new = ", ".join(row["new"])
    counts = " | ".join(str(row.get(key, "")) for key in ("entries", *OTHERS))
    error = f"{row['error']:.1e}"
    if row["float64"]:
        apart = furthest(row["float64"])
        values = apart if isinstance(apart, str) else ", ".join(f"{k} {v:.1e}" for k, v in apart.items())
        error += f"; from float64: {values}"
    if row.get("own_statistics"):
        error += "; with the statistics of its activations"
    return f"| {name} | {mode} | {what} | {counts} | {new} | {error} | {reasons} |"


def _few_of_others(rows: list[dict[str, Any]]) -> str:
    """For how many models the others need few entries, too."""
    said = []
    for name in OTHERS:
        found = [row for row in rows if name in row]
        few = sum(isinstance(row[name], int) and row[name] <= row["most"] for row in found)
        said += [f" {name}: {few} of {len(found)}."] if found else []
    return "".join(said)


def furthest(found: list[dict[str, float] | str]) -> dict[str, float] | str:
    """The errors of the call where smelt's are largest beside eager's; or why they were not compared."""
    texts = [why for why in found if isinstance(why, str)]
    if texts:
        return texts[0]
    return max((e for e in found if isinstance(e, dict)), key=lambda e: e["smelt"] / max(e["eager"], 1e-30))


def table(kind: str, rows: dict[tuple[str, str], dict[str, Any]], command: str) -> str:
    kinds = [verdict(row) for row in rows.values()]
    ran = [k for k in kinds if k not in ("skipped", "raised")]
    facts = (
        str(datetime.date.today()), measure.machine()["cpu"], f"torch {torch.__version__}",
        f"transformers {transformers.__version__}", f"timm {version('timm')}",
    )  # fmt: skip
    return "\n".join(
        [
            f"# Sizes that change: {kind}",
            "",
            f"{', '.join(facts)}, one thread. Command: `{command}`.",
            "",
            f"At most {FEW} entries ({FEW + 1} where a size is 1, or comes to 1): {ran.count('few')} of {len(ran)}; results "
            f"that differ: {ran.count('differs')}; raised: {kinds.count('raised')}; skipped: {kinds.count('skipped')}."
            + _few_of_others(list(rows.values())),
            "",
            f"| model | mode | | entries | {' | '.join(OTHERS)} | made for | largest error | why it is not one graph |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            *(line(name, mode, row) for (name, mode), row in rows.items()),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=("models", "transformers", "timm"))
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--every", type=int, default=1, help="of the names in order, each so-manieth")
    parser.add_argument("--sets", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--modes", default="eval,train")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds of CPU time a row")
    parser.add_argument("--jobs", type=int, default=1, help="rows that are measured at a time")
    parser.add_argument("--why", action="store_true")
    parser.add_argument("--rival", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.sets = options.sets or (30 if options.kind == "models" else 4)
    transformers.logging.set_verbosity_error()
    if options.why:
        logging.basicConfig(level=logging.WARNING, format="    %(message).400s")
        logging.getLogger("smelt").setLevel(logging.DEBUG)
    chosen = [
        (name, mode)
        for name in names(options.kind)[:: options.every]
        if not options.only or any(part in name for part in options.only)
        for mode in options.modes.split(",")
    ]
    command = f"python -m benchmarks.sweep_sizes {options.kind} --sets {options.sets} --seed {options.seed}"
    command += f" --modes {options.modes} --every {options.every}" + " --rival" * options.rival
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for key, row in measured(options.kind, chosen, options):
        rows[key] = row
        print(line(*key, row), f"{row.get('seconds', 0):.1f} s", flush=True)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            path = options.out / f"sizes-{options.kind}.md"
            path.write_text(table(options.kind, {k: rows[k] for k in chosen if k in rows}, command))


if __name__ == "__main__":
    main()
