"""The tensors of a captured call that its program holds, and the effects on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from smelt.capture.driver.capture_frame import CapturedFrame
from smelt.capture.environment.side_effects import Effect, SetAttr, SetItem
from smelt.errors import ExportError
from smelt.exported.argument_checks import root_of
from smelt.guards.source import Source
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.traced import Traced
from smelt.user_lines import is_own


class CapturedState:
    """The tensors of the program: parameters and buffers by the names of `state_dict`, other tensors by their sources, and
    constants of the graph. Those that the program writes are copies, so that the model keeps its own."""

    def __init__(self, model: Any, captured: CapturedFrame, traced: Traced) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.names: dict[int, str] = {}  # by input of the graph
        self._constants: dict[int, str] = {}
        known = self._known = dict[int, str]()
        self._modules = list(model.named_modules()) if isinstance(model, nn.Module) else []
        if isinstance(model, nn.Module):
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                known.setdefault(id(tensor), name)
        reals = {}
        for i, (fake, source) in enumerate(zip(traced.inputs, captured.input_sources)):
            if root_of(source) is not None:
                continue
            real = captured.env.trace.inputs.real(fake)
            if (
                real is None
                or type(real) not in (torch.Tensor, nn.Parameter)
                or source.kind in ("array", "values")
            ):
                raise ExportError(f"{source.source} is no plain tensor that a program can hold")
            reals[i] = real
            self.names[i] = known.get(id(real), _name_of(source))
        written = {reals[i].untyped_storage().data_ptr() for i in traced.mutated if i in reals}
        copies: dict[int, torch.UntypedStorage] = {}
        for i, real in reals.items():
            self.tensors[self.names[i]] = _held(real, written, copies)

    def buffer_of(self, effect: Effect) -> str | None:
        """The name of the buffer that an effect replaces; the buffer becomes part of the state."""
        for path, module in self._modules:
            if (
                isinstance(effect, SetItem)
                and effect.target is module._buffers
                and isinstance(effect.key, str)
            ):
                before = module._buffers.get(effect.key)
                if before is None or type(before) is not torch.Tensor:
                    return None
                name = f"{path}.{effect.key}" if path else effect.key
                name = self._known.get(id(before), name)
                self.tensors.setdefault(name, before.detach())
                return name
        return None

    def constant(self, tensor: torch.Tensor) -> str:
        """The name of a constant of the graph; the constant becomes part of the state."""
        name = self._constants.get(id(tensor))
        if name is None:
            name = self._constants[id(tensor)] = f"constant.{len(self._constants)}"
            self.tensors[name] = tensor.detach()
        return name


def _held(real: torch.Tensor, written: set[int], copies: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """The tensor that the program holds: `real`, without gradients, or a copy of it in a copy of its storage."""
    storage = real.untyped_storage()
    if storage.data_ptr() not in written:
        return real.detach()
    copy = copies.setdefault(storage.data_ptr(), storage.clone())
    made = torch.empty(0, dtype=real.dtype)
    return made.set_(copy, real.storage_offset(), real.shape, real.stride())  # type: ignore[arg-type]


def _name_of(source: Source) -> str:
    """A readable name of a tensor that is neither a parameter nor a buffer."""
    return source.source.removeprefix("L['target'].").replace("L['target']", "model")


def restores(effect: Effect, captured: CapturedFrame) -> bool:
    """Whether the effect leaves the object as it was: a global that the call sets and resets, a buffer after `+=`."""
    if isinstance(effect, SetAttr):
        try:
            before = object.__getattribute__(effect.target, "__dict__").get(effect.name, effect)
        except AttributeError:
            return False
    elif isinstance(effect, SetItem) and type(effect.target) is dict:
        before = effect.target.get(effect.key, effect)
    else:
        return False
    value = effect.value
    real = captured.env.trace.inputs.real(value) if isinstance(value, FakeTensor) else None
    return before is (value if real is None else real)


def effect_text(name: str, effect: Effect, captured: CapturedFrame) -> str:
    """Why an effect cannot be exported, with its line."""
    return (
        f"{name} {effect_phrase(effect, captured)}, which is an effect outside of the program. Remove that line, return the "
        "value, or register a buffer and write it in place (buffer.copy_(value))"
    )


def effect_phrase(effect: Effect, captured: CapturedFrame) -> str:
    """What an effect does, as a verb, with its line."""
    line = captured.env.log.line_of(effect.target)
    where = "" if line is None or is_own(line.filename) else f" at {line}"
    called = getattr(effect.target, "__name__", "a function")
    source = captured.source_of(effect.target)
    target = "an object" if source is None else _readable(source)
    what = {
        "Call": f"calls {called}",
        "SetAttr": f"sets the attribute {getattr(effect, 'name', '')!r} of {target}",
        "DelAttr": f"deletes the attribute {getattr(effect, 'name', '')!r} of {target}",
        "SetItem": f"sets the entry {getattr(effect, 'key', '')!r} of {target}",
        "DelItem": f"deletes the entry {getattr(effect, 'key', '')!r} of {target}",
        "SetCell": "sets a variable of an enclosing function",
        "Advance": f"advances the iterator {target}",
    }.get(type(effect).__name__, f"changes the contents of {target}")
    return f"{what}{where}"


def _readable(source: Source) -> str:
    """The text of a source, in which the model is called "the model"."""
    return source.source.replace("L['target']", "the model")
