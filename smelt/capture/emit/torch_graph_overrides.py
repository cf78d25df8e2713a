"""Overrides of torch-level graphs: registered editors may replace each graph by a function of the user, which is compiled
like any other.

Invariant: the function takes the tensors and numbers of the captured graph, and its results have the types and layouts that
the rest of the frame was compiled for. Its gradients, in-place writes and random numbers may differ.
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
    """The function that replaces the torch-level graph, or None. Raises ArtifactError if an edited file is invalid."""
    for editor in reversed(tuple(_editors)):
        function = editor(traced)
        if function is not None:
            return function
    return None


class EditedProgram:
    """The callable of a compiled frame in place of its graph: it calls `run`, which is `function` or its compiled form."""

    def __init__(self, function: FunctionType, run: Callable[..., object], traced: Traced) -> None:
        self.function = function
        self._run = run
        self._sizes = traced.sizes
        self._expected = [fake.spec for fake in traced.outputs]

    def __call__(self, inputs: tuple[object, ...]) -> Sequence[object]:
        settings = torch_settings.read()
        with torch_settings.restored():
            results = self._run(*inputs)
        torch_settings.put(settings)
        return self._checked(results, inputs)

    def _checked(self, results: object, inputs: tuple[object, ...]) -> Sequence[object]:
        values = {sym: size.source.read(inputs[size.input]) for sym, size in self._sizes.items()}
        if not isinstance(results, (tuple, list)) or len(results) != len(self._expected):
            what = f"{len(results)} results" if isinstance(results, (tuple, list)) else type(results).__name__
            texts = ", ".join(spec_text(substitute(spec, values)) for spec in self._expected)
            raise self._error(
                f"forward returns {what}, expected is a tuple of {len(self._expected)}: {texts}"
            )
        for i, (result, spec) in enumerate(zip(results, self._expected, strict=True)):
            self._check_result(i, result, spec, values)
        return results

    def _check_result(self, i: int, result: object, spec: TensorSpec, values: Values) -> None:
        expected = substitute(spec, values)
        actual = _spec_of(result) if isinstance(result, torch.Tensor) else None
        if actual is None or _facts(actual) != _facts(expected):
            what = type(result).__name__ if actual is None else spec_text(actual)
            raise self._error(
                f"result {i} of forward is {what}, the captured graph gives {spec_text(expected)}: the rest of the call was "
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
    """The facts that the rest of the frame depends on: the strides of dimensions of size 1 do not matter."""
    stride = tuple(s for n, s in zip(spec.shape, spec.stride) if n != 1) if 0 not in spec.shape else ()
    return spec.shape, stride, spec.dtype, spec.device
