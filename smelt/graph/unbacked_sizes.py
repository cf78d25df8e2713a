"""Unbacked (data-dependent) sizes, and the nodes of a graph that define them.

Their symbols are `u0`, `u1`, ... (`tracing/symbolic/unbacked_numbers.py`). A node *defines* one if its results have the
symbol and its arguments do not: the number of elements that `nonzero` returns is known after it runs. A number that `item()`
reads is a size of an empty tensor, the result of `smelt::as_sizes`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from smelt.errors import OtherSizes
from smelt.graph.ir import Node, TensorSpec, argument_nodes
from smelt.graph.operator_effects import effects
from smelt.graph.pytree import leaves
from smelt.graph.sample_sizes import syms_of
from smelt.shapes.expr import Sym
from smelt.torch_private import OpOverload

_NONE: frozenset[Sym] = frozenset()


def unbacked_symbol(index: int, number: int | None = None) -> Sym:
    """The symbol of the `index`-th number that data decide: of at least 2, or `number`."""
    return Sym(f"u{index}", 2) if number is None else Sym(f"u{index}", number, number)


def is_unbacked(sym: Sym) -> bool:
    """Whether a symbol is one of these."""
    return sym.name[0] == "u"


def unbacked_sizes_of(node: Node) -> frozenset[Sym]:
    """The sizes that data decide and a node gives."""
    if not isinstance(node.target, OpOverload) or not effects(node.target).dynamic_shape:
        return _NONE
    found = frozenset(filter(is_unbacked, _symbols(node)))
    return found.difference(*map(_symbols, argument_nodes(node))) if found else found


def _symbols(node: Node) -> frozenset[Sym]:
    return _NONE.union(*map(syms_of, leaves(node.spec, TensorSpec)))


def sizes_tensor(numbers: Iterable[int]) -> torch.Tensor:
    """An empty tensor of shape [0, *numbers]. Raises OtherSizes for negative numbers."""
    sizes = [0, *numbers]
    if min(sizes) < 0:
        raise OtherSizes(f"smelt: a graph for sizes was called with {min(sizes)}")
    return torch.empty(0).as_strided(sizes, [0] * len(sizes))


_library = torch.library.Library("smelt", "FRAGMENT")
_library.define("as_sizes(Tensor[] numbers) -> Tensor", tags=(torch.Tag.dynamic_output_shape,))
_library.impl("as_sizes", lambda tensors: sizes_tensor(map(int, tensors)), "CompositeExplicitAutograd")
# (tensors of one integer each) -> an empty tensor of shape [0, *integers]
AS_SIZES: OpOverload = torch.ops.smelt.as_sizes.default
