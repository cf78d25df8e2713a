"""The mode above autograd: it sees each torch-level call (`torch.relu`, `Tensor.view`) before anything happens."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from smelt.errors import NeedsFixedSize, Unsupported
from smelt.graph.pytree import leaves
from smelt.reasons import DATA_DEPENDENT, DATA_DEPENDENT_SHAPE, TENSOR_SUBCLASS
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
    symbolic_pooling,
    symbolic_resize,
    symbolic_sdpa,
    symbolic_size_functions,
)
from smelt.tracing.composites.row_indexing import gather
from smelt.tracing.fake.constant_folding import UNKNOWN
from smelt.tracing.fake.fake_tensor import FakeTensor, check_fixed, has_new, hides_metadata
from smelt.tracing.fake.tensor_subclasses import class_of_results, mark
from smelt.tracing.record.aten_call_recorder import Body
from smelt.tracing.record.call_arguments import Args, Kwargs, Unnameable
from smelt.tracing.record.torch_function_handlers import is_handled
from smelt.tracing.record.torch_functions import PASSED, REFUSED, STATEFUL, name_of, read_of
from smelt.tracing.record.trace_parts import TraceParts
from smelt.tracing.symbolic.numbers_in_containers import has_symbols, own_parts, plain_parts, settled

_READS_MEMORY = "its data is not allocated"  # from torch's message when C++ asks a fake for its memory
_OPERATOR_ERRORS = (RuntimeError, ValueError, IndexError, TypeError)
_LARGE = 10_000_000  # elements

# Of functions whose C++ code does not run on fakes, or leaves a backward that cannot be recorded.
_BODIES: dict[Any, Body] = {**packed_sequences.BODIES, **row_indexing.BODIES, **masked_stores.BODIES}
# Of functions that are one operator for each of several tensors, or another one where sizes are symbolic.
_BODIES_OF_LISTS = {
    **foreach.BODIES, **fused_optimizers.BODIES, **symbolic_resize.BODIES, **symbolic_pooling.BODIES,
    **strided_windows.BODIES
}  # fmt: skip
# Of functions that take sizes for numbers.
_BODIES_OF_SIZES = {**symbolic_matmul.BODIES, **symbolic_sdpa.BODIES, **symbolic_size_functions.BODIES}


def _takes_the_default_device(func: Any, given: Any, out: Any) -> bool:
    """Whether a call made its result, from no tensor, on the default device, which is not the CPU."""
    return (
        isinstance(out, torch.Tensor)
        and out.device.type != "cpu"
        and getattr(torch, getattr(func, "__name__", ""), None) is func
        and not leaves(given, torch.Tensor)
    )


class FunctionMode(TorchFunctionMode):
    """Runs each call with itself out of the way, so that only the outermost call is recorded, and only if it gave or changed
    tensors."""

    def __init__(self, parts: TraceParts) -> None:
        super().__init__()
        self._call = parts.call
        self._call_recorder = parts.call_recorder
        self._operator_recorder = parts.operator_recorder
        self._numbers = parts.numbers
        self._inputs = parts.inputs
        self._known = parts.known
        self._autograd = parts.autograd
        self._backward = parts.backward

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = self._call
        if call.asks and is_handled(call, args, kwargs or {}):
            answer = self._asked(func, args, kwargs)
            if answer is not NotImplemented:
                return answer
        kwargs = kwargs or {}
        if func in PASSED:
            if args and type(args[0]) is not FakeTensor:
                self._check_metadata(args)
            out = func(*args, **kwargs)
            return out if self._numbers.symbols is None else own_parts(out)
        return self._run(func, args, kwargs)

    def _asked(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What the user's handlers give, with this mode in the way again: what they call is recorded."""
        call = self._call
        if call.is_opaque or maybe_current_level() is not None:
            raise call.unsupported(TENSOR_SUBCLASS, f"{name_of(func)} that a __torch_function__ handles")
        call.asks = False
        try:
            with self:
                return call.ask(func, args, kwargs)
        finally:
            call.asks = True

    def _run(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        call = self._call
        if call.pauses:
            return func(*args, **kwargs)
        cls = class_of_results(func, args, kwargs) if call.has_subclasses else None
        if cls is not None and (call.is_opaque or maybe_current_level() is not None):
            raise call.unsupported(TENSOR_SUBCLASS, f"{name_of(func)} of a {cls.__qualname__}")
        if func in REFUSED:
            known = self._known.read(func, args, kwargs)
            if known is not UNKNOWN:
                return known
            raise call.unsupported(*REFUSED[func])
        if call.is_opaque:
            return self._run_inside(func, args, kwargs)
        if call.gathers and func is torch.Tensor.__getitem__:
            func, args = gather(func, args)
        if maybe_current_level() is not None:
            return self._run_sized(func, args, kwargs)
        if self._numbers.symbols is not None:
            args, kwargs = settled(args), settled(kwargs)
        return self._run_recorded(func, args, kwargs, cls)

    def _check_metadata(self, args: Args) -> None:
        """Raises Unsupported where metadata is read that no guard covers, or that the user's code gives."""
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
        """`cls`: the subclass that the results are of."""
        call = self._call
        try:
            node = self._call_recorder.node(func, args, kwargs)
        except Unnameable:  # its operators are recorded one by one
            if cls is not None:
                raise call.unsupported(TENSOR_SUBCLASS, f"{name_of(func)} of a {cls.__qualname__}") from None
            return func(*args, **kwargs)
        call.node, call.wrote = node, False
        if self._numbers.symbols is not None:
            self._numbers.symbols.refusal = None
        failure: Exception | None = None
        try:
            out = self._run_body(func, args, kwargs)
        except NeedsFixedSize as error:
            raise self._of_data(error) from None
        except BaseException as error:
            if isinstance(error, _OPERATOR_ERRORS) and not isinstance(error, Unsupported):
                self._check_refused()
                self._check_fixed(
                    (args, kwargs), f"{name_of(func)} raises {str(error).partition(chr(10))[0]}"
                )
            if self._only_symbols_failed(error, args, kwargs):
                call.node = None
                return self._run(func, *plain_parts((args, kwargs)))
            failure = self._failure(error, func, args, kwargs)
            if failure is None:
                raise
        finally:
            call.node = None
        if failure is not None:  # raised outside of the handler, so that smelt's error is not its __context__
            raise failure
        if cls is not None:
            mark(out, cls)
        if kwargs.get("device") is None and _takes_the_default_device(func, (args, kwargs), out):
            # A default device is a mode of torch, which is not there where the graph runs again for a second derivative.
            node.kwargs = {**node.kwargs, "device": out.device}
        if call.wrote or func in STATEFUL or has_new(out):
            self._call_recorder.record(node, func, out)
            if func in STATEFUL and self._inputs.holds(args[0]):
                self._autograd.restated.setdefault(func.__name__, []).append(args[0])
        return out

    def _run_body(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """The call, or what takes its place."""
        body = _BODIES.get(func)
        if body is not None and not kwargs:
            return body(self._operator_recorder, func, args)
        named = symbolic_counts.BODIES.get(func)
        out = NotImplemented if named is None else named(self._operator_recorder, func, args, kwargs)
        if out is not NotImplemented:
            return out
        if func is torch.autograd.grad:
            return self._backward.run(functools.partial(func, *args, **kwargs))
        of_lists = _BODIES_OF_LISTS.get(func)
        out = NotImplemented if of_lists is None else of_lists(args, kwargs)
        return self._run_sized(func, args, kwargs) if out is NotImplemented else out

    def _run_sized(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """The call, symbolic sizes of which stay symbolic."""
        body = _BODIES_OF_SIZES.get(func)
        if body is None or self._numbers.symbols is None:
            return func(*args, **kwargs)
        out = body(args, kwargs)
        return func(*args, **kwargs) if out is NotImplemented else out

    # ---- calls that raise

    def _check_fixed(self, given: Any, what: str) -> None:
        try:
            check_fixed(given, what)
        except NeedsFixedSize as error:
            raise self._of_data(error) from None

    def _check_refused(self) -> None:
        """C++ code may have made an error of its own of what a comparison raised (`unflatten` does)."""
        symbols = self._numbers.symbols
        if symbols is not None and symbols.refusal is not None:
            raise symbols.refusal

    def _of_data(self, error: NeedsFixedSize) -> Unsupported:
        """The error itself, unless data alone decide the sizes that the call needs as numbers: the graph ends before it."""
        symbols = self._numbers.symbols
        found = [] if symbols is None else symbols.known.of(sorted(error.symbols, key=str))
        if not found or len(found) < len(error.symbols):
            return error
        names = " and ".join(f"{n.sym} is {n.what}" for n in found)
        return self._call.unsupported(DATA_DEPENDENT_SHAPE, f"{error.reason.detail}, where {names}")

    def _only_symbols_failed(self, error: BaseException, args: Args, kwargs: Kwargs) -> bool:
        """Whether the call is to be made again with plain numbers: for what does not take others, and for its text."""
        if self._numbers.symbols is None or self._call.wrote or isinstance(error, Unsupported):
            return False
        return has_symbols((args, kwargs))

    def _failure(self, error: BaseException, func: Any, args: Args, kwargs: Kwargs) -> Exception | None:
        """The user's error that takes the place of `error`; None where `error` itself goes on. Raises Unsupported for calls
        that cannot be recorded."""
        call = self._call
        if isinstance(error, RuntimeError) and _READS_MEMORY in str(error):
            raise call.unsupported(DATA_DEPENDENT, f"{name_of(func)} reads memory") from error
        if isinstance(error, Unsupported):
            if error.reason.kind is DATA_DEPENDENT:
                raise call.unsupported(*read_of(func)) from None
            return None
        if not isinstance(error, _OPERATOR_ERRORS):
            return None
        if isinstance(error, RuntimeError) and torch.is_grad_enabled():  # a write may have been refused
            for fake in leaves((args, kwargs), FakeTensor):
                self._operator_recorder.writes.check_history(fake, differentiated=True)
        failure = None if call.wrote else _error_of_real_tensors(func, args, kwargs)
        if failure is None:
            call.fail(name_of(func), error)
        return failure


def _error_of_real_tensors(func: Any, args: Args, kwargs: Kwargs) -> Exception | None:
    """What `func` raises in eager, whose text may be another than that of its shape function."""
    try:
        real_args, real_kwargs = _zeros_like((args, kwargs))
        with DisableTorchDispatch(), DisableTorchFunction(), DisableFuncTorch():
            func(*real_args, **real_kwargs)
    except Unnameable:
        return None
    except _OPERATOR_ERRORS as error:
        error.__context__ = None  # the shape function's error, which is being handled here
        return error.with_traceback(None)
    return None


def _zeros_like(value: Any) -> Any:
    """`value` with real tensors, of zeros, in place of fakes, on their devices: that there are several is refused before
    sizes are looked at. Raises Unnameable for large ones."""
    if type(value) is FakeTensor:
        if value.elem.numel() > _LARGE:
            raise Unnameable("a large tensor")
        with DisableTorchDispatch(), DisableTorchFunction():
            if value.requires_grad and value._is_view():
                raise Unnameable("a view, whose own error says how it was taken")
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
