"""Weights beside a program, in a safetensors file, which other tools read and write (native/exported/weights_file.h)."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from smelt.runtime.whole_files import written_whole

DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_ALIGNMENT = 64


@dataclass(frozen=True)
class Weight:
    """A tensor of the state: a view of storage number `storage`. `requires_grad`: it is a parameter of a program with
    gradients."""

    name: str
    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    requires_grad: bool


def storable(views: Iterable[Weight], constants: Collection[str]) -> dict[int, Weight]:
    """The storages that a safetensors file can hold, by number, each with the first of its tensors: these have one layout
    without gaps, and none is a constant of a plan."""
    of: dict[int, list[Weight]] = {}
    for view in views:
        of.setdefault(view.storage, []).append(view)

    def layout(v: Weight) -> Any:
        return v.dtype, v.shape, v.stride, v.offset

    return {
        number: found[0]
        for number, found in of.items()
        if found[0].dtype in DTYPES
        and all(layout(v) == layout(found[0]) and v.name not in constants for v in found)
        and _is_dense(found[0])
    }


def _is_dense(view: Weight) -> bool:
    """Whether the tensor has elements, and they fill its memory without gaps in some order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(view.stride, view.shape)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return expected > 0


def write_weights(path: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors, whole or not at all; each is row-major there. Raises OSError."""
    # Tensors whose bytes are multiples of 64 come first, so that all of these are aligned as in a program.
    order = sorted(tensors, key=lambda n: (tensors[n].nbytes % _ALIGNMENT != 0, -tensors[n].itemsize))
    header: dict[str, Any] = {}
    size = 0
    for name in order:
        t = tensors[name]
        header[name] = {
            "dtype": DTYPES[t.dtype],
            "shape": list(t.shape),
            "data_offsets": [size, size + t.nbytes],
        }
        size += t.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    with written_whole(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            whole = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            array: Any = whole.numpy()
            file.write(memoryview(array))
