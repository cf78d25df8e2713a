"""Whole programs as one compiled function: generation, a rollout, optimizers, training steps.

    python -m benchmarks.loops [--out DIR]

Each program is run eagerly and under `smelt.compile`, results compared; the table gives the number of graphs that smelt and
torch.compile make of it (calls as in the program: two of each).
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

# the function, and arguments for its next call
Program = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]
FAILURES = {"internal-error", "backend-failed"}  # what ran eagerly because of them agrees, and is no success
PROGRAMS: dict[str, Callable[[], Program]] = {}


def program(build: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[build.__name__] = build
    return build


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=100, max_position_embeddings=128, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def _generation(**options: Any) -> Program:
    model = _llama()
    tokens = torch.randint(1, 100, (2, 8))

    def generate(tokens: Any) -> Any:
        return model.generate(tokens, max_new_tokens=12, do_sample=False, **options)

    return generate, lambda: (tokens,)


@program
def generate_with_growing_cache() -> Program:
    return _generation()


@program
def generate_with_static_cache() -> Program:
    return _generation(cache_implementation="static")


@program
def generate_with_beams() -> Program:
    return _generation(num_beams=3)


@program
def beam_search_by_hand() -> Program:
    torch.manual_seed(0)
    embed, cell, head = nn.Embedding(20, 16), nn.GRUCell(16, 16), nn.Linear(16, 20)

    def search(start: Any, width: int = 3, steps: int = 6) -> Any:
        with torch.no_grad():
            beams = [([start], torch.zeros(1, 16), 0.0)]
            for _ in range(steps):
                candidates = []
                for tokens, state, score in beams:
                    state = cell(embed(torch.tensor([tokens[-1]])), state)
                    best = head(state).log_softmax(-1)[0].topk(width)
                    for value, token in zip(best.values.tolist(), best.indices.tolist()):
                        candidates.append((tokens + [token], state, score + value))
                beams = sorted(candidates, key=lambda c: -c[2])[:width]
            return [(tokens, round(score, 4)) for tokens, _, score in beams]

    return search, lambda: (1,)


class _Pole:
    """A toy environment: balance a number near zero."""

    def __init__(self) -> None:
        self.position, self.speed, self.time = 0.1, 0.0, 0

    def step(self, action: int) -> tuple[Any, float, bool]:
        self.speed += 0.05 if action else -0.05
        self.position += self.speed
        self.time += 1
        return self.observe(), 1.0 - abs(self.position), abs(self.position) > 1 or self.time >= 20

    def observe(self) -> torch.Tensor:
        return torch.tensor([self.position, self.speed])


@program
def rollout_of_a_policy() -> Program:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def rollout(environment: Any) -> Any:
        observation, rewards, actions, done = environment.observe(), [], [], False
        with torch.no_grad():
            while not done:
                action = int(policy(observation).argmax())
                observation, reward, done = environment.step(action)
                rewards.append(reward)
                actions.append(action)
        return sum(rewards), actions

    return rollout, lambda: (_Pole(),)


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def _optimizer_step(make: Callable[..., Any]) -> Program:
    network = _network()
    optimizer = make(network.parameters())

    def arguments() -> tuple[Any, ...]:
        torch.manual_seed(1)
        network.zero_grad()
        network(torch.randn(16, 8)).square().mean().backward()
        return ()

    def step() -> Any:
        optimizer.step()
        return [p.detach().clone() for p in network.parameters()]

    return step, arguments


def _training_step(make: Callable[..., Any]) -> Program:
    network = _network()
    optimizer = make(network.parameters())

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = (network(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), [p.detach().clone() for p in network.parameters()]

    def arguments() -> tuple[Any, ...]:
        return torch.randn(16, 8), torch.randn(16, 4)

    return step, arguments


@program
def sgd_step() -> Program:
    return _optimizer_step(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


@program
def adamw_step() -> Program:
    return _optimizer_step(lambda p: torch.optim.AdamW(p, lr=0.01))


@program
def training_step_with_sgd() -> Program:
    return _training_step(lambda p: torch.optim.SGD(p, lr=0.1))


@program
def training_step_with_adamw() -> Program:
    return _training_step(lambda p: torch.optim.AdamW(p, lr=0.01))


def results(
    build: Callable[[], Program], compile: Callable[[Any], Any], calls: int = 2
) -> tuple[Any, list[Any]]:
    """The compiled function, and what `calls` calls of a fresh program return."""
    function, arguments = build()
    compiled = compile(function)
    torch.manual_seed(2)
    return compiled, [compiled(*arguments()) for _ in range(calls)]


def _rival(build: Callable[[], Program]) -> str:
    count = 0

    def backend(graph: Any, examples: Any) -> Any:
        nonlocal count
        count += 1
        return graph.forward

    torch._dynamo.reset()
    try:
        results(build, lambda f: torch.compile(f, backend=backend))
    except Exception as error:
        return f"{type(error).__name__} after {count}"
    return str(count)


def _row(name: str) -> tuple[list[str], bool]:
    import smelt
    from smelt.report import inspect

    smelt.reset()
    _, want = results(PROGRAMS[name], lambda f: f)
    compiled, got = results(PROGRAMS[name], smelt.compile)
    try:
        torch.testing.assert_close(got, want)
        agree = True
    except AssertionError:
        agree = False
    kinds = list(dict.fromkeys(r.kind.id for r in inspect.reasons(compiled)))
    agree &= not FAILURES & set(kinds)
    graphs = str(inspect.graph_count(compiled))
    return [
        name.replace("_", " "),
        "yes" if agree else "NO",
        graphs,
        _rival(PROGRAMS[name]),
        ", ".join(kinds),
    ], agree


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="benchmarks/results")
    parser.add_argument("--only", action="append", default=[])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines, fine = [], True
    for name in args.only or PROGRAMS:
        row, agrees = _row(name)
        fine &= agrees
        lines.append("| " + " | ".join(row) + " |")
        print(lines[-1], flush=True)
    head = [
        "# Whole programs as one compiled function",
        "",
        f"{datetime.date.today()}, torch {torch.__version__}, Python {platform.python_version()}, "
        "`python -m benchmarks.loops`.",
        "Graphs over two calls. What smelt's are cut at stands in the last column ([reasons](../../docs/graph-breaks.md)).",
        "",
        "| program | eager's results | graphs, smelt | graphs, torch.compile | cut at |",
        "| --- | --- | --- | --- | --- |",
    ]
    if not args.only:
        Path(args.out, "loops.md").write_text("\n".join([*head, *lines]) + "\n")
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
