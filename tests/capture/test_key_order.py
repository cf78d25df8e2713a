"""Keys and attributes that a program deletes and sets again come last, also where they were last when it was captured."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt


class Plain:
    pass


def _instance(pairs: dict[str, Any]) -> Plain:
    made = Plain()
    for name, value in pairs.items():
        setattr(made, name, value)
    return made


class _Holder(nn.Module):
    def __init__(self, pairs: dict[str, Any]) -> None:
        super().__init__()
        for name in pairs:
            setattr(self, name, nn.Linear(2, 2))
            self.register_buffer(f"{name}_buffer", torch.ones(2))


def _clear(x: torch.Tensor, t: Any) -> None:
    kept = t["b"]
    t.clear()
    t["a"] = x
    t["b"] = kept


def _popitem(x: torch.Tensor, t: Any) -> None:
    t.popitem()
    t["b"] = x


def _union(x: torch.Tensor, t: Any) -> None:
    del t["b"]
    t |= {"b": x}


def _update(x: torch.Tensor, t: Any) -> None:
    t.pop("b")
    t.update(b=x)


def _setdefault(x: torch.Tensor, t: Any) -> None:
    t.pop("b", None)
    t.setdefault("b", x)


def _same_value(x: torch.Tensor, t: Any) -> None:
    value = t.pop("b")
    t["b"] = value


def _two(x: torch.Tensor, t: Any) -> None:
    t.pop("a")
    t["a"] = x
    t["b"] = x


def _another(x: torch.Tensor, t: Any) -> None:
    del t["b"]
    t["b"] = x
    t["c"] = 1
    del t["c"]
    t["d"] = 1


def _delattr(x: torch.Tensor, t: Any) -> None:
    del t.b
    t.b = x


def _pop_of_vars(x: torch.Tensor, t: Any) -> None:
    value = t.__dict__.pop("b")
    t.b = value


def _item_of_vars(x: torch.Tensor, t: Any) -> None:
    own = vars(t)
    del own["b"]
    own["b"] = x


def _submodule(x: torch.Tensor, t: Any) -> None:
    held = t.b
    del t.b
    t.b = held


def _buffer(x: torch.Tensor, t: Any) -> None:
    del t.b_buffer
    t.register_buffer("b_buffer", x)


_ORDERS: list[tuple[str, ...]] = [("a", "b"), ("b", "a"), ("b", "q", "a")]
_PROGRAMS: dict[Callable[..., None], list[Callable[[dict[str, Any]], Any]]] = {
    **dict.fromkeys(
        (_clear, _popitem, _union, _update, _setdefault, _same_value, _two, _another),
        [
            dict,
            collections.OrderedDict,
            lambda pairs: collections.defaultdict(int, pairs),
        ],
    ),
    **dict.fromkeys((_delattr, _pop_of_vars, _item_of_vars), [_instance]),
    **dict.fromkeys((_submodule, _buffer), [_Holder]),
}


def _order(holder: Any) -> list[str]:
    if isinstance(holder, nn.Module):
        return [*holder.state_dict(), *(name for name, _ in holder.named_children())]
    return list(holder if isinstance(holder, dict) else vars(holder))


@pytest.mark.parametrize(
    "program, make", [(p, make) for p, kinds in _PROGRAMS.items() for make in kinds], ids=lambda v: v.__name__
)
def test_order_is_eagers(program: Callable[..., None], make: Callable[[dict[str, Any]], Any]) -> None:
    x = torch.ones(2)
    for captured in itertools.permutations(_ORDERS):
        compiled = smelt.compile(program)
        for order in captured * 2:
            want, got = make(dict.fromkeys(order, x)), make(dict.fromkeys(order, x))
            program(x, want)
            compiled(x, got)
            assert _order(got) == _order(want)
