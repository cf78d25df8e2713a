"""`make sweep`: every text architecture of transformers, one model of every timm family, programs of many libraries,
compiled, against eager.

    python -m benchmarks.sweep_models transformers|transformers-training|timm|libraries [--only NAME ...] [--workers N]
        [--limit SECONDS] [--out DIR] [--resume] [--again PART-OF-A-NAME ...] [--rival all|some|none]

Architectures of transformers: the default configuration cut to 2 layers (where that is still large, also fewer experts,
words and heads and narrower feed-forward layers), random weights, 2 x 16 tokens, eval mode. transformers-training: the
same architectures, all narrow, in train mode (`compare_training`), with labels where they take them; a step that is timed
differentiates the loss alone, if the model returns one.
timm: the smallest model of each family by name, 2 pictures of 96 x 96 where it takes them, eval mode and train mode.
libraries: the programs of `libraries.py`, eval mode and train mode.
A row a model: does it agree, in how many graphs, why it broke or ran eagerly, whether a function ended eager for want of
entries, the CPU time of a call (in train mode: a step) after ten, and in how many graphs torch.compile captures it. Each
model runs in a process of its own on one thread, so that a crash is a row; the slowest start first. The table is written
after each row; `--resume` measures what it lacks, and each row knows what it was measured on and the commit of the code;
`--again NAME` measures rows anew that the table has.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import functools
import importlib.metadata
import inspect
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import errors, libraries, measure, weights
from benchmarks.compare_training import NotComparable, agrees, compare, no_worse, tensors

TOLERANCE = 1e-4  # of the largest magnitude of a tensor
LIMIT = 90.0  # seconds of CPU time a model
RESULTS = Path(__file__).parent / "results"
LARGE = 100_000_000  # parameters: these models are made smaller
LARGEST = 1_000_000_000
MANY = 16  # pictures, where two do not tell
PICTURE = 96  # pixels of height and width, where a model takes that
LAYERS = (
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_encoder_layers",
    "num_decoder_layers", "num_hidden_groups", "num_blocks",
    "conf_num_hidden_layers",
)  # fmt: skip
SHRUNK = {
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "zero_expert_num"), 4
    ),
    **dict.fromkeys(
        ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "moe_k"), 2
    ),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "ffn_dim", "d_ff"), 1024),
    **dict.fromkeys(
        ("vocab_size", "vocab_size_per_layer_input", "ngram_vocab_size", "encoder_hash_byte_group_vocab"),
        4000,
    ),
}
OTHER_INPUTS = (
    "vision_config", "audio_config", "image_size", "num_channels", "patch_size", "num_mel_bins", "qformer_config",
    "vq_config", "codec_config", "depth_decoder_config", "conv_dim", "conv_stride",
)  # fmt: skip
SMALL = (
    "test_", "zepto", "pico", "atto", "femto", "nano", "_tiny", "xxs", "_xs", "xxt", "mobile", "_small", "_s", "18", "26",
    "_t", "b0", "_b",
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------ the models


def architectures() -> list[str]:
    """The entries of transformers' table of configurations that have a model of text."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    known = modeling_auto.MODEL_MAPPING_NAMES
    others = (n for n in CONFIG_MAPPING if n in known and _reads_text(n))
    return sorted({name for head in _heads() for name in head} | set(others))


def _heads() -> list[dict[str, Any]]:
    from transformers.models.auto import modeling_auto as auto

    return [
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    ]


def _reads_text(name: str) -> bool:
    import transformers as hf

    try:
        config = hf.AutoConfig.for_model(name)
    except Exception:  # needs arguments
        return False
    sees = any(part in config.to_dict() for part in OTHER_INPUTS)
    return bool(getattr(config, "vocab_size", None)) and not sees


def _cut(config: Any) -> None:
    """To two layers."""
    for part in _parts(config):
        for name in LAYERS:
            if isinstance(_get(part, name), int):
                _set(part, name, 2)
        for name in ("layer_types", "mlp_layer_types", "attention_layers", "block_types"):
            if isinstance(_get(part, name), list):
                _set(part, name, _two_kinds(_get(part, name)))
        if isinstance(_get(part, "num_kv_shared_layers"), int):
            _set(part, "num_kv_shared_layers", 0)


def _two_kinds(layers: list[Any]) -> list[Any]:
    """The first layer, and the first of another kind if there is one."""
    first, *others = layers or [None]
    return [first, next((kind for kind in others if kind != first), first)]


def _get(part: Any, name: str) -> Any:
    with contextlib.suppress(Exception):  # a property
        return getattr(part, name, None)


def _set(part: Any, name: str, value: Any) -> None:
    with contextlib.suppress(Exception):  # a property, or not allowed alone
        setattr(part, name, value)


def _shrink(config: Any) -> None:
    """To fewer experts and words and narrower feed-forward layers, where two layers are still large."""
    for part in _parts(config):
        for name, most in SHRUNK.items():
            value = _get(part, name)
            if isinstance(value, int):
                _set(part, name, min(value, most))
            elif isinstance(value, list) and all(isinstance(v, int) for v in value):  # one for each layer
                _set(part, name, [min(v, most) for v in value])
        if isinstance(_get(part, "pad_token_id"), int):
            part.pad_token_id = 0


def _narrow(config: Any) -> None:
    """Also to a quarter of the heads, which are as wide as before."""
    _shrink(config)
    for part in _parts(config):
        heads = _get(part, "num_attention_heads")
        if not isinstance(heads, int) or heads % 4:
            continue
        for name in ("num_attention_heads", "num_key_value_heads", "hidden_size"):
            if isinstance(_get(part, name), int):
                _set(part, name, max(1, _get(part, name) // 4))


AS_THEY_ARE = ((_cut, LARGE), (_narrow, LARGE), (_narrow, LARGEST), (_shrink, LARGEST))


def _parts(config: Any) -> list[Any]:
    from transformers import PreTrainedConfig

    inner = [part for part in vars(config).values() if isinstance(part, PreTrainedConfig)]
    return [config, *(p for part in inner for p in _parts(part))]


def trained_architecture(name: str) -> tuple[nn.Module, dict[str, Any]]:
    """Narrower than the others, with labels if it takes them."""
    model, inputs = architecture(name, tiny=True)
    labels = (
        {"labels": inputs["input_ids"]} if "labels" in inspect.signature(model.forward).parameters else {}
    )
    try:
        copy.deepcopy(model)(**inputs, **labels)
    except Exception:  # it wants labels of another form
        return model, inputs
    return model, {**inputs, **labels}


def architecture(name: str, tiny: bool = False) -> tuple[nn.Module, dict[str, Any]]:
    """The text model of one entry of transformers' table of configurations. Raises where it has none."""
    import transformers as hf

    heads = (hf.AutoModelForCausalLM, hf.AutoModelForMaskedLM, hf.AutoModelForSeq2SeqLM)
    autos = [*(a for a, head in zip(heads, _heads()) if name in head), hf.AutoModel]
    problems: list[Exception] = []
    for auto in autos:
        for smaller, limit in ((_narrow, LARGE), *AS_THEY_ARE) if tiny else AS_THEY_ARE:
            config = hf.AutoConfig.for_model(name)
            _cut(config)
            smaller(config)
            config.use_cache = False
            try:
                return _built(auto, config, limit)
            except (
                Exception
            ) as error:  # too large, made of parts that no longer fit, or not for this configuration
                problems.append(error)
    raise problems[4 if tiny else 3]  # of the largest that was tried of its first kind


def _built(auto: Any, config: Any, limit: int) -> tuple[nn.Module, dict[str, Any]]:
    """A model with cheap random weights: initialising them would take longer than compiling."""
    from transformers import initialization

    with torch.device("meta"):
        size = sum(p.numel() for p in auto.from_config(config).parameters())
    if size > limit:
        raise ValueError(f"{size / 1e9:.1f} billion parameters")
    with initialization.no_init_weights():
        model: nn.Module = auto.from_config(config, dtype=torch.float32)
    model.tie_weights()  # type: ignore[operator]
    weights.fill(model)
    inputs = _token_inputs(model.eval(), config)
    with torch.no_grad():
        model(**inputs)
    return model, inputs


def _token_inputs(model: nn.Module, config: Any) -> dict[str, Any]:
    vocabulary: Any = getattr(config, "vocab_size", None) or getattr(
        config.get_text_config(), "vocab_size", 1000
    )
    tokens = torch.randint(3, min(vocabulary, 1000), (2, 16))
    accepted = inspect.signature(model.forward).parameters
    if "input_ids" not in accepted:
        raise ValueError("takes no input_ids")
    given: dict[str, Any] = {"input_ids": tokens}
    if "decoder_input_ids" in accepted and getattr(config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = tokens
    if "bbox" in accepted:
        given["bbox"] = torch.zeros(2, 16, 4, dtype=torch.long)
    return given


def families() -> list[str]:
    import timm

    return sorted(m for m in timm.list_modules() if timm.list_models(module=m))


def family(name: str) -> tuple[nn.Module, dict[str, Any]]:
    import timm

    names = timm.list_models(module=name)
    chosen = next((n for part in SMALL for n in names if part in n), names[0])
    problems: list[Exception] = []
    tries: tuple[dict[str, Any], ...] = ({"img_size": PICTURE}, {})
    for options in tries:
        try:
            model: Any = timm.create_model(chosen, pretrained=False, **options)
        except Exception as error:  # no such argument, or not this size
            problems.append(error)
            continue
        weights.fill(model)
        channels, *full = model.default_cfg.get("input_size", (3, 224, 224))
        for size in ((PICTURE, PICTURE), tuple(full)):
            inputs = {"x": torch.randn(2, channels, *size)}
            with torch.no_grad():
                try:
                    model.eval()(**inputs)
                except Exception as error:
                    problems.append(error)
                    continue
            return model, inputs
    raise problems[-1]


BUILDERS: dict[str, tuple[Callable[[], list[str]], Callable[[str], Any]]] = {
    "transformers": (architectures, architecture),
    "transformers-training": (architectures, trained_architecture),
    "timm": (families, family),
    "libraries": (libraries.names, libraries.build),
}


# ------------------------------------------------------------------------------------------------------- a model


def _error(got: Any, want: Any) -> float:
    """The largest difference of two results, relative to the largest value of each tensor."""
    return errors.largest(dict(enumerate(tensors(got))), dict(enumerate(tensors(want))))


def _describe(compiled: Any) -> dict[str, Any]:
    from smelt.report import inspect as report

    records = report.records(compiled)
    return {
        "graphs": report.graph_count(compiled),
        "breaks": [why(b) for _, r in records for b in r.breaks],
        "eager": [why(b) for _, r in records for b in r.reasons],
    }


def why(reason: Any) -> str:
    """With the file named from its package on."""
    return f"{reason.kind.id} ({reason.detail}) at {str(reason.line).rpartition('site-packages/')[2]}"


def _evaluate(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    import smelt

    with torch.no_grad():
        torch.manual_seed(0)
        want = model(**inputs)
        compiled = smelt.compile(model)
        torch.manual_seed(0)
        got = compiled(**inputs)
        torch.manual_seed(0)
        again = compiled(**inputs)
        found: dict[str, Any] = {
            "error": max(_error(got, want), _error(again, want)),
            **_describe(compiled),
        }
        found |= after_ten_calls(compiled, lambda: model(**inputs), lambda: compiled(**inputs))
    if found["error"] > TOLERANCE:
        found["float64"] = beside_float64(model, inputs, smelt=got, eager=want)
    return found


def after_ten_calls(compiled: Any, eager: Callable[[], Any], smelt: Callable[[], Any]) -> dict[str, Any]:
    """Milliseconds of a call, and the reasons of functions that ended eager for want of entries."""
    pairs = ((measure.after_ten(eager), measure.after_ten(smelt)) for _ in range(3))
    times = measure.beside_eager(pairs)
    ran_out = [why for why in _describe(compiled)["eager"] if why.startswith("recompile-limit")]
    return {"ms": times, "ran_out": ran_out}


def beside_float64(model: nn.Module, inputs: dict[str, Any], **who: Any) -> dict[str, float] | str:
    """How far each result is from eager's in float64."""
    try:
        torch.manual_seed(0)
        exact = errors.double_of(model)(**errors.in_double(inputs))
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:100]
    return {name: _error(errors.in_double(list(tensors(got))), exact) for name, got in who.items()}


def _train(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    compiled, found = compare(model, inputs)
    step, ours = (functools.partial(_step, of, inputs) for of in (copy.deepcopy(model), compiled))
    return {**found, **_describe(compiled), **after_ten_calls(compiled, step, ours)}


def _step(model: nn.Module, inputs: dict[str, Any]) -> None:
    """A step as a user writes it: of the model's loss if it returns one, otherwise of the sum of its results."""
    model.zero_grad(set_to_none=True)
    results = model(**inputs)
    loss = getattr(results, "loss", None)
    if loss is None:
        sums = [t.sum().double() for t in tensors(results) if t.requires_grad and t.is_floating_point()]
        loss = torch.stack(sums).sum()
    loss.backward()


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


RUNS = {"eval": _evaluate, "train": _train}


def _compared(mode: str, model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Where results differ, with other weights: rounding may turn a unit on or off (a relu, an expert), but not that of two
    models. Then with more pictures: normalized over few values in training, rounding errors grow beyond all bounds; in
    inference they do where activations are multiplied by each other, and the statistics are not those of the activations."""
    found = RUNS[mode](model, inputs)
    if _agrees(found):
        return found
    weights.fill(model, seed=1)
    kept = ("error", "outputs", "gradients", "buffers", "generators", "float64", "buffers_float64")
    again = {**RUNS[mode](model, inputs), "with_first_weights": {k: found[k] for k in kept if k in found}}
    pictures = {k: v for k, v in inputs.items() if isinstance(v, torch.Tensor) and v.dim() == 4}
    if _agrees(again) or not pictures:
        return again
    more = {k: torch.randn(MANY, *v.shape[1:]) for k, v in pictures.items()}
    first = again["with_first_weights"]
    if mode == "eval":
        take_statistics(model, {**inputs, **more})
        return {**RUNS[mode](model, inputs), "with_first_weights": first, "own_statistics": True}
    return {**RUNS[mode](model, {**inputs, **more}), "with_first_weights": first, "pictures": MANY}


def take_statistics(model: nn.Module, inputs: dict[str, Any], times: int = 30) -> None:
    """Running means and variances become those of the activations."""
    training = model.training
    model.train()
    with torch.no_grad():
        for _ in range(times):
            model(**inputs)
    model.train(training)


MODES = {
    "transformers": ("eval",),
    "transformers-training": ("train",),
    "timm": ("eval", "train"),
    "libraries": ("eval", "train"),
}


def _row(kind: str, name: str, rival: str, limit: float, pipe: Any) -> None:
    signal.setitimer(signal.ITIMER_PROF, limit)
    signal.setitimer(signal.ITIMER_REAL, 5 * limit)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    row: dict[str, Any] = {"name": name}
    try:
        model, inputs = BUILDERS[kind][1](name)
    except Exception as error:
        pipe.send(
            {
                **row,
                "skipped": f"{type(error).__name__}: {error}".splitlines()[0].partition(" from '/")[0][:160],
            }
        )
        return
    row["class"] = type(model).__name__
    for mode in MODES[kind]:
        try:
            row[mode] = _compared(mode, model, inputs)
        except NotComparable as error:
            row[mode] = {"skipped": str(error).splitlines()[0][:160]}
        except Exception as error:
            row[mode] = {"raised": f"{type(error).__name__}: {error}"[:300]}
    if _wants_rival(row, rival):
        row["rival"] = _rival(model, inputs)
    pipe.send(row)


def _wants_rival(row: dict[str, Any], which: str) -> bool:
    if which == "none" or "rival" in row or "eval" not in row:
        return False
    return which == "all" or not _whole(row["eval"])


def _whole(result: dict[str, Any]) -> bool:
    return result.get("graphs") == 1 and not result["eager"]


def _results(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the modes that could be compared."""
    return [row[m] for m in ("eval", "train") if m in row and "skipped" not in row[m]]


_forking = threading.Lock()  # a child must not hold the end of another's pipe open


def _measured(kind: str, name: str, rival: str, limit: float) -> dict[str, Any]:
    context = get_context("fork")
    start = time.perf_counter()
    with _forking:
        ours, theirs = context.Pipe()
        process = context.Process(target=_row, args=(kind, name, rival, limit, theirs))
        process.start()
        theirs.close()
    try:
        row: dict[str, Any] = ours.recv()
    except EOFError:
        row = {"name": name, "died": True}
    process.join()
    if row.get("died"):
        late = -(process.exitcode or 0) in (signal.SIGPROF, signal.SIGALRM)
        row["died"] = f"longer than {limit:g} s" if late else f"exit code {process.exitcode}"
    return {
        **row,
        "seconds": round(time.perf_counter() - start, 1),
        "measured": _circumstances(kind, name),
        "code": code_version(),
    }


@functools.cache
def code_version() -> str:
    """The last commit that changed smelt; with a + where files differ from it."""
    here = Path(__file__).parent
    try:
        head, changed = (
            subprocess.run(["git", *command], cwd=here, capture_output=True, text=True, check=True).stdout
            for command in (
                ("log", "-1", "--format=%h", "--abbrev=9", "--", "../smelt"),
                ("status", "--porcelain", "--", "../smelt"),
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return "no repository"
    return head.strip() + ("+" if changed else "")


def _circumstances(kind: str, name: str) -> str:
    """What a row was measured on."""
    package = name.partition(":")[0] if kind == "libraries" else kind.partition("-")[0]
    try:
        library = f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        library = f"no {package}"
    versions = f"torch {torch.__version__}, {library}, Python {platform.python_version()}"
    return f"{datetime.date.today()}, {versions}, {os.cpu_count()} CPU cores"


# ------------------------------------------------------------------------------------------------------ the table


VERDICTS = ("ok", "slower", "ran out", "differs", "raised", "died", "skipped")


def verdict(row: dict[str, Any]) -> str:
    """ok, slower, ran out, differs, raised, died or skipped."""
    if "died" in row:
        return "died"
    results = _results(row)
    if not results:
        return "skipped"
    if any("raised" in r or _failed(r) for r in results):
        return "raised"
    if not all(map(_agrees, results)):
        return "differs"
    if any(r.get("ran_out") for r in results):
        return "ran out"
    return "slower" if any(map(_is_slower, results)) else "ok"


def _is_slower(result: dict[str, Any]) -> bool:
    return "ms" in result and measure.is_slower(**result["ms"])


def _failed(result: dict[str, Any]) -> bool:
    """It ran eagerly because smelt itself failed."""
    return any(why.startswith(("internal-error", "backend-failed")) for why in result.get("eager", ()))


def _agrees(result: dict[str, Any]) -> bool:
    if "gradients" in result:
        return agrees(result)
    return result["error"] <= TOLERANCE or no_worse(result["float64"])


def _is_done(row: dict[str, Any]) -> bool:
    """Neither dead nor failed, nor of a sweep that looked at less."""
    return all("ms" in r for r in _results(row)) and verdict(row) not in ("died", "raised")


def _why_skipped(row: dict[str, Any]) -> str:
    reasons = [row, *(row[m] for m in ("eval", "train") if m in row)]
    return next((r["skipped"] for r in reasons if "skipped" in r), "")


COLUMNS = {
    "eval": ("graphs", "why not one"),
    "train": (
        "train: graphs, forward + backward",
        "remarks",
        "error of gradients",
        "first step: eager",
        "smelt",
    ),
}


def _cells(row: dict[str, Any], modes: tuple[str, ...]) -> list[str]:
    cells = [f"`{row['name']}`", verdict(row)]
    for mode in modes:
        r = row.get(mode)
        if r is None or "graphs" not in r:
            text = (r.get("raised") or r["skipped"])[:80] if r else ""
            cells += ["", text, *[""] * (len(COLUMNS[mode]) - 2)]
        elif mode == "eval":
            cells += [str(r["graphs"]), "; ".join(_remarks(r))]
        else:
            graphs = f"{r['graphs']} + {r['backward']}"
            seconds = [f"{r['first_s'][who]:.2f} s" for who in ("eager", "smelt")]
            cells += [graphs, "; ".join(_remarks(r)), f"{r['gradients']:.0e}", *seconds]
    when = f"{row['measured'].partition(',')[0]}, {row.get('code', UNKNOWN_CODE)}"
    return [*cells, *([str(row.get("rival", ""))] if "eval" in modes else []), when]


def _remarks(result: dict[str, Any]) -> list[str]:
    """Why it is not one graph, whose backward is not compiled, and what differs."""
    reasons = (*result["eager"], *result.get("ran_out", ()), *result["breaks"])
    found = [reason.split(" at ")[0][:90] for reason in reasons]
    if _is_slower(result):
        found.append("after ten: {smelt} ms, eager {eager} ms".format(**result["ms"]))
    found += [f"no joint graph: {x.split(': ')[-1][:80]}" for x in result.get("no_joint", ())]
    if result.get("generators", 0) > TOLERANCE:
        found.append("generators differ")
    if "float64" in result:
        found.append(f"from float64: {result['float64']}")
    if result.get("buffers", 0) > TOLERANCE and "buffers_float64" in result:
        found.append(f"buffers from float64: {result['buffers_float64']}")
    if "pictures" in result:
        found.append(f"with {result['pictures']} pictures")
    if "own_statistics" in result:
        found.append("with the statistics of its activations")
    if "with_first_weights" in result:
        found.append(f"with other weights: {result['with_first_weights'].get('float64')} from float64")
    return list(dict.fromkeys(found))


def markdown(kind: str, rows: list[dict[str, Any]], total: int) -> str:
    """`total`: of how many the rows are those that were measured so far."""
    modes = MODES[kind]
    counts = {v: sum(verdict(r) == v for r in rows) for v in VERDICTS}
    columns = ["model", "", *(c for m in modes for c in COLUMNS[m])]
    columns += ["torch.compile's graphs"] if "eval" in modes else []
    columns.append("measured")
    head = [
        f"# Sweep of {kind}",
        "",
        f"`python -m benchmarks.sweep_models {kind}`. Skipped: does not run in eager as it is, or is too large here. "
        f"Slower: a call after ten takes more than {measure.SLOWER - 1:.0%} longer than eager's (CPU time, one thread). "
        "Ran out: a function ended eager for want of entries.",
        *([TRAINED] if "train" in modes else []),
        "",
        *_measured_on(rows),
        "",
        *_measured_code(rows),
        "",
        *(
            [f"The sweep was stopped: {len(rows)} of {total}; `--resume` goes on.", ""]
            if len(rows) < total
            else []
        ),
        ", ".join(f"{k}: {v}" for k, v in counts.items()) + ".",
        *(line for m in modes for line in _summary(m, [r[m] for r in rows if "graphs" in r.get(m, ())])),
        *_beside_rival(rows),
        "",
        "| " + " | ".join(columns) + " |",
        "|" + " --- |" * len(columns),
    ]
    lines = [
        "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in _cells(r, modes)) + " |"
        for r in rows
    ]
    shown = [line for line, row in zip(lines, rows) if verdict(row) != "skipped"]
    skipped = [f"`{r['name']}` ({_why_skipped(r)[:70]})" for r in rows if verdict(r) == "skipped"]
    tail = ["", "Skipped: " + ", ".join(skipped) + "."] if skipped else []
    return "\n".join([*head, *shown, *tail]) + "\n"


TRAINED = (
    "Two steps in train mode, eager and compiled from equal states; outputs, gradients of all parameters, buffers and the "
    "random generators' states are compared. Errors are relative to each tensor's largest value; where one is above the "
    "tolerance, the row says how far both are from eager in float64. Times are CPU time on one thread, compilation included."
)


def _beside_rival(rows: list[dict[str, Any]]) -> list[str]:
    """How many models torch.compile captures in fewer graphs."""
    both = [r for r in rows if isinstance(r.get("rival"), int) and "graphs" in r.get("eval", ())]
    fewer = [f"`{r['name']}`" for r in both if r["rival"] < r["eval"]["graphs"]]
    named = f" ({', '.join(fewer)})" if fewer else ""
    return [f"Fewer graphs under torch.compile: {len(fewer)} of {len(both)}{named}."] if both else []


def _summary(mode: str, results: list[dict[str, Any]]) -> list[str]:
    ran = len(results)
    lines = [f"{mode}: whole in one graph: {sum(map(_whole, results))} of {ran}."]
    timed = [r["ms"]["eager"] / r["ms"]["smelt"] for r in results if "ms" in r]
    if timed:
        lines[0] += (
            f" After ten calls {measure.geomean(timed):.2f} times as fast as eager (geometric mean of {len(timed)})."
        )
    if mode == "train" and results:
        one = sum(_whole(r) and r["backward"] == 1 and not r["no_joint"] for r in results)
        own = sum(bool(r["no_joint"]) for r in results)
        first = statistics.median(r["first_s"]["smelt"] for r in results)
        lines[0] += (
            f" One forward and one backward graph: {one}; a graph without a joint graph: {own}."
            f" Median of the first step: {first:.2f} s."
        )
    return lines


def _measured_on(rows: list[dict[str, Any]]) -> list[str]:
    """One line for each of the circumstances; the rows are named of all but the most frequent."""
    lines = []
    for where, count in Counter(r["measured"] for r in rows).most_common():
        names = [f"`{r['name']}`" for r in rows if r["measured"] == where]
        lines.append(f"* {where}: {', '.join(names) if lines else f'{count} rows'}")
    return lines


UNKNOWN_CODE = "commit not noted"


def _measured_code(rows: list[dict[str, Any]]) -> list[str]:
    """How many rows are of which code: a sweep that goes on keeps those of older code."""
    codes = Counter(r.get("code", UNKNOWN_CODE) for r in rows)
    counts = ", ".join(f"{count} of `{code}`" for code, count in codes.items() if code != UNKNOWN_CODE)
    older = f"{codes[UNKNOWN_CODE]} of older code, whose commit was not noted" if codes[UNKNOWN_CODE] else ""
    which = "; ".join(filter(None, (counts, older)))
    return (
        [f"Not all rows are of one state of the code: the last column says of which ({which})."]
        if len(codes) > 1
        else [f"All rows: {which}."]
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=sorted(BUILDERS))
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of CPU time a model")
    parser.add_argument("--out", default=str(RESULTS))
    parser.add_argument(
        "--rival", choices=("all", "some", "none"), default="all", help="some: where smelt breaks"
    )
    parser.add_argument("--resume", action="store_true", help="keep the rows that the table of --out has")
    parser.add_argument("--again", action="append", default=[], help="of the kept rows, measure these again")
    args = parser.parse_args()
    import timm  # noqa: F401  (before the fork: once for all)
    import transformers

    import smelt  # noqa: F401

    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    names = args.only or BUILDERS[args.kind][0]()
    table = Path(args.out, f"{args.kind}.json")
    table.parent.mkdir(parents=True, exist_ok=True)
    old = _rows_in(table) if args.resume else []
    kept = [r for r in old if r["name"] in names and _is_done(r) and not _wants_rival(r, args.rival)]
    kept = [r for r in kept if not any(part in r["name"] for part in args.again)]
    rows = {r["name"]: r for r in kept}
    seconds = {r["name"]: r.get("seconds", 0.0) for r in (*_rows_in(RESULTS / table.name), *_rows_in(table))}
    todo = [n for n in names if n not in rows]
    todo.sort(key=lambda n: -seconds.get(n, args.limit))  # nothing is known of a new one: it may be slow
    with ThreadPoolExecutor(args.workers) as pool:
        for done in as_completed(
            [pool.submit(_measured, args.kind, n, args.rival, args.limit) for n in todo]
        ):
            row = done.result()
            rows[row["name"]] = row
            if not args.only:
                _write(args.kind, [rows[n] for n in names if n in rows], len(names), table)
            print(_progress(row, f"{len(rows)}/{len(names)}"), flush=True)
    if args.only:
        print(json.dumps([rows[n] for n in names], indent=1))
    return int(any(verdict(r) not in ("ok", "skipped") for r in rows.values()))


def _rows_in(table: Path) -> list[dict[str, Any]]:
    return json.loads(table.read_text()) if table.exists() else []


def _progress(row: dict[str, Any], position: str) -> str:
    graphs = {m: row[m].get("graphs") for m in ("eval", "train") if m in row}
    remarks = [*(x for r in _results(row) for x in (_remarks(r) if "graphs" in r else [r["raised"]]))]
    why = row.get("died") or _why_skipped(row) or "; ".join(remarks)
    return f"{position} {row['name']} ({row['seconds']} s): {verdict(row)} {graphs} rival {row.get('rival')} {why}"


def _write(kind: str, rows: list[dict[str, Any]], total: int, table: Path) -> None:
    """In whole or not at all: the sweep may be stopped at any time."""
    for path, text in (
        (table, json.dumps(rows, indent=1) + "\n"),
        (table.with_suffix(".md"), markdown(kind, rows, total)),
    ):
        new = path.with_suffix(".new")
        new.write_text(text)
        new.replace(path)


if __name__ == "__main__":
    sys.exit(main())
