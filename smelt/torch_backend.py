"""The entry point behind `torch.compile(model, backend="smelt")`: torch captures, smelt compiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from smelt import api


def compile_fx(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: api.Mode | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile `gm`, a torch-level graph from torch's own capture, with smelt.

    smelt captures `gm` like any function, with a backward and guards of its own; sizes are symbolic where they are in
    torch's graph. What it cannot compile runs as torch captured it, with a warning. `mode`, `options`: as for
    `smelt.compile`, which raises OptionError for wrong ones.
    """
    dynamic = any(map(_is_symbolic, example_inputs))
    gm = torch.fx.GraphModule(gm, gm.graph)  # torch's class may write `forward` only at the first call
    return api.compile(gm.forward, dynamic=dynamic, mode=mode, options=options)


def _is_symbolic(example: Any) -> bool:
    sizes = (*example.shape, *example.stride()) if isinstance(example, torch.Tensor) else (example,)
    return any(type(n) is not int for n in sizes)
