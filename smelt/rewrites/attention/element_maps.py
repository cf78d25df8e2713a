"""Element maps: which elements of which tensor a view or a copy holds, so that different views of the same elements
compare equal."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from smelt.graph.ir import Node
from smelt.shapes.expr import contiguous_stride

aten = torch.ops.aten

_VIEWS = frozenset(
    {
        *(aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.unsqueeze.default),
        *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.select.int, aten.slice.Tensor),
        *(aten.transpose.int, aten.t.default, aten.permute.default, aten.alias.default, aten.detach.default),
    }
)
_LISTS = frozenset({aten.unbind.int, aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default})


Dims = tuple[tuple[int, int], ...]  # (size, stride) of each


class NotStrided(Exception):
    """No strides describe the elements of a view."""


@dataclass(frozen=True)
class ElementMap:
    """The elements of `root` that a tensor of `shape` holds, in its row-major order: those of a strided tensor with
    the dimensions `dims`, which may be more than those of `shape` (heads and sequences merged into one dimension).
    Strides and `offset` count elements of `root` in row-major order, independent of its memory layout. Maps of the
    same elements are equal."""

    root: Node
    shape: tuple[int, ...]
    dims: Dims
    offset: int = 0

    def with_shape(self, *shape: int) -> ElementMap:
        """The same elements in another shape, in the same order."""
        return replace(self, shape=shape)

    def of_view(self, view: Callable[[torch.Tensor], torch.Tensor]) -> ElementMap:
        """The map of a view of the tensor. Raises NotStrided."""
        groups = self._groups()
        if any(len(g) > 1 for g in groups):
            raise NotStrided
        strides = [g[0][1] if g else 0 for g in groups]
        full = torch.empty(self.root.spec.shape, device="meta")
        result = view(full.as_strided(self.shape, strides, self.offset))
        dims = _merged(zip(result.shape, result.stride()))
        return ElementMap(self.root, tuple(result.shape), dims, int(result.storage_offset()))

    def permuted(self, order: Sequence[int]) -> ElementMap:
        """The map with its dimensions permuted. Raises NotStrided."""
        groups = self._groups()
        dims = _merged(d for i in order for d in groups[i])
        return replace(self, shape=tuple(self.shape[i] for i in order), dims=dims)

    @property
    def transposed(self) -> ElementMap | None:
        """The map with its matrices transposed; None if no strides describe it."""
        *others, rows, columns = range(len(self.shape))
        try:
            return self.permuted((*others, columns, rows))
        except NotStrided:
            return None

    @property
    def is_identity(self) -> bool:
        """Whether it has all elements of the root, in order."""
        count = torch.Size(self.root.spec.shape).numel()
        return self.offset == 0 and self.dims == (((count, 1),) if count > 1 else ())

    def _groups(self) -> list[list[tuple[int, int]]]:
        """For each dimension of the shape, the `dims` that make it up. Raises NotStrided."""
        if 0 in self.shape:
            raise NotStrided
        remaining = list(self.dims)
        groups: list[list[tuple[int, int]]] = []
        for size in reversed(self.shape):
            group: list[tuple[int, int]] = []
            while size > 1:
                if not remaining:
                    raise NotStrided
                n, stride = remaining.pop()
                if n > size:  # a part of it
                    remaining.append((n // size, stride * size))
                    n, remainder = size, n % size
                    if remainder:
                        raise NotStrided
                if size % n:
                    raise NotStrided
                group.insert(0, (n, stride))
                size //= n
            groups.insert(0, group)
        return groups


def _merged(dims: Iterable[tuple[int, int]]) -> Dims:
    """Dimensions without those of size 1, and with neighbours merged where one stride describes both."""
    merged: list[tuple[int, int]] = []
    for n, stride in dims:
        if n == 1:
            continue
        if merged and merged[-1][1] == n * stride:
            merged[-1] = (merged[-1][0] * n, stride)
        else:
            merged.append((n, stride))
    return tuple(merged)


class ElementMaps:
    """The element maps of the nodes of a graph with these `constants`, memoized."""

    def __init__(self, constants: Mapping[str, torch.Tensor]) -> None:
        self.constants = constants
        self.maps: dict[Node, ElementMap] = {}

    def of(self, node: Node) -> ElementMap:
        """The element map of a node."""
        if node not in self.maps:
            self.maps[node] = self._of(node)
        return self.maps[node]

    def _of(self, node: Node) -> ElementMap:
        source = _source(node)
        if source is not None:
            try:
                return _of_result(node, self.of(source))
            except NotStrided:
                pass
        return _identity(node)

    def chain(self, node: Node) -> Iterator[Node]:
        """The node and the tensors it is a view or a copy of, up to the root."""
        root = self.of(node).root
        while node is not root:
            yield node
            source = _source(node)
            assert source is not None, "it has another root"
            node = source
        yield root

    def reshaped(self, node: Node) -> Node | None:
        """The node all of whose elements `node` has, in row-major order; None if it is no such view or copy."""
        element_map, source = self.of(node), _source(node)
        if element_map.root is not node and element_map.is_identity:
            return element_map.root
        if source is None or source is element_map.root:
            return None
        try:
            return source if _of_result(node, _identity(source)).is_identity else None
        except NotStrided:
            return None


def _identity(node: Node) -> ElementMap:
    shape: tuple[Any, ...] = node.spec.shape
    return ElementMap(node, shape, _merged(zip(shape, contiguous_stride(shape))))  # type: ignore[arg-type]


def _source(node: Node) -> Node | None:
    """The tensor that a node is a view or a copy of, element by element."""
    if node.op != "call_function":
        return None
    if node.target in _VIEWS or node.target is aten.clone.default:
        source: Node = node.args[0]
        return source
    if node.target is operator.getitem and node.args[0].target in _LISTS:
        of_list: Node = node.args[0].args[0]
        return of_list
    return None


def _of_result(node: Node, source: ElementMap) -> ElementMap:
    """The map of a view, or a copy, of a tensor with the map `source`. Raises NotStrided."""
    if node.target is aten.clone.default:
        return source
    if node.target in (aten.view.default, aten._unsafe_view.default):
        return source.with_shape(*node.spec.shape)
    rank = len(source.shape)
    if node.target in (aten.transpose.int, aten.t.default):
        a, b = node.args[1:] if node.target is aten.transpose.int else (0, rank - 1)
        order = list(range(rank))
        order[a], order[b] = order[b], order[a]
        return source.permuted(order)
    if node.target is aten.permute.default:
        return source.permuted([d % rank for d in node.args[1]])
    if node.spec.shape == source.shape and node.target is aten.expand.default:
        return source
    return source.of_view(lambda t: _view(node, t))


def _view(node: Node, source: torch.Tensor) -> torch.Tensor:
    """Apply the view operator of `node` to `source`."""
    if node.target is not operator.getitem:
        result: torch.Tensor = node.target(source, *node.args[1:], **node.kwargs)
        return result
    of_list, index = node.args
    tensors: Sequence[torch.Tensor] = of_list.target(source, *of_list.args[1:], **of_list.kwargs)
    return tensors[index]
