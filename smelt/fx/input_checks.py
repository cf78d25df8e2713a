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


def check_inputs(values: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise SmeltError unless the inputs are as expected.

    Args:
        values: the inputs by name.
        expected: for a tensor its dtype and sizes, as in "float32[s0, 3]"; for any other input its value. A name of a size
            stands for one value in all tensors; the key "s0" maps to its least and greatest value (None: any).
    """
    sizes: dict[str, int] = {}
    for name, value in values.items():
        wanted = expected[name]
        if not isinstance(value, torch.Tensor):
            if type(value) is not type(wanted) or value != wanted:
                raise SmeltError(f"{name} is {value!r}, the graph was traced with {wanted!r}: {_AGAIN}")
        elif not isinstance(wanted, str) or not _fits(value, wanted, expected, sizes):
            found = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
            raise SmeltError(f"{name} is {found}, the graph was traced with {wanted}: {_AGAIN}")


has_side_effect(check_inputs)


def _fits(value: torch.Tensor, text: str, expected: Mapping[str, Any], sizes: dict[str, int]) -> bool:
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
            low, high = expected.get(dim, (0, None))
            if size < low or (high is not None and size > high) or sizes.setdefault(dim, size) != size:
                return False
    return True
