"""Native calls whose results may differ between processes with equal guards: hashes and addresses, and library functions
that may read the machine or the environment. No guard checks these, because they cannot change within a process."""

from __future__ import annotations

import builtins
import functools
import types
from collections.abc import Callable, Sequence

from smelt._native import isinstance
from smelt.capture.base.native_functions import PURE_C_MODULES
from smelt.capture.base.value_kinds import LEAF_TYPES
from smelt.capture.environment.guard_facts import GuardFacts
from smelt.tracing.fake.fake_tensor import FakeTensor

# Modules of Python functions that compute from their arguments, and from what guards compare. Others (`platform`,
# `importlib`, `torch.cuda`) may read the machine.
_COMPUTING = (
    "torch.nn.functional", "torch.functional", "torch._tensor", "torch._VF", "torch._ops", "torch._jit_internal",
    "torch.amp.autocast_mode", "torch.autograd.grad_mode", "torch.overrides", "torch._refs", "torch._prims",
    "torch._prims_common", "torch.nn.modules.utils", "torch.nn.parameter", "torch.nn.init", "torch._decomp",
    "torch.nn.attention", "torch._linalg_utils", "torch.return_types", "torch",
    "abc", "collections", "dataclasses", "enum", "functools", "numbers", "types", "typing", "typing_extensions",
)  # fmt: skip
_UNREAD = frozenset({"_imp", "_opcode", "_symtable", "_weakref", "weakref"})
_SHOWING = frozenset(
    ("repr", "str", "format", "ascii", "__repr__", "__str__", "__format__", "__mod__", "join")
)
_PROCESS = frozenset(("hash", "id", "__hash__", "__sizeof__", "dir", "__dir__", "vars", "globals", "locals"))
# Names of functions whose result does not depend on the order of sets, unless it is a set.
_OF_SETS = frozenset((
    "contains", "__contains__", "isdisjoint", "issubset", "issuperset", "union", "intersection", "difference",
    "symmetric_difference", "and_", "or_", "xor", "sub", "eq", "ne", "lt", "le", "gt", "ge", "is_", "is_not", "not_",
    "truth",
))  # fmt: skip
_OF_FILES = (
    "getsource",
    "getfile",
    "getabsfile",
    "getmodule",
    "findsource",
    "getcomments",
    "getsourcefile",
    "getdoc",
)
_ORDERLESS = (len, bool, builtins.isinstance, type, set, frozenset, min, max, any, all, issubclass)


def note_native_call(facts: GuardFacts, fn: Callable[..., object], args: Sequence[object]) -> None:
    """Note in `facts` a dependence of `fn(*args)` on the process."""
    if facts.process_dependence is not None:
        return
    name = str(getattr(fn, "__name__", ""))
    if name in _PROCESS and not all(type(a) is int for a in args):
        facts.depend_on_process(f"the result of {name}")
    elif name in _SHOWING and not all(map(_has_stable_text, (*args, getattr(fn, "__self__", None)))):
        shown = next(a for a in (*args, getattr(fn, "__self__", None)) if not _has_stable_text(a))
        facts.depend_on_process(f"the text of a {type(shown).__qualname__}")
    elif (
        name not in _OF_SETS
        and not any(fn is known for known in _ORDERLESS)
        and not isinstance(getattr(fn, "__self__", None), (set, frozenset))
    ):
        if any(isinstance(a, (set, frozenset)) and len(a) > 1 for a in args):
            facts.depend_on_process(f"the order of a set, passed to {name}")
    if not _computes(fn):
        facts.depend_on_process(f"the result of {getattr(fn, '__module__', None)}.{name}")


def _has_stable_text(value: object, depth: int = 4) -> bool:
    if type(value) in LEAF_TYPES or isinstance(value, types.ModuleType):
        return True
    if isinstance(value, type):  # its name, which is guarded
        return type(value).__repr__ is type.__repr__
    if type(value) in (tuple, list, dict) and depth:
        items = (*value.keys(), *value.values()) if type(value) is dict else value  # type: ignore[misc, attr-defined]
        return all(_has_stable_text(item, depth - 1) for item in items)  # type: ignore[attr-defined]
    return False


def _computes(fn: object) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, types.MethodType):
        fn = fn.__func__
    if isinstance(fn, types.FunctionType):
        if fn.__globals__.get("__name__") == "inspect":  # what it reads of functions is guarded
            return not fn.__name__.startswith(_OF_FILES)
        return str(fn.__globals__.get("__name__")) in _COMPUTING or _is_own(fn.__globals__.get("__name__"))
    owner = getattr(fn, "__self__", None)
    if owner is not None and not isinstance(owner, (type, types.ModuleType)):
        cls: type = type(owner)
    else:
        cls = owner if isinstance(owner, type) else getattr(fn, "__objclass__", None) or type(fn)
    if cls is FakeTensor:
        return True
    modules = (getattr(fn, "__module__", None), cls.__module__, getattr(owner, "__name__", None))
    found = next((m for m in modules if isinstance(m, str)), "")
    return found in PURE_C_MODULES - _UNREAD or _is_computing_c_module(found) or _is_own(found)


def _is_computing_c_module(module: str) -> bool:
    return module == "torch" or module.startswith(("torch._C", "torch._VF", "torch._ops", "numpy"))


def _is_own(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == "smelt"
