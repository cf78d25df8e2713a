"""The implementation of `api.py`: argument checks, compiled functions and modules.

Importing this module does not import the compiler, which `_compiler` does: with the option `warm_start`, a program may need
none of it.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import gc
import inspect
import operator
import os
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from smelt import _native, config, shared_compilations
from smelt.errors import OptionError, nearest
from smelt.runtime import release_all
from smelt.runtime.compiled_callables import eager_callable, native_callable
from smelt.runtime.thread_state import set_disabled
from smelt.torch_private import (
    CALL_IMPL,
    DisableTorchDispatch,
    DisableTorchFunction,
    original_of_torch_compile,
    show_original,
)
from smelt.warm import entry_store, first_calls

if TYPE_CHECKING:
    from smelt.capture.driver.cache_entries import Backend
    from smelt.capture.driver.frame_compiler import FrameCompiler
    from smelt.report.dump import Dump
    from smelt.report.traces import Trace
    from smelt.tracing.operator_sets import OperatorSet

_OF_MODE: dict[str | None, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True, "max_autotune": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
}
_MODES = tuple(map(str, _OF_MODE))
_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE  # of `co_flags`


@functools.cache
def _compiler() -> types.ModuleType:
    """The parts of the compiler that this module uses. Modes that the program has enabled do not see their import."""
    with DisableTorchFunction(), DisableTorchDispatch():
        from smelt import compiler_parts  # noqa: PLC0415 (the compiler)
    return compiler_parts


@dataclass(frozen=True)
class Settings:
    """The arguments of one `compile` call: enough to compile again (pickle, deepcopy)."""

    fullgraph: bool
    dynamic: bool | None
    backend: str | Callable[..., Any]
    mode: str | None
    options: tuple[tuple[str, Any], ...]
    operators: OperatorSet | None = None

    def frame_compiler(self) -> FrameCompiler:
        """A new frame compiler without entries. Raises what `registry.lookup` and `Config.with_options` raise."""
        backend: Backend = _compiler().lookup(self.backend, self.operators)
        made: FrameCompiler = _compiler().FrameCompiler(
            backend=backend, config=self.config, fullgraph=self.fullgraph, dynamic=self.dynamic
        )
        return made

    @property
    def config(self) -> config.Config:
        """The options, with the defaults of now. Raises OptionError."""
        options = dict(self.options) | _OF_MODE.get(self.mode, {})
        return config.defaults().with_options(options)

    @property
    def key(self) -> Hashable:
        """Equal for settings that compile alike."""
        backend: Any = self.backend  # of a callable, `lookup` returns another adapter each time
        if isinstance(backend, str) and backend != "smelt":
            backend = _compiler().lookup(backend)
        return id(backend), self.config, self.fullgraph, self.dynamic, self.operators


def compile(
    model: Any,
    *,
    fullgraph: bool,
    dynamic: bool | None,
    backend: str | Callable[..., Any],
    mode: str | None,
    options: dict[str, Any] | None,
    operators: OperatorSet | None,
    disable: bool,
) -> Any:
    """Return `model` compiled, or a decorator."""
    settings = _checked(fullgraph, dynamic, backend, mode, options, operators, disable)
    if model is None:
        return lambda m: _compile(m, settings, disable)
    return _compile(model, settings, disable)


def _compile(model: Any, settings: Settings, disable: bool) -> Any:
    is_class = isinstance(model, type)
    is_method = isinstance(model, (staticmethod, classmethod))  # in the body of a class
    if not (callable(model) or is_method) or (is_class and not _has_calls(model)):
        what = f"the class {model.__name__}, whose instances are not callable" if is_class else repr(model)
        raise TypeError(f"smelt.compile: model must be a function, a callable or an nn.Module, got {what}")
    if disable:
        return model
    if is_class:
        return _compile_calls(model, settings)
    if is_method:
        return type(model)(_compile(model.__func__, settings, disable))
    if isinstance(model, nn.Module):
        return _compiled_module(model, settings)
    if isinstance(model, types.MethodType):
        if model.__func__ is CALL_IMPL:
            return types.MethodType(_compiled_calls(type(model.__self__), settings), model.__self__)
        return types.MethodType(_compile(model.__func__, settings, disable), model.__self__)
    if isinstance(model, _native.Wrapped):
        model = model._smelt_original
    if isinstance(model, types.FunctionType):
        make = functools.partial(_compiled_function, model, settings)
        return shared_compilations.of_function(model, settings.key, make)
    return _compiled_function(_trampoline(model), settings, original=model)


def _has_calls(cls: type) -> bool:
    """Whether instances of the class are callable by a function in Python."""
    return isinstance(inspect.getattr_static(cls, "__call__", None), (types.FunctionType, _native.Wrapped))


def _compile_calls(cls: Any, settings: Settings) -> Any:
    """Compile the calls of the instances of a class, in place; return the class."""
    call = getattr(cls.__call__, "_smelt_original", cls.__call__)
    trampoline = _trampoline(call)
    trampoline.__name__, trampoline.__qualname__ = cls.__name__, cls.__qualname__
    cls.__call__ = _compiled_function(trampoline, settings, original=call)
    return cls


def _checked(
    fullgraph: object,
    dynamic: bool | None,
    backend: Any,
    mode: Any,
    options: Any,
    operators: Any,
    disable: object,
) -> Settings:
    for name, value in (("fullgraph", fullgraph), ("disable", disable)):
        if not isinstance(value, bool):
            raise OptionError(f"smelt.compile: {name} must be a bool, got {value!r}")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise OptionError(f"smelt.compile: dynamic must be None, True or False, got {dynamic!r}")
    if mode is not None:
        _check_mode(mode, options)
    if options is not None and not isinstance(options, dict):
        raise OptionError(f"smelt.compile: options must be a dict, got {options!r}")
    config.defaults().with_options(options)
    if not isinstance(backend, str) or backend != "smelt" or operators is not None:
        _compiler().lookup(backend, operators)
    return Settings(bool(fullgraph), dynamic, backend, mode, tuple((options or {}).items()), operators)


def _check_mode(mode: Any, options: Any) -> None:
    if options is not None:
        raise OptionError("smelt.compile: give either mode or options, not both")
    if mode not in _MODES:
        raise OptionError(f"smelt.compile: unknown mode {mode!r}; {nearest(mode, _MODES)}")


# ------------------------------------------------------------------------------------------------- functions


def _compiled_function(
    fn: types.FunctionType, settings: Settings, original: Any = None, traced: Callable[..., Any] | None = None
) -> Any:
    """A native callable around a copy of `fn`, whose code object keys this compilation's own cache. `traced` runs
    instead under another tracer; None: `fn` itself."""
    chosen = settings.config
    is_warm = chosen.warm_start and settings.backend == "smelt" and not _writes_artifacts()
    compiler = None if is_warm else settings.frame_compiler()
    if fn.__code__.co_flags & _SUSPENDABLE and not settings.fullgraph:
        compiler = compiler or settings.frame_compiler()
        own = compiler.generator_factory(fn)
    else:
        own = types.FunctionType(
            fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
        )
    functools.update_wrapper(own, fn)
    own.__kwdefaults__ = fn.__kwdefaults__
    del own.__wrapped__  # type: ignore[attr-defined]
    if "__wrapped__" in fn.__dict__:  # `inspect.signature` follows it
        own.__wrapped__ = fn.__wrapped__  # type: ignore[attr-defined]
    if compiler is not None:
        wrapped = _compiler().wrap(own, compiler, traced, fn)
    else:
        wrapped = _wrap_warm(own, settings, chosen, traced, fn)
    wrapped._smelt_original = fn if original is None else original
    wrapped._smelt_settings = settings
    wrapped._smelt_again = functools.partial(_compiled_function, fn, original=original, traced=traced)
    wrapped._smelt_by_backend = {}
    show_original(wrapped, wrapped._smelt_original)
    return wrapped


def _writes_artifacts() -> bool:
    """Whether the environment requests artifacts of compilations."""
    return any(os.environ.get(name) for name in ("SMELT_DUMP", "SMELT_OVERRIDE"))


def _wrap_warm(
    own: types.FunctionType,
    settings: Settings,
    chosen: config.Config,
    traced: Callable[..., Any] | None,
    fn: types.FunctionType,
) -> Any:
    """The native callable that looks for stored entries before it imports the compiler."""
    calls = first_calls.FirstCalls(lambda: made(), chosen, settings.fullgraph, settings.dynamic)
    wrapped = calls.wrapped(own, traced, fn)

    def made() -> FrameCompiler:
        compiler = settings.frame_compiler()
        _compiler().adopt(calls.target(), own, compiler)
        return compiler

    return wrapped


_MAX_FORCED_BACKENDS = 8  # whose compilations of one function are kept


def _with_backend(wrapped: Any, backend: Any) -> Callable[..., Any]:
    """The callable for the calls of `wrapped` while `torch.compiler.set_stance` forces a backend."""
    backend = "smelt" if backend == "inductor" else backend
    settings = getattr(wrapped, "_smelt_settings", None)  # None: a resume function
    if settings is None or settings.backend == backend:
        return wrapped  # type: ignore[no-any-return]
    known, key = wrapped._smelt_by_backend, backend if isinstance(backend, str) else id(backend)
    if key not in known:
        while len(known) >= _MAX_FORCED_BACKENDS:
            del known[next(iter(known))]
        known[key] = backend, wrapped._smelt_again(replace(settings, backend=backend))
    return known[key][1]  # type: ignore[no-any-return]


_native.set_with_backend(_with_backend)


def _trampoline(target: Any) -> Any:
    def call(*args, **kwargs):  # type: ignore[no-untyped-def]
        return target(*args, **kwargs)

    call.__name__ = call.__qualname__ = getattr(target, "__name__", type(target).__name__)
    call.__wrapped__ = target  # type: ignore[attr-defined]
    return call


def _rebuild_function(original: Any, settings: Settings) -> Any:
    return _compile(original, settings, disable=False)


def _reduce_function(wrapped: Any) -> Any:
    """Pickle a compiled function that its module holds under its own name by that name, others by compiling again."""
    found: Any = sys.modules.get(wrapped.__module__)
    for part in wrapped.__qualname__.split("."):
        found = getattr(found, part, None)
    return (
        wrapped.__qualname__
        if found is wrapped
        else (_rebuild_function, (wrapped._smelt_original, wrapped._smelt_settings))
    )


copyreg.pickle(_native.Wrapped, _reduce_function)


# --------------------------------------------------------------------------------------------------- modules


@dataclass(frozen=True)
class _ModuleState:
    original: nn.Module
    settings: Settings
    call: Any  # the compiled trampoline; its first argument is the original module


class CompiledModule:
    """Mixin of the subclass of the original's class; an instance shares the original's `__dict__`."""

    __slots__ = ()
    __jit_unused_properties__ = ("_orig_mod",)  # torch.jit.script would compile it with the module
    if TYPE_CHECKING:  # else it would be among the annotations of every compiled module
        _smelt: _ModuleState

    def __call__(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        state = self._smelt
        return state.call(state.original, *args, **kwargs)

    @property
    def _orig_mod(self) -> nn.Module:
        """The original module (torch.compile's name for it)."""
        return self._smelt.original

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """As the original's. Accepts the keys of a module that torch.compile wrapped."""
        wrapped = f"{prefix}_orig_mod."
        is_name = isinstance(getattr(self._smelt.original, "_orig_mod", None), nn.Module)
        for key in [] if is_name else [key for key in state_dict if key.startswith(wrapped)]:
            state_dict.setdefault(prefix + key.removeprefix(wrapped), state_dict.pop(key))
        super()._load_from_state_dict(state_dict, prefix, *args)  # type: ignore[misc]

    def __reduce__(self) -> Any:
        """Pickle the original in its place: a saved model loads where smelt is not installed."""
        return operator.getitem, ((self._smelt.original,), 0)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _rebuild_function(copy.deepcopy(self._smelt.original, memo), self._smelt.settings)


# Lightning's Trainer calls these methods of a module, not the module.
_STEPS = ("training_step", "validation_step", "test_step", "predict_step")
_LIGHTNING = ("lightning.pytorch.core.module", "pytorch_lightning.core.module")


def _compiled_steps(cls: type[nn.Module], settings: Settings) -> dict[str, Any]:
    """The steps that the class of a LightningModule defines, compiled, by name; empty for other classes. Those that it
    inherits from Lightning stay, so that the Trainer finds out that they are not defined."""
    base = next((base for base in cls.__mro__ if base.__module__ in _LIGHTNING), None)
    if base is None:
        return {}
    steps = {name: inspect.getattr_static(cls, name) for name in _STEPS}
    return {
        name: _compiled_function(step, settings)
        for name, step in steps.items()
        if isinstance(step, types.FunctionType) and step is not getattr(base, name)
    }


def _compiled_class(cls: type[nn.Module], settings: Settings) -> type[nn.Module]:
    """The class of compiled modules of class `cls`. Calling it, as methods do with the class of their instance
    (`Sequential.__getitem__` of a slice), returns an instance of `cls`, which is not compiled."""

    def make(_: type, *args: Any, **kwargs: Any) -> nn.Module:
        return cls(*args, **kwargs)

    make.__wrapped__ = cls.__init__  # type: ignore[attr-defined]  # whose signature is that of the class

    def new(_: type, *args: Any, **kwargs: Any) -> nn.Module:
        return cls.__new__(cls, *args, **kwargs)

    # Frameworks compare and save the names of classes.
    members = {
        "__slots__": ("_smelt",),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__new__": new,
        **_compiled_steps(cls, settings),
    }
    if cls.__call__ is not nn.Module.__call__:
        members["__call__"] = _call_like(cls)
    metaclass = types.new_class("CompiledClass", (type(cls),), {}, lambda ns: ns.update(__call__=make))
    return types.new_class(
        cls.__name__, (CompiledModule, cls), {"metaclass": metaclass}, lambda ns: ns.update(members)
    )


def _call_like(cls: type[nn.Module]) -> Callable[..., Any]:
    """The `__call__` of compiled modules whose class defines one, with the signature of that one."""

    def call(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        return CompiledModule.__call__(self, *args, **kwargs)

    call.__wrapped__ = cls.__call__  # type: ignore[attr-defined]
    return call


def _compiled_module(module: nn.Module, settings: Settings) -> nn.Module:
    if isinstance(module, CompiledModule):
        module = module._smelt.original
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError("smelt.compile: model is a ScriptModule; compile a function that calls it")
    compiled = object.__new__(_compiled_class(type(module), settings))
    object.__setattr__(compiled, "__dict__", module.__dict__)

    def make() -> _native.Wrapped:
        as_module = _AsModule()
        made = _compiled_function(_module_trampoline(type(module)), settings, traced=as_module)
        made._smelt_as_module = as_module
        return made  # type: ignore[no-any-return]

    key = type(module), settings.key
    call: Any = shared_compilations.of_module(module, key, make)
    call._smelt_as_module.add(compiled)
    object.__setattr__(compiled, "_smelt", _ModuleState(module, settings, call))
    return compiled


class _AsModule:
    """Calls a compiled module, the latest one that is alive, under another tracer, which may identify modules by their path
    in the traced model, where the original does not occur."""

    def __init__(self) -> None:
        self._compiled: list[weakref.ref[nn.Module]] = []

    def add(self, compiled: nn.Module) -> None:
        self._compiled = [*(ref for ref in self._compiled if ref() is not None), weakref.ref(compiled)]

    def __call__(self, original: nn.Module, *args: Any, **kwargs: Any) -> Any:
        latest = next(compiled for ref in reversed(self._compiled) if (compiled := ref()) is not None)
        return super(CompiledModule, latest).__call__(*args, **kwargs)  # type: ignore[arg-type, misc]


def _module_trampoline(cls: type) -> Any:
    def call(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        return self(*args, **kwargs)

    return _named_after(cls, call)


def _named_after(cls: type, call: Any) -> Any:
    call.__name__ = call.__qualname__ = cls.__name__
    call.__wrapped__ = cls.forward  # type: ignore[attr-defined]  # whose line people are told
    return call


def _compiled_calls(cls: type, settings: Settings) -> Any:
    """The compiled `_call_impl` of the modules of one class, which `Module.compile()` and `smelt.compile_` compile in place:
    equal blocks of a model share entries, and another class has a recompile limit of its own."""

    def call(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        return self._call_impl(*args, **kwargs)

    def make() -> _native.Wrapped:
        made = _compiled_function(_named_after(cls, call), settings, original=CALL_IMPL)
        made._smelt_class = cls  # shared by its address
        return made  # type: ignore[no-any-return]

    return shared_compilations.of_function(cls, settings.key, make)


# ----------------------------------------------------------------------------------------------- the others


def explain(fn: Any, anew: Callable[[Any], Any], differently: bool, times: int) -> Callable[..., Any]:
    """A callable that calls `fn` once, compiled, and returns an `Explanation`. `anew` compiles it if smelt did not, or
    `differently`. `times`: the number of further timed calls. Raises OptionError for a negative or non-integer number.
    """
    if type(times) is not int or times < 0:
        raise OptionError(f"smelt.explain: times must be an int from 0 on, got {times!r}")
    if fn is None or isinstance(fn, type):  # smelt.compile makes a decorator of None, and changes a class
        raise TypeError(f"smelt.explain: fn must be a function, a callable or an nn.Module, got {fn!r}")
    from smelt.report.explanation import explained  # noqa: PLC0415 (its import takes time, and compilation needs none of it)

    first_calls.realize(fn)
    if native_callable(fn) is not None and not differently:
        return explained(fn, times)
    fn = original_of_torch_compile(fn)
    with shared_compilations.disabled():
        compiled = anew(fn)
    if compiled is fn:
        raise OptionError("smelt.explain: disable=True compiles nothing that could be explained")
    return explained(compiled, times)


def export(
    model: Any,
    args: Any,
    kwargs: Any,
    dynamic_shapes: Any,
    gradients: bool,
    methods: Mapping[str, Any] | None,
    targets: Sequence[str],
) -> Any:
    """The program of one call of `model`, which may be compiled, or of calls of its methods."""
    if model is None or not callable(model) or isinstance(model, type):
        raise TypeError(f"smelt.export: model must be a function, a callable or an nn.Module, got {model!r}")
    if not isinstance(args, tuple) or not isinstance(kwargs or {}, dict):
        raise TypeError("smelt.export: args must be a tuple of the call's arguments, kwargs a dict or None")
    from smelt.exported import export_call  # noqa: PLC0415 (compilation needs none of it)

    model = original_of_torch_compile(model)
    if isinstance(model, CompiledModule):
        model = model._orig_mod
    elif isinstance(model, _native.Wrapped):
        model = model._smelt_original
    if methods is None:
        calls = [export_call.Call("", args, kwargs or {}, dynamic_shapes)]
    else:
        if args or kwargs:
            raise TypeError(
                "smelt.export: pass the arguments of the model itself as methods={'forward': ...}"
            )
        calls = export_call.calls_of(methods, dynamic_shapes)
    return export_call.export(model, calls, gradients, targets)


def reset() -> None:
    """Drop compiled code and free the memory of plans."""
    first_calls.forget_all()
    entry_store.forget()
    if "smelt.compiler_parts" in sys.modules:
        _compiler().reset_entries()
    shared_compilations.forget()
    release_all()
    gc.collect()
    _native.release_cached_blocks()


def disable(fn: Any, recursive: bool) -> Any:
    """A function that runs `fn` eagerly; a decorator if `fn` is None."""
    if fn is None:
        return functools.partial(disable, recursive=recursive)
    if isinstance(fn, (staticmethod, classmethod)):  # in the body of a class
        return type(fn)(disable(fn.__func__, recursive))
    if not callable(fn):
        raise TypeError(f"smelt.disable: fn must be callable, got {fn!r}")
    if isinstance(fn, type):
        for name in ("__init__", "__call__"):
            method = getattr(fn, name, None)
            if isinstance(method, (types.FunctionType, _native.Wrapped)):
                setattr(fn, name, disable(method, recursive))
        return fn

    target = eager_callable(fn)

    def run(*args: Any, **kwargs: Any) -> Any:
        with set_disabled() if recursive else nullcontext():
            return target(*args, **kwargs)

    functools.update_wrapper(run, target, updated=() if not inspect.isfunction(target) else ("__dict__",))
    run.__smelt_disable__ = True  # type: ignore[attr-defined]
    return run


def trace(
    fn: Any, *, dynamic: bool | None, backend: str | Callable[..., Any], options: dict[str, Any] | None
) -> Callable[..., Trace]:
    """A function that makes one call of `fn` and returns its graphs. Each call captures again."""
    settings = _checked(False, dynamic, backend, None, options, None, False)
    fn = original_of_torch_compile(fn)
    _compile(fn, settings, disable=False)  # says what is wrong with it

    def traced(*args: Any, **kwargs: Any) -> Trace:
        chosen = config.defaults().with_options(options)
        with shared_compilations.disabled():
            compiled = _compile(fn, settings, disable=False)
        with first_calls.looking_nowhere():
            made: Trace = _compiler().trace_call(compiled, args, kwargs, chosen)
        return made

    return traced


def check_available(name: str) -> None:
    """Capture works here: does nothing."""


class _DumpContext:
    """The context of `smelt.dump`; warns if the program never enters it."""

    def __init__(self, directory: str | os.PathLike[str], override: bool) -> None:
        self._directory = directory
        self._make = lambda: shared_compilations.disabled(_compiler().dumping(directory, override))
        self._nowhere = first_calls.looking_nowhere()
        self._entered: list[AbstractContextManager[Dump]] = []
        self._was_entered = False

    def __enter__(self) -> Dump:
        self._was_entered = True
        context = self._make()
        dump = context.__enter__()
        self._nowhere.__enter__()
        self._entered.append(context)
        return dump

    def __exit__(self, *error: Any) -> None:
        self._nowhere.__exit__(*error)
        self._entered.pop().__exit__(*error)

    def __del__(self) -> None:
        if not self._was_entered:
            warnings.warn(
                f"smelt.dump({str(self._directory)!r}) wrote nothing: it is a context, write `with smelt.dump(...):`",
                stacklevel=2,
            )


def dump(directory: str | os.PathLike[str], override: bool) -> AbstractContextManager[Dump]:
    """A context in which compilations write artifacts and read edited ones."""
    if not isinstance(override, bool):
        raise OptionError(f"smelt.dump: override must be a bool, got {override!r}")
    return _DumpContext(directory, override)


def list_backends() -> list[str]:
    """The names of all backends."""
    found: list[str] = _compiler().list_backends()
    return found


def register_backend(fn: Callable[..., Any], name: str | None) -> None:
    """Register `fn` as a backend."""
    _compiler().register_backend(fn, name=name)


def save_cache(path: str | os.PathLike[str]) -> int:
    """Write the entries that this process has found or made to a file; return their number."""
    return entry_store.save(path)


def load_cache(path: str | os.PathLike[str]) -> int:
    """Read the entries of a file; return their number."""
    return entry_store.load(path)
