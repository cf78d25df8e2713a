"""Joint graphs for tests, from one trace of forward and backward; and how to run a partition on real tensors."""

import torch

from smelt.autograd.classes import RANDOM, class_of
from smelt.autograd.memory import Memory
from smelt.autograd.partition import partition
from smelt.config import DEFAULT
from smelt.graph.ir import Node, TensorSpec, argument_nodes
from smelt.graph.module import GraphFunction
from smelt.graph.verify import verify
from smelt.trace.joint import Joint
from smelt.trace.record import Trace
from tests.trace.programs import flatten


def joint_of(function, *inputs):
    """(the joint graph, the real tensors of its primals). Gradients are those of inputs that require them."""
    trace = Trace()
    with torch.enable_grad():
        trace.on_unknown = trace.fake
        with trace:
            fakes = [trace.fake(t) for t in inputs]
            outputs = flatten(function(*fakes))
            n_forward = len(trace.aten.graph.nodes)
            with_tangent = [i for i, o in enumerate(outputs) if o.requires_grad]
            tangents = [trace.fake(_like(outputs[i])) for i in with_tangent]
            sources = [f for f in trace.inputs if f.requires_grad]
            gradients = torch.autograd.grad(
                [outputs[i] for i in with_tangent], sources, tangents, allow_unused=True
            )
        late = set(trace.aten.graph.nodes[n_forward:])
        traced = trace.finish([*outputs, *(g for g in gradients if g is not None)])
    return _as_joint(trace, traced, late, len(outputs), with_tangent, tangents, sources, gradients)


def _like(fake):
    spec = fake.spec
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype)


def _as_joint(trace, traced, late, n_outputs, with_tangent, tangents, sources, gradients):
    graph = traced.aten_graph
    primals = [f for f in traced.inputs if not any(f is t for t in tangents)]
    nodes = dict(zip(map(id, traced.inputs), graph.placeholders))
    heads = []
    for i, fake in enumerate(primals):
        heads.append(nodes[id(fake)])
        heads[-1].name = heads[-1].target = f"primals_{i + 1}"
    for k, fake in enumerate(tangents):
        head = nodes.get(id(fake)) or Node("placeholder", "", (), {}, "", fake.spec)
        heads.append(head)
        head.name = head.target = f"tangents_{k + 1}"
    body = [n for n in graph.nodes if n.op != "placeholder"]
    graph.nodes[:] = heads + body
    late = late | set(heads[len(primals) :])
    for node in body[:-1]:  # what functionalization made of the backward's writes
        if node.target is not torch.ops.aten.copy_.default and not late.isdisjoint(argument_nodes(node)):
            late.add(node)
    backward = frozenset(n for n in body[:-1] if n in late)
    returned = iter(graph.output.args[0][n_outputs:])
    given = [None if g is None else next(returned) for g in gradients]
    graph.output.args = ((*graph.output.args[0][:n_outputs], *given),)
    graph.output.spec = tuple(None if n is None else n.spec for n in graph.output.args[0])
    tangent_nodes = set(heads[len(primals) :])
    saved = {a for n in backward for a in argument_nodes(n)} - backward - tangent_nodes
    position = {id(f): i for i, f in enumerate(primals)}
    joint = Joint(
        graph,
        len(primals),
        n_outputs,
        tuple(with_tangent),
        tuple(position[id(f)] for f in sources),
        backward,
        frozenset(saved),
    )
    verify(graph, functional=True)
    return joint, [trace.real(f) for f in primals]


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
    assert parts.nbytes <= Memory(joint).eager_bytes(), f"{joint.graph.code}\n{parts}"
    written = [n.name for n in joint.graph if n.target is torch.ops.aten.copy_.default]
    assert [n.name for n in parts.forward if n.target is torch.ops.aten.copy_.default] == written
    n_random = sum(class_of(n) is RANDOM for n in joint.graph)
    assert sum(class_of(n) is RANDOM for g in (parts.forward, parts.backward) for n in g) == n_random


def saved_values(parts, primals, returned, n_outputs):
    """The tensors that the backward starts from, after the forward graph ran."""
    places = {"primal": list(primals), "output": returned[:n_outputs], "temporary": returned[n_outputs:]}
    values = [places[s.kind][s.index] for s in parts.saved]
    for value, saved in zip(values, parts.saved):
        if isinstance(saved.spec, TensorSpec):
            assert (value.shape, value.dtype) == (saved.spec.shape, saved.spec.dtype), saved
    return values


def run_parts(joint, parts, primals, tangents):
    """(forward outputs, gradients) by the two graphs, as printed."""
    with torch.no_grad():
        returned = GraphFunction(parts.forward)(*primals)
        saved = saved_values(parts, primals, returned, joint.n_outputs)
        return returned[: joint.n_outputs], GraphFunction(parts.backward)(*saved, *tangents)


def copies_of(tensors):
    return [t.detach().clone(memory_format=torch.preserve_format) for t in tensors]


def check(function, *inputs, config=DEFAULT, **tolerance):
    """A partition gives the outputs, the writes and the gradients that eager gives; returns (joint, partition)."""
    joint, primals = joint_of(function, *inputs)
    parts = partition(joint, config)
    check_valid(joint, parts)
    leaves = [
        t.detach().clone(memory_format=torch.preserve_format).requires_grad_(t.requires_grad) for t in primals
    ]
    by_id = {id(t): leaf + 0 if leaf.requires_grad else leaf for t, leaf in zip(primals, leaves)}
    seed = torch.get_rng_state()
    with torch.enable_grad():
        worked_on = [by_id.get(id(t), t) for t in inputs]
        expected = flatten(function(*worked_on))
    tangents = [torch.randn_like(expected[i]) for i in joint.tangents]
    wanted = torch.autograd.grad(
        [expected[i] for i in joint.tangents],
        [leaves[i] for i in joint.gradients],
        tangents,
        allow_unused=True,
    )
    torch.set_rng_state(seed)
    given = copies_of(primals)
    outputs, gradients = run_parts(joint, parts, given, tangents)
    for got, want in zip((*outputs, *given), (*expected, *(by_id[id(t)] for t in primals)), strict=True):
        torch.testing.assert_close(got, want.detach(), equal_nan=True, **tolerance)
    for got, want in zip(gradients, wanted, strict=True):
        assert (got is None) is (want is None)
        if want is not None:
            torch.testing.assert_close(got, want, equal_nan=True, **tolerance)
    return joint, parts
