"""A guard tree remembers its last pass and does not walk what has not changed: it still answers as a complete pass would.

A world of modules, functions, cells, classes and containers changes at random; between changes the tree is asked often
enough to remember. Objects are also dropped and made again, so that new ones lie where old ones were.
"""

from __future__ import annotations

import collections
import gc
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt import _native
from smelt._native import type_version
from smelt.guards.class_facts import ClassFacts
from smelt.guards.global_state import snapshot
from smelt.guards.guard import Guard, first_failing
from smelt.guards.source import Source
from smelt.guards.tensor_facts import tensor_facts
from smelt.guards.tree_layout import build
from smelt.report.inspect import entries


class Config:
    def __init__(self) -> None:
        self.size, self.scale, self.table = 4, 0.5, {"x": 1, "y": (2, 3.0)}


class Inline:
    def __init__(self) -> None:
        self.a, self.b = 1.5, (1, 2)


class Layer(nn.Module):
    factor = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.act = nn.ReLU()
        self.config = Config()
        self.register_buffer("count", torch.zeros(1))


class Derived(Layer):
    pass


GLOBALS: dict[str, Any] = {"__name__": "world", "LIMIT": 10, "TABLE": {"k": 1.0}, "MODEL": None}


class World:
    """Slots: x (tensor), net (module), box (object without a dictionary), parts (tuple), more (dictionary), f (function)."""

    names = ("x", "net", "box", "parts", "more", "f", "queue")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Everything anew, after what was there is gone."""
        self.slots: list[Any] = []
        GLOBALS["MODEL"] = None
        net = nn.Sequential(Layer(), Layer(), nn.Linear(2, 2))
        cell_value = [1.0]

        def f(a: int = 1, *, b: int = 2) -> Any:
            return cell_value

        GLOBALS.update(LIMIT=10, TABLE={"k": 1.0}, MODEL=nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
        self.cell = cell_value
        queue = collections.deque([1, Config()])
        self.slots = [torch.ones(2), net, Inline(), (1, Config()), {"k": Config(), "n": 3}, f, queue]

    def call(self) -> list[Any]:
        """The slots of a call: what the interpreter gathers is made anew, as in real calls."""
        x, net, box, parts, more, f, queue = self.slots
        return [x, net, box, (*parts,), dict(more), f, queue]

    @property
    def guards(self) -> list[Guard]:
        made = [Guard("global_state", None, snapshot())]
        for i, (name, value) in enumerate(zip(self.names, self.slots)):
            made += facts(value, Source("arg", name, index=i))
        namespace = Source("const", "world.__dict__", value=GLOBALS)
        for name in ("LIMIT", "TABLE", "MODEL"):
            made += facts(GLOBALS[name], namespace.child("item", name))
        made.append(Guard("contains", namespace, ("max", False)))
        for cls in (Layer, Config, nn.Linear):
            made.append(
                Guard("type_version", Source("const", cls.__name__, value=cls), ClassFacts(type_version(cls)))
            )
        net = Source("arg", "net", index=1)
        first, second = net.child("param", "0"), net.child("param", "1")
        made.append(Guard("distinct", first, (first, second)))
        made.append(Guard("eq", Source("const", "Layer", value=Layer).child("attr", "factor"), Layer.factor))
        weights = tuple(m.child("param", "inner").child("param", "weight") for m in (first, second))
        made.append(Guard("no_overlap", weights[0], weights))
        shared = Source("arg", "net", index=1).child("attr", "_modules").child("item", "0")
        made.append(Guard("alias", shared, first))
        return made


def facts(x: Any, source: Source) -> Iterator[Guard]:
    """Everything about `x`."""
    if isinstance(x, torch.Tensor):
        yield Guard("tensor", source, tensor_facts(x))
    elif isinstance(x, types.FunctionType):
        yield Guard("id", source, x)
        yield Guard("function", source, (x.__code__, x.__defaults__, x.__kwdefaults__))
        yield Guard("eq", source.child("kwdefault", "b"), 2)
        yield from facts(x.__closure__[0].cell_contents, source.child("cell", 0))  # type: ignore[index]
    elif isinstance(x, (int, float, str, bool, type(None))):
        yield Guard("eq", source, x)
    elif isinstance(x, (list, tuple, collections.deque)):
        yield Guard("type", source, type(x))
        yield Guard("len", source, len(x))
        for i, v in enumerate(x):
            yield from facts(v, source.child("item", i))
    elif isinstance(x, dict):
        yield Guard("type", source, type(x))
        yield Guard("keys", source, tuple(x))
        yield Guard("contains", source, ("z", False))
        for key, v in x.items():
            yield from facts(v, source.child("item", key))
    else:
        yield from _instance(x, source)


def _instance(x: Any, source: Source) -> Iterator[Guard]:
    yield Guard("type", source, type(x))
    yield Guard("not_in_dict", source, "forward")
    if not isinstance(x, nn.Module):
        for name, v in sorted(vars(x).items() if not isinstance(x, Inline) else (("a", x.a), ("b", x.b))):
            yield from facts(v, source.child("attr", name))
        return
    yield Guard("no_hooks", source, None)
    yield Guard("no_attr", source, "gamma")
    yield Guard("eq", source.child("attr", "training"), x.training)
    for part in (x._parameters, x._buffers, x._modules):
        for name, v in part.items():
            yield from facts(v, source.child("param", name))
    if isinstance(x, Layer):
        yield from facts(x.config, source.child("attr", "config"))


# ------------------------------------------------------------------------------------------------- changes

Undo = Callable[[], Any]


def _attribute(owner: Any, name: str, value: Any) -> Undo:
    old = owner.__dict__.get(name, Undo)
    object.__setattr__(owner, name, value)
    return lambda: object.__delattr__(owner, name) if old is Undo else object.__setattr__(owner, name, old)


def _entry(owner: dict[str, Any], name: str, value: Any) -> Undo:
    old = owner.get(name, Undo)
    owner[name] = value
    return lambda: owner.pop(name) if old is Undo else owner.__setitem__(name, old)


def _reordered(table: dict[str, Any]) -> Undo:
    before = list(table.items())
    table["x"] = table.pop("x")
    return lambda: (table.clear(), table.update(before))


def _class_attribute(cls: type, name: str, value: Any) -> Undo:
    old = cls.__dict__.get(name, Undo)
    setattr(cls, name, value)
    return lambda: delattr(cls, name) if old is Undo else setattr(cls, name, old)


def _hook(module: nn.Module) -> Undo:
    return module.register_forward_hook(lambda *a: None).remove


def _class(x: Any, cls: type) -> Undo:
    old, x.__class__ = type(x), cls
    return lambda: setattr(x, "__class__", old)


def _own_dict(x: Any) -> Undo:
    old, x.__dict__ = x.__dict__, dict(x.__dict__)
    return lambda: setattr(x, "__dict__", old)


def _code(f: Any, other: Any) -> Undo:
    old, f.__code__ = f.__code__, other.__code__.replace(co_freevars=f.__code__.co_freevars)
    return lambda: setattr(f, "__code__", old)


def _slot(w: World, i: int, value: Any) -> Undo:
    old, w.slots[i] = w.slots[i], value
    return lambda: w.slots.__setitem__(i, old)


def _values(rng: random.Random) -> Any:
    return rng.choice((1, True, 1.0, 4, 0.5, -0.0, "a", None, (2, 3.0), 10, 10.0, torch.ones(2)))


CHANGES: tuple[Callable[[World, random.Random], Undo], ...] = (
    lambda w, r: _attribute(w.slots[1][0].config, "size", _values(r)),
    lambda w, r: _entry(w.slots[1][1].config.table, r.choice("xyz"), _values(r)),
    lambda w, r: _reordered(w.slots[1][1].config.table),
    lambda w, r: _attribute(w.slots[1][0], r.choice(("forward", "gamma", "training", "weight", "unread")), _values(r)),
    lambda w, r: _entry(
        w.slots[1][1].inner._parameters, r.choice(("weight", "gamma")), nn.Parameter(torch.ones(r.choice((2, 3)), 2))
    ),
    lambda w, r: _entry(w.slots[1]._modules, r.choice("012"), r.choice((Layer, Derived, nn.ReLU))()),
    lambda w, r: _entry(w.slots[1]._modules, "1", w.slots[1][0]),
    lambda w, r: _entry(w.slots[1][0]._buffers, "count", torch.zeros(r.choice((1, 2)))),
    lambda w, r: _hook(w.slots[1][r.randrange(3)]),
    lambda w, r: _class(w.slots[1][0], r.choice((Derived, Layer))),
    lambda w, r: _own_dict(w.slots[1][r.randrange(2)]),
    lambda w, r: _class_attribute(Layer, r.choice(("factor", "forward")), 5.0),
    lambda w, r: _class_attribute(Config, "extra", 5.0),
    lambda w, r: _entry(GLOBALS, r.choice(("LIMIT", "unread", "max")), _values(r)),
    lambda w, r: _entry(GLOBALS, "MODEL", nn.Sequential(nn.Linear(2, 2), r.choice((nn.Tanh, nn.ReLU))())),
    lambda w, r: _entry(GLOBALS["TABLE"], "k", _values(r)),
    lambda w, r: _attribute(GLOBALS["MODEL"][1], "training", not GLOBALS["MODEL"][1].training),
    lambda w, r: _slot(w, 0, torch.ones(r.choice((2, 3)))),
    lambda w, r: _slot(w, 2, Inline()),
    lambda w, r: _slot(w, 4, {"k": Config(), "n": _values(r)}),
    lambda w, r: _slot(w, 3, (1, r.choice((Config, Inline))())),
    lambda w, r: (w.cell.append(2.0), w.cell.pop)[1],
    lambda w, r: (w.cell.__setitem__(0, 2.0), lambda: w.cell.__setitem__(0, 1.0))[1],
    lambda w, r: _entry(w.slots[5].__kwdefaults__, "b", r.choice((2, 2.0, 3))),
    lambda w, r: (setattr(w.slots[5], "__defaults__", (7,)), lambda: setattr(w.slots[5], "__defaults__", (1,)))[1],
    lambda w, r: (w.slots[6].append(1), w.slots[6].pop)[1],
    lambda w, r: _attribute(w.slots[6][1], "scale", _values(r)),
    lambda w, r: (setattr(w.slots[2], "a", 2.5), lambda: setattr(w.slots[2], "a", 1.5))[1],
    lambda w, r: (torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True))[1],
    lambda w, r: (w.slots[1].to(torch.float64), lambda: w.slots[1].to(torch.float32))[1],
)  # fmt: skip


def agree(tree: Any, guards: list[Guard], world: World, step: object) -> bool:
    slots = world.call()
    failing = first_failing(guards, slots)
    text = "all hold" if failing is None else failing.text
    assert (tree.check(*slots) is not None) == (failing is None), (step, text)
    return failing is None


@pytest.mark.parametrize("seed", range(20))
def test_a_tree_that_remembers_agrees_with_one_that_does_not(seed: int) -> None:
    rng, world = random.Random(seed), World()
    guards = world.guards
    tree = _native.GuardTree(build(guards, []).native)
    accepted = 0
    for step in range(120):
        for _ in range(rng.choice((1, 3, 12))):
            accepted += agree(tree, guards, world, step)
        number = rng.randrange(len(CHANGES))
        undo = CHANGES[number](world, rng)
        for _ in range(rng.choice((1, 2, 4))):
            accepted += agree(tree, guards, world, (step, number))
        undo()
        if not agree(
            tree, guards, world, (step, number, "undone")
        ):  # the version of a class does not come back
            guards = world.guards
            tree = _native.GuardTree(build(guards, []).native)
    assert accepted > 400


def test_new_objects_where_old_ones_were() -> None:
    """The whole world is dropped and made again, at addresses that were used before."""
    rng, world = random.Random(0), World()
    kept = [Guard("type", Source("arg", "net", index=1), nn.Sequential)]
    net = Source("arg", "net", index=1)
    layer = net.child("param", "0")
    kept.append(Guard("eq", layer.child("attr", "config").child("attr", "size"), 4))
    kept.append(Guard("eq", Source("arg", "parts", index=3).child("item", 1).child("attr", "size"), 4))
    tree = _native.GuardTree(build(kept, []).native)
    for step in range(300):
        for _ in range(3):
            agree(tree, kept, world, step)
        undo = None
        world.slots.clear()
        gc.collect(0)
        world.renew()
        if rng.random() < 0.5:
            world.slots[1][0].config.size = rng.choice((4, 4.0, True, 5))
        if rng.random() < 0.3:
            world.slots[3][1].size = 5
        agree(tree, kept, world, (step, undo))


def test_cost_does_not_grow_with_what_is_not_read() -> None:
    """An attribute that changes in every call and is not guarded: the tree goes on accepting."""
    world = World()
    guards = world.guards
    tree = _native.GuardTree(build(guards, [Source("arg", "x", index=0)]).native)
    for i in range(50):
        world.slots[1][0].__dict__["calls"] = i
        GLOBALS["unread"] = i
        collected = tree.check(*world.call())
        assert collected is not None and collected[0] is world.slots[0]
    del GLOBALS["unread"]


def notes_of(model: nn.Module) -> tuple[int, int]:
    compiled = smelt.compile(model, backend="eager")
    x = torch.ones(2, 4)
    with torch.no_grad():
        for _ in range(6):
            compiled(x)
    (entry,) = entries(compiled)
    notes: tuple[int, int] = entry.tree.memo_size()
    return notes


def test_modules_that_did_not_change_are_not_looked_at() -> None:
    """Per layer only its two tensors are; the rest is a comparison of words."""
    words, looks = zip(
        *(notes_of(nn.Sequential(*[nn.Linear(4, 4) for _ in range(n)]).eval()) for n in (10, 20))
    )
    assert looks[1] - looks[0] == 2 * 10
    assert words[1] - words[0] <= 10 * 10


def _set_class(weight: Any) -> None:
    weight.__class__ = type("Weight", (nn.Parameter,), {})


IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "dtype": lambda w: setattr(w, "data", w.data.double()),
    "sizes": lambda w: setattr(w, "data", torch.ones(2, 4)),
    "strides": lambda w: setattr(w, "data", torch.ones(4, 4).t()),
    "rank": lambda w: setattr(w, "data", torch.ones(1, 4, 4)),
    "requires_grad": lambda w: w.requires_grad_(False),
    "conj": lambda w: setattr(w, "data", torch.ones(4, 4, dtype=torch.complex64).conj()),
    "class": _set_class,
    "another tensor": lambda w: torch.utils.swap_tensors(w, nn.Parameter(torch.ones(4, 4).double())),
}


@pytest.mark.parametrize("change", IN_PLACE.values(), ids=IN_PLACE)
def test_a_weight_that_changes_in_place_is_noticed(change: Callable[[Any], Any]) -> None:
    """No dictionary changes with it."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(8)]).eval()
    guards = list(facts(model, Source("arg", "model", index=0)))
    tree = _native.GuardTree(build(guards, []).native)
    for _ in range(6):
        assert tree.check(model) is not None
    assert tree.memo_size() is not None
    change(model[5].weight)
    assert tree.check(model) is None
    assert first_failing(guards, [model]) is not None


def test_weights_that_look_alike_may_be_exchanged() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(8)]).eval()
    weights = [
        Source("arg", "model", index=0).child("param", str(i)).child("param", "weight") for i in (2, 5)
    ]
    tree = _native.GuardTree(build(list(facts(model, Source("arg", "model", index=0))), weights).native)
    for _ in range(6):
        tree.check(model)
    torch.utils.swap_tensors(model[2].weight, model[5].weight)
    assert [id(w) for w in tree.check(model)] == [id(model[2].weight), id(model[5].weight)]
    fresh = nn.Parameter(torch.zeros(4, 4))
    model[2].weight = fresh
    assert tree.check(model)[0] is fresh


class Counting(nn.Module):
    """Changes its own dictionary in every call: what hangs on it is looked at each time, other modules are not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)])

    def forward(self, x: Any) -> Any:
        self.last = x.shape
        return self.layers(x)


def test_a_dictionary_that_always_changes_is_left_out() -> None:
    model = Counting().eval()
    compiled = smelt.compile(model, backend="eager")
    with torch.no_grad():
        for i in range(60):
            model.unread = i
            compiled(torch.ones(2, 4))
    (entry,) = entries(compiled)
    before = entry.tree.memo_size()
    assert before is not None and before[1] < 2 * 20 + 30
    with torch.no_grad():
        for i in range(5):
            model.unread = -i
            compiled(torch.ones(2, 4))
            assert entry.tree.memo_size() == before
