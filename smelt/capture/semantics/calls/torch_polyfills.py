"""Plain Python in place of what torch hands to its own compiler, or asks that about; the VM interprets it.

Torch's control flow (`cond`, `while_loop`, `scan`, `associative_scan`, `map`) and flex attention are operators of higher
order: their functions, which users call, compile themselves when they are run eagerly. Here each operator is the mathematics
that torch gives it on a CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType

import torch
from torch import nn

Values = tuple[object, ...]


def call_operator(
    fn: Callable[..., object], args: Sequence[object], kwargs: dict[str, object] | None = None
) -> object:
    """`_hop_compile_and_call`: a function around an operator of higher order."""
    return fn(*args, **(kwargs or {}))


def call_module(module: nn.Module, *args: object, **kwargs: object) -> object:
    """The call of what torch.compile made of a module: with its hooks, and `forward`, which is the module's call."""
    return nn.Module.__call__(module, *args, **kwargs)


def cond(
    op: object,
    pred: object,
    true_fn: Callable[..., object],
    false_fn: Callable[..., object],
    operands: Sequence[object],
) -> object:
    """`cond_op`: one of the branches runs; or both are looked at, and the graph chooses."""
    functions = begin_choice(pred, true_fn, false_fn, operands)
    if functions is not None:
        if_true = true_fn(*operands)
        next_function(functions)
        return choose(functions, pred, if_true, false_fn(*operands))
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)


def begin_choice(pred: object, true_fn: object, false_fn: object, operands: object) -> object:
    """What `choose` needs if both branches may run; None if not. The machine answers in its place."""


def next_function(functions: object) -> None:
    """Of two functions, the first has run. The machine does it."""


def choose(functions: object, pred: object, if_true: object, if_false: object) -> object:
    """The results of one branch or the other. The machine answers in its place."""


def while_loop(
    op: object,
    cond_fn: Callable[..., object],
    body_fn: Callable[..., Values],
    carried_inputs: Values,
    additional_inputs: Values,
) -> Values:
    """`while_loop_op`. The results share no memory with what went in, also where the body never runs."""
    functions = begin_loop(cond_fn, body_fn, carried_inputs, additional_inputs)
    if functions is not None:
        values = loop_values(functions)
        goes_on = cond_fn(*values, *additional_inputs)
        next_function(functions)
        return end_loop(functions, values, goes_on, body_fn(*values, *additional_inputs))
    run: Callable[..., Values] = _operators("while_loop").while_loop_dense
    return run(cond_fn, body_fn, carried_inputs, additional_inputs)


def begin_loop(cond_fn: object, body_fn: object, carried: object, additional: object) -> object:
    """What `end_loop` needs if the loop may be a part of the graph; None if not. The machine answers in its place."""


def loop_values(functions: object) -> Values:
    """What stands for the values that change. The machine answers in its place."""
    return ()


def end_loop(functions: object, values: object, goes_on: object, results: object) -> Values:
    """The values at the end of the loop. The machine answers in its place."""
    return ()


def scan(
    op: object,
    combine_fn: Callable[..., object],
    init: object,
    xs: object,
    additional_inputs: Values = (),
    *,
    mutated_arg_indices: str = "",
) -> object:
    """`scan_op`: one step after the other along the first dimension. `mutated_arg_indices` describes the step."""
    return _operators("scan").generic_scan(combine_fn, init, xs, additional_inputs=additional_inputs)


def associative_scan(
    op: object, combine_fn: Callable[..., object], xs: object, additional_inputs: Values = ()
) -> object:
    """`associative_scan_op`: pairs are combined, then pairs of pairs."""
    run = _operators("associative_scan").generic_associative_scan
    return run(combine_fn, xs, additional_inputs=additional_inputs)


def map_rows(op: object, f: Callable[..., object], xs: object, pos_args: object) -> object:
    """`map_impl`: one call for each element of the first dimension."""
    return _operators("map").map_dense(f, xs, pos_args)


def flex_attention(
    op: object,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., torch.Tensor],
    block_mask: Values,
    scale: float,
    kernel_options: dict[str, object],
    score_mod_other_buffers: Values = (),
    mask_mod_other_buffers: Values = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`flex_attention_hop`: all scores, changed and masked, as torch computes them on a CPU. Returns (output, logsumexp,
    largest scores), the last two of base 2."""
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    with torch.autocast(query.device.type, enabled=False):
        out, logsumexp, largest = _operators("flex_attention").sdpa_dense(
            query,
            key,
            value,
            score_mod,
            block_mask,
            scale,
            kernel_options,
            score_mod_other_buffers,
            mask_mod_other_buffers,
        )
    return out, logsumexp, largest.detach()


def broadcast_shapes(*shapes: int | Sequence[int]) -> torch.Size | None:
    """`torch.broadcast_shapes`, which asks torch's own compiler how to compare sizes; None of shapes that do not go
    together."""
    given = [(s,) if isinstance(s, int) else s for s in shapes]
    made = [1] * max([len(shape) for shape in given])
    for shape in given:
        for i in range(-len(shape), 0):
            if made[i] == 1:
                if shape[i] < 0:
                    return None
                made[i] = shape[i]
            elif shape[i] != 1 and shape[i] != made[i]:
                return None
    return torch.Size(made)


def _operators(name: str) -> ModuleType:
    """The module of torch that has an operator of higher order: whoever calls the operator has imported it."""
    return sys.modules["torch._higher_order_ops." + name]
