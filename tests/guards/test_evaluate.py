"""Each guard notices the change that it is there for; the native tree and the Python evaluation agree on every call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt import _native
from smelt.guards.guard import Guard, first_failing, format_guards
from smelt.guards.guard_failures import explain
from smelt.guards.leaf_equality import same_leaf
from smelt.guards.source import Source
from smelt.guards.tree_layout import TreeSpec, build
from tests.harness.guarded import CHANGES, World


@pytest.fixture(autouse=True)
def _grad_mode() -> Any:
    with torch.enable_grad():
        yield


def native_answer(tree: Any, spec: TreeSpec, slots: list[Any]) -> Guard | None | str:
    if tree.check(*slots) is not None:
        return None
    index = tree.explain(*slots)
    return "a missing object" if index == -1 else spec.guards[index]


def test_an_unchanged_world_is_accepted() -> None:
    world = World()
    spec = build(world.guards, [])
    assert first_failing(world.guards, world.slots) is None
    assert native_answer(_native.GuardTree(spec.native), spec, world.slots) is None


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    guards = world.guards
    spec = build(guards, [])
    tree = _native.GuardTree(spec.native)
    act, text = CHANGES[change]
    act(world, monkeypatch)
    failing = [g for g in guards if first_failing([g], world.slots) is not None]
    assert any(text in g.text for g in failing), format_guards(failing)
    answer = native_answer(tree, spec, world.slots)
    assert answer is not None
    assert answer == "a missing object" or answer in failing
    assert str(explain(guards, world.slots))


def test_inputs_are_collected_in_order() -> None:
    world = World()
    weight = world.arg["layer"].child("param", "linear").child("param", "weight")
    collect = [world.arg["items"].child("item", 1), weight, world.arg["x"]]
    tree = _native.GuardTree(build(world.guards, collect).native)
    got = tree.check(*world.slots)
    want = (world.items[1], world.layer.linear.weight, world.x)
    assert len(got) == 3 and all(a is b for a, b in zip(got, want, strict=True))


def test_text() -> None:
    world = World()
    text = format_guards(world.guards)
    assert "guarded.Layer" in text
    assert "is_tensor(L['x'], torch.float32, shape=[2, 3], stride=[3, 1], device='cpu')" in text
    assert "L['config'].names[1] == 'b'" in text


@pytest.mark.parametrize(
    "a, b, same",
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        ((1, 0.0), (1, -0.0), False),
        (torch.float32, torch.float32, True),
        (torch.Size([1]), (1,), False),
        (slice(1, 2), slice(1, 2), True),
        (slice(1, 2), slice(1, 3), False),
        (None, None, True),
    ],
)
def test_leaves(a: Any, b: Any, same: bool) -> None:
    assert same_leaf(a, b) is same
    x = Source("arg", "x", index=0)
    tree = _native.GuardTree(build([Guard("eq", x, b)], []).native)
    assert (tree.check(a) is not None) is same


def test_guards_do_not_run_user_code() -> None:
    class Loud:
        def __init__(self) -> None:
            object.__setattr__(self, "a", 1)

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        __eq__ = __hash__ = __len__ = None  # type: ignore[assignment]

    x = Source("arg", "x", index=0)
    guards = [Guard("type", x, Loud), Guard("eq", x.child("attr", "a"), 1), Guard("not_in_dict", x, "b")]
    assert first_failing(guards, [Loud()]) is None
    assert _native.GuardTree(build(guards, []).native).check(Loud()) is not None
