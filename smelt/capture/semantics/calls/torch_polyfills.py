"""Python versions of torch functions that call torch's own compiler; the VM interprets them.

Torch's control flow (`cond`, `while_loop`, `scan`, `associative_scan`, `map`) and flex attention are higher-order operators,
and the user functions around them compile themselves when they run eagerly. Each operator here computes what torch computes
on a CPU.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import nn

from smelt.torch_private import HigherOrderOperator

Values = tuple[object, ...]


def call_operator(
    fn: Callable[..., object], args: Sequence[object], kwargs: dict[str, object] | None = None
) -> object:
    """`_hop_compile_and_call`, the function around a higher-order operator."""
    return fn(*args, **(kwargs or {}))


def compilation_env() -> Iterator[str]:
    """`setup_compilation_env` without its effects: it sets flags of torch's compiler and yields a backend.

    smelt inlines the function that torch would compile with that backend."""
    yield "eager"


def call_module(module: nn.Module, *args: object, **kwargs: object) -> object:
    """Call of a module compiled by torch.compile: the module's own call, with its hooks."""
    return nn.Module.__call__(module, *args, **kwargs)


def cond(
    op: object,
    pred: object,
    true_fn: Callable[..., object],
    false_fn: Callable[..., object],
    operands: Sequence[object],
) -> object:
    """`cond_op`: one branch runs, or both are captured and the graph selects."""
    functions = begin_choice(pred, true_fn, false_fn, operands)
    if functions is not None:
        if_true = true_fn(*operands)
        next_function(functions)
        return choose(functions, pred, if_true, false_fn(*operands))
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)


def cond_on_bool(
    pred: object,
    true_fn: Callable[..., object],
    false_fn: Callable[..., object],
    operands: Sequence[object] = (),
) -> object:
    """`torch.cond` on a Python bool."""
    return cond(None, pred, true_fn, false_fn, operands)


def begin_choice(pred: object, true_fn: object, false_fn: object, operands: object) -> object:
    """State for `choose` if both branches may run, else None. Replaced by a VM handler."""


def next_function(functions: object) -> None:
    """Switch to the second of two functions. Replaced by a VM handler."""


def choose(functions: object, pred: object, if_true: object, if_false: object) -> object:
    """Select the results of one branch. Replaced by a VM handler."""


def while_loop(
    op: object,
    cond_fn: Callable[..., object],
    body_fn: Callable[..., Values],
    carried_inputs: Values,
    additional_inputs: Values,
) -> Values:
    """`while_loop_op`. The results share no memory with the inputs, even if the body never runs."""
    functions = begin_loop(cond_fn, body_fn, carried_inputs, additional_inputs)
    if functions is not None:
        values = loop_values(functions)
        goes_on = cond_fn(*values, *additional_inputs)
        next_function(functions)
        return end_loop(functions, values, goes_on, body_fn(*values, *additional_inputs))
    run: Callable[..., Values] = _operator_module("while_loop").while_loop_dense
    return run(cond_fn, body_fn, carried_inputs, additional_inputs)


def begin_loop(cond_fn: object, body_fn: object, carried: object, additional: object) -> object:
    """State for `end_loop` if the loop can be a node of the graph, else None. Replaced by a VM handler."""


def loop_values(functions: object) -> Values:
    """Proxies of the carried values. Replaced by a VM handler."""
    return ()


def end_loop(functions: object, values: object, goes_on: object, results: object) -> Values:
    """Values after the loop. Replaced by a VM handler."""
    return ()


def scan(
    op: object,
    combine_fn: Callable[..., object],
    init: Values,
    xs: object,
    additional_inputs: Values = (),
    *,
    mutated_arg_indices: str = "",
) -> object:
    """`scan_op`: sequential steps along the first dimension. `mutated_arg_indices` describes the step.

    `torch.scan` passes a partial function, whose step torch's compiler captures: the carried values keep their metadata, and
    the results have the structure that the step returns."""
    module = _operator_module("scan")
    if not isinstance(combine_fn, functools.partial):
        return module.generic_scan(combine_fn, init, xs, additional_inputs=additional_inputs)
    tree, structure = module.pytree, None

    def step(*values: object) -> object:
        nonlocal structure
        result = combine_fn(*values)
        carry, outputs = result if type(result) in (tuple, list) and len(result) == 2 else ((), ())
        check_carry(values[: len(init)], tree.tree_leaves(carry), tree.tree_leaves(outputs))
        structure = tree.tree_structure(result)
        return result

    flat = module.generic_scan(step, init, xs, additional_inputs=additional_inputs)
    return tree.tree_unflatten(flat, structure)


def check_carry(before: Values, after: Sequence[object], outputs: Sequence[object]) -> None:
    """Compare the carried values before and after a step, whose other results are tensors. Replaced by a VM handler."""


def associative_scan(
    op: object, combine_fn: Callable[..., object], xs: object, additional_inputs: Values = ()
) -> object:
    """`associative_scan_op`: combines pairs, then pairs of pairs."""
    run = _operator_module("associative_scan").generic_associative_scan
    return run(combine_fn, xs, additional_inputs=additional_inputs)


def map_rows(op: object, f: Callable[..., object], xs: object, pos_args: object) -> object:
    """`map_impl`: one call for each element of the first dimension."""
    return _operator_module("map").map_dense(f, xs, pos_args)


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
    """`flex_attention_hop`: all scores, modified and masked, as torch computes them on a CPU. Returns (output, logsumexp,
    maximum scores), the last two in base 2."""
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    with torch.autocast(query.device.type, enabled=False):
        out, logsumexp, largest = _operator_module("flex_attention").sdpa_dense(
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


def wrap(op: object, function: Callable[..., object], *args: object, **kwargs: object) -> object:
    """`wrap`: the call of a function."""
    return function(*args, **kwargs)


def call_with(op: object, function: Callable[..., object], operands: Values, *settings: object) -> object:
    """`strict_mode_op` and `hints_wrapper`, whose settings only torch's compiler reads."""
    return function(*operands)


def out_dtype(op: HigherOrderOperator, operator: object, dtype: torch.dtype, *args: object) -> object:
    """`out_dtype`: an operator on promoted tensors, whose result is cast."""
    module = _operator_module("out_dtype")
    if operator not in module.ALLOWABLE_OPS or need_gradients(args):
        return HigherOrderOperator.__call__(op, operator, dtype, *args)
    return module.out_dtype_dense(operator, dtype, *args)


def need_gradients(operands: Sequence[object]) -> bool:
    """Whether autograd needs gradients of operands."""
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in operands)


def call_subgraph(op: object, subgraph: Callable[..., Values], identifier: str, *operands: object) -> Values:
    """`invoke_subgraph`: a region that torch's compiler compiles once."""
    return subgraph(*operands)


def checkpoint(op: object, module: torch.nn.Module, *args: object, **kwargs: object) -> object:
    """`tag_activation_checkpoint`: a checkpoint in a graph that torch captured."""
    run: Callable[..., object] = torch.utils.checkpoint.checkpoint
    return run(module, *args, **{**kwargs, "use_reentrant": False})


def broadcast_shapes(*shapes: int | Sequence[int]) -> torch.Size | None:
    """`torch.broadcast_shapes`, which uses torch's own compiler to compare sizes; None for shapes that do not broadcast."""
    arguments = [(s,) if isinstance(s, int) else s for s in shapes]
    result = [1] * max([len(shape) for shape in arguments])
    for shape in arguments:
        for i in range(-len(shape), 0):
            if result[i] == 1:
                if shape[i] < 0:
                    return None
                result[i] = shape[i]
            elif shape[i] != 1 and shape[i] != result[i]:
                return None
    return torch.Size(result)


def _operator_module(name: str) -> ModuleType:
    """Torch's module of a higher-order operator, which the caller has imported."""
    return sys.modules["torch._higher_order_ops." + name]


@contextmanager
def fork_rng(enabled: bool = True) -> Iterator[None]:
    """`torch.random.fork_rng` of the CPU's generator."""
    if not enabled:
        yield
        return
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
