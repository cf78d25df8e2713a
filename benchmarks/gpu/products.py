"""Matrix products with what is done to their results, on a GPU: cuBLAS and a kernel, beside what max-autotune takes.

    python -m benchmarks.gpu.products [--only NAME] [--torch-compile] [--small] [--out DIR]

Writes products.json and .md. Times are the device's own, without what the host needs; "cuBLAS + kernel" is smelt without
max-autotune, "error" is relative, against float64. No row begins after `--seconds-budget`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import smelt
from benchmarks.gpu import device
from benchmarks.gpu.tables import with_failures
from benchmarks.gpu.timing import first_call, in_time
from benchmarks.run import write
from smelt.codegen.autotune import autotuner, device_timing

f32, bf16 = torch.float32, torch.bfloat16
EAGER, CUBLAS, TUNED, TORCH = "eager", "cuBLAS + kernel", "max-autotune", "torch.compile max-autotune"
MODE = "max-autotune-no-cudagraphs"


def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w, b)


def gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


def residual(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return r + F.linear(x, w, b)


def gate(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w)


def plain_residual(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return r + F.linear(x, w)


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.bmm(q, k.transpose(1, 2)) * 0.125


def mixed(probabilities: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.bmm(probabilities, v)


def cast_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """As autocast does it, each time."""
    return F.gelu(F.linear(x, w.to(x.dtype), b))


@dataclass(frozen=True)
class Case:
    """`dtypes` of the tensors, the last one for the rest."""

    name: str
    fn: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...] = (bf16,)

    def tensors(self, scale: int) -> list[torch.Tensor]:
        """Rows of the first are divided by `scale`, and of what has as many."""
        rows = self.shapes[0][0]
        kinds = [*self.dtypes, *[self.dtypes[-1]] * len(self.shapes)]
        return [
            (torch.randn(max(n // scale, 1) if n == rows else n, *rest, device="cuda") / 4).to(kind)
            for (n, *rest), kind in zip(self.shapes, kinds)
        ]


BERT, LLAMA, VIT = 32 * 128, 4 * 1024, 64 * 197
CASES = [
    Case("BERT 32×128: bias", linear, ((BERT, 768), (768, 768), (768,))),
    Case("BERT 32×128: bias, gelu", gelu, ((BERT, 768), (3072, 768), (3072,))),
    Case("BERT 32×128: bias, residual", residual, ((BERT, 3072), (768, 3072), (768,), (BERT, 768))),
    Case("BERT 32×128: q @ k.T / 8", scores, ((384, 128, 64), (384, 128, 64))),
    Case("BERT 32×128: p @ v", mixed, ((384, 128, 128), (384, 128, 64))),
    Case("BERT 32×128: weight cast, bias, gelu", cast_gelu, ((BERT, 768), (3072, 768), (3072,)), (bf16, f32, bf16)),
    Case("Llama 4×1024: projection", plain, ((LLAMA, 2048), (2048, 2048))),
    Case("Llama 4×1024: silu(gate) * up", gate, ((LLAMA, 2048), (5632, 2048), (5632, 2048))),
    Case("Llama 4×1024: down, residual", plain_residual, ((LLAMA, 5632), (2048, 5632), (LLAMA, 2048))),
    Case("Llama, 4 tokens: silu(gate) * up", gate, ((4, 2048), (5632, 2048), (5632, 2048))),
    Case("ViT-B 64: bias", linear, ((VIT, 768), (2304, 768), (2304,))),
    Case("ViT-B 64: bias, gelu", gelu, ((VIT, 768), (3072, 768), (3072,))),
    Case("ViT-B 64: bias, residual", residual, ((VIT, 3072), (768, 3072), (768,), (VIT, 768))),
]  # fmt: skip


def makers(with_torch: bool) -> dict[str, Callable[[Any], Any]]:
    """Contestants."""
    found: dict[str, Callable[[Any], Any]] = {
        EAGER: lambda fn: fn,
        CUBLAS: partial(smelt.compile, fullgraph=True),
        TUNED: partial(smelt.compile, fullgraph=True, mode=MODE),
    }
    return found | ({TORCH: partial(torch.compile, mode=MODE)} if with_torch else {})


def measured(case: Case, with_torch: bool, scale: int) -> dict[str, Any]:
    """A row: seconds on the device and of the first call, errors, and what was chosen for the products."""
    args = case.tensors(scale)
    exact = case.fn(*(a.double() for a in args))
    row: dict[str, Any] = {"name": case.name, "first_s": {}, "error": {}, "failed": {}}
    calls: dict[str, Callable[[], Any]] = {}
    known = set(autotuner._REMEMBERED)
    for who, make in makers(with_torch).items():
        call = partial(make(case.fn), *args)
        try:
            result, row["first_s"][who] = first_call(call)
        except Exception as error:
            row["failed"][who] = f"{type(error).__name__}: {error}"[:300]
            continue
        row["error"][who] = float((result.double() - exact).norm() / exact.norm())
        calls[who] = call
    row["seconds"] = device_timing.seconds(calls, EAGER, torch.device("cuda:0"))
    chosen = [c for key, c in autotuner._REMEMBERED.items() if key not in known]
    row["chosen"] = [c and {"variant": c.variant, **vars(c.tile)} for c in chosen]
    return row


def _tile(choice: dict[str, int] | None) -> str:
    if choice is None:
        return "cuBLAS"
    text = "{x}×{r}×{k}, {warps} warps, {stages} stages".format(**choice)
    return text + (" (cast within)" if choice["variant"] else "")


def table(rows: list[dict[str, Any]], who: list[str]) -> str:
    """Markdown."""
    heads = ["program", *(f"{w}, us" for w in who), "of cuBLAS + kernel", "chosen", "tuning, s"]
    heads += [f"error: {w}" for w in (EAGER, TUNED)]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in rows:
        took, errors = row["seconds"], row["error"]
        cells = [row["name"], *(f"{took[w] * 1e6:.1f}" if w in took else "–" for w in who)]
        cells.append(f"{took[TUNED] / took[CUBLAS]:.2f}" if TUNED in took and CUBLAS in took else "–")
        cells += ["; ".join(map(_tile, row["chosen"])) or "known", f"{row['first_s'].get(TUNED, 0):.1f}"]
        cells += [f"{errors[w]:.1e}" if w in errors else "–" for w in (EAGER, TUNED)]
        lines.append(f"| {' | '.join(cells)} |")
    return with_failures(lines, rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="a part of a program's name; may be repeated")
    parser.add_argument(
        "--torch-compile", action="store_true", help="its max-autotune too, which takes minutes"
    )
    parser.add_argument("--small", action="store_true", help="few rows, to try the script")
    parser.add_argument("--seconds-budget", type=float, default=80)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu"))
    return parser.parse_args()


def main() -> None:
    options = _options()
    device.ready()
    rows = []
    facts = device.facts("benchmarks.gpu.products")
    text = ""
    for case in in_time(CASES, options.only, options.seconds_budget):
        with torch.no_grad():
            rows.append(measured(case, options.torch_compile, 64 if options.small else 1))
        torch.cuda.empty_cache()
        said = ", ".join(f"{k}: {v}" for k, v in facts.items())
        found = table(rows, list(makers(options.torch_compile)))
        text = f"# Products on a GPU, bf16\n\n{said}.\n\n{found}"
        write(options.out / "products.json", {"facts": facts, "rows": rows}, text)
    print(text)


if __name__ == "__main__":
    main()
