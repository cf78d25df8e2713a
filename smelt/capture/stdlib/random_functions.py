"""Random numbers that Python's `random` and `numpy.random` draw.

The compiled frame draws them for real, before the graph runs and in program order, so each call has its own, and the state
of the generator is eager's. To the trace such a number is a symbolic number that no guard can see (`ChangingNumbers.draw`):
where it decides what runs next, or is needed itself, the graph breaks, with the number drawn. An array is an input of the
graph. What a method gives (its type, its shape) is found by a trial, on a generator of its own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import CYTHON_FUNCTIONS, Args, Kwargs, function, method
from smelt.capture.base.value_kinds import LEAF_TYPES, FunctionType
from smelt.capture.environment.python_random import Draw
from smelt.capture.proxies.array_proxy import Array, is_traceable
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.guards.source import Source
from smelt.reasons import RANDOM_STATE, Reason
from smelt.shapes.number_bounds import Bounds
from smelt.shapes.number_operations import Number
from smelt.tracing.symbolic.sym_numbers import NUMBERS, hint, plain

_LARGEST = (1 << 63) - 1

# Methods of `random.Random` that give a float, and those that never raise and give a float for any numbers.
_FLOATS = (
    "random", "uniform", "gauss", "normalvariate", "triangular", "betavariate", "expovariate", "lognormvariate",
    "vonmisesvariate", "gammavariate", "paretovariate", "weibullvariate",
)  # fmt: skip
_INTS = ("randint", "randrange", "getrandbits")
_OF_SEQUENCES = ("choice", "choices", "sample")
_ANY_NUMBERS = frozenset(("uniform", "gauss", "normalvariate"))
_NUMPY = frozenset(
    (
        "rand", "randn", "random", "random_sample", "uniform", "normal", "standard_normal", "randint", "integers", "choice",
        "permutation", "beta", "binomial", "chisquare", "dirichlet", "exponential", "f", "gamma", "geometric", "gumbel",
        "hypergeometric", "laplace", "logistic", "lognormal", "logseries", "multinomial", "multivariate_normal",
        "negative_binomial", "noncentral_chisquare", "noncentral_f", "pareto", "poisson", "power", "rayleigh",
        "standard_cauchy", "standard_exponential", "standard_gamma", "standard_t", "triangular", "vonmises", "wald",
        "weibull", "zipf",
    )
)  # fmt: skip


def _methods() -> dict[str, object]:
    """The methods of `random.Random`, which call each other."""
    return {name: found for name, found in vars(random.Random).items() if not name.startswith("__")}


_METHODS = _methods()


def draw(vm: VM, generator: object, name: str, args: Args, kwargs: Kwargs) -> object:
    """`generator.name(*args, **kwargs)`. Raises Unsupported where the compiled frame cannot make that call, or what it gives
    is no number, list of numbers or array."""
    if vm.outside.sources.of(generator) is None or generator in vm.outside.log:
        raise _refused(name, "of a generator that the function made or changed")
    if isinstance(generator, random.Random):
        vm.outside.facts.use_class(random.Random)
        if _methods() != _METHODS:
            raise _refused(name, "of a class whose methods were replaced")
    given = tuple(_argument(vm, a, name) for a in args)
    named = {k: _argument(vm, v, name) for k, v in kwargs.items()}
    tried = getattr(_scratch(generator), name)(*map(hint, given), **{k: hint(v) for k, v in named.items()})
    source = Source("drawn", name, None, len(vm.outside.log.draws))
    count = len(tried) if type(tried) is list else 0
    made = _made(vm, isinstance(generator, random.Random), name, tried, source, given, named)
    vm.outside.log.draw(Draw(generator, name, given, named, source, count))
    return made


def _refused(name: str, why: str) -> Unsupported:
    return Unsupported(Reason(RANDOM_STATE, f"random.{name} {why}"))


def _scratch(generator: object) -> object:
    """A generator of the same kind, whose numbers nobody misses."""
    if isinstance(generator, random.Random):
        return random.Random(0)
    if isinstance(generator, np.random.Generator):
        return np.random.default_rng(0)
    return np.random.RandomState(0)


def _argument(vm: VM, value: object, name: str) -> object:
    """`value` as an argument of the compiled frame's call: a constant, or a number that may be another at each call."""
    kind = type(value)
    if kind in NUMBERS:
        return value if name in _ANY_NUMBERS else plain(value)
    if kind in LEAF_TYPES or kind is range:
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_argument(vm, plain(v), name) for v in vm.elements(value))
    if isinstance(value, (np.dtype, type)):
        return value
    raise _refused(name, f"with a {kind.__qualname__}")


# ------------------------------------------------------------------------------------------------- what is drawn


def _made(
    vm: VM,
    python: bool,
    name: str,
    tried: object,
    source: Source,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> object:
    """The value of the machine for what a trial gave."""
    if type(tried) is int or type(tried) is float:
        return _number(vm, name, tried, source, _bounds(python, name, tried, args, kwargs))
    if type(tried) is list:
        between = _bounds(python, name, None, args, kwargs)
        return [_number(vm, name, v, source.child("item", i), between) for i, v in enumerate(tried)]
    if isinstance(tried, (np.ndarray, np.integer)) and is_traceable(np.asarray(tried)):
        return _array(vm, tried, source)
    raise _refused(name, f"that gives a {type(tried).__qualname__}")


def _number(vm: VM, name: str, tried: object, source: Source, between: Bounds) -> object:
    if not vm.outside.numbers.follows_counts:
        raise _refused(name, "while numbers are part of the trace")
    if not (type(tried) is float or (type(tried) is int and between is not None)):
        raise _refused(name, f"that gives a {type(tried).__qualname__}")
    return vm.outside.numbers.draw(source, tried, between)


def _array(vm: VM, tried: np.ndarray | np.generic, source: Source) -> Array:
    """The array as a graph input, of which the trace has a copy that it may write."""
    with vm.trace.paused():
        real = torch.from_numpy(np.asarray(tried))
    fake = vm.trace.fake(real, str(source.key))
    vm.outside.sources[id(fake)] = source.child("array", None)
    vm.outside.sources.keep(fake)
    return Array(fake.clone(), scalar=isinstance(tried, np.integer))


def _bounds(
    python: bool, name: str, tried: int | float | None, args: Sequence[object], kwargs: Mapping[str, object]
) -> Bounds:
    """Between which numbers the method gives one. None: any float. Raises Unsupported for ints that may not fit 64 bits."""
    find = _BETWEEN.get(name) if python else _NUMPY_BETWEEN.get(name)
    found = None if find is None or kwargs or any(type(a) in NUMBERS for a in args) else find(*args)
    if found is None and type(tried) is int and not python:
        return (-_LARGEST, _LARGEST)
    if found is not None and type(found[0]) is int and max(map(abs, found)) > _LARGEST:
        raise _refused(name, "of more than 64 bits")
    return found


def _below(*arguments: int) -> Bounds:
    values = range(*arguments[:3])
    return min(values[0], values[-1]), max(values[0], values[-1])


def _uniform(low: float, high: float) -> Bounds:
    ends = (float(low + (high - low) * 0.0), float(low + (high - low) * 1.0))
    return (min(ends), max(ends)) if all(map(math.isfinite, ends)) else None


def _of(values: int | Sequence[Number], *rest: object) -> Bounds:
    """The bounds of the elements; None where they are no numbers of one type."""
    elements = range(values) if isinstance(values, int) else values
    kinds = {type(v) for v in elements}
    if kinds in ({int}, {float}) and all(v == v for v in elements):
        return min(elements), max(elements)
    return None


_BETWEEN: dict[str, Callable[..., Bounds]] = {
    "random": lambda: (0.0, math.nextafter(1.0, 0.0)),
    "uniform": _uniform,
    "randint": lambda low, high: (low, high),
    "randrange": _below,
    "getrandbits": lambda count: (0, (1 << count) - 1),
    **dict.fromkeys(_OF_SEQUENCES, _of),
}
_NUMPY_BETWEEN: dict[str, Callable[..., Bounds]] = {
    **dict.fromkeys(("rand", "random", "random_sample"), _BETWEEN["random"]),
}
_PYTHON = frozenset((*_FLOATS, *_INTS, *_OF_SEQUENCES))


# -------------------------------------------------------------------------------------------------- who is called


def _of_python(name: str) -> None:
    """Registers the method `name` of `random.Random`."""

    def of_function(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if not args or type(args[0]) is not random.Random:
            raise _refused(name, "of another class")
        return draw(vm, args[0], name, args[1:], kwargs)

    def of_method(vm: VM, generator: object, *args: object, **kwargs: object) -> object:
        if type(generator) is not random.Random:
            raise _refused(name, "of another class")
        return draw(vm, generator, name, args, kwargs)

    if hasattr(vars(random.Random).get(name), "__code__"):
        function(vars(random.Random)[name])(of_function)
    else:
        method(random.Random, name)(of_method)


for _name in _PYTHON:
    _of_python(_name)


def _of_numpy(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    """The call of a function or unbound method of `numpy.random`, which Cython compiled."""
    name = fn.__name__
    if args and type(args[0]) in (np.random.RandomState, np.random.Generator) and name in _NUMPY:
        if getattr(type(args[0]), name, None) is fn:
            return draw(vm, args[0], name, args[1:], kwargs)
    raise Unsupported(Reason(RANDOM_STATE, f"numpy.random.{name}"))


for _module in ("numpy.random", "numpy.random.mtrand", "numpy.random._generator"):
    CYTHON_FUNCTIONS[_module] = _of_numpy
