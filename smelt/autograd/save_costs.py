"""The cost of saving a value of the forward for the backward, in bytes of memory that would otherwise be freed.

Memory is counted by storages: a view is saved by saving the tensor that owns the memory (its *base*). The rules follow
from what the user may do between forward and backward, namely write the tensors that they hold:

* A primal that eager's backward reads costs nothing: the user holds it, and writing it raises, as in eager. Reads that are
  not those of eager's nodes go to an alias of its memory, which the program's assignments to `data` do not change.
* A primal that eager's backward does not read may be written in eager, so only a copy of it can be saved.
* The old value of a primal that the forward overwrites is saved as a copy. The new value is the primal itself.
* A result that shares memory with an output is saved only if eager saves it. The output itself then costs nothing;
  where outputs cover only a part of the result, a copy is saved, because a write to it would go undetected.
* With several tangents, eager saves a value for the gradients of some results, which may be dead when it is written
  (`eager`: which tangents). `partition.py` ensures that no others read the user's tensors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from smelt.autograd.gradient_liveness import live_for
from smelt.autograd.packed_saves import packed_dtype
from smelt.autograd.recompute_classes import has_conj_neg_bit, view_source
from smelt.graph.input_writes import input_writes
from smelt.graph.ir import Node, NumberSpec, TensorSpec
from smelt.shapes.expr import Size, Sym, evaluate, numel
from smelt.tracing.backward.joint import Joint

Kind = Literal["primal", "alias", "output", "temporary"]
Hints = Mapping[Sym, int]
NO_HINTS: Hints = {}


@dataclass(frozen=True)
class SaveOption:
    """A way to save a value. `index`: of the primal or forward output. `copies`: a copy is saved, made when the
    forward starts (a primal) or when the value exists; `dtype`: of the copy, if it differs. `through`: the saved
    output is this view of the value."""

    kind: Kind
    index: int
    nbytes: int
    copies: bool = False
    dtype: torch.dtype | None = None
    through: Node | None = None


def nbytes(spec: Any) -> Size:
    """The bytes of memory of a fresh tensor with this layout."""
    if not isinstance(spec, TensorSpec):
        return 0
    if 0 in spec.shape:
        return 0
    extent = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.stride))
    return extent * spec.dtype.itemsize


class Memory:
    """Bases, and how each base can be saved, of one joint graph. `hints`: sample values of size symbols."""

    def __init__(self, joint: Joint, hints: Hints = NO_HINTS) -> None:
        self.hints = hints
        self.bases: dict[Node, Node] = {}
        graph = joint.graph
        outputs: tuple[Node | None, ...] = graph.output.args[0][: joint.n_forward]
        for node in graph:
            source = view_source(node)
            self.bases[node] = node if source is None else self.bases[source]
        self.primals = {p: i for i, p in enumerate(graph.placeholders[: joint.n_primals])}
        self.outputs: dict[Node, int] = {}
        for i, output in enumerate(outputs):
            if output is not None:
                self.outputs.setdefault(output, i)
        self.escaping = {self.bases[n] for n in self.outputs}
        writes = [n for n in input_writes(graph) if n.args[0] in self.primals]
        self.written: dict[Node, Node] = {n.args[0]: n for n in writes}  # primal -> the node that writes it
        self.in_primal: dict[Node, int] = {}  # value -> the primal that holds it after the forward
        for write in writes:
            self.in_primal[write] = self.primals[write.args[0]]
            value = write.args[1]
            if _same_layout(value.spec, write.args[0].spec) and self.bases[value] is value:
                self.in_primal.setdefault(value, self.primals[write.args[0]])
        tangents = graph.placeholders[joint.n_primals :]
        # base read by eager's backward -> the tangents, as bits
        self.eager: defaultdict[Node, int] = defaultdict(int)
        for node, readers in live_for(graph.nodes[:-1], tangents, joint.backward).items():
            if node not in joint.backward:
                self.eager[self.bases[node]] |= readers

    def save_option(self, node: Node) -> SaveOption | None:
        """The cheapest way to save a node's value, or None: it follows from its base, or is no tensor."""
        if node in self.primals:
            return self._primal(node)
        if not isinstance(node.spec, TensorSpec) or self.bases.get(node, node) is not node:
            return None
        size = self.nbytes(node.spec)
        if node in self.in_primal and node in self.eager:
            return SaveOption("primal", self.in_primal[node], 0)
        if node in self.escaping:
            if node not in self.eager:
                return None
            if node in self.outputs:
                return SaveOption("output", self.outputs[node], 0)
            views = (v for v in self.outputs if self.bases[v] is node and not has_conj_neg_bit(v))
            view = next((v for v in views if _covers(v.spec, node.spec)), None)
            if view is not None:
                return SaveOption("output", self.outputs[view], 0, through=view)
            return SaveOption("temporary", -1, size, copies=True)
        dtype = packed_dtype(node)
        if dtype is not None:
            return SaveOption("temporary", -1, size // node.spec.dtype.itemsize * dtype.itemsize, True, dtype)
        return SaveOption("temporary", -1, size)

    def _primal(self, node: Node) -> SaveOption | None:
        index = self.primals[node]
        if isinstance(node.spec, NumberSpec) or (node in self.eager and node not in self.written):
            return SaveOption("primal", index, 0)
        return SaveOption("temporary", -1, self.nbytes(node.spec), copies=True)

    def nbytes(self, spec: Any) -> int:
        """The bytes of memory of a fresh tensor with this layout."""
        number: int = evaluate(nbytes(spec), self.hints)
        return number

    def eager_bytes(self) -> int:
        """The bytes that eager saves, without primals and values that smelt saves as outputs."""
        saved = ((b, self.save_option(b)) for b in self.eager if b.op == "call_function")
        return sum(self.nbytes(b.spec) for b, option in saved if option is not None and option.nbytes)


def _covers(view: TensorSpec, base: TensorSpec) -> bool:
    """Whether a view has each element of a dense base once, so that the base is a view of it."""
    dense = numel(base.shape) * base.dtype.itemsize
    return (
        view.dtype is base.dtype
        and view.offset == base.offset
        and nbytes(view) == nbytes(base) == dense
        and numel(view.shape) == numel(base.shape)
    )


def _same_layout(a: Any, b: Any) -> bool:
    return (a.shape, a.stride, a.dtype) == (b.shape, b.stride, b.dtype)
