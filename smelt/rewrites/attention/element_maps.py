"""Which elements of which tensor a view or a copy holds, so that two ways to the same elements are known for such."""

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


class Apart(Exception):
    """No strides say where the elements of a view are."""


@dataclass(frozen=True)
class Place:
    """The elements of `root` that a tensor of `shape` holds, in its row-major order: those of a tensor with the `dims`,
    which may be more than those of `shape` (heads and sequences that were made one dimension). Strides and `offset` count
    elements of `root` in row-major order, wherever they lie in memory. Equal places are equal.
    """

    root: Node
    shape: tuple[int, ...]
    dims: Dims
    offset: int = 0

    def viewed(self, *shape: int) -> Place:
        """The elements in another shape, in their order."""
        return replace(self, shape=shape)

    def seen(self, view: Callable[[torch.Tensor], torch.Tensor]) -> Place:
        """The place of a view of it. Raises Apart."""
        groups = self._groups()
        if any(len(g) > 1 for g in groups):
            raise Apart
        strides = [g[0][1] if g else 0 for g in groups]
        whole = torch.empty(self.root.spec.shape, device="meta")
        made = view(whole.as_strided(self.shape, strides, self.offset))
        dims = _joined(zip(made.shape, made.stride()))
        return Place(self.root, tuple(made.shape), dims, int(made.storage_offset()))

    def permuted(self, order: Sequence[int]) -> Place:
        """With its dimensions in another order. Raises Apart."""
        groups = self._groups()
        dims = _joined(d for i in order for d in groups[i])
        return replace(self, shape=tuple(self.shape[i] for i in order), dims=dims)

    @property
    def turned(self) -> Place | None:
        """Its matrices transposed; None where no strides say where they are."""
        *others, rows, columns = range(len(self.shape))
        try:
            return self.permuted((*others, columns, rows))
        except Apart:
            return None

    @property
    def is_whole(self) -> bool:
        """Whether it has all elements of the root, in their order."""
        count = torch.Size(self.root.spec.shape).numel()
        return self.offset == 0 and self.dims == (((count, 1),) if count > 1 else ())

    def _groups(self) -> list[list[tuple[int, int]]]:
        """For each dimension of the shape the dims that it is made of. Raises Apart."""
        if 0 in self.shape:
            raise Apart
        left = list(self.dims)
        groups: list[list[tuple[int, int]]] = []
        for size in reversed(self.shape):
            group: list[tuple[int, int]] = []
            while size > 1:
                if not left:
                    raise Apart
                n, stride = left.pop()
                if n > size:  # a part of it
                    left.append((n // size, stride * size))
                    n, rest = size, n % size
                    if rest:
                        raise Apart
                if size % n:
                    raise Apart
                group.insert(0, (n, stride))
                size //= n
            groups.insert(0, group)
        return groups


def _joined(dims: Iterable[tuple[int, int]]) -> Dims:
    """Without those of size 1, and with neighbours that are one dimension as one."""
    found: list[tuple[int, int]] = []
    for n, stride in dims:
        if n == 1:
            continue
        if found and found[-1][1] == n * stride:
            found[-1] = (found[-1][0] * n, stride)
        else:
            found.append((n, stride))
    return tuple(found)


class Places:
    """The places of the nodes of a graph with these `constants`, each found once."""

    def __init__(self, constants: Mapping[str, torch.Tensor]) -> None:
        self.constants = constants
        self.found: dict[Node, Place] = {}

    def of(self, node: Node) -> Place:
        """The place of a tensor's elements."""
        if node not in self.found:
            self.found[node] = self._of(node)
        return self.found[node]

    def _of(self, node: Node) -> Place:
        source = _source(node)
        if source is not None:
            try:
                return _applied(node, self.of(source))
            except Apart:
                pass
        return _whole(node)

    def chain(self, node: Node) -> Iterator[Node]:
        """The node and what it is a view or a copy of, up to the root."""
        root = self.of(node).root
        while node is not root:
            yield node
            source = _source(node)
            assert source is not None, "it has another root"
            node = source
        yield root

    def reshaped(self, node: Node) -> Node | None:
        """What `node` has all elements of, in their row-major order; None if it is no view or copy like that."""
        place, source = self.of(node), _source(node)
        if place.root is not node and place.is_whole:
            return place.root
        if source is None or source is place.root:
            return None
        try:
            return source if _applied(node, _whole(source)).is_whole else None
        except Apart:
            return None


def _whole(node: Node) -> Place:
    shape: tuple[Any, ...] = node.spec.shape
    return Place(node, shape, _joined(zip(shape, contiguous_stride(shape))))  # type: ignore[arg-type]


def _source(node: Node) -> Node | None:
    """What a node is a view or a copy of, element by element."""
    if node.op != "call_function":
        return None
    if node.target in _VIEWS or node.target is aten.clone.default:
        source: Node = node.args[0]
        return source
    if node.target is operator.getitem and node.args[0].target in _LISTS:
        of_list: Node = node.args[0].args[0]
        return of_list
    return None


def _applied(node: Node, source: Place) -> Place:
    """The place of a view, or of a copy, of what has the place `source`. Raises Apart."""
    if node.target is aten.clone.default:
        return source
    if node.target in (aten.view.default, aten._unsafe_view.default):
        return source.viewed(*node.spec.shape)
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
    return source.seen(lambda t: _view(node, t))


def _view(node: Node, source: torch.Tensor) -> torch.Tensor:
    """The view that `node` is, of `source`."""
    if node.target is not operator.getitem:
        made: torch.Tensor = node.target(source, *node.args[1:], **node.kwargs)
        return made
    of_list, index = node.args
    pieces: Sequence[torch.Tensor] = of_list.target(source, *of_list.args[1:], **of_list.kwargs)
    return pieces[index]
