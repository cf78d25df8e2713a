"""Random numbers of Python's `random` and of `numpy.random`.

The compiled frame makes the draws before the graph runs, in program order, so each call has its own numbers and the
generator has eager's state. To the trace, a draw is a symbolic number that guards cannot check (`DynamicNumbers.draw`): if
it decides control flow or must be concrete, the graph breaks after the draw. A drawn array is a graph input. A trial draw on
a separate generator determines the type and shape of a method's result.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import CYTHON_FUNCTIONS, Args, Kwargs, function, method
from smelt.capture.base.value_kinds import LEAF_TYPES, FunctionType
from smelt.capture.environment.python_random import Draw
from smelt.capture.proxies.array_proxy import ArrayProxy, is_traceable
from smelt.capture.reconstruction.reconstruction_kind import Expressions, ReconstructionKind, unsupported
from smelt.capture.reconstruction.reconstruction_table import RECONSTRUCTION_KINDS
from smelt.capture.vm.vm import VM
from smelt.errors import Unsupported
from smelt.guards.source import Source
from smelt.reasons import RANDOM_STATE, Reason
from smelt.shapes.number_bounds import Bounds
from smelt.shapes.number_operations import Number
from smelt.tracing.symbolic.sym_numbers import NUMBERS, hint, specialize

_INT64_MAX = (1 << 63) - 1

# Methods of `random.Random` that return a float; those in `_ANY_NUMBER_METHODS` do so for any numbers, without raising.
_FLOAT_METHODS = (
    "random", "uniform", "gauss", "normalvariate", "triangular", "betavariate", "expovariate", "lognormvariate",
    "vonmisesvariate", "gammavariate", "paretovariate", "weibullvariate",
)  # fmt: skip
_STATE_METHODS = ("seed", "setstate")  # which give nothing
_INT_METHODS = ("randint", "randrange", "getrandbits")
_SEQUENCE_METHODS = ("choice", "choices", "sample")
_ANY_NUMBER_METHODS = frozenset(("uniform", "gauss", "normalvariate"))
_NUMPY_METHODS = frozenset(
    (
        "seed", "rand", "randn", "random", "random_sample", "uniform", "normal", "standard_normal", "randint",
        "integers", "choice", "permutation", "beta", "binomial", "chisquare", "dirichlet", "exponential", "f",
        "gamma", "geometric", "gumbel", "hypergeometric", "laplace", "logistic", "lognormal", "logseries",
        "multinomial", "multivariate_normal", "negative_binomial", "noncentral_chisquare", "noncentral_f", "pareto",
        "poisson", "power", "rayleigh", "standard_cauchy", "standard_exponential", "standard_gamma", "standard_t",
        "triangular", "vonmises", "wald", "weibull", "zipf",
    )
)  # fmt: skip


def _random_methods() -> dict[str, object]:
    """Methods of `random.Random`, which call each other."""
    return {name: found for name, found in vars(random.Random).items() if not name.startswith("__")}


_RANDOM_METHODS = _random_methods()


def draw(vm: VM, generator: object, name: str, args: Args, kwargs: Kwargs) -> object:
    """`generator.name(*args, **kwargs)`. Raises Unsupported if the compiled frame cannot make that call, or if the result is
    not a number, a list of numbers or an array."""
    if generator in vm.env.log:
        raise _refusal(name, "of a generator that the function changed")
    if vm.env.sources.find(generator) is None:
        return _draw_created(vm, generator, name, args, kwargs)
    if isinstance(generator, random.Random):
        vm.env.facts.use_class(random.Random)
        if _random_methods() != _RANDOM_METHODS:
            raise _refusal(name, "of a class whose methods were replaced")
    arguments = tuple(constant_argument(vm, a, name) for a in args)
    keywords = {k: constant_argument(vm, v, name) for k, v in kwargs.items()}
    if name == "getstate":
        raise _refusal(name, "of a generator that exists outside of the function")
    if name in _STATE_METHODS:
        getattr(_trial_generator(generator), name)(*arguments, **keywords)  # may raise
        vm.env.log.record_draw(
            Draw(generator, name, arguments, keywords, Source("drawn", name, None, len(vm.env.log.draws)))
        )
        return None
    trial = getattr(_trial_generator(generator), name)(
        *map(hint, arguments), **{k: hint(v) for k, v in keywords.items()}
    )
    source = Source("drawn", name, None, len(vm.env.log.draws))
    count = len(trial) if type(trial) is list else 0
    value = _drawn_value(vm, isinstance(generator, random.Random), name, trial, source, arguments, keywords)
    vm.env.log.record_draw(Draw(generator, name, arguments, keywords, source, count))
    return value


def _draw_created(vm: VM, generator: object, name: str, args: Args, kwargs: Kwargs) -> object:
    """The draw of a generator that the function created with a constant seed: each call draws the same numbers, so capture
    makes it."""
    if type(generator) is not random.Random or (name == "seed" and not args):
        raise _refusal(name, "of a generator that the function created")
    population = [vm.elements(args[0])] if name in _SEQUENCE_METHODS and args else []
    arguments = population + [specialize(constant_argument(vm, a, name)) for a in args[len(population) :]]
    keywords = {k: specialize(constant_argument(vm, v, name)) for k, v in kwargs.items()}
    return getattr(generator, name)(*arguments, **keywords)


@function(random.Random.__init__)
def _init(vm: VM, args: Args, kwargs: Kwargs) -> None:
    """`random.Random(seed)`. Seeds other than constants are random themselves, or user code hashes them."""
    generator, *seeds = (*args, *kwargs.values())
    seed = specialize(seeds[0]) if seeds else None
    if (
        type(generator) is not random.Random
        or id(generator) in vm.env.sources
        or type(seed) not in (int, str, float, bytes)
    ):
        raise _refusal("Random", "without a constant seed")
    generator.seed(cast(int, seed))


def _refusal(name: str, why: str) -> Unsupported:
    return Unsupported(Reason(RANDOM_STATE, f"random.{name} {why}"))


def _trial_generator(generator: object) -> object:
    """A separate generator of the same kind."""
    if isinstance(generator, random.Random):
        return random.Random(0)
    if isinstance(generator, np.random.Generator):
        return np.random.default_rng(0)
    return np.random.RandomState(0)


def constant_argument(vm: VM, value: object, name: str) -> object:
    """`value` as an argument of the compiled frame's call: a constant, or a number that may change per call."""
    kind = type(value)
    if kind in NUMBERS:
        return value if name in _ANY_NUMBER_METHODS else specialize(value)
    if kind in LEAF_TYPES or kind is range:
        return value
    if isinstance(value, (list, tuple)):
        return tuple(constant_argument(vm, specialize(v), name) for v in vm.elements(value))
    if isinstance(value, (np.dtype, type)):
        return value
    raise _refusal(name, f"with a {kind.__qualname__}")


# ------------------------------------------------------------------------------------------------- results of draws


def _drawn_value(
    vm: VM,
    python: bool,
    name: str,
    trial: object,
    source: Source,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> object:
    """VM value for the result of a trial draw."""
    if type(trial) is int or type(trial) is float:
        return _drawn_number(vm, name, trial, source, _bounds(python, name, trial, args, kwargs))
    if type(trial) is list:
        bounds = _bounds(python, name, None, args, kwargs)
        return [_drawn_number(vm, name, v, source.child("item", i), bounds) for i, v in enumerate(trial)]
    if isinstance(trial, (np.ndarray, np.integer)) and is_traceable(np.asarray(trial)):
        return _drawn_array(vm, trial, source)
    raise _refusal(name, f"that gives a {type(trial).__qualname__}")


def _drawn_number(vm: VM, name: str, trial: object, source: Source, bounds: Bounds) -> object:
    if not vm.env.numbers.symbolic_counts:
        raise _refusal(name, "while numbers are symbolic in the trace")
    if not (type(trial) is float or (type(trial) is int and bounds is not None)):
        raise _refusal(name, f"that gives a {type(trial).__qualname__}")
    return vm.env.numbers.draw(source, trial, bounds)


def _drawn_array(vm: VM, trial: np.ndarray | np.generic, source: Source) -> ArrayProxy:
    """The array as a graph input, copied so that the trace may write it."""
    with vm.trace.paused():
        real = torch.from_numpy(np.asarray(trial))
    fake = vm.trace.fake(real, str(source.key))
    vm.env.sources[id(fake)] = source.child("array", None)
    vm.env.sources.keep_alive(fake)
    return ArrayProxy(fake.clone(), scalar=isinstance(trial, np.integer))


def _bounds(
    python: bool, name: str, trial: int | float | None, args: Sequence[object], kwargs: Mapping[str, object]
) -> Bounds:
    """Bounds of the method's result; None: any float. Raises Unsupported for ints that may exceed 64 bits."""
    bounds_of = _PYTHON_BOUNDS.get(name) if python else _NUMPY_BOUNDS.get(name)
    bounds = (
        None if bounds_of is None or kwargs or any(type(a) in NUMBERS for a in args) else bounds_of(*args)
    )
    if bounds is None and type(trial) is int and not python:
        return (-_INT64_MAX, _INT64_MAX)
    if bounds is not None and type(bounds[0]) is int and max(map(abs, bounds)) > _INT64_MAX:
        raise _refusal(name, "of more than 64 bits")
    return bounds


def _randrange_bounds(*arguments: int) -> Bounds:
    values = range(*arguments[:3])
    return min(values[0], values[-1]), max(values[0], values[-1])


def _uniform_bounds(low: float, high: float) -> Bounds:
    ends = (float(low + (high - low) * 0.0), float(low + (high - low) * 1.0))
    return (min(ends), max(ends)) if all(map(math.isfinite, ends)) else None


def _element_bounds(values: int | Sequence[Number], *rest: object) -> Bounds:
    """Bounds of the elements; None unless they are numbers of one type."""
    elements = range(values) if isinstance(values, int) else values
    kinds = {type(v) for v in elements}
    if kinds in ({int}, {float}) and all(v == v for v in elements):
        return min(elements), max(elements)
    return None


_PYTHON_BOUNDS: dict[str, Callable[..., Bounds]] = {
    "random": lambda: (0.0, math.nextafter(1.0, 0.0)),
    "uniform": _uniform_bounds,
    "randint": lambda low, high: (low, high),
    "randrange": _randrange_bounds,
    "getrandbits": lambda count: (0, (1 << count) - 1),
    **dict.fromkeys(_SEQUENCE_METHODS, _element_bounds),
}
_NUMPY_BOUNDS: dict[str, Callable[..., Bounds]] = {
    **dict.fromkeys(("rand", "random", "random_sample"), _PYTHON_BOUNDS["random"])
}
_PYTHON_METHODS = frozenset(("getstate", *_STATE_METHODS, *_FLOAT_METHODS, *_INT_METHODS, *_SEQUENCE_METHODS))


# -------------------------------------------------------------------------------------------------- registration


def _register_python(name: str) -> None:
    """Register the method `name` of `random.Random`."""

    def call_unbound(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if not args or type(args[0]) is not random.Random:
            raise _refusal(name, "of another class")
        return draw(vm, args[0], name, args[1:], kwargs)

    def call_bound(vm: VM, generator: object, *args: object, **kwargs: object) -> object:
        if type(generator) is not random.Random:
            raise _refusal(name, "of another class")
        return draw(vm, generator, name, args, kwargs)

    if hasattr(vars(random.Random).get(name), "__code__"):
        function(vars(random.Random)[name])(call_unbound)
    else:
        method(random.Random, name)(call_bound)


for _name in _PYTHON_METHODS:
    _register_python(_name)


def _call_numpy(vm: VM, fn: FunctionType, args: Args, kwargs: Kwargs) -> object:
    """Call of a Cython function or unbound method of `numpy.random`."""
    name = fn.__name__
    if name == "seed" and getattr(np.random, name) is fn:
        vm.env.sources.const(np.random.mtrand._rand)
        return draw(vm, np.random.mtrand._rand, name, args, kwargs)
    if args and type(args[0]) in (np.random.RandomState, np.random.Generator) and name in _NUMPY_METHODS:
        if getattr(type(args[0]), name, None) is fn:
            return draw(vm, args[0], name, args[1:], kwargs)
    raise Unsupported(Reason(RANDOM_STATE, f"numpy.random.{name}"))


for _module in ("numpy.random", "numpy.random.mtrand", "numpy.random._generator"):
    CYTHON_FUNCTIONS[_module] = _call_numpy


def _with_state(state: tuple[object, ...]) -> random.Random:
    generator = random.Random(0)
    generator.setstate(state)
    return generator


def _generator_text(x: random.Random, text: Expressions) -> str:
    """Capture has made the draws of a generator that the function created from a constant: its state is a constant."""
    if vars(x).keys() - {"gauss_next"}:
        raise unsupported(x, "which has attributes")
    return f"{text.constant(_with_state, 'with_state')}({text.constant(x.getstate(), 'state')})"


RECONSTRUCTION_KINDS[random.Random] = ReconstructionKind(lambda x: (), _generator_text)
