"""The result of a captured call as data (`result_nest.py`)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt.capture.driver.capture_frame import CapturedFrame
from smelt.errors import ExportError
from smelt.exported.argument_checks import ArgumentChecks
from smelt.exported.input_checks import class_name
from smelt.exported.program_file import is_constant
from smelt.exported.result_nest import ResultNode, fields_of
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_numbers import NUMBERS


class CapturedResult:
    """The result of a captured frame as nodes (`result_nest.py`)."""

    def __init__(self, captured: CapturedFrame, reader: ArgumentChecks, outputs: Mapping[int, int]) -> None:
        """`outputs`: the number of a tensor among the outputs of the graph, by its fake's identity."""
        self._captured, self._reader, self._outputs = captured, reader, outputs
        self._inputs = {id(fake): i for i, fake in enumerate(captured.traced.inputs)}
        self._nodes: list[ResultNode] = []
        self._known: dict[int, int] = {}
        self._open: set[int] = set()

    def nodes(self) -> list[ResultNode]:
        """The nodes, the result last. Raises ExportError for objects that a program cannot return."""
        last = self._visit(self._captured.result)
        if last != len(self._nodes) - 1:  # the result is a part of itself, listed before
            self._nodes.append(self._nodes[last])
        return self._nodes

    def _visit(self, x: Any) -> int:
        found = self._known.get(id(x))
        if found is None:
            if id(x) in self._open:
                raise ExportError("the result contains itself")
            self._open.add(id(x))
            node = self._node(x)
            self._open.discard(id(x))
            self._nodes.append(node)
            found = self._known[id(x)] = len(self._nodes) - 1
        return found

    def _node(self, x: Any) -> ResultNode:
        if isinstance(x, FakeTensor):
            return self._tensor(x)
        if type(x) in NUMBERS:
            return ResultNode("number", self._reader.number(x.node.expression), ())
        if x is None or isinstance(x, (bool, int, float, str, bytes, complex, torch.dtype, torch.device)):
            if type(x) not in (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device):
                raise ExportError(f"the result contains a {type(x).__name__}, which no program returns")
            return ResultNode("constant", x, ())
        source = self._captured.source_of(x)
        path = None if source is None else self._reader.path(source)
        if path is not None:
            return ResultNode("input", path, ())
        if type(x) is torch.Size:
            return ResultNode("size", None, tuple(map(self._visit, x)))
        if type(x) in (tuple, list):
            return ResultNode(type(x).__name__, None, tuple(map(self._visit, x)))
        if type(x) is dict and all(map(is_constant, x)):
            return ResultNode("dict", tuple(x), tuple(map(self._visit, x.values())))
        return self._instance(x)

    def _instance(self, x: Any) -> ResultNode:
        cls = type(x)
        names = fields_of(cls)
        if names is None or not _takes(cls, names):
            raise ExportError(
                f"the result contains a {class_name(cls)}: programs return tensors, numbers, strings, and tuples, lists, "
                "dicts, named tuples and dataclasses of these. Return its tensors (of transformers' models: use_cache=False)"
            )
        try:
            own = object.__getattribute__(x, "__dict__")
        except AttributeError:  # it has slots
            own = {}
        is_tuple = isinstance(x, tuple)
        others = [name for name in own if is_tuple or name not in names]
        if others:
            raise ExportError(
                f"the result contains a {class_name(cls)} with the attribute {others[0]!r}, which is no field of its class: "
                "make it a field, or return it beside"
            )
        values = tuple(x) if is_tuple else [object.__getattribute__(x, name) for name in names]
        if "<locals>" in cls.__qualname__:
            raise ExportError(
                f"the result contains a {class_name(cls)}, a class inside of a function: move it to a module"
            )
        value = cls.__module__, cls.__qualname__, names
        return ResultNode("fields", value, tuple(map(self._visit, values)))

    def _tensor(self, x: FakeTensor) -> ResultNode:
        source = self._captured.source_of(x)
        path = None if source is None else self._reader.path(source)
        if path is not None:
            return ResultNode("input", path, ())
        if id(x) in self._inputs:
            return ResultNode("input", self._inputs[id(x)], ())
        if id(x) in self._outputs:
            return ResultNode("tensor", self._outputs[id(x)], ())
        raise ExportError(
            "the result contains a tensor that the graph neither takes nor computes; return a copy of it"
        )


def _takes(cls: type, names: Sequence[str]) -> bool:
    """Whether the constructor of a class takes its fields; that of a named tuple is not called."""
    try:
        return issubclass(cls, tuple) or bool(inspect.signature(cls).bind(**dict.fromkeys(names)))
    except (TypeError, ValueError):
        return False
