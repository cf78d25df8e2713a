"""The registry: one row for each ATen operator that anything is known of.

`row(op)` is everything that smelt knows of an overload beyond its schema (`graph/operator_effects.py` reads that). The
modules of this package declare the rows, family by family:

    @operator(aten.heaviside.default, out=aten.heaviside.out, recompute=POINTWISE)
    def heaviside(b: Builder, x: Tensor, values: Operand) -> Tensor: ...

declares an overload with a lowering, `declare("sort topk", recompute=SORT)` facts of all overloads of the operators named.
A fact of an overload goes before one of its name. All that is known of an operator stands in one module, and no fact is
declared twice: both are errors, raised at import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

import torch

from smelt.graph.ir import Node
from smelt.ops.node_builders import Make
from smelt.ops.recompute_rules import OperatorClass
from smelt.ops.trace_rules import TraceRule
from smelt.torch_private import OpOverload

# `f(builder, *args, **kwargs)`, called with the aten arguments (tensors as lazy `Tensor`s). Gives a `Tensor`, a tuple of
# them, or None: "call the ATen operator", which is also what happens to operators without a lowering.
Lowering = Callable[..., Any]


class Facts(TypedDict, total=False):
    """The fields of `Operator`, as they are declared."""

    lowering: Lowering | None
    takes_numbers: bool
    takes_sizes: bool
    any_size: bool
    out: OpOverload | None
    out_on_cpu: Callable[[], OpOverload | None] | None
    insert: Lowering | None
    in_place: OpOverload | None
    recompute: OperatorClass | Callable[[Node], OperatorClass] | None
    linear: tuple[str, ...]
    layout: Callable[..., Any] | None
    layout_on: Callable[..., Any] | None
    run_on_zeros: bool
    needs_room: bool
    scales: bool
    tried_on: int
    converts: bool
    trace_rule: TraceRule | None
    recorded_as: Callable[..., tuple[OpOverload, tuple[Any, ...]]] | None
    view: OpOverload | None
    written_through: Callable[..., Node] | None
    filled: Callable[..., Any] | None
    elements: Literal["same", "once", "repeated"] | None
    on_numbers: Callable[..., Any] | None
    on_naturals: Callable[[Any, Any], Any] | None
    condition: Callable[..., Any] | None
    logic: Literal["not", "and", "or", "all", "any"] | None
    unbacked: tuple[str, Callable[..., Any]] | None
    statistics: Callable[..., tuple[Node, ...]] | None
    from_statistics: Callable[[Make, dict[str, Any], dict[int, Node]], Node | None] | None
    zero_where: Callable[..., Node] | None
    reads_shape_only: bool
    unread: Callable[..., tuple[int, ...]] | None
    index_bound: Callable[[Node], int] | None
    zero_or_one: bool
    redrawn: Literal["like", "from", "mask"] | None
    raises: bool | Callable[[Node], bool]
    safe: Callable[..., bool] | None
    fits: str
    fits_in: Callable[[torch.dtype, torch.device], torch.dtype]


@dataclass(frozen=True)
class Operator:
    """What is known of one operator; every field defaults to "unknown".

    Attributes:
        lowering: builds its loops (docs/loops.md).
        takes_numbers: the lowering accepts a `Number` (whose value a call passes) in place of a number.
        takes_sizes: the lowering accepts a symbolic size in place of a number.
        any_size: its result metadata for some sizes is right, or an error, for all sizes from 2 on; for other
            operators sizes must stay in the range that was tried (ops/symbolic_results.py, which names classes of
            operators that need not declare it).
        out: an overload that computes into passed memory, whatever its strides, with the same code: no allocation and
            no page faults per call. (Many other `out=` overloads are generated: they copy.)
        out_on_cpu: such an overload for CPUs, or None where it computes other values on this one.
        insert: a lowering of an operator that returns its first argument with some elements replaced, as `Insert`, for
            an input that holds the result at the end (ops/donated_inputs.py); None: the in-place operator.
        in_place: the operator that writes its first argument so; calling it twice is the same as once.
        recompute: its class for rematerialization in the backward; by the node if the arguments decide. Without one,
            torch's tags and the schema decide (autograd/recompute_classes.py).
        linear: sets of arguments, names separated by spaces; the result is zero if all of one set are. None and the
            number 0 count as zero, and a list whose tensors all are. Views and `*_backward` need none
            (ops/linearity.py).
        layout: a shape function from meta tensors to meta tensors with a CPU's layouts, or NotImplemented if it does
            not know (ops/layouts).
        layout_on: the same for a GPU, which is its first argument: for libraries whose first call takes long.
        run_on_zeros: torch's shape function is wrong about a CPU's strides, or needs real tensors, so the operator
            runs instead, once, on zeros.
        needs_room: raises for tensors of one element, which then say nothing about its kernels.
        scales: its lists are sizes of images and its floats their scale factors: on one element, which GPU kernels
            would read beyond, it is tried without.
        tried_on: the values on which it is tried for result layouts. Zeros are out of range for pivots, which count
            from 1 and which neither a GPU nor LAPACK checks: memory beside the tensor would be written.
        converts: a GPU library may convert the layouts of arguments and results for the time of the call.
        trace_rule: how a trace treats a call that it does not simply record; `recorded_as`: from its arguments, the
            operator and the arguments that are recorded instead; `view`: the view operator that it is beneath
            autograd, or whose result an in-place operator makes of its tensor.
        written_through: of a view operator, its inverse: `(emitter, base, value, *arguments after the first)` returns
            a node with the shape of `base` that holds `value` where the view looks and `base` elsewhere. With several
            results, the number of the written one comes before the arguments.
        filled: the number that all elements of its result equal, from the arguments.
        elements: its results consist of elements of its first argument, at positions that the other arguments
            decide: all of them in the `same` row-major order, each at most `once`, or `repeated`.
        on_numbers: its result for numbers in place of tensors of one element. Rounding that to the result's dtype is
            exact; a GPU may multiply by a reciprocal instead of dividing. `on_naturals`: the same for ints, the first
            one nonnegative, the second one positive. `condition`: the same for a result that is a bool.
        logic: what it computes of bools.
        unbacked: of results with a data-dependent size, what that size counts, for messages, and a function `(new size,
            *arguments by name)` to the specs of the results on a CPU, or NotImplemented.
        statistics: of an operator on rows `(x, dim, ...)`, `(make, *arguments)` to the numbers of each row from which
            `from_statistics` computes its result: 1 is the first one.
        from_statistics: of a normalization, its first result from its input and saved statistics: `(make, arguments by
            name, results by number)`, None if they do not suffice.
        zero_where: of a backward, `(make, second argument, *further ones)` returns a mask of its zeros; elsewhere it
            passes the gradient. Comparisons are false for NaN, as in ATen's kernels.
        reads_shape_only: of a backward, that it reads only the shape of its second argument, which eager saves all the
            same.
        unread: from its arguments, the positions of those that its first result does not depend on. No result depends
            on those that may be None.
        index_bound: an exclusive upper bound of the indices that it returns (alone, or as the second result).
        zero_or_one: all its results are 0 or 1, whatever the dtype.
        redrawn: it fills with random numbers that the same generator state reproduces: a tensor `like` the first
            argument, whose values it does not read, or one drawn `from` them; or it multiplies by a random `mask`, its
            second result.
        raises: whether it may raise because of the values that it reads; by the node if the arguments decide. It runs
            although its result is unused, and before any write that the caller sees (ops/may_raise.py).
        safe: from its lowered arguments, whether it is known not to raise after all: it need not run for that.
        fits: names of arguments, separated by spaces, whose numbers must fit the dtype of the result, or ATen raises;
            `fits_in` computes another dtype that they must fit, from that and the device of the result.
    """

    lowering: Lowering | None = None
    takes_numbers: bool = False
    takes_sizes: bool = False
    any_size: bool = False
    out: OpOverload | None = None
    out_on_cpu: Callable[[], OpOverload | None] | None = None
    insert: Lowering | None = None
    in_place: OpOverload | None = None
    recompute: OperatorClass | Callable[[Node], OperatorClass] | None = None
    linear: tuple[str, ...] = ()
    layout: Callable[..., Any] | None = None
    layout_on: Callable[..., Any] | None = None
    run_on_zeros: bool = False
    needs_room: bool = False
    scales: bool = False
    tried_on: int = 0
    converts: bool = False
    trace_rule: TraceRule | None = None
    recorded_as: Callable[..., tuple[OpOverload, tuple[Any, ...]]] | None = None
    view: OpOverload | None = None
    written_through: Callable[..., Node] | None = None
    filled: Callable[..., Any] | None = None
    elements: Literal["same", "once", "repeated"] | None = None
    on_numbers: Callable[..., Any] | None = None
    on_naturals: Callable[[Any, Any], Any] | None = None
    condition: Callable[..., Any] | None = None
    logic: Literal["not", "and", "or", "all", "any"] | None = None
    unbacked: tuple[str, Callable[..., Any]] | None = None
    statistics: Callable[..., tuple[Node, ...]] | None = None
    from_statistics: Callable[[Make, dict[str, Any], dict[int, Node]], Node | None] | None = None
    zero_where: Callable[..., Node] | None = None
    reads_shape_only: bool = False
    unread: Callable[..., tuple[int, ...]] | None = None
    index_bound: Callable[[Node], int] | None = None
    zero_or_one: bool = False
    redrawn: Literal["like", "from", "mask"] | None = None
    raises: bool | Callable[[Node], bool] = False
    safe: Callable[..., bool] | None = None
    fits: str = ""
    fits_in: Callable[[torch.dtype, torch.device], torch.dtype] = lambda dtype, device: dtype


_NOTHING = Operator()


class Registry:
    """Declared facts, by overload or by name ("aten::sort"), and the rows that were requested."""

    def __init__(self) -> None:
        self._facts: dict[OpOverload | str, Facts] = {}
        self._modules: dict[str, str] = {}
        self._rows: dict[Any, Operator] = {}

    def declare(self, operators: tuple[OpOverload | str, ...], facts: Facts, module: str) -> None:
        """Raises ValueError for a fact that is already declared, and if another module declares the operator."""
        for key in _keys(operators):
            name = key if isinstance(key, str) else _name(key)
            known = self._facts.setdefault(key, {})
            if known.keys() & facts.keys():
                raise ValueError(f"{key}: {', '.join(known.keys() & facts.keys())} declared twice")
            if self._modules.setdefault(name, module) != module:
                raise ValueError(f"{name} is declared in {self._modules[name]} and in {module}")
            known.update(facts)
        self._rows.clear()

    def row(self, op: object) -> Operator:
        """All facts of the overload, its own before those of its name; an empty row for unknown operators."""
        found = self._rows.get(op)
        if found is None:
            found = self._rows[op] = self._merged(op) if isinstance(op, OpOverload) else _NOTHING
        return found

    def _merged(self, op: OpOverload) -> Operator:
        facts: Facts = {**self._facts.get(_name(op), {}), **self._facts.get(op, {})}
        return Operator(**facts) if facts else _NOTHING

    def declared(self) -> Iterator[tuple[OpOverload | str, Facts]]:
        """Overloads and names with their declared facts."""
        yield from self._facts.items()

    def module(self, op: OpOverload) -> str | None:
        """The module that declares an operator."""
        return self._modules.get(_name(op))


def _keys(operators: tuple[OpOverload | str, ...]) -> Iterator[OpOverload | str]:
    for op in operators:
        if isinstance(op, str):
            yield from (f"aten::{name}" for name in op.split())
        else:
            yield op


def _name(op: OpOverload) -> str:
    return op._schema.name


REGISTRY = Registry()
row = REGISTRY.row


def declare(*operators: OpOverload | str, **facts: Unpack[Facts]) -> None:
    """Facts of overloads, or of all overloads of ATen operators (names, separated by spaces)."""
    REGISTRY.declare(operators, facts, _caller())


def operator(*operators: OpOverload, **facts: Unpack[Facts]) -> Callable[[Lowering], Lowering]:
    """Declare overloads whose lowering is the decorated function, and further facts of them."""
    module = _caller()

    def register(lowering: Lowering) -> Lowering:
        REGISTRY.declare(operators, {**facts, "lowering": lowering}, module)
        return lowering

    return register


def _caller() -> str:
    """The module that called the caller."""
    return str(sys._getframe(2).f_globals["__name__"])
