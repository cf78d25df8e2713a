"""A small world that guards are made about: a function's arguments, and the changes that each guard must notice."""

from __future__ import annotations

import collections
from typing import Any

import torch
from torch import nn

from smelt._native import type_version
from smelt.guards.class_facts import ClassFacts
from smelt.guards.global_state import snapshot
from smelt.guards.guard import Guard
from smelt.guards.source import Source
from smelt.guards.tensor_facts import tensor_facts


class Config:
    kind = "gelu"

    def __init__(self) -> None:
        self.size = 4
        self.scale = 0.5
        self.names = ["a", "b"]
        self.table = {"x": 1, "y": (2, 3)}


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 7


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(1))
        self.config = Config()


def called(a: int = 1, *, b: int = 2) -> int:
    return a + b


class World:
    """Slots: x (tensor), layer (module), config, slotted, items (list of two tensors), queue (deque)."""

    def __init__(self) -> None:
        self.x = torch.ones(2, 3)
        self.layer = Layer()
        self.slotted = Slotted()
        self.items = [torch.ones(2), torch.ones(3)]
        self.queue = collections.deque([1, 2])

        def inner() -> Any:
            return self

        self.inner = inner
        self.slots = [
            self.x,
            self.layer,
            self.layer.config,
            self.slotted,
            self.items,
            self.queue,
            called,
            inner,
        ]
        names = ("x", "layer", "config", "slotted", "items", "queue", "called", "inner")
        self.arg = {name: Source("arg", name, index=i) for i, name in enumerate(names)}

    @property
    def guards(self) -> list[Guard]:
        a = self.arg
        layer, config, items = a["layer"], a["config"], a["items"]
        linear = layer.child("param", "linear")
        table = config.child("attr", "table")
        first, second = items.child("item", 0), items.child("item", 1)
        cls = Source("const", "Config", value=Config)
        return [
            Guard("global_state", None, snapshot()),
            Guard("tensor", a["x"], tensor_facts(self.x)),
            Guard("type", layer, Layer),
            Guard("no_hooks", layer, None),
            Guard("not_in_dict", layer, "forward"),
            Guard("no_attr", layer, "bias"),
            Guard("type", linear, nn.Linear),
            Guard("tensor", linear.child("param", "weight"), tensor_facts(self.layer.linear.weight)),
            Guard("tensor", layer.child("param", "count"), tensor_facts(self.layer.count)),
            Guard("alias", layer.child("attr", "config"), config),
            Guard("eq", config.child("attr", "size"), 4),
            Guard("eq", config.child("attr", "scale"), 0.5),
            Guard("len", config.child("attr", "names"), 2),
            Guard("eq", config.child("attr", "names").child("item", 1), "b"),
            Guard("keys", table, ("x", "y")),
            Guard("eq", table.child("item", "y"), (2, 3)),
            Guard("contains", table, ("z", False)),
            Guard("type_version", cls, ClassFacts(type_version(Config))),
            Guard("id", config.child("type", None), Config),
            Guard("eq", a["slotted"].child("member", "value"), 7),
            Guard("type", items, list),
            Guard("tensor", first, tensor_facts(self.items[0])),
            Guard("tensor", second, tensor_facts(self.items[1])),
            Guard("distinct", first, (a["x"], first, second)),
            Guard("no_overlap", first, (first, second)),
            Guard("len", a["queue"], 2),
            Guard("eq", a["queue"].child("item", 1), 2),
            Guard("function", a["called"], (called.__code__, called.__defaults__, called.__kwdefaults__)),
            Guard("eq", a["called"].child("default", 0), 1),
            Guard("eq", a["called"].child("kwdefault", "b"), 2),
            Guard("id", a["inner"].child("cell", 0), self),
            Guard("contains", config.child("dict", None), ("size", True)),
        ]


def _set(path: str, value: Any) -> Any:
    def change(world: World, monkeypatch: Any) -> None:
        owner: Any = world
        *parts, last = path.split(".")
        for part in parts:
            owner = getattr(owner, part)
        monkeypatch.setattr(owner, last, value(world) if callable(value) else value, raising=False)

    return change


def _slot(name: str, value: Any) -> Any:
    def change(world: World, monkeypatch: Any) -> None:
        world.slots[world.arg[name].index] = value(world)

    return change


def _hook(world: World, monkeypatch: Any) -> None:
    world.layer.register_forward_hook(lambda *a: None)


def _share(world: World, monkeypatch: Any) -> None:
    world.items[1] = world.items[0]
    world.items[0] = torch.ones(2)
    whole = torch.ones(5)
    world.items[:] = [whole[:2], whole[2:]]


def _state(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch, "unused", 1, raising=False)
    torch.set_grad_enabled(not torch.is_grad_enabled())


# What changes, and a part of the text of the guard that must notice it.
CHANGES: dict[str, tuple[Any, str]] = {
    "dtype": (_slot("x", lambda w: w.x.double()), "is_tensor(L['x']"),
    "shape": (_slot("x", lambda w: torch.ones(3, 3)), "is_tensor(L['x']"),
    "stride": (_slot("x", lambda w: torch.ones(3, 2).t()), "is_tensor(L['x']"),
    "requires_grad": (_slot("x", lambda w: torch.ones(2, 3, requires_grad=True)), "is_tensor(L['x']"),
    "parameter for tensor": (_slot("x", lambda w: nn.Parameter(w.x, False)), "is_tensor(L['x']"),
    "no tensor": (_slot("x", lambda w: 3), "is_tensor(L['x']"),
    "another class": (_slot("layer", lambda w: nn.ReLU()), "type(L['layer']) is"),
    "hook": (_hook, "no_hooks"),
    "patched forward": (_set("layer.forward", lambda w: lambda x: x), "'forward' not in"),
    "new attribute": (_set("layer.bias", 1), "no_attribute"),
    "another weight": (_set("layer.linear", lambda w: nn.Linear(4, 4)), "linear.weight"),
    "another config": (_set("layer.config", lambda w: Config()), "L['layer'].config is L['config']"),
    "value": (_set("layer.config.size", 5), "size == 4"),
    "bool for int": (_set("layer.config.size", True), "size == 4"),
    "NaN": (_set("layer.config.scale", float("nan")), "scale == 0.5"),
    "list length": (lambda w, m: w.layer.config.names.append("c"), "len("),
    "list element": (lambda w, m: w.layer.config.names.__setitem__(1, "c"), "names[1] == 'b'"),
    "new key": (lambda w, m: w.layer.config.table.update(z=1), "table"),
    "key order": (lambda w, m: w.layer.config.table.update(x=w.layer.config.table.pop("x")), "tuple("),
    "nested value": (lambda w, m: w.layer.config.table.update(y=(2, 4)), "table['y']"),
    "class attribute": (_set("layer.config.__class__.kind", lambda w: "relu"), "unchanged_class"),
    "slot": (_set("slotted.value", 8), "value == 7"),
    "tuple for list": (_slot("items", lambda w: tuple(w.items)), "type(L['items'])"),
    "same tensor twice": (lambda w, m: w.items.__setitem__(1, w.items[0]), "items"),
    "shared storage": (_share, "no_shared_storage"),
    "deque": (lambda w, m: w.queue.append(3), "len(L['queue'])"),
    "deque element": (lambda w, m: w.queue.__setitem__(1, 3), "queue'][1]"),
    "defaults": (lambda w, m: m.setattr(called, "__defaults__", (5,)), "called"),
    "keyword defaults": (lambda w, m: m.setattr(called, "__kwdefaults__", {"b": 5}), "called"),
    "code": (lambda w, m: m.setattr(called, "__code__", (lambda a, *, b: a).__code__), "called"),
    "cell": (lambda w, m: m.setattr(w.inner.__closure__[0], "cell_contents", 0), "cell_contents"),
    "missing attribute": (lambda w, m: m.delattr(w.layer.config, "size"), "size"),
    "grad mode": (_state, "global_state"),
}
