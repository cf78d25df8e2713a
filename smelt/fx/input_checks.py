"""The check of a captured graph's inputs, a node of the graph: the graph is valid only for inputs with the structure, dtypes
and sizes of the example inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx.node import has_side_effect

from smelt.errors import SmeltError

_AGAIN = "trace again with example inputs like these, or with dynamic=True for other sizes"
_TEXT = re.compile(r"(\w+)\[(.*)\]")


def check_inputs(
    values: Mapping[str, Any], expected: Mapping[str, Any], bounds: Mapping[str, tuple[int, int | None]] = {}
) -> None:
    """Raise SmeltError unless the inputs are as expected.

    Args:
        values: the inputs by name.
        expected: for a tensor its dtype and sizes, as in "float32[s0, 3]", where a name stands for the same size everywhere;
            for a container one of these for each item; for any other input its value.
        bounds: the smallest and the greatest value (None: any) of a name.
    """
    sizes: dict[str, int] = {}

    def check(name: str, value: Any, wanted: Any) -> None:
        if isinstance(wanted, (list, tuple, dict)):
            keys = _keys(wanted)
            if not isinstance(value, (list, tuple, Mapping)) or _keys(value) != keys:
                raise SmeltError(
                    f"{name} {_described(value)}, the graph was traced with one that {_described(wanted)}: {_AGAIN}"
                )
            for key in keys:
                check(f"{name}[{key!r}]", value[key], wanted[key])
        elif not isinstance(value, torch.Tensor):
            if type(value) is not type(wanted) or (value != wanted and value == value):
                raise SmeltError(f"{name} is {value!r}, the graph was traced with {wanted!r}: {_AGAIN}")
        elif not isinstance(wanted, str) or not _fits(value, wanted, bounds, sizes):
            found = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
            limits = "".join(
                f", {n} from {low} to {high or 'any'}"
                for n, (low, high) in bounds.items()
                if n in str(wanted)
            )
            raise SmeltError(f"{name} is {found}, the graph was traced with {wanted}{limits}: {_AGAIN}")

    for name, value in values.items():
        check(name, value, expected[name])


def _keys(container: Any) -> list[Any]:
    return list(container) if isinstance(container, Mapping) else list(range(len(container)))


def _described(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"has the keys {_keys(value)}"
    return f"has length {len(value)}" if isinstance(value, (list, tuple)) else f"is a {type(value).__name__}"


def check_condition(found: bool, expected: bool, condition: str) -> None:
    """Raise SmeltError unless a condition on sizes is as expected."""
    if found is not expected:
        raise SmeltError(f"{condition} is {found}, the graph was traced with {expected}: {_AGAIN}")


has_side_effect(check_inputs)
has_side_effect(check_condition)


def _fits(value: torch.Tensor, text: str, bounds: Mapping[str, Any], sizes: dict[str, int]) -> bool:
    matched = _TEXT.fullmatch(text)
    assert matched is not None
    wanted = matched[2].split(", ") if matched[2] else []
    if str(value.dtype) != f"torch.{matched[1]}" or len(wanted) != value.dim():
        return False
    for size, dim in zip(value.shape, wanted):
        if dim.isdigit():
            if size != int(dim):
                return False
        else:
            low, high = bounds.get(dim, (0, None))
            if size < low or (high is not None and size > high) or sizes.setdefault(dim, size) != size:
                return False
    return True
