"""Programs whose sizes data decide: compiled once and called with many data, beside eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import smelt
from smelt import events
from smelt.report.inspect import entries, reasons
from tests.harness.agreement import check_no_failure, compare, observe, same, tensors

# How much of what could be selected is: some, none, ...
DATA = ("some", "none", "one", "two", "all", "most", "some")
Make = Callable[[Callable[[int], torch.Tensor]], tuple[Any, ...]]


@dataclass
class Ran:
    """What became of a program: its entries and the reasons of its breaks; for which data the original function ran."""

    entries: int
    reasons: tuple[Any, ...]
    again: list[str]

    @property
    def is_one_graph(self) -> bool:
        return self.entries == 1 and not self.reasons


def mask_of(kind: str) -> Callable[[int], torch.Tensor]:
    """What makes masks of `n` elements of which so many are true, at random places."""

    def mask(n: int) -> torch.Tensor:
        count = {"some": n // 2, "none": 0, "one": 1, "two": 2, "all": n, "most": n - 1}[kind]
        made = torch.zeros(n, dtype=torch.bool)
        made[torch.randperm(n)[:count]] = True
        return made

    return mask


def run(
    function: Callable[..., Any], make: Make, *, gradients: bool, module: Any = None, **options: Any
) -> Ran:
    """Calls `function` with what `make` gives for each kind of data, compiled and eager: results, arguments, aliases, random
    numbers, and gradients if wanted, must be the same. `module`: has the parameters."""
    torch.manual_seed(0)
    again: list[str] = []
    kind = ""

    def note(event: events.Event) -> None:
        if event.kind == "unbacked-mismatch":
            again.append(kind)

    compiled = smelt.compile(function, **options)
    with events.subscribed(note):
        for number, kind in enumerate(DATA):
            torch.manual_seed(100 + number)
            arguments = make(mask_of(kind))
            theirs = copy.deepcopy(arguments)
            if gradients:
                for given in (arguments, theirs):
                    for t in tensors(given):
                        if t.is_floating_point():
                            t.requires_grad_()
            with torch.set_grad_enabled(gradients):
                want, got = observe(function, arguments, number), None
                wanted = _gradients(want.result, arguments, module) if gradients else None
                got = observe(compiled, theirs, number)
                if gradients and want.error is None:
                    assert got.error is None, got.error
                    same(_gradients(got.result, theirs, module), wanted, f"gradients, {kind}")
            for arg in (*tensors(arguments), *tensors(theirs)):
                arg.grad = None
            try:
                compare(got, want)
            except AssertionError as error:
                raise AssertionError(f"{kind}: {error}") from error
    check_no_failure(compiled)
    return Ran(len(entries(compiled)), reasons(compiled), again)


def _gradients(result: Any, arguments: Any, module: Any) -> list[torch.Tensor | None]:
    leaves = [t for t in tensors(arguments) if t.requires_grad]
    leaves += list(module.parameters()) if module is not None else []
    loss = torch.zeros(())
    for i, t in enumerate(t for t in tensors(result) if t.requires_grad):
        loss = loss + (t * torch.linspace(1, 2 + i, t.numel()).view(t.shape)).sum()
    if not loss.requires_grad:
        return []
    return list(torch.autograd.grad(loss, leaves, allow_unused=True))
