"""Torch-level graphs that stand in for those that were captured: a function of the user's, which is compiled as any other.

What edits them is asked for each before the backend is. What always holds: the function takes the tensors and numbers that
the captured graph takes, and its results are of the types and layouts that the rest of the frame was compiled for.
Gradients, writes and random numbers are its own. Without editors nothing is asked.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from types import FunctionType

import torch

from smelt._native import isinstance
from smelt.errors import ArtifactError
from smelt.graph import torch_settings
from smelt.graph.graph_overrides import Editors
from smelt.graph.graph_printer import spec_text
from smelt.graph.ir import TensorSpec
from smelt.shapes.expr import Values
from smelt.shapes.substitute import substitute
from smelt.tracing.record.traced import Traced

Editor = Callable[[Traced], FunctionType | None]

_editors: Editors[Editor] = Editors()
editing_programs = _editors.asking


def edited_program(traced: Traced) -> FunctionType | None:
    """The function that stands in for the torch-level graph; None where nobody has edited it. Raises ArtifactError where
    what was edited cannot."""
    for editor in reversed(tuple(_editors)):
        function = editor(traced)
        if function is not None:
            return function
    return None


class EditedProgram:
    """What a compiled frame calls in place of a graph: `run`, which is `function`, or that compiled."""

    def __init__(self, function: FunctionType, run: Callable[..., object], traced: Traced) -> None:
        self.function = function
        self._run = run
        self._sizes = traced.sizes
        self._wanted = [fake.spec for fake in traced.outputs]

    def __call__(self, inputs: tuple[object, ...]) -> Sequence[object]:
        settings = torch_settings.read()
        with torch_settings.restored():
            results = self._run(*inputs)
        torch_settings.put(settings)
        return self._checked(results, inputs)

    def _checked(self, results: object, inputs: tuple[object, ...]) -> Sequence[object]:
        values = {sym: place.source.read(inputs[place.input]) for sym, place in self._sizes.items()}
        if not isinstance(results, (tuple, list)) or len(results) != len(self._wanted):
            what = f"{len(results)} results" if isinstance(results, (tuple, list)) else type(results).__name__
            texts = ", ".join(spec_text(substitute(spec, values)) for spec in self._wanted)
            raise self._error(f"forward gives {what}, expected is a tuple of {len(self._wanted)}: {texts}")
        for i, (result, spec) in enumerate(zip(results, self._wanted, strict=True)):
            self._check_result(i, result, spec, values)
        return results

    def _check_result(self, i: int, result: object, spec: TensorSpec, values: Values) -> None:
        wanted = substitute(spec, values)
        found = _spec_of(result) if isinstance(result, torch.Tensor) else None
        if found is None or _facts(found) != _facts(wanted):
            what = type(result).__name__ if found is None else spec_text(found)
            raise self._error(
                f"result {i} of forward is {what}, the captured graph gives {spec_text(wanted)}: the rest of the call was "
                "compiled for that"
            )

    def _error(self, what: str) -> ArtifactError:
        code = self.function.__code__
        returns = (i.positions for i in dis.get_instructions(code) if i.opname.startswith("RETURN_"))
        line = max((p.lineno or 0 for p in returns if p is not None), default=0) or code.co_firstlineno
        return ArtifactError(f"{code.co_filename}:{line}: {what}")


def _spec_of(tensor: torch.Tensor) -> TensorSpec | None:
    if tensor.layout is not torch.strided:
        return None
    return TensorSpec(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)


def _facts(spec: TensorSpec) -> tuple[object, ...]:
    """What others may count on. How dimensions are strided that nobody steps along, nobody sees."""
    stride = tuple(s for n, s in zip(spec.shape, spec.stride) if n != 1) if 0 not in spec.shape else ()
    return spec.shape, stride, spec.dtype, spec.device
