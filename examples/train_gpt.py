"""Trains a small GPT on the characters of made-up sentences, eager or compiled, with everything a real run has.

    python examples/train_gpt.py                        # compiled by smelt
    python examples/train_gpt.py --compile none         # eager
    python examples/train_gpt.py --compile torch        # torch.compile
    python examples/train_gpt.py --save checkpoints     # then go on with --resume checkpoints/step-100.pt

The file reads from top to bottom: the text, the model, the schedule, evaluation and sampling, checkpoints, and the loop
that puts them together. Nothing is downloaded. The compiler comes in by one line, `model = compiled(...)` in `train`; the
rest of what knows of it tells you what it does. How many graphs there are, each step says: that number must stand still.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from smelt import events
from smelt.report.inspect import graph_count


@dataclass(frozen=True)
class Options:
    """One run. Each field is an option of the command line: `weight_decay` is `--weight-decay`."""

    compile: str = "smelt"  # smelt, torch or none
    steps: int = 300
    seed: int = 1
    out: str = ""  # a file for the loss curve, one JSON object per line
    save: str = ""  # a folder for checkpoints
    save_every: int = 100
    resume: str = ""  # a checkpoint to go on from; all other options must be those of the run that wrote it
    bf16: bool = False  # autocast the model to bfloat16
    sample: int = 200  # characters written at the end

    layers: int = 4
    heads: int = 4
    width: int = 128
    context: int = 64
    dropout: float = 0.1

    batch: int = 16
    lr: float = 3e-3
    warmup: int = 20
    weight_decay: float = 0.1
    clip: float = 1.0
    eval_every: int = 50
    eval_batches: int = 4


# ---------------------------------------------------------------------------------------------------------- the text

# What `$name` may be replaced by. Colours and melting points belong to their metals: a model can learn them.
GRAMMAR = {
    "story": ["$morning $middle $middle $evening\n"],
    "morning": ["At dawn $who lights the furnace.", "$who comes with a $load of $ore.", "The $furnace is cold."],
    "middle": ["$who $works the $ore.", "$fact", "$fact", "Then $who asks: $question", "The $furnace $burns."],
    "evening": ["At night $who $rests.", "$who pours it into the $mould.", "The $mould is full."],
    "who": ["the smith", "the old smith", "her daughter", "the apprentice", "a stranger"],
    "load": ["cart", "basket", "sack"],
    "ore": ["copper ore", "iron ore", "tin ore", "lead ore"],
    "works": ["crushes", "washes", "weighs", "roasts", "melts"],
    "rests": ["sleeps", "sings", "counts the bars", "sweeps the floor"],
    "furnace": ["furnace", "small furnace", "great furnace"],
    "burns": ["roars", "glows $colour", "needs more charcoal", "eats the charcoal"],
    "colour": ["red", "orange", "yellow", "white"],
    "mould": ["mould", "clay mould", "stone mould"],
    "fact": [
        "Copper is red and melts at 1085 degrees.",
        "Iron is grey and melts at 1538 degrees.",
        "Tin is white and melts at 232 degrees.",
        "Lead is blue and melts at 327 degrees.",
        "Gold is yellow and melts at 1064 degrees.",
        "Of copper and tin comes bronze.",
        "Of copper and zinc comes brass.",
    ],
    "question": ["is it hot enough?", "where is the $load?", "is this $ore?", "who works the bellows?"],
}  # fmt: skip


def written(characters: int, seed: int = 0) -> str:
    """At least that many characters of stories, the same ones for the same seed."""
    chance = random.Random(seed)

    def expanded(symbol: str) -> str:
        return re.sub(r"\$(\w+)", lambda found: expanded(found[1]), chance.choice(GRAMMAR[symbol]))

    text = ""
    while len(text) < characters:
        sentences = re.split(r"(?<=[.?]) ", expanded("story"))
        text += " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)
    return text


class Text:
    """A text as numbers, one for each character; the last tenth is kept for evaluation."""

    def __init__(self, text: str) -> None:
        self.alphabet = sorted(set(text))
        self.number_of = {character: number for number, character in enumerate(self.alphabet)}
        numbers = self.encoded(text)
        held_out = len(numbers) // 10
        self.training, self.evaluation = numbers[:-held_out], numbers[-held_out:]

    def encoded(self, text: str) -> Tensor:
        return torch.tensor([self.number_of[character] for character in text])

    def decoded(self, numbers: list[int]) -> str:
        return "".join(self.alphabet[number] for number in numbers)


class Batches:
    """Endless batches of (characters, next characters), both (batch, context); each epoch has an order of its own.

    Where it stands is two numbers, so a checkpoint can hold it.
    """

    def __init__(self, numbers: Tensor, options: Options) -> None:
        self.windows = numbers[: (len(numbers) - 1) // options.context * options.context + 1]
        self.batch, self.context, self.seed = options.batch, options.context, options.seed
        self.count = len(self.windows) // self.context // self.batch
        self.epoch = self.position = 0
        self.order = self._shuffled()

    def _shuffled(self) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        return torch.randperm(len(self.windows) // self.context, generator=generator)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        if self.position == self.count:
            self.epoch, self.position = self.epoch + 1, 0
            self.order = self._shuffled()
        chosen = self.order[self.position * self.batch : (self.position + 1) * self.batch]
        self.position += 1
        windows = self.windows[chosen[:, None] * self.context + torch.arange(self.context + 1)]
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]
        self.order = self._shuffled()


# --------------------------------------------------------------------------------------------------------- the model


class Attention(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.heads, self.dropout = options.heads, options.dropout
        self.qkv = nn.Linear(options.width, 3 * options.width, bias=False)
        self.out = nn.Linear(options.width, options.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        width = options.width
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(options)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """Logits of the next character at each position, and their loss where the next characters are given."""

    def __init__(self, characters: int, options: Options) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, options.width)
        self.position = nn.Parameter(torch.zeros(options.context, options.width))
        self.dropout = nn.Dropout(options.dropout)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.width)
        self.head = nn.Linear(options.width, characters, bias=False)
        self.head.weight = self.embedding.weight  # tied
        self.apply(self._initialize)
        # Each layer adds twice to the residual stream, which should not grow with depth.
        for block in self.blocks:
            for last in (block.attention.out, block.mlp[-1]):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * options.layers))

    @staticmethod
    def _initialize(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, characters: Tensor, following: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.dropout(self.embedding(characters) + self.position[: characters.shape[1]])
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if following is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1).float(), following.flatten())


def compiled(model: nn.Module, compiler: str) -> nn.Module:
    """The model as the training loop calls it; its parameters stay those of `model`."""
    if compiler == "none":
        return model
    return smelt.compile(model) if compiler == "smelt" else torch.compile(model)


# ------------------------------------------------------------------------------------- the optimizer and its schedule


def make_optimizer(model: nn.Module, options: Options) -> torch.optim.Optimizer:
    """AdamW; matrices decay, biases and the scales of norms do not."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95))


def schedule(options: Options) -> Callable[[int], float]:
    """The factor of the learning rate at a step: a linear warmup, then half a cosine down to a tenth."""

    def factor(step: int) -> float:
        if step < options.warmup:
            return (step + 1) / (options.warmup + 1)
        progress = (step - options.warmup) / max(1, options.steps - options.warmup)
        return 0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2

    return factor


# ----------------------------------------------------------------------------------------- evaluation, and a sample


def autocast(options: Options) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=options.bf16)


@torch.no_grad()
def evaluate(model: nn.Module, numbers: Tensor, options: Options) -> float:
    """The mean loss on the first batches of `numbers`, always the same ones, without dropout."""
    model.eval()
    batches = Batches(numbers, options)
    with autocast(options):
        losses = [model(*next(batches))[1].item() for _ in range(options.eval_batches)]
    model.train()
    return sum(losses) / len(losses)


@torch.no_grad()
def sample(model: nn.Module, text: Text, options: Options, start: str = "\n") -> str:
    """Characters that the model writes after `start`.

    The window has the same shape for each of them, so one graph serves all: attention is causal, what stands behind
    the last character does not matter.
    """
    model.eval()
    generator = torch.Generator().manual_seed(options.seed)
    window = torch.zeros(1, options.context, dtype=torch.int64)
    numbers = text.encoded(start).tolist()
    for _ in range(options.sample):
        seen = numbers[-options.context :]
        window[0, : len(seen)] = torch.tensor(seen)
        with autocast(options):
            logits, _ = model(window)
        chances = F.softmax(logits[0, len(seen) - 1].float() / 0.8, dim=0)
        numbers.append(int(torch.multinomial(chances, 1, generator=generator)))
    model.train()
    return text.decoded(numbers)


# -------------------------------------------------------------------------------------------------------- checkpoints


def save(path: Path, step: int, **parts: Any) -> None:
    """All that the rest of the run depends on: each part's state, how many steps are done, the random generator."""
    states = {name: part.state_dict() for name, part in parts.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"step": step, "random": torch.get_rng_state(), **states}, path)


def restore(path: str, **parts: Any) -> int:
    """Puts everything back as `save` found it; returns how many steps were done."""
    checkpoint = torch.load(path, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(checkpoint[name])
    torch.set_rng_state(checkpoint["random"])
    return checkpoint["step"]


# ----------------------------------------------------------------------------------------------------------- the loop


class Curve:
    """One dictionary for each step, kept and written to a file as they come; a resumed run goes on in the same file."""

    def __init__(self, path: str, start: int) -> None:
        self.rows: list[dict[str, Any]] = []
        earlier = Path(path).read_text().splitlines(keepends=True)[:start] if path and start else []
        self.file = open(path, "w") if path else None  # noqa: SIM115  (closed by `close`)
        self._write("".join(earlier))

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self._write(json.dumps(row) + "\n")

    def _write(self, text: str) -> None:
        if self.file is not None:
            self.file.write(text)
            self.file.flush()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def told(event: events.Event, say: Callable[[str], None]) -> None:
    """What smelt compiles, at the moment when it does, and why it has to."""
    if event.kind == "recompile":
        say(f"    no graph for this call; {event.data['failure']}")
    elif event.kind in ("entry-installed", "backward-compiled"):
        what = "backward" if event.kind == "backward-compiled" else event.name
        say(f"    {what} compiled in {event.data['seconds']:.2f} s")
    elif event.kind in ("fallback", "graph-break"):
        say(f"    {event.kind}: {event.data['reason']}")


def train(options: Options, say: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Runs the training that `options` describe; returns the loss curve from the first step that was made here."""
    torch.manual_seed(options.seed)
    text = Text(written(200_000))
    batches = Batches(text.training, options)
    original = GPT(len(text.alphabet), options)
    optimizer = make_optimizer(original, options)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(options))
    model = compiled(original, options.compile)

    parts = {"model": original, "optimizer": optimizer, "schedule": scheduler, "data": batches}
    first = restore(options.resume, **parts) if options.resume else 0
    curve = Curve(options.out, first)
    say(f"{sum(p.numel() for p in original.parameters()):,} parameters, {len(text.alphabet)} characters")

    with events.subscribed(lambda event: told(event, say)):
        for step in range(first, options.steps):
            began = time.perf_counter()
            characters, following = next(batches)
            with autocast(options):
                _, loss = model(characters, following)
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(original.parameters(), options.clip)
            lr = scheduler.get_last_lr()[0]
            optimizer.step()
            scheduler.step()
            row = {"step": step, "loss": loss.item(), "norm": norm.item(), "lr": lr}
            row["ms"] = round(1e3 * (time.perf_counter() - began), 2)
            if (step + 1) % options.eval_every == 0:
                row["evaluation"] = evaluate(model, text.evaluation, options)
            if options.compile == "smelt":
                row["graphs"] = graph_count(model)
            curve.add(row)
            say(described(row))
            if options.save and (step + 1) % options.save_every == 0:
                save(Path(options.save) / f"step-{step + 1}.pt", step + 1, **parts)
        if options.sample:
            say(sample(model, text, options))
    curve.close()
    return curve.rows


def described(row: dict[str, Any]) -> str:
    line = f"step {row['step']:4d}  loss {row['loss']:.4f}  lr {row['lr']:.2e}  {row['ms']:7.1f} ms"
    line += f"  graphs {row['graphs']}" if "graphs" in row else ""
    return line + (f"  evaluation {row['evaluation']:.4f}" if "evaluation" in row else "")


def from_command_line(arguments: list[str] | None = None) -> Options:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    for name, default in asdict(Options()).items():
        flag = "--" + name.replace("_", "-")
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif name == "compile":
            parser.add_argument(flag, choices=("smelt", "torch", "none"), default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default, help=f"default: {default!r}")
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    train(from_command_line())
