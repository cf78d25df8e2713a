"""`make sweep`: operators on values at the edges, in every pair of dtypes, as eager gives them: each compiled by itself.

    python -m benchmarks.sweep_edges [--jobs N] [--part K/N] [--only NAME] [--every K]

Numbers at the edges (nan, inf, denormals, the largest and smallest, zeros of both signs), tensors, tensors without
dimensions and Python numbers as operands, every order of strides, nothing at all, in place and with `out=`. Compared are
values (of plain arithmetic bit by bit), dtypes, shapes, strides, what is written, and exceptions by type and first line. A
line for each difference, then a summary; exit status 1 where there is one. `--jobs` runs parts in processes of their own, so
that a crash is a line; `--every 50` takes each fiftieth comparison.

Where eager contradicts itself, each of its own answers will do, computed by eager from the same numbers (`ELSEWHERE`):

- `fmod` and `remainder` whose quotient overflows are NaN in a vector, a number in the tail or in a tensor with steps;
- `add` and `sub` with `alpha` round the product to half precision, but not in a vector;
- `gelu` of infinity is NaN where the tensor is contiguous, and infinity elsewhere;
- `var` whose squares overflow is NaN by Welford's algorithm, and infinity of a tensor without other dimensions; the mean
  beside it is infinite if only the last number is, else NaN, and not `mean`'s where numbers overflow on the way.

A sum is as exact as the numbers are large that cancel out in it: sums of integers as floats may differ by units in the last
place of the sum of their magnitudes, as eager's do from order to order (`SUMS`).
"""

from __future__ import annotations

import argparse
import collections
import gc
import itertools
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

INF, NAN = float("inf"), float("nan")
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
DTYPES = [*FLOATS, *WHOLE, torch.bool]
WITH_COMPLEX = [*DTYPES, torch.complex64]
NUMBERS: list[Any] = [2, -1, 0, 2.5, 0.1, -0.5, True, INF, NAN, 300, 1e308, 1000, 1j]

Program = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """`exact`: the operator's results agree bit by bit, as plain arithmetic does. `operands` makes them anew."""

    name: str
    program: Program
    operands: Callable[[], tuple[Any, ...]]
    exact: bool


# ---- operands


def edges(dtype: torch.dtype) -> torch.Tensor:
    """Numbers at the edges of a dtype, and common ones."""
    if dtype is torch.bool:
        return torch.tensor([True, False, True])
    if not dtype.is_floating_point and not dtype.is_complex:
        info = torch.iinfo(dtype)  # the smallest one divided by -1 ends an eager process
        least = [-1, -2, -7, info.min + 1] if info.min else [200, 255]
        return torch.tensor([0, 1, 2, 3, 7, 10, 100, info.max, info.max - 1, *least], dtype=dtype)
    if dtype.is_complex:
        return torch.tensor([0, 1, -1, 2 + 3j, 1e-3j, complex(INF, 1), complex(1, NAN)], dtype=dtype)
    limits = torch.finfo(dtype)
    far = [limits.max, limits.min, limits.tiny, -limits.tiny, limits.smallest_normal / 4, limits.eps]
    plain_numbers = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 7.3, -0.1, 100.7, 1e-3, -33.3, INF, -INF, NAN]
    return torch.tensor(plain_numbers + far, dtype=torch.float64).to(dtype)


def column(dtype: torch.dtype) -> torch.Tensor:
    return edges(dtype)[:, None]


def scalar(dtype: torch.dtype, position: int) -> torch.Tensor:
    """A tensor without dimensions."""
    values = edges(dtype)
    return values[position % len(values)].clone()


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.reshape(-1, 3).t(),
    "permuted": lambda x: x.reshape(1, -1, 3, 1).permute(2, 0, 3, 1),
    "stepped": lambda x: x.repeat_interleave(2)[::2],
    "expanded": lambda x: x[:, None].expand(-1, 2),
    "channels_last": lambda x: (
        x.reshape(-1, 3, 1, 1).expand(-1, 3, 2, 1).contiguous(memory_format=torch.channels_last)
    ),
    "one": lambda x: x[3:4].clone(),
    "scalar": lambda x: x[1].clone(),
    "empty": lambda x: x[:0].clone(),
    "empty_matrix": lambda x: x[:0].reshape(0, 3),
}


def laid_out(dtype: torch.dtype, layout: str) -> torch.Tensor:
    values = edges(dtype)
    if dtype in WHOLE:
        values = torch.cat([values, torch.tensor([torch.iinfo(dtype).min], dtype=dtype)])
    return LAYOUTS[layout](torch.cat([values] * 3)[: len(values) // 3 * 3 + 3])


# ---- operators

BINARY: dict[str, Program] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "rsub": torch.rsub,
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "floor_divide": lambda x, y: x // y,
    "maximum": torch.maximum, "minimum": torch.minimum, "fmax": torch.fmax, "fmin": torch.fmin,
    "copysign": torch.copysign, "nextafter": torch.nextafter, "heaviside": torch.heaviside,
    "gcd": torch.gcd, "lcm": torch.lcm, "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "ge": torch.ge,
    "bitwise_and": lambda x, y: x & y, "bitwise_or": lambda x, y: x | y, "bitwise_xor": lambda x, y: x ^ y,
    "shift_left": lambda x, y: x << y, "shift_right": lambda x, y: x >> y,
    "logical_and": torch.logical_and, "logical_xor": torch.logical_xor,
    "clamp_min": lambda x, y: torch.clamp(x, min=y), "clamp_max": lambda x, y: torch.clamp(x, max=y),
    "where": lambda x, y: torch.where(x == x, x, y), "masked_fill": lambda x, y: x.masked_fill(x == x, y),
    "isclose": torch.isclose, "mul_then_add": lambda x, y: x * y + x, "reversed_sub": lambda x, y: y - x,
    "reversed_div": lambda x, y: y / x, "reversed_floor": lambda x, y: y // x,
}  # fmt: skip
TRANSCENDENTAL_BINARY: dict[str, Program] = {
    "pow": torch.pow, "rpow": lambda x, y: y**x, "atan2": torch.atan2, "hypot": torch.hypot, "xlogy": torch.xlogy,
    "xlog1py": torch.special.xlog1py, "logaddexp": torch.logaddexp, "logaddexp2": torch.logaddexp2,
    "float_power": torch.float_power, "ldexp": torch.ldexp, "remainder": torch.remainder, "fmod": torch.fmod,
    "add_alpha": lambda x, y: torch.add(x, y, alpha=3), "sub_alpha": lambda x, y: torch.sub(x, y, alpha=2.5),
    "reversed_rem": lambda x, y: y % x,
}  # fmt: skip
UNARY: dict[str, Program] = {
    name: getattr(torch, name)
    for name in (
        "neg", "abs", "sign", "sgn", "floor", "ceil", "trunc", "round", "frac", "reciprocal", "square", "relu",
        "isnan", "isinf", "isfinite", "isposinf", "signbit", "logical_not", "bitwise_not", "positive", "clone",
        "nan_to_num", "zeros_like", "ones_like", "deg2rad",
    )
}  # fmt: skip
UNARY |= {
    "round_decimals": lambda x: torch.round(x, decimals=2), "to_float": lambda x: x.float(), "to_int": lambda x: x.int(),
    "to_half": lambda x: x.half(), "to_bool": lambda x: x.bool(), "to_uint8": lambda x: x.to(torch.uint8),
    "to_long": lambda x: x.long(), "to_bfloat16": lambda x: x.bfloat16(), "hardtanh": F.hardtanh, "relu6": F.relu6,
    "threshold": lambda x: F.threshold(x, 0.5, 2), "leaky_relu": F.leaky_relu, "hardshrink": F.hardshrink,
    "softshrink": F.softshrink, "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish,
}  # fmt: skip
TRANSCENDENTAL_UNARY: dict[str, Program] = {
    name: getattr(torch, name)
    for name in (
        "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos",
        "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv", "lgamma",
        "digamma", "logit", "sinc", "i0",
    )
}  # fmt: skip
TRANSCENDENTAL_UNARY |= {
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "mish": F.mish, "elu": F.elu,
    "selu": F.selu, "celu": F.celu, "softplus": F.softplus, "logsigmoid": F.logsigmoid, "softsign": F.softsign,
    "pow2": lambda x: x**2, "pow_half": lambda x: x**0.5, "pow_minus": lambda x: x**-1, "pow3": lambda x: x**3,
    "pow1000": lambda x: x**1000, "pow_minus2": lambda x: x**-2, "pow_odd": lambda x: x**2.5, "exp_of_two": lambda x: 2**x,
}  # fmt: skip
REDUCTIONS: dict[str, Program] = {
    name: getattr(torch, name)
    for name in (
        "sum", "mean", "prod", "amax", "amin", "any", "all", "argmax", "argmin", "max", "min", "std", "var", "logsumexp",
        "softmax", "log_softmax", "cumsum", "cumprod", "cummax", "nansum", "nanmean", "count_nonzero", "median", "sort",
        "logcumsumexp", "std_mean", "var_mean", "aminmax", "mode",
    )
}  # fmt: skip
REDUCTIONS |= {
    "norm": lambda x, dim: torch.linalg.vector_norm(x, dim=dim), "norm1": lambda x, dim: torch.norm(x, 1, dim),
    "norm_inf": lambda x, dim: torch.norm(x, INF, dim), "norm3": lambda x, dim: torch.norm(x, 3, dim),
    "sum_float": lambda x, dim: x.sum(dim, dtype=torch.float32), "sum_half": lambda x, dim: x.sum(dim, dtype=torch.half),
    "prod_long": lambda x, dim: x.prod(dim, dtype=torch.int64), "softmin": F.softmin,
    "softmax_float": lambda x, dim: torch.softmax(x, dim, dtype=torch.float32),
    "cumsum_int": lambda x, dim: x.cumsum(dim, dtype=torch.int32),
    "mean_double": lambda x, dim: x.mean(dim, dtype=torch.double),
}  # fmt: skip
EXACT_REDUCTIONS = {
    "amax", "amin", "any", "all", "argmax", "argmin", "max", "min", "cummax", "count_nonzero", "median", "sort",
    "aminmax", "mode", "norm_inf", "prod_long", "cumsum_int",
}  # fmt: skip
# Of zeros with both signs, eager itself gives one or the other.
ORDERING = {
    "maximum", "minimum", "fmax", "fmin", "clamp_min", "clamp_max", "clamp", "clamp_", "amin", "amax", "min", "max",
    "softshrink", "sort",
    "median", "mode", "aminmax", "cummax", "norm_inf",
}  # fmt: skip
SUMS = {"sum_float", "mean_double"}
TERNARY: dict[str, Program] = {
    "addcmul": torch.addcmul, "addcmul_value": lambda x, y, z: torch.addcmul(x, y, z, value=3),
    "addcdiv": torch.addcdiv, "addcdiv_value": lambda x, y, z: torch.addcdiv(x, y, z, value=0.3),
    "lerp": torch.lerp, "clamp": torch.clamp, "where": lambda x, y, z: torch.where(x > 0, y, z),
    "lerp_number": lambda x, y, z: torch.lerp(x, y, 0.3), "sum_of_products": lambda x, y, z: x * y + z,
    "addcmul_number": lambda x, y, z: torch.addcmul(x, y, z, value=2.5),
}  # fmt: skip
IN_PLACE: dict[str, Program] = {
    name: (lambda x, y, name=name: getattr(x, name)(y))
    for name in (
        "add_", "sub_", "mul_", "div_", "floor_divide_", "remainder_", "fmod_", "pow_", "fill_", "clamp_", "eq_",
        "copy_", "bitwise_and_", "atan2_", "xlogy_", "logical_or_", "copysign_",
    )
}  # fmt: skip
OUT: dict[str, Program] = {
    "add": torch.add, "mul": torch.mul, "div": torch.div, "eq": torch.eq, "pow": torch.pow, "maximum": torch.maximum,
    "fmod": torch.fmod,
}  # fmt: skip
REFUSED: dict[str, Program] = {
    "dim": lambda x: x.sum(7), "view": lambda x: x.view(5, 77), "expand": lambda x: x.expand(-3, 2, 2),
    "cat": lambda x: torch.cat([x, x[:, :1]], 0), "matmul": lambda x: x @ x, "broadcast": lambda x: x[:, :2] + x[:, :3],
    "select": lambda x: x.select(0, 99), "permute": lambda x: x.permute(0, 0), "squeeze": lambda x: x.squeeze(9),
    "conv": lambda x: F.conv1d(x, x), "embedding": lambda x: F.embedding(x, x), "index": lambda x: x[x],
    "gather": lambda x: x.gather(0, x), "linear": lambda x: F.linear(x, x[:, :1]), "bmm": lambda x: torch.bmm(x, x),
    "softmax": lambda x: x.softmax(4), "cumsum": lambda x: x.cumsum(-3), "mse": lambda x: F.mse_loss(x[0, 0], x.half()),
    "one_hot": lambda x: F.one_hot(x), "tril": lambda x: x[0].tril(), "norm": lambda x: torch.norm(x, 2, 5),
    "dropout": lambda x: F.dropout(x, 2.0), "layer_norm": lambda x: F.layer_norm(x, (77,)), "inv": torch.linalg.inv,
    "pad": lambda x: F.pad(x, (1, 1), mode="reflect"), "max": lambda x: x[:0].max(), "argmax": lambda x: x[:0].argmax(),
    "stack": lambda x: torch.stack([x, x[0]]), "chunk": lambda x: x.chunk(0), "repeat": lambda x: x.repeat(2),
    "bce": lambda x: F.binary_cross_entropy(x, x), "cross_entropy": lambda x: F.cross_entropy(x, x[:, 0]),
    "arange": lambda x: torch.arange(5, 1, dtype=x.dtype), "full": lambda x: torch.full((2,), 1e308, dtype=x.dtype),
    "polar": lambda x: torch.polar(x, x), "complex": lambda x: torch.complex(x, x), "topk": lambda x: x.topk(99),
    "clamp_none": lambda x: x.clamp(), "floor_zero": lambda x: x // 0, "remainder_zero": lambda x: x % 0,
}  # fmt: skip


# ---- cases


def cases() -> Iterator[Case]:
    """All comparisons, in an order that does not change."""
    yield from _binary(BINARY, True)
    yield from _binary(TRANSCENDENTAL_BINARY, False)
    yield from _unary(UNARY, True)
    yield from _unary(TRANSCENDENTAL_UNARY, False)
    yield from _reductions()
    yield from _ternary()
    yield from _in_place()
    for (name, program), dtype in itertools.product(REFUSED.items(), WITH_COMPLEX):
        yield Case(f"refused {name} {_short(dtype)}", program, lambda d=dtype: (_matrix(d),), False)


def _binary(operators: dict[str, Program], exact: bool) -> Iterator[Case]:
    for (name, program), left in itertools.product(operators.items(), WITH_COMPLEX):
        for right in WITH_COMPLEX:
            kinds: dict[str, Callable[[], tuple[Any, ...]]] = {
                "tensors": lambda a=left, b=right: (column(a), edges(b)),
                "scalar": lambda a=left, b=right: (edges(a), scalar(b, 3)),
                "of scalar": lambda a=left, b=right: (scalar(a, 4), edges(b)),
            }
            for kind, operands in kinds.items():
                yield Case(f"{name} {kind} {_short(left)} {_short(right)}", program, operands, exact)
        for number in NUMBERS:
            with_number = lambda x, program=program, number=number: program(x, number)  # noqa: E731
            label = f"{name} number {_short(left)} {number!r}"
            yield Case(label, with_number, lambda a=left: (edges(a),), exact)


def _unary(operators: dict[str, Program], exact: bool) -> Iterator[Case]:
    for (name, program), dtype, layout in itertools.product(operators.items(), WITH_COMPLEX, LAYOUTS):
        label = f"{name} {layout} {_short(dtype)}"
        yield Case(label, program, lambda d=dtype, at=layout: (laid_out(d, at),), exact)


def _reductions() -> Iterator[Case]:
    for (name, program), dtype, layout in itertools.product(REDUCTIONS.items(), DTYPES, LAYOUTS):
        for dim in (0, -1):
            reduced = lambda x, program=program, dim=dim: program(x, dim=dim)  # noqa: E731
            label = f"{name} dim {dim} {layout} {_short(dtype)}"
            operands = lambda d=dtype, at=layout: (laid_out(d, at),)  # noqa: E731
            yield Case(label, reduced, operands, name in EXACT_REDUCTIONS)


def _ternary() -> Iterator[Case]:
    for (name, program), first, second in itertools.product(TERNARY.items(), DTYPES, DTYPES):
        kinds: dict[str, Callable[[], tuple[Any, ...]]] = {
            "tensors": lambda a=first, b=second: (column(a), edges(a), edges(b)[:, None, None]),
            "scalar": lambda a=first, b=second: (edges(a), edges(b)[:1], scalar(b, 5)),
            "same": lambda a=first, b=second: (column(a), edges(a), edges(a)[:, None, None].to(b).to(a)),
        }
        for kind, operands in kinds.items():
            exact = name in ("clamp", "where", "sum_of_products")
            yield Case(f"{name} {kind} {_short(first)} {_short(second)}", program, operands, exact)


def _in_place() -> Iterator[Case]:
    for (name, program), left, right in itertools.product(IN_PLACE.items(), DTYPES, DTYPES):
        exact = name not in ("pow_", "atan2_", "xlogy_", "remainder_", "fmod_")
        matrix = lambda a=left, b=right: (column(a).repeat(1, 2), edges(b)[:2])  # noqa: E731
        yield Case(f"{name} {_short(left)} {_short(right)}", program, matrix, exact)
        number = lambda x, program=program: program(x, 2.5)  # noqa: E731
        if right is DTYPES[0]:
            yield Case(f"{name} {_short(left)} 2.5", number, lambda a=left: (edges(a),), exact)
    for (name, program), left, right in itertools.product(OUT.items(), DTYPES, DTYPES):
        into = lambda x, y, out, program=program: program(x, y, out=out)  # noqa: E731
        operands = lambda a=left, b=right: (edges(a), scalar(a, 2), torch.zeros(len(edges(a)), dtype=b))  # noqa: E731
        yield Case(f"{name} out {_short(left)} {_short(right)}", into, operands, name not in ("pow", "fmod"))


def _matrix(dtype: torch.dtype) -> torch.Tensor:
    return edges(dtype)[:3].repeat(5, 2)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---- what is right

Answer = Callable[[Case], Any]


def in_vectors(case: Case) -> Any:
    """Eager's answer where each number is in a whole vector; operands without dimensions stay."""
    return _spread(case, lambda x: x.expand(64, *x.shape).contiguous())[0]


def in_steps(case: Case) -> Any:
    """Eager's answer from tensors with steps, which are read number by number."""
    return _spread(case, lambda x: torch.stack([x, x], -1)[..., 0])


def _spread(case: Case, lay: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    operands = case.operands()
    shape = torch.broadcast_shapes(*(x.shape for x in operands))
    return case.program(*(lay(x.expand(shape)) if x.dim() or len(operands) == 1 else x for x in operands))


def alone(case: Case) -> Any:
    """Eager's answer of a reduction from each line of numbers by itself."""
    return _by_line(case, case.program)


def alone_reversed(case: Case) -> Any:
    """Eager's answer of a reduction from each line of numbers by itself, backwards."""
    return _by_line(case, lambda x: case.program(x.flip(0)))


def apart(case: Case) -> Any:
    """Eager's answer of `std_mean` or `var_mean` from its two halves, each line of numbers by itself."""
    spread = getattr(torch, case.name.split("_")[0])
    return _by_line(case, lambda x: (spread(x), x.mean()))


def _by_line(case: Case, f: Program) -> Any:
    (x,) = case.operands()
    lines = x.movedim(int(case.name.split()[2]), -1) if x.dim() else x[None]
    if not lines.numel():
        return None
    each = [f(line.clone()) for line in lines.reshape(-1, lines.shape[-1])]
    if isinstance(each[0], torch.Tensor):
        return torch.stack(each).reshape(lines.shape[:-1])
    return [torch.stack(parts).reshape(lines.shape[:-1]) for parts in zip(*each)]


ELSEWHERE: dict[str, tuple[Answer, ...]] = {
    **dict.fromkeys(("fmod", "remainder", "reversed_rem", "add_alpha", "sub_alpha", "gelu"), (in_vectors, in_steps)),
    **dict.fromkeys(("std", "var"), (alone,)),
    **dict.fromkeys(("std_mean", "var_mean"), (alone, alone_reversed, apart)),
}  # fmt: skip


@dataclass(frozen=True)
class Known:
    """Beside eager's result: the same in double precision, eager's other answers, the sum of the magnitudes of a sum."""

    exact: Any = None
    others: tuple[Any, ...] = ()
    summed: Any = None

    def part(self, i: int) -> Known:
        """Of one of several results."""
        return Known(_part(self.exact, i), tuple(_part(x, i) for x in self.others), _part(self.summed, i))


def _part(value: Any, i: int) -> Any:
    return value[i] if isinstance(value, (tuple, list)) and i < len(value) else None


def known(case: Case) -> Known:
    """What is known of the results of a case that eager does not refuse."""
    name = case.name.split()[0]
    exact = None if case.exact else computed(case, lambda x: x.double() if x.is_floating_point() else x)
    others = tuple(answer(case) for answer in ELSEWHERE.get(name, ()))
    return Known(exact, others, computed(case, lambda x: x.double().abs()) if name in SUMS else None)


def computed(case: Case, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """What the program gives for changed operands; None where it refuses them."""
    given = tuple(change(x) if isinstance(x, torch.Tensor) else x for x in case.operands())
    try:
        return case.program(*given)
    except Exception:
        return None


# ---- comparing


def outcome(program: Program, case: Case) -> tuple[Any, ...]:
    """("value", result, operands as they are then) or ("error", type, first line, operands)."""
    operands = case.operands()
    torch.manual_seed(0)
    try:
        return "value", program(*operands), operands
    except Exception as error:
        line = str(error).splitlines()[0] if str(error) else ""
        return "error", f"{type(error).__name__}: {line}", operands


def difference(got: Any, want: Any, case: Case, beside: Known) -> str | None:
    """The first difference of two results; None where they agree."""
    if isinstance(want, (tuple, list)):
        if len(got) != len(want):
            return f"{len(got)} results, eager {len(want)}"
        each = (difference(g, w, case, beside.part(i)) for i, (g, w) in enumerate(zip(got, want)))
        return next((d for d in each if d is not None), None)
    if not isinstance(want, torch.Tensor):
        return None if repr(got) == repr(want) else f"{got!r}, eager {want!r}"
    for what in ("dtype", "shape"):
        if getattr(got, what) != getattr(want, what):
            return f"{what} {getattr(got, what)}, eager {getattr(want, what)}"
    if got.stride() != want.stride():
        return f"strides {got.stride()}, eager {want.stride()}"
    return _values(got, want, case, beside)


def _values(got: torch.Tensor, want: torch.Tensor, case: Case, beside: Known) -> str | None:
    signs = case.name.split()[0] not in ORDERING
    exact = None if case.exact or want.is_complex() else _exact(want, beside)
    unlike = _unlike(got, want, exact, beside.summed, signs)
    for other in beside.others:
        if isinstance(other, torch.Tensor) and other.shape == want.shape:
            unlike &= _unlike(got, other, exact, beside.summed, signs)
    if not unlike.any():
        return None
    first = tuple(unlike.nonzero()[0].tolist())
    return f"{int(unlike.sum())} of {want.numel()} elements, at {first}: {got[first].item()!r}, eager {want[first].item()!r}"


def _exact(want: torch.Tensor, beside: Known) -> torch.Tensor:
    usable = isinstance(beside.exact, torch.Tensor) and beside.exact.shape == want.shape
    return (beside.exact if usable and not beside.exact.is_complex() else want).double()


def _unlike(
    got: torch.Tensor,
    want: torch.Tensor,
    exact: torch.Tensor | None,
    summed: torch.Tensor | None,
    signs: bool,
) -> torch.Tensor:
    """Where values differ. With `exact`, the same in double precision, an error may be twice eager's."""
    unlike = ~((got == want) | ((got != got) & (want != want)))
    if want.dtype.is_complex:
        unlike &= ~torch.isclose(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)
    elif want.dtype.is_floating_point and exact is not None:
        unlike &= ~_near(got.double(), want.double(), exact, want.dtype, summed)
    elif want.dtype.is_floating_point and signs:
        unlike |= (got == 0) & (want == 0) & (got.signbit() != want.signbit())
    return unlike


def _near(
    got: torch.Tensor,
    want: torch.Tensor,
    exact: torch.Tensor,
    dtype: torch.dtype,
    summed: torch.Tensor | None,
) -> torch.Tensor:
    """Where an error is at most twice eager's, or a few units in the last place, of a sum that of what it `summed`."""
    eps, least = max(torch.finfo(dtype).eps, 1e-12), torch.finfo(dtype).smallest_normal
    size = exact.abs() if summed is None else summed.double()
    room = 2 * (want - exact).abs() + (size + least) * 2 * eps
    near = (got - want).abs() <= want.abs() * 4 * eps + 2 * least
    return near | ((got - exact).abs() <= room.nan_to_num(nan=INF, posinf=INF))


def compare(case: Case) -> str | None:
    """How the compiled program differs from the eager one; None where it does not."""
    import smelt

    want = outcome(case.program, case)
    got = outcome(smelt.compile(case.program), case)
    if got[0] != want[0]:
        return f"{got[0]} {got[1]!r:.100}, eager {want[0]} {want[1]!r:.120}"
    if want[0] == "error":
        return None if got[1] == want[1] else f"raised {got[1]:.120}, eager {want[1]:.120}"
    return difference(got[1], want[1], case, known(case)) or difference(got[2], want[2], case, Known())


def run(part: int, parts: int, only: list[str] | None, every: int) -> collections.Counter[str]:
    """Differences by operator, each printed; the key "" counts the comparisons."""
    found: collections.Counter[str] = collections.Counter()
    for i, case in enumerate(cases()):
        if i % every or (i // every) % parts != part or (only and case.name.split()[0] not in only):
            continue
        found[""] += 1
        try:
            message = compare(case)
        except Exception as error:  # the comparison itself
            message = f"{type(error).__name__}: {error}"
        if message is not None:
            found[case.name.split()[0]] += 1
            print(f"DIFFERENCE {case.name}: {' '.join(message.split())}", flush=True)
        if found[""] % 500 == 0:
            import smelt

            smelt.reset()
            gc.collect()
    return found


def summary(found: collections.Counter[str]) -> str:
    """How many comparisons, how many differ, and of which operators."""
    names = ", ".join(f"{name} {count}" for name, count in found.most_common() if name)
    return (
        f"SUMMARY {found['']} comparisons, {found.total() - found['']} differ{': ' + names if names else ''}"
    )


def _in_processes(jobs: int, rest: list[str]) -> collections.Counter[str]:
    def part(k: int) -> tuple[int, str]:
        command = [sys.executable, "-m", "benchmarks.sweep_edges", "--part", f"{k}/{jobs}", *rest]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        return done.returncode, done.stdout

    total: collections.Counter[str] = collections.Counter()
    with ThreadPoolExecutor(jobs) as pool:
        for status, said in pool.map(part, range(jobs)):
            lines = said.splitlines()
            for line in lines:
                if line.startswith("DIFFERENCE "):
                    print(line, flush=True)
                    total[line.split()[1]] += 1
                elif line.startswith("SUMMARY "):
                    total[""] += int(line.split()[1])
            if not lines or not lines[-1].startswith("SUMMARY "):
                print(f"DIFFERENCE process ended with {status}", flush=True)
                total["process"] += 1
    return total


def main() -> None:
    """The whole sweep, or a part of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--part", help="K/N: in this process, part K (from 0) of N")
    parser.add_argument("--only", action="append")
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    if options.part is None:
        rest = [a for name in options.only or () for a in ("--only", name)]
        found = _in_processes(options.jobs, [*rest, "--every", str(options.every)])
    else:
        warnings.simplefilter("ignore")
        logging.getLogger("smelt").setLevel(logging.CRITICAL)
        part, parts = map(int, options.part.split("/"))
        with torch.no_grad():
            found = run(part, parts, options.only, options.every)
    print(summary(found))
    sys.exit(found.total() > found[""])


if __name__ == "__main__":
    main()
