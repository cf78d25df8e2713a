"""The gradients of a captured call as data: the joint graph, cut into a forward and backwards (`autograd/compile_joint.py`).

A compiled call compiles a backward when its first gradient arrives. A program holds its backwards: for each group of
tangents one for all of them and one for each alone, at every `Reach` that the group allows. For several tangents that are
not all, it adds up what the backwards for each alone return.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from smelt.autograd.compile_joint import JointNode, backward_part
from smelt.autograd.compile_joint import Part as BackwardPart
from smelt.autograd.unsegmented_backward import Reach
from smelt.backends.smelt import cut_for_training
from smelt.config import Config
from smelt.errors import ExportError
from smelt.exported.plan_making import Part
from smelt.exported.program_file import BackwardData, Gradients
from smelt.tracing.backward.joint import Joint
from smelt.tracing.record.traced import Traced


def outputs_of(name: str, traced: Traced) -> Mapping[int, int]:
    """The number of a tensor among the outputs of the graph, by its fake's identity. Raises ExportError where autograd must
    see something of the call that is outside of the graph."""
    joint = traced.joint
    if joint is None:
        return {id(fake): i for i, fake in enumerate(traced.outputs)}
    reason = _outside(joint)
    if reason is not None:
        raise ExportError(f"{name} {reason}, which a program with gradients cannot do")
    pairs = zip(traced.outputs, joint.results, strict=True)
    return {id(fake): source.index for fake, source in pairs if source.kind == "value"}


def _outside(joint: Joint) -> str | None:
    if joint.flags:
        return "sets requires_grad or retain_grad of its inputs"
    if joint.freed:
        return "returns a tensor whose graph it has freed"
    if joint.writes:
        return "writes an input with gradients (return the new value)"
    if joint.conditions:
        return "reads a tensor that requires grad in one branch of a condition"
    if joint.epilogue or any(source.steps for source in joint.results):
        return "returns a view of an input or of another result (return a copy)"
    if any(source.retained for source in joint.results):
        return "retains the gradient of a result"
    return None


def cut(traced: Traced, number: int, config: Config) -> tuple[list[Part], Gradients]:
    """The forward, as graph `number`, the backwards, as the graphs after it, and how they belong together."""
    joint, parts = cut_for_training(traced, config)
    node = JointNode.of(joint, parts)
    graphs = [Part(number, parts.forward, is_rewritten=True)]
    backwards: list[BackwardData] = []
    for defined, reach in _wanted(node):
        undefined = frozenset(range(len(joint.tangents))) - {*defined}
        graph, donated = backward_part(joint, parts, BackwardPart(undefined, reach))
        graphs.append(Part(number + len(graphs), graph, is_rewritten=True, donated=donated))
        backwards.append(BackwardData(graphs[-1].number, defined, int(reach), tuple(sorted(donated))))
    return graphs, Gradients(**vars(node.data), backwards=tuple(backwards))


def _wanted(node: JointNode) -> Iterator[tuple[tuple[int, ...], Reach]]:
    """The tangents and the reach of each backward that the program has."""
    for tangents, whole, ends_at_last in node.data.groups:
        reaches = [Reach.SEGMENT, *[Reach.TO_LAST] * ends_at_last, *[Reach.WHOLE] * whole]
        alone = [(k,) for k in sorted(tangents)]
        for defined in dict.fromkeys((tuple(sorted(tangents)), *alone)):
            for reach in reaches:
                yield defined, reach
