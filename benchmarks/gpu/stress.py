"""What only shows under load: threads on streams of their own, devices side by side, CUDA graphs captured again and again.

    python -m benchmarks.gpu.stress [--seconds 60] [--captures 1000]

Every result is compared with eager's, and memory must be what it was: the program fails where it is not.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import smelt
from benchmarks.gpu import device
from tests.harness.threads import in_threads

THREADS = 8
CLOSE = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


class Block(nn.Module):
    """Products, a normalization, a reduction over rows and over columns in the backward, a gather."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, width)
        self.first, self.norm, self.last = (
            nn.Linear(width, 2 * width),
            nn.LayerNorm(2 * width),
            nn.Linear(2 * width, 32),
        )

    def forward(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.last(self.norm(F.gelu(self.first(self.embedding(tokens))))), wanted)


def step(run: Callable[..., torch.Tensor], model: nn.Module, *given: torch.Tensor) -> list[torch.Tensor]:
    """The loss and its gradients."""
    model.zero_grad(set_to_none=True)
    loss = run(*given)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def work(place: torch.device, seed: int, end: float, count: list[int], failed: threading.Event) -> None:
    """One thread: steps until the time `end`, on a stream of its own, each compared with eager's of the same numbers."""
    stream = torch.cuda.Stream(place)
    generator = torch.Generator().manual_seed(seed)
    with torch.cuda.device(place), torch.cuda.stream(stream):
        width = 64 + 8 * (seed % 3)  # some threads have the same kernels, some have others
        model = Block(width).to(place)
        given = [torch.randint(32, (48,), generator=generator).to(place) for _ in range(2)]
        want = [t.clone() for t in step(model, model, *given)]
        compiled = smelt.compile(model, fullgraph=True)
        while time.monotonic() < end and not failed.is_set():
            for _ in range(20):
                got = step(compiled, model, *given)
            try:
                CLOSE(got, want)
            except AssertionError:
                failed.set()
                raise
            count[seed] += 20
        stream.synchronize()


def threads(places: list[torch.device], seconds: float) -> str:
    """Threads in turn on `places`."""
    count, failed = [0] * THREADS, threading.Event()

    def all_of(last: float) -> None:
        end = time.monotonic() + last
        in_threads(partial(work, places[n % len(places)], n, end, count, failed) for n in range(THREADS))

    all_of(5.0)
    before = [held(place) for place in places]
    all_of(seconds)
    after = [held(place) for place in places]
    grown = [b - a for a, b in zip(before, after)]
    assert max(grown) <= 0, f"memory grew by {grown} bytes"
    return f"{THREADS} threads and streams on {len(places)} GPU(s): {sum(count)} steps in {seconds + 5:.0f} s, all right"


def held(place: torch.device) -> int:
    """Bytes, without the workspaces that cuBLAS has for each thread and stream."""
    torch.cuda.synchronize(place)
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated(place)


def captures(count: int) -> str:
    """A step is captured by the user's own graph, and by smelt's, `count` times each."""
    model = Block(64).cuda()
    given = [torch.randint(32, (48,), device="cuda") for _ in range(2)]
    with torch.no_grad():
        want = model(*given)
    compiled, x = smelt.compile(model), given

    def by_the_user() -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            got = compiled(*x)
        graph.replay()
        CLOSE(got, want)

    def by_smelt() -> None:
        replayed = smelt.compile(model, mode="reduce-overhead")
        with torch.no_grad():
            for _ in range(5):
                CLOSE(replayed(*x), want)

    with torch.no_grad():
        compiled(*x)
    held_after = []
    for again in (by_the_user, by_smelt):
        for number in range(count):
            again()
            if number == count // 10:
                smelt.reset() if again is by_smelt else None
                before = torch.cuda.memory_reserved(), held(torch.device("cuda"))
            if again is by_smelt and number % 100 == 99:
                smelt.reset()
        smelt.reset() if again is by_smelt else None
        torch.cuda.empty_cache()
        after = torch.cuda.memory_reserved(), held(torch.device("cuda"))
        assert after[1] <= before[1], f"memory grew: {before} to {after}"
        held_after.append(f"{before[0] >> 20} to {after[0] >> 20} MiB reserved")
    return f"{count} captures by the user and by smelt, all right; {', '.join(held_after)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--captures", type=int, default=1000)
    options = parser.parse_args()
    device.ready()
    every = [torch.device("cuda", n) for n in range(torch.cuda.device_count())]
    print(threads(every[:1], options.seconds), flush=True)
    if len(every) > 1:
        print(threads(every[:2], options.seconds), flush=True)
    print(captures(options.captures), flush=True)


if __name__ == "__main__":
    main()
