"""Classification of native functions: which ones the VM may call without interpreting them, by their effects.

C functions are classified by module and name, Python functions of torch and of the standard library by module. A function in
no table is refused: capture ends with a reason.
"""

from __future__ import annotations

import _thread
import abc
import ast
import builtins
import codecs
import collections
import contextvars
import dataclasses
import datetime
import decimal
import functools
import inspect
import itertools
import logging
import operator
import os
import pathlib
import re
import sys
import types
import typing
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import numpy
import torch

from smelt._native import isinstance
from smelt.capture.base.bytecode import is_resume
from smelt.capture.base.call_handlers import unsupported
from smelt.reasons import (
    DEBUGGER,
    RANDOM_STATE,
    SIDE_EFFECT_IO,
    TENSOR_SUBCLASS,
    UNSUPPORTED_CALL,
    UNSUPPORTED_EFFECT,
    ReasonKind,
)
from smelt.torch_private import (
    CHANGING_MODES,
    chunk_or_narrow_cat,
    jiterated,
    make_subclass,
    swap_tensor_impl,
)

# Python modules whose functions run natively: leaves of the torch level, or pure functions of classes and constants
NATIVE_MODULES = (
    "torch.nn.functional", "torch.functional", "torch._tensor", "torch._VF", "torch._C", "torch._ops",
    "torch._utils",
    "torch._jit_internal", "torch.jit", "torch.backends", "torch.cuda", "torch.mps", "torch.xpu",
    "torch.mtia", "torch.cpu",
    "torch.amp.autocast_mode", "torch.autograd.grad_mode", "torch.autograd.graph", "torch.autograd.profiler",
    "torch.autograd.forward_ad",
    "torch.overrides", "torch.random", "torch._refs",
    "torch._prims", "torch._prims_common", "torch.nn.modules.utils", "torch.nn.parameter", "torch.nn.init",
    "torch.utils._device",
    "torch.utils._python_dispatch", "torch._tensor_str", "torch.fx", "torch._decomp", "torch._library",
    "torch._sources",
    "torch._meta_registrations", "torch.nn.attention", "torch.signal", "torch._linalg_utils",
    "torch._lowrank", "torch.return_types",
    "torch.nested", "torch.sparse", "torch.masked", "torch.storage", "torch.types",
    "torch._namedtensor_internals",
    "torch.version", "torch.library", "torch._vmap_internals", "torch._guards",
    "torch.utils._typing_utils", "torch._environment",
    "inspect", "enum", "dataclasses", "typing", "typing_extensions", "re", "re._compiler", "re._parser",
    "posixpath", "ntpath",
    "abc", "importlib", "importlib.metadata", "importlib.util", "importlib._bootstrap",
    "_frozen_importlib",
    "string", "numbers", "types", "annotationlib", "warnings", "_py_warnings", "logging", "platform", "packaging",
    "reprlib", "keyword",
    "textwrap", "json", "json.encoder", "json.decoder", "hashlib", "decimal", "fractions",
    "statistics", "ast", "traceback",
    "torch._dynamo.mutation_guard",  # torch.compile's wrapper of Module.__init__, which tags new modules
    "torch._dynamo._trace_wrapped_higher_order_op",  # its mode supports indexing by tensors under vmap
    "linecache", "locale", "smelt", "struct", "base64", "sysconfig", "numpy",
)  # fmt: skip
# Interpreted nevertheless: these call user functions.
POLYFILLS = (
    "smelt.capture.semantics.calls.polyfills",
    "smelt.capture.semantics.result_polyfills",
    "smelt.capture.semantics.calls.torch_polyfills",
    "smelt.capture.semantics.calls.nested_polyfills",
    "smelt.capture.graph_breaks.step",  # the compiled functions of generator steps
)
_INTERPRETED_MODULES = (*POLYFILLS, "torch.nn.attention.flex_attention")
EXACT_NATIVE_MODULES = ("torch", "collections", "functools")
_PREFIXES = tuple(
    m + "." for m in NATIVE_MODULES if not m.startswith(("typing", "re", "os", "abc", "types", "enum"))
)


def check_text_settings(value: object, spec: str = "") -> None:
    """Raise Unsupported for a text that depends on process settings: that of a NumPy array, of a time or a number in the
    locale's format, and of a Decimal that is rounded or has an exponent."""
    if isinstance(value, decimal.Decimal) and (spec or "E" in decimal.Decimal.__repr__(value).upper()[9:]):
        what = "a Decimal"
    elif isinstance(value, numpy.ndarray):
        what = "a NumPy array"
    elif isinstance(value, (datetime.date, datetime.time)) and spec:
        what = "a time"
    elif spec.endswith("n"):
        what = "a number of the locale"
    else:
        for part in _shown_parts(value):
            if not isinstance(part, (tuple, list, BaseException)):
                check_text_settings(part)
        return
    raise unsupported(f"the text of {what}, which settings of the process decide", UNSUPPORTED_EFFECT)


def _shown_parts(value: object) -> Iterator[object]:
    """The objects whose texts are part of the text of a tuple, a list or an exception."""
    if isinstance(value, BaseException):
        return iter(value.args)
    if isinstance(value, tuple):
        return tuple.__iter__(value)
    return list.__iter__(value) if isinstance(value, list) else iter(())


def check_decimals(*operands: object) -> None:
    """Raise Unsupported for a Decimal operand: arithmetic reads and changes the thread's decimal context."""
    for value in operands:
        if isinstance(value, decimal.Decimal):
            raise unsupported("Decimals are computed with, in the thread's context", UNSUPPORTED_EFFECT)


@functools.cache
def is_native_module(name: str | None) -> bool:
    """Whether Python functions of this module run natively."""
    if name is None or name in _INTERPRETED_MODULES:
        return False
    return name in NATIVE_MODULES or name in EXACT_NATIVE_MODULES or name.startswith(_PREFIXES)


_SETTING_MODULES = ("torch.backends", "torch.nn.attention")


def runs_natively(function: types.FunctionType) -> bool:
    """Whether the VM calls a Python function natively: by its module, unless it is in `INTERPRETED`. Resume functions are
    interpreted, as the code before the break was; so are generators that change process settings, because a graph break
    may leave them suspended."""
    scope, code = function.__globals__, function.__code__
    if (
        not is_native_scope(scope)
        or _is_generated(function)
        or code in _interpreted_codes()
        or is_resume(code)
        or "__smelt_disable__" in function.__dict__  # it calls the program's function
        or _warns(function)
    ):
        return False
    return not (code.co_flags & inspect.CO_GENERATOR and str(scope["__name__"]).startswith(_SETTING_MODULES))


def _is_generated(function: types.FunctionType) -> bool:
    """Whether `function` is a method of a class of the program that the standard library generated: `make_dataclass` of
    CPython 3.11 does so in the module `types`."""
    return function.__globals__ is vars(types) and function.__code__.co_filename == "<string>"


def _warns(function: types.FunctionType) -> bool:
    """Whether a function of the standard library writes warnings, which are deferred until the graph has run."""
    names = function.__code__.co_names
    warns = "warn" in names or "_deprecated" in names
    if "_caller" in names:  # it inspects its caller's frame (`TypedDict`)
        return False
    return warns and "warnings" in names and not function.__module__.startswith(_WARNING_THEMSELVES)


_WARNING_THEMSELVES = ("torch", "warnings", "_py_warnings", "logging", "numpy", "smelt")


def is_native_scope(scope: dict[str, object]) -> bool:
    """Whether Python functions with these globals run natively. A module that claims another module's name (`_pydecimal`
    claims `decimal`) is not that module: its functions may be any code."""
    name = scope.get("__name__")
    if type(name) is not str or not is_native_module(name):
        return False
    if name in _LOADED:
        return _LOADED[name] is scope
    module = sys.modules.get(name)
    return module is None or vars(module) is scope or module.__name__ != name


# The globals of modules when smelt was imported: the program may replace modules.
_LOADED = types.MappingProxyType({n: vars(m) for n, m in sys.modules.items() if is_native_module(n)})


def nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """`code` and the code objects of the functions and classes nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_codes(constant)


@functools.cache
def _interpreted_codes() -> frozenset[types.CodeType]:
    return frozenset(c for f in INTERPRETED for c in nested_codes(f.__code__))


_NamedTuple = collections.namedtuple("_NamedTuple", "field")

# Python functions that call user code, or only test a class, in modules that otherwise run natively.
INTERPRETED: set[Any] = {
    f for f in (
        functools.wraps, functools.partialmethod.__get__, vars(functools.partialmethod)["_make_unbound_method"],
        inspect.getdoc, logging.getLevelName, logging.Logger.hasHandlers, logging.Filterer.filter,
        functools.singledispatchmethod.__get__, functools.lru_cache, functools.cache,
        ast.increment_lineno, ast.fix_missing_locations, ast.copy_location, ast.iter_child_nodes, ast.iter_fields, ast.walk,
        getattr(warnings, "_deprecated", None), abc.abstractmethod,
        vars(getattr(warnings, "deprecated", object)).get("__call__"),  # from 3.13 on; warns of the line of its caller
        vars(typing)["_BaseGenericAlias"].__call__, typing.final, typing.overload, typing.no_type_check,
        chunk_or_narrow_cat,
        torch.nn.functional.gaussian_nll_loss,  # it asserts a condition on a tensor
        torch.is_tensor, torch.is_storage, torch.overrides.is_tensor_like,
        *(getattr(torch.jit, n) for n in ("export", "ignore", "unused")),  # they mark the function that they decorate
        torch.amp.autocast_mode.autocast.__call__, torch.amp.autocast_mode.autocast_decorator,
        dataclasses.fields, dataclasses.is_dataclass, dataclasses.asdict, dataclasses.astuple, dataclasses.replace,
        *(getattr(dataclasses, n, None) for n in ("_asdict_inner", "_astuple_inner", "_is_dataclass_instance", "_replace")),
        # of every named tuple, whose methods share their code: they store their arguments
        *(getattr(_NamedTuple, n) for n in ("_make", "_replace", "_asdict")),
    ) if f is not None
}  # fmt: skip
# Attributes of `torch.backends`, which call the functions that return the settings. An object may replace the module.
INTERPRETED.update(
    f
    for name, module in list(sys.modules.items())
    if name.startswith("torch.backends")
    for cls in vars(vars(module).get("m", module)).values()
    if isinstance(cls, type) and cls.__module__ == name and not issubclass(cls, types.ModuleType)
    for at, f in vars(cls).items()
    if at in ("__get__", "__getattr__")
)
for _class in (
    collections.UserDict, collections.UserList, collections.UserString, collections.ChainMap, collections.Counter
):  # fmt: skip
    # Unwrapped: from 3.13 on, `reprlib.recursive_repr` also wraps the `__repr__` of data classes.
    INTERPRETED.update(inspect.unwrap(f) for f in vars(_class).values() if isinstance(f, types.FunctionType))

# Modules of C functions (and C classes) that only compute.
PURE_C_MODULES = frozenset(
    {
        "builtins", "math", "cmath", "operator", "_operator", "itertools", "_functools", "functools",
        "_collections", "collections", "_abc",
        "_sre", "re", "_struct", "_json", "_weakref", "weakref", "_contextvars", "_typing",
        "typing", "_string",
        "unicodedata", "_bisect", "_heapq", "heapq", "bisect", "binascii", "_codecs", "_warnings", "types",
        "_statistics", "_decimal", "decimal",
        "_datetime", "datetime", "_imp", "_ast", "_hashlib", "_md5", "_sha1", "_sha2",
        "fractions", "zlib", "_opcode", "_symtable",
    }
)  # fmt: skip
IO_MODULES = frozenset(
    {
        "time", "posix", "nt", "_io", "io", "_thread", "_socket", "_random", "random", "select", "signal",
        "fcntl", "_posixsubprocess",
        "_pickle", "pickle", "gc", "_ctypes", "marshal", "mmap", "_queue", "_asyncio", "faulthandler",
        "_signal", "secrets", "_tracemalloc",
        "threading", "multiprocessing", "subprocess", "socket", "sys",
    }
)  # fmt: skip
_PURE_ATTRIBUTES = PURE_C_MODULES.union(
    ("_io", "_thread", "_pickle", "_random", "_ctypes", "array", "_queue", "smelt._native")
)
PURE_SYS = frozenset({"intern", "exc_info", "is_finalizing"})
# Functions of the modules `posix` and `nt` that only process texts; `os.path` has some of them under other names.
PURE_POSIX = frozenset({"_path_splitroot", "_path_splitroot_ex", "_path_normpath"})

# Modules of the standard library for locks, random states, processes and files: called natively or refused.
_NEVER_INTERPRETED = frozenset(
    (
        "queue", "threading", "random", "uuid", "tempfile", "shutil", "subprocess", "socket", "multiprocessing",
        "pdb", "bdb", "concurrent", "asyncio", "selectors", "pickle", "shelve", "zipfile", "tarfile", "urllib",
        "http", "secrets", "sched",
    )
)  # fmt: skip


def is_never_interpreted(function: types.FunctionType) -> bool:
    """Whether the VM never interprets functions of this function's package: it calls them natively or refuses them."""
    name = function.__globals__.get("__name__")
    return type(name) is str and name.partition(".")[0] in _NEVER_INTERPRETED


# Calls that would change the process, or whose result may differ at the next call.
_REFUSED_NAMES: tuple[tuple[ReasonKind, object, str, str], ...] = (
    (SIDE_EFFECT_IO, builtins, "", "input open"),
    (SIDE_EFFECT_IO, pathlib, "", "Path.open"),
    (SIDE_EFFECT_IO, os, "os.", "fdopen"),
    (UNSUPPORTED_CALL, builtins, "", "eval exec compile globals object.__reduce__ object.__reduce_ex__"),
    (DEBUGGER, builtins, "", "breakpoint"),
    # The codec registry is process-wide and may call Python functions.
    (
        *(UNSUPPORTED_CALL, codecs, "codecs."),
        "register unregister lookup register_error lookup_error encode decode",
    ),
    (
        RANDOM_STATE,
        torch,
        "torch.",
        "seed initial_seed",
    ),
    (
        *(UNSUPPORTED_EFFECT, torch, "torch."),
        "set_default_device autocast_increment_nesting autocast_decrement_nesting set_num_threads "
        "utils.swap_tensors",
    ),
    (SIDE_EFFECT_IO, torch, "torch.", "save load cuda.synchronize"),
    (UNSUPPORTED_CALL, torch, "torch.", "jit.script jit.trace"),
    (UNSUPPORTED_CALL, torch.autograd.graph, "", "register_multi_grad_hook get_gradient_edge"),
    (UNSUPPORTED_EFFECT, torch.autograd.graph, "", "increment_version"),
    (UNSUPPORTED_EFFECT, logging, "logging.", "basicConfig disable"),
    (UNSUPPORTED_EFFECT, logging, "", "Logger.setLevel Logger.addHandler Logger.removeHandler"),
    (SIDE_EFFECT_IO, logging, "", "Logger.handle"),
    (UNSUPPORTED_EFFECT, warnings, "warnings.", "resetwarnings"),
    (UNSUPPORTED_EFFECT, contextvars, "contextvars.", "copy_context"),
    (UNSUPPORTED_CALL, inspect, "inspect.", "getmembers"),
    (UNSUPPORTED_EFFECT, decimal, "decimal.", "getcontext setcontext localcontext"),
    (SIDE_EFFECT_IO, datetime, "", "datetime.now datetime.utcnow datetime.today date.today"),
    # the local time zone, which `time.tzset` changes
    (SIDE_EFFECT_IO, datetime, "", "datetime.fromtimestamp date.fromtimestamp"),
    # the environment and the working directory
    (SIDE_EFFECT_IO, os.path, "os.path.", "abspath expanduser expandvars realpath relpath"),
)
REFUSED: dict[Any, tuple[ReasonKind, str]] = {
    **{
        operator.attrgetter(name)(where): (kind, prefix + name)
        for kind, where, prefix, names in _REFUSED_NAMES
        for name in names.split()
    },
    jiterated: (UNSUPPORTED_CALL, "a kernel of torch.cuda.jiterator"),
    torch.func.linearize: (UNSUPPORTED_CALL, "torch.func.linearize, which traces with torch.fx"),
    make_subclass: (TENSOR_SUBCLASS, "Tensor._make_subclass"),
    swap_tensor_impl: (UNSUPPORTED_EFFECT, "torch._C._swap_tensor_impl"),
    torch.autograd.graph.saved_tensors_hooks.__enter__: (UNSUPPORTED_CALL, "hooks of saved tensors"),
    torch.autograd.graph.saved_tensors_hooks.__exit__: (UNSUPPORTED_CALL, "hooks of saved tensors"),
    torch.autograd.graph.allow_mutation_on_saved_tensors: (UNSUPPORTED_CALL, "hooks of saved tensors"),
    **dict.fromkeys(CHANGING_MODES, (UNSUPPORTED_CALL, "modes of torch are left or entered again")),
}
# Methods of Lightning that run its Trainer: callbacks, strategies, counters, loggers. By module and name: it may be absent.
_OF_TRAINER = {
    "module": (
        "LightningModule.",
        "log log_dict manual_backward toggle_optimizer untoggle_optimizer clip_gradients",
    ),
    "optimizer": ("LightningOptimizer.", "step"),
}
REFUSED_BY_NAME: dict[tuple[str, str], tuple[ReasonKind, str]] = {
    (f"{package}.core.{module}", prefix + name): (
        UNSUPPORTED_EFFECT,
        f"{prefix}{name} runs Lightning's Trainer",
    )
    for package in ("lightning.pytorch", "pytorch_lightning")
    for module, (prefix, names) in _OF_TRAINER.items()
    for name in names.split()
}
# Progress bars write, and read the clock.
_OF_PROGRESS_BARS = (
    "__iter__ __enter__ __exit__ update close refresh set_description set_description_str set_postfix set_postfix_str write "
    "reset clear display"
)
REFUSED_BY_NAME |= {
    ("tqdm.std", f"tqdm.{name}"): (SIDE_EFFECT_IO, f"tqdm.{name}") for name in _OF_PROGRESS_BARS.split()
}
REFUSED_BY_NAME |= {(module, "trange"): (SIDE_EFFECT_IO, "trange") for module in ("tqdm.std", "tqdm.auto")}
for _found, _what in (  # since torch 2.14
    (getattr(torch.autograd.graph, "node_creation_hook", None), "hooks of nodes"),
    (
        getattr(torch.autograd.function.FunctionCtx, "set_output_grad_dtype", None),
        "ctx.set_output_grad_dtype",
    ),
):
    if _found is not None:
        REFUSED[_found] = UNSUPPORTED_CALL, _what

# Methods of builtin containers that do not change the container
PURE_METHODS = frozenset([
    "get", "keys", "values", "items", "copy", "index", "count", "union", "intersection", "difference",
    "symmetric_difference", "isdisjoint", "issubset", "issuperset", "most_common", "elements", "__contains__",
    "__len__", "__getitem__", "__iter__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__repr__",
    "__str__", "__reversed__", "__or__", "__ror__", "__and__", "__rand__", "__sub__", "__rsub__", "__xor__",
    "__rxor__", "__add__", "__mul__", "__rmul__", "__sizeof__", "__hash__", "__format__", "__class__",
    "__getattribute__", "__dir__", "__bool__",
])  # fmt: skip

# C classes whose instances are immutable, or whose methods are all safe to call during capture
PURE_TYPES: frozenset[type] = frozenset(
    {
        re.Pattern, re.Match, weakref.ref, types.MappingProxyType, operator.itemgetter, operator.attrgetter,
        operator.methodcaller,
        contextvars.ContextVar, types.SimpleNamespace, types.GenericAlias, frozenset, type({}.keys()),
        type({}.values()), type({}.items()),
        _thread.LockType, type(_thread.RLock()), types.MethodWrapperType, itertools.chain,
        types.CodeType,
    }
)  # fmt: skip


# ------------------------------------------------------------------------------- process settings
#
# A native function that changes a process setting would do so during capture only. Their names identify them.

_SETTING = re.compile(
    r"_*(jit_)?set(_|$)|_*(manual_)?seed(_|$)|_*(initial_seed|fork_rng|get_rng_state|get_state)"
    r"|_*(enable|disable|reset|clear|register|unregister)(_|$)|seterr|setbufsize"
    r"|get_printoptions$|array2string$|array_(str|repr)$|geterr(call)?$|getbufsize$|is_anomaly_|is_warn_always_enabled$"
    r"|(load|save|dump|savez|memmap|fromfile|tofile|loadtxt|savetxt|genfromtxt|savez_compressed)$"
)
# Names of that form that change nothing, or settings that capture records (`graph.torch_settings`) or compares at its end
# (`guards.global_state`)
_NO_SETTING = frozenset(
    {
        "set_grad_enabled", "_set_grad_enabled", "set_autocast_enabled", "set_autocast_dtype", "set_autocast_cache_enabled",
        "set_autocast_cpu_enabled", "set_autocast_cpu_dtype", "set_autocast_gpu_dtype", "clear_autocast_cache",
        "set_multithreading_enabled", "enable_grad", "disable_saved_tensors_hooks", "_saved_tensors_hooks_disable",
        "_saved_tensors_hooks_enable", "set_inplace_requires_grad_allowed", "_set_fwd_grad_enabled",
        "_set_conj", "_set_neg", "set_",
    }
)  # fmt: skip
# Modules of devices: most of their functions change or read device state, so the allowed names are listed.
_DEVICE_MODULES = ("torch.cuda", "torch.mps", "torch.xpu", "torch.mtia", "torch.cpu")
_DEVICE_QUERIES = re.compile(
    r"_?is_|has_|device_count$|get_device_(name|properties|capability)|get_arch_list|autocast|__"
)
# Modules of communication between processes, of profilers and of monitors: the same.
_SERVICES = tuple(
    f"torch._C.{name}"
    for name in ("_distributed_", "_monitor", "_profiler", "_itt", "_lazy", "_instruction_counter")
)
_SERVICE_QUERIES = re.compile(r"_?(is|get|has|current|resolve)_|_current_process_group$|__")
# Native code that inspects its callers or the interpreter: during capture these are frames of the VM.
_STACK_READERS = re.compile(
    r"(currentframe|stack|trace|getframeinfo|getouterframes|getinnerframes|getgeneratorstate|getgeneratorlocals)$"
    r"|(print|extract|format|walk)_(exc|exception|stack|tb|last|list)|TracebackException|StackSummary|clear_frames"
)
_NAMES_DECIDE = ("torch", "numpy")
_NUMPY_RANDOM = "numpy.random"


@functools.cache
def _setting(module: str, name: str) -> tuple[ReasonKind, str] | None:
    last = name.rpartition(".")[2]
    text = f"{module}.{name}"
    if module in ("inspect", "traceback") and _STACK_READERS.match(last):
        return UNSUPPORTED_CALL, f"{text} reads the interpreter's stack"
    if module == "json" and last in ("dump", "load"):
        return SIDE_EFFECT_IO, text
    if module == "locale":
        return SIDE_EFFECT_IO, text
    if not module.startswith(_NAMES_DECIDE):
        return None
    if module == "torch.library":
        return UNSUPPORTED_EFFECT, f"{text} registers operators"
    if module.startswith(_NUMPY_RANDOM):
        return RANDOM_STATE, text
    if module.startswith(_SERVICES) and not _SERVICE_QUERIES.match(last):
        return UNSUPPORTED_EFFECT, text
    if module.startswith(_DEVICE_MODULES) and not _DEVICE_QUERIES.match(last):
        return UNSUPPORTED_EFFECT, f"{text} reads or changes the state of a device"
    if last in ("__setattr__", "__delattr__") and module.startswith("torch.backends"):
        return UNSUPPORTED_EFFECT, f"an attribute of {module} is set"
    if re.search("seed|rng", last):
        return RANDOM_STATE, text
    if _SETTING.match(last) and last not in _NO_SETTING:
        return UNSUPPORTED_EFFECT, f"{text} changes or reads a setting of the process"
    return None


def setting_refusal(function: object) -> tuple[ReasonKind, str] | None:
    """Why a function or class of a native module must not be called: it changes or reads a process setting."""
    return _setting(getattr(function, "__module__", None) or "", getattr(function, "__qualname__", ""))


_C_DESCRIPTORS = (types.ClassMethodDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType)


def _defining_class(cls: type, name: str) -> type:
    """The class that defines the C method `name` of `cls`: a base, or the metaclass or one of its bases."""
    bases: list[type] = [*cls.__mro__, *type.mro(type(cls))]
    candidates = (k for k in bases if name in vars(k))
    return next((k for k in candidates if type(vars(k)[name]) in _C_DESCRIPTORS), cls)


def is_pure_attribute(descriptor: types.GetSetDescriptorType) -> bool:
    """Whether the C code that computes an attribute is known to have no effects."""
    module = descriptor.__objclass__.__module__
    return module in _PURE_ATTRIBUTES or module.startswith(("torch", "numpy"))


def is_pure_property(cls: type, found: property) -> bool:
    """Whether pybind11 made a property of a class of torch: its getter is a C function that is known to have no effects."""
    getter = getattr(found.fget, "__func__", found.fget)
    return type(getter) is types.BuiltinFunctionType and cls.__module__.startswith("torch")


def is_pybind_method(fn: object, kind: type) -> bool:
    """Whether pybind11 made `fn` as a method of the class `kind` or a base: its instances come as the first argument."""
    if type(fn) is not types.BuiltinFunctionType:
        return False
    methods = (vars(base).get(fn.__name__) for base in kind.__mro__)
    return any(type(m) is _INSTANCE_METHOD and getattr(m, "__func__", None) is fn for m in methods)


_INSTANCE_METHOD = type(vars(type(torch.Tag.core))["__repr__"])  # only pybind11 makes them


def refusal(function: object) -> tuple[ReasonKind, str] | None:
    """Why a C function must not be called, or None."""
    owner = getattr(function, "__self__", None)
    module = owner.__name__ if isinstance(owner, types.ModuleType) else getattr(function, "__module__", None)
    if isinstance(owner, type):
        method = getattr(function, "__name__", "")
        defining = _defining_class(owner, method)
        refused = REFUSED.get(getattr(defining, method, None))  # of a subclass: `class Date(datetime): ...`
        if refused is not None:
            return refused
        module = defining.__module__
    if module is None:
        owner_class = getattr(function, "__objclass__", None) or type(owner)
        module = owner_class.__module__
    name = getattr(function, "__qualname__", str(function))
    refused = _setting(module, name)
    if refused is not None:
        return refused
    if module in PURE_C_MODULES or module.startswith(("torch", "numpy", "einops")):
        return None
    if module == "sys" and name in PURE_SYS:
        return None
    if module in ("posix", "nt") and name in PURE_POSIX:
        return None
    if module in ("random", "_random"):
        return RANDOM_STATE, f"random.{name}"
    if module in IO_MODULES:
        return SIDE_EFFECT_IO, f"{module}.{name}"
    return UNSUPPORTED_CALL, f"{module}.{name}"
