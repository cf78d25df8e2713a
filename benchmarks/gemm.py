"""Generated matrix products against ATen's: GFLOP/s, with weights in cache (hot) and not (cold).

    python -m benchmarks.gemm [--threads 1 2] [--shapes 128x768x768 ...] [--repeats 15]

A row is one product: form (A and B; T: given transposed, as nn.Linear's weight is), rows x columns x depth, with a bias.
Contestants: smelt's plan of one launch, `aten.addmm` (`aten.bmm` for batches), and oneDNN's linear on the plain weight,
where that operator exists. Cold: every call takes another weight, more of them than the caches hold, as a
model's layers do. Contestants alternate; each figure is from the smallest time of each (weight, contestant).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from smelt.codegen.call_selection.call_requests import Request
from smelt.codegen.call_selection.gemm_calls import plan_product
from smelt.codegen.gemm_profitability import prefers_native
from smelt.codegen.llvm.gemm.compile_gemm import compile_products
from smelt.codegen.llvm.gemm.gemm_spec import Product
from smelt.codegen.plan_loading import load
from smelt.config import DEFAULT
from smelt.graph.ir import TensorSpec
from smelt.plan.steps import Alloc, Launch, Plan
from smelt.targets import cpu

COLD_BYTES = 128 << 20
aten = torch.ops.aten


@dataclass(frozen=True)
class Case:
    form: str
    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def gflop(self) -> float:
        return 2e-9 * self.m * self.n * self.k * self.batch

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{self.form} {batch}{self.m}x{self.n}x{self.k}"


LINEAR = [
    Case(form, m, n, k)
    for form in ("NT", "NN")
    for m in (1, 4, 16, 64, 128, 512)
    for n, k in ((768, 768), (3072, 768), (768, 3072))
]
OTHER = [
    *(Case("NT", 197, n, k) for n, k in ((192, 192), (576, 192), (768, 192), (192, 768), (1000, 192))),
    *(
        Case("NT", m, n, k)
        for m, n, k in ((64, 1000, 2048), (128, 2048, 512), (512, 1024, 1024), (16, 30522, 768))
    ),
    *(Case(form, m, m, 64, 12) for form in ("NT", "NN") for m in (64, 128, 197)),
    *(Case("NN", m, 64, m, 12) for m in (64, 128, 197)),
]
CASES = [*LINEAR, *OTHER]

Contestant = Callable[[torch.Tensor], object]  # of B


def _spec(t: torch.Tensor) -> TensorSpec:
    return TensorSpec(tuple(t.shape), t.stride(), t.dtype, t.device)


def _matrix(rows: int, cols: int, batch: int, transposed: bool) -> torch.Tensor:
    shape = (batch, cols, rows) if transposed else (batch, rows, cols)
    x = torch.randn(shape)
    x = x.mT if transposed else x
    return x[0] if batch == 1 else x


def _smelt(case: Case, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> tuple[Product, Contestant]:
    """The product, and a native plan that allocates the result and launches it."""
    args, op = ((bias, a, b), aten.addmm.default) if case.batch == 1 else ((a, b), aten.bmm.default)
    out = op(*args)
    request = plan_product(op, [_spec(x) for x in args], _spec(out), "product")
    assert isinstance(request, Request), request
    (compiled,) = compile_products([request.product])
    alloc = Alloc(len(args), tuple(out.shape), out.stride(), out.dtype, out.device)
    launch = Launch("product", (*request.operands, len(args)), compiled.extent, compiled.grain)
    kernels = {"product": compiled.function}
    plan = load(Plan(len(args), (), len(args) + 1, (alloc, launch), (len(args),), kernels=kernels))
    return request.product, lambda b: plan((bias, a, b) if case.batch == 1 else (a, b))


def _aten(case: Case, a: torch.Tensor, bias: torch.Tensor) -> Contestant:
    return (lambda b: aten.addmm(bias, a, b)) if case.batch == 1 else (lambda b: aten.bmm(a, b))


def _onednn(case: Case, a: torch.Tensor, bias: torch.Tensor) -> Contestant | None:
    if case.batch > 1 or case.form != "NT" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return None
    return lambda b: torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")


def _times(contestants: Sequence[Contestant], weights: Sequence[torch.Tensor], repeats: int) -> list[float]:
    """Seconds per call of each: smallest over repeats, mean over weights."""
    best = [[float("inf")] * len(weights) for _ in contestants]
    for _ in range(repeats):
        for call, times in zip(contestants, best):
            for i, weight in enumerate(weights):
                start = time.perf_counter()
                call(weight)
                times[i] = min(times[i], time.perf_counter() - start)
    return [statistics.fmean(times) for times in best]


def measure(case: Case, repeats: int) -> str:
    """One line of the table."""
    a, bias = _matrix(case.m, case.k, case.batch, case.form[0] == "T"), torch.randn(case.n)
    count = min(64, max(2, COLD_BYTES // (4 * case.n * case.k * case.batch)))
    weights = [_matrix(case.k, case.n, case.batch, case.form[1] == "T") for _ in range(count)]
    product, smelt = _smelt(case, a, weights[0], bias)
    others = [c for c in (_aten(case, a, bias), _onednn(case, a, bias)) if c is not None]
    cells = []
    for some in (weights[:1], weights):
        times = _times((smelt, *others), some, repeats if len(some) > 1 else 5 * repeats)
        rates = [case.gflop / t for t in times] + [float("nan")] * (2 - len(others))
        cells.append(
            f"{rates[0]:7.1f} {rates[1]:7.1f} {rates[2]:7.1f}  {rates[0] / max(rates[1:], key=_known):5.2f}"
        )
    costs = cpu.target(DEFAULT).costs.products
    choice = (
        "native" if costs is not None and prefers_native(costs, torch.get_num_threads(), product) else "aten"
    )
    return f"{case!s:<22} {' | '.join(cells)} | {choice}"


def _known(rate: float) -> float:
    return rate if rate == rate else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, nargs="*", default=[1])
    parser.add_argument(
        "--shapes", nargs="*", help="ROWSxCOLUMNSxDEPTH, as nn.Linear and as a row-major product"
    )
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    cases = CASES
    if options.shapes:
        sizes = [tuple(map(int, s.split("x"))) for s in options.shapes]
        cases = [Case(form, *size) for form, size in itertools.product(("NT", "NN"), sizes)]
    for threads in options.threads:
        torch.set_num_threads(threads)
        print(f"{threads} thread(s), GFLOP/s; x: smelt over the best other")
        print(
            f"{'':<22} {'hot: smelt aten onednn      x':>30} | {'cold: smelt aten onednn     x':>30} | cost rule"
        )
        for case in cases:
            print(measure(case, options.repeats), flush=True)


if __name__ == "__main__":
    main()
