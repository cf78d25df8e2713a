"""The joint graph: forward and backward of one trace as one functional aten graph.

Autograd follows the fakes while the user's code runs. Afterwards `record_backward.py` has autograd compute the
gradients of the function's results, with fakes for the tangents: the dispatch mode that recorded the forward records
the backward after it, as a `RecordedBackward`. Functionalization processes both at once, and `joint_builder.py`
extracts the result as a `Joint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from smelt.graph.ir import Graph, Node
from smelt.tracing.backward.custom_function_backward import UserBackward
from smelt.tracing.backward.freed_graphs import FreedValue
from smelt.tracing.backward.grad_flags import NO_FLAGS, GradFlags
from smelt.tracing.backward.torch_level_index import TorchLevelTensor
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.trace_outputs import EpilogueTensor, OutputSource


@dataclass(frozen=True)
class Joint:
    """`graph` takes `primals_1..` (the tensors and numbers of the trace) and `tangents_1..`. It returns the forward's
    outputs and the flags of `conditions`, then the gradients (None where there is none): of primals, then of the `cuts`.

    The tangent of a cut stands for all gradients that flow into it, from other outputs as well. Tensors of the
    `epilogue` count as further outputs in `tangents` and `cuts`; their tangents are never defined, as autograd has
    nodes for them. The graph is functional except for `copy_` nodes that write primals without autograd; those belong
    to the forward.
    """

    graph: Graph
    n_primals: int
    n_outputs: int
    tangents: tuple[int, ...]  # tangents[k]: the forward output that tangent k belongs to
    # gradients[k]: the primal that gradient k belongs to. Leaves come first, in eager's order of accumulation
    gradients: tuple[int, ...]
    backward: frozenset[Node]  # recorded by the backward; all others must run in the forward
    leaves: int = 0  # the number of leaves among the gradients
    # the primals that eager's nodes save: the backward reads the `data` that they have then
    saved_primals: frozenset[int] = frozenset()
    # the forward outputs that they save so, and whether they also save memory that such an output has before
    saved_outputs: Mapping[int, bool] = field(default_factory=dict)
    results: tuple[OutputSource, ...] = ()  # the outputs of the trace, from the graph's outputs
    cuts: tuple[int, ...] = ()  # the outputs that others are computed from, in order of computation
    # (primal, forward output): writes of primals that autograd must see
    writes: tuple[tuple[int, int], ...] = ()
    flags: GradFlags = NO_FLAGS  # set by the program on primals
    # per tangent: those whose gradients use the same saved value in eager's graph, where the first one frees it
    conflicts: tuple[tuple[int, ...], ...] = ()
    torch_level_tensors: tuple[
        TorchLevelTensor | None, ...
    ] = ()  # of the forward's outputs, then of the epilogue
    freed: tuple[FreedValue, ...] = ()  # outputs that require grad but whose graph is freed
    epilogue: tuple[EpilogueTensor, ...] = ()  # in order of computation
    tangent_order: tuple[int, ...] = ()  # the tangents, in the order in which their outputs were computed
    # conditions[k]: the flag that decides whether gradient k is defined; None: it always is. Empty: all are
    conditions: tuple[int | None, ...] = ()

    @property
    def n_flags(self) -> int:
        """The number of flags."""
        return len({flag for flag in self.conditions if flag is not None})

    @property
    def n_forward(self) -> int:
        """The number of the forward's results: outputs and flags."""
        return self.n_outputs + self.n_flags


@dataclass(frozen=True)
class RecordedBackward:
    """A backward on the tape. `start`: the numbers of tape entries and aten nodes of the forward. Input positions
    count the inputs of the trace."""

    values: tuple[FakeTensor, ...]
    results: tuple[OutputSource, ...]
    written: tuple[FakeTensor, ...]  # inputs whose writes autograd must see: the last of `values`
    tangents: tuple[FakeTensor, ...]
    with_tangent: tuple[int, ...]  # indices of values
    # the inputs that have a gradient: leaves first, in the order in which they receive it
    sources: tuple[FakeTensor, ...]
    gradients: tuple[FakeTensor | None, ...]  # of the sources, then of the cuts
    cuts: tuple[int, ...]  # values that other values are computed from
    start: tuple[int, int]
    flags: GradFlags
    calls: tuple[UserBackward, ...] = ()
    conflicts: tuple[tuple[int, ...], ...] = ()
    saved_inputs: frozenset[int] = frozenset()
    saved_outputs: Mapping[int, bool] = field(default_factory=dict)
    freed: tuple[FreedValue, ...] = ()
    epilogue: tuple[EpilogueTensor, ...] = ()
    epilogue_fakes: tuple[FakeTensor, ...] = ()
    tangent_order: tuple[int, ...] = ()

    @property
    def fakes(self) -> list[FakeTensor]:
        """All that the joint graph returns, then the gradients of user backwards."""
        user_gradients = (g for call in self.calls for g in call.gradients)
        return [*self.values, *(g for g in self.gradients if g is not None), *user_gradients]
