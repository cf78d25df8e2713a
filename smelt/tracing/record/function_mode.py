"""The function mode, above autograd: it sees each torch-level call (`torch.relu`, `Tensor.view`) before it runs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from smelt.errors import NeedsFixedSize, Unsupported
from smelt.graph.pytree import leaves
from smelt.reasons import DATA_DEPENDENT, DATA_DEPENDENT_SHAPE, TENSOR_SUBCLASS, UNSUPPORTED_EFFECT
from smelt.torch_private import (
    DisableFuncTorch,
    DisableTorchDispatch,
    DisableTorchFunction,
    maybe_current_level,
)
from smelt.tracing.composites import (
    foreach,
    fused_optimizers,
    masked_stores,
    packed_sequences,
    row_indexing,
    strided_windows,
    symbolic_counts,
    symbolic_matmul,
    symbolic_parameters,
    symbolic_pooling,
    symbolic_resize,
    symbolic_sdpa,
    symbolic_size_functions,
)
from smelt.tracing.composites.row_indexing import gather
from smelt.tracing.fake.constant_folding import UNKNOWN
from smelt.tracing.fake.fake_tensor import FAKE_TEXT, FakeTensor, check_fixed, has_unrecorded, hides_metadata
from smelt.tracing.fake.tensor_subclasses import class_of_results, mark
from smelt.tracing.record.aten_call_recorder import Composite
from smelt.tracing.record.call_arguments import Args, Kwargs, Unnameable
from smelt.tracing.record.nested_tensors import NESTED_CONSTRUCTORS, has_nested, values_in
from smelt.tracing.record.torch_function_handlers import is_handled
from smelt.tracing.record.torch_functions import PASSED, REFUSED, STATEFUL, name_of, read_of
from smelt.tracing.record.trace_parts import TraceParts
from smelt.tracing.record.wrapper_gradients import requires_grad
from smelt.tracing.record.wrapper_subclasses import METADATA_READS, unknown_results, wrappers_in
from smelt.tracing.symbolic.numbers_in_containers import (
    as_operator_arguments,
    has_symbols,
    specialize_nested,
    wrap_nested,
)

_READS_MEMORY = "its data is not allocated"  # part of torch's error when C++ reads a fake's memory
_OPERATOR_ERRORS = (RuntimeError, ValueError, IndexError, TypeError)
# Of a nested tensor: that its values have, and that are not captured.
_GRADIENT_GETTERS = (torch.Tensor.requires_grad.__get__,)  # type: ignore[attr-defined]
_AUTOGRAD_GETTERS = tuple(
    getattr(torch.Tensor, name).__get__
    for name in ("is_leaf", "grad_fn", "grad", "data", "_base", "_version", "output_nr")
)
_LARGE = 10_000_000  # elements

# For functions whose C++ code does not run on fakes, or whose backward cannot be recorded.
_COMPOSITES: dict[Any, Composite] = {
    **packed_sequences.COMPOSITES,
    **row_indexing.COMPOSITES,
    **masked_stores.COMPOSITES,
}
# For functions of tensor lists, as one operator per tensor, and functions that use other operators for symbolic sizes.
_KEYWORD_COMPOSITES = {
    **foreach.COMPOSITES, **fused_optimizers.COMPOSITES, **symbolic_resize.COMPOSITES, **symbolic_pooling.COMPOSITES,
    **strided_windows.COMPOSITES
}  # fmt: skip
# For functions whose own code would specialize sizes.
_SIZE_COMPOSITES = {
    **symbolic_matmul.COMPOSITES,
    **symbolic_sdpa.COMPOSITES,
    **symbolic_size_functions.COMPOSITES,
}


def _uses_default_device(func: Any, arguments: Any, out: Any) -> bool:
    """Whether a factory call without tensor arguments created its result on a default device other than the CPU."""
    return (
        isinstance(out, torch.Tensor)
        and out.device.type != "cpu"
        and getattr(torch, getattr(func, "__name__", ""), None) is func
        and not leaves(arguments, torch.Tensor)
    )


class FunctionMode(TorchFunctionMode):
    """Runs each call with the mode itself disabled, so that only the outermost call is recorded, and only if it
    returns or changes tensors."""

    def __init__(self, parts: TraceParts) -> None:
        super().__init__()
        self._call = parts.call
        self._torch_recorder = parts.torch_recorder
        self._aten_recorder = parts.aten_recorder
        self._numbers = parts.numbers
        self._inputs = parts.inputs
        self._constants = parts.constants
        self._autograd = parts.autograd
        self._backward = parts.backward
        self._wrapper_gradients = parts.wrapper_gradients
        self._nested = parts.nested

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = self._call
        if call.dispatches_handlers and is_handled(call, args, kwargs or {}):
            out = self._call_handlers(func, args, kwargs)
            if out is not NotImplemented:
                return out
        kwargs = kwargs or {}
        if (
            (self._nested.used or func in NESTED_CONSTRUCTORS)
            and has_nested(args, kwargs)
            and not call.pause_depth
        ):
            return self._run_on_nested(func, args, kwargs)
        if func in PASSED:
            if args and type(args[0]) is not FakeTensor:
                known = func in METADATA_READS and id(args[0]) in call.wrappers
                if not known:
                    self._check_metadata(args)
                args = self._wrapper_gradients.with_proxies(args, False) if known else args
            elif func is torch.Tensor.storage_offset:
                self._aten_recorder.writes.addressed_from_start.append(args[0])
            out = func(*args, **kwargs)
            return out if self._numbers.symbols is None else wrap_nested(out)
        return self._run(func, args, kwargs)

    def _call_handlers(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of the user's handlers. This mode is active while they run, so their calls are recorded."""
        call = self._call
        if call.is_opaque or maybe_current_level() is not None:
            raise call.unsupported(TENSOR_SUBCLASS, f"{name_of(func)} that a __torch_function__ handles")
        call.dispatches_handlers = False
        try:
            with self:
                return call.call_handlers(func, args, kwargs)
        finally:
            call.dispatches_handlers = True

    def _run(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        call = self._call
        if call.pause_depth:
            return func(*args, **kwargs)
        cls = class_of_results(func, args, kwargs) if call.has_subclasses else None
        if cls is not None and (call.is_opaque or maybe_current_level() is not None):
            raise call.unsupported(TENSOR_SUBCLASS, f"{name_of(func)} of a {cls.__qualname__}")
        if func in REFUSED:
            value = self._constants.read(func, args, kwargs)
            if value is not UNKNOWN:
                return value
            raise call.unsupported(*REFUSED[func])
        if self._inputs.rebound:
            return self._run_on_rebound(func, args, kwargs, cls)
        return self._run_known(func, args, kwargs, cls)

    def _run_on_rebound(self, func: Any, args: Args, kwargs: Kwargs, cls: type | None) -> Any:
        """Run a call after the `data` of a tensor was set, which must not become part of that tensor's history."""
        out = self._run_known(func, args, kwargs, cls)
        if func in STATEFUL or any(fake.requires_grad for fake in leaves(out, FakeTensor)):
            self._inputs.check_rebound(name_of(func), (args, kwargs), func in STATEFUL)
        return out

    def _run_known(self, func: Any, args: Args, kwargs: Kwargs, cls: type | None) -> Any:
        call = self._call
        if call.wrappers and (wrappers := wrappers_in(call, args, kwargs)):
            return self._run_on_wrappers(func, args, kwargs, wrappers)
        if call.is_opaque:
            return self._run_inside(func, args, kwargs)
        if call.gather_depth and func is torch.Tensor.__getitem__:
            func, args = gather(func, args)
        if maybe_current_level() is not None:
            return self._run_sized(func, args, kwargs)
        if self._numbers.symbols is not None:
            args, kwargs = as_operator_arguments(args), as_operator_arguments(kwargs)
        return self._run_recorded(func, args, kwargs, cls)

    def _run_on_wrappers(
        self, func: Any, args: Args, kwargs: Kwargs, wrappers: Sequence[torch.Tensor]
    ) -> Any:
        """Run a call on wrappers, whose operators on inner tensors the dispatch mode records."""
        call, name = self._call, type(wrappers[0]).__qualname__
        differentiates = not call.in_dispatch and torch.is_grad_enabled() and requires_grad((args, kwargs))
        if func in STATEFUL or (differentiates and not self._autograd.wants_joint):
            refused = call.unsupported(TENSOR_SUBCLASS, f"gradients through a {name}")
            refused.needs_joint_graph = func not in STATEFUL
            raise refused
        if call.is_opaque or maybe_current_level() is not None:
            raise call.unsupported(TENSOR_SUBCLASS, f"{name_of(func)} of a {name}")
        if self._numbers.symbols is not None:
            args, kwargs = as_operator_arguments(args), as_operator_arguments(kwargs)
        args, kwargs = self._wrapper_gradients.with_proxies((args, kwargs), differentiates)
        out = self._wrapper_gradients.without_proxies(func(*args, **kwargs))
        if unknown_results(call, out):
            raise call.unsupported(TENSOR_SUBCLASS, f"{name_of(func)} of a {name}, whose result is not one")
        return out

    def _run_on_nested(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Run a call on jagged nested tensors, whose operators on values the dispatch mode records."""
        call = self._call
        if func in _GRADIENT_GETTERS:
            return func(values_in(args[0]))
        if func is torch.Tensor.requires_grad_ and args[1:] == (False,):
            if not values_in(args[0]).requires_grad:
                return args[0]
        if func in STATEFUL or func in REFUSED or func in _AUTOGRAD_GETTERS or func is torch.autograd.grad:
            raise call.unsupported(TENSOR_SUBCLASS, f"{name_of(func)} of a NestedTensor")
        if call.is_opaque or maybe_current_level() is not None:
            raise call.unsupported(TENSOR_SUBCLASS, f"{name_of(func)} of a NestedTensor")
        self._nested.used = True
        if self._numbers.symbols is not None:
            args, kwargs = as_operator_arguments(args), as_operator_arguments(kwargs)
        return wrap_nested(self._nested.run(func, args, kwargs))

    def _check_metadata(self, args: Args) -> None:
        """Raise Unsupported where the call reads metadata that no guard covers or that the user's code computes."""
        for value in args:
            if isinstance(value, torch.Tensor) and type(value) is not FakeTensor and hides_metadata(value):
                raise self._call.unsupported(
                    TENSOR_SUBCLASS, f"metadata of a {type(value).__qualname__} is read"
                )

    def _run_inside(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """A torch-level call of the user's code inside an opaque call."""
        try:
            return self._run_sized(func, args, kwargs)
        except _OPERATOR_ERRORS as error:
            if not isinstance(error, Unsupported):
                self._call.fail(name_of(func), error)
            raise

    def _run_recorded(self, func: Any, args: Args, kwargs: Kwargs, cls: type | None) -> Any:
        """Run and record a call. `cls`: the subclass of the results."""
        call = self._call
        if func is torch.Tensor.retain_grad and self._autograd.hides_gradient(args[0], self._inputs):
            raise call.unsupported(UNSUPPORTED_EFFECT, "retain_grad in a graph of another backend")
        try:
            node = self._torch_recorder.node(func, args, kwargs)
        except Unnameable:  # its operators are recorded one by one
            if cls is not None:
                raise call.unsupported(TENSOR_SUBCLASS, f"{name_of(func)} of a {cls.__qualname__}") from None
            return func(*args, **kwargs)
        call.node, call.mutated = node, False
        if self._numbers.symbols is not None:
            self._numbers.symbols.pending_error = None
        failure: Exception | None = None
        needs_numbers = False
        try:
            out = self._run_call(func, args, kwargs)
        except NeedsFixedSize as error:
            raise self._unbacked_error(error) from None
        except BaseException as error:
            if isinstance(error, _OPERATOR_ERRORS) and not isinstance(error, Unsupported):
                self._raise_pending()
                self._check_fixed(
                    (args, kwargs), f"{name_of(func)} raises {str(error).partition(chr(10))[0]}"
                )
            needs_numbers = self._only_symbols_failed(error, args, kwargs)
            failure = None if needs_numbers else self._failure(error, func, args, kwargs)
            if failure is None and not needs_numbers:
                raise
        finally:
            call.node = None
        # Outside of the handler, so that smelt's error is not the __context__ of what this raises.
        if needs_numbers:
            return self._run(func, *specialize_nested((args, kwargs)))
        if failure is not None:
            raise failure
        if cls is not None:
            mark(out, cls)
        if kwargs.get("device") is None and _uses_default_device(func, (args, kwargs), out):
            # A default device is a torch mode, which is not active when the graph is replayed for a second derivative.
            node.kwargs = {**node.kwargs, "device": out.device}
        if call.mutated or func in STATEFUL or has_unrecorded(out):
            self._torch_recorder.record(node, func, out)
            if func in STATEFUL and self._inputs.holds(args[0]):
                self._autograd.flag_calls.setdefault(func.__name__, []).append(args[0])
        return out

    def _run_call(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Run the call, or its composite."""
        composite = _COMPOSITES.get(func)
        if composite is not None and not kwargs:
            return composite(self._aten_recorder, func, args)
        factory = symbolic_counts.COMPOSITES.get(func)
        out = NotImplemented if factory is None else factory(self._aten_recorder, func, args, kwargs)
        if out is not NotImplemented:
            return out
        if func is torch.autograd.grad:
            return self._backward.run(functools.partial(func, *args, **kwargs))
        by_keyword = _KEYWORD_COMPOSITES.get(func)
        out = NotImplemented if by_keyword is None else by_keyword(args, kwargs)
        return self._run_sized(func, args, kwargs) if out is NotImplemented else out

    def _run_sized(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Run the call with its symbolic sizes and parameters kept symbolic."""
        if self._numbers.symbols is None:
            return func(*args, **kwargs)
        out = symbolic_parameters.composite(self._aten_recorder, func, args, kwargs)
        if out is not NotImplemented:
            return out
        composite = _SIZE_COMPOSITES.get(func)
        if composite is None:
            return func(*args, **kwargs)
        out = composite(args, kwargs)
        return func(*args, **kwargs) if out is NotImplemented else out

    # ---- calls that raise

    def _check_fixed(self, arguments: Any, what: str) -> None:
        try:
            check_fixed(arguments, what)
        except NeedsFixedSize as error:
            raise self._unbacked_error(error) from None

    def _raise_pending(self) -> None:
        """Raise the error of a comparison that C++ code replaced by an error of its own (`unflatten` does)."""
        symbols = self._numbers.symbols
        if symbols is not None and symbols.pending_error is not None:
            raise symbols.pending_error

    def _unbacked_error(self, error: NeedsFixedSize) -> Unsupported:
        """`error` itself, or a graph break before the call if all sizes that it needs fixed are unbacked."""
        symbols = self._numbers.symbols
        found = [] if symbols is None else symbols.unbacked.among(sorted(error.symbols, key=str))
        if not found or len(found) < len(error.symbols):
            return error
        names = " and ".join(f"{n.sym} is {n.what}" for n in found)
        return self._call.unsupported(DATA_DEPENDENT_SHAPE, f"{error.reason.detail}, where {names}")

    def _only_symbols_failed(self, error: BaseException, args: Args, kwargs: Kwargs) -> bool:
        """Whether to repeat the call with specialized numbers: for functions that accept no symbolic ones, and for
        their error messages."""
        if self._numbers.symbols is None or self._call.mutated or isinstance(error, Unsupported):
            return False
        return has_symbols((args, kwargs))

    def _failure(self, error: BaseException, func: Any, args: Args, kwargs: Kwargs) -> Exception | None:
        """The user's error that replaces `error`; None where `error` itself propagates. Raises Unsupported for calls
        that cannot be recorded."""
        call = self._call
        if isinstance(error, RuntimeError) and _READS_MEMORY in str(error):
            raise call.unsupported(DATA_DEPENDENT, f"{name_of(func)} reads memory") from error
        if isinstance(error, RuntimeError) and FAKE_TEXT in str(error):
            raise call.unsupported(DATA_DEPENDENT, f"the error of {name_of(func)} shows a tensor") from error
        if isinstance(error, Unsupported):
            if error.reason.kind is DATA_DEPENDENT:
                return call.unsupported(*read_of(func))
            return None
        if not isinstance(error, _OPERATOR_ERRORS):
            return None
        if isinstance(error, RuntimeError) and torch.is_grad_enabled():  # autograd may have refused a write
            for fake in leaves((args, kwargs), FakeTensor):
                self._aten_recorder.writes.check_history(fake, differentiated=True)
        failure = None if call.mutated else _error_of_real_tensors(func, args, kwargs)
        if failure is None:
            call.fail(name_of(func), error)
        return failure


def _error_of_real_tensors(func: Any, args: Args, kwargs: Kwargs) -> Exception | None:
    """The error that `func` raises in eager, whose text may differ from that of its shape function."""
    try:
        real_args, real_kwargs = _zeros_like((args, kwargs))
        with DisableTorchDispatch(), DisableTorchFunction(), DisableFuncTorch():
            func(*real_args, **real_kwargs)
    except Unnameable:
        return None
    except _OPERATOR_ERRORS as error:
        error.__context__ = None  # the shape function's error
        return error.with_traceback(None)
    return None


def _zeros_like(value: Any) -> Any:
    """`value` with real zero tensors in place of fakes, on the same devices: operators check devices before sizes.
    Raises Unnameable for large tensors."""
    if type(value) is FakeTensor:
        if value.elem.numel() > _LARGE:
            raise Unnameable("a large tensor")
        with DisableTorchDispatch(), DisableTorchFunction():
            if value.requires_grad and value._is_view():
                raise Unnameable("a view, whose error names the operator that created it")
            on_gpu = value.device.type == "cuda" and torch.cuda.is_available()
            zeros = torch.empty_strided(
                value.elem.size(),
                value.elem.stride(),
                dtype=value.elem.dtype,
                device=value.device if on_gpu else "cpu",
            )
            zeros.zero_().requires_grad_(value.requires_grad)
            return zeros if value.is_leaf else zeros + 0
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(map(_zeros_like, value))
    if type(value) is dict:
        return {k: _zeros_like(v) for k, v in value.items()}
    return value
