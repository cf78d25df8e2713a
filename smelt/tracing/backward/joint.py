"""The joint graph: forward and backward of one trace as one functional aten graph.

Autograd has followed the fakes while the user's code ran. When the code has ended, `record_backward.py` asks it for the
gradients of what the function returns, with fakes for the tangents: the same dispatch mode that recorded the forward
records the backward behind it, as a `RecordedBackward`. Functionalization then takes both at once, and `joint_builder.py`
cuts the result out as a `Joint`.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.graph.ir import Graph, Node
from smelt.tracing.backward.custom_function_backward import UserBackward
from smelt.tracing.backward.freed_graphs import FreedValue
from smelt.tracing.backward.grad_flags import NO_FLAGS, GradFlags
from smelt.tracing.backward.torch_level_index import TorchLevelTensor
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.trace_outputs import OutputSource, EpilogueTensor


@dataclass(frozen=True)
class Joint:
    """`graph` takes `primals_1..` (the tensors and numbers of the trace) and `tangents_1..`, and gives the forward's
    outputs, then the gradients (None where there is none): of primals, then of the `cuts`.

    The tangent of a cut stands for all that flows into it, from the other outputs too. What is `taken` outside of the graph
    counts as further outputs in `tangents` and `cuts`; its tangents are never defined, as autograd has nodes for it. The
    graph is functional but for `copy_` nodes that write primals without autograd; those belong to the forward.
    """

    graph: Graph
    n_primals: int
    n_outputs: int
    tangents: tuple[int, ...]  # tangents[k]: the forward output that tangent k belongs to
    # gradients[k]: the primal that gradient k belongs to. Leaves come first, in the order in which eager accumulates
    gradients: tuple[int, ...]
    backward: frozenset[Node]  # recorded by the backward; all others must run in the forward
    leaves: int = 0  # how many leaves there are
    results: tuple[OutputSource, ...] = ()  # how the outputs of the trace are had from the graph's
    cuts: tuple[int, ...] = ()  # the outputs that others are computed from, in the order of their computation
    # (primal, forward output): where autograd must see the primal being written
    writes: tuple[tuple[int, int], ...] = ()
    flags: GradFlags = NO_FLAGS  # what the program set of primals
    # per tangent: those whose gradients pass the same saved value in eager's graph, where the first one frees it
    conflicts: tuple[tuple[int, ...], ...] = ()
    torch_level_tensors: tuple[TorchLevelTensor | None, ...] = ()  # of the forward's outputs, then of what is taken
    freed: tuple[FreedValue, ...] = ()  # outputs that require a gradient, which can no longer be had
    taken: tuple[EpilogueTensor, ...] = ()  # in the order in which it is
    computed: tuple[int, ...] = ()  # the tangents, in the order in which their outputs were computed


@dataclass(frozen=True)
class RecordedBackward:
    """A backward on the tape, as `record_backward` leaves it. `start`: how many entries, and aten nodes, the forward has."""

    values: tuple[FakeTensor, ...]
    results: tuple[OutputSource, ...]  # of kind input: `index` counts the inputs of the trace
    written: tuple[FakeTensor, ...]  # inputs that autograd must see being written: the last of `values`
    tangents: tuple[FakeTensor, ...]
    with_tangent: tuple[int, ...]  # which values
    # the inputs that have a gradient: leaves first, in the order in which they are given it
    sources: tuple[FakeTensor, ...]
    gradients: tuple[FakeTensor | None, ...]  # of the sources, then of the cuts
    cuts: tuple[int, ...]  # which values other values are computed from
    start: tuple[int, int]
    flags: GradFlags  # counts the inputs of the trace
    calls: tuple[UserBackward, ...] = ()
    conflicts: tuple[tuple[int, ...], ...] = ()
    freed: tuple[FreedValue, ...] = ()  # counts the inputs of the trace
    taken: tuple[EpilogueTensor, ...] = ()  # counts them, too
    epilogue_fakes: tuple[FakeTensor, ...] = ()
    computed: tuple[int, ...] = ()  # the tangents, in the order in which their values were computed

    @property
    def fakes(self) -> list[FakeTensor]:
        """All that the joint graph returns, then what the calls of the user's give."""
        given = (g for call in self.calls for g in call.gradients)
        return [*self.values, *(g for g in self.gradients if g is not None), *given]
