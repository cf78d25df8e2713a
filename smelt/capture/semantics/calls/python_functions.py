"""Calls of functions written in Python: answered by a handler, refused, run natively, or interpreted."""

from __future__ import annotations

import weakref
from typing import cast

from smelt._native import isinstance
from smelt.capture.base.call_handlers import SUBSTITUTES, Args, Kwargs, handler_of, unsupported, where_written
from smelt.capture.base.native_functions import REFUSED, is_never_entered, runs_natively
from smelt.capture.base.value_kinds import FunctionType, is_constant
from smelt.capture.base.vm_frames import Frame
from smelt.capture.semantics.calls.argument_binding import bind
from smelt.capture.semantics.calls.native_calls import call_native_python, run_native
from smelt.capture.semantics.calls.torch_function_overrides import check_modes, is_asked
from smelt.capture.semantics.values.displayed_names import use_names
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.reasons import DEBUGGER, DISABLED, GRAPH_BREAK_REQUESTED, RANDOM_STATE, SIDE_EFFECT_IO, Reason
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_numbers import NUMBERS

# CO_COROUTINE, CO_ITERABLE_COROUTINE and CO_ASYNC_GENERATOR of `co_flags`
COROUTINE, ITERABLE_COROUTINE, ASYNC_GENERATOR = 0x80, 0x100, 0x200


def call_function(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs | None = None) -> object:
    """`fn(*args, **kwargs)`. Raises Unsupported where the function is refused, or marked as one to leave alone."""
    kwargs = kwargs if kwargs is not None else {}
    handler = handler_of(fn)
    if handler is not None and not is_asked(vm, fn, args, kwargs):
        check_modes(vm, fn)
        vm.frames.tail = None
        return handler(vm, args, kwargs)
    written = where_written(fn)
    if written in SUBSTITUTES:
        check_modes(vm, fn)
        fn = SUBSTITUTES[written]
    inlined = _compiled_by_torch(fn) if written[0].startswith("torch._dynamo.") else None
    if inlined is not None:
        return vm.call(inlined, args, kwargs)
    if fn in REFUSED:
        raise Unsupported(Reason(*REFUSED[fn]))
    if fn.__dict__:
        kept = _kept_from_torch_compile(fn)
        if kept is not None:
            return call_function(vm, kept, args, kwargs)
        _check_marks(fn)
        if "__smelt_is_compiling__" in fn.__dict__:
            return vm.is_compiling()
    if runs_natively(fn):
        return call_native_python(vm, fn, args, kwargs)
    if weakref.getweakrefcount(fn) and _is_allowed_in_graph(fn):
        return _call_allowed(vm, fn, args, kwargs)
    if is_never_entered(fn):
        kind = {"pdb": DEBUGGER, "bdb": DEBUGGER, "random": RANDOM_STATE}.get(fn.__module__, SIDE_EFFECT_IO)
        raise Unsupported(Reason(kind, f"{fn.__module__}.{fn.__qualname__}"))
    return interpret(vm, fn, args, kwargs)


def _compiled_by_torch(fn: FunctionType) -> object:
    """What torch's compiler was given, where `fn` is what it made of it: one compiler is enough."""
    written = where_written(fn)
    if written == ("torch._dynamo.external_utils", "wrap_dunder_call_ctx_manager.<locals>.inner"):
        held = dict(zip(fn.__code__.co_freevars, (cell.cell_contents for cell in fn.__closure__ or ())))
        only_set = type(held["self"]).__name__ == "DynamoConfigPatchProxy"  # options of torch's compiler
        return held["func"] if only_set else None
    made = written[0] == "torch._dynamo.eval_frame" and "_torchdynamo_inline" in fn.__dict__
    return fn.__dict__.get("_torchdynamo_orig_callable") if made else None


def _kept_from_torch_compile(fn: FunctionType) -> FunctionType | None:
    """What a function of `torch.optim` was before torch disabled it for its own compiler, as it does when it is used."""
    if "_torchdynamo_disable" not in fn.__dict__:
        return None
    original = fn.__dict__.get("_torchdynamo_orig_callable")
    own = type(original) is FunctionType and str(original.__globals__.get("__name__")).startswith(
        "torch.optim"
    )
    return original if own else None


def _check_marks(fn: FunctionType) -> None:
    """Raises Unsupported for a function that was disabled for compilers, or that asks for a graph break."""
    marks = fn.__dict__
    if marks.get("_torchdynamo_disable") or marks.get("__smelt_disable__"):
        raise Unsupported(Reason(DISABLED, fn.__qualname__))
    if marks.get("__smelt_graph_break__"):
        raise Unsupported(Reason(GRAPH_BREAK_REQUESTED, ""))


def _is_allowed_in_graph(fn: FunctionType) -> bool:
    """Whether `fn` is marked with `torch.compiler.allow_in_graph`: that leaves on it only what is to be done
    when it is gone."""
    for kept in (r.__callback__ for r in weakref.getweakrefs(fn)):
        at_end = kept.peek() if isinstance(kept, weakref.finalize) else None
        registered = None if at_end is None else at_end[1]  # may be a partial call, which has no name
        if getattr(registered, "__qualname__", None) == "allow_in_graph.<locals>.deregister":
            return True
    return False


def _call_allowed(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    """A function that its author says is one of its arguments alone. It is captured like any other; only where it cannot be,
    it is taken at its word, and runs natively on the fakes."""
    if vm.disclosed.trusts_marks and all(map(_is_plain, (*args, *kwargs.values()))):
        vm.frames.tail = None
        vm.env.facts.use_function(fn)
        return run_native(vm, fn, args, kwargs)
    try:
        vm.disclosed.in_marked += 1
        result = interpret(vm, fn, args, kwargs)
    except Unsupported:
        raise
    except Exception:
        vm.disclosed.in_marked -= 1
        raise
    vm.disclosed.in_marked -= 1
    return result


def _is_plain(value: object) -> bool:
    """Whether `value` is what such a function may be given: tensors, constants, and lists and tuples of them."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, cast("list[object]", value)))
    return type(value) is FakeTensor or type(value) in NUMBERS or is_constant(value)


def interpret(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    """Runs a Python function in the machine, whatever the tables of native functions say of it."""
    vm.env.facts.use_function(fn)
    code = vm.decode(fn.__code__)
    if code.flags & ASYNC_GENERATOR:
        raise unsupported(f"{fn.__qualname__} is asynchronous")
    try:
        slots = bind(vm, fn, code, args, kwargs)
    except TypeError:  # which names the function
        use_names(vm, fn)
        raise
    return vm.run(vm.direct(Frame(code, fn, slots)))
