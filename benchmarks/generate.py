"""Decoding with `generate` of transformers: tokens per second, with a cache that grows and one of a fixed size.

    python -m benchmarks.generate [--tokens 64] [--rounds 5] [--layers 4] [--width 256] [--out DIR]

A GPT-2 and a Llama with random weights, prompts of two batches and lengths, greedy. `model.forward` is eager, compiled by
smelt as it is, and by torch.compile with `dynamic=True`; each rival runs in a process of its own, one after the other. A
first pass over the prompts compiles, then come `--rounds` passes: each row says what the first took, how many tokens the
best of the others decoded in a second (those of all texts of a batch), in how many entries, and whether the tokens were
eager's. Without --out the table is only printed. Run it on an otherwise idle machine; nothing is asserted of times.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import smelt
from benchmarks import measure
from smelt.report import inspect

PROMPTS = ((2, 16), (4, 33))  # batch, length
VOCABULARY = 1000
CACHES: dict[str, dict[str, Any]] = {"growing": {}, "static": {"cache_implementation": "static"}}


def gpt2(layers: int, width: int) -> Any:
    """GPT-2 with heads of 64."""
    config = transformers.GPT2Config(
        n_embd=width, n_layer=layers, n_head=max(1, width // 64), vocab_size=VOCABULARY, n_positions=1024
    )
    return transformers.GPT2LMHeadModel(config)


def llama(layers: int, width: int) -> Any:
    """Llama with heads of 64, of which two share keys and values."""
    heads = max(1, width // 64)
    config = transformers.LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        intermediate_size=3 * width,
        vocab_size=VOCABULARY,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


MODELS: dict[str, Callable[[int, int], Any]] = {"GPT-2": gpt2, "Llama": llama}
RIVALS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda forward: forward,
    "smelt": smelt.compile,
    "torch.compile, dynamic=True": lambda forward: torch.compile(forward, dynamic=True),
}


def model_of(name: str, layers: int, width: int) -> Any:
    """The model, for texts that end at no token; a static cache does not have torch.compile compile it."""
    torch.manual_seed(0)
    model = MODELS[name](layers, width).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model._valid_auto_compile_criteria = lambda *a, **k: False
    return model


def passed(model: Any, tokens: int, **options: Any) -> list[list[list[int]]]:
    """What one pass over the prompts gives."""
    found = []
    for batch, length in PROMPTS:
        generator = torch.Generator().manual_seed(length)
        ids = torch.randint(VOCABULARY, (batch, length), generator=generator)
        mask = torch.ones_like(ids)
        made = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, **options
        )
        found.append(made.tolist())
    return found


def measured(name: str, cache: str, rival: str, options: argparse.Namespace) -> dict[str, Any]:
    """A row."""
    model = model_of(name, options.layers, options.width)
    forward = model.forward = RIVALS[rival](model.forward)
    start = time.perf_counter()
    found = passed(model, options.tokens, **CACHES[cache])
    first = time.perf_counter() - start
    seconds, cpu = [], []
    for _ in range(options.rounds):
        start, start_cpu = time.perf_counter(), time.process_time()
        passed(model, options.tokens, **CACHES[cache])
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    decoded = options.tokens * sum(batch for batch, _ in PROMPTS)
    return {
        "tokens": found,
        "first": first,
        "rate": decoded / min(seconds),
        "cpu": min(cpu) * 1e3 / (options.tokens * len(PROMPTS)),
        "entries": max(len(r.entries) for _, r in inspect.records(forward)) if rival == "smelt" else None,
    }


def line(name: str, cache: str, rival: str, row: dict[str, Any], eager: dict[str, Any]) -> str:
    """A line of the table."""
    if "failed" in row:
        return f"| {name} | {cache} | {rival} | {row['failed']} | | | | |"
    same = "yes" if row["tokens"] == eager.get("tokens") else "**no**"
    entries = "–" if row["entries"] is None else str(row["entries"])
    return (
        f"| {name} | {cache} | {rival} | {row['rate']:.0f} | {row['cpu']:.2f} | {row['first']:.2f} |"
        f" {entries} | {same} |"
    )


def table(options: argparse.Namespace) -> str:
    """All rows, each measured in a process of its own."""
    lines = []
    sizes = [f"--{n}={getattr(options, n)}" for n in ("tokens", "rounds", "layers", "width")]
    for name in MODELS:
        for cache in CACHES:
            eager: dict[str, Any] = {}
            for rival in options.rival or RIVALS:
                with tempfile.TemporaryDirectory() as folder:
                    row = measure.process(
                        "benchmarks.generate", "--row", name, cache, rival, *sizes,
                        environment={"TORCHINDUCTOR_CACHE_DIR": folder},
                    )  # fmt: skip
                eager = eager or row
                lines.append(line(name, cache, rival, row, eager))
                print(lines[-1], flush=True)
    facts = (
        str(datetime.date.today()), measure.machine()["cpu"], f"{torch.get_num_threads()} threads",
        f"torch {torch.__version__}", f"transformers {transformers.__version__}",
    )  # fmt: skip
    batches = " and ".join(f"{batch} x {length}" for batch, length in PROMPTS)
    return "\n".join(
        [
            "# Decoding",
            "",
            f"{', '.join(facts)}. Command: `python -m benchmarks.generate {' '.join(sizes)}`.",
            f"{options.layers} layers of {options.width}, greedy, prompts of {batches}, {options.tokens} tokens each.",
            "",
            "| model | cache | | tokens a second | CPU time of a step, ms | first pass, s | entries | tokens of eager |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *lines,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=64, help="decoded for each text (default: 64)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument(
        "--rival", action="append", choices=RIVALS, help="only these (the first is compared with)"
    )
    parser.add_argument("--row", nargs=3, metavar=("MODEL", "CACHE", "RIVAL"), help="measure one, as JSON")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    if options.row:
        print(json.dumps(measured(*options.row, options)))
        return
    text = table(options)
    print(text)
    if options.out:
        (options.out / "generate.md").write_text(text)


if __name__ == "__main__":
    main()
