"""Symbolic numbers as inputs of the two graphs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
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
from smelt.tracing.symbolic.numbers_in_containers import has_symbols, specialize_nested
from smelt.tracing.symbolic.sym_nodes import Symbol
from smelt.tracing.symbolic.sym_numbers import SYMBOLIC, size_of, specialize, wrap_symbolic
from smelt.tracing.symbolic.symbolic_numbers import Symbols
from smelt.tracing.symbolic.unbacked_numbers import HeldNumber, UnbackedNumber, held_leaves, unbacked_leaf_of


@dataclass
class NumberInput:
    """A symbolic number that an operator received: one placeholder in each of the two graphs."""

    symbol: Symbol
    nodes: dict[str, Node] = field(default_factory=dict)

    def node(self, builder: Builder) -> Node:
        """Its placeholder at the builder's level, created on first use."""
        level = builder.graph.level
        if level not in self.nodes:
            name = builder.name(identifier(self._stem()))
            self.nodes[level] = Node("placeholder", name, (), {}, name, NumberSpec(type(self.symbol.value)))
        return self.nodes[level]

    def _stem(self) -> str:
        """Its name in graphs: that of the attribute or argument that it is or comes from."""
        key = leaves(self.symbol.expression)[0]
        name = key.key if isinstance(getattr(key, "key", None), str) else "number"
        name = str(key.sym) if isinstance(key, UnbackedNumber) else name
        return name if self.symbol.expression.op == "leaf" else f"{name}_{self.symbol.expression.op}"

    @property
    def is_unbacked(self) -> bool:
        """Whether its value is known only when the graph runs."""
        return unbacked_leaf_of(self.symbol.expression) is not None

    @property
    def is_specialized(self) -> bool:
        """Whether the trace depends on its value, so that it is the same at every call."""
        return self.symbol.symbols.is_specialized(self.symbol.expression)


class NumberInputs:
    """The symbolic numbers of a trace. `symbols` is None while there are none; `by_expression` holds those that
    operators received, one per expression."""

    def __init__(self) -> None:
        self.symbols: Symbols | None = None
        # Returns `symbols`, created on first use; None where unbacked numbers may not be symbolic.
        self.symbols_for_unbacked: Callable[[], Symbols] | None = None
        self.by_expression: dict[Expression, NumberInput] = {}

    @property
    def sizes(self) -> frozenset[Sym]:
        """The symbols of sizes."""
        return frozenset() if self.symbols is None else frozenset(self.symbols.hints)

    def node(self, value: Any, builder: Builder) -> Node | Number:
        """The placeholder of a symbolic number, or the number itself if it is specialized."""
        symbol: Symbol = value.node
        if symbol.symbols.is_specialized(symbol.expression):
            return symbol.value
        if symbol.size is None:
            symbol.symbols.check()
        return self.input(symbol).node(builder)

    def computed_from(self, held: Collection[HeldNumber]) -> list[NumberInput]:
        """The numbers that operators received and that are computed from some of these."""
        inputs = self.by_expression.values()
        return [n for n in inputs if any(key in held for key in held_leaves(n.symbol.expression))]

    def drop(self, numbers: Iterable[NumberInput]) -> None:
        """Drop inputs, after the loop that takes them."""
        for number in numbers:
            del self.by_expression[number.symbol.expression]

    def input(self, symbol: Symbol) -> NumberInput:
        """The graph input for a symbolic number: one per expression."""
        number = self.by_expression.get(symbol.expression)
        if number is None:
            number = self.by_expression[symbol.expression] = NumberInput(symbol)
        return number


def specialize_arguments(
    func: OpOverload, args: Args, kwargs: Kwargs, only_sizes: bool
) -> tuple[Args, Kwargs]:
    """An operator's arguments, symbolic only where a number does not affect the result's metadata, or is a size. With
    `only_sizes`, only numbers computed from tensor sizes stay symbolic."""
    if not has_symbols(args) and not has_symbols(kwargs):
        return args, kwargs
    names, sizes = number_arguments(func), size_arguments(func)

    def specialized(name: str, value: Any) -> Any:
        if name in sizes:
            return _map_numbers(
                value, lambda v: wrap_symbolic(v) if v.node.as_size() is not None else specialize(v)
            )
        stays = name in names and (
            not only_sizes or type(value) not in SYMBOLIC or value.node.size is not None
        )
        return value if stays else specialize_nested(value)

    arguments = func._schema.arguments
    return (
        tuple(specialized(a.name, v) for v, a in zip(args, arguments)),
        {k: specialized(k, v) for k, v in kwargs.items()},
    )


def numbers_to_sizes(func: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments with `Size`s in place of symbolic numbers that are sizes."""
    if not has_symbols(args) and not has_symbols(kwargs):
        return args, kwargs
    sizes = size_arguments(func)
    arguments = func._schema.arguments
    return (
        tuple(_map_numbers(v, size_of) if a.name in sizes else v for v, a in zip(args, arguments)),
        {k: _map_numbers(v, size_of) if k in sizes else v for k, v in kwargs.items()},
    )


def _map_numbers(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value`, a number or a list of them, with `change` applied to symbolic numbers."""
    if isinstance(value, (list, tuple)):
        return [_map_numbers(v, change) for v in value]
    return change(value) if type(value) in SYMBOLIC else value


@cache
def size_arguments(func: OpOverload) -> frozenset[str]:
    """Names of the arguments that may be symbolic sizes: those typed SymInt, lists of them, and a few others."""
    typed = frozenset(re.findall(r"SymInt\S* (\w+)", str(func._schema))) - DIVISORS  # treated as plain ints
    return typed | SCALAR_SIZES.get(func._schema.name, frozenset()) | COUNTS.get(func, frozenset())


@cache
def number_arguments(func: OpOverload) -> frozenset[str]:
    """Names of the arguments whose number may change from call to call: those typed Scalar or Tensor. For operators
    without a tensor argument, only the fill value: it does not affect metadata."""
    names = frozenset(a.name for a in func._schema.arguments if _takes_number(a.type))
    has_tensor = any("Tensor" in str(a.type) for a in func._schema.arguments)
    return names if has_tensor or row(func).filled is not None else frozenset()


def _takes_number(kind: JitType) -> bool:
    element = kind.getElementType() if isinstance(kind, torch.OptionalType) else kind
    return isinstance(element, (torch.TensorType, torch.NumberType))
