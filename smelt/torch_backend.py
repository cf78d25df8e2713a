"""The entry point behind `torch.compile(model, backend="smelt")`: torch captures, smelt compiles."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from smelt import api, config
from smelt.backends.smelt import compile_graph
from smelt.errors import SmeltError
from smelt.tracing.record.trace import Trace
from smelt.tracing.record.traced import Traced


def compile_fx(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compiles `gm`, a torch-level graph from torch's own capture, with smelt.

    Where sizes are symbolic, smelt captures `gm` itself, with guards of its own. A graph that smelt cannot compile here
    (values read by Python) runs as `gm.forward`, with a warning.
    """
    if any(map(_is_symbolic, example_inputs)):
        return api.compile(gm.forward, dynamic=True)
    try:
        return _compile(gm, example_inputs)
    except SmeltError as error:
        warnings.warn(f"smelt runs this graph uncompiled: {error}", stacklevel=2)
        return gm.forward


def _compile(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    trace, outputs, fakes = _run_on_fakes(gm, example_inputs)
    spread = [t for t in outputs if isinstance(t, torch.Tensor)]
    traced = trace.finish(spread)
    compiled = compile_graph(traced, config.DEFAULT)
    collect = _collector(trace, traced, fakes)
    are_tensors = [isinstance(t, torch.Tensor) for t in outputs]

    def call(*inputs: torch.Tensor) -> tuple[Any, ...]:
        results = iter(compiled(collect(inputs)))
        return tuple(next(results) if tensor else value for tensor, value in zip(are_tensors, outputs))

    return call


def _is_symbolic(example: Any) -> bool:
    sizes = (*example.shape, *example.stride()) if isinstance(example, torch.Tensor) else (example,)
    return any(type(n) is not int for n in sizes)


def _run_on_fakes(
    gm: torch.fx.GraphModule, example_inputs: Sequence[torch.Tensor]
) -> tuple[Trace, tuple[Any, ...], Sequence[torch.Tensor]]:
    """(trace, what `gm` returns on fakes, the fakes of its inputs). Parameters and buffers of `gm` become inputs of the
    trace, too."""
    trace = Trace()
    trace.inputs.on_unknown_tensor = trace.fake
    fakes = [trace.fake(_plain(x)) for x in example_inputs]
    with trace:
        out = gm.forward(*fakes)
    return trace, tuple(out) if isinstance(out, (list, tuple)) else (out,), fakes


def _plain(example: torch.Tensor) -> torch.Tensor:
    """A tensor laid out as `example`, which may be a fake of torch's own."""
    if type(example) in (torch.Tensor, torch.nn.Parameter):
        return example
    like = torch.empty_strided(example.size(), example.stride(), dtype=example.dtype, device=example.device)
    return like.requires_grad_(example.requires_grad)


def _collector(
    trace: Trace, traced: Traced, fakes: Sequence[torch.Tensor]
) -> Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, ...]]:
    """Call arguments -> the tensors that the compiled graph takes, in its order."""
    position = {id(f): i for i, f in enumerate(fakes)}
    sources = [(position.get(id(f), -1), trace.real(f)) for f in traced.inputs]
    return lambda inputs: tuple(inputs[i] if i >= 0 else held for i, held in sources)  # type: ignore[misc]
