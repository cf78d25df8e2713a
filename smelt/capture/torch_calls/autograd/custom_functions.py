"""Custom functions (`torch.autograd.Function`): `apply`, and their backwards in the recording of the joint graph."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
import torch.utils.checkpoint
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.autograd.graph import Node

from smelt._native import isinstance
from smelt.capture.base.call_handlers import CLASS_METHODS, FUNCTIONS, Args, Kwargs, function, unsupported
from smelt.capture.base.value_kinds import CONTAINER_BASES, MISSING, instance_dict, items_of
from smelt.capture.environment import wrap_values
from smelt.capture.reconstruction.reconstruction_order import (
    collect_fakes,
    contents_of_created,
    find_reachable,
)
from smelt.capture.semantics import attributes
from smelt.capture.semantics.attributes import instance_attributes
from smelt.capture.semantics.calls import native_callbacks
from smelt.capture.torch_calls.autograd.opaque_calls import run_opaque
from smelt.capture.vm.vm import VM
from smelt.graph import torch_settings
from smelt.reasons import UNSUPPORTED_EFFECT
from smelt.torch_private import are_transforms_active, is_setup_context_defined
from smelt.tracing.backward.custom_function_backward import CustomFunctions
from smelt.tracing.backward.not_differentiable import refuse
from smelt.tracing.fake.fake_tensor import FakeTensor

_Function = torch.autograd.Function
_get_apply = operator.attrgetter("apply")  # of the base class in C, where torch's stubs have none


def _apply(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """`Function.apply`: torch's own, whose calls of `forward` and `setup_context` return to the VM."""
    cls, rest = cast(type[_Function], args[0]), args[1:]
    vm.env.facts.use_class(cls)
    if are_transforms_active():
        raise unsupported(f"torch.autograd.Function {cls.__name__} inside a transform")
    # Torch would call the unmodified methods.
    if any(vm.env.log.has_written_any_name(base) for base in cls.__mro__):
        raise unsupported(f"torch.autograd.Function {cls.__name__}, which was changed", UNSUPPORTED_EFFECT)
    if is_setup_context_defined(cls.setup_context):
        forward = cast(Callable[..., object], attributes.load_attr(vm, cls, "forward"))
        bound = inspect.signature(forward).bind(*rest, **kwargs)
        bound.apply_defaults()
        rest, kwargs = list(bound.args), bound.kwargs
    if not torch.is_grad_enabled() or not any(type(v) is FakeTensor and v.requires_grad for v in rest):
        return _run_apply(vm, cls, rest, kwargs)
    if vm.env.sources.is_created_class(cls):
        raise unsupported(f"torch.autograd.Function {cls.__name__}, which was created inside the function")
    if vm.trace.autograd.custom is None:
        vm.trace.autograd.custom = CustomFunctions(lambda run: native_callbacks.call_in_window(vm, run, ()))
    # Not `cls.apply`: the program may override it, and this call may be from the override.
    apply = _APPLY.__get__(None, cls)
    return run_opaque(vm, apply, rest, kwargs, lambda: _run_apply(vm, cls, rest, kwargs))


_APPLY = vars(_Function)["apply"]
if isinstance(_APPLY, classmethod):
    FUNCTIONS[_APPLY.__func__] = _apply
else:  # since torch 2.14
    CLASS_METHODS[_APPLY.__objclass__, "apply"] = _apply


def _run_apply(vm: VM, cls: type[_Function], args: Args, kwargs: Kwargs) -> object:
    apply = _get_apply(super(_Function, cls))
    # `apply` passes containers on to `forward`, which the VM interprets
    return wrap_values.to_fake(vm.env, native_callbacks.call_in_window(vm, apply, args, kwargs))


_set_materialize: Callable[..., None] = FunctionCtx.set_materialize_grads


@function(_set_materialize)
def _materialize(vm: VM, args: Args, kwargs: Kwargs) -> None:
    if vm.trace.autograd.custom is not None and not vm.truth([*args, *kwargs.values()][1]):
        vm.trace.autograd.custom.accepts_none.add(id(args[0]))
    _set_materialize(*args, **kwargs)


def _note_saved(vm: VM, ctx: object) -> None:
    if vm.trace.autograd.custom is not None:
        vm.trace.autograd.custom.reads_saved.add(ctx)


def _check_saved(vm: VM, ctx: object) -> None:
    """As `_note_saved`. Guards that no hook of the program unpacks the tensors that a ctx of the environment has saved: each
    read would call it. A second read creates new tensors, so it is refused."""
    _note_saved(vm, ctx)
    source = vm.env.sources.get(id(ctx))
    if source is None:
        return
    memo = vm.env.memo.reads_of(ctx)
    if "_raw_saved_tensors" in memo:
        raise unsupported("the saved tensors of a ctx of the environment are read again")
    raw = memo["_raw_saved_tensors"] = cast("tuple[Any, ...]", ctx._raw_saved_tensors)  # type: ignore[attr-defined]
    packed = source.child("member", "_raw_saved_tensors")
    vm.env.facts.guard("len", packed, len(raw))
    for i, saved in enumerate(raw):
        if getattr(saved, "unpack_hook", MISSING) is not None:
            raise unsupported("a hook unpacks a saved tensor")
        vm.env.facts.guard("id", packed.child("item", i).child("member", "unpack_hook"), None)


for _saved, _effect in {
    "saved_tensors": _check_saved,
    "saved_variables": _check_saved,
    "_raw_saved_tensors": _note_saved,
}.items():
    instance_attributes.READ_EFFECTS[getattr(BackwardCFunction, _saved)] = _effect


# ---- backwards of custom functions, while the joint graph is recorded


def record_backward(vm: VM, roots: Sequence[object]) -> None:
    """Record the backward if custom functions or wrapper subclasses take part: their Python code reads the state that the
    program left, which can still be guarded. Raises NotDifferentiable if the backward mutates an object that is reachable
    from `roots`."""
    trace, log = vm.trace, vm.env.log
    wrappers = trace.wrapper_gradients
    if not trace.autograd.wants_joint or (trace.autograd.custom is None and not wrappers.is_used):
        return
    for x in find_reachable(roots, vm.env.sources.find).alive if wrappers.is_used else ():
        if wrappers.is_result(x) and id(x) not in vm.env.sources:
            wrappers.leave(cast(torch.Tensor, x))
    before, settings = contents_of_created(vm.env.sources.find, roots), torch_settings.read()
    log.refusal = (
        "the backward of a custom autograd.Function or wrapper subclass changes an environment object"
    )
    vm.running = True
    try:
        trace.record_backward(collect_fakes(roots, vm.env.sources.find))
    finally:
        vm.running, log.refusal = False, ""
    if torch_settings.read() != settings or vm.contexts.entered:
        raise refuse("the backward of a custom autograd.Function changes a setting")
    if contents_of_created(vm.env.sources.find, roots) != before:
        raise refuse("the backward of a custom autograd.Function changes an object that is returned")


@function(BackwardCFunction.apply)
def _call_backward(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """Autograd's engine calls the backward of a custom function."""
    ctx, tangents = cast(BackwardCFunction, args[0]), args[1:]
    applied = _forward_class(ctx)
    assert applied is not None
    user = functools.partial(native_callbacks.call_in_window, vm, _user_backward(applied), args)
    trace = vm.trace
    if not trace.backward.is_recorded:
        return user()
    with trace.backward.user_backward(applied.__name__) as call:
        before = _contents_of(ctx)
        returned = user()
        if not _contents_of(ctx).items() <= before.items():  # a backward may delete what it has read
            raise unsupported(f"the backward of {call.name} changes its ctx", UNSUPPORTED_EFFECT)
        results = returned if type(returned) is tuple else (returned,)
        wanted = zip(results, ctx.needs_input_grad)
        call.gradients = tuple(g for g, needs in wanted if needs and type(g) is FakeTensor)
        assert trace.autograd.custom is not None
        call.accepts_none = len(tangents) > 1 and id(ctx) in trace.autograd.custom.accepts_none
    return returned


def _user_backward(cls: type[_Function]) -> Callable[..., object]:
    """The user's backward, under one of its two names, as `BackwardCFunction.apply` selects it."""
    if cls.backward is not _Function.backward and cls.vjp is not _Function.vjp:
        raise RuntimeError(
            "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only implement one of "
            "them."
        )
    backward: Callable[..., object] = cls.backward if cls.vjp is _Function.vjp else cls.vjp
    return backward


if hasattr(BackwardCFunction, "apply_boxed"):  # torch 2.11 has none

    @function(BackwardCFunction.apply_boxed)
    def _call_boxed_backward(vm: VM, args: Args, kwargs: Kwargs) -> object:
        raise unsupported("a torch.autograd.Function with boxed_grads_call")


def _forward_class(node: object) -> type[_Function] | None:
    """The custom function whose backward a node of autograd's graph is; None for another node."""
    return getattr(type(node), "_forward_cls", None)


def _contents_of(ctx: object) -> dict[str, object]:
    """The ids of the values of the attributes and of their items, without None."""
    held = {name: value for name, value in (instance_dict(ctx) or {}).items() if value is not None}
    return {
        name: (
            id(value),
            [id(item) for item in _elements(value)] if isinstance(value, CONTAINER_BASES) else [],
        )
        for name, value in held.items()
    }


def _elements(container: object) -> list[object]:
    items = items_of(container)
    return [element for pair in items for element in pair] if isinstance(container, dict) else items


def check_history(fakes: Iterable[FakeTensor]) -> None:
    """Raise Unsupported for a tensor whose history has a custom function of torch itself: a mode of torch that runs natively
    has applied it, and the graph has only the operators of its forward."""
    pending = [f.grad_fn for f in fakes if f.requires_grad]
    visited: set[Node | None] = {None}
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        applied = _forward_class(node)
        if applied is not None and applied.__module__.startswith("torch."):
            raise unsupported(f"torch.autograd.Function {applied.__name__}, applied by a mode of torch")
        pending += [following for following, _ in node.next_functions]
