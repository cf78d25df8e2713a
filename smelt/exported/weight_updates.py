"""New values for the tensors of a program's state."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from smelt.errors import InputError


def updated(
    state: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor], constants: Collection[str]
) -> dict[str, torch.Tensor]:
    """The state with these values: in new memory, except tensors that require grad and those that share their memory, which
    are written in place. Tensors that share memory keep sharing it. Raises InputError, and writes nothing, for values that
    do not fit."""
    for name, value in weights.items():
        _check(name, value, state, constants)
    with torch.no_grad():
        kept = {_memory(tensor) for tensor in state.values() if tensor.requires_grad}
        storages = {_memory(state[name]): state[name].untyped_storage() for name in weights}
        replaced = {memory: storage.clone() for memory, storage in storages.items() if memory not in kept}
        made = {
            name: moved(tensor, replaced[_memory(tensor)]) if _memory(tensor) in replaced else tensor
            for name, tensor in state.items()
        }
        for name, value in weights.items():
            made[name].copy_(value)
    return made


def _check(
    name: str, value: torch.Tensor, state: Mapping[str, torch.Tensor], constants: Collection[str]
) -> None:
    if name not in state:
        raise InputError(f"the program has no weight {name}")
    if name in constants:
        raise InputError(f"{name} is a constant of the program's plans")
    known = state[name]
    if not isinstance(value, torch.Tensor):
        found = f"a {type(value).__name__}"
    else:
        fits = value.shape == known.shape and value.dtype == known.dtype
        if fits and value.device == known.device and value.layout is torch.strided:
            return
        found = f"{_text(value)} on {value.device}"
    where = "the CPU" if known.device.type == "cpu" else known.device
    raise InputError(f"the weight {name} must be {_text(known)} on {where}, got {found}")


def _text(tensor: torch.Tensor) -> str:
    layout = "" if tensor.layout is torch.strided else f", {tensor.layout},"
    return f"{tensor.dtype} of {tuple(tensor.shape)}{layout}"


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def moved(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """The view of `storage` that `tensor` is of its own storage. It does not require grad."""
    made = torch.empty(0, dtype=tensor.dtype, device=storage.device)
    return made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())  # type: ignore[arg-type]
