"""The public functions, with torch.compile's names and arguments.

A wrong argument raises OptionError or TypeError at once; an unimplemented feature raises NotImplementedError.
`callables.py` does the work: the first call of a function here imports it and the compiler (`compatibility.compiler`).
Where smelt cannot work, `eager_only.py` replaces it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from smelt.exported.program import Program
    from smelt.report.dump import Dump
    from smelt.report.explanation import Explanation
    from smelt.report.traces import Trace

F = TypeVar("F", bound=Callable[..., Any])
Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


def _compiler() -> Any:
    """The implementation of the functions here. Importing it imports torch, which `smelt --help` need not."""
    from smelt import compatibility  # noqa: PLC0415

    return compatibility.compiler()


class _Absent:
    """The type of the default of `compile(model=...)`: None would hide a model that is None by mistake."""

    def __repr__(self) -> str:
        return "<absent>"


_ABSENT: Any = _Absent()


@overload
def compile(
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | Callable[..., Any] = ...,
    mode: Mode | None = ...,
    options: dict[str, Any] | None = ...,
    operators: Literal["core", "prims"] | None = ...,
    disable: bool = ...,
) -> Callable[[F], F]: ...
@overload
def compile(
    model: F,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | Callable[..., Any] = ...,
    mode: Mode | None = ...,
    options: dict[str, Any] | None = ...,
    operators: Literal["core", "prims"] | None = ...,
    disable: bool = ...,
) -> F: ...
def compile(
    model: Any = _ABSENT,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "smelt",
    mode: Mode | None = None,
    options: dict[str, Any] | None = None,
    operators: Literal["core", "prims"] | None = None,
    disable: bool = False,
) -> Any:
    """Return `model` compiled: called with the same arguments, it returns the same results, faster.

    Args:
        model: a function, method, callable object or nn.Module; or a class, whose `__call__` it compiles in place. Not
            given: return a decorator.
        fullgraph: raise `smelt.errors.Unsupported` (on the user's line) if the graph would break or capture fails.
        dynamic: which sizes of tensors, from 2 on, and which numbers are symbols, so that one entry serves them all
            (docs/dynamic-shapes.md). None: those that change between calls, or are marked (`mark_dynamic`); True: all
            that can be, from the first call on; False: none. Custom backends get symbolic sizes with True alone.
        backend: a name from `list_backends()`, or a callable `(torch.fx.GraphModule, example_inputs) -> callable`.
        mode: None or "default"; on GPUs also "reduce-overhead" (CUDA graphs), "max-autotune-no-cudagraphs" (products
            are generated if they are measured to be faster), "max-autotune" (both). Modes change nothing on a CPU.
        options: see `smelt.config.Config`; an unknown name is an error. `smelt.config.set` changes the defaults.
        operators: the operators in the graphs that a custom backend receives. None: torch's functions, as the program calls
            them; "core": core ATen; "prims": torch's primitives. With a set, sizes are fixed, and the backend receives
            forward and backward (docs/custom-backends.md).
        disable: return `model` as it is; the environment variable `SMELT_DISABLE=1` does so for a whole process.

    A compiled module shares its state with the original: parameters, buffers, attributes and state_dict keys.

    Raises:
        OptionError: a wrong value or unknown name, with the nearest valid one.
        TypeError: `model` is None or not callable.
        NotImplementedError: the feature is not implemented.
        Unavailable: smelt cannot work with this torch or Python, and `fullgraph` is set. Otherwise `model` is returned
            as it is, and one warning says why.
    """
    if model is None:
        raise TypeError("smelt.compile: model is None; as a decorator, call it without a model")
    return _compiler().compile(
        None if model is _ABSENT else model,
        fullgraph=fullgraph,
        dynamic=dynamic,
        backend=backend,
        mode=mode,
        options=options,
        operators=operators,
        disable=disable,
    )


def save_cache(path: str | os.PathLike[str]) -> int:
    """Write the compiled entries that this process has found or made, with the option `warm_start`, to one file, which
    `load_cache` reads in another process (docs/warm-starts.md). Return their number. Raises OSError."""
    written: int = _compiler().save_cache(path)
    return written


def load_cache(path: str | os.PathLike[str]) -> int:
    """Read the compiled entries in a file that `save_cache` wrote; return their number. Functions that are compiled with the
    option `warm_start` find them at their first call. An entry holds machine code: load only files that you would run.

    Raises OSError, and CacheError for a file that is damaged or that another user could have written.
    """
    read: int = _compiler().load_cache(path)
    return read


def compile_(module: Any, **options: Any) -> None:
    """Compile the calls of an nn.Module in place, as `Module.compile()` does with torch's compiler: the object, its class
    and its state_dict keys stay. `options` are those of `compile`. Copies and pickles of the module are not compiled.

    Raises what `compile` raises, and TypeError if `module` is not an nn.Module.
    """
    if isinstance(module, type) or not hasattr(module, "_call_impl"):
        raise TypeError(f"smelt.compile_: module must be an nn.Module, got {module!r}")
    module._compiled_call_impl = compile(module._call_impl, **options)


def explain(fn: Callable[..., Any], *, times: int = 0, **options: Any) -> Callable[..., Explanation]:
    """Explain the compilation of `fn`: `smelt.explain(fn)(*args, **kwargs)` calls it once, compiled, and returns an
    `Explanation` (`smelt/report/explanation.py`): graphs, breaks, guards, recompiles, kernels, memory, time. Print it.

    Args:
        fn: a callable, uncompiled, or compiled by smelt or torch.compile, also a module compiled in place. If smelt compiled
            it and there are no `options`, the call uses its entries; otherwise `compile` compiles it anew, with `options`.
        times: the number of further calls that time kernels (median microseconds) with torch's profiler. To choose the
            timed calls yourself, make them under `.timing()`.

    `fn` runs once per call, as a compiled function does: its effects, random numbers and `.grad`s are those of one
    call, or of the `times` calls. More calls with `.call(...)` show recompiles. A backward is compiled when its first
    gradient arrives: call `backward()` under `.watching()`. The memory that eager would save is measured on other
    tensors, by running the recorded torch calls, not `fn`; the state of the random generators is restored.

    Raises what `compile` raises, OptionError for negative `times`, the exceptions of the call, and Unavailable if
    smelt cannot work with this torch or Python.
    """
    anew = functools.partial(compile, **options)
    explained: Callable[..., Explanation] = _compiler().explain(fn, anew, bool(options), times)
    return explained


def reset() -> None:
    """Drop everything compiled: empty every cache and free the memory of plans. Compiled callables stay valid and
    compile again at their next call."""
    _compiler().reset()


@overload
def disable(fn: None = ..., recursive: bool = ...) -> Callable[[F], F]: ...
@overload
def disable(fn: F, recursive: bool = ...) -> F: ...
def disable(fn: Any = None, recursive: bool = True) -> Any:
    """Mark a function, callable or module to run eagerly and never be captured; of a class, the creation and the calls of
    its instances. Usable as a decorator.

    A compiled function that calls it breaks the graph there. Nothing compiles while it runs,
    except, with `recursive=False`, compiled functions that it calls.
    """
    return _compiler().disable(fn, recursive)


def is_compiling() -> bool:
    """True while the calling code is being captured, False when it runs."""
    return False  # capture answers True in place of this call


def graph_break() -> None:
    """Request a graph break at this call. Does nothing in eager code."""


graph_break.__smelt_graph_break__ = True  # type: ignore[attr-defined]
is_compiling.__smelt_is_compiling__ = True  # type: ignore[attr-defined]


def trace(
    fn: Callable[..., Any],
    *,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "smelt",
    options: dict[str, Any] | None = None,
) -> Callable[..., Trace]:
    """Capture the graphs of one call: `smelt.trace(fn)(*args, **kwargs)` returns a `smelt.report.traces.Trace`, whose
    torch-level, aten-level, joint, forward and backward graphs can be printed, walked, edited and run
    (docs/artifacts.md).

    The call is made once, compiled, with its effects on arguments and environment. Existing compilations of `fn` are
    neither used nor changed. `Trace.result` is the call's result.

    Args:
        fn: an argument of `smelt.compile`. Of a compiled function the original is traced.
        dynamic, backend, options: as for `smelt.compile`, as far as they affect capture.

    Raises:
        OptionError, TypeError: as `smelt.compile` does.
        Unavailable: smelt cannot work with this torch or Python.
        Unsupported: nothing of the call could be captured, for the stated reason; the call was made eagerly.
        SmeltError: the call contained nothing to capture.

    Exceptions of `fn` propagate.
    """
    return _compiler().trace(fn, dynamic=dynamic, backend=backend, options=options)


def export(
    model: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    gradients: bool = False,
    methods: Mapping[str, tuple[Any, ...] | dict[str, Any]] | None = None,
    targets: str | Sequence[str] = "host",
) -> Program:
    """Return a call of `model`, or calls of several methods, as a program that runs without the model's code and the
    compiler, also in another process: `smelt.export(model, (x,)).save("m.smelt")`, then `smelt.load("m.smelt")(x)`
    (docs/export.md).

    smelt captures the call without computing it. The program checks its arguments for the facts on which the capture
    depended; globals, attributes of modules and settings of torch keep their values of the export.

    Args:
        model: an nn.Module or another callable, compiled or not.
        args, kwargs: of the call: tensors on the CPU or on one NVIDIA GPU, numbers, strings, None, and tuples, lists,
            dicts, named tuples and dataclasses of these.
        dynamic_shapes: the sizes that may differ, in torch.export's form: by parameter, for each dimension of a tensor a
            `smelt.Dim`, `Dim.AUTO` or None. Other sizes are those of the call.
        gradients: also export the backward, for parameters and arguments that require grad. Results then have a `grad_fn`,
            and `Program.parameters` are for an optimizer. By default a program computes no gradients.
        methods: instead of `args`, the arguments of several methods, which share weights: a tuple, or a dict of keyword
            arguments, for each name; "forward" is the model itself. `dynamic_shapes` are then by method.
            `Program.method(name)` calls one.
        targets: one or more processors for which smelt generates machine code: "host", this machine's, and levels of x86-64
            ("x86-64-v2", "x86-64-v3", "x86-64-v4"), which this machine may lack. `smelt.load` takes the best that fits.

    Raises:
        ExportError: the call is not one graph, has effects outside of buffers, or contradicts `dynamic_shapes`, or a target
            is unknown. The message names the user's line or the argument, and what to do.
        TypeError: the arguments do not fit the model's signature.
        Unavailable: smelt cannot work with this torch or Python.

    Exceptions of `model` propagate.
    """
    exporter: Any = _compiler()
    names = (targets,) if isinstance(targets, str) else tuple(targets)
    program: Program = exporter.export(model, args, kwargs, dynamic_shapes, gradients, methods, names)
    return program


def load(path: str | os.PathLike[str], weights: str | os.PathLike[str] | None = None) -> Program:
    """Return the program in a file that `Program.save` wrote. Neither loading nor running it imports the compiler, unless
    the file has no plans for this processor or this torch; then they are compiled, with one warning.

    Weights are views of the mapped file. Load only programs that you would run: their plans hold machine code.

    Args:
        path: the file of the program.
        weights: the safetensors file with its weights, if it was saved with one (`Program.save(path, weights)`). smelt finds
            weights by name; for tied weights, one of their names suffices.

    Raises:
        OSError: a file cannot be read.
        ProgramError: the file is not a program, has a newer format, or is damaged; its weights are in another file; or a
            weight is missing, or has another dtype or shape.
        Unavailable: smelt's native extension does not fit this torch or Python.
    """
    from smelt import compatibility, config, errors  # noqa: PLC0415 (imports torch)

    if compatibility.unavailable is not None and not config.DISABLED:
        raise errors.Unavailable(f"smelt.load: {compatibility.unavailable}")
    from smelt.exported import program  # noqa: PLC0415 (imports the native extension)

    return program.load(path, weights)


def symbolic_trace(
    root: Any,
    concrete_args: dict[str, Any] | tuple[Any, ...] | None = None,
    *,
    example_inputs: Sequence[Any] | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    leaves: Sequence[type] | Callable[[Any, str], bool] | None = None,
    dynamic: bool = False,
    level: Literal["torch", "aten"] = "torch",
) -> GraphModule:
    """Return a module or function as a `smelt.GraphModule`: a graph to print, rewrite and run (docs/fx.md).

    Without example inputs, the program runs on proxies, as with torch.fx, and raises where it needs the value, the size or
    the length of one. With example inputs, smelt captures the call, in which all sizes are known, without computing it, and
    restores attributes that the program sets. The graph then checks that dtypes, sizes and plain values are the example's.

    Args:
        root: an nn.Module or a Python function. The result shares its parameters and buffers.
        concrete_args: values of parameters, by name, in place of proxies; `smelt.fx.PH` stands for a proxy in containers.
        example_inputs, example_kwargs: arguments of a call. Tensors are inputs of the graph, other values are constants.
        leaves: which calls of modules are nodes, instead of what they compute: classes, or a function of a module and its
            path. None: the modules of torch.nn except Sequential.
        dynamic: with example inputs: the graph accepts other sizes for which the program decides the same.
        level: with example inputs: "aten" is a functional graph of ATen operators, without modules.

    Raises:
        smelt.fx.TraceError: the program needs a value; the message names the user's line.
        OptionError: a wrong argument.
        SmeltError: the result holds an object that a graph cannot return.
        Unavailable: smelt cannot work with this torch or Python.

    Exceptions of the program propagate.
    """
    _compiler().check_available("symbolic_trace")
    from smelt import fx  # noqa: PLC0415 (imports the compiler)

    return fx.symbolic_trace(
        root,
        concrete_args,
        example_inputs=example_inputs,
        example_kwargs=example_kwargs,
        leaves=leaves,
        dynamic=dynamic,
        level=level,
    )


def set_logs(*, json: str | os.PathLike[str] | None = None, **names: bool) -> None:
    """Turn logs on and off, as `SMELT_LOGS=breaks,recompiles` does: `set_logs(breaks=True, guards=False)`.

    The names are breaks, recompiles, sizes, guards, graphs, fusion, kernels, plan, perf (docs/logs.md); other logs
    stay as they are. Each is a logger `smelt.<name>`.

    Args:
        json: a file to which every compilation event is appended as a line of JSON; "" stops that.
        names: the logs to turn on or off.

    Raises OptionError for an unknown name, a value that is not a bool, or a file that cannot be written.
    """
    from smelt.report import logs  # noqa: PLC0415

    logs.set_logs(json=json, **names)


def dump(directory: str | os.PathLike[str], *, override: bool = False) -> AbstractContextManager[Dump]:
    """Writes readable files of all that is compiled within the context into `directory`, which is made if need be: for
    entry 0 of `forward` the files `forward.0.frame.py`, `.torch.py`, `.aten.py`, `.joint.py`, `.forward.py`, `.backward.py`,
    `.loops.txt`, `.ll`, `.plan.txt`, ... (docs/artifacts.md says what is in them).

    The environment variable `SMELT_DUMP=directory` does it for a whole process; under torchrun, rank 1 writes
    `directory.rank1`, and so on. What was compiled before is not written.

    Args:
        override: a graph whose file is there, and was edited, is compiled in place of the captured one: `.torch.py`; or
            `.aten.py`, or `.joint.py`, `.forward.py` and `.backward.py` where gradients are needed. A compiled frame that
            was edited (`.frame.py`) runs in place of smelt's own, in its file, where it fits; else it is warned of. Edited
            files are kept. The environment variable `SMELT_OVERRIDE=directory` does this for a whole process, and writes
            nothing.

    The context gives an object whose `files` are the paths that were written.

    Raises OSError where the directory cannot be made; a file that cannot be written is logged. With `override`, a compiled
    call raises `smelt.errors.ArtifactError` where an edited graph has other inputs, outputs or writes than the captured one.
    """
    return _compiler().dump(directory, override)


def list_backends() -> list[str]:
    """The names that `compile(backend=...)` accepts."""
    return _compiler().list_backends()


def register_backend(fn: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Register `fn(gm: torch.fx.GraphModule, example_inputs: list[Tensor]) -> callable` as a backend. Usable as a
    decorator.

    Raises OptionError if the name is taken.
    """
    if fn is None:
        return functools.partial(register_backend, name=name)
    _compiler().register_backend(fn, name)
    return fn
