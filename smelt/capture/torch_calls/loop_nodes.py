"""The node of a loop statement, and the tensors that its variables may be after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.semantics import held_numbers
from smelt.capture.torch_calls import control_flow
from smelt.capture.torch_calls.subgraph_capture import (
    RecordedFunction,
    check_nodes,
    cut_out,
    refuse,
    with_own_storage,
)
from smelt.capture.torch_calls.subgraph_nodes import record
from smelt.capture.vm.vm import VM
from smelt.graph.ir import Node
from smelt.graph.subgraphs import Loop
from smelt.tracing.fake.fake_tensor import FakeTensor, class_of_fake


def end_loop(
    vm: VM,
    functions: control_flow.RecordedPair,
    carried: Sequence[FakeTensor],
    inside: Sequence[FakeTensor],
    results: Sequence[FakeTensor],
    names: Sequence[str | None],
    held: Mapping[Node, FakeTensor],
    kept: tuple[frozenset[int], FakeTensor],
) -> tuple[list[FakeTensor], FakeTensor | None]:
    """The final values of a loop statement whose step, recorded on the proxies `inside`, gives `results`. The last of them
    decides whether the loop goes on. `names`: of the variables that are tensors; None for the tensor of a number. `held`:
    the proxies that hold the numbers which the step takes. `kept`: the variables that keep their tensors unless this
    condition holds. The second result is a condition under which gradients reach the tensors that eager's reach, if it may
    fail. Raises Unsupported."""
    control_flow.check_quiet(vm, functions)
    start, tape = functions.marks[0], vm.trace.tape
    check_nodes(tape.torch.graph.nodes[start.torch :])
    if vm.trace.writes.calls[start.writes :]:
        raise refuse("a step of the loop writes in place")
    before = control_flow.ExistingTensors(vm, start.entries, inside)
    if not vm.trace.copies.allowed:
        raise refuse("later code writes or compares a result of the loop")
    if any(f.device.type != "cpu" for f in carried):
        raise refuse("a loop on a GPU")
    aliases = _Aliases(before, inside, results[: len(names)])
    if any(
        control_flow.has_attributes(f) or class_of_fake(f) is not torch.Tensor for f in (*carried, *results)
    ):
        raise refuse("a variable of the loop is no plain tensor")
    layouts = [[with_own_storage(f.spec) for f in values] for values in (carried, results)]
    for name, one, other in zip(names, *layouts):
        if one != other:
            raise refuse(f"the loop changes the type or layout of `{name}`")
    differentiated = torch.is_grad_enabled() and any(f.requires_grad for f in (*carried, *results))
    counts = differentiated or aliases.exist or bool(kept[0]) or any(f.requires_grad for f in carried)
    if counts:  # the steps, and those in which `kept` variables change
        zero = held_numbers.tensor_of(vm, 0)
        inside = [*control_flow.proxies(vm, [zero, zero]), *inside]
        results = [
            cast(FakeTensor, vm.call_native(torch.add, (inside[0], 1))),
            cast(FakeTensor, vm.call_native(torch.add, (inside[1], kept[1] if kept[0] else 1))),
            *results,
        ]
    step = RecordedFunction(cut_out(vm.trace, start), results)
    test = RecordedFunction([], [inside[-1]])
    first = [*(held_numbers.tensor_of(vm, 0) for _ in range(2)), *carried] if counts else carried
    program, tensors, _ = control_flow.program_of(
        vm, Loop(len(first)), (test, step), first, inside, held=held
    )
    final = record(vm.trace, program, tensors)
    steps, changes = (final.pop(0), final.pop(0)) if counts else (None, None)
    least = program.least_steps
    for i, (name, result) in enumerate(zip(names, final)):
        if name is not None:
            found, then = aliases.of(i, carried)
            others = [n for n, f in enumerate(found, 1) if f.requires_grad is not result.requires_grad]
            if then is not None and then.requires_grad is not result.requires_grad:
                raise refuse(f"whether `{name}` requires gradients is decided by the loop")
            least = max(least, *others, 0)
            _set_loop_alternatives(vm, result, changes if i in kept[0] else steps, carried[-1], found, then)
    vm.assumptions.choosing -= 1
    enough = cast(FakeTensor, vm.call_native(torch.ge, (changes, least))) if least else None
    return final[: len(names)], enough


class _Aliases:
    """The variables of a loop whose next values are tensors that exist before the step: those of other variables, or of
    none. Raises Unsupported for parts of such tensors, and for new tensors that share memory."""

    def __init__(
        self,
        before: control_flow.ExistingTensors,
        inside: Sequence[FakeTensor],
        results: Sequence[FakeTensor],
    ) -> None:
        position = {id(proxy): i for i, proxy in enumerate(inside)}
        new = [f.storage_key for f in results if not before.shares(f)]
        if len(set(new)) < len(new) or any(before.shares(f) and not before.holds(f) for f in results):
            raise refuse("a variable of the loop shares memory with another one")
        self._next = {i: position.get(id(f), f) for i, f in enumerate(results) if before.shares(f)}
        self.exist = bool(self._next)

    def of(self, variable: int, first: Sequence[FakeTensor]) -> tuple[list[FakeTensor], FakeTensor | None]:
        """The tensors that the variable has after 0 steps, 1, and so on, and the one that it has after all further ones;
        None for new ones. Raises Unsupported where variables exchange their tensors."""
        found = [first[variable]]
        while variable in self._next:
            following = self._next[variable]
            if isinstance(following, FakeTensor):
                return found, following
            if len(found) > len(self._next):
                raise refuse("variables of the loop exchange their tensors")
            variable = following
            found.append(first[variable])
        return found, None


def _set_loop_alternatives(
    vm: VM,
    result: FakeTensor,
    steps: FakeTensor | None,
    enters: FakeTensor,
    found: Sequence[FakeTensor],
    then: FakeTensor | None,
) -> None:
    """Record the tensors that eager has in place of the final value of a variable after 0 steps, 1, and so on, and
    `then`."""
    if steps is None:
        return control_flow.set_alternatives(vm, result, enters, [], [(enters, found[0])])
    compared = [(torch.eq, i) for i in range(len(found))] + [(torch.ge, len(found))]
    tensors = found if then is None else [*found, then]
    conditions = (cast(FakeTensor, vm.call_native(compare, (steps, i))) for compare, i in compared)
    result.alternatives = tuple(zip(conditions, tensors))
    vm.trace.copies.add(result, tensors)
