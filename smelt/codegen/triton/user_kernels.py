"""Properties of user kernels before a launch: objects of `triton.jit`, `triton.autotune` and `triton.heuristics`. It
does not import Triton: a program with a kernel has done so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

JIT, TUNER, INTERPRETER = "triton.runtime.jit", "triton.runtime.autotuner", "triton.runtime.interpreter"


def _is(kernel: object, module: str, name: str) -> bool:
    return any((c.__module__, c.__name__) == (module, name) for c in type(kernel).__mro__)


def is_tuner(kernel: object) -> bool:
    """Whether it is an autotuner."""
    return _is(kernel, TUNER, "Autotuner")


def is_heuristics(kernel: object) -> bool:
    """Whether it computes constants from the arguments."""
    return _is(kernel, TUNER, "Heuristics")


def is_interpreted(kernel: object) -> bool:
    """Whether Triton's interpreter runs it."""
    return _is(kernel, INTERPRETER, "InterpretedFunction")


def is_compiled(kernel: object) -> bool:
    """Whether it is compiled for a GPU."""
    return _is(kernel, JIT, "JITFunction")


def is_triton_object(value: object) -> bool:
    """Whether it is one of Triton's types or constants, or a function that a kernel calls."""
    return (
        type(value).__module__.startswith("triton.language.") or is_compiled(value) or is_interpreted(value)
    )


def runner(kernel: Any) -> Callable[..., object]:
    """The method `run`, unbound."""
    run: Callable[..., object] = type(kernel).run
    return run


def name_of(function: Any) -> str:
    """The name of the function that `triton.jit` was given."""
    return str(function.fn.__name__)


def parameters(function: Any) -> Sequence[str]:
    """The parameter names of a `triton.jit` function."""
    names: Sequence[str] = function.arg_names
    return names


def constant_parameters(function: Any) -> frozenset[str]:
    """The constexpr parameters."""
    if is_interpreted(function):
        marks = function.fn.__annotations__.items()
        return frozenset(n for n, mark in marks if "constexpr" in str(getattr(mark, "__name__", mark)))
    return frozenset(p.name for p in function.params if p.is_constexpr)


def defaults(function: Any) -> dict[str, object]:
    """The defaults of parameters."""
    code, values = function.fn.__code__, function.fn.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    return dict(zip(names[len(names) - len(values) :], values))


def configurations(tuner: Any) -> list[dict[str, object]] | None:
    """The constants among which an autotuner chooses; None if they are unknown before it runs."""
    replaced = any(getattr(config, "ir_override", None) for config in tuner.configs)
    if tuner.early_config_prune is not None or replaced:
        return None
    return [dict(config.kwargs) for config in tuner.configs]


def rules(heuristics: Any) -> dict[str, object]:
    """By name of a constant, the function that computes it from a dictionary of arguments."""
    return dict(heuristics.values)


def has_hooks(wrapper: Any) -> bool:
    """Whether user functions run with the launches of an autotuner."""
    hooks = ("user_defined_pre_hook", "user_defined_post_hook")
    return any(getattr(wrapper, name, False) for name in hooks) or any(
        config.pre_hook for config in getattr(wrapper, "configs", ())
    )


def put_back(wrapper: Any) -> set[str]:
    """The names of the tensors that an autotuner restores between launches."""
    return {*getattr(wrapper, "reset_to_zero", ()), *getattr(wrapper, "restore_value", ())}


def value_of(constant: object) -> object:
    """The value of a Triton constant, or the value itself."""
    return getattr(constant, "value", constant)
