"""Kernels with symbols for sizes: compiled once, run as machine code and by the interpreter at many sizes, beside eager."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from smelt.codegen.llvm import compile_kernels
from smelt.codegen.llvm.host_cpu import Host
from smelt.codegen.llvm.link import address_of
from smelt.loops.kernel_ir import Kernel
from smelt.ops.lowering import lower
from smelt.plan.machine_code import CompiledKernel
from smelt.schedule.schedule import KernelItem, Schedule
from smelt.schedule.schedule_printer import print_schedule
from smelt.schedule.schedule_program import fuse
from smelt.schedule.verify_schedule import verify
from smelt.shapes.expr import Size, Sym, evaluate
from tests.harness.kernels import CHECKED
from tests.harness.schedule_interpreter import run
from tests.harness.scheduled import costs
from tests.harness.symbolic import S0, S1, SIZES, symbolic
from tests.harness.traced import flatten

NUMBERS = (2, 3, 7, 16, 33, 101)
GUARD = 128
Sizes = Mapping[Sym, int]
TRACED: Sizes = {sym: prime for prime, sym in SIZES.items()}


def size_sets(*shapes: Sequence[Size]) -> Iterator[Sizes]:
    """Values of the symbols in `shapes`: all pairs of NUMBERS for two."""
    used = {s for shape in shapes for e in shape if not isinstance(e, int) for s in (S0, S1) if _has(e, s)}
    for a in NUMBERS if S0 in used else (5,):
        for b in NUMBERS if S1 in used else (5,):
            yield {S0: a, S1: b}


def _has(e: Size, sym: Sym) -> bool:
    return evaluate(e, {S0: 101, S1: 211}) != evaluate(e, {S0: 101, S1: 211} | {sym: 1})


class Once:
    """`f` on tensors of `shapes`, with symbols in them, traced and compiled once. Called with sizes and inputs."""

    def __init__(
        self,
        f: Callable[..., Any],
        *shapes: Sequence[Size],
        dtype: torch.dtype = torch.float32,
        target: Host | None = None,
        **changes: Any,
    ) -> None:
        self.f, self.shapes, self.dtype = f, shapes, dtype
        inputs = self.inputs(TRACED)
        graph, real = symbolic(f, *inputs)
        self.order = [next(k for k, t in enumerate(inputs) if t is r) for r in real]
        weighed = costs(**{"threads": 1, **changes})
        self.schedule: Schedule = fuse(lower(graph, weighed), weighed)
        verify(self.schedule)
        self.kernels = [i.kernel for i in self.schedule.items if isinstance(i, KernelItem)]
        self.code = dict(zip(map(id, self.kernels), compile_kernels(self.kernels, CHECKED, target)))

    def inputs(self, sizes: Sizes) -> list[torch.Tensor]:
        """Of random numbers, at these sizes."""
        return random_inputs(self.shapes, sizes, self.dtype)

    def __call__(
        self, sizes: Sizes, inputs: Sequence[torch.Tensor], pieces: int = 1
    ) -> list[torch.Tensor | None]:
        """The outputs, by machine code; each launch is cut into so many pieces."""

        def launch(kernel: Kernel, buffers: Sequence[torch.Tensor | None], sizes: Sizes) -> None:
            call(self.code[id(kernel)], [b for b in buffers if b is not None], sizes, pieces)

        return run(self.schedule, [inputs[k] for k in self.order], sizes, launch)


def random_inputs(shapes: Sequence[Sequence[Size]], sizes: Sizes, dtype: torch.dtype) -> list[torch.Tensor]:
    """Of these shapes, at these sizes."""
    torch.manual_seed(sum(sizes.values()))
    return [(torch.randn([evaluate(n, sizes) for n in shape]) * 3).to(dtype) for shape in shapes]


def call(code: CompiledKernel, tensors: Sequence[torch.Tensor], sizes: Sizes, pieces: int = 1) -> None:
    """Runs machine code on `tensors` at these sizes, its items in `pieces`, the last first. Around them it may not write,
    and what it reads there is not a number."""
    around = [Guarded(t) for t in tensors]
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
        address_of(code.function)
    )
    taken = [*(g.address for g in around), *(evaluate(e, sizes) for e in code.sizes)]
    slots = (ctypes.c_int64 * len(taken))(*taken)
    extent = evaluate(code.extent, sizes)
    cuts = [extent * k // pieces for k in range(pieces + 1)]
    for begin, end in reversed(list(zip(cuts, cuts[1:]))):
        function(ctypes.addressof(slots), begin, end)
    for guarded in around:
        guarded.give_back()


class Guarded:
    """A copy of a tensor's memory between GUARD elements on either side."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.memory = span(tensor)
        nothing = float("nan") if tensor.dtype.is_floating_point else 77
        self.guard = torch.full((GUARD,), nothing).to(tensor.dtype)
        self.copy = torch.cat([self.guard, self.memory, self.guard])
        self.inner = self.copy[GUARD : len(self.copy) - GUARD]
        self.address = self.inner.data_ptr()

    def give_back(self) -> None:
        """Checks the guards, and writes what lies between them to the tensor."""
        for found in (self.copy[:GUARD], self.copy[-GUARD:]):
            torch.testing.assert_close(found, self.guard, equal_nan=True, rtol=0, atol=0)
        self.memory.copy_(self.inner)


def span(tensor: torch.Tensor) -> torch.Tensor:
    """All memory from the tensor's first element to its last, as one dimension."""
    if tensor.numel() == 0:
        return tensor.reshape(-1)
    count = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    return tensor.as_strided((count,), (1,))


def check(
    f: Callable[..., Any],
    *shapes: Sequence[Size],
    dtype: torch.dtype = torch.float32,
    n_kernels: int | None = 1,
    target: Host | None = None,
    **tolerance: float,
) -> Once:
    """`f`, compiled once, gives what eager gives at every set of sizes; so does the interpreter."""
    once = Once(f, *shapes, dtype=dtype, target=target)
    if n_kernels is not None:
        assert len(once.kernels) == n_kernels, print_schedule(once.schedule)
    for number, sizes in enumerate(size_sets(*shapes)):
        inputs = once.inputs(sizes)
        with torch.no_grad():
            expected = flatten(f(*inputs))
        for got in (once(sizes, inputs), once(sizes, inputs, pieces=3)):
            same(got, expected, sizes, **tolerance)
        if number % 5 == 0:
            same(run(once.schedule, [inputs[k] for k in once.order], sizes), expected, sizes, **tolerance)
    return once


def same(
    got: Sequence[torch.Tensor | None], expected: Sequence[Any], sizes: Sizes, **tolerance: float
) -> None:
    assert len(got) == len(expected)
    for a, e in zip(got, expected):
        assert a is not None and a.stride() == e.stride(), f"at {sizes}"
        torch.testing.assert_close(a, e, equal_nan=True, msg=lambda m: f"at {sizes}: {m}", **tolerance)
