"""Joint graphs of functions, and how to run a partition of one on real tensors and compare it with eager."""

import functools
import operator

import torch

from smelt.autograd import rng_replay
from smelt.autograd.gradient_liveness import live_for
from smelt.autograd.mutation_view_epilogue import apply_epilogue, epilogue_steps
from smelt.autograd.partition import partition
from smelt.autograd.recompute_classes import class_of
from smelt.autograd.save_costs import Memory
from smelt.autograd.undefined_tangents import without_tangents
from smelt.autograd.unsegmented_backward import Reach, unsegmented
from smelt.config import DEFAULT
from smelt.graph.graph_callable import GraphFunction
from smelt.graph.graph_printer import code
from smelt.graph.ir import TensorSpec
from smelt.graph.verify_graph import verify
from smelt.ops.recompute_rules import Class
from smelt.tracing.record.trace import Trace
from tests.harness.traced import flatten


def joint_of(function, *inputs):
    """(the joint graph, the real tensors of its primals). Gradients are those of inputs that require them."""
    trace = Trace()
    trace.autograd.wants_joint = True
    trace.inputs.on_unknown_tensor = trace.fake
    with torch.enable_grad(), trace:
        traced = trace.finish(flatten(function(*[trace.fake(t) for t in inputs])))
    assert traced.joint is not None
    return traced.joint, [trace.real(f) for f in traced.inputs]


def check_valid(joint, parts):
    """Graphs stand on their own, the backward starts from what is said to be saved, and no more is kept than eager keeps."""
    verify(parts.forward, functional=True)
    verify(parts.backward, functional=True)
    given = parts.backward.placeholders
    assert [n.name for n in given[: len(parts.saved)]] == [s.name for s in parts.saved]
    assert [n.name for n in given[len(parts.saved) :]] == [
        f"tangents_{k + 1}" for k in range(len(joint.tangents))
    ]
    assert len(parts.forward.output.args[0]) == joint.n_outputs + sum(
        s.kind == "temporary" for s in parts.saved
    )
    assert parts.nbytes <= Memory(joint).eager_bytes(), f"{code(joint.graph)}\n{parts}"
    check_readers(joint, parts)
    written = [n.name for n in joint.graph if n.target is torch.ops.aten.copy_.default]
    assert [n.name for n in parts.forward if n.target is torch.ops.aten.copy_.default] == written
    n_random = sum(class_of(n) is Class.RANDOM for n in joint.graph)
    drawn = [n for g in (parts.forward, parts.backward) for n in g if class_of(n) is Class.RANDOM]
    states = (rng_replay.STATE, torch.ops.smelt.philox_offset.default)
    assert sum(n.target not in states for n in drawn) == n_random


def check_readers(joint, parts):
    """What is kept in the user's hands is read for those results' gradients for which eager reads it."""
    memory, graph = Memory(joint), parts.backward
    outputs = joint.graph.output.args[0]
    primals = joint.graph.placeholders
    places = {"primal": primals, "alias": primals, "output": outputs}
    reads = live_for(graph.nodes[:-1], graph.placeholders[len(parts.saved) :], set(graph))
    for saved, given in zip(parts.saved, graph.placeholders):
        if saved.kind != "temporary" and isinstance(saved.spec, TensorSpec):
            held = places[saved.kind][saved.index]
            held = memory.written.get(held, held)
            writes = held.target is torch.ops.aten.copy_.default
            bases = {memory.bases[n] for n in (held, *(held.args[1:] if writes else ()))}
            allowed = functools.reduce(operator.or_, (memory.eager.get(b, 0) for b in bases))
            assert not reads[given] & ~allowed, f"{saved.name}\n{code(joint.graph)}\n{parts}"


def saved_values(parts, primals, returned, n_outputs):
    """The tensors that the backward starts from, after the forward graph ran."""
    places = {
        "primal": list(primals),
        "alias": [p.detach() if isinstance(p, torch.Tensor) else p for p in primals],
        "output": returned[:n_outputs],
        "temporary": returned[n_outputs:],
    }
    values = [places[s.kind][s.index] for s in parts.saved]
    for value, saved in zip(values, parts.saved):
        if isinstance(saved.spec, TensorSpec):
            assert (value.shape, value.dtype) == (saved.spec.shape, saved.spec.dtype), saved
    return values


def copies_of(tensors):
    return [t.detach().clone(memory_format=torch.preserve_format) for t in tensors]


def _sum(a, b):
    return b if a is None else a if b is None else a + b


def node_of(joint, parts, reach=Reach.SEGMENT):
    """The two graphs as a node of autograd: a callable on a tuple of primals that gives the joint graph's outputs, and what
    is taken of them, as if the graph gave that too."""
    last = joint.cuts[-1] if joint.cuts else None
    stop = joint.tangents.index(last) if joint.cuts and reach == Reach.TO_LAST else None
    unsegmented_graph = unsegmented(parts.backward, joint, stop)
    whole = unsegmented(parts.backward, joint)
    differentiable = set(joint.tangents)
    forward = GraphFunction(parts.forward)

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *primals):
            returned = forward(*primals)
            outputs = list(returned[: joint.n_outputs])
            for _, operands, make, count in epilogue_steps(joint):
                made = make(*((primals if kind == "input" else outputs)[i] for kind, i in operands))
                outputs += [made] if count == 1 and isinstance(made, torch.Tensor) else made
            outputs[joint.n_outputs :] = [t.clone() for t in outputs[joint.n_outputs :]]
            ctx.saved = saved_values(parts, primals, returned, joint.n_outputs)
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*(o for i, o in enumerate(outputs) if i not in differentiable))
            return tuple(outputs)

        @staticmethod
        def backward(ctx, *given):
            flowing = list(
                given
            )  # into the outputs; what others are computed from gets its share from them first
            gradients = [None] * joint.n_primals
            if reach == Reach.WHOLE:
                undefined = frozenset(k for k, i in enumerate(joint.tangents) if given[i] is None)
                graph = without_tangents(whole, undefined)
                verify(graph, functional=True)
                found = GraphFunction(graph)(
                    *ctx.saved, *(given[i] for i in joint.tangents if given[i] is not None)
                )
                for i, gradient in zip(joint.gradients, found):
                    gradients[i] = gradient
                return tuple(gradients)
            rest = [i for i in joint.tangents if i not in joint.cuts]
            for group in (rest, *([i] for i in reversed(joint.cuts))):
                now = [flowing[i] if i in group else None for i in joint.tangents]
                undefined = frozenset(k for k, t in enumerate(now) if t is None)
                graph = parts.backward
                if reach == Reach.TO_LAST:
                    graph = unsegmented_graph if group is rest else whole if group == [last] else graph
                graph = without_tangents(graph, undefined)
                verify(graph, functional=True)
                found = GraphFunction(graph)(*ctx.saved, *(t for t in now if t is not None))
                for i, gradient in zip(joint.gradients, found):
                    gradients[i] = _sum(gradients[i], gradient)
                for i, gradient in zip(joint.cuts, found[len(joint.gradients) :]):
                    flowing[i] = _sum(flowing[i], gradient)
            return tuple(gradients)

    return lambda primals: Both.apply(*primals)


def check(function, *inputs, config=DEFAULT, through=None, **tolerance):
    """A partition gives the outputs, the writes and the gradients that eager gives; returns (joint, partition).

    `through`: of the outputs that require grad, which are differentiated (by position, modulo their number); None for all.
    """
    joint, primals = joint_of(function, *inputs)
    parts = partition(joint, config)
    check_valid(joint, parts)
    seed = torch.get_rng_state()
    wanted = _everything(lambda given: flatten(function(*given)), inputs, through, None)
    order = [next(i for i, t in enumerate(inputs) if t is p) for p in primals]
    for reach in Reach:
        compiled = apply_epilogue(node_of(joint, parts, reach), joint, True)
        torch.set_rng_state(seed)
        got = _everything(lambda given: compiled(tuple(given[i] for i in order)), inputs, through, wanted[-1])
        _compare(got, wanted, joint, parts, through, tolerance)
    return joint, parts


def _compare(got, wanted, joint, parts, through, tolerance):
    for what, ours, eagers in zip(("outputs", "inputs", "gradients"), got, wanted):
        assert len(ours) == len(eagers)
        for i, (g, w) in enumerate(zip(ours, eagers)):
            if w is None:
                assert g is None or (through is not None and not g.any()), (
                    f"{what}[{i}]: {g}\n{code(parts.backward)}"
                )
            else:
                assert g is not None, f"{what}[{i}]: None\n{code(parts.backward)}"
                message = lambda m: f"{what}[{i}]: {m}\n{code(joint.graph)}\n{parts}"
                torch.testing.assert_close(g, w, equal_nan=True, **tolerance, msg=message)


def _everything(call, inputs, through, tangents):
    """Outputs, inputs afterwards, gradients of the inputs; and the tangents that were given."""
    leaves = [t.requires_grad_(r.requires_grad) for t, r in zip(copies_of(inputs), inputs)]
    with torch.enable_grad():
        given = [t + 0 if t.requires_grad else t for t in leaves]
        outputs = call(given)
    differentiable = [o for o in outputs if o.requires_grad]
    if through is not None:
        places = {i % len(differentiable) for i in through}
        differentiable = [o for i, o in enumerate(differentiable) if i in places]
    if tangents is None:
        state = torch.get_rng_state()
        tangents = [torch.randn_like(o) for o in differentiable]
        torch.set_rng_state(state)
    sources = [t for t in leaves if t.requires_grad]
    gradients = torch.autograd.grad(differentiable, sources, tangents, allow_unused=True)
    return [o.detach() for o in outputs], [t.detach() for t in given], gradients, tangents
