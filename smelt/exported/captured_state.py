"""The tensors of a captured call that its program holds, and the effects on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from smelt.capture.driver.capture_frame import CapturedFrame
from smelt.capture.environment.side_effects import Effect, SetAttr, SetItem
from smelt.errors import ExportError
from smelt.exported.argument_checks import root_of
from smelt.exported.weight_updates import moved
from smelt.guards.guard_kinds import KINDS
from smelt.guards.source import Source
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.traced import Traced
from smelt.user_lines import is_own

_ALIAS = KINDS["alias"]


class ProgramState:
    """The tensors of a program, which its methods share: parameters and buffers by the names of `state_dict`, other tensors
    by their sources, and constants of graphs.

    `gradients`: parameters keep `requires_grad`.
    """

    def __init__(self, model: Any, gradients: bool) -> None:
        self._gradients = gradients
        self.modules = list(model.named_modules()) if isinstance(model, nn.Module) else []
        self._known: dict[int, str] = {}  # names by the identity of tensors
        self.reals: dict[str, torch.Tensor] = {}
        self.written: set[int] = set()  # addresses of storages that methods write
        self._constants: dict[int, str] = {}
        if isinstance(model, nn.Module):
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                self._known.setdefault(id(tensor), name)

    def add(self, tensor: torch.Tensor, name: str) -> str:
        """Add a tensor and return its name: the one that it has already, `name`, or one like it if another tensor has it."""
        name = self._known.get(id(tensor), name)
        names = itertools.chain((name,), (f"{name}.{i}" for i in itertools.count(1)))
        name = next(n for n in names if self.reals.setdefault(n, tensor) is tensor)
        self._known.setdefault(id(tensor), name)
        return name

    def constant(self, tensor: torch.Tensor) -> str:
        """The name of a constant of a graph; the constant becomes part of the state."""
        name = self._constants.get(id(tensor))
        if name is None:
            names = (f"constant.{i}" for i in itertools.count(len(self._constants)))
            name = next(name for name in names if name not in self.reals)  # a layer may have this name
            self._constants[id(tensor)] = name
            self.reals[name] = tensor
        return name

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that the program holds. Those that its methods write, and those with gradients, are copies, so that
        the model keeps its own; the others share the model's memory."""
        copied = set(self.written)
        if self._gradients:
            copied |= {t.untyped_storage().data_ptr() for t in self.reals.values() if t.requires_grad}
        copies: dict[int, torch.UntypedStorage] = {}
        held = {name: _held(real, copied, copies) for name, real in self.reals.items()}
        if self._gradients:
            for name, real in self.reals.items():
                held[name].requires_grad_(real.requires_grad)
        return held


class CapturedState:
    """The tensors of the state that one captured call reads or writes. `names`: by input of the graph."""

    def __init__(self, state: ProgramState, captured: CapturedFrame, traced: Traced) -> None:
        self._state = state
        self.names: dict[int, str] = {}
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
            self.names[i] = state.add(real, _name_of(source))
            if i in traced.mutated:
                state.written.add(real.untyped_storage().data_ptr())

    def buffer_of(self, effect: Effect) -> str | None:
        """The name of the buffer that an effect replaces; the buffer becomes part of the state."""
        for path, module in self._state.modules:
            if (
                isinstance(effect, SetItem)
                and effect.target is module._buffers
                and isinstance(effect.key, str)
            ):
                before = module._buffers.get(effect.key)
                if before is None or type(before) is not torch.Tensor:
                    return None
                name = f"{path}.{effect.key}" if path else effect.key
                return self._state.add(before, name)
        return None

    def check_replaced(self, name: str, effect: SetItem, captured: CapturedFrame) -> None:
        """Raise ExportError where the call also reads the tensor of a buffer that it replaces from another place, where the
        tensor stays as it was."""
        owner = captured.source_of(effect.target)
        read = [captured.input_sources[i] for i, known in self.names.items() if known == name]
        for guard in captured.guards:
            if guard.kind is _ALIAS and any(source in guard.sources for source in read):
                read += guard.sources
        own = f"{owner.base.source}.{effect.key}" if owner is not None and owner.base is not None else ""
        elsewhere = [source.source for source in read if source.source != own]
        own_name = next(
            f"{path}.{effect.key}" if path else effect.key
            for path, module in self._state.modules
            if module._buffers is effect.target
        )
        if elsewhere or name != own_name:
            other = _readable_text(elsewhere[0]) if elsewhere else name
            raise ExportError(
                f"the call replaces the buffer {own_name}, whose tensor is also {other}: "
                "write it in place (buffer.copy_(value)), or give them tensors of their own"
            )


def _held(real: torch.Tensor, copied: set[int], copies: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """`real`, without gradients, or a copy of it in a copy of its storage."""
    storage = real.untyped_storage()
    if storage.data_ptr() not in copied:
        return real.detach()
    if storage.data_ptr() not in copies:
        copies[storage.data_ptr()] = storage.clone()
    return moved(real, copies[storage.data_ptr()])


def _name_of(source: Source) -> str:
    """A readable name of a tensor that is neither a parameter nor a buffer."""
    text = source.source.replace("L['target'].__self__", "L['target']")
    return text.removeprefix("L['target'].").replace("L['target']", "model")


def restores(effect: Effect, captured: CapturedFrame) -> bool:
    """Whether the effect leaves the object as it was: a global that the call sets and resets, a buffer after `+=`. An
    argument may hold something else in another call, unless the effect stores what it read there."""
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
    target, source = captured.source_of(effect.target), captured.source_of(value)
    key = effect.name if isinstance(effect, SetAttr) else effect.key
    if target is not None and root_of(target) is not None and not _is_member(source, target, key):
        return False
    real = captured.env.trace.inputs.real(value) if isinstance(value, FakeTensor) else None
    return before is (value if real is None else real)


def _is_member(source: Source | None, owner: Source, key: object) -> bool:
    return (
        source is not None
        and source.base is not None
        and source.base.source == owner.source
        and source.key == key
    )


def effect_text(name: str, effect: Effect, captured: CapturedFrame, text: Callable[[Source], str]) -> str:
    """Why an effect cannot be exported, with its line. `text` is that of a source."""
    return (
        f"{name} {effect_phrase(effect, captured, text)}, which is an effect outside of the program. Remove that line, "
        "return the value, or register a buffer and write it in place (buffer.copy_(value))"
    )


def _text(source: Source) -> str:
    return source.source


def effect_phrase(effect: Effect, captured: CapturedFrame, text: Callable[[Source], str] = _text) -> str:
    """What an effect does, as a verb, with its line."""
    line = captured.env.log.line_of(effect.target)
    where = "" if line is None or is_own(line.filename) else f" at {line}"
    called = getattr(effect.target, "__name__", "a function")
    source = captured.source_of(effect.target)
    target = "an object" if source is None else _readable_text(text(source))
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


def _readable_text(source: str) -> str:
    """The text of a source, with the model by that name."""
    return source.replace("L['target'].__self__", "the model").replace("L['target']", "the model")
