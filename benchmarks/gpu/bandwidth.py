"""How much of a copy's bandwidth memory-bound programs reach on a GPU: the bytes that must be moved, over the time.

    python -m benchmarks.gpu.bandwidth [--only NAME] [--contestants eager,torch.compile,smelt] [--small] [--out DIR]

Writes bandwidth.json and .md after each row. Bytes are those of what a program is given and gives, each once; a step of
AdamW reads parameters, gradients and two moments, and writes all but the gradients.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu import contestants, device, timing
from benchmarks.gpu.tables import with_failures
from benchmarks.run import write

f32, bf16 = torch.float32, torch.bfloat16
Tensors = tuple[torch.Tensor, ...]
Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """`make(scale)` gives the bytes that must be moved and what runs, as a function of how a contestant is made."""

    name: str
    make: Callable[[float], tuple[int, Callable[[Callable[[Any], Any]], Call]]]


def _bytes(*tensors: torch.Tensor) -> int:
    return sum(t.nbytes for t in tensors)


def _rand(rows: int, *columns: int, dtype: torch.dtype = bf16) -> torch.Tensor:
    return torch.randn(rows, *columns, device="cuda", dtype=dtype)


def _forward(fn: Callable[..., Any], *given: torch.Tensor) -> Any:
    """Without gradients; what is read, and one result like the first tensor, are moved."""

    def call(run: Any) -> Any:
        with torch.no_grad():
            return run(*given)

    return _bytes(*given, given[0]), lambda make: partial(call, make(fn))


def _step(fn: Callable[..., Any], moved: int, *given: torch.Tensor) -> Any:
    """Forward and backward, from ones or a fixed tangent."""
    leaves = [t.requires_grad_() for t in given if t.is_floating_point()]
    tangent = torch.ones_like(fn(*given))

    def call(run: Any) -> Any:
        for leaf in leaves:
            leaf.grad = None
        run(*given).backward(tangent)

    return moved, lambda make: partial(call, make(fn))


def softmax(scale: float, dtype: torch.dtype) -> Any:
    return _forward(lambda x: x.softmax(-1), _rand(int(65_536 * scale), 4096, dtype=dtype))


def _norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def _normed(scale: float) -> Tensors:
    return _rand(int(65_536 * scale), 4096), _rand(4096), _rand(4096)


def layer_norm(scale: float) -> Any:
    return _forward(_norm, *_normed(scale))


def layer_norm_step(scale: float) -> Any:
    """Forward: read, write; backward: input and tangent read, gradient written."""
    given = _normed(scale)
    return _step(_norm, 5 * given[0].nbytes, *given)


def bias_gelu(scale: float) -> Any:
    return _forward(lambda x, b: F.gelu(x + b), _rand(int(65_536 * scale), 4096), _rand(4096))


def _rotated(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = q.chunk(2, dim=-1)
    return q * cos + torch.cat((-right, left), dim=-1) * sin


def rotary(scale: float) -> Any:
    angles = _rand(4096, 128, dtype=f32)
    q = torch.randn(max(1, int(16 * scale)), 32, 4096, 128, device="cuda", dtype=bf16)
    return _forward(_rotated, q, angles.cos().to(bf16), angles.sin().to(bf16))


def _entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), target)


def _classes(scale: float) -> Tensors:
    rows, classes = int(4096 * scale), 128_256
    return _rand(rows, classes), torch.randint(0, classes, (rows,), device="cuda")


def cross_entropy(scale: float) -> Any:
    """Only reads."""
    logits, target = _classes(scale)
    moved, made = _forward(_entropy, logits, target)
    return moved - logits.nbytes, made


def cross_entropy_step(scale: float) -> Any:
    """Read forward and backward, gradient written."""
    logits, target = _classes(scale)
    return _step(_entropy, 3 * logits.nbytes, logits, target)


def transpose_add(scale: float) -> Any:
    size = int(16_384 * scale**0.5)
    return _forward(lambda x, y: x + y.t(), _rand(size, size, dtype=f32), _rand(size, size, dtype=f32))


def adamw(scale: float, fused: bool) -> Any:
    """60 matrices of 4096×4096 elements, a billion in all; state is shared, and made by an eager step."""
    size = int(4096 * scale**0.5)
    parameters = [torch.nn.Parameter(_rand(size, size, dtype=f32)) for _ in range(60)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=fused, foreach=not fused)
    optimizer.step()
    return 7 * _bytes(*parameters), lambda make: make(optimizer.step)


CASES = [
    Case("softmax, float32, 65536×4096", partial(softmax, dtype=f32)),
    Case("softmax, 65536×4096", partial(softmax, dtype=bf16)),
    Case("layer norm, 65536×4096", layer_norm),
    Case("layer norm, forward and backward", layer_norm_step),
    Case("gelu(x + bias), 65536×4096", bias_gelu),
    Case("rotary embedding, 16×32×4096×128", rotary),
    Case("cross entropy, 4096×128256", cross_entropy),
    Case("cross entropy, forward and backward", cross_entropy_step),
    Case("x + y.t(), float32, 16384×16384", transpose_add),
    Case("AdamW, 1 billion parameters", partial(adamw, fused=False)),
    Case("AdamW(fused=True), 1 billion parameters", partial(adamw, fused=True)),
]


def copy_bandwidth(moved: int) -> float:
    """Bytes per second of a copy that moves as much, at most 4 GiB."""
    source = torch.empty(min(moved, 4 << 30) // 8, device="cuda", dtype=f32).fill_(1)
    target = torch.empty_like(source)
    seconds = timing.interleaved({"copy": lambda: target.copy_(source)}, 0.3)["device"]["copy"]
    return 2 * source.nbytes / seconds


def measured(case: Case, who: list[str], scale: float, seconds: float) -> dict[str, Any]:
    """A row: bytes moved, of each contestant the bandwidth; what failed, why."""
    moved, made = case.make(scale)
    row: dict[str, Any] = {"name": case.name, "moved": moved, "copy": copy_bandwidth(moved), "failed": {}}
    calls: dict[str, Call] = {}
    for name in who:
        call = made(partial(contestants.made, name))
        try:
            call()
            calls[name] = call
        except Exception as error:
            row["failed"][name] = f"{type(error).__name__}: {error}"[:300]
    times = timing.interleaved(calls, seconds)
    row["bandwidth"] = {name: moved / t for name, t in times["device"].items()}
    row["host_s"] = times["host"]
    return row


def table(rows: list[dict[str, Any]], who: list[str]) -> str:
    """Markdown: GB/s, and the part of a copy's."""
    heads = [
        "program",
        "GB moved",
        "copy, GB/s",
        *(f"{w}, GB/s" for w in who),
        *(f"{w}, of a copy" for w in who),
    ]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in rows:
        found = [row["bandwidth"].get(w) for w in who]
        cells = [row["name"], f"{row['moved'] / 1e9:.2f}", f"{row['copy'] / 1e9:.0f}"]
        cells += [f"{b / 1e9:.0f}" if b else "–" for b in found]
        cells += [f"{b / row['copy']:.0%}" if b else "–" for b in found]
        lines.append(f"| {' | '.join(cells)} |")
    return with_failures(lines, rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="a part of a program's name; may be repeated")
    parser.add_argument("--contestants", type=contestants.names, default=list(contestants.USUAL))
    parser.add_argument("--seconds", type=float, default=1.5, help="of timing a program (default: 1.5)")
    parser.add_argument("--small", action="store_true", help="a 64th of the size, to try the script")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu"))
    return parser.parse_args()


def main() -> None:
    options = _options()
    device.ready()
    contestants.prepare(options.contestants)
    saved = options.out / "bandwidth.json"
    old = json.loads(saved.read_text())["rows"] if options.only and saved.exists() else []
    rows = {row["name"]: row for row in old}
    facts = device.facts("benchmarks.gpu.bandwidth")
    text = ""
    for case in CASES:
        if options.only and not any(part in case.name for part in options.only):
            continue
        begin = time.monotonic()
        rows[case.name] = measured(case, options.contestants, 1 / 64 if options.small else 1, options.seconds)
        torch.cuda.empty_cache()
        print(f"{case.name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        said = ", ".join(f"{k}: {v}" for k, v in facts.items())
        ordered = [rows[c.name] for c in CASES if c.name in rows]
        text = f"# Bandwidth on a GPU, bf16 unless said\n\n{said}.\n\n{table(ordered, options.contestants)}"
        write(saved, {"facts": facts, "rows": ordered}, text)
    print(text)


if __name__ == "__main__":
    main()
