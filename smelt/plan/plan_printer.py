"""Text of plans."""

from __future__ import annotations

from typing import Any

import torch

from smelt.plan.steps import (
    Alloc,
    Aten,
    BumpVersion,
    Free,
    Launch,
    ParallelLaunch,
    Plan,
    Reg,
    RunPlans,
    Step,
    View,
)
from smelt.shapes.expr import Size


def print_plan(plan: Plan) -> str:
    """One line per step, with the user's line that caused it."""
    constants = ", ".join(f"r{plan.n_inputs + i}" for i in range(len(plan.constants)))
    head = f"plan(inputs r0..r{plan.n_inputs - 1}" if plan.n_inputs else "plan("
    head += f"; constants {constants}" if constants else ""
    lines = [f"{head}), arena {plan.arena_bytes} bytes"]
    for step in plan.steps:
        note = getattr(step, "note", "")
        text = "  " + print_step(step)
        lines.append(f"{text:<72}  # {note}" if note else text)
    lines.append("  return " + ", ".join("None" if r is None else f"r{r}" for r in plan.outputs))
    return "\n".join(lines)


def print_step(step: Step) -> str:
    """One line; a `ParallelLaunch` has one more for each of its launches."""
    match step:
        case Alloc():
            where = "own memory" if step.arena is None else f"arena[{step.arena}]"
            where += "" if step.over is None else f", in the place of r{step.over}"
            return f"r{step.out} = alloc {_layout(step.shape, step.stride, step.dtype)} {where}"
        case View():
            kind = "user view" if step.user_visible else "view"
            return f"r{step.out} = {kind} r{step.src} {list(step.shape)} stride {list(step.stride)} + {step.offset}"
        case Launch():
            sizes = "".join(f", {size}" for size in step.sizes)
            return f"launch {step.kernel}({_names(step.regs)}{sizes}) over {step.extent} by {step.grain}"
        case ParallelLaunch():
            lines = [f"\n    {print_step(l)}" for l in step.launches]
            return f"parallel, {sum(step.work)} by {step.grain}:" + "".join(lines)
        case Aten():
            args = [_argument_text(a) for a in step.args]
            args += [f"{k}={_argument_text(v)}" for k, v in step.kwargs.items()]
            outs = ", ".join("_" if r is None else f"r{r}" for r in step.outs)
            return f"{outs + ' = ' if step.outs else ''}{step.op}({', '.join(args)})"
        case RunPlans():
            outs = ", ".join("_" if r is None else f"r{r}" for r in step.outs)
            condition = "" if step.condition is None else f"r{step.condition}; "
            text = f"{outs + ' = ' if step.outs else ''}{step.rule.name}({condition}{_names(step.operands)}):"
            for inner in step.plans:
                taken = _names(tuple(step.operands[i] for i in inner.takes))
                text += "".join(
                    f"\n    {line}" for line in (f"of {taken}:", *print_plan(inner.plan).split("\n"))
                )
            return text
        case BumpVersion():
            return f"bump version {_names(step.regs)}"
        case Free():
            return f"free {_names(step.regs)}"


def _names(regs: tuple[int, ...]) -> str:
    return ", ".join(f"r{r}" for r in regs)


def _layout(shape: tuple[Size, ...], stride: tuple[Size, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)} stride {list(stride)}"


def _argument_text(value: Any) -> str:
    if isinstance(value, Reg):
        return f"r{value.index}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_argument_text, value))}]"
    return repr(value)
