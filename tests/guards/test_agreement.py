"""One native tree, a world that changes hundreds of times: at every step it answers as the Python evaluation does.

The tree remembers dictionary versions and where names were found; changes that are taken back, keys that move and
dictionaries that are replaced by equal ones are what such memories get wrong.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from smelt import _native
from smelt.guards.guard import Guard, first_failing
from smelt.guards.source import Source
from smelt.guards.tensor_facts import tensor_facts
from smelt.guards.tree_layout import build


class Node:
    pass


class Slots:
    __slots__ = ("a", "b")


LEAVES = (
    0,
    1,
    True,
    1.0,
    -0.0,
    0.0,
    "a",
    "b",
    None,
    (1, 2),
    (1, 2.0),
    torch.float32,
    10**20,
    float("nan"),
    b"x",
)
NAMES = ("a", "b", "c")


def leaf(rng: random.Random) -> Any:
    return torch.ones(rng.choice((1, 2))) if rng.random() < 0.2 else rng.choice(LEAVES)


def make(rng: random.Random, depth: int) -> Any:
    if depth == 0:
        return leaf(rng)
    kind = rng.choice((dict, list, tuple, Node, Slots, collections.OrderedDict, collections.deque))
    children = [make(rng, depth - 1) for _ in NAMES[: rng.randint(1, 3)]]
    if kind in (dict, collections.OrderedDict):
        return kind(zip(NAMES, children))
    if kind in (Node, Slots):
        made = kind()
        for name, child in zip(NAMES[:2], children):
            setattr(made, name, child)
        return made
    return kind(children)


def facts(x: Any, source: Source) -> Iterator[Guard]:
    """Everything about `x`."""
    if isinstance(x, torch.Tensor):
        yield Guard("tensor", source, tensor_facts(x))
        return
    if any(x is v for v in LEAVES):
        yield Guard("eq", source, x)
        return
    yield Guard("type", source, type(x))
    if isinstance(x, dict):
        yield Guard("keys", source, tuple(x))
        yield Guard("contains", source, ("z", False))
        children = [(source.child("item", k), v) for k, v in x.items()]
    elif isinstance(x, (Node, Slots)):
        kind: Any = "attr" if isinstance(x, Node) else "member"
        children = [(source.child(kind, n), getattr(x, n)) for n in NAMES if hasattr(x, n)]
        yield from [
            Guard("not_in_dict", source, n) for n in NAMES if not hasattr(x, n) and isinstance(x, Node)
        ]
        yield from [Guard("slot", source, (n, hasattr(x, n))) for n in NAMES[:2] if isinstance(x, Slots)]
    else:
        yield Guard("len", source, len(x))
        children = [(source.child("item", i), v) for i, v in enumerate(x)]
    for child, value in children:
        yield from facts(value, child)


def containers(x: Any) -> Iterator[Any]:
    if isinstance(x, (dict, list, collections.deque, Node, Slots)):
        yield x
    values = (
        x.values() if isinstance(x, dict) else x if isinstance(x, (list, tuple, collections.deque)) else ()
    )
    if isinstance(x, (Node, Slots)):
        values = [getattr(x, n) for n in NAMES if hasattr(x, n)]
    for v in values:
        if not isinstance(v, torch.Tensor):
            yield from containers(v)


def mutate(rng: random.Random, owner: Any) -> Any:
    """Changes `owner` in place; returns what takes it back."""
    new, name = leaf(rng), rng.choice(NAMES)
    if isinstance(owner, dict):
        before = list(owner.items())
        action = rng.randrange(4)
        if action == 0:
            owner[name] = new
        elif action == 1:
            owner.pop(name, None)
        elif action == 2 and before:
            key, value = before[0]
            del owner[key]
            owner[key] = value
        else:
            owner["z"] = new
        return lambda: (owner.clear(), owner.update(before))
    if isinstance(owner, (list, collections.deque)):
        items = list(owner)
        if rng.random() < 0.5 and items:
            owner[rng.randrange(len(items))] = new
        else:
            owner.append(new)
        return lambda: (owner.clear(), owner.extend(items))
    missing = object()
    old = getattr(owner, name, missing) if isinstance(owner, Node) or name != "c" else missing
    if isinstance(owner, Slots) and name == "c":
        return lambda: None
    if rng.random() < 0.7:
        setattr(owner, name, new)
    elif old is not missing:
        delattr(owner, name)

    def back() -> None:
        if old is not missing:
            setattr(owner, name, old)
        elif hasattr(owner, name):
            delattr(owner, name)

    if isinstance(owner, Node) and rng.random() < 0.2:
        owner.__dict__ = dict(owner.__dict__)
    return back


@pytest.mark.parametrize("seed", range(25))
def test_tree_and_python_agree(seed: int) -> None:
    rng = random.Random(seed)
    world = [make(rng, 3), make(rng, 3)]
    guards = [g for i, x in enumerate(world) for g in facts(x, Source("arg", f"x{i}", index=i))]
    spec = build(guards, [])
    tree = _native.GuardTree(spec.native)
    assert first_failing(guards, world) is None and tree.check(*world) is not None
    for step in range(150):
        owner = rng.choice(list(containers(world)))
        back = mutate(rng, owner) if owner is not world else (lambda: None)
        for _ in range(rng.randint(1, 2)):
            failing = first_failing(guards, world)
            accepted = tree.check(*world) is not None
            text = "all hold" if failing is None else failing.text
            assert accepted == (failing is None), (step, text)
        if rng.random() < 0.9:
            back()
