"""The result of a captured call as data (`result_nest.py`)."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import torch

from smelt.capture.driver.capture_frame import CapturedFrame
from smelt.errors import ExportError
from smelt.exported.argument_checks import ArgumentChecks
from smelt.exported.input_checks import (
    class_name,
)
from smelt.exported.program_file import (
    can_be_encoded,
)
from smelt.exported.result_nest import ResultNode
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_numbers import NUMBERS


class CapturedResult:
    """The result of a captured frame as nodes (`result_nest.py`)."""

    def __init__(self, captured: CapturedFrame, reader: ArgumentChecks) -> None:
        self._captured, self._reader = captured, reader
        self._outputs = {id(fake): i for i, fake in enumerate(captured.traced.outputs)}
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
        if type(x) is dict and all(can_be_encoded(key) for key in x):
            return ResultNode("dict", tuple(x), tuple(map(self._visit, x.values())))
        return self._instance(x)

    def _instance(self, x: Any) -> ResultNode:
        cls = type(x)
        if isinstance(x, tuple) and hasattr(cls, "_fields"):
            names, values = tuple(cls._fields), tuple(x)
        elif is_dataclass(x) and all(f.init for f in fields(x)):
            names = tuple(f.name for f in fields(x))
            values = tuple(object.__getattribute__(x, "__dict__").get(name) for name in names)
        else:
            raise ExportError(
                f"the result contains a {class_name(cls)}: programs return tensors, numbers, texts, and tuples, lists, "
                "dicts, named tuples and dataclasses of these. Return its tensors (of transformers' models: use_cache=False)"
            )
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
