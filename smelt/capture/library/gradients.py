"""What autograd keeps with tensors and does through Python: custom functions, checkpoints, hooks, `.grad`.

At the torch level a custom `autograd.Function` and a checkpoint are one opaque call each: the compiled graph calls the
user's code for real, so that its forward and backward are autograd's own. The trace runs that code on fakes, so that what
it reads is guarded. It may change nothing outside: an effect is replayed after the graph, when the call has happened.

Hooks act when gradients flow, so registering one is an effect that is replayed after the graph.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.function import BackwardCFunction, FunctionCtx

from smelt.capture.base.handlers import TENSOR_METHODS, TENSOR_SETTERS, Handler, function, unsupported
from smelt.capture.base.values import (
    CONTAINER_BASES,
    LEAF_TYPES,
    NULL,
    FunctionType,
    MethodType,
    instance_dict,
    is_identity,
    items_of,
)
from smelt.capture.machine.vm import VM
from smelt.capture.outside import contents, wrapping
from smelt.capture.outside.effects import Call
from smelt.capture.protocol import attributes, callbacks, calls, cells
from smelt.capture.rebuilding.constants import stands_for_itself
from smelt.capture.rebuilding.kind import Kind
from smelt.capture.rebuilding.kind import unsupported as cannot_rebuild
from smelt.capture.rebuilding.kinds import KINDS
from smelt.capture.rebuilding.reach import collect_fakes, reach
from smelt.errors import Unsupported
from smelt.graph import torch_settings
from smelt.reasons import UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT, Reason
from smelt.trace.custom_functions import CustomFunctions
from smelt.trace.fake import FakeTensor
from smelt.trace.not_differentiable import refuse
from smelt.trace.opaque import OpaqueCall
from smelt.trace.outputs import read_by

_Function = torch.autograd.Function


@contextmanager
def _natively(vm: VM, function: Any) -> Iterator[None]:
    """A window does not hand `function` back to the VM."""
    before, vm.frames.natively = vm.frames.natively, function
    try:
        yield
    finally:
        vm.frames.natively = before


# ------------------------------------------------------------------------------------------- opaque calls


def _opaque(vm: VM, function: Callable[..., Any], args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
    """One torch-level call of `function`; `run` does on fakes what it does."""
    if vm.contexts.tokens or any(type(e) is not Call for e in vm.outside.log.effects()):
        raise unsupported(f"{_name(function)} after a change of an outside object", UNSUPPORTED_EFFECT)
    for value in (*args, *kwargs.values()):
        _hold(vm, value)
    target = OpaqueCall(function, args, kwargs, lambda f: _is_fresh(vm, f))
    before = vm.outside.log.changed
    out = vm.trace.call_recorder.run_opaque(target, run)
    if vm.outside.log.changed != before:
        raise unsupported(f"{_name(function)} changes an outside object", UNSUPPORTED_EFFECT)
    return out


def _name(target: Any) -> str:
    return str(getattr(target, "__qualname__", type(target).__qualname__))


def _is_fresh(vm: VM, made: FunctionType | types.CellType) -> bool:
    return id(made) not in vm.outside.origins


def _hold(vm: VM, value: Any, depth: int = 0) -> None:
    """The graph is going to hold an argument of an opaque call: guards which object it is. Raises Unsupported for what
    the trace made, unless it is made anew at each call."""
    kind = type(value)
    if kind is FakeTensor or kind in LEAF_TYPES:
        return
    if kind is FunctionType and _is_fresh(vm, value):
        _hold_function(vm, value, depth)
    elif id(value) in vm.outside.origins and kind not in (list, tuple, dict):
        vm.outside.facts.use_identity(value)
    elif is_identity(value):
        if isinstance(value, type) and vm.outside.origins.is_made_class(value):
            raise unsupported(f"the class {value.__qualname__} made inside the function", UNSUPPORTED_OBJECT)
    elif kind in _PARTS:
        for part in _PARTS[kind](value):
            _hold(vm, part, depth)
    else:
        raise unsupported(
            f"a {kind.__qualname__} made inside the function is held by a graph", UNSUPPORTED_OBJECT
        )


_PARTS: dict[type, Callable[[Any], Sequence[Any]]] = {
    list: lambda x: x,
    tuple: lambda x: x,
    dict: lambda x: (*x, *x.values()),
    functools.partial: lambda x: (x.func, *x.args, *x.keywords.values()),
    MethodType: lambda x: (x.__func__, x.__self__),
}


def _hold_function(vm: VM, made: FunctionType, depth: int) -> None:
    """A function that the trace made. Its variables must stay as they are now."""
    written = {
        i.argval for i in dis.get_instructions(made.__code__) if i.opname in ("STORE_DEREF", "DELETE_DEREF")
    }
    if depth > _DEPTH or not written.isdisjoint(made.__code__.co_freevars):
        raise unsupported(
            "a function that a graph holds refers to itself or sets a variable", UNSUPPORTED_OBJECT
        )
    for cell in made.__closure__ or ():
        if not _is_fresh(vm, cell) and not cells.cell_written(vm, cell) and cells.holds_value(vm, cell):
            _hold(vm, cells.read_held_cell(vm, cell), depth + 1)
            continue
        held = _contents(cell)
        if held is NULL:
            raise unsupported("a function that a graph holds has an empty variable", UNSUPPORTED_OBJECT)
        _hold(vm, held, depth + 1)
        vm.held.cells.append((cell, held))
    for part in (*(made.__defaults__ or ()), *(made.__kwdefaults__ or {}).values()):
        _hold(vm, part, depth + 1)


_DEPTH = 8  # how deep functions that the trace made may refer to each other


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return NULL


# ----------------------------------------------------------------------------------------- autograd.Function


@function(vars(_Function)["apply"].__func__)
def _apply(vm: VM, args: Any, kwargs: Any) -> Any:
    """`Function.apply`: torch's own, whose calls of `forward` and `setup_context` come back to the VM."""
    cls, *rest = args
    vm.outside.facts.use_class(cls)
    if torch._C._are_functorch_transforms_active():
        raise unsupported(f"torch.autograd.Function {cls.__name__} inside a transform")
    if torch.autograd.function._is_setup_context_defined(cls.setup_context):
        forward = attributes.load_attr(vm, cls, "forward")
        bound = inspect.signature(forward).bind(*rest, **kwargs)
        bound.apply_defaults()
        rest, kwargs = list(bound.args), bound.kwargs
    if not torch.is_grad_enabled() or not any(_requires_grad(v) for v in rest):
        return _run_apply(vm, cls, rest, kwargs)
    if vm.outside.origins.is_made_class(cls):
        raise unsupported(f"torch.autograd.Function {cls.__name__}, which was made inside the function")
    if vm.trace.autograd.custom is None:
        vm.trace.autograd.custom = CustomFunctions(lambda run: callbacks.in_window(vm, run, ()))
    return _opaque(vm, cls.apply, rest, kwargs, lambda: _run_apply(vm, cls, rest, kwargs))


def _requires_grad(value: Any) -> bool:
    return type(value) is FakeTensor and value.requires_grad


def _run_apply(vm: VM, cls: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    apply = super(_Function, cls).apply
    args = [contents.view(vm.outside, a) for a in args]
    return wrapping.fake(
        vm.outside,
        callbacks.in_window(vm, apply, args, {k: contents.view(vm.outside, v) for k, v in kwargs.items()}),
    )


@function(FunctionCtx.set_materialize_grads)
def _materialize(vm: VM, args: Any, kwargs: Any) -> None:
    if vm.trace.autograd.custom is not None and not vm.truth([*args, *kwargs.values()][1]):
        vm.trace.autograd.custom.takes_none.add(id(args[0]))
    FunctionCtx.set_materialize_grads(*args, **kwargs)


# ---- their backwards, while the joint graph is recorded


def record_backward(vm: VM, roots: Sequence[Any]) -> None:
    """Where custom functions were applied, the backward is recorded now: what its Python code reads is as the program has
    left it, and can still be guarded. It may not change what the frame leaves behind, which `roots` lead to."""
    trace, log = vm.trace, vm.outside.log
    if trace.autograd.custom is None or not trace.autograd.wants_joint:
        return
    before, settings = _held(vm, roots), torch_settings.read()
    log.closed = "the backward of a custom autograd.Function changes an outside object"
    vm.running = True
    try:
        trace.record_backward(collect_fakes(roots, vm.outside.origins.of))
    finally:
        vm.running, log.closed = False, ""
    if torch_settings.read() != settings or vm.contexts.entered:
        raise refuse("the backward of a custom autograd.Function changes a setting")
    if _held(vm, roots) != before:
        raise refuse("the backward of a custom autograd.Function changes an object that is returned")


def _held(vm: VM, roots: Sequence[Any]) -> list[Any]:
    """What the objects hold that the program has made and leaves behind."""
    found = reach(roots, vm.outside.origins.of)
    made = [(x, found.kinds[id(x)]) for x in found.alive if id(x) in found.kinds]
    return [[p if stands_for_itself(p) else id(p) for p in (*k.needs(x), *k.holds(x))] for x, k in made]


@function(BackwardCFunction.apply)
def _call_backward(vm: VM, args: Any, kwargs: Any) -> Any:
    """Autograd's engine calls the backward of a custom function."""
    ctx, *tangents = args
    user = functools.partial(callbacks.in_window, vm, _user_backward(ctx._forward_cls), args)
    trace = vm.trace
    if not trace.backward.is_recorded:
        return user()
    with trace.backward.user_backward(ctx._forward_cls.__name__) as call:
        before = _contents_of(ctx)
        given = user()
        if not _contents_of(ctx).items() <= before.items():  # it may let go of what it has read
            raise unsupported(f"the backward of {call.name} changes its ctx", UNSUPPORTED_EFFECT)
        results = given if type(given) is tuple else (given,)
        wanted = zip(results, ctx.needs_input_grad)
        call.gives = tuple(g for g, needs in wanted if needs and type(g) is FakeTensor)
        assert trace.autograd.custom is not None
        call.takes_none = len(tangents) > 1 and id(ctx) in trace.autograd.custom.takes_none
    return given


def _user_backward(cls: Any) -> Callable[..., Any]:
    """What the user wrote, under one of two names. As in `BackwardCFunction.apply`."""
    if cls.backward is not _Function.backward and cls.vjp is not _Function.vjp:
        raise RuntimeError(
            "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only implement one of "
            "them."
        )
    given: Callable[..., Any] = cls.backward if cls.vjp is _Function.vjp else cls.vjp
    return given


if hasattr(BackwardCFunction, "apply_boxed"):  # torch 2.11 has none

    @function(BackwardCFunction.apply_boxed)
    def _call_boxed_backward(vm: VM, args: Any, kwargs: Any) -> Any:
        raise unsupported("a torch.autograd.Function with boxed_grads_call")


def _contents_of(ctx: Any) -> dict[str, Any]:
    """Ids of what the attributes hold, with the contents of containers. None is left out."""
    held = {name: value for name, value in (instance_dict(ctx) or {}).items() if value is not None}
    return {
        name: (
            id(value),
            [id(part) for part in _parts_of(value)] if isinstance(value, CONTAINER_BASES) else [],
        )
        for name, value in held.items()
    }


def _parts_of(container: Any) -> list[Any]:
    items = items_of(container)
    return [part for pair in items for part in pair] if isinstance(container, dict) else items


# ----------------------------------------------------------------------------------------------- checkpoints

_CHECKPOINT = torch.utils.checkpoint.checkpoint


class _Reentrant(_Function):
    """What a reentrant checkpoint is to autograd, on fakes."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[], Any], *args: Any) -> Any:  # type: ignore[override]
        return run()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise Unsupported(Reason(UNSUPPORTED_OBJECT, "a backward through a reentrant checkpoint"))


@function(_CHECKPOINT)
def _checkpoint(vm: VM, args: Any, kwargs: Any) -> Any:
    call = inspect.signature(_CHECKPOINT).bind(*args, **kwargs)
    call.apply_defaults()
    given = call.arguments
    target, reentrant, more = given["function"], given["use_reentrant"], dict(given["kwargs"])
    more.pop("preserve_rng_state", None)
    if (
        reentrant is None
        or given["debug"]
        or given["context_fn"] is not torch.utils.checkpoint.noop_context_fn
    ):
        raise unsupported("torch.utils.checkpoint with these options")
    if reentrant and more:
        raise ValueError("Unexpected keyword arguments: " + ",".join(more))
    inputs = given["args"]
    if not torch.is_grad_enabled():
        return vm.call(target, inputs, more)

    def run() -> Any:
        return vm.call(target, inputs, more)

    if not reentrant:
        return _opaque(vm, _CHECKPOINT, args, kwargs, run)
    return _opaque(vm, _CHECKPOINT, args, kwargs, lambda: _Reentrant.apply(run, *inputs))  # type: ignore[no-untyped-call]


# ----------------------------------------------------------------------------------------------- parameters


def make_parameter(vm: VM, data: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """`nn.Parameter(data, requires_grad)`: a leaf, on the data's memory."""

    def run() -> torch.Tensor:
        made = data.detach().requires_grad_(requires_grad)
        made._is_param = True  # type: ignore[attr-defined]
        return made

    if vm.trace.numbers.symbols is not None:
        return run()
    given: FakeTensor = vm.trace.call_recorder.run_opaque(
        OpaqueCall(nn.Parameter, (data, requires_grad), {}, lambda f: False), run
    )
    return given


# ---------------------------------------------------------------------------------------------------- grad


@function(torch.autograd.grad)
def _grad(vm: VM, args: Any, kwargs: Any) -> Any:
    """Gradients of what the trace computed, whose operators are recorded."""
    if kwargs.get("is_grads_batched") or torch._C._are_functorch_transforms_active():
        raise unsupported("torch.autograd.grad with is_grads_batched or inside a transform")
    hooked = any(call.target in _REGISTER.values() for call in vm.outside.log.calls)
    if hooked and _meets_hooks(vm, args[0] if args else kwargs.get("outputs")):
        if vm.trace.autograd.wants_joint and kwargs.get("create_graph"):
            raise refuse("torch.autograd.grad(create_graph=True) goes through what the graph before it gives")
        raise unsupported("torch.autograd.grad after a hook was registered")
    for fake in list(vm.trace.inputs):
        if fake.requires_grad:
            _check_leaf(vm, fake)
    args = [contents.view(vm.outside, a) for a in args]
    kwargs = {k: contents.view(vm.outside, v) for k, v in kwargs.items()}
    with _natively(vm, torch.autograd.grad):
        return callbacks.in_window(vm, torch.autograd.grad, args, kwargs)


def _meets_hooks(vm: VM, outputs: Any) -> bool:
    """Whether gradients of `outputs` flow through a tensor that a hook was registered on."""
    ends = [outputs] if type(outputs) is FakeTensor else outputs
    if not isinstance(ends, (list, tuple)) or any(type(end) is not FakeTensor for end in ends):
        return True
    met = read_by({end.grad_fn for end in ends if end.grad_fn is not None})
    met |= {(end.grad_fn, end.output_nr) for end in ends}
    leaves = [*ends, *(getattr(node, "variable", None) for node, _ in met)]
    return any(
        any(tensor is leaf for leaf in leaves) if grad_fn is None else (grad_fn, tensor.output_nr) in met
        for tensor, grad_fn in vm.held.hooked
    )


def _check_leaf(vm: VM, fake: FakeTensor) -> None:
    """Gradients must not lead out of the trace: to what another function computed, or to hooks."""
    real = vm.trace.real(fake)
    assert real is not None
    if fake.device.type != "cpu" or not real.is_leaf or real._backward_hooks:
        raise unsupported("torch.autograd.grad through a tensor computed outside, or one with hooks")
    for name in ("is_leaf", "_backward_hooks"):
        attributes.tensor_member(vm, fake, real, name)


# --------------------------------------------------------------------------------- forward-mode differentiation


def _switch_level(method: Any, function_: Callable[[], Any]) -> None:
    @function(method)
    def handler(vm: VM, args: Any, kwargs: Any) -> Any:
        with _natively(vm, method):
            result = calls.call_native_python(vm, method, args, kwargs)
        vm.trace.call_recorder.switch_level(function_)
        return result


_switch_level(forward_ad.dual_level.__enter__, forward_ad.enter_dual_level)
_switch_level(forward_ad.dual_level.__exit__, forward_ad.exit_dual_level)


_leave: Any = torch.inference_mode.__exit__


@function(_leave)
def _leave_inference_mode(vm: VM, args: Any, kwargs: Any) -> Any:
    """Leaving puts back the dispatcher's state from when it was entered, which must not be a state outside of the trace."""
    if id(args[0]) in vm.outside.origins:
        raise unsupported("an inference mode from outside is left")
    with _natively(vm, _leave):
        return calls.call_native_python(vm, _leave, args, kwargs)


# --------------------------------------------------------------------------------------------------- hooks


class HookHandle:
    """What registering a hook gives during capture: `remove` forgets the effect."""

    __slots__ = ("_calls", "_registered")

    def __init__(self, calls: list[Call], registered: Call) -> None:
        self._calls = calls
        self._registered = registered

    def remove(self) -> None:
        self._calls[:] = [c for c in self._calls if c is not self._registered]

    def __getattr__(self, name: str) -> Any:
        raise unsupported(f"{name} of the handle of a hook")

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def _cannot_leave(x: Any) -> Any:
    raise cannot_rebuild(x, "the handle of a hook")


KINDS[HookHandle] = Kind(_cannot_leave, lambda x, text: _cannot_leave(x))
_REGISTER: dict[str, Any] = {
    "register_hook": torch.Tensor.register_hook,
    "register_post_accumulate_grad_hook": torch.Tensor.register_post_accumulate_grad_hook,
}


def _register(name: str) -> Handler:
    method = _REGISTER[name]

    def handler(vm: VM, args: Any, kwargs: Any) -> Any:
        call = inspect.signature(method).bind(*args, **kwargs)
        tensor, hook = call.args
        if not tensor.requires_grad:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        if name != "register_hook" and tensor.grad_fn is not None:
            raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
        registered = Call(method, (tensor, hook))
        vm.outside.log.call(registered)
        vm.held.hooked.append((tensor, tensor.grad_fn))
        vm.trace.autograd.hooked.append(tensor)
        return HookHandle(vm.outside.log.calls, registered)

    return handler


for _hook_name, _hook_method in _REGISTER.items():
    function(_hook_method)(_register(_hook_name))


# --------------------------------------------------------------------------------------------- state of tensors


def set_requires_grad(vm: VM, tensor: FakeTensor, requires_grad: Any = True) -> torch.Tensor:
    """`tensor.requires_grad_(requires_grad)`, which the torch-level graph repeats."""
    wanted = vm.truth(requires_grad)
    if vm.trace.is_input(tensor) and wanted == tensor.requires_grad:
        return tensor
    return tensor.requires_grad_(wanted)


TENSOR_METHODS["requires_grad_"] = set_requires_grad


def set_grad(vm: VM, tensor: FakeTensor, value: Any) -> None:
    """`tensor.grad = value` of a tensor from outside: an effect, since nothing that is captured reads it but reads of
    the attribute."""
    if not vm.trace.is_input(tensor):
        raise unsupported("the grad of a computed tensor is set", UNSUPPORTED_EFFECT)
    if value is not None and type(value) is not FakeTensor:
        raise TypeError(
            f"assigned grad expected to be a Tensor or None but got grad of type {type(value).__name__!r}"
        )
    with vm.trace.paused(), torch._C._DisableTorchDispatch():
        tensor.grad = value
    vm.outside.log.set_tensor_attribute(tensor, "grad", value)


def set_data(vm: VM, tensor: FakeTensor, value: Any) -> None:
    raise unsupported("the data of a tensor is set", UNSUPPORTED_EFFECT)


def set_flag(vm: VM, tensor: FakeTensor, value: Any) -> None:
    set_requires_grad(vm, tensor, value)


TENSOR_SETTERS.update(grad=set_grad, data=set_data, requires_grad=set_flag)


def check_history(fakes: Iterable[FakeTensor]) -> None:
    """Raises Unsupported for a tensor whose gradients lead through a custom function of torch's own: a mode of torch that
    runs natively has applied it, and the graph holds only the operators of its forward."""
    todo: list[Any] = [f.grad_fn for f in fakes if f.requires_grad]
    seen: set[Any] = {None}
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        applied = getattr(type(node), "_forward_cls", None)
        if applied is not None and applied.__module__.startswith("torch."):
            raise unsupported(f"torch.autograd.Function {applied.__name__}, applied by a mode of torch")
        todo += [following for following, _ in node.next_functions]


def check_end(vm: VM) -> None:
    """Raises Unsupported where something changed after it was to stay: what a hook is on, what a held function refers to."""
    for tensor, grad_fn in vm.held.hooked:
        if tensor.grad_fn is not grad_fn:
            raise unsupported("a tensor is written in place after a hook was registered", UNSUPPORTED_EFFECT)
    for cell, held in vm.held.cells:
        if _contents(cell) is not held:
            raise unsupported(
                "a variable of a function that a graph holds is changed later", UNSUPPORTED_EFFECT
            )
