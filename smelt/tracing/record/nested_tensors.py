"""Jagged nested tensors: torch's `NestedTensor` around fakes.

    nested tensor of the environment -> its values, offsets, lengths -> graph of plain tensors -> nested tensor

The program works with a `NestedTensor` of fakes, for which torch's own Python code runs. Autograd sees the operators on
values that this code calls, not those on nested tensors: the graph has only plain tensors, which every backend
differentiates. The compiled frame reads the values of a nested tensor of the environment, and converts those of a result
(`smelt/autograd/nested_results.py`), under autograd.

A nested tensor of fakes therefore never requires gradients; its values do. Its ragged size belongs to the fake of its
offsets or lengths, as it belongs to the tensor in eager.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from smelt.graph.operator_effects import effects, is_composite
from smelt.graph.pytree import leaves
from smelt.reasons import TENSOR_SUBCLASS
from smelt.torch_private import (
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    DispatchKey,
    EnableTorchFunction,
    ForceDispatchKeys,
    NestedIntNode,
    NestedTensor,
    OpOverload,
    TorchDispatchMode,
    below_autograd_and_views,
    has_kernel,
    is_torch_function_enabled,
    nested_dummy,
    nested_from_padded,
    nested_view,
    ragged_sizes,
    tls_excluded,
    tls_included,
)
from smelt.tracing.composites import nested_sdpa
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.record.current_call import CurrentCall
from smelt.tracing.symbolic.sym_nodes import Symbol

_nested_view = torch.ops.aten._nested_view_from_jagged.default
_nested_from_padded = torch.ops.aten._nested_from_padded_tensor.default
# What the class answers itself. Some of these have no kernel.
METADATA_OPERATORS = frozenset((
    torch.ops.aten.is_non_overlapping_and_dense.default, torch.ops.aten.sym_size.default, torch.ops.aten.dim.default,
    torch.ops.aten.numel.default, torch.ops.aten.sym_numel.default, torch.ops.aten.sym_stride.default,
    torch.ops.aten.sym_storage_offset.default, torch.ops.prim.layout.default, torch.ops.aten.size.default,
))  # fmt: skip
_SOFTMAX = (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default)
# Operators that return a nested tensor if one of their arguments, which they do not read, is one.
NESTED_CONSTRUCTORS = frozenset((nested_view, nested_from_padded))
_ids = itertools.count(1)  # of ragged sizes: negative, so that none is one of eager's


class RaggedNode(NestedIntNode):  # type: ignore[misc]
    """The node of a ragged size, which may be multiplied by symbolic sizes."""

    def mul(self, other: Any) -> Any:
        """The node of a stride."""
        factor = other.number() if isinstance(other, Symbol) else other.constant_int()
        return RaggedNode(self.t_id, self.coeff * factor)


def is_nested(x: object) -> bool:
    """Whether `x` is a jagged nested tensor."""
    return type(x) is NestedTensor


def has_nested(args: Args, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call has a jagged nested tensor among its arguments."""
    return any(map(_holds_nested, args)) or any(map(_holds_nested, kwargs.values()))


def _holds_nested(value: Any) -> bool:
    kind = type(value)
    return kind is NestedTensor or ((kind is list or kind is tuple) and any(map(_holds_nested, value)))


def is_view(nested: Any) -> bool:
    """Whether the program created a nested tensor as a view of its values."""
    return "_smelt_view" in vars(nested)


def source_of_size(number: torch.SymInt) -> FakeTensor | None:
    """The fake that a ragged size, or its multiple, belongs to."""
    wanted: Any = number.node  # of a ragged size: not every node has a `t_id`
    for tensor, size in ragged_sizes().items():
        of_tensor: Any = size.node
        if type(tensor) is FakeTensor and of_tensor.t_id == wanted.t_id:
            return tensor
    return None


class Parts(NamedTuple):
    """What a nested tensor is created from. `cache` has, by name, the tensors whose sizes are its extreme lengths."""

    values: torch.Tensor
    offsets: torch.Tensor
    lengths: torch.Tensor | None
    ragged_dim: int
    cache: dict[str, torch.Tensor]

    @classmethod
    def of(cls, nested: torch.Tensor) -> Parts:
        """The parts of a nested tensor."""
        return cls(*(vars(nested)[name] for name in PART_NAMES))

    @property
    def ragged(self) -> torch.Tensor:
        """The tensor that the ragged size belongs to."""
        return self.offsets if self.lengths is None else self.lengths


PART_NAMES = ("_values", "_offsets", "_lengths", "_ragged_idx", "_metadata_cache")  # the attributes


def values_in(nested: torch.Tensor) -> torch.Tensor:
    """The values that a nested tensor holds."""
    return vars(nested)["_values"]  # type: ignore[no-any-return]


def size_of_nested(nested: torch.Tensor) -> tuple[Any, ...]:
    """The sizes of a nested tensor, read without its class."""
    return vars(nested)["_size"]  # type: ignore[no-any-return]


def _to_padded(
    values: torch.Tensor, offsets: list[torch.Tensor], max_lengths: list[int], padding_value: float = 0.0
) -> torch.Tensor:
    """`_jagged_to_padded_dense_forward`, which torch does not differentiate."""
    if not values.dtype.is_floating_point:
        return torch.ops.aten._jagged_to_padded_dense_forward(values, offsets, max_lengths, padding_value)  # type: ignore[no-any-return]
    (starts,), (length,) = offsets, max_lengths
    rows = starts[:-1, None] + torch.arange(length, device=values.device)
    inside = rows < starts[1:, None]
    if values.shape[0] == 0:  # there is no row to take in place of padding
        values = torch.nn.functional.pad(values, (0, 0, 0, 1))
    return values[rows.clamp(max=values.shape[0] - 1)].masked_fill(~inside[..., None], padding_value)


def _to_jagged(padded: torch.Tensor, offsets: list[torch.Tensor], total_L: int | None = None) -> torch.Tensor:
    """`_padded_dense_to_jagged_forward`, which torch does not differentiate."""
    if not padded.dtype.is_floating_point or total_L is None:
        return torch.ops.aten._padded_dense_to_jagged_forward(padded, offsets, total_L)  # type: ignore[no-any-return]
    (starts,) = offsets
    rows = torch.arange(total_L, device=padded.device)
    batch = torch.searchsorted(starts[1:], rows, right=True)
    return padded[batch, rows - starts[batch]]


_DIFFERENTIABLE: dict[Any, Any] = {
    torch.ops.aten._jagged_to_padded_dense_forward: _to_padded,
    torch.ops.aten._padded_dense_to_jagged_forward: _to_jagged,
    torch.ops.aten._jagged_to_padded_dense_forward.default: _to_padded,
    torch.ops.aten._padded_dense_to_jagged_forward.default: _to_jagged,
}


@functools.cache
def decomposes(func: OpOverload) -> bool:
    """Whether C++ code runs an operator on jagged nested tensors as calls of others, before it asks their class."""
    name = func.name()
    kernels = ("AutogradNestedTensor", "NestedTensorCPU")
    return (
        func not in METADATA_OPERATORS
        and is_composite(func)
        and not any(has_kernel(name, key) for key in kernels)
    )


@functools.cache
def returns_views(func: OpOverload) -> bool:
    """Whether autograd makes the results views of an argument."""
    aliases = [r.alias_info for r in func._schema.returns if r.alias_info is not None]
    return func is not torch.ops.aten.detach.default and any(not alias.is_write for alias in aliases)


class _Calls(TorchFunctionMode):
    """The calls of torch's Python code for nested tensors."""

    def __init__(self, call: CurrentCall) -> None:
        super().__init__()
        self._call = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not has_nested(args, kwargs):
            return _DIFFERENTIABLE.get(func, func)(*args, **kwargs)
        if is_torch_function_enabled():
            with self:
                if func is torch.nn.functional.scaled_dot_product_attention:
                    out = nested_sdpa.attention(*args, **kwargs)
                    if out is not NotImplemented:
                        return out
                return NestedTensor.__torch_function__(func, types, args, kwargs)
        with _without_autograd(self._call):
            return func(*args, **kwargs)


@contextlib.contextmanager
def _without_autograd(call: CurrentCall) -> Iterator[None]:
    """Hide the next operator from autograd."""
    before, excluded = call.hidden_keys, tls_excluded()
    with below_autograd_and_views():
        call.hidden_keys = tls_excluded() - excluded
        try:
            yield
        finally:
            call.hidden_keys = before


@contextlib.contextmanager
def _with_autograd(call: CurrentCall) -> Iterator[None]:
    """Undo `_without_autograd` for the operators on values."""
    before, call.hidden_keys = call.hidden_keys, None
    excluded = tls_excluded() if before is None else tls_excluded() - before
    try:
        with ForceDispatchKeys(tls_included(), excluded):
            yield
    finally:
        call.hidden_keys = before


def _values(nested: Any) -> Any:
    """The values, as another tensor on their memory."""
    return torch.ops.aten.alias(values_in(nested))


def _is_contiguous(nested: Any, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
    if nested._lengths is not None or memory_format is torch.preserve_format:
        return nested._lengths is None
    return bool(values_in(nested).is_contiguous(memory_format=memory_format))


class NestedTensors:
    """The jagged nested tensors of a trace.

    Attributes:
        used: whether there are any.
        function_mode: the trace's.
        polyfills: torch's code that reads lengths, by name, as the program runs it.
        ragged: the fakes with a ragged size, by id. Those of the environment are guarded to be distinct.
    """

    def __init__(self, call: CurrentCall) -> None:
        self.call = call
        self.used = False
        self.function_mode: TorchFunctionMode | None = None
        self.polyfills: dict[str, Callable[..., Any]] = {}
        self.ragged: dict[int, torch.Tensor] = {}
        self._rules = {
            torch.ops.aten._nested_get_values.default: _values,
            torch.ops.aten.values.default: _values,
            torch.ops.aten.unbind.int: self._unbind,
            torch.ops.aten.is_contiguous.default: _is_contiguous,
            torch.ops.aten.is_contiguous.memory_format: _is_contiguous,
            torch.ops.aten.sym_is_contiguous.default: _is_contiguous,
        }
        self.read_only: dict[int, torch.Tensor] = {}  # values that autograd sees as views of a nested tensor

    def prepare(self) -> None:
        """Have torch create its own nested tensor, which must not be one of fakes."""
        self.used = True
        with self.call.paused():
            nested_dummy()

    def create(self, parts: Parts) -> torch.Tensor:
        """A nested tensor of these fakes."""
        self.add_ragged(parts.ragged)
        with self.call.paused():
            nested: torch.Tensor = NestedTensor(
                parts.values,
                parts.offsets,
                lengths=parts.lengths,
                _ragged_idx=parts.ragged_dim,
                _metadata_cache=parts.cache,
            )
        return nested

    def add_ragged(self, fake: torch.Tensor) -> None:
        """Give a fake a ragged size."""
        self.used = True
        self.ragged[id(fake)] = fake
        if ragged_sizes().get(fake) is None:
            ragged_sizes()[fake] = torch.SymInt(RaggedNode(-next(_ids), 1))

    def run(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """The result of a call of the program with nested tensors, whose operators on values are recorded."""
        with _Calls(self.call):
            return func(*args, **kwargs)

    def dispatch(
        self, mode: TorchDispatchMode, func: OpOverload, types: Any, args: Args, kwargs: Kwargs
    ) -> Any:
        """The result of an operator on nested tensors."""
        if func in METADATA_OPERATORS:
            return NestedTensor.__torch_dispatch__(func, types, args, kwargs)
        self._check_writes(func, args, kwargs)
        if func in _SOFTMAX and args[1] % len(size_of_nested(args[0])) == args[0]._ragged_idx:
            self._check_softmax(func, args[0])
            self._find_longest(mode, args[0])
        elif func is _nested_view:
            self.add_ragged(args[1] if len(args) < 4 or args[3] is None else args[3])
        elif func is _nested_from_padded:
            self.add_ragged(args[1])
        rule = self._rules.get(func)
        if rule is not None:
            with _with_autograd(self.call), mode:
                return rule(*args)
        with _with_autograd(self.call), mode:
            if not torch.is_inference_mode_enabled() and decomposes(func):
                out = self._decompose(func, args, kwargs)
            else:
                with EnableTorchFunction(), DisableTorchFunctionSubclass(), _Calls(self.call):
                    out = NestedTensor.__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.aten._to_copy.default and out._offsets is not args[0]._offsets:
            # In eager both tensors of offsets have the same ragged size.
            raise self.call.unsupported(TENSOR_SUBCLASS, "a NestedTensor moves to another device")
        if returns_views(func):
            known = set(map(id, leaves((args, kwargs), NestedTensor)))
            for result in leaves(out, NestedTensor):
                if id(result) not in known:
                    result._smelt_view = True
        return out

    def _decompose(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        """The result of the C++ code that a composite operator is."""
        own = has_kernel(func.name(), "CompositeImplicitAutogradNestedTensor")
        key = (
            DispatchKey.CompositeImplicitAutogradNestedTensor
            if own
            else DispatchKey.CompositeImplicitAutograd
        )
        with (
            DisableTorchFunction(),
            _without_autograd(self.call),
            torch.overrides.enable_reentrant_dispatch(),
        ):
            return func._op_dk(key, *args, **kwargs)

    def _unbind(self, nested: Any, dim: int = 0) -> Any:
        if dim not in (0, -len(size_of_nested(nested))):
            raise RuntimeError("unbind(): only supported for NestedTensor on dim=0")
        at = nested._ragged_idx - 1
        return self._interpret("unbind", _values(nested), nested._offsets, nested._lengths, at)

    def _interpret(self, name: str, *args: Any) -> Any:
        """The result of a polyfill, whose calls are those of the program."""
        assert self.function_mode is not None
        with EnableTorchFunction(), self.function_mode:
            return self.polyfills[name](*args)

    def _check_writes(self, func: OpOverload, args: Args, kwargs: Kwargs) -> None:
        for name in effects(func).writes:
            written = effects(func).argument(name, args, kwargs)
            if is_nested(written) and id(values_in(written)) in self.read_only:
                raise self.call.unsupported(
                    TENSOR_SUBCLASS, f"{func} writes a NestedTensor that requires gradients"
                )

    def _check_softmax(self, func: OpOverload, nested: Any) -> None:
        """Raise Unsupported for the gradient of a softmax over the ragged dimension: torch's is another one."""
        if values_in(nested).requires_grad and torch.is_grad_enabled():
            raise self.call.unsupported(TENSOR_SUBCLASS, f"the gradient of {func} over a ragged dimension")

    def _find_longest(self, mode: TorchDispatchMode, nested: Any) -> None:
        """Have a nested tensor know the length of its longest component, which torch's code would read."""
        if "max_seqlen" not in nested._metadata_cache:
            with _with_autograd(self.call), mode:
                nested._metadata_cache["max_seqlen"] = self._interpret(
                    "longest", nested._offsets, nested._lengths
                )

    def check_hidden(self, func: OpOverload, args: Args, kwargs: Kwargs) -> None:
        """Raise Unsupported for an operator on plain tensors whose gradient would be lost: C++ code calls it between
        operators on nested tensors."""
        if torch.is_grad_enabled() and any(t.requires_grad for t in leaves((args, kwargs), FakeTensor)):
            raise self.call.unsupported(TENSOR_SUBCLASS, f"{func} inside an operator of a NestedTensor")
