"""Kernels of memory-bound programs, one by one: the bandwidth of each with the blocks that the rule chose, and with others.

    python -m benchmarks.gpu.blocks [--sweep] [--only NAME] [--seconds 100] [--compile-only] [--out DIR]

Programs are traced and scheduled for the device, each kernel is launched by itself, on memory that no cache holds. Bytes are
those of what a kernel is given and gives, each once. `--sweep` tries block sizes and numbers of warps around those that were
chosen, of kernels of 8 MB and more, and where sums are computed beside rows, more and fewer chunks of rows. `--seconds`: no
kernel begins after so many. `--compile-only` needs no GPU and measures nothing. Writes blocks.json and .md.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu import device  # first: it says that smelt compiles for GPUs

# isort: split
import torch
import torch.nn.functional as F

from benchmarks.run import write
from smelt import _native
from smelt.codegen.triton.block_sizes import Blocks, choose, power, stage_points
from smelt.codegen.triton.kernel_source import Source, triton_source
from smelt.codegen.triton.ptx import Ptx, to_ptx
from smelt.loops.kernel_ir import Kernel, stage_stores, stage_values, walk
from smelt.loops.row_sums import parts
from smelt.ops.lowering import lower
from smelt.schedule.schedule import KernelItem
from smelt.schedule.schedule_program import fuse
from smelt.shapes.expr import bounds
from smelt.targets.cuda import COSTS
from tests.harness.traced import traced

f32, bf16 = torch.float32, torch.bfloat16
aten = torch.ops.aten
DEVICE = (
    "cuda" if torch.cuda.is_available() else "cpu"
)  # some operators are lowered for a GPU in their own way
SMS = 132  # where there is no device to ask
POOL = 8 << 30  # bytes that kernels work on
UNCACHED = 256 << 20  # bytes that launches go through before they come back to what they touched
LARGE = 8 << 20  # bytes of a kernel that is swept
SHARED = 48 << 10  # bytes that a launch may have without being asked for
Program = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def _of(*shape: int, dtype: torch.dtype = bf16, **how: Any) -> torch.Tensor:
    """Nobody looks into it: memory is not touched."""
    return torch.empty(shape, dtype=dtype, device=DEVICE, **how)


def _sum(dims: tuple[int, ...] | None, *shape: int, **how: Any) -> Program:
    return (lambda x: x.sum() if dims is None else x.sum(dims)), (_of(*shape, **how),)


def _mean(*shape: int, **how: Any) -> Program:
    return (lambda x: x.mean((2, 3))), (_of(*shape, **how),)


def _batch_norm(**how: Any) -> Program:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> Any:
        return F.batch_norm(x, m, v, w, b, True)

    return f, (_of(64, 256, 56, 56, **how), *(_of(256, dtype=f32) for _ in range(4)))


def _layer_norm(rows: int, width: int) -> Program:
    return (lambda x, w, b: F.layer_norm(x, (width,), w, b)), (_of(rows, width), _of(width), _of(width))


def _added_and_normed(rows: int, width: int) -> Program:
    def f(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        total = x + y
        return total, F.layer_norm(total, (width,), w, b)

    return f, (_of(rows, width), _of(rows, width), _of(width), _of(width))


def _layer_norm_backward(rows: int, width: int) -> Program:
    def f(
        g: torch.Tensor, x: torch.Tensor, m: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor
    ) -> Any:
        return aten.native_layer_norm_backward(g, x, [width], m, r, w, b, [True] * 3)

    row = partial(_of, rows, 1, dtype=f32)
    return f, (_of(rows, width), _of(rows, width), row(), row(), _of(width), _of(width))


def _softmax(rows: int, width: int, dtype: torch.dtype = bf16) -> Program:
    return (lambda x: x.softmax(-1)), (_of(rows, width, dtype=dtype),)


def _entropy() -> Program:
    return (lambda x: F.log_softmax(x.float(), -1).amax(-1)), (_of(4096, 128_256),)


def _cross_entropy() -> Program:
    def f(x: torch.Tensor, t: torch.Tensor) -> Any:
        return F.cross_entropy(x.float(), t)

    return f, (_of(4096, 128_256), _of(4096, dtype=torch.int64))


def _entropy_backward() -> Program:
    """By the maximum and the logarithm of the sum of each row, which the forward keeps."""

    def f(*given: torch.Tensor) -> Any:
        x, t, g, n, top, log = given
        y = x.float() - top - log
        return aten._log_softmax_backward_data(
            aten.nll_loss_backward(g, y, t, None, 1, -100, n), y, 1, f32
        ).to(bf16)

    one = _of(dtype=f32)
    row = partial(_of, 4096, 1, dtype=f32)
    return f, (_of(4096, 128_256), _of(4096, dtype=torch.int64), one, torch.empty_like(one), row(), row())


def _turned(shape: tuple[int, ...], *dims: int, dtype: torch.dtype = bf16) -> Program:
    return (lambda x: x.permute(dims).contiguous()), (_of(*shape, dtype=dtype),)


def _to_channels_last() -> Program:
    return (lambda x: x.contiguous(memory_format=torch.channels_last)), (_of(64, 256, 56, 56),)


LAST: dict[str, Any] = dict(memory_format=torch.channels_last)
PROGRAMS: dict[str, Callable[[], Program]] = {
    "sum of columns, 65536×4096": partial(_sum, (0,), 65_536, 4096),
    "sum of columns, float32, 65536×4096": partial(_sum, (0,), 65_536, 4096, dtype=f32),
    "sum of columns, 4096×65536": partial(_sum, (0,), 4096, 65_536),
    "sum of columns, 256×1M": partial(_sum, (0,), 256, 1 << 20),
    "sum of columns, 65537×768": partial(_sum, (0,), 65_537, 768),
    "sum of rows, 65536×4096": partial(_sum, (1,), 65_536, 4096),
    "sum of everything, 65536×4096": partial(_sum, None, 65_536, 4096),
    "mean of pixels, 64×2048×7×7": partial(_mean, 64, 2048, 7, 7),
    "mean of pixels, channels last, 64×2048×7×7": partial(_mean, 64, 2048, 7, 7, **LAST),
    "mean of pixels, 64×256×56×56": partial(_mean, 64, 256, 56, 56),
    "batch norm, 64×256×56×56": _batch_norm,
    "batch norm, channels last": partial(_batch_norm, **LAST),
    **{f"layer norm, 8192×{n}": partial(_layer_norm, 8192, n) for n in (768, 1024, 2048, 4096, 8192)},
    "layer norm, 65536×4096": partial(_layer_norm, 65_536, 4096),
    **{f"layer norm of a sum, 65536×{n}": partial(_added_and_normed, 65_536, n) for n in (1024, 4096, 8192)},
    **{f"layer norm backward, {m}×{n}": partial(_layer_norm_backward, m, n)
       for m, n in ((8192, 768), (8192, 1024), (8192, 4096), (65_536, 4096))},
    **{f"softmax, {2**28 // n}×{n}": partial(_softmax, 2**28 // n, n)
       for n in (128, 512, 1024, 4096, 8192, 16_384, 32_768, 131_072)},
    "softmax, float32, 65536×4096": partial(_softmax, 65_536, 4096, f32),
    "log softmax, 4096×128256": _entropy,
    "cross entropy, 4096×128256": _cross_entropy,
    "cross entropy backward, 4096×128256": _entropy_backward,
    "gelu(x + bias), 65536×4096": lambda: ((lambda x, b: F.gelu(x + b)), (_of(65_536, 4096), _of(4096))),
    "gelu(x + bias), 65536×3072": lambda: ((lambda x, b: F.gelu(x + b)), (_of(65_536, 3072), _of(3072))),
    "x + y.t(), float32, 16384×16384": lambda: (
        (lambda x, y: x + y.t()), (_of(16_384, 16_384, dtype=f32), _of(16_384, 16_384, dtype=f32))
    ),
    "transpose, 16384×16384": partial(_turned, (16_384, 16_384), 1, 0),
    "transpose, float32, 16384×16384": partial(_turned, (16_384, 16_384), 1, 0, dtype=f32),
    "heads, 16×32×4096×128": partial(_turned, (16, 32, 4096, 128), 0, 2, 1, 3),
    "keys, 16×32×4096×128": partial(_turned, (16, 32, 4096, 128), 0, 1, 3, 2),
    "to channels last, 64×256×56×56": _to_channels_last,
}  # fmt: skip


# ---- what is tried


def kernels(program: Program, workers: int, **changes: Any) -> list[Kernel]:
    """Those of the program's schedule, under costs with `changes`."""
    costs = replace(COSTS, threads=workers, **changes)
    graph, _ = traced(program[0], *program[1])
    items = fuse(lower(graph, costs), costs).items
    return [item.kernel for item in items if isinstance(item, KernelItem)]


def scheduled(program: Program, workers: int, sweep: bool) -> list[Kernel]:
    """The kernels of the program; `sweep`: also those with more and with fewer chunks of rows."""
    found = kernels(program, workers)
    if sweep and any(k.sums is not None for k in found):
        for items in (1, 2, 8):
            others = kernels(program, workers, worker_items=items, least_rows=4)
            found += [k for k in others if k not in found]
    return found


def candidates(kernel: Kernel) -> list[Blocks]:
    """Blocks around those that are chosen, which come first."""
    chosen = choose(kernel)
    longest = max(map(stage_points, kernel.stages)) if chosen.across is None else chosen.across.size
    is_whole = chosen.across is None and chosen.r >= longest  # type: ignore[operator]
    factors = (1, 0.5, 2)
    found = [chosen]
    for x, r, warps in itertools.product(factors, (1,) if is_whole else (*factors, 4), factors):
        blocks = replace(chosen, x=int(chosen.x * x), r=int(chosen.r * r), warps=int(chosen.warps * warps))
        each = blocks.x * max(blocks.r, 1) / (32 * max(blocks.warps, 1))
        whole = blocks.r <= power(longest) if blocks.r else True  # type: ignore[arg-type]
        if (
            blocks not in found
            and blocks.x
            and blocks.warps
            and blocks.warps <= 32
            and 2 <= each <= 64
            and whole
        ):
            if blocks.r or not chosen.r:
                found.append(blocks)
    return [
        b for blocks in found for b in ((blocks, replace(blocks, ahead=False)) if blocks.ahead else (blocks,))
    ]


def extents(kernel: Kernel) -> list[tuple[int, int]]:
    """Of each buffer: bytes that it has at least, and bytes that are moved."""
    tops = [0] * len(kernel.buffers)
    ways: list[set[str]] = [set() for _ in kernel.buffers]
    for stage in (stage for part in parts(kernel) for stage in part.stages):
        accesses = [(s.buffer, s.index, "store") for s in stage_stores(stage)]
        loads = (v for v in walk(stage_values(stage)) if v.op == "load")
        for buffer, index, way in [*accesses, *((v.args[0], v.args[1], "load") for v in loads)]:
            tops[buffer] = max(tops[buffer], bounds(index)[1] + 1)
            ways[buffer].add(way)
    sizes = [top * b.dtype.itemsize for top, b in zip(tops, kernel.buffers)]
    written = [b.role == "out" for b in kernel.buffers]
    return [(size, size * (1 if out else len(way))) for size, way, out in zip(sizes, ways, written)]


@dataclass(frozen=True)
class Try:
    """One choice of blocks, compiled."""

    blocks: Blocks
    source: Source
    ptx: Ptx


def compiled(kernel: Kernel, blocks: Blocks) -> Try | None:
    """None where a launch would need more shared memory than launches have."""
    source = triton_source(kernel, blocks=blocks)
    ptx = to_ptx(source, 90)
    return Try(blocks, source, ptx) if ptx.shared <= SHARED else None


# ---- launches, by the driver


class Driver:
    """What is needed of it: kernels of the current context, launched on torch's current stream."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.context = ctypes.c_void_p()
        torch.zeros(1, device="cuda")
        self.check(self.library.cuCtxGetCurrent(ctypes.byref(self.context)))
        self.pool = torch.randn(POOL // 2, device="cuda", dtype=bf16)

    def check(self, code: int) -> None:
        """Raises RuntimeError for anything but success."""
        if code:
            raise RuntimeError(f"the driver says {code}")

    def load(self, ptx: Ptx) -> ctypes.c_void_p:
        """The function, of the code that the driver's linker makes, as in a plan. Thread-safe."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.library.cuCtxSetCurrent(self.context))
        code = _native.link_ptx(ptx.text.encode(), torch.cuda.current_device())
        self.check(self.library.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(code)))
        self.check(
            self.library.cuModuleGetFunction(
                ctypes.byref(function), module, ctypes.c_char_p(ptx.name.encode())
            )
        )
        return function

    def launches(
        self, tried: Try, function: ctypes.c_void_p, sizes: Sequence[int]
    ) -> Iterator[Callable[[], None]]:
        """Launches without end, each on other memory than those before it."""
        step = sum(-(-size // 512) * 512 for size in sizes)
        sets = max(1, min(POOL // step, UNCACHED // step + 1))
        made = [partial(self._launch, tried, function, self._addresses(sizes, k * step)) for k in range(sets)]
        return itertools.cycle(made)

    def _addresses(self, sizes: Sequence[int], offset: int) -> list[int]:
        starts = itertools.accumulate((-(-size // 512) * 512 for size in sizes[:-1]), initial=offset)
        return [self.pool.data_ptr() + start for start in starts]

    def _launch(self, tried: Try, function: ctypes.c_void_p, addresses: Sequence[int]) -> None:
        source, ptx = tried.source, tried.ptx
        values = [*addresses, source.points, 0, 0]  # and two null pointers
        boxes = [ctypes.c_int64(value) for value in values]
        pointers = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
        grid = -(-source.points // source.block)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        launch = self.library.cuLaunchKernel
        self.check(launch(function, grid, 1, 1, ptx.threads, 1, 1, ptx.shared, stream, pointers, None))


def seconds(launches: Iterator[Callable[[], None]]) -> float:
    """Of one launch: the median of five rounds of about a millisecond."""

    def measure(count: int) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            next(launches)()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / 1e3 / count

    measure(1)
    count = max(1, min(50, int(1e-3 / measure(2))))
    return statistics.median(measure(count) for _ in range(5))


def copy_bandwidth(driver: Driver) -> float:
    """Bytes per second, of a copy of 1 GiB."""
    half = driver.pool.view(-1)[: 1 << 29]
    other = driver.pool.view(-1)[1 << 30 :][: 1 << 29]
    return 2 * half.nbytes / seconds(itertools.repeat(lambda: other.copy_(half)))


def measured(driver: Driver | None, kernel: Kernel, sweep: bool, pool: ThreadPoolExecutor) -> dict[str, Any]:
    """A row: loops, bytes, and of each choice of blocks the bandwidth."""
    found = extents(kernel)
    sizes, moved = [size for size, _ in found], sum(m for _, m in found)
    tries = candidates(kernel) if sweep and moved >= LARGE else [choose(kernel)]
    begin = time.monotonic()
    made = [t for t in pool.map(partial(compiled, kernel), tries) if t is not None]
    row: dict[str, Any] = {
        "kernel": kernel.name,
        "loops": [
            value
            for part in parts(kernel)
            for value in ([l.size for l in part.outer], *map(stage_points, part.stages))
        ],
        "moved": moved,
        "compile_s": time.monotonic() - begin,
        "tries": [],
    }
    functions = [None] * len(made) if driver is None else list(pool.map(driver.load, (t.ptx for t in made)))
    for tried, function in zip(made, functions):
        b = tried.blocks
        time_s = seconds(driver.launches(tried, function, sizes)) if driver and function else float("nan")
        row["tries"].append(
            {
                "x": b.x,
                "r": b.r,
                "warps": b.warps,
                "ahead": b.ahead,
                "us": 1e6 * time_s,
                "bandwidth": moved / time_s,
            }
        )
    return row


def table(rows: list[dict[str, Any]], copy: float) -> str:
    """Markdown: of each kernel what was chosen and the best that was tried, as GB/s and as part of a copy."""
    lines = [
        "| program | kernel | loops | MB | chosen: x, r, warps | GB/s | of a copy | best: x, r, warps | GB/s |",
        "| --- " * 9 + "|",
    ]
    for row in rows:
        chosen, best = row["tries"][0], max(row["tries"], key=lambda t: t["bandwidth"])
        said = ["{x}, {r}, {warps}".format(**t) + ", ahead" * t["ahead"] for t in (chosen, best)]
        cells = [row["program"], row["kernel"][:40], str(row["loops"]), f"{row['moved'] / 1e6:.0f}", said[0]]
        cells += [f"{chosen['bandwidth'] / 1e9:.0f}", f"{chosen['bandwidth'] / copy:.0%}"]
        cells += [said[1], f"{best['bandwidth'] / 1e9:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="a part of a program's name; may be repeated")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu"))
    return parser.parse_args()


def main() -> None:
    options = _options()
    driver = None
    if not options.compile_only:
        device.ready()
        driver = Driver()
    workers = torch.cuda.get_device_properties(0).multi_processor_count if driver else SMS
    copy = copy_bandwidth(driver) if driver else float("nan")
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + options.seconds
    with ThreadPoolExecutor(16) as pool:
        for name, make in PROGRAMS.items():
            if options.only and not any(part in name for part in options.only):
                continue
            begin = time.monotonic()
            if begin > end:
                print(f"no time left for {name}", file=sys.stderr)
                continue
            rows += [
                {"program": name, **measured(driver, k, options.sweep, pool)}
                for k in scheduled(make(), workers, options.sweep)
            ]
            print(f"{name}: {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
    text = f"# Kernels, bf16 unless said\n\nA copy: {copy / 1e9:.0f} GB/s.\n\n{table(rows, copy)}"
    if driver:
        facts = device.facts("benchmarks.gpu.blocks")
        write(options.out / "blocks.json", {"facts": facts, "copy": copy, "rows": rows}, text)
    print(text)


if __name__ == "__main__":
    main()
