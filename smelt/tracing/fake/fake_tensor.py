"""Fake tensors: all metadata of a tensor without its data.

A `FakeTensor` is a `torch.Tensor` subclass over a meta tensor (`elem`) with a logical device. Shapes, strides,
aliasing, version counters and autograd are torch's own. Invariants: a fake and its `elem` share one meta storage, two
fakes alias exactly when their tensors do, and `spec` (interned: equal specs are one object) describes the fake until
an operator changes its metadata in place. Symbolic sizes of `elem` are `torch.SymInt`s around smelt's symbols; those
of `spec` are the `Size`s they hold.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
from torch.autograd import forward_ad

from smelt.errors import NeedsFixedSize, SmeltError, Unsupported
from smelt.graph.ir import Node, TensorSpec
from smelt.graph.pytree import leaves
from smelt.graph.sample_sizes import syms_of
from smelt.graph.tensor_specs import make_spec, spec_of
from smelt.reasons import ANOTHER_TRACER, DATA_DEPENDENT, TENSOR_SUBCLASS, UNSUPPORTED_OBJECT, Reason
from smelt.shapes.expr import Size, Sym
from smelt.torch_private import (
    DisableTorchDispatch,
    DisableTorchFunction,
    OpOverloadPacket,
    disabled_torch_function_impl,
    forward_mode_level,
    functions_allowed_in_transforms,
    len_torch_dispatch_stack,
    make_subclass,
    maybe_current_level,
    set_functions_allowed_in_transforms,
)
from smelt.tracing.fake.plain_tensor_classes import PLAIN_TYPES, is_plain_subclass
from smelt.tracing.record.call_arguments import Args
from smelt.tracing.symbolic.sym_numbers import size_of, wrap_symbolic
from smelt.tracing.symbolic.symbolic_layouts import SymbolicLayout

_TRACERS = "torch._subclasses."  # the package of torch's fake and functional tensors


entered = threading.local()  # `trace`: whether this thread records
hashed_fakes: dict[int, FakeTensor] = {}  # hashed since the capture began: dictionary keys, set members


_CALL_BY_NAME = OpOverloadPacket.__call__.__code__
FAKE_TEXT = "FakeTensor("  # where the text of a fake begins


# Pairs (condition, tensor): where the condition holds, eager has `tensor` instead of the fake. At most one holds.
Alternatives = tuple[tuple["FakeTensor", "FakeTensor"], ...]


def possible_tensors(fake: FakeTensor) -> set[int]:
    """The ids of the tensors that eager may have in place of `fake`, itself included."""
    found: set[int] = set()
    pending = [fake]
    while pending:
        now = pending.pop()
        if id(now) not in found:
            found.add(id(now))
            pending += (tensor for _, tensor in now.alternatives)
    return found


class FakeTensor(torch.Tensor):
    """Created by a `Trace`, and usable only while that trace is active.

    `aten_node` and `torch_node` are the nodes that returned this value at the two levels (None: not recorded there
    yet). `subclass`: the tensor subclass that the program sees. `cached_spec` is None until `spec` is read; code that
    changes `elem` resets it to None. `alternatives`: the tensors that eager may have in its place.
    """

    elem: torch.Tensor
    aten_node: Node | None
    torch_node: Node | None
    _device: torch.device
    cached_spec: TensorSpec | None
    subclass: type | None
    alternatives: Alternatives

    __slots__ = ("_device", "alternatives", "aten_node", "cached_spec", "elem", "subclass", "torch_node")
    __torch_function__ = disabled_torch_function_impl  # type: ignore[assignment]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The logical device; `elem` is on the meta device."""
        return self._device

    @property
    def spec(self) -> TensorSpec:
        """Metadata without `requires_grad` (which autograd may change at any time)."""
        spec = self.cached_spec
        if spec is None:
            spec = self.cached_spec = _spec_of(self.elem, self._device)
        return spec

    @property
    def storage_key(self) -> int:
        """Equal for fakes that share memory."""
        with DisableTorchFunction():
            storage = self.elem.untyped_storage()
            return getattr(storage, _ALIASED, storage)._cdata

    def __hash__(self) -> int:
        hashed_fakes[id(self)] = self
        return id(self)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Args = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0]._device
        if getattr(entered, "trace", False):  # torch disabled all modes to read a value
            raise Unsupported(Reason(DATA_DEPENDENT, f"{func} where recording is off"))
        raise SmeltError(
            f"{func} was called on a fake tensor outside of its trace: a tensor of a function that is being compiled "
            "was stored by, or visible to, code that is not"
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        # For an operator called by name, torch formats the arguments for each overload that does not accept them.
        if len_torch_dispatch_stack() > 0 and sys._getframe(1).f_code is not _CALL_BY_NAME:
            raise Unsupported(Reason(DATA_DEPENDENT, "a tensor is formatted as text"))
        spec = self.spec
        return f"{FAKE_TEXT}{list(spec.shape)}, {spec.dtype}, {spec.device})"

    def __format__(self, format_spec: str) -> str:
        return repr(self)

    def __deepcopy__(self, memo: Any) -> Any:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "copy.deepcopy of a tensor that is being traced"))

    def __reduce_ex__(self, proto: Any) -> Any:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "pickling a tensor that is being traced"))


# C code names the class in error messages that the program sees.
FakeTensor.__name__ = FakeTensor.__qualname__ = torch.Tensor.__qualname__
FakeTensor.__module__ = torch.Tensor.__module__


def _spec_of(elem: torch.Tensor, device: torch.device) -> TensorSpec:
    shape, stride = tuple(elem.size()), elem.stride()
    if all(type(n) is int for n in (*shape, *stride)):
        return spec_of(elem, device)
    sizes: tuple[Size, ...] = tuple(map(size_of, shape))
    strides: tuple[Size, ...] = tuple(map(size_of, stride))
    return make_spec(sizes, strides, elem.dtype, device, size_of(elem.storage_offset()))


def fake_shape(fake: FakeTensor) -> tuple[Any, ...]:
    """The sizes as the program sees them: ints or symbolic `Int`s."""
    with DisableTorchFunction():
        return tuple(map(wrap_symbolic, fake.elem.size()))


def fake_stride(fake: FakeTensor) -> tuple[Any, ...]:
    """The strides as the program sees them."""
    with DisableTorchFunction():
        return tuple(map(wrap_symbolic, fake.elem.stride()))


def fake_numel(fake: FakeTensor) -> Any:
    """The number of elements as the program sees it."""
    with DisableTorchFunction():
        return wrap_symbolic(fake.elem.numel())


def symbols_of(value: Any) -> frozenset[Sym]:
    """The symbols in the sizes of the fakes in `value`."""
    return frozenset().union(*(syms_of(fake.spec) for fake in leaves(value, FakeTensor)))


def check_fixed(value: Any, what: str) -> None:
    """Raise NeedsFixedSize where a fake in `value` has symbolic sizes, which `what` does not support."""
    syms = symbols_of(value)
    if syms:
        raise NeedsFixedSize(f"{what} of a tensor with symbolic sizes", syms)


def fakes_in(value: Any) -> list[FakeTensor]:
    """The fakes in the result of an operator."""
    return leaves(value, FakeTensor)


def has_unrecorded(out: Any) -> bool:
    """Whether the call result `out` has a fake without a torch-level node."""
    if type(out) is FakeTensor:
        return out.torch_node is None
    if isinstance(out, (tuple, list)):
        return any(has_unrecorded(v) for v in out)
    if isinstance(out, dict):
        return any(has_unrecorded(v) for v in out.values())
    return False


def wrap(elem: torch.Tensor, device: torch.device, spec: TensorSpec | None = None) -> FakeTensor:
    """A fake over the meta tensor `elem`. Runs torch code: call it with the recording modes disabled."""
    fake = make_subclass(FakeTensor, elem, False, dispatch_device=True, device_for_backend_keys=device)  # type: ignore[arg-type]
    fake.elem = elem
    fake._device = device
    fake.cached_spec = spec
    fake.aten_node = fake.torch_node = fake.subclass = None
    fake.alternatives = ()
    return fake


def class_of_fake(fake: FakeTensor) -> type:
    """The class of a fake, as the program sees it."""
    return fake.subclass or (torch.nn.Parameter if getattr(fake, "_is_param", False) else torch.Tensor)


def check_class(fake: object, what: str) -> None:
    """Raise Unsupported where `fake` has a subclass, for code that supports plain tensors only."""
    if type(fake) is FakeTensor and fake.subclass is not None:
        raise Unsupported(Reason(TENSOR_SUBCLASS, f"{what} of a {fake.subclass.__qualname__}"))


class _History(torch.autograd.Function):
    """Adds an autograd history to a fake, so that it is no leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, fake: list[FakeTensor]) -> FakeTensor:
        return fake[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "a gradient that leads out of the function"))


def with_history(fake: FakeTensor) -> FakeTensor:
    """The fake, requiring grad as the result of a computation. Call it with the recording modes disabled, and outside the
    levels of torch.func's transforms: while one is open, torch forbids custom functions on any level."""
    with torch.inference_mode(False), torch.enable_grad():
        source = torch.empty(0, device="meta", requires_grad=True)
        if maybe_current_level() is None:
            return _History.apply(source, [fake])  # type: ignore[no-any-return, no-untyped-call]
        allowed = functions_allowed_in_transforms()
        set_functions_allowed_in_transforms(True)
        try:
            return super(torch.autograd.Function, _History).apply(source, [fake])  # type: ignore[no-any-return]
        finally:
            set_functions_allowed_in_transforms(allowed)


# Attribute of a meta storage: another meta storage for the same real memory.
_ALIASED = "_smelt_aliased"


class Storages:
    """Meta storages for the storages of real tensors, so that aliasing among inputs is preserved. A tensor with
    symbolic sizes has a meta storage of its own with offset 0: its offset in the real storage is unknown."""

    def __init__(self) -> None:
        self._meta: dict[int, torch.UntypedStorage] = {}
        self._first: dict[int, torch.UntypedStorage] = {}

    def meta_like(self, real: torch.Tensor) -> torch.Tensor:
        """A meta tensor with the layout of `real`, on the meta storage for `real`'s storage."""
        storage = real.untyped_storage()
        meta = self._meta.get(storage._cdata)
        if meta is None:
            meta = self._meta[storage._cdata] = torch.UntypedStorage(storage.nbytes(), device="meta")
            self._link(real, meta)
        elem = torch.empty(0, dtype=real.dtype, device="meta")
        return elem.set_(
            meta, real.storage_offset(), real.size(), real.stride()
        ).data  # a fresh version counter

    def meta_with_layout(self, real: torch.Tensor, layout: SymbolicLayout) -> torch.Tensor:
        """A meta tensor like `real` with this layout."""
        elem = torch.empty_strided(layout.shape, layout.stride, dtype=real.dtype, device="meta")
        self._link(real, elem.untyped_storage())
        return elem

    def _link(self, real: torch.Tensor, meta: torch.UntypedStorage) -> None:
        """Record that `meta` represents the storage of `real`, possibly together with other meta storages."""
        first = self._first.setdefault(real.untyped_storage()._cdata, meta)
        if first is not meta:
            setattr(meta, _ALIASED, first)


def is_dual(x: torch.Tensor) -> bool:
    """Whether it has a tangent of forward-mode differentiation, which compiled code would lose."""
    return forward_mode_level() >= 0 and forward_ad.unpack_dual(x).tangent is not None


def is_unfakeable(real: torch.Tensor) -> bool:
    """Whether `real` has no fake, but capture may continue around it: it is sparse, quantized, nested or of a subclass
    that overrides something."""
    if not is_plain_subclass(type(real)):
        return not type(real).__module__.startswith(_TRACERS)
    with DisableTorchFunction(), DisableTorchDispatch():
        return real.layout is not torch.strided or real.is_quantized or real.is_nested


def hides_metadata(real: torch.Tensor) -> bool:
    """Whether custom code computes the metadata of an unfakeable tensor, so that guards cannot read it."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return type(real) not in PLAIN_TYPES or real.is_nested


def check_supported(real: torch.Tensor) -> None:
    """Raise Unsupported for tensors that fakes cannot represent."""
    if type(real).__module__.startswith(_TRACERS):
        raise Unsupported(Reason(ANOTHER_TRACER, f"a {type(real).__qualname__}"))
    if not is_plain_subclass(type(real)):
        raise Unsupported(Reason(TENSOR_SUBCLASS, type(real).__qualname__))
    what = (
        f"a {real.layout} tensor" if real.layout is not torch.strided
        else "a quantized tensor" if real.is_quantized
        else "a nested tensor" if real.is_nested
        else "a lazily conjugated tensor" if real.is_conj() or real.is_neg()
        else "a dual tensor of forward-mode differentiation" if is_dual(real)
        else None
    )  # fmt: skip
    if what:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, what))
