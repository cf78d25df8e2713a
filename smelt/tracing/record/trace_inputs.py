"""The inputs of a trace: fakes for tensors that exist outside of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, overload

import torch

from smelt.errors import NeedsFixedSize, Unsupported
from smelt.graph.ir import Node
from smelt.graph.pytree import leaves
from smelt.reasons import INTERNAL, UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT, Reason
from smelt.shapes.divisibility import as_divided
from smelt.shapes.expr import Sym
from smelt.torch_private import (
    DisableFuncTorch,
    DisableTorchDispatch,
    DisableTorchFunction,
    get_inplace_requires_grad_allowed,
    maybe_current_level,
    set_inplace_requires_grad_allowed,
)
from smelt.tracing.fake.fake_tensor import (
    FakeTensor,
    Storages,
    check_supported,
    symbols_of,
    with_history,
    wrap,
)
from smelt.tracing.fake.plain_tensor_classes import PLAIN_TYPES
from smelt.tracing.record.current_call import CurrentCall
from smelt.tracing.record.graph_builder import Builder, identifier
from smelt.tracing.record.number_inputs import NumberInputs
from smelt.tracing.record.tape import Tape
from smelt.tracing.symbolic.sym_numbers import size_of
from smelt.tracing.symbolic.symbolic_layouts import SizeSource, SymbolicLayout


def _local_references() -> int:
    """Reference count of a scalar operand that C++ just created, as `_is_internal_scalar` sees it.

    It counts the tuple of arguments and our functions on the call path: CPython 3.14 borrows most of those. It is not a
    constant: where any thread has a frame hook, another compiler's too, each Python call adds references.
    """

    def referred(real: object) -> int:
        return sys.getrefcount(real)

    def fake_for_native(real: object) -> int:
        return referred(real)

    def argument(value: object) -> int:
        return fake_for_native(value)

    (found,) = [argument(a) for a in (object(),)]
    return found


class Inputs(Sequence[FakeTensor]):
    """The fakes of input tensors, in the order of their first use.

    Invariants: one tensor has one fake; two fakes have one `storage_key` exactly when their tensors share memory; an
    input is a leaf of autograd's graph if and only if its tensor is. `first_history` has, by id of the fake, the
    initial `grad_fn` of an input that requires grad. `size_sources` has the inputs and dimensions that carry a symbol.

    `rebound` has, by id, the fakes of tensors to whose `data` the program assigned, which are no inputs any more, each
    with the input of its former value.

    `on_unknown_tensor(real)` returns the fake of a real tensor found inside native code; without it such a tensor is
    Unsupported.
    """

    def __init__(self, call: CurrentCall, tape: Tape, numbers: NumberInputs) -> None:
        self.call = call
        self.numbers = numbers
        self.size_sources: dict[Sym, list[tuple[FakeTensor, SizeSource]]] = {}
        self.on_unknown_tensor: Callable[[torch.Tensor], FakeTensor] | None = None
        self.first_history: dict[int, Any] = {}
        self.rebound: dict[int, tuple[FakeTensor, FakeTensor]] = {}
        self._tape = tape
        self._fakes: list[FakeTensor] = []
        self._names: dict[int, str] = {}  # by id of the fake
        self._by_storage: dict[int, list[FakeTensor]] = {}  # by storage
        self._storages = Storages()
        self._by_real: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        self._reals: dict[int, torch.Tensor] = {}  # by id of the fake

    def __len__(self) -> int:
        return len(self._fakes)

    def __iter__(self) -> Iterator[FakeTensor]:
        return iter(self._fakes)

    @overload
    def __getitem__(self, index: int) -> FakeTensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[FakeTensor]: ...
    def __getitem__(self, index: int | slice) -> FakeTensor | list[FakeTensor]:
        return self._fakes[index]

    # ---- tensors and their fakes

    def fake(self, real: torch.Tensor, name: str = "", layout: SymbolicLayout | None = None) -> FakeTensor:
        """The fake for `real` (always the same one). `name` names it in graphs; `layout` has its sizes and strides
        where some are symbolic.

        Raises Unsupported for subclasses and for layouts other than strided.
        """
        known = self.find(real)
        if known is not None:
            return known
        if type(real) is FakeTensor:
            return real
        with DisableTorchDispatch(), DisableTorchFunction(), DisableFuncTorch():
            check_supported(real)
            with torch.inference_mode(real.is_inference()):
                elem = (
                    self._storages.meta_with_layout(real, layout)
                    if layout
                    else self._storages.meta_like(real)
                )
                fake = wrap(elem, real.device)
            if layout:
                self._add_size_sources(fake, layout)
            if real.requires_grad:
                _require_grad(fake) if _is_leaf(real) else with_history(fake)
                self.first_history[id(fake)] = fake.grad_fn
            if type(real) not in PLAIN_TYPES:
                fake.subclass, self.call.has_subclasses = type(real), True
            if isinstance(real, torch.nn.Parameter):
                fake._is_param = True  # type: ignore[attr-defined]
        self._by_real[id(real)] = (real, fake)
        self._reals[id(fake)] = real
        self._names[id(fake)] = identifier(name) if name else ""
        self._fakes.append(fake)
        self._by_storage.setdefault(fake.storage_key, []).append(fake)
        return fake

    def _add_size_sources(self, fake: FakeTensor, layout: SymbolicLayout) -> None:
        sources = [(SizeSource(dim), number) for dim, number in enumerate(layout.shape)]
        sources += [(SizeSource(dim, over=inner), gap) for dim, (gap, inner) in layout.gaps.items()]
        for source, number in sources:
            division = as_divided(size_of(number))
            if division is None:
                continue
            for sym in division.symbols:
                self.numbers.symbols = number.node.symbols
                sym_source = replace(source, divisor=division.divisor, is_remainder=sym is division.remainder)
                self.size_sources.setdefault(sym, []).append((fake, sym_source))

    def drop_size_sources(self, fake: FakeTensor) -> None:
        """Have no symbol's value found in `fake`, which may not be an input of the finished trace."""
        for sym in symbols_of(fake):
            others = [source for source in self.size_sources.pop(sym, ()) if source[0] is not fake]
            if others:
                self.size_sources[sym] = others

    def hint(self, sym: Sym) -> int:
        """The value of a size symbol in this call."""
        assert self.numbers.symbols is not None
        return self.numbers.symbols.hints[sym]

    def bounds(self, sym: Sym) -> tuple[int, int]:
        """The range of a size symbol in every call."""
        assert self.numbers.symbols is not None
        return self.numbers.symbols.bounds(sym)

    def in_storage(self, storage: int) -> Sequence[FakeTensor]:
        """The inputs in this storage."""
        return self._by_storage.get(storage, ())

    def in_storage_with_offsets(self, storage: int) -> Sequence[FakeTensor]:
        """The inputs in this storage, whose offsets in it are known. Raises NeedsFixedSize where they are not."""
        inputs = self.in_storage(storage)
        syms = symbols_of(inputs)
        if syms and len(inputs) > 1:
            raise NeedsFixedSize("inputs share memory", syms)
        return inputs

    def find(self, real: torch.Tensor) -> FakeTensor | None:
        """The fake of `real`, if it is an input already."""
        entry = self._by_real.get(id(real))
        return None if entry is None else entry[1]

    def real(self, fake: torch.Tensor) -> torch.Tensor | None:
        """The real tensor of an input; None for a computed fake."""
        return self._reals.get(id(fake))

    def holds(self, fake: torch.Tensor) -> bool:
        """Whether `fake` is an input."""
        return id(fake) in self._reals

    def rebind(self, fake: FakeTensor, view: FakeTensor) -> FakeTensor:
        """Turn `fake` into `view`, as an assignment to the tensor's `data` does, and return the input of its former value.
        `fake` remains the fake of its tensor and keeps its version counter. Call it with the recording modes disabled."""
        fake.elem = fake.elem.data
        before = self._tape.rebind(fake, view)
        fake.torch_node = view.torch_node
        if not self.holds(fake):
            return before
        self.rebound[id(fake)] = fake, before
        self._fakes = [before if f is fake else f for f in self._fakes]
        of_storage = self._by_storage[before.storage_key]
        of_storage[:] = (before if f is fake else f for f in of_storage)
        for sources in self.size_sources.values():
            sources[:] = ((before if f is fake else f, source) for f, source in sources)
        self._reals[id(before)] = self._reals.pop(id(fake))
        self._names[id(before)] = self._names.pop(id(fake))
        if fake.requires_grad:
            _require_grad(before)
            self.first_history[id(before)] = self.first_history.pop(id(fake))
        return before

    def sets_requires_grad(self, fake: FakeTensor) -> bool:
        """Whether the program has changed the flag `requires_grad` of an input."""
        return self.holds(fake) and fake.requires_grad != (id(fake) in self.first_history)

    def former(self, fake: FakeTensor) -> FakeTensor:
        """The input of the tensor whose fake is `fake`: another fake if the program has assigned to its `data`."""
        _, before = self.rebound.get(id(fake), (fake, fake))
        return before

    def check_rebound(self, name: str, arguments: Any, sets_state: bool = False) -> None:
        """Raise Unsupported if `name` would record history for a tensor whose `data` was set, or change its autograd state:
        in the graph, that tensor is the input with its former value."""
        for fake in leaves(arguments, FakeTensor):
            differentiates = torch.is_grad_enabled() and fake.requires_grad
            if id(fake) in self.rebound and (differentiates or sets_state):
                raise self.call.unsupported(UNSUPPORTED_EFFECT, f"{name} of a tensor whose data was set")

    def fake_for_native(self, real: torch.Tensor) -> FakeTensor:
        """The fake of a real tensor found inside native code: its input, or a constant. Raises Unsupported."""
        entry = self._by_real.get(id(real))
        if entry is not None:
            return entry[1]
        with DisableTorchFunction():
            check_supported(real)
        if type(real) in PLAIN_TYPES and _is_internal_scalar(real):
            return self._tape.add_constant(real)
        if self.on_unknown_tensor is not None:
            return self.on_unknown_tensor(real)
        raise self.call.unsupported(
            UNSUPPORTED_OBJECT, f"a tensor of shape {list(real.shape)} that native code holds"
        )

    def release(self) -> None:
        """Drop the references to the real tensors and the callback `on_unknown_tensor`."""
        self.on_unknown_tensor = None
        self._by_real.clear()
        self._reals.clear()

    # ---- nodes

    def aten_node(self, fake: FakeTensor) -> Node:
        """The aten node of a fake; creates an input's placeholder on first use."""
        node = fake.aten_node
        if node is None:
            node = fake.aten_node = self._placeholder(fake, self._tape.aten)
        return node

    def torch_node(self, fake: FakeTensor) -> Node:
        """The torch-level node of a fake; creates an input's placeholder on first use."""
        node = fake.torch_node
        if node is None:
            node = fake.torch_node = self._placeholder(fake, self._tape.torch)
        return node

    def _placeholder(self, fake: FakeTensor, builder: Builder) -> Node:
        if id(fake) not in self._reals:
            if self.call.had_opaque:
                raise self.call.unsupported(
                    UNSUPPORTED_OBJECT, "a tensor created inside a custom function or checkpoint outlives it"
                )
            raise self.call.unsupported(
                INTERNAL, "a tensor of this trace was created by a call that was not recorded"
            )
        name = builder.name(self._names[id(fake)] or "input")
        return Node("placeholder", name, (), {}, name, fake.spec)


def _is_internal_scalar(real: torch.Tensor) -> bool:
    """Whether C++ created the scalar `real` for this very call (`x.masked_fill(m, 0)`), so that nothing else refers to
    it."""
    return real.dim() == 0 and real.device.type == "cpu" and sys.getrefcount(real) <= _local_references()


def _require_grad(fake: FakeTensor) -> None:
    """`fake.requires_grad_()`, also inside transforms, which forbid it."""
    inside = maybe_current_level() is not None
    allowed = get_inplace_requires_grad_allowed() if inside else None
    if allowed is False:
        set_inplace_requires_grad_allowed(True)
    fake.requires_grad_(True)
    if allowed is False:
        set_inplace_requires_grad_allowed(False)


def _is_leaf(real: torch.Tensor) -> bool:
    """Whether `real` is a leaf. Raises Unsupported for a view that autograd invalidated because its base was
    written."""
    try:
        return real.is_leaf
    except RuntimeError as error:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "a view whose base was written in place")) from error
