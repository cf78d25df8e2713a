"""The user's Triton kernels (`kernel[grid](x, out, n, BLOCK=1024)`): a launch is a node of the graph that mutates tensors.

Capture launches nothing. The graph calls the kernel by Triton's own launcher, as the program does, so its results, tuning,
compilation and errors are those of eager. Capture computes the grid, for each choice of constants that a tuner may make, and
derives the mutated tensors from Triton's IR of the kernel (`codegen/triton/pointer_writes.py`); where it cannot, it assumes
that the kernel mutates all tensors.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Collection, Sequence

from smelt._native import isinstance
from smelt.capture.base.call_handlers import LAZY_FUNCTIONS, Args, Kwargs, unsupported
from smelt.capture.base.value_kinds import LEAF_TYPES, MISSING
from smelt.capture.semantics import attributes
from smelt.capture.vm.vm import VM
from smelt.codegen.triton import user_kernels as known
from smelt.codegen.triton.pointer_writes import WritesElsewhere, mutated_parameters
from smelt.codegen.triton.value_expressions import TYPES
from smelt.graph.user_kernel_calls import Grids
from smelt.reasons import UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT
from smelt.torch_private import maybe_current_level
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.user_kernel_recorder import record
from smelt.tracing.symbolic.numbers_in_containers import specialize_nested
from smelt.tracing.symbolic.sym_numbers import SYMBOLIC, hint

_MAX_CHOICES = 64  # of constants
_INT32 = range(-(1 << 31), 1 << 31)

Values = dict[str, object]  # by parameter name


def _run(vm: VM, args: Args, kwargs: Kwargs) -> None:
    """`kernel.run(*args, grid=grid, warmup=False, **options)`, which `kernel[grid](*args, **options)` calls."""
    kernel, *rest = args
    options = dict(kwargs)
    grid, warmup = options.pop("grid", MISSING), options.pop("warmup", False)
    if grid is MISSING or warmup is not False:
        raise unsupported("a Triton kernel that is compiled, not launched")
    if maybe_current_level() is not None:
        raise unsupported("a Triton kernel inside of a transform of torch.func")
    if id(kernel) not in vm.env.sources:
        raise unsupported("a Triton kernel created inside the function", UNSUPPORTED_OBJECT)
    vm.env.facts.use_identity(kernel)
    function, wrappers = _unwrapped(vm, kernel)
    names, fixed = known.parameters(function), known.constant_parameters(function)
    # The code depends on constants and on options that are no parameters (`num_warps`).
    arguments = [specialize_nested(v) if name in fixed else v for v, name in zip(rest, names)]
    options = {k: v if k in names and k not in fixed else specialize_nested(v) for k, v in options.items()}
    if len(arguments) < len(rest) or any(name in options for name in names[: len(arguments)]):
        raise unsupported("a Triton kernel with arguments that do not match its parameters")
    for value in (*arguments, *options.values()):
        _check(vm, function, value)
    named = {**known.defaults(function), **dict(zip(names, arguments)), **options}
    choices = _choices(vm, wrappers, named)
    grids = _grid(vm, names, grid, named, choices)
    mutated = _mutated(vm, function, wrappers, named, choices, fixed)
    record(vm.trace, kernel, known.name_of(function), grids, tuple(arguments), options, mutated)


def _with_grid(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """`kernel[grid]`: a launcher that calls `run`, as Triton's does. Programs only call it."""
    kernel, grid = args
    return functools.partial(types.MethodType(known.runner(kernel), kernel), grid=grid, warmup=False)


def _wrap(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """`torch.library.wrap_triton(kernel)`, which is called like the kernel."""
    (kernel,) = args
    if not known.is_compiled(kernel) and not known.is_tuner(kernel):
        raise unsupported("wrap_triton of an object that is not a Triton kernel")
    return kernel


LAZY_FUNCTIONS.update({
    (known.JIT, "KernelInterface.__getitem__"): _with_grid, (known.JIT, "JITFunction.run"): _run,
    (known.INTERPRETER, "InterpretedFunction.run"): _run, (known.TUNER, "Autotuner.run"): _run,
    (known.TUNER, "Heuristics.run"): _run, ("torch._library.triton", "wrap_triton"): _wrap,
})  # fmt: skip


def _unwrapped(vm: VM, kernel: object) -> tuple[object, list[object]]:
    """The result of `triton.jit`, and the wrappers around it, outermost first."""
    wrappers = []
    while known.is_tuner(kernel) or known.is_heuristics(kernel):
        wrappers.append(kernel)
        kernel = attributes.load_attr(vm, kernel, "fn")
    if not known.is_compiled(kernel) and not known.is_interpreted(kernel):
        raise unsupported(f"a Triton kernel around a {type(kernel).__qualname__}")
    return kernel, wrappers


def _check(vm: VM, function: object, value: object) -> None:
    """Raise Unsupported for an argument that a node cannot hold or a kernel does not accept."""
    if isinstance(value, FakeTensor):
        if value.subclass is not None:
            raise unsupported("a Triton kernel on a tensor of a subclass", UNSUPPORTED_OBJECT)
        if value.device.type != "cuda" and not known.is_interpreted(function):
            raise unsupported(f"a Triton kernel on a tensor on {value.device}", UNSUPPORTED_OBJECT)
    elif isinstance(value, tuple) and type(value) is tuple:
        for element in value:
            _check(vm, function, element)
    elif type(value) in LEAF_TYPES or type(value) in SYMBOLIC:
        return
    elif known.is_triton_object(value) and id(value) in vm.env.sources:
        vm.env.facts.use_identity(value)
    else:
        raise unsupported(
            f"a Triton kernel with a {type(value).__qualname__} as an argument", UNSUPPORTED_OBJECT
        )


def _choices(vm: VM, wrappers: Sequence[object], named: Values) -> list[Values]:
    """The choices of constants that tuners and heuristics may make."""
    found: list[Values] = [{}]
    for wrapper in wrappers:
        if known.is_heuristics(wrapper):
            for choice in found:
                for name, rule in known.rules(wrapper).items():
                    choice[name] = specialize_nested(vm.call(rule, ({**named, **choice},), {}))
            continue
        configurations = known.configurations(wrapper)
        if configurations is None:
            raise unsupported("a Triton kernel whose tuner generates its own configurations")
        found = [{**choice, **more} for choice in found for more in configurations]
        if len(found) > _MAX_CHOICES:
            raise unsupported(f"a Triton kernel with more than {_MAX_CHOICES} configurations")
    return found


# ---- the grid


def _grid(
    vm: VM, names: Sequence[str], grid: object, named: Values, choices: Sequence[Values]
) -> Grids | Sequence[object]:
    if isinstance(grid, (tuple, list)):
        return _checked(grid)
    meta = {name: value for name, value in named.items() if name in names}
    rows = [_checked(vm.call(grid, ({**meta, **choice},), {})) for choice in choices]
    if len(rows) == 1:
        return rows[0]
    keys = tuple(name for name in choices[0] if name in names)
    if any(choice.keys() != choices[0].keys() for choice in choices):
        raise unsupported("a Triton kernel whose configurations set different parameters")
    return Grids(keys, {tuple(choice[k] for k in keys): row for choice, row in zip(choices, rows)})


def _checked(grid: object) -> Sequence[object]:
    sizes: Sequence[object] = grid if isinstance(grid, (tuple, list)) else ()
    if not 1 <= len(sizes) <= 3 or not all(type(hint(n)) is int for n in sizes):
        raise unsupported("a Triton kernel on a grid that is not a tuple of one to three ints")
    return list(sizes) if isinstance(sizes, list) else tuple(sizes)


# ---- mutated tensors


def _mutated(
    vm: VM,
    function: object,
    wrappers: Sequence[object],
    named: Values,
    choices: Sequence[Values],
    fixed: Collection[str],
) -> list[FakeTensor]:
    """The tensors that the kernel, or a hook that runs with it, may mutate."""
    inside = [t for value in named.values() if isinstance(value, tuple) for t in _tensors_of(value)]
    everything = [*_tensors_of(tuple(named.values()))]
    hooked = vm.truth(attributes.load_attr(vm, function, "pre_run_hooks"))
    if known.is_interpreted(function) or inside or hooked or any(map(known.has_hooks, wrappers)):
        return everything
    mutated = {name for wrapper in wrappers for name in known.put_back(wrapper)}
    for choice in choices:
        try:
            found = mutated_parameters(function, *_signature(function, {**named, **choice}, fixed))
        except WritesElsewhere:
            raise unsupported(
                "a Triton kernel that writes through pointers other than its arguments", UNSUPPORTED_EFFECT
            ) from None
        if found is None:
            return everything
        mutated |= found
    return [v for name, v in named.items() if name in mutated and isinstance(v, FakeTensor)]


def _tensors_of(values: tuple[object, ...]) -> list[FakeTensor]:
    found: list[FakeTensor] = []
    for value in values:
        if isinstance(value, FakeTensor):
            found.append(value)
        elif isinstance(value, tuple):
            found += _tensors_of(value)
    return found


def _signature(function: object, values: Values, fixed: Collection[str]) -> tuple[dict[str, str], Values]:
    """The Triton type of each parameter, and the values of the constant ones."""
    kinds: dict[str, str] = {}
    constants: Values = {}
    for name in known.parameters(function):
        if name not in values:
            raise unsupported(f"a Triton kernel without an argument for {name}")
        kinds[name] = "constexpr" if name in fixed else _type_of(values[name])
        if kinds[name] == "constexpr":
            constants[name] = known.value_of(values[name])
    return kinds, constants


def _type_of(value: object) -> str:
    if isinstance(value, FakeTensor):
        return "*" + TYPES.get(value.dtype, "i8")
    number = hint(value)
    if type(number) is int:
        return "i32" if number in _INT32 else "i64"
    return {bool: "i1", float: "fp32"}.get(type(number), "constexpr")
