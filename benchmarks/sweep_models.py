"""`make sweep`: every text architecture of transformers and one model of every timm family, compiled, against eager.

    python -m benchmarks.sweep_models transformers|timm [--only NAME ...] [--workers N] [--out DIR] [--no-rival]

Architectures of transformers: the default configuration cut to 2 layers, random weights, 2 x 16 tokens, eval mode.
timm: the smallest model of each family by name, eval mode and train mode (outputs, gradients of the parameters, buffers).
A row a model: does it agree, in how many graphs, why it broke or ran eagerly, seconds of the first call, and in how many
graphs torch.compile captures it. Each model runs in a process of its own, so that a crash is a row.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import inspect
import json
import os
import platform
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import models  # noqa: F401  (declares torchvision's operators before timm is imported)

TOLERANCE = 1e-4  # of the largest magnitude (at least 1)
GRADIENT_TOLERANCE = 1e-3
LIMIT = 300  # seconds a model
LARGEST = 1_500_000_000  # parameters
LAYERS = (
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_encoder_layers",
    "num_decoder_layers", "num_hidden_groups",
)  # fmt: skip
SMALL = (
    "test_", "zepto", "pico", "atto", "femto", "nano", "_tiny", "xxs", "_xs", "xxt", "mobile", "_small", "_s", "18", "26",
    "_t", "b0", "_b",
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------ the models


def architectures() -> list[str]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


def _cut(config: Any) -> None:
    for part in (config, *(getattr(config, n, None) for n in ("text_config", "encoder", "decoder"))):
        for name in LAYERS if part is not None else ():
            if isinstance(getattr(part, name, None), int):
                with contextlib.suppress(Exception):
                    setattr(part, name, 2)
        for name in ("layer_types", "mlp_layer_types", "attention_layers", "block_types"):
            if isinstance(getattr(part, name, None), list):
                setattr(part, name, getattr(part, name)[:2])


def architecture(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """The text model of one entry of transformers' table of configurations. Raises where it has none."""
    import transformers as hf

    config = hf.AutoConfig.for_model(name)
    _cut(config)
    config.use_cache = False
    errors = []
    for auto in (hf.AutoModelForCausalLM, hf.AutoModelForMaskedLM, hf.AutoModelForSeq2SeqLM, hf.AutoModel):
        try:
            with torch.device("meta"):
                size = sum(p.numel() for p in auto.from_config(config).parameters())
            if size > LARGEST:
                raise ValueError(f"{size / 1e9:.1f} billion parameters")
            model = auto.from_config(config)
        except Exception as error:
            errors.append(f"{auto.__name__}: {type(error).__name__}: {error}")
            continue
        return model.eval(), _token_inputs(model, config)
    raise ValueError("; ".join(e.splitlines()[0][:80] for e in errors[:1]))


def _token_inputs(model: nn.Module, config: Any) -> dict[str, Any]:
    vocabulary = getattr(config, "vocab_size", None) or getattr(config.get_text_config(), "vocab_size", 1000)
    tokens = torch.randint(3, min(vocabulary, 1000), (2, 16))
    accepted = inspect.signature(model.forward).parameters
    if "input_ids" not in accepted:
        raise ValueError("takes no input_ids")
    given: dict[str, Any] = {"input_ids": tokens}
    if "decoder_input_ids" in accepted and getattr(config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = tokens
    return given


def families() -> list[str]:
    import timm

    return sorted(m for m in timm.list_modules() if timm.list_models(module=m))


def family(name: str) -> tuple[nn.Module, dict[str, Any]]:
    import timm

    names = timm.list_models(module=name)
    chosen = next((n for part in SMALL for n in names if part in n), names[0])
    model = timm.create_model(chosen, pretrained=False)
    channels, height, width = model.default_cfg.get("input_size", (3, 224, 224))
    return model.eval(), {"x": torch.randn(2, channels, height, width)}


BUILDERS: dict[str, tuple[Callable[[], list[str]], Callable[[str], Any]]] = {
    "transformers": (architectures, architecture),
    "timm": (families, family),
}


# ------------------------------------------------------------------------------------------------------- a model


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from _tensors(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors(v)


def _distance(got: Any, want: Any) -> float:
    """The largest difference, relative to the largest magnitude of each tensor (at least 1)."""
    a, b = list(_tensors(got)), list(_tensors(want))
    if [(t.shape, t.dtype) for t in a] != [(t.shape, t.dtype) for t in b]:
        return float("inf")
    worst = 0.0
    for x, y in zip(a, b):
        x, y = x.detach().double(), y.detach().double()
        if not torch.equal(x.isfinite(), y.isfinite()):
            return float("inf")
        scale = max(1.0, y.nan_to_num(0, 0, 0).abs().max().item()) if y.numel() else 1.0
        difference = (x - y).nan_to_num(0, 0, 0).abs().max().item() if y.numel() else 0.0
        worst = max(worst, difference / scale)
    return worst


def _describe(compiled: Any) -> dict[str, Any]:
    from smelt.report import inspect as report

    records = report.records(compiled)
    return {
        "graphs": report.graph_count(compiled),
        "breaks": [f"{b.kind.id} ({b.detail}) at {b.line}" for _, r in records for b in r.breaks],
        "eager": [f"{b.kind.id} ({b.detail}) at {b.line}" for _, r in records for b in r.reasons],
    }


def _evaluate(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    import smelt

    with torch.no_grad():
        torch.manual_seed(0)
        want = model(**inputs)
        compiled = smelt.compile(model)
        start = time.perf_counter()
        torch.manual_seed(0)
        got = compiled(**inputs)
        seconds = time.perf_counter() - start
        torch.manual_seed(0)
        again = compiled(**inputs)
    return {
        "error": max(_distance(got, want), _distance(again, want)),
        "seconds": seconds,
        **_describe(compiled),
    }


def _train(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    import smelt

    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}

    def step(call: Any) -> Any:
        model.load_state_dict(before)
        model.zero_grad()
        torch.manual_seed(0)
        out = call(**inputs)
        sum(t.float().mean() for t in _tensors(out)).backward()  # type: ignore[union-attr]
        found = [out, [p.grad for p in model.parameters()], [b.clone() for b in model.buffers()]]
        return found

    want = step(model)
    compiled = smelt.compile(model)
    start = time.perf_counter()
    got = step(compiled)
    seconds = time.perf_counter() - start
    again = step(compiled)
    errors = [max(_distance(a, b), _distance(c, b)) for a, b, c in zip(got, want, again)]
    return {"error": errors[0], "gradients": max(errors[1:]), "seconds": seconds, **_describe(compiled)}


def _rival(model: nn.Module, inputs: dict[str, Any]) -> int | str:
    """How many graphs torch.compile's capture makes."""
    count = 0

    def backend(graph: Any, examples: Any) -> Any:
        nonlocal count
        count += 1
        return graph.forward

    try:
        with torch.no_grad():
            torch.compile(model.eval(), backend=backend)(**inputs)
    except Exception as error:
        return type(error).__name__
    return count


def _row(kind: str, name: str, rival: bool, pipe: Any) -> None:
    signal.alarm(LIMIT)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    row: dict[str, Any] = {"name": name}
    try:
        model, inputs = BUILDERS[kind][1](name)
        with torch.no_grad():
            model(**inputs)
    except Exception as error:
        pipe.send({**row, "skipped": f"{type(error).__name__}: {error}".splitlines()[0][:160]})
        return
    row["class"] = type(model).__name__
    for mode, run in (("eval", _evaluate), ("train", _train)):
        if mode == "train" and kind != "timm":
            continue
        try:
            row[mode] = run(model, inputs)
        except Exception as error:
            row[mode] = {"raised": f"{type(error).__name__}: {error}"[:300]}
    if rival:
        row["rival"] = _rival(model, inputs)
    pipe.send(row)


def _measured(kind: str, name: str, rival: bool) -> dict[str, Any]:
    context = get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_row, args=(kind, name, rival, theirs))
    process.start()
    theirs.close()
    try:
        row: dict[str, Any] = ours.recv()
    except EOFError:
        row = {"name": name, "died": True}
    process.join()
    if row.get("died"):
        row["died"] = f"exit code {process.exitcode}"
    return row


# ------------------------------------------------------------------------------------------------------ the table


def verdict(row: dict[str, Any]) -> str:
    """ok, differs, raised, died or skipped."""
    if "skipped" in row:
        return "skipped"
    if "died" in row:
        return "died"
    results = [row[m] for m in ("eval", "train") if m in row]
    if any("raised" in r for r in results):
        return "raised"
    bad = any(r["error"] > TOLERANCE or r.get("gradients", 0) > GRADIENT_TOLERANCE for r in results)
    return "differs" if bad else "ok"


def _cells(row: dict[str, Any]) -> list[str]:
    cells = [f"`{row['name']}`", verdict(row)]
    for mode in ("eval", "train"):
        r = row.get(mode)
        if r is None or "raised" in r:
            cells += ["", "", r["raised"][:80] if r else ""]
            continue
        why = "; ".join(dict.fromkeys(x.split(" at ")[0][:90] for x in (*r["eager"], *r["breaks"])))
        cells += [str(r["graphs"]), f"{r['seconds']:.2f}", why]
    return [*cells, str(row.get("rival", ""))]


def markdown(kind: str, rows: list[dict[str, Any]]) -> str:
    counts = {v: sum(verdict(r) == v for r in rows) for v in ("ok", "differs", "raised", "died", "skipped")}
    ran = [r for r in rows if verdict(r) in ("ok", "differs")]
    whole = sum(r["eval"]["graphs"] == 1 and not r["eval"]["eager"] for r in ran)
    head = [
        f"# Sweep of {kind}",
        "",
        f"{datetime.date.today()}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} CPU cores; "
        f"`python -m benchmarks.sweep_models {kind}`. Skipped: does not run in eager as it is, or is too large here.",
        "",
        ", ".join(f"{k}: {v}" for k, v in counts.items()) + f"; whole in one graph (eval): {whole} of {len(ran)}.",
        "",
        "| model | | graphs | s | why not one | train: graphs | s | why not one | torch.compile's graphs |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines = ["| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in _cells(r)) + " |" for r in rows]
    shown = [line for line, row in zip(lines, rows) if verdict(row) != "skipped"]
    skipped = [f"`{r['name']}` ({r['skipped'][:70]})" for r in rows if "skipped" in r]
    return "\n".join([*head, *shown, "", "Skipped: " + ", ".join(skipped) + "."]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=sorted(BUILDERS))
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", default="benchmarks/results")
    parser.add_argument("--no-rival", action="store_true")
    args = parser.parse_args()
    names = args.only or BUILDERS[args.kind][0]()
    import timm  # noqa: F401  (before the fork: once for all)
    import transformers  # noqa: F401

    import smelt  # noqa: F401

    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(args.workers) as pool:
        for row in pool.map(lambda n: _measured(args.kind, n, not args.no_rival), names):
            rows.append(row)
            graphs = {m: row[m].get("graphs") for m in ("eval", "train") if m in row}
            print(f"{len(rows)}/{len(names)} {row['name']}: {verdict(row)} {graphs} rival {row.get('rival')}", flush=True)
    if not args.only:
        Path(args.out, f"{args.kind}.md").write_text(markdown(args.kind, rows))
        Path(args.out, f"{args.kind}.json").write_text(json.dumps(rows, indent=1) + "\n")
    else:
        print(json.dumps(rows, indent=1))
    return int(any(verdict(r) in ("differs", "raised", "died") for r in rows))


if __name__ == "__main__":
    sys.exit(main())
