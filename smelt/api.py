"""The public functions, with torch.compile's names and arguments.

A wrong argument raises OptionError or TypeError at once; one whose feature is not built yet, NotImplementedError.
`callables.py` does the work: the first call of a function here imports it, and with it the whole compiler
(`support.compiler`). Where smelt cannot work, `eager_only.py` stands in its place.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar, overload

from smelt import compatibility

F = TypeVar("F", bound=Callable[..., Any])


@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | Callable[..., Any] = ...,
    mode: str | None = ...,
    options: dict[str, Any] | None = ...,
    disable: bool = ...,
) -> Callable[[F], F]: ...
@overload
def compile(
    model: F,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | Callable[..., Any] = ...,
    mode: str | None = ...,
    options: dict[str, Any] | None = ...,
    disable: bool = ...,
) -> F: ...
def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "smelt",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Returns `model` compiled: called with the same arguments it gives the same results, faster.

    Args:
        model: a function, method, callable object or nn.Module. None: returns a decorator.
        fullgraph: raise `smelt.errors.Unsupported` (on the user's line) where the graph would break or capture fails.
        dynamic: which sizes of tensors, from 2 on, and which numbers are symbols, so that one entry serves them all
            (docs/dynamic-shapes.md). None: those that are seen to change, or are marked (`mark_dynamic`); True: all sizes
            that can be, from the first call on; False: none. Sizes are symbols with the backend "smelt" alone.
        backend: a name from `list_backends()`, or a callable `(torch.fx.GraphModule, example_inputs) -> callable`.
        mode: None or "default"; on GPUs also "reduce-overhead" (CUDA graphs), "max-autotune-no-cudagraphs" (products are
            generated where that is measured to be faster), "max-autotune" (both). Nothing else changes on a CPU.
        options: see `smelt.config.Config`; an unknown name is an error.
        disable: return `model` as it is.

    A compiled module shares its state with the original: same parameters, buffers, attributes and state_dict keys.

    Raises:
        OptionError: a wrong value or unknown name, with the nearest valid one.
        TypeError: `model` cannot be called.
        NotImplementedError: the feature is not built yet.
        Unavailable: smelt cannot work with this torch or Python, and `fullgraph` asked for a program that is compiled
            as a whole. Without it, `model` is returned as it is, and a warning says why, once.
    """
    return compatibility.compiler().compile(
        model,
        fullgraph=fullgraph,
        dynamic=dynamic,
        backend=backend,
        mode=mode,
        options=options,
        disable=disable,
    )


def explain(fn: Callable[..., Any], *, times: int = 0, **options: Any) -> Callable[..., Any]:
    """What becomes of `fn`: `smelt.explain(fn)(*args, **kwargs)` calls it once, compiled, and returns an `Explanation`
    (`smelt/report/explanation.py`): graphs, breaks, guards, recompiles, kernels, memory, time. Print it.

    Args:
        fn: what `compile` takes, which is compiled with `options` (those of `compile`), or what it returned.
        times: how many more calls are made to time kernels (median microseconds), under torch's profiler. To choose what is
            timed, make calls under `.timing()`.

    `fn` runs once for each call, as a call of the compiled function does: its effects, random numbers and `.grad`s are those
    of one call, or of as many as `times` asks for. More calls with `.call(...)` show recompiles. A backward is compiled when
    its first gradient comes: call `backward()` under `.watching()`. What eager would keep for the backward is measured on
    other tensors, by running the recorded torch calls, not `fn`; the state of random numbers is put back.

    Raises what `compile` raises, OptionError for `times` below 0, what the call raises, and Unavailable where smelt cannot
    work with this torch or Python.
    """
    anew = functools.partial(compile, fn, **options)
    explained: Callable[..., Any] = compatibility.compiler().explain(fn, anew, bool(options), times)
    return explained


def reset() -> None:
    """Forgets everything compiled: every cache is emptied, memory held by plans is freed. Compiled callables stay valid
    and compile again at their next call."""
    compatibility.compiler().reset()


def disable(fn: Any = None, recursive: bool = True) -> Any:
    """Marks a function, callable or module to be run eagerly, never captured. Usable as a decorator.

    A compiled function that calls it has a graph break there. Nothing is newly compiled while it runs.
    """
    return compatibility.compiler().disable(fn, recursive)


def is_compiling() -> bool:
    """True while the calling code is being captured, False when it runs."""
    return False  # capture answers True in place of this call


def graph_break() -> None:
    """Asks for a graph break here. Does nothing when run eagerly."""


graph_break.__smelt_graph_break__ = True  # type: ignore[attr-defined]
is_compiling.__smelt_is_compiling__ = True  # type: ignore[attr-defined]


def trace(
    fn: Callable[..., Any],
    *,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "smelt",
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """`smelt.trace(fn)(*args, **kwargs)` gives the graphs of this call: a `smelt.report.traces.Trace`, whose torch-level,
    aten-level, joint, forward and backward graphs print, can be walked, edited, and run (docs/artifacts.md).

    The call is made once, by what is compiled for it, with all that it does to its arguments and elsewhere; nothing else is
    changed, and what was compiled of `fn` before is not asked. `Trace.result` is what it returned.

    Args:
        fn: what `smelt.compile` takes. Of what is compiled already, the original is traced.
        dynamic, backend, options: as for `smelt.compile`; what they decide of a capture they decide here.

    Raises:
        OptionError, TypeError: as `smelt.compile` does.
        Unavailable: smelt cannot work with this torch or Python.
        Unsupported: nothing of the call could be captured, for the reason that it names; the call was made eagerly.
        SmeltError: there was nothing to capture in the call.
    Exceptions of `fn` are its own.
    """
    return compatibility.compiler().trace(fn, dynamic=dynamic, backend=backend, options=options)


def set_logs(*, json: str | os.PathLike[str] | None = None, **names: bool) -> None:
    """Turns logs on and off, as `SMELT_LOGS=breaks,recompiles` does: `set_logs(breaks=True, guards=False)`.

    The names are breaks, recompiles, sizes, guards, graphs, fusion, kernels, plan, perf (docs/logs.md); those that are not
    named stay as they are. Each is a logger `smelt.<name>`.

    Args:
        json: a file that every event of a compilation is added to, as a line of JSON; "" for none from now on.
        names: which are on.

    Raises OptionError for an unknown name, a value that is no bool, or a file that cannot be written.
    """
    from smelt.report import logs  # noqa: PLC0415

    logs.set_logs(json=json, **names)


def dump(directory: str | os.PathLike[str], *, override: bool = False) -> AbstractContextManager[Any]:
    """Writes readable files of all that is compiled within the context into `directory`, which is made if need be: for
    entry 0 of `forward` the files `forward.0.frame.py`, `.torch.py`, `.aten.py`, `.joint.py`, `.forward.py`, `.backward.py`,
    `.loops.txt`, `.ll`, `.plan.txt`, ... (docs/artifacts.md says what is in them).

    The environment variable `SMELT_DUMP=directory` does it for a whole process. What was compiled before is not written.

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
    return compatibility.compiler().dump(directory, override)


def list_backends() -> list[str]:
    """Names accepted by `compile(backend=...)`."""
    return compatibility.compiler().list_backends()


def register_backend(fn: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Registers `fn(gm: torch.fx.GraphModule, example_inputs: list[Tensor]) -> callable` as a backend; a decorator too.

    Raises OptionError when the name is taken.
    """
    if fn is None:
        return functools.partial(register_backend, name=name)
    compatibility.compiler().register_backend(fn, name)
    return fn
