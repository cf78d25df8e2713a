"""The layout of guard trees: shared prefixes once, parents first, arguments and cheap checks first."""

from __future__ import annotations

from smelt.guards.guard import Guard
from smelt.guards.source import Source
from smelt.guards.tree_layout import build, unique

X, Y = Source("arg", "x", index=0), Source("arg", "y", index=1)
G = Source("const", "G", value={})


def test_prefixes_are_shared_and_parents_come_first() -> None:
    a = X.child("attr", "a")
    spec = build(
        [Guard("eq", a.child("item", 0), 1), Guard("eq", a.child("item", 1), 2), Guard("type", a, list)], []
    )
    assert [(parent, kind, key) for parent, kind, key, *_ in spec.nodes] == [
        (-1, "arg", 0),
        (0, "attr", "a"),
        (1, "item", 0),
        (1, "item", 1),
    ]
    assert spec.nodes[1][3] == ((2, "type", list),)


def test_arguments_before_constants_and_cheap_before_dear() -> None:
    spec = build(
        [
            Guard("keys", G, ()),
            Guard("keys", X, ()),
            Guard("len", X, 1),
            Guard("type", X, dict),
            Guard("len", Y, 1),
        ],
        [],
    )
    assert [node[1] for node in spec.nodes] == ["arg", "arg", "const"]
    assert [kind for _, kind, _ in spec.nodes[0][3]] == ["type", "len", "keys"]


def test_guards_about_several_objects_come_after_all_of_them() -> None:
    a, b = X.child("item", 0), Y.child("item", 0)
    spec = build([Guard("alias", a, b), Guard("distinct", a, (a, Y, X))], [b])
    numbers = {(node[0], node[1], node[2]): i for i, node in enumerate(spec.nodes)}
    ia, ib = numbers[(numbers[(-1, "arg", 0)], "item", 0)], numbers[(numbers[(-1, "arg", 1)], "item", 0)]
    checks = {kind: (i, value) for i, node in enumerate(spec.nodes) for _, kind, value in node[3]}
    assert checks["alias"] == (max(ia, ib), min(ia, ib))
    at, others = checks["distinct"]
    assert at == max(others) and len(others) == 3


def test_repetitions_go_but_different_leaves_stay() -> None:
    guards = [
        Guard("eq", X, 1),
        Guard("eq", X, True),
        Guard("eq", X, 1),
        Guard("eq", X, 0.0),
        Guard("eq", X, -0.0),
    ]
    assert [repr(g.value) for g in unique(guards)] == ["1", "True", "0.0", "-0.0"]
    assert [g.kind.name for g in unique([Guard("type", X, int), Guard("id", X, 3)])] == ["id"]


def test_global_state_comes_first() -> None:
    spec = build([Guard("type", X, int), Guard("global_state", None, (1, 2))], [X])
    assert spec.nodes[0] == (-1, "const", None, ((1, "global_state", (1, 2)),), -1)
    assert spec.nodes[1][4] == 0 and spec.n_collect == 1
