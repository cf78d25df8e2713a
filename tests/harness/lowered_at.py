"""Lowered programs at sizes: symbols replaced in a program that was lowered with them, and results of it beside eager's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.codegen.llvm import compile_kernels
from smelt.graph.ir import TensorSpec
from smelt.graph.pytree import map_leaves
from smelt.loops.kernel_ir import Kernel, Value
from smelt.loops.lazy_tensor import (
    CopyBack,
    Extern,
    Index,
    Insert,
    Load,
    Map,
    Program,
    Reduce,
    Step,
    Stored,
    Tensor,
)
from smelt.loops.loop_values import Moved
from smelt.schedule.schedule import KernelItem, Schedule
from smelt.schedule.verify_schedule import verify
from smelt.shapes.expr import Expr, Size, Sym, subs
from tests.harness.kernels import CHECKED
from tests.harness.schedule_interpreter import run
from tests.harness.symbolic_kernels import call

Values = Mapping[Sym, int]


def program_at(program: Program, values: Values) -> Program:
    """The program with numbers in the place of symbols: in specs, sizes, arguments of calls and what bodies give."""
    return _At(values).program(program)


class _At:
    def __init__(self, values: Values) -> None:
        self.values = values
        self.moved = _Substituted(values)
        self.new: dict[Tensor, Tensor] = {}

    def program(self, old: Program) -> Program:
        inputs = tuple(map(self.tensor, old.inputs))
        constants = tuple((self.tensor(t), data) for t, data in old.constants)
        steps = tuple(map(self.step, old.steps))
        return Program(
            inputs, constants, steps, tuple(None if t is None else self.new[t] for t in old.outputs)
        )

    def size(self, size: Size) -> Size:
        return subs(size, self.values)

    def spec(self, spec: TensorSpec) -> TensorSpec:
        shape, stride = (tuple(map(self.size, sizes)) for sizes in (spec.shape, spec.stride))
        return replace(spec, shape=shape, stride=stride, offset=self.size(spec.offset))

    def step(self, old: Step) -> Step:
        if isinstance(old, Tensor):
            return self.tensor(old)
        if isinstance(old, CopyBack):
            return replace(old, target=self.new[old.target], source=self.new[old.source])
        if isinstance(old, Extern):
            args, kwargs = (self.arguments(tree) for tree in (old.args, old.kwargs))
            results = tuple(None if t is None else self.tensor(t) for t in old.results)
            return replace(old, args=args, kwargs=kwargs, results=results)
        assert isinstance(old, Insert) and not old.runtime_indices, "not needed yet"
        return replace(
            old,
            target=self.new[old.target],
            source=self.new[old.source],
            at=lambda i: tuple(map(self.size, old.at(i))),
        )

    def arguments(self, tree: Any) -> Any:
        return map_leaves(map_leaves(tree, Tensor, self.new.__getitem__), Expr, self.size)

    def tensor(self, old: Tensor) -> Tensor:
        definition = old.definition
        if not isinstance(definition, Stored):
            inputs = tuple(self.new[t] for t in definition.inputs)
            definition = replace(definition, inputs=inputs)
        if isinstance(definition, Map | Reduce):
            definition = replace(definition, body=self.body(definition.body))
        if isinstance(definition, Map):
            assert definition.less is None
            known = definition.sum and (definition.sum[0], self.new[definition.sum[1]])
            definition = replace(definition, sum=known)
        if isinstance(definition, Reduce):
            definition = replace(definition, sizes=tuple(map(self.size, definition.sizes)))
        made = type(old)(old.name, self.spec(old.spec), definition, old.line, old.order)
        self.new[old] = made
        return made

    def body(self, body: Callable[..., Value]) -> Callable[..., Value]:
        def at(load: Load, *indices: Index) -> Value:
            return self.moved.value(body(_LoadAt(load, self), *indices))

        return at


class _Substituted(Moved):
    """What was loaded has no symbols: it stays as it is, also where who asks of views gives nothing."""

    def value(self, v: Value) -> Value:
        return v if v is None or v.op == "load" else super().value(v)


class _LoadAt:
    """A `Load` for bodies over the old tensors, whose indices and conditions hold symbols."""

    def __init__(self, load: Load, at: _At) -> None:
        self.load, self.at = load, at

    def __call__(self, tensor: Tensor, index: Index) -> Value:
        return self.load(self.at.new[tensor], tuple(map(self.at.size, index)))

    def where(self, mask: Value) -> Load:
        return _LoadAt(self.load.where(self.at.moved.value(mask)), self.at)


class CompiledOnce:
    """A schedule with symbols whose kernels are machine code. Called with inputs, which stay as they are, and sizes."""

    def __init__(self, schedule: Schedule) -> None:
        verify(schedule)
        self.schedule = schedule
        kernels = [item.kernel for item in schedule.items if isinstance(item, KernelItem)]
        self.code = dict(zip(map(id, kernels), compile_kernels(kernels, CHECKED)))

    def __call__(self, inputs: Sequence[torch.Tensor], values: Values) -> list[torch.Tensor | None]:
        def launch(kernel: Kernel, buffers: Sequence[torch.Tensor | None], sizes: Values) -> None:
            call(self.code[id(kernel)], [b for b in buffers if b is not None], sizes, 2)

        return run(self.schedule, [t.clone() for t in inputs], values, launch)
