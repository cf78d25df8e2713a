"""Objects whose deletion has an effect: finalizers, temporary directories, open files, callbacks of weak references.

Eager deletes what a variable holds when the variable is deleted, rebound, or its function ends. So a resume function also
takes such objects that it does not read, and runs eagerly where it drops one that its caller still holds.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, cast

import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.call_handlers import unsupported
from smelt.capture.base.type_lookup import type_find
from smelt.capture.base.value_kinds import (
    LEAF_TYPES,
    MISSING,
    NULL,
    instance_dict,
    is_constant,
    is_identity,
)
from smelt.capture.base.vm_frames import Coroutine, Frame, Generator
from smelt.capture.environment.mutation_log import slot_names
from smelt.capture.environment.overlay import read_slot
from smelt.capture.graph_breaks.continuation_stack import is_continuation_stack
from smelt.capture.graph_breaks.reachable_objects import reachable
from smelt.capture.vm.vm import VM
from smelt.errors import DropsObserved
from smelt.guards.source import Source, SourceKind
from smelt.reasons import UNSUPPORTED_EFFECT, Reason
from smelt.torch_private import DisableTorchFunction

_MAX_CHILDREN = 500  # of one object
# Objects that something else holds, or whose deletion has no visible effect.
_NOT_FOLLOWED = (
    torch.nn.Module, torch.optim.Optimizer, types.ModuleType, types.CodeType, type, Generator, types.AsyncGeneratorType,
)  # fmt: skip
_FILES = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
_Children = Callable[[Any], Iterable[Any]]
_ITERATORS: tuple[type, ...] = (type(iter([])), type(iter(())), enumerate, zip, map, filter)
_HOLDERS: tuple[tuple[type, _Children], ...] = (
    (dict, dict.values),
    (list, list.__iter__),
    (tuple, tuple.__iter__),
    (set, set.__iter__),
    (collections.deque, collections.deque.__iter__),
    (types.MethodType, lambda x: (x.__self__,)),
    (types.FunctionType, lambda x: _in_function(x)),
    (types.GeneratorType, lambda x: _in_frame(x.gi_frame)),
    (functools.partial, lambda x: (x.func, *x.args, *x.keywords.values())),
    *((iterator, lambda x: x.__reduce__()[1]) for iterator in _ITERATORS),
    (torch.Tensor, lambda x: _of_tensor(x)),
)  # fmt: skip


def _is_local(function: types.FunctionType) -> bool:
    """Whether `function` is made by another one. A module or a class holds those that are not."""
    return "<locals>" in function.__qualname__


def _in_function(function: types.FunctionType) -> Iterable[object]:
    if not _is_local(function):
        return ()
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return (*_in_cells(function.__closure__), *defaults)


def _in_cells(cells: Iterable[types.CellType] | None) -> Iterator[object]:
    for cell in cells or ():
        with contextlib.suppress(ValueError):  # empty
            yield cell.cell_contents


def _in_frame(frame: types.FrameType | None) -> Iterable[object]:
    return () if frame is None else frame.f_locals.values()


def _of_tensor(tensor: torch.Tensor) -> Iterator[object]:
    """The base and the hooks of a tensor, and what its autograd node holds: metadata, attributes of a function's `ctx`."""
    node = None
    with DisableTorchFunction():
        with contextlib.suppress(RuntimeError):  # a view that autograd has given up on
            node = None if tensor.is_leaf else tensor.grad_fn
        base, hooks = tensor._base, cast("dict[int, object] | None", tensor._backward_hooks)
    yield from (base, *(hooks or {}).values())
    if node is not None:
        yield from (
            *cast("dict[object, object]", node.metadata).values(),
            *(instance_dict(node) or {}).values(),
        )


def has_finalizer(value: object) -> bool:
    """Whether deleting `value`, with what it holds, may have an effect."""
    return any(map(_has_own_finalizer, held_by(value)))


def _has_own_finalizer(value: object) -> bool:
    kind = type(value)
    if kind is Coroutine:
        return True
    if kind in LEAF_TYPES or isinstance(value, _NOT_FOLLOWED):
        return False
    if is_identity(value) and not (isinstance(value, types.FunctionType) and _is_local(value)):
        return False
    if kind is types.GeneratorType:
        return _calls_back(value)
    if kind in _FILES:
        return not value.closed  # type: ignore[attr-defined]
    return type_find(kind, "__del__") is not MISSING or _calls_back(value)


def held_by(value: object) -> Iterator[object]:
    """`value` and what it holds, nearest first."""
    return reachable((value,), _children)


def check_dropped_argument(vm: VM, frame: Frame, value: object, holder: object = None) -> None:
    """Raise Unsupported where a resume function drops an argument with a finalizer, or what one held that the function has
    dropped: its caller holds the argument until the function returns. `holder`: what may hold it from now on."""
    if value is NULL or frame.code.original is None or frame.pc <= frame.prologue:
        return
    source = vm.env.sources.get(id(value))
    if (
        source is None
        or source.root.kind != "arg"
        or not has_finalizer(value)
        or (source.base is not None and _is_in_variables(vm, source.root, value))
        or any(x is value for x in held_by(holder))
    ):
        return
    _refuse_drop(value)


def _is_in_variables(vm: VM, argument: Source, value: object) -> bool:
    """Whether the user's frames still hold the `argument`, or `value` twice: in the variable that drops it and elsewhere."""
    found, frame = 0, vm.frame
    while frame is not None:
        if not is_continuation_stack(frame.function):
            variables = (*map(frame.locals.__getitem__, frame.slots), *frame.stack)
            if any(vm.env.sources.get(id(x)) is argument for x in variables):
                return True
            found += sum(x is value or any(y is value for y in held_by(x)) for x in variables)
        frame = frame.parent
    return found > 1


def check_overwritten(vm: VM, roots: Iterable[object]) -> None:
    """Raise Unsupported if the trace took an object with a finalizer from where the environment held it, unless `roots`, the
    values that leave the capture, hold it: the compiled frame would drop it at its end. An entry would hold a key or an
    element of a set, so the call runs eagerly."""
    changed = [p for p in vm.env.log.overwritten() if p.before is not p.now and p.before is not MISSING]
    root, sources = vm.frames.root, vm.env.sources
    # only the caller holds the arguments
    resumes = root is not None and (root.code.original is not None or is_continuation_stack(root.function))
    replaced = vm.env.log.replaced if resumes else ()
    stored = (v for k, v in vm.env.wrapped.objects.items() if k in replaced and sources[k].kind == "arg")
    taken = [v for v in (*(p.before for p in changed), *stored) if has_finalizer(v)]
    if not taken:
        return
    left = {id(x) for x in reachable(roots, lambda x: () if id(x) in vm.env.sources else _children(x))}
    for value in taken:
        if any(p.before is value and p.kind == "element" for p in changed):
            _refuse_drop(value)
        if id(value) not in left:
            raise DropsObserved(Reason(UNSUPPORTED_EFFECT, f"a {type(value).__qualname__} is dropped"))


def guard_overwritten(vm: VM) -> None:
    """Guard that the objects which the trace overwrote or deleted in the environment have no finalizers, if they have none
    now."""
    for item in vm.env.log.overwritten():
        source = vm.env.sources.get(id(item.owner))
        if source is None or item.kind not in _SOURCE_KINDS or not is_constant(item.name):
            continue
        if type(item.before) in LEAF_TYPES and vm.env.facts.is_type_guarded(
            source.child(_SOURCE_KINDS[item.kind], item.name)
        ):
            continue
        fact = (item.kind, item.name)
        if _native.drops_silently(item.owner, *fact):
            vm.env.facts.guard("drops_silently", source, fact, key=fact)


# The kinds of source of what was overwritten.
_SOURCE_KINDS: dict[str, SourceKind] = {
    "attribute": "attr", "slot": "member", "key": "item", "item": "item", "cell": "member"
}  # fmt: skip


def referenced_by_weakref(vm: VM) -> frozenset[int]:
    """The ids of objects with weak references that the trace may have taken from where the environment held them: variables
    hold them from now on."""
    taken = (p.before for p in vm.env.log.overwritten())
    return frozenset(id(x) for x in reachable(taken, _children) if weakref.getweakrefcount(x))


def _refuse_drop(value: object) -> NoReturn:
    error = unsupported(f"a {type(value).__qualname__} is dropped", UNSUPPORTED_EFFECT)
    error.breaks = False  # a resume function that runs eagerly releases its caller's arguments
    raise error


def check_temporaries(vm: VM, frame: Frame, target: int) -> None:
    """Raise Unsupported where a resume function continues at `target` with an argument on its stack that has a finalizer,
    and that an instruction soon takes from there: `TemporaryDirectory().name` deletes the directory. A file that is only
    read may close later, and what awaits a coroutine holds it."""
    for above, value in enumerate(reversed(frame.stack)):
        source = vm.env.sources.get(id(value))
        if source is None or source.kind != "arg" or not _is_dropped(frame, target, above):
            continue
        held = itertools.chain.from_iterable(map(held_by, frame.locals))
        exempt = _is_read_only(value) or isinstance(value, types.CoroutineType)
        if not exempt and has_finalizer(value) and not any(x is value for x in held):
            _refuse_drop(value)


def _is_read_only(value: object) -> bool:
    return type(value) in _FILES and not value.writable()  # type: ignore[attr-defined]


def _is_dropped(frame: Frame, at: int, above: int) -> bool:
    """Whether the code at `at`, up to a jump or an instruction that may hold it, takes a value from the stack. `above`: a
    lower bound of the number of values above it."""
    names, instructions = frame.code.names, frame.code.instructions
    for name, (_, argument) in zip(names[at:], instructions[at:]):
        if name in ("LOAD_ATTR", "LOAD_METHOD"):
            popped, pushed = 1, 1
        elif name.startswith(("LOAD_", "PUSH_")):
            popped, pushed = 0, 1
        elif name == "CALL":
            popped, pushed = argument + 2, 1
        elif name in _OPERANDS:
            popped, pushed = _OPERANDS[name], 1
        elif name not in _WITHOUT_OPERANDS:
            return False
        else:
            continue
        if popped > above:
            return True
        above += pushed - popped
    return False


# The operands of instructions that push one result, which does not hold them.
_OPERANDS = {
    "BINARY_OP": 2, "BINARY_SUBSCR": 2, "COMPARE_OP": 2, "CONTAINS_OP": 2, "IS_OP": 2, "UNARY_NOT": 1, "TO_BOOL": 1,
    "FORMAT_VALUE": 1, "FORMAT_SIMPLE": 1,
}  # fmt: skip
_WITHOUT_OPERANDS = ("NOP", "CACHE", "PRECALL", "RESUME", "NOT_TAKEN", "KW_NAMES")


def _calls_back(value: object) -> bool:
    """Whether a weak reference to `value` may have a callback. A proxy may: its attributes are those of `value`. Callbacks
    of torch and smelt show a program nothing. Those of weak tables do not count for tensors and functions (compiled ones,
    too), which libraries keep in such tables, and which mostly live on."""
    hidden = ("torch.", "smelt.", "weakref") if isinstance(value, _IN_TABLES) else ("torch.", "smelt.")
    return weakref.getweakrefcount(value) > 0 and any(
        type(reference) in weakref.ProxyTypes or _is_visible(reference.__callback__, hidden)
        for reference in weakref.getweakrefs(value)
    )


_IN_TABLES = (torch.Tensor, types.FunctionType, _native.Wrapped)


def _is_visible(callback: object, hidden: tuple[str, ...]) -> bool:
    module = callback.__module__ if type(callback) is types.FunctionType else ""
    return callback is not None and not str(module).startswith(hidden)


def _is_smelts(value: object) -> bool:
    """Whether `value` is one of capture's own objects, such as a symbolic number."""
    return str(type.__getattribute__(type(value), "__module__")).startswith("smelt.")


def _is_namespace(value: object) -> bool:
    """Whether `value` holds the globals of a module, which holds them in turn."""
    module = sys.modules.get(value.get("__name__", "")) if type(value) is dict else None
    return module is not None and vars(module) is value


def _children(value: object) -> Iterable[object]:
    if (
        type(value) in LEAF_TYPES
        or isinstance(value, _NOT_FOLLOWED)
        or _is_namespace(value)
        or _is_smelts(value)
    ):
        return ()
    held = next((children(value) for kind, children in _HOLDERS if isinstance(value, kind)), ())
    slots = (read_slot(value, name) for name in slot_names(type(value)))
    named = (instance_dict(value) or {}).values()
    return itertools.islice(
        itertools.chain(held, named, (x for x in slots if x is not MISSING)), _MAX_CHILDREN
    )
