"""Models over sizes that change: how long the first pass over them takes, compiling included, and a call of a later one.

    python -m benchmarks.gpu.dynamic [--sets 12] [--seed 1] [--only BERT] [--training] [--out DIR]

Random sets of sizes, the same for each contestant: eager, smelt by default, with `dynamic=True` and
with sizes that are numbers, and torch.compile with `dynamic=True`.
Each result is compared with eager's. Writes dynamic.md. Nothing is asserted of times. With SMELT_SIMULATED=1 without a GPU,
to try the script: figures mean nothing then.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

import smelt
from benchmarks.gpu import device
from smelt.report.inspect import entries, reasons

Inputs = dict[str, torch.Tensor]
LIMIT = 64  # entries of a function of fixed sizes


class Images(nn.Module):
    """A few blocks of a ResNet, by channels of its first stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        self.blocks = nn.ModuleList(_block(64) for _ in range(4))
        self.head = nn.Linear(64, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = (x + block(x)).relu()
        return self.head(x.mean((2, 3)))


def _block(channels: int) -> nn.Module:
    def half() -> tuple[nn.Module, nn.Module]:
        return nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)

    return nn.Sequential(*half(), nn.ReLU(), *half())


def bert(small: bool) -> nn.Module:
    """BERT base; `small`: to try the script."""
    layers, width = (2, 64) if small else (12, 768)
    return transformers.BertModel(
        transformers.BertConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // 64 * 2 if small else 12,
            intermediate_size=4 * width,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def gpt2(small: bool) -> nn.Module:
    """GPT-2 without its head."""
    layers, width = (2, 64) if small else (12, 768)
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=width, n_head=width // 64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    config.use_cache = False
    return transformers.GPT2Model(config)


def tokens(draw: random.Random, small: bool) -> Inputs:
    """Ids of (batch, length)."""
    shape = (
        (draw.randint(2, 4), draw.randint(4, 24)) if small else (draw.randint(2, 32), draw.randint(16, 256))
    )
    return {"input_ids": torch.randint(1000, shape, device="cuda")}


def padded(draw: random.Random, small: bool) -> Inputs:
    """Ids of (batch, length), and how long each row is, as a mask."""
    ids = tokens(draw, small)["input_ids"]
    ends = torch.tensor([draw.randint(1, ids.shape[1]) for _ in ids], device="cuda")
    return {
        "input_ids": ids,
        "attention_mask": (torch.arange(ids.shape[1], device="cuda") < ends[:, None]).long(),
    }


def images(draw: random.Random, small: bool) -> Inputs:
    """(batch, 3, height, width) of one size."""
    batch, size = (draw.randint(2, 3), 16) if small else (draw.randint(2, 64), draw.randint(64, 224))
    return {"x": torch.randn(batch, 3, size, size, device="cuda")}


Make = Callable[[bool], nn.Module]
MODELS: dict[str, tuple[Make, Callable[[random.Random, bool], Inputs]]] = {
    "BERT": (bert, padded),
    "GPT-2": (gpt2, tokens),
    "ResNet-like": (lambda small: Images(), images),
}
CONTESTANTS: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda model: model,
    "smelt": smelt.compile,
    "smelt, dynamic=True": lambda model: smelt.compile(model, dynamic=True),
    "smelt, fixed sizes": lambda model: smelt.compile(
        model, dynamic=False, options={"recompile_limit": LIMIT}
    ),
    "torch.compile, dynamic=True": lambda model: torch.compile(model, dynamic=True),
}


def outcome(model: nn.Module, call: Callable[..., Any], given: Inputs, training: bool) -> torch.Tensor:
    """What it gives; with `training` the backward runs, too, and gradients are left in the parameters."""
    with torch.set_grad_enabled(training), torch.autocast("cuda", torch.bfloat16):
        found = call(**given)
        found = found if isinstance(found, torch.Tensor) else found.last_hidden_state
    if training:
        model.zero_grad(set_to_none=True)
        found.float().square().mean().backward()
    return found.detach()


def seconds(model: nn.Module, call: Callable[..., Any], calls: Sequence[Inputs], training: bool) -> float:
    """Of one call with each."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for given in calls:
        outcome(model, call, given, training)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def differs(model: nn.Module, call: Callable[..., Any], calls: Sequence[Inputs], training: bool) -> str:
    """The largest difference from eager, relative to the largest number: of results and gradients."""
    worst = 0.0
    for given in calls:
        want = [outcome(model, model, given, training), *_gradients(model, training)]
        got = [outcome(model, call, given, training), *_gradients(model, training)]
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            a, b = a.double(), b.double()
            worst = max(worst, ((a - b).abs().max() / b.abs().max().clamp(min=1e-6)).item())
    return f"{worst:.1e}"


def _gradients(model: nn.Module, training: bool) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None] if training else []


def rows(name: str, options: argparse.Namespace) -> list[str]:
    """Lines of the table: one for each contestant."""
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    with torch.device("cuda"):
        model = make(device.SIMULATED)
    model = model.cuda().train(options.training)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eval()  # its running numbers are the same for all contestants
    draw = random.Random(options.seed)
    calls = [inputs(draw, device.SIMULATED) for _ in range(options.sets)]
    lines = []
    for who, compiled in CONTESTANTS.items():
        if device.SIMULATED and who.startswith("torch.compile"):
            continue
        torch.compiler.reset()
        call = compiled(model)
        first = seconds(model, call, calls, options.training)
        again = min(seconds(model, call, calls, options.training) for _ in range(options.rounds))
        ours = who.startswith("smelt")
        count = f"{len(entries(call))}{', then eager' if reasons(call) else ''}" if ours else "–"
        worst = differs(model, call, calls, options.training)
        lines.append(f"| {name} | {who} | {first:.2f} | {again * 1e3 / len(calls):.2f} | {count} | {worst} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", type=int, default=12, help="how many sets of sizes (default: 12)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help=f"some of {', '.join(MODELS)}, separated by commas")
    parser.add_argument("--training", action="store_true", help="steps of training without an optimizer")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu"))
    options = parser.parse_args()
    caches = tempfile.mkdtemp()  # what earlier runs left there would be found
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["SMELT_CACHE_DIR"] = caches
    device.ready()
    names = options.only.split(",") if options.only else list(MODELS)
    table = [line for name in names for line in rows(name, options)]
    facts = ", ".join(f"{k} {v}" for k, v in device.facts("benchmarks.gpu.dynamic").items())
    text = "\n".join(
        [
            "# Sizes that change, on a GPU",
            "",
            f"{facts}. {options.sets} sets of sizes{', training' if options.training else ''}, bf16 autocast. The last"
            " column is the largest difference from eager, relative to the largest number.",
            "",
            "| | | first pass, s | a call of a later pass, ms | entries | difference |",
            "| --- | --- | --- | --- | --- | --- |",
            *table,
        ]
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"dynamic{'-training' if options.training else ''}.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
