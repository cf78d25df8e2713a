"""What backends for torch.compile read besides the graph: fake tensors with torch's symbolic sizes, a tracing context, and
why the graph ends.

A backend made of torch's AOTAutograd is valid for all values of a number only if it receives a SymInt of a ShapeEnv; a plain
int is a constant for it. What it assumes about a symbol becomes a guard of the ShapeEnv, by which capture specializes the
symbol.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from traceback import FrameSummary
from typing import Any

import torch
import torch.fx

from smelt.backends.explicit_numbers import ExplicitGraph
from smelt.errors import BackendError, NeedsFixedSize
from smelt.graph.graph_interpreter import step
from smelt.graph.ir import Node, NumberSpec, TensorSpec
from smelt.graph.pytree import map_leaves
from smelt.graph.unbacked_sizes import is_unbacked
from smelt.reasons import Reason
from smelt.shapes.expr import Size, Sym, evaluate_with
from smelt.shapes.number_operations import Number
from smelt.torch_private import backend_tools
from smelt.tracing.record.traced import Traced
from smelt.tracing.symbolic.sym_nodes import Symbol
from smelt.tracing.symbolic.symbolic_numbers import Symbols


@dataclass(frozen=True)
class GraphCompileReason:
    """Why a graph ends where it does; the fields of torch's class of this name."""

    reason: str
    user_stack: list[FrameSummary]
    graph_break: bool


def compile_reason(graph_break: Reason | None) -> GraphCompileReason:
    """The reason for a graph that ends at `graph_break`, or with its function."""
    if graph_break is None:
        return GraphCompileReason("return_value", [], False)
    lines = [*graph_break.stack, *([graph_break.line] if graph_break.line else [])]
    stack = [FrameSummary(line.filename, line.line, line.function) for line in dict.fromkeys(lines)]
    return GraphCompileReason(str(graph_break), stack, True)


class TorchCaptureFacts:
    """The fakes and symbols of one graph, in torch's terms. `tensors`: examples of its inputs. `example_inputs`: these, then
    SymInts and SymFloats for the numbers."""

    def __init__(self, traced: Traced, explicit: ExplicitGraph, tensors: list[torch.Tensor]) -> None:
        self._tools = backend_tools()
        self._env = self._tools.ShapeEnv()
        self._fake_mode = self._tools.FakeTensorMode(shape_env=self._env)
        self._graph = explicit.graph
        self._numbers_read = explicit.symbols
        self._hints = dict(traced.hints)
        for number in traced.numbers:
            self._hints.update(number.symbol.symbols.hints)
        self._symbols: dict[Any, Any] = {}  # SymInts and SymFloats, by size symbol or by key of a number
        self._keys: dict[Any, Any] = {}  # by torch's symbol
        # torch looks the fake of a tensor up by the tensor, and does not keep the fake alive.
        self._fakes = [self._input(p.spec, t) for p, t in zip(self._graph.placeholders, tensors)]
        self.example_inputs = [*tensors, *(self._number(n.symbol) for n in traced.numbers)]

    def annotate(self, gm: torch.fx.GraphModule) -> None:
        """Set `meta["example_value"]` of the nodes of `gm`, the traced torch-level graph."""
        numbers = self.example_inputs[len(self._fakes) :]
        values: dict[Node, Any] = dict(zip(self._graph.placeholders, [*self._fakes, *numbers]))
        traced = [n for n in gm.graph.nodes if "spec" in n.meta]
        for node, fx_node in zip(self._graph, traced, strict=True):
            if node.op != "output":
                values[node] = fx_node.meta["example_value"] = self._example_value(node, values)

    def tracing(self) -> AbstractContextManager[Any]:
        """The context in which torch's backends compile."""
        context: AbstractContextManager[Any] = self._tools.tracing(
            self._tools.TracingContext(self._fake_mode)
        )
        return context

    def check_guards(self) -> None:
        """Raise if the backend's code is not valid for all values of the symbols: NeedsFixedSize for sizes, else
        BackendError, after which capture uses no symbols."""
        assumed = {symbol for guard in self._env.guards for symbol in guard.expr.free_symbols}
        keys = {self._keys.get(symbol) for symbol in assumed}
        if not all(isinstance(key, Sym) for key in keys):
            raise BackendError("the backend compiles for the numbers of its example inputs")
        if keys:
            raise NeedsFixedSize("the backend compiles for the sizes of its example inputs", frozenset(keys))

    # ---- tensors

    def _input(self, spec: TensorSpec, tensor: torch.Tensor) -> torch.Tensor:
        """The fake of an input."""
        if all(type(n) is int for n in (*spec.shape, *spec.stride)):
            return self._plain(tensor)
        fake = self._fake(spec).requires_grad_(tensor.requires_grad)
        if not tensor.is_leaf:
            with torch.enable_grad(), self._fake_mode:
                fake = fake.view_as(fake)
        self._fake_mode.fake_tensor_converter.set_tensor_memo(tensor, fake)
        return fake

    def _plain(self, tensor: torch.Tensor) -> torch.Tensor:
        fake: torch.Tensor = self._fake_mode.from_tensor(tensor, static_shapes=True)
        return fake

    def _example_value(self, node: Node, values: dict[Node, Any]) -> Any:
        if node.op == "placeholder":
            return values[node]
        if node.op == "get_attr":
            return self._plain(self._graph.constants[node.target])
        if node in self._numbers_read:
            return self._size(self._numbers_read[node])
        if isinstance(node.spec, NumberSpec):  # what is computed from numbers, or checked
            with self._fake_mode:
                return step(self._graph, node, values)
        return map_leaves(node.spec, TensorSpec, self._fake)

    def _fake(self, spec: TensorSpec) -> torch.Tensor:
        shape, stride = (tuple(map(self._size, sizes)) for sizes in (spec.shape, spec.stride))
        with self._fake_mode:
            fake = torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device)
        return fake.requires_grad_(spec.requires_grad)

    # ---- numbers

    def _number(self, symbol: Symbol) -> Any:
        if symbol.size is not None:
            return self._size(symbol.size)
        return evaluate_with(symbol.expression, partial(self._leaf, symbol.symbols))

    def _leaf(self, symbols: Symbols, key: object) -> Any:
        value, size = symbols.found_at(key)
        return self._symbol(key, value, False) if size is None else self._size(size)

    def _size(self, size: Size) -> Any:
        return evaluate_with(size, lambda sym: self._symbol(sym, self._hints[sym], sym.lo >= 2))

    def _symbol(self, key: Any, value: Number, is_size: bool) -> Any:
        """torch's symbol for the number at `key`. `is_size`: it is at least 2, as torch assumes of sizes."""
        if key not in self._symbols and isinstance(key, Sym) and is_unbacked(key):
            with self._env.ignore_fresh_unbacked_symbols():
                self._symbols[key] = self._env.create_unbacked_symint()
        if key not in self._symbols:
            source = self._tools.ConstantSource(f"number_{len(self._symbols)}")
            create = self._env.create_symintnode if type(value) is int else self._env.create_symfloatnode
            symbol = self._env.create_symbol(
                value,
                source,
                self._tools.DimDynamic.DYNAMIC,
                positive=True if is_size else None,
                do_not_specialize_zero_one=not is_size,
            )
            self._keys[symbol] = key
            self._symbols[key] = create(symbol, hint=value, source=source)
        return self._symbols[key]
