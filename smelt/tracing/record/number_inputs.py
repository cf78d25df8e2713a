"""Symbolic numbers as inputs of the two graphs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from smelt.graph.ir import Node, NumberSpec
from smelt.ops.registry import row
from smelt.ops.symbolic_rules import COUNTS, DIVISORS, SCALAR_SIZES
from smelt.shapes.expr import Expression, Sym, leaves
from smelt.shapes.number_operations import Number
from smelt.torch_private import JitType, OpOverload
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.record.graph_builder import Builder, identifier
from smelt.tracing.symbolic.numbers_in_containers import has_symbols, plain_parts
from smelt.tracing.symbolic.sym_nodes import Symbol
from smelt.tracing.symbolic.sym_numbers import SYMBOLIC, own, plain, size_of
from smelt.tracing.symbolic.symbolic_numbers import Symbols
from smelt.tracing.symbolic.unbacked_numbers import DataNumber, data_leaf_of


@dataclass
class NumberInput:
    """A symbolic number that an operator was given: a placeholder of the graphs, at each level one."""

    symbol: Symbol
    nodes: dict[str, Node] = field(default_factory=dict)

    def node(self, builder: Builder) -> Node:
        """Its placeholder at the builder's level, made when first asked for."""
        level = builder.graph.level
        if level not in self.nodes:
            name = builder.name(identifier(self._stem()))
            self.nodes[level] = Node("placeholder", name, (), {}, name, NumberSpec(type(self.symbol.value)))
        return self.nodes[level]

    def _stem(self) -> str:
        """What the graphs call it: the name of the attribute or argument it is or comes from."""
        key = leaves(self.symbol.expression)[0]
        name = key.key if isinstance(getattr(key, "key", None), str) else "number"
        name = str(key.sym) if isinstance(key, DataNumber) else name
        return name if self.symbol.expression.op == "leaf" else f"{name}_{self.symbol.expression.op}"

    @property
    def is_of_data(self) -> bool:
        """Whether only the graph gives it."""
        return data_leaf_of(self.symbol.expression) is not None

    @property
    def is_pinned(self) -> bool:
        """Whether it turned out to be the same at every call."""
        return self.symbol.symbols.is_pinned(self.symbol.expression)


class NumberInputs:
    """The symbolic numbers of a trace. `symbols` is None where there are none; `by_expression` are those that an operator
    was given, one for each expression."""

    def __init__(self) -> None:
        self.symbols: Symbols | None = None
        # Makes the first symbol, where numbers that only the graph gives may be symbolic.
        self.for_data: Callable[[], Symbols] | None = None
        self.by_expression: dict[Expression, NumberInput] = {}

    @property
    def sizes(self) -> frozenset[Sym]:
        """The symbols of sizes."""
        return frozenset() if self.symbols is None else frozenset(self.symbols.hints)

    def node(self, value: Any, builder: Builder) -> Node | Number:
        """The placeholder of a symbolic number; the number itself where nothing in it may change."""
        symbol: Symbol = value.node
        if symbol.symbols.is_pinned(symbol.expression):
            return symbol.value
        if symbol.size is None:
            symbol.symbols.check()
        return self.input(symbol).node(builder)

    def input(self, symbol: Symbol) -> NumberInput:
        """What stands for it in the graphs: one for each expression."""
        found = self.by_expression.get(symbol.expression)
        if found is None:
            found = self.by_expression[symbol.expression] = NumberInput(symbol)
        return found


def pinned_arguments(func: OpOverload, args: Args, kwargs: Kwargs, only_sizes: bool) -> tuple[Args, Kwargs]:
    """An operator's arguments, symbolic only where a number may differ without changing the result's metadata, or is a size;
    with `only_sizes`, no other numbers than those that are computed from sizes of tensors."""
    if not has_symbols(args) and not has_symbols(kwargs):
        return args, kwargs
    names, sizes = number_arguments(func), size_arguments(func)

    def pinned(name: str, value: Any) -> Any:
        if name in sizes:
            return _mapped(value, lambda v: own(v) if v.node.as_size() is not None else plain(v))
        stays = name in names and (
            not only_sizes or type(value) not in SYMBOLIC or value.node.size is not None
        )
        return value if stays else plain_parts(value)

    arguments = func._schema.arguments
    return (
        tuple(pinned(a.name, v) for v, a in zip(args, arguments)),
        {k: pinned(k, v) for k, v in kwargs.items()},
    )


def with_sizes(func: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments with `Size`s in the place of the symbolic numbers that are sizes."""
    if not has_symbols(args) and not has_symbols(kwargs):
        return args, kwargs
    sizes = size_arguments(func)
    arguments = func._schema.arguments
    return (
        tuple(_mapped(v, size_of) if a.name in sizes else v for v, a in zip(args, arguments)),
        {k: _mapped(v, size_of) if k in sizes else v for k, v in kwargs.items()},
    )


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value`, a number or a list of them, with symbolic numbers changed."""
    if isinstance(value, (list, tuple)):
        return [_mapped(v, change) for v in value]
    return change(value) if type(value) in SYMBOLIC else value


@cache
def size_arguments(func: OpOverload) -> frozenset[str]:
    """Names of the arguments that may be symbolic sizes: those typed SymInt, lists of them, and a few others."""
    found = frozenset(re.findall(r"SymInt\S* (\w+)", str(func._schema))) - DIVISORS  # types say int of them
    return found | SCALAR_SIZES.get(func._schema.name, frozenset()) | COUNTS.get(func, frozenset())


@cache
def number_arguments(func: OpOverload) -> frozenset[str]:
    """Names of the arguments whose number may differ from call to call: those typed Scalar or Tensor. Of
    operators without a tensor argument it is only the number that fills the result: it decides nothing else."""
    takes = frozenset(a.name for a in func._schema.arguments if _takes_number(a.type))
    has_tensor = any("Tensor" in str(a.type) for a in func._schema.arguments)
    return takes if has_tensor or row(func).filled is not None else frozenset()


def _takes_number(kind: JitType) -> bool:
    element = kind.getElementType() if isinstance(kind, torch.OptionalType) else kind
    return isinstance(element, (torch.TensorType, torch.NumberType))
