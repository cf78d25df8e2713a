"""Calls of Python functions: handled, refused, run natively or interpreted."""

from __future__ import annotations

import weakref
from typing import cast

from smelt._native import isinstance
from smelt.capture.base.call_handlers import (
    Args,
    Kwargs,
    definition_name,
    handler_of,
    substitute_of,
    unsupported,
)
from smelt.capture.base.native_functions import (
    REFUSED,
    REFUSED_BY_NAME,
    is_never_interpreted,
    runs_natively,
)
from smelt.capture.base.value_kinds import FunctionType, is_constant
from smelt.capture.base.vm_frames import Frame, Operands
from smelt.capture.semantics.calls.argument_binding import bind
from smelt.capture.semantics.calls.native_calls import call_native_python, run_native
from smelt.capture.semantics.calls.torch_function_overrides import (
    check_replaced_under_modes,
    needs_override_dispatch,
)
from smelt.capture.semantics.values.displayed_names import use_names
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import DEBUGGER, DISABLED, GRAPH_BREAK_REQUESTED, RANDOM_STATE, SIDE_EFFECT_IO, Reason
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_numbers import NUMBERS

# CO_COROUTINE, CO_ITERABLE_COROUTINE and CO_ASYNC_GENERATOR of `co_flags`
COROUTINE, ITERABLE_COROUTINE, ASYNC_GENERATOR = 0x80, 0x100, 0x200


def call_function(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs | None = None) -> object:
    """`fn(*args, **kwargs)`. Raises Unsupported if the function is refused or marked as disabled."""
    kwargs = kwargs if kwargs is not None else {}
    handler = handler_of(fn)
    if handler is not None and not needs_override_dispatch(vm, fn, args, kwargs):
        check_replaced_under_modes(vm, fn)
        vm.frames.call_site = None
        return handler(vm, [*args], kwargs)  # which may call functions, and still use the arguments
    definition = definition_name(fn)
    substitute = substitute_of(fn, args, kwargs)
    if substitute is not None:
        check_replaced_under_modes(vm, fn)
        fn = substitute
    inlined = _torch_compile_original(fn) if definition[0].startswith("torch._dynamo.") else None
    if inlined is not None:
        return vm.call(inlined, args, kwargs)
    refused = REFUSED.get(fn) or REFUSED_BY_NAME.get(definition)
    if refused is not None:
        raise Unsupported(Reason(*refused))
    if fn.__dict__:
        original = _disabled_original(fn)
        if original is not None:
            return call_function(vm, original, args, kwargs)
        _check_marks(fn)
        if "__smelt_is_compiling__" in fn.__dict__:
            return vm.is_compiling()
    if runs_natively(fn):
        return call_native_python(vm, fn, args, kwargs)
    if weakref.getweakrefcount(fn) and _is_allowed_in_graph(fn):
        return _call_allowed_in_graph(vm, fn, args, kwargs)
    if is_never_interpreted(fn):
        kind = {"pdb": DEBUGGER, "bdb": DEBUGGER, "random": RANDOM_STATE}.get(fn.__module__, SIDE_EFFECT_IO)
        raise Unsupported(Reason(kind, f"{fn.__module__}.{fn.__qualname__}"))
    return interpret(vm, fn, args, kwargs)


def _torch_compile_original(fn: FunctionType) -> object:
    """The callable that torch.compile wrapped in `fn`, or None: smelt compiles the original."""
    definition = definition_name(fn)
    if definition == ("torch._dynamo.external_utils", "wrap_dunder_call_ctx_manager.<locals>.inner"):
        closure = dict(zip(fn.__code__.co_freevars, (cell.cell_contents for cell in fn.__closure__ or ())))
        only_set = type(closure["self"]).__name__ == "DynamoConfigPatchProxy"  # options of torch's compiler
        return closure["func"] if only_set else None
    is_compiled = definition[0] == "torch._dynamo.eval_frame" and "_torchdynamo_inline" in fn.__dict__
    return fn.__dict__.get("_torchdynamo_orig_callable") if is_compiled else None


# A wrapper, which torch disables for its own compiler, of the `__init__` of a wrapper subclass.
_MARKED_INIT = (
    "torch._export.wrappers",
    "mark_subclass_constructor_exportable_experimental.<locals>.wrapper",
)


def _disabled_original(fn: FunctionType) -> FunctionType | None:
    """The original of a function that torch disabled for its own compiler on first use: of the `__init__` of a wrapper
    subclass, a function of `torch.optim`, or a function with a handler. None for others."""
    if "_torchdynamo_disable" not in fn.__dict__:
        return None
    original = fn.__dict__.get("_torchdynamo_orig_callable")
    if type(original) is not FunctionType:
        return None
    if definition_name(original) == _MARKED_INIT:
        return original
    is_optimizer = str(original.__globals__.get("__name__")).startswith("torch.optim")
    return original if is_optimizer or handler_of(original) is not None else None


def _check_marks(fn: FunctionType) -> None:
    """Raise Unsupported for a function that is disabled for compilers or requests a graph break."""
    marks = fn.__dict__
    if marks.get("_torchdynamo_disable") or marks.get("__smelt_disable__"):
        raise Unsupported(Reason(DISABLED, fn.__qualname__))
    if marks.get("__smelt_graph_break__"):
        raise Unsupported(Reason(GRAPH_BREAK_REQUESTED, ""))


def _is_allowed_in_graph(fn: FunctionType) -> bool:
    """Whether `fn` is marked with `torch.compiler.allow_in_graph`, which leaves only a finalizer on the function."""
    for callback in (r.__callback__ for r in weakref.getweakrefs(fn)):
        at_end = callback.peek() if isinstance(callback, weakref.finalize) else None
        registered = None if at_end is None else at_end[1]  # may be a partial, which has no name
        if getattr(registered, "__qualname__", None) == "allow_in_graph.<locals>.deregister":
            return True
    return False


def _call_allowed_in_graph(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    """Call of a function marked as pure by `allow_in_graph`. It is captured as usual; if capture fails, the mark is trusted
    and the function runs natively on fakes."""
    if vm.assumptions.trusts_marks and all(map(_is_plain_argument, (*args, *kwargs.values()))):
        vm.frames.call_site = None
        vm.env.facts.use_function(fn)
        return run_native(vm, fn, args, kwargs)
    try:
        vm.assumptions.marked_depth += 1
        result = interpret(vm, fn, args, kwargs)
    except Unsupported:
        raise
    except Exception:
        vm.assumptions.marked_depth -= 1
        raise
    vm.assumptions.marked_depth -= 1
    return result


def _is_plain_argument(value: object) -> bool:
    """Whether `value` may be passed to such a function: tensors, constants, and lists and tuples of them."""
    if type(value) in (list, tuple):
        return all(map(_is_plain_argument, cast("list[object]", value)))
    return type(value) is FakeTensor or type(value) in NUMBERS or is_constant(value)


def interpret(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    """Interpret a Python function, even if it is registered as native."""
    vm.env.facts.use_function(fn)
    code = vm.decode(fn.__code__)
    if code.flags & ASYNC_GENERATOR:
        raise unsupported(f"{fn.__qualname__} is asynchronous")
    try:
        slots = bind(vm, fn, code, args, kwargs)
    except TypeError:  # its message has the function's name
        use_names(vm, fn)
        raise
    if type(args) is Operands:
        args.hand_over()
        kwargs.clear()
    return vm.run(vm.attach_call_site(Frame(code, fn, slots)))
