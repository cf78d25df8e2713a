"""Patterns of aten nodes: what they match, in which order, and how they print. Rewriters copy what they do not replace."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from smelt.graph.graph_printer import code
from smelt.graph.ir import Graph, Node
from smelt.graph.verify_graph import verify
from smelt.rewrites.attention.attention_pattern import ATTENTION, SAME, SCALED
from smelt.rewrites.graph_rewriter import GraphRewriter
from smelt.rewrites.patterns import (
    Call,
    Capture,
    Fact,
    OneOf,
    Refused,
    Rule,
    Through,
    Where,
    apply_first,
    users_of,
)
from tests.harness.traced import traced

aten = torch.ops.aten
X, Y = Capture("x"), Capture("y")


def graph_of(program, *shapes: tuple[int, ...]) -> Graph:
    return traced(program, *(torch.zeros(s) for s in shapes))[0]


def node_of(graph: Graph, op: object) -> Node:
    """The last call of an operator."""
    return [n for n in graph if n.target is op][-1]


def test_a_call_binds_its_arguments():
    graph = graph_of(lambda a, b: (a + 1).mm(b), (2, 3), (3, 4))
    product, (a, b) = node_of(graph, aten.mm.default), graph.placeholders
    match = Call(aten.mm.default, Call((aten.add.Tensor, aten.sub.Tensor), X, 1, name="sum"), Y).first(
        product
    )
    assert match is not None
    assert (match["node"], match["x"], match["y"], match["sum"]) == (product, a, b, product.args[0])
    assert Call(aten.mm.default, Call(aten.add.Tensor, X, 2), Y).first(product) is None
    assert Call(aten.bmm.default, X, Y).first(product) is None
    assert Call(aten.mm.default, X, Y, Capture()).first(product) is None  # it has two


def test_a_name_stands_for_one_value():
    graph = graph_of(lambda a, b: (a * b) + (a * a), (2,), (2,))
    (a, b), square = graph.placeholders, Call(aten.mul.Tensor, X, X)
    mixed, same = node_of(graph, aten.add.Tensor).args
    assert square.first(same) and not square.first(mixed)
    assert Call(aten.mul.Tensor, X, Y).first(mixed, x=a) and not Call(aten.mul.Tensor, X, Y).first(mixed, x=b)


def test_commutative_calls_and_alternatives_backtrack():
    graph = graph_of(lambda a, b: a.sin() + b.cos(), (2,), (2,))
    (a, b), total = graph.placeholders, node_of(graph, aten.add.Tensor)
    cos, sin = Call(aten.cos.default, X), Call(aten.sin.default, Y)
    match = Call(aten.add.Tensor, cos, sin, commutative=True).first(total)
    assert match is not None and (match["x"], match["y"]) == (b, a)
    assert Call(aten.add.Tensor, cos, sin).first(total) is None
    either = OneOf(Call(aten.cos.default, X), Call(aten.sin.default, X))
    assert Where(Call(aten.add.Tensor, either, either), lambda m: m["x"] is a).first(total) is None
    assert Call(aten.add.Tensor, Capture("left"), either).first(total, x=b) is not None


def test_steps_between_two_calls():
    graph = graph_of(lambda a: ((a.sin() * 2).neg() * 3).cos(), (2,))
    scaled = Rule(
        Call(aten.mul.Tensor, X, Fact(lambda value, facts: facts[value], "word")), lambda m: m["word"]
    )
    negated = Rule(Call(aten.neg.default, X), lambda m: "minus")
    pattern = Call(aten.cos.default, Through((scaled, negated), Call(aten.sin.default, Y), "steps"))
    match = pattern.first(node_of(graph, aten.cos.default), {2: "two", 3: "three"})
    assert match is not None
    assert (match["steps"], match["y"]) == (("two", "minus", "three"), graph.placeholders[0])
    assert (
        pattern.first(node_of(graph, aten.cos.default), {2: "two", 3: None}) is None
    )  # there is no such fact


def test_the_first_rule_that_matches_decides():
    def refuse(match: object) -> str:
        raise Refused("it is negative")

    graph = graph_of(lambda a: a.sin().neg(), (2,))
    rules = (Rule(Call(aten.sin.default), lambda m: "sine"), Rule(Call(aten.neg.default), refuse))
    assert apply_first(rules, node_of(graph, aten.sin.default)) == "sine"
    assert apply_first(rules, graph.placeholders[0]) is None
    with pytest.raises(Refused, match="negative"):
        apply_first(rules, node_of(graph, aten.neg.default))


def test_patterns_print():
    product = Call((aten.mm.default, aten.bmm.default), X, Capture())
    assert str(product) == "bmm|mm(x, _)"
    assert str(Call(aten.add.Tensor, OneOf(product, Y), 1)) == "add((bmm|mm(x, _) | y), 1)"
    assert str(ATTENTION).startswith("bmm(casts*(_softmax(steps*((bmm(q, k) | baddbmm(tensor, q, k) where")
    assert str(SCALED) == "(mul(x, constant_value(number)) | div(x, inverse(number))) where is_whole"
    assert str(SAME).endswith("reshaped(x))")


def test_a_rewriter_copies_and_replaces():
    def program(a: Tensor, b: Tensor) -> Tensor:
        return (a.sin() @ b).cos()

    graph = graph_of(program, (2, 3), (3, 4))
    before = code(graph)
    writer = GraphRewriter(graph, "other")
    for node in graph:
        if writer.at(node).target is aten.mm.default:
            a, b = (writer.env[n] for n in node.args)
            writer.env[node] = writer.call(
                aten.mm.default, writer.call(aten.neg.default, graph_input(writer, a)), b
            )
        else:
            writer.copy(node)
    made = writer.finish().graph
    verify(made, functional=True)
    assert code(graph) == before
    names = [n.name for n in made if n.op == "call_function"]
    assert names == ["neg_other", "mm_other", "cos"]  # nothing reads the sine
    assert made.nodes[-1].args[0][0].args[0].line == node_of(graph, aten.mm.default).line


def graph_input(writer: GraphRewriter, value: Node) -> Node:
    """The input that a sine is computed from."""
    found: Node = value.args[0]
    return found


def test_users_are_listed_once_and_in_order():
    graph = graph_of(lambda a: (a * a) + a, (2,))
    product, total = node_of(graph, aten.mul.Tensor), node_of(graph, aten.add.Tensor)
    users = users_of(graph)
    assert users[graph.placeholders[0]] == [product, total]
    assert users[total] == [graph.output] and users[graph.output] == []
