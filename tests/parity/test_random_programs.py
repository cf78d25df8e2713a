"""Random small tensor programs: eager and smelt must agree on values, metadata, mutation and aliasing.

A program is data: input tensors (shape, dtype, layout), then steps over the values made so far. Hypothesis draws it step by
step, running each step on real tensors, so that every program is one that eager accepts. `SMELT_EXAMPLES=5000` draws more
of them, and other ones each time.
"""

from __future__ import annotations

import operator
import os
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import smelt
from smelt.report.inspect import reasons
from tests.harness.agreement import observe, tensors
from tests.harness.catalogue import DEVICE

EXAMPLES = int(os.environ.get("SMELT_EXAMPLES", "0"))
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTS = [torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8]
DTYPES = [torch.float32] * 6 + FLOATS + INTS + [torch.bool]
LAYOUTS = ["contiguous", "contiguous", "transposed", "sliced", "expanded", "offset"]
SIZES = [0, 1, 1, 2, 3, 4, 5, 7, 8, 17, 33]
LIMIT = 20_000  # elements of the largest value


@dataclass(frozen=True)
class Input:
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: str

    def make(self, generator: torch.Generator) -> torch.Tensor:
        shape = list(self.shape)
        if self.layout == "transposed" and shape:
            base = self._filled(shape[::-1], generator)
            return base.permute(*range(base.dim() - 1, -1, -1))
        if self.layout == "sliced" and shape:
            wide = [*shape[:-1], shape[-1] * 2 + 1]
            return self._filled(wide, generator)[..., 1::2][..., : shape[-1]]
        if self.layout == "expanded" and shape:
            return self._filled([1, *shape[1:]], generator).expand(shape)
        if self.layout == "offset":
            return self._filled([self.numel + 3], generator)[3:].view(shape)
        return self._filled(shape, generator)

    @property
    def numel(self) -> int:
        n = 1
        for s in self.shape:
            n *= s
        return n

    def _filled(self, shape: list[int], generator: torch.Generator) -> torch.Tensor:
        """The same numbers on each device."""
        return self._drawn(shape, generator).to(DEVICE)

    def _drawn(self, shape: list[int], generator: torch.Generator) -> torch.Tensor:
        if self.dtype is torch.bool:
            return torch.rand(shape, generator=generator, device="cpu") > 0.5
        if not self.dtype.is_floating_point:
            low = 0 if self.dtype is torch.uint8 else -9
            return torch.randint(low, 10, shape, generator=generator, dtype=self.dtype, device="cpu")
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(self.dtype)


@dataclass
class Program:
    inputs: list[Input] = field(default_factory=list)
    steps: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def arguments(self, seed: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(i.make(generator) for i in self.inputs)

    def __call__(self, *values: torch.Tensor) -> list[Any]:
        made = list(values)
        for name, operands, extra in self.steps:
            made.append(STEPS[name](*[made[i] for i in operands], *extra))
        return [made[i] for i in self.results]

    def __str__(self) -> str:
        lines = [f"  v{i} = {v}" for i, v in enumerate(self.inputs)]
        for i, (name, operands, extra) in enumerate(self.steps, len(self.inputs)):
            lines.append(
                f"  v{i} = {name}({', '.join([f'v{o}' for o in operands] + [repr(e) for e in extra])})"
            )
        return "\n".join([*lines, "  return " + ", ".join(f"v{i}" for i in self.results)])


UNARY = {
    name: getattr(torch, name)
    for name in (
        "abs", "neg", "exp", "sin", "cos", "tanh", "sigmoid", "relu", "sqrt", "rsqrt", "reciprocal", "square", "floor",
        "ceil", "round", "trunc", "sign", "isnan", "isinf", "logical_not", "erf", "log1p", "expm1", "frac", "clone",
        "bitwise_not", "positive", "isfinite", "log", "log2", "exp2", "atan", "asinh",
    )
}  # fmt: skip
UNARY |= {
    name: getattr(F, name)
    for name in ("gelu", "silu", "softplus", "leaky_relu", "elu", "hardswish", "relu6", "mish", "logsigmoid")
}
BINARY = {
    name: getattr(torch, name)
    for name in (
        "add", "sub", "mul", "div", "floor_divide", "remainder", "maximum", "minimum", "pow", "atan2", "eq",
        "ne", "lt", "le", "gt", "ge", "logical_and", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "fmax",
        "fmin", "hypot", "bitwise_left_shift", "bitwise_right_shift", "heaviside",
    )
}  # fmt: skip
REDUCE = {
    name: getattr(torch, name)
    for name in (
        "sum",
        "mean",
        "amax",
        "amin",
        "prod",
        "all",
        "any",
        "argmax",
        "argmin",
        "var",
        "std",
        "logsumexp",
    )
}
DIM = {name: getattr(torch, name) for name in ("softmax", "log_softmax", "cumsum", "cumprod")}
INPLACE = {
    name: getattr(torch.Tensor, name)
    for name in (
        "add_",
        "mul_",
        "sub_",
        "copy_",
        "div_",
        "fill_",
        "zero_",
        "relu_",
        "neg_",
        "clamp_",
        "masked_fill_",
    )
}
SCALAR_FIRST = {"sub": operator.sub, "div": operator.truediv, "pow": operator.pow, "mul": operator.mul}
SCALAR_SECOND = sorted(set(BINARY) - {"heaviside", "hypot", "atan2", "maximum", "minimum", "fmax", "fmin"})
KINDS = ["unary", "unary", "binary", "binary", "scalar", "view", "view", "reduce", "inplace", "other"]
STEPS: dict[str, Any] = {
    **UNARY, **BINARY, **REDUCE, **DIM, **INPLACE,
    "scalar": lambda x, op, s: BINARY[op](x, s),
    "rscalar": lambda x, op, s: SCALAR_FIRST[op](s, x),
    "alpha": lambda x, y, a: torch.add(x, y, alpha=a),
    "where": lambda c, x, y: torch.where(c > 0, x, y),
    "where_scalar": lambda c, x, s: torch.where(c > 0, x, s),
    "to": lambda x, d: x.to(d),
    "transpose": lambda x, a, b: x.transpose(a, b),
    "permute": lambda x, p: torch.permute(x, p),
    "reshape": lambda x, s: x.reshape(s),
    "flatten": lambda x: x.flatten(),
    "unsqueeze": lambda x, d: x.unsqueeze(d),
    "squeeze": lambda x: x.squeeze(),
    "select": lambda x, d, i: x.select(d, i),
    "slice": lambda x, d, a, b, s: x[(slice(None),) * d + (slice(a, b, s),)],
    "expand": lambda x, n: x.unsqueeze(0).expand(n, *x.shape),
    "flip": lambda x, d: x.flip(d),
    "roll": lambda x, n, d: x.roll(n, d),
    "narrow": lambda x, d, a, n: x.narrow(d, a, n),
    "contiguous": lambda x: x.contiguous(),
    "detach": lambda x: x.detach(),
    "diagonal": lambda x: x.diagonal(),
    "tril": lambda x, k: x.tril(k),
    "pad": lambda x, p, v: F.pad(x, p, value=v),
    "cat": lambda x, y, d: torch.cat([x, y], d),
    "cat3": lambda x, d: torch.cat([x, x, x.clone()], d),
    "stack": lambda x, y, d: torch.stack([x, y], d),
    "matmul": lambda x, y: x @ y,
    "gram": lambda x: x @ x.transpose(-1, -2),
    "sort": lambda x, d: x.sort(d).values,
    "index": lambda x, i: x[torch.tensor(i)],
    "gather": lambda x, d: x.gather(d, torch.zeros([1] * x.dim(), dtype=torch.int64)),
    "masked_fill": lambda x, c, v: x.masked_fill(c.to(torch.bool), v),
    "set_item": lambda x, d, i, v: x.select(d, i).mul_(v),
    "set_slice": lambda x, d, v: x[(slice(None),) * d + (slice(None, None, 2),)].fill_(v),
    "set_transposed": lambda x, v: x.t().add_(v),
    "full_reduce": lambda x, op: REDUCE[op](x),
    "clamp": lambda x, a, b: x.clamp(a, b),
    "lerp": lambda x, y, w: torch.lerp(x, y, w),
    "addcmul": lambda x, y, v: torch.addcmul(x, y, y, value=v),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "full_like": lambda x, v: torch.full_like(x, v),
    "arange_add": lambda x: x + torch.arange(x.shape[-1]),
    "index_put": lambda x, v: x.index_put((torch.tensor([0, 0]),), torch.tensor(v).to(x.dtype), accumulate=True),
    "unfold": lambda x, d: x.unfold(d, 2, 1),
    "split": lambda x, d: x.split(2, d)[-1],
    "alias_view": lambda x: x.view(x.shape),
}  # fmt: skip
SCALARS = [0, 1, 2, -1, 3, 0.5, -2.5, True, float("inf"), float("nan"), 1e10]


def _step(draw: Any, values: list[torch.Tensor]) -> tuple[str, tuple[int, ...], tuple[Any, ...]]:
    """A step whose operands are likely, not certain, to fit."""
    pick = st.integers(0, len(values) - 1)
    recent = st.one_of(pick, st.just(len(values) - 1))
    a = draw(recent)
    x = values[a]
    rank = x.dim()
    dim = draw(st.integers(0, max(rank - 1, 0)))
    kind = draw(st.sampled_from(KINDS))
    scalar = draw(st.sampled_from(SCALARS))
    if kind == "unary":
        return draw(st.sampled_from(sorted(UNARY))), (a,), ()
    if kind == "binary":
        return draw(st.sampled_from(sorted(BINARY))), (a, draw(pick)), ()
    if kind == "scalar":
        if draw(st.booleans()):
            return "rscalar", (a,), (draw(st.sampled_from(sorted(SCALAR_FIRST))), scalar)
        return "scalar", (a,), (draw(st.sampled_from(SCALAR_SECOND)), scalar)
    if kind == "view":
        size = x.shape[dim] if rank else 1
        start = draw(st.integers(0, size))
        return draw(
            st.sampled_from(
                [
                    ("transpose", (a,), (dim, max(rank - 1, 0))),
                    ("permute", (a,), (tuple(draw(st.permutations(range(rank)))),)),
                    ("reshape", (a,), ((-1, x.shape[-1] if rank else 1),)),
                    ("flatten", (a,), ()),
                    ("unsqueeze", (a,), (dim,)),
                    ("squeeze", (a,), ()),
                    ("select", (a,), (dim, max(size - 1, 0))),
                    ("slice", (a,), (dim, start, None, 2)),
                    ("expand", (a,), (3,)),
                    ("flip", (a,), ((dim,),)),
                    ("roll", (a,), (2, dim)),
                    ("narrow", (a,), (dim, start, size - start)),
                    ("contiguous", (a,), ()),
                    ("detach", (a,), ()),
                    ("diagonal", (a,), ()),
                    ("unfold", (a,), (dim,)),
                    ("split", (a,), (dim,)),
                    ("alias_view", (a,), ()),
                ]
            )
        )
    if kind == "reduce":
        op = draw(st.sampled_from(sorted(REDUCE)))
        if draw(st.booleans()):
            return draw(st.sampled_from(sorted(DIM))), (a,), (dim,)
        if draw(st.booleans()) and op != "logsumexp":
            return "full_reduce", (a,), (op,)
        return op, (a,), (dim,)
    if kind == "inplace":
        op = draw(st.sampled_from(sorted(INPLACE) + ["set_item", "set_slice", "set_transposed"]))
        if op in ("zero_", "relu_", "neg_"):
            return op, (a,), ()
        if op in ("copy_", "masked_fill_") or (op != "fill_" and draw(st.booleans())):
            if op == "masked_fill_":
                return op, (a, draw(pick)), (scalar,)
            if op in ("add_", "mul_", "sub_", "div_", "copy_"):
                return op, (a, draw(pick)), ()
        if op == "clamp_":
            return op, (a,), (-1, 2)
        if op == "set_item":
            return op, (a,), (dim, 0, scalar)
        if op == "set_slice":
            return op, (a,), (dim, scalar)
        return op, (a,), (scalar,)
    b = draw(pick)
    return draw(
        st.sampled_from(
            [
                ("alpha", (a, b), (scalar,)),
                ("where", (a, b, draw(pick)), ()),
                ("where_scalar", (b, a), (scalar,)),
                ("to", (a,), (draw(st.sampled_from(DTYPES)),)),
                ("tril", (a,), (draw(st.integers(-2, 2)),)),
                ("pad", (a,), ((draw(st.integers(-1, 2)), 1), 2.0)),
                ("cat", (a, b), (dim,)),
                ("cat3", (a,), (dim,)),
                ("stack", (a, b), (dim,)),
                ("matmul", (a, b), ()),
                ("gram", (a,), ()),
                ("sort", (a,), (dim,)),
                ("index", (a,), ((0, -1, 0),)),
                ("gather", (a,), (dim,)),
                ("masked_fill", (a, b), (scalar,)),
                ("clamp", (a,), (-1, 2)),
                ("clamp", (a,), (-0.5, None)),
                ("lerp", (a, b), (0.3,)),
                ("addcmul", (a, b), (0.5,)),
                ("layer_norm", (a,), ()),
                ("full_like", (a,), (scalar,)),
                ("arange_add", (a,), ()),
                ("index_put", (a,), (2.0,)),
            ]
        )
    )


def _accepted(values: list[torch.Tensor], step: Any) -> torch.Tensor | None:
    """The step's value on copies that alias as the values do; None where eager refuses."""
    name, operands, extra = step
    try:
        got = STEPS[name](*[values[i] for i in operands], *extra)
    except (RuntimeError, IndexError, TypeError, NotImplementedError, ValueError):
        return None
    return got if isinstance(got, torch.Tensor) and got.numel() <= LIMIT else None


@st.composite
def programs(draw: Any) -> Program:
    program = Program()
    for _ in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.sampled_from(SIZES), max_size=3)))
        while len(shape) > 1 and torch.Size(shape).numel() > LIMIT:
            shape = shape[1:]
        program.inputs.append(Input(shape, draw(st.sampled_from(DTYPES)), draw(st.sampled_from(LAYOUTS))))
    values = list(program.arguments(0))
    for _ in range(draw(st.integers(2, 8))):
        step = _step(draw, values)
        made = _accepted(values, step)
        if made is not None:
            program.steps.append(step)
            values.append(made)
    last = len(values) - 1
    program.results = sorted({last, *draw(st.lists(st.integers(0, last), max_size=3))})
    return program


def agree(program: Program) -> None:
    compiled = smelt.compile(program.__class__.__call__.__get__(program))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in (0, 1):
            want = observe(program, program.arguments(seed), seed)
            got = observe(compiled, program.arguments(seed), seed)
            _compare(program, got, want)
    why = [r for r in reasons(compiled) if r.kind.id in ("internal-error", "backend-failed")]
    assert not why, f"{why[0]}\n{program}"


def _compare(program: Program, got: Any, want: Any) -> None:
    if want.error is not None or got.error is not None:
        assert type(got.error) is type(want.error), f"raised {got.error!r}, eager {want.error!r}\n{program}"
        assert str(got.error) == str(want.error), f"{program}"
        return
    assert got.aliases == want.aliases, f"aliases {got.aliases}, eager {want.aliases}\n{program}"
    try:
        _same_tensors(program, got, want)
    except AssertionError as difference:
        raise AssertionError(f"{difference}\n{program}") from None


def _strides(tensor: torch.Tensor) -> list[int]:
    """Those that decide where an element is."""
    return [s for s, n in zip(tensor.stride(), tensor.shape) if n > 1] if tensor.numel() else []


def _same_tensors(program: Program, got: Any, want: Any) -> None:
    pairs = zip(tensors([got.result, got.arguments]), tensors([want.result, want.arguments]))
    loose = any(v.dtype in (torch.bfloat16, torch.float16) for v in tensors([want.result, want.arguments]))
    loose = loose or any(torch.bfloat16 in extra or torch.float16 in extra for _, _, extra in program.steps)
    loose = loose or any(i.dtype in (torch.bfloat16, torch.float16) for i in program.inputs)
    for i, (g, w) in enumerate(pairs):
        assert g.shape == w.shape and g.dtype == w.dtype and _strides(g) == _strides(w), (
            f"value {i}: {g.shape} {g.dtype} {g.stride()}, eager {w.shape} {w.dtype} {w.stride()}"
        )
        rtol, atol = (5e-2, 5e-2) if loose else (1e-4, 1e-4)
        same_kind = torch.isclose(g.double(), w.double(), rtol=rtol, atol=atol, equal_nan=True)
        assert bool(same_kind.all()), (
            f"value {i}: smelt {g[~same_kind].flatten()[:4].tolist()}, eager {w[~same_kind].flatten()[:4].tolist()}"
        )


@settings(
    max_examples=EXAMPLES or 150,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
@given(programs())
def test_random_program(program: Program) -> None:
    agree(program)
