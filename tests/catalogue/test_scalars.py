"""Numbers that change from call to call: counters, learning rates, schedules, steps.

PYTEST_DONT_REWRITE: the `assert` statements of the programs are part of what is tested.
"""

from __future__ import annotations

import math
import types
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.harness.catalogue import BREAKS, call, for_each_control_flow, program, since, tensor

STEPS = (1, 2, 3, 5, 8, 13)


def calls(*values: Any) -> list[Any]:
    return [(tensor(3, 4), v) for v in values]


# -------------------------------------------------------------------------------------------- arguments


@program(graphs=1, later=1)
def an_int_argument():
    return (lambda x, n: x * n + n), calls(*STEPS)


@program(graphs=1, later=1)
def a_float_argument():
    return (lambda x, lr: x - lr * x), calls(0.1, 0.05, 0.025, 1.0, -0.0, 0.0)


@program(graphs=1, later=2)
def infinities_and_nan():
    return (lambda x, v: (x * v, v * 0, v == v, v)), calls(1.0, math.inf, -math.inf, math.nan, 0.0, -0.0, 2.0)


@program(graphs=1, later=1)
def the_sign_of_zero_survives():
    def fn(x, v):
        return x.copysign(torch.full_like(x, v)), -v, v * 1.0

    return fn, calls(1.0, -0.0, 0.0, -0.0, 0.0)


@program(graphs=1, later=4)
def an_int_then_a_float():
    return (lambda x, v: (x * v, v + 1, v / 2)), calls(1, 2, 3, 2.0, 3.5, 4, 0.5, True, False, 7)


@program(graphs=1, later=1)
def bools_stay_bools():
    return (lambda x, flag: (x + 1, flag, not flag) if flag else (x - 1, flag, flag is False)), calls(
        True, False, True, False
    )


@program(graphs=1, later=4)
def ints_beyond_64_bits():
    return (lambda x, n: (x + 1, n + 1, n * n, n // 3)), calls(
        1, 2, 3, 1 << 70, -(1 << 80), 5, (1 << 63) - 1, 1 << 63
    )


@program(graphs=1, later=1)
def overflow_of_the_product():
    return (lambda x, n: (x + 1, n * n * n)), calls(2, 3, 1 << 40, 1 << 62, 7)


@program(graphs=1, later=1)
def a_keyword_and_a_default():
    def fn(x, *, lr=0.5):
        return x * lr

    return fn, [
        (tensor(3),),
        call(tensor(3), lr=0.25),
        call(tensor(3), lr=0.125),
        (tensor(3),),
        call(tensor(3), lr=2.0),
    ]


@program(graphs=1, later=1)
def in_args_and_kwargs():
    def fn(*args, **kwargs):
        x, n = args
        return x * n + kwargs["bias"]

    return fn, [call(tensor(2), n, bias=n / 2) for n in STEPS]


@program(graphs=1)
def an_unused_number():
    return (lambda x, epoch: x + 1), calls(*STEPS)


@program(graphs=1, later=1)
def values_that_go_back():
    return (lambda x, n: x * n), calls(1, 2, 1, 3, 1, 2, 2, 1)


# ------------------------------------------------------------------------------------------ where they live


@program(graphs=1, later=1)
def a_counter_of_a_module():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            self.calls += 1
            return self.linear(x) * self.calls

    return Counts().eval().requires_grad_(False), [(tensor(2, 4),)] * 6


@program(graphs=1, later=1)
def a_counter_that_is_only_stored():
    state = types.SimpleNamespace(calls=0)

    def fn(x):
        state.calls += 1
        return x + 1

    return fn, [(tensor(3),)] * 6, state


@program(graphs=1, later=1)
def several_numbers_at_once():
    state = types.SimpleNamespace(step=0, lr=0.5, total=0.0)

    def fn(x):
        state.step += 1
        state.lr *= 0.9
        state.total += state.lr * state.step
        return x * state.lr - state.total

    return fn, [(tensor(3),)] * 7, state


@program(graphs=1, later=1)
def a_number_in_slots():
    class Slots:
        __slots__ = ("n",)

        def __init__(self):
            self.n = 1

    s = Slots()

    def fn(x):
        s.n = s.n * 2
        return x + s.n

    return fn, [(tensor(3),)] * 6, lambda: s.n


@program(graphs=1, later=1)
def items_of_a_dictionary():
    group = {"lr": 0.1, "step": 0}

    def fn(x):
        group["step"] += 1
        group["lr"] = group["lr"] / (1 + group["step"])
        return x.add(x, alpha=-group["lr"])

    return fn, [(tensor(3),)] * 6, group


@program(graphs=1, later=2)
def items_of_a_list():
    history = [1, 1]

    def fn(x):
        history[0], history[1] = history[1], history[0] + history[1]
        return x * history[0]

    return fn, [(tensor(3),)] * 7, history


@program(graphs=1, later=3, breaks=("unsupported-effect",))
def items_of_a_list_that_is_iterated():
    rates = [0.1, 0.2]

    def fn(x):
        for r in rates:
            x = x * r
        rates[0] += 1
        return x + sum(rates)

    return fn, [(tensor(3),)] * 5, rates


@program(graphs=1, later=1)
def appended_to_a_list():
    seen = []

    def fn(x, loss):
        seen.append(loss * 2)
        return x + loss

    return fn, calls(0.5, 1.5, 2.5, 3.5, 4.5), seen


@program(graphs=1, later=1)
def a_closure_cell():
    count = 0

    def fn(x):
        nonlocal count
        count += 1
        return x + count

    return fn, [(tensor(3),)] * 6, lambda: count


_steps = 0


@program(graphs=1, later=1)
def a_global():
    global _steps
    _steps = 0

    def fn(x):
        global _steps
        _steps += 3
        return x * _steps

    return fn, [(tensor(3),)] * 6, lambda: _steps


@program(graphs=1, later=1)
def a_dataclass():
    @dataclass
    class Schedule:
        base: float = 1.0
        step: int = 0

        @property
        def rate(self):
            return self.base / math.sqrt(self.step + 1)

        def advance(self):
            self.step += 1

    schedule = Schedule()

    def fn(x):
        schedule.advance()
        return x * schedule.rate

    return fn, [(tensor(3),)] * 6, schedule


@program(graphs=1, later=1)
def two_ways_to_one_object():
    inner = types.SimpleNamespace(n=0)
    a, b = types.SimpleNamespace(inner=inner), types.SimpleNamespace(inner=inner)

    def fn(x):
        a.inner.n += 1
        return x * b.inner.n

    return fn, [(tensor(3),)] * 6, inner


@program(graphs=1, later=5)
def a_cache_keyed_by_steps():
    cache = {}

    def fn(x, n):
        if n not in cache:
            cache[n] = n * 2
        return x * cache[n]

    return fn, calls(1, 2, 1, 3, 2, 4), cache


# --------------------------------------------------------------------------------------------- arithmetic


@program(graphs=1, later=2)
def integer_arithmetic():
    def fn(x, n):
        return (
            x * ((n + 3) * 2 - 1),
            n // 2,
            n % 3,
            -n,
            abs(n - 4),
            n**2,
            7 - n,
            100 // (n + 1),
            2**n,
            +n,
            divmod(n, 4),
        )

    return fn, calls(*STEPS, -3, 0)


@program(graphs=1, later=1)
def float_arithmetic():
    def fn(x, v):
        return x * (v / 3 + 0.5), v // 0.3, v % 0.7, -v, abs(v), v**2, v**0.5, 1 - v, 1 / (v + 1), 0.9**v

    return fn, calls(0.5, 1.5, 2.25, 3.0, 10.0)


@program(graphs=1, later=1)
def conversions():
    def fn(x, v):
        return x * int(v), float(int(v)), round(v), round(v, 1), int(v * 10) / 10, bool(v)

    return fn, calls(0.55, 1.25, 2.5, 3.5, -1.5)


@program(graphs=1, later=1)
def functions_of_math():
    def fn(x, v):
        warm = 0.5 * (1 + math.cos(math.pi * v / 10))
        return (
            x * warm,
            math.sqrt(v),
            math.exp(-v),
            math.log(v),
            math.log(v, 2),
            math.floor(v),
            math.pow(v, 1.5),
            math.sin(v),
        )

    return fn, calls(0.5, 1.5, 2.25, 3.0, 10.0)


@program(graphs=1, later=2)
def extremes():
    return (lambda x, n: (x * max(n, 3), min(n, 3), max(n, 2.5), min([n, 4, 2]), max(1, n, 5))), calls(*STEPS)


@program(graphs=1, later=1)
def in_place_arithmetic():
    def fn(x, n):
        n += 1
        n *= 2
        n -= 3
        n //= 2
        return x * n

    return fn, calls(*STEPS)


@program(graphs=1, later=2)
def a_power_that_changes_its_type():
    return (lambda x, n: (x + 1, 2**n, type(2**n))), calls(1, 2, 3, -1, -2, 0)


@program(graphs=1, later=2)
def a_square_root_that_becomes_complex():
    return (lambda x, v: (x + 1, v**0.5)), calls(1.0, 4.0, 9.0, -4.0, 2.0)


@program(graphs=1, later=1, eager=["user-exception"])
def a_division_by_zero():
    def fn(x, n):
        return x * (10 / n)

    return fn, calls(1, 2, 4, 0, 5, 0)


@program(graphs=1, later=1, eager=["user-exception"])
def an_effect_before_a_division_by_zero():
    state = types.SimpleNamespace(calls=0)

    def fn(x, n):
        state.calls += 1
        return x * (10 // n)

    return fn, calls(1, 2, 4, 0, 5, 0), state


@program(graphs=1, later=1, eager=["user-exception"])
def a_domain_error():
    return (lambda x, v: x * math.sqrt(v)), calls(1.0, 2.0, 4.0, -1.0, 9.0)


@program(graphs=1, later=1, eager=["user-exception"])
def an_overflow_error():
    return (lambda x, v: x * math.exp(v)), calls(1.0, 2.0, 4.0, 1e4, 0.5)


@program(graphs=1, later=5)
def large_expressions():
    def fn(x, n):
        for i in range(100):
            n = n + i * 2 - 1
        return x * n

    return fn, calls(*STEPS)


@program(graphs=1, later=3)
def repeated_squaring():
    def fn(x, v):
        for _ in range(7):
            v = v * v
        return x * v

    return fn, calls(1.0, 1.01, 0.99, 1.5)


# ------------------------------------------------------------------------------------ comparisons and branches


@program(graphs=1, later=2)
def warm_up():
    def fn(x, step):
        rate = step / 4 if step < 4 else 1.0
        return x * rate

    return fn, calls(*range(8))


@program(graphs=1, later=2)
def every_third_call():
    state = types.SimpleNamespace(calls=0)

    def fn(x):
        state.calls += 1
        if state.calls % 3 == 0:
            return x * 2
        return x + state.calls

    return fn, [(tensor(3),)] * 10, state


@program(graphs=1, later=5)
def comparisons_as_values():
    return (lambda x, n: (x + 1, n > 3, n <= 3, n == 5, n != 5, 2 < n < 6, n is None, n == "a")), calls(
        *STEPS
    )


@program(graphs=1, later=1)
def a_number_as_condition():
    return (lambda x, n: x * 2 if n else x + 1), calls(0, 1, 2, 0, 3, -1)


@program(graphs=1, later=2)
def a_float_as_condition():
    return (lambda x, v: x * 2 if v else x + 1), calls(0.0, 1.0, 0.5, -0.0, math.nan)


@program(graphs=1, later=5)
def milestones():
    def fn(x, step):
        rate = 1.0
        for m in (2, 4):
            if step >= m:
                rate *= 0.1
        return x * rate * (step in (3, 5))

    return fn, calls(*range(7))


@program(graphs=0, later=4)
def match_on_a_number():
    def fn(x, n):
        match n:
            case 0:
                return x
            case 1 | 2:
                return x + n
            case int() if n > 5:
                return x * n
            case _:
                return x - n

    return fn, calls(0, 1, 2, 3, 6, 7, 4)


@program(graphs=1, later=3)
def a_while_loop():
    def fn(x, n):
        i = 0
        while i < n:
            x = x * 2 + i
            i += 1
        return x, i

    return fn, calls(1, 2, 3, 2, 4)


@program(graphs=1, later=3)
def clipped_between():
    return (lambda x, v: x * (0.1 if v < 0.1 else 0.9 if v > 0.9 else v)), calls(0.5, 0.6, 0.05, 0.95, 0.7)


@program(graphs=1, later=1, eager=["user-exception"])
def assertions():
    def fn(x, n):
        assert n > 0, f"bad step {n}"
        return x / n

    return fn, calls(1, 2, 3, 0, 4)


# ------------------------------------------------------------------------------- what needs the number itself


@program(graphs=1, later=2)
def shapes_and_indices():
    def fn(x, n):
        return x[:n], x[n % 3], torch.zeros(n, 2), x.repeat(n, 1), list(range(n)), [0] * n

    return fn, calls(1, 2, 3, 1)


@program(graphs=1, later=5)
def keys_and_hashes():
    def fn(x, n):
        table = {n: "a", 2: "b"}
        return x + 1, table, {n, 1}, table.get(3), hash(n), {1: x, 2: x + 2}.get(n)

    return fn, calls(*STEPS)


@program(graphs=1, later=1)
def text():
    return (lambda x, v: (x + 1, f"{v}", str(v), repr(v), "%s" % v, f"{v:.3f}", "{}".format(v))), calls(  # noqa: UP031, UP032
        0.5, 1.0, 1.5
    )


@program(graphs=1, later=3)
def bitwise_operators():
    return (lambda x, n: (x + 1, n & 1, n | 8, n ^ 3, n << 2, n >> 1, ~n)), calls(1, 2, 3, 4)


@program(graphs=1, later=2)
def types_of_numbers():
    def fn(x, v):
        return (
            x + 1,
            type(v),
            isinstance(v, int),
            isinstance(v, (float, str)),
            v.__class__,
            callable(v),
            type(v * 2),
        )

    return fn, calls(1, 2, 3, 0.5, 1.5)


@program(graphs=1, later=2)
def methods_of_numbers():
    def fn(x, v):
        return x + 1, v.is_integer(), v.real, v.hex(), v.as_integer_ratio(), v.conjugate()

    return fn, calls(0.5, 1.0, 1.5)


@program(
    graphs=1, later=2, unlike=since("3.13", "`sorted` compares other pairs of the same numbers", 1, later=3)
)
def containers_of_numbers():
    def fn(x, n):
        pair = (n, n + 1)
        found = [n, *pair]
        found.sort(reverse=True)
        return (
            x + 1,
            pair,
            found,
            {"n": n, "deep": [{"n": -n}]},
            sorted([3, n, 2]),
            sum(found),
            list(zip(pair, "ab")),
            n in found,
        )

    return fn, calls(*STEPS)


@program(graphs=1, later=1)
def objects_of_numbers():
    @dataclass
    class Result:
        step: int
        loss: float

    return (lambda x, n: (x * n, Result(n, n / 2))), calls(*STEPS), None


@program(graphs=1, later=1)
def functions_with_numbers():
    def scaled(v, by=2):
        return v * by

    def fn(x, n):
        return scaled(x, n) + scaled(n), list(map(lambda k: k + n, [1, 2])), (lambda: n * 3)()

    return fn, calls(*STEPS)


@program(graphs=1)
def a_closure_that_is_returned():
    def fn(x, n):
        return x * n, lambda: n + 1

    return fn, [(tensor(3), n) for n in STEPS[:1]] * 3


@program(graphs=1, later=1)
def a_generator_over_numbers():
    def fn(x, n):
        def rates():
            for i in range(3):
                yield n / (i + 1)

        for r in rates():
            x = x * r
        return x

    return fn, calls(*STEPS)


# ------------------------------------------------------------------------------------------------- operators


@program(graphs=1, later=1)
def arithmetic_with_tensors():
    def fn(x, v):
        return x + v, v + x, x - v, v - x, x * v, v * x, x / v, v / (x.abs() + 1), x // v, x % v

    return fn, calls(0.5, 1.5, 2.0, -3.0)


@program(graphs=1, later=1)
def integer_tensors():
    def fn(x, n):
        return x + n, x * n, n - x, x / n, x // n, x % n, x == n, x > n, x.clamp(max=n), x**2 + n

    return fn, [(tensor(5, dtype=torch.int64), n) for n in (1, 2, 3, -2, 7)]


@program(graphs=1, later=1)
def narrow_integer_tensors():
    def fn(x, n):
        return x + n, x * n, x > n, x.clamp(max=n), torch.where(x > 2, x, n)

    return fn, [(tensor(5, dtype=torch.int32), n) for n in (1, 2, 3, 7)]


@program(graphs=1, later=1)
def type_promotion():
    def fn(x, i, v, n):
        return x * n, i * v, i * n, i.bool() * n, x.sum() * v, i.sum() * v, x.double() * v, x.half() + v

    return fn, [(tensor(3), tensor(3, dtype=torch.int64), k / 3, k) for k in STEPS]


@program(graphs=1, later=1, rtol=1e-2, atol=1e-2)
def bfloat16_tensors():
    return (lambda x, v: (x * v, x + v, x / v)), [
        (tensor(8, dtype=torch.bfloat16), v) for v in (0.3, 0.7, 1.1, 3.3)
    ]


@program(graphs=1, later=1)
def zero_dimensional_tensors():
    return (lambda x, v: (x.sum() * v, x.sum() + v, torch.tensor(2.0) * v)), calls(0.3, 0.7, 1.1)


@program(graphs=1, later=1)
def alpha_value_and_weight():
    def fn(x, y, v):
        a = torch.add(x, y, alpha=v)
        b = torch.sub(x, y, alpha=-v)
        c = torch.addcmul(x, x, y, value=v)
        d = torch.addcdiv(x, x, y.abs() + 1, value=v)
        return a, b, c, d, x.lerp(y, v), torch.rsub(x, y, alpha=v)

    return fn, [(tensor(3, 4), tensor(3, 4), v) for v in (0.3, 0.7, 1.1, -0.2)]


@program(graphs=1, later=1)
def clamps_and_comparisons():
    def fn(x, v):
        return x.clamp(-v, v), x.clamp(min=v), x.clamp_max(v), x > v, v >= x, x == v, x.ne(v)

    return fn, calls(0.3, 0.7, 1.1)


@program(graphs=1, later=1)
def fills():
    def fn(x, v):
        made = (
            torch.full((2, 3), v),
            torch.full_like(x, v),
            x.new_full((2,), v),
            torch.scalar_tensor(v),
            torch.tensor(v),
        )
        return (
            *made,
            torch.where(x > 0, x, v),
            torch.where(x > 0, v, 0.0),
            x.masked_fill(x > 0, v),
            x.clone().fill_(v),
        )

    return fn, calls(0.3, 0.7, 1.1)


@program(graphs=1, later=1)
def fills_of_integers():
    def fn(x, n):
        return (
            torch.full((2,), n),
            torch.full((2,), n, dtype=torch.float64),
            torch.tensor(n),
            torch.tensor(n, dtype=torch.int32),
        )

    return fn, calls(1, 2, 3)


@program(graphs=1, later=1)
def powers():
    return (lambda x, v: (x.abs() ** v, v**x, torch.pow(2.0, x) * v)), calls(
        0.5, 2.0, 3.0, -1.0, 0.0, 1.0, 1.7
    )


@program(graphs=1, later=1)
def activations():
    F = nn.functional

    def fn(x, v):
        return (
            F.leaky_relu(x, v),
            F.elu(x, v),
            F.threshold(x, v, -v),
            F.hardtanh(x, -v, v),
            F.softplus(x, v),
            F.celu(x, v),
        )

    return fn, calls(0.5, 0.7, 0.9)


@program(graphs=1, later=1)
def products():
    return (
        lambda x, v: (
            torch.addmm(x, x, x, beta=v, alpha=2 * v),
            (x * v) @ x,
            torch.baddbmm(x[None], x[None], x[None], alpha=v),
        )
    ), [(tensor(3, 3), v) for v in (0.5, 0.7, 0.9)]


@program(graphs=1, later=1)
def writes_of_numbers():
    def fn(x, v):
        y = x.clone()
        y[0] = v
        y[:, 1:] *= v
        y[1] += v
        y.t()[2].fill_(v)
        return y

    return fn, calls(0.5, 0.7, 0.9)


@program(graphs=1, later=1)
def in_place_on_an_argument():
    def fn(x, v):
        x.mul_(v).add_(x, alpha=v).sub_(v)
        return x + 1

    return fn, calls(0.5, 0.7, 0.9)


@program(graphs=1, later=1)
def lists_of_tensors():
    def fn(x, v):
        ys = [x.clone(), x + 1]
        torch._foreach_add_(ys, [x, x], alpha=v)
        torch._foreach_mul_(ys, v)
        return ys, torch._foreach_div([x, x], v)

    return fn, calls(0.5, 0.7, 0.9)


@program(graphs=1, later=1)
def dropout_and_eps():
    def fn(x, v):
        y = nn.functional.dropout(x, v, training=True)
        return y, nn.functional.layer_norm(x, (4,), eps=v), nn.functional.normalize(x, p=2.0, eps=v)

    return fn, calls(0.25, 0.5, 0.75)


@program(graphs=0, eager=["user-exception"])
def a_type_error():
    return (lambda x, v: torch.maximum(x, v)), calls(0.25, 0.5, 0.75)


@program(graphs=1, later=1, eager=["user-exception"])
def an_error_of_an_operator():
    return (lambda x, v: nn.functional.dropout(x, v)), calls(0.25, 0.5, 1.5, -1.0)


@program(graphs=0)
def a_result_that_is_a_number_of_a_tensor():
    return (lambda x, v: (x.shape[0] * v, x.numel() + v, x.dim() / v)), calls(1, 2, 3)


# -------------------------------------------------------------------------------------------------- training


@program(graphs=1, later=1)
def gradient_descent():
    weight, state = tensor(4, 4), types.SimpleNamespace(step=0, lr=0.1)

    def fn(gradient):
        state.step += 1
        lr = state.lr / (1 + 0.1 * state.step)
        weight.add_(gradient, alpha=-lr)

    return fn, [(tensor(4, 4),) for _ in range(6)], (weight, state)


@program(graphs=1, later=1)
def momentum_and_decay():
    weight, velocity, group = tensor(4, 4), torch.zeros(4, 4), {"lr": 0.1, "momentum": 0.9, "decay": 1e-2}

    def fn(gradient):
        gradient = gradient + group["decay"] * weight
        velocity.mul_(group["momentum"]).add_(gradient)
        weight.sub_(velocity * group["lr"])
        group["lr"] *= 0.95
        group["momentum"] = min(0.99, group["momentum"] + 0.01)

    return fn, [(tensor(4, 4),) for _ in range(6)], (weight, velocity, group)


@program(graphs=1, later=1)
def adam():
    weight, first, second = tensor(4, 4), torch.zeros(4, 4), torch.zeros(4, 4)
    state = {"step": 0, "lr": 1e-2}

    def fn(gradient, betas=(0.9, 0.999), eps=1e-8):
        state["step"] += 1
        first.lerp_(gradient, 1 - betas[0])
        second.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
        correction1, correction2 = 1 - betas[0] ** state["step"], 1 - betas[1] ** state["step"]
        denominator = (second.sqrt() / math.sqrt(correction2)).add_(eps)
        weight.addcdiv_(first, denominator, value=-state["lr"] / correction1)

    return fn, [(tensor(4, 4),) for _ in range(6)], (weight, first, second, state)


@program(graphs=1, later=1)
def exponential_moving_average():
    model, average = tensor(4), torch.zeros(4)
    updates = {"n": 0}

    def fn(noise):
        updates["n"] += 1
        decay = min(0.999, (1 + updates["n"]) / (10 + updates["n"]))
        model.add_(noise)
        average.mul_(decay).add_(model, alpha=1 - decay)
        return average * 1

    return fn, [(tensor(4),) for _ in range(6)], (average, updates)


@program(graphs=1, later=1)
def a_gradient_through_a_rate():
    def fn(x, w, lr):
        return ((x @ w) * lr + w.pow(2).sum() * (lr / 2)).sum()

    return fn, [(tensor(3, 4), tensor(4, 2, requires_grad=True), lr) for lr in (0.1, 0.2, 0.3, 0.4)]


@program(graphs=1, later=2)
def a_gradient_through_alpha():
    def fn(x, w, v):
        return torch.add(w, x, alpha=v).mul(v).lerp(w, v).sub(w * v, alpha=v)

    return fn, [(tensor(4), tensor(4, requires_grad=True), v) for v in (0.1, 0.2, 0.3, 1.0)]


@program(graphs=1, later=2)
def cosine_schedule_with_warm_up():
    class Scheduled(nn.Module):
        def __init__(self):
            super().__init__()
            self.step, self.warm, self.total = 0, 3, 10
            self.scale = nn.Parameter(torch.ones(4))

        def rate(self):
            if self.step < self.warm:
                return self.step / self.warm
            progress = (self.step - self.warm) / (self.total - self.warm)
            return 0.5 * (1 + math.cos(math.pi * progress))

        def forward(self, x):
            self.step += 1
            return x * self.scale * self.rate()

    return Scheduled(), [(tensor(2, 4),) for _ in range(9)]


# --------------------------------------------------------------------------------------------- across breaks


@for_each_control_flow(dict(graphs=1, later=1), dict(graphs=1, later=3, breaks=["data-dependent-condition"]))
def a_counter_across_a_break():
    state = types.SimpleNamespace(calls=0)

    def fn(x):
        state.calls += 1
        x = x * state.calls
        if x.sum() > 0:
            x = x + state.calls
        state.calls += 1
        return x, state.calls

    return fn, [(tensor(3),) for _ in range(6)], state


@program(graphs=3, later=2, breaks=["data-dependent-condition", "data-dependent-condition"], options=BREAKS)
def a_loop_with_a_break_inside():
    def fn(x, n):
        for i in range(n):
            x = x * 0.5 + i
            if x.sum() > 100:
                break
        return x, i

    return fn, [(tensor(3), 6), (tensor(3), 6), (tensor(3), 12), (tensor(3), 4)]


@program(graphs=1, later=1)
def printing_a_counter():
    state = types.SimpleNamespace(step=0)

    def fn(x):
        state.step += 1
        print("step", state.step)
        return x + state.step

    return fn, [(tensor(3),) for _ in range(5)], state


# ----------------------------------------------------------------------------------- other ways into operators


@program(graphs=1, later=3)
def a_transform_over_a_closure():
    def fn(x, n):
        return torch.func.vmap(lambda row: row * n + n)(x), torch.func.grad(lambda a: (a * n).sum())(x)

    return fn, calls(1, 2, 3, 4)


@program(graphs=1, later=1)
def a_transform_that_is_given_a_number():
    return (lambda x, v: torch.func.vmap(torch.mul, in_dims=(0, None))(x, v)), calls(0.5, 0.25, 2.0)


@program(graphs=1, later=1, breaks=["unsupported-object"])
def an_autograd_function():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, v):
            ctx.v = v
            return x * v

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.v * 2, None

    return (lambda x, v: Scale.apply(x, v).sum()), [
        (tensor(3, requires_grad=True), v) for v in (0.5, 0.25, 2.0, 3.0)
    ]


@program(graphs=1, later=1)
def a_number_beside_an_autograd_function():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 3

    return (lambda x, v: (Double.apply(x) * v).sum()), [
        (tensor(3, requires_grad=True), v) for v in (0.5, 0.25, 2.0, 3.0)
    ]


@program(graphs=1, later=1)
def a_custom_module_with_a_temperature():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)
            self.temperature = 1.0

        def forward(self, x):
            self.temperature *= 0.9
            weights = (self.q(x) @ self.k(x).t() / self.temperature).softmax(-1)
            return weights @ x

    return Attention(), [(tensor(3, 4),) for _ in range(5)]


@program(graphs=1, later=1)
def attention_with_a_scale():
    def fn(q, v):
        return nn.functional.scaled_dot_product_attention(q, q, q, scale=v)

    return fn, [(tensor(1, 2, 3, 4), v) for v in (0.5, 0.25, 2.0)]


@program(graphs=1, later=1)
def settings_and_numbers():
    def fn(x, w, v):
        with torch.no_grad():
            y = x * v
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x @ w * v
        return y, z, (x * v).detach()

    return fn, [(tensor(3, 4), tensor(4, 4, requires_grad=True), v) for v in (0.5, 0.25, 2.0)]


@program(graphs=1, later=1)
def random_numbers_and_a_rate():
    def fn(x, v):
        return x + torch.randn_like(x) * v + torch.rand(4).mul_(v), torch.normal(0.0, v, (3,))

    return fn, calls(0.5, 0.25, 2.0)


@program(graphs=1, later=2)
def scatters_and_fills():
    def fn(x, v):
        index = torch.tensor([[0, 1, 2, 0]])
        y = x.scatter(0, index, v).index_fill(0, torch.tensor([1]), v)
        y[x > 0] = v
        y[..., 1] += v
        return y, torch.isin(torch.tensor([1.0, 2.0]), v), torch.linspace(0, v, 3), torch.arange(0, v, 0.5)

    return fn, calls(1.0, 2.0, 3.0)


@program(graphs=1, later=1)
def losses():
    F = nn.functional

    def fn(x, v):
        return (
            F.smooth_l1_loss(x, x * v, beta=v),
            F.huber_loss(x, x * 2, delta=v),
            F.mse_loss(x, torch.full_like(x, v)),
        )

    return fn, calls(0.5, 0.25, 2.0)


@program(graphs=1, later=3)
def an_exception_that_shows_a_number():
    def fn(x, n):
        try:
            raise ValueError(f"step {n}", n)
        except ValueError as e:
            return x + len(e.args), e.args[1], str(e.args[0])

    return fn, calls(1, 2, 3, 4)


@program(graphs=1, later=1, eager=["user-exception"])
def a_number_that_is_raised():
    def fn(x, n):
        if n > 2:
            raise RuntimeError(f"too large: {n}")
        return x * n

    return fn, calls(1, 2, 3, 4, 1)


@program(graphs=1, later=3)
def a_key_function_over_numbers():
    def fn(x, n):
        order = sorted([3, 1, 2], key=lambda k: abs(k - n))
        return (
            x * order[0],
            max([1, 5, 9], key=lambda k: -abs(k - n)),
            list(filter(lambda k: k > n, [1, 2, 3, 4])),
        )

    return fn, calls(1, 2, 3, 4)


@program(graphs=1, later=2)
def recursion_on_a_number():
    def fn(x, n):
        def go(k):
            return x if k == 0 else go(k - 1) * 2 + k

        return go(n)

    return fn, calls(1, 2, 3, 2)


@program(graphs=1, later=4)
def a_default_dictionary_of_counts():
    from collections import Counter, defaultdict

    counts, totals = Counter(), defaultdict(float)

    def fn(x, v):
        counts["calls"] += 1
        totals["loss"] += v
        totals[counts["calls"] % 2] = v
        return x * totals["loss"] / counts["calls"]

    return fn, calls(0.5, 0.25, 2.0, 1.0, 3.0), (counts, totals)


@program(graphs=1, later=1)
def a_property_that_counts():
    class Meter:
        def __init__(self):
            self._sum, self._n = 0.0, 0

        def update(self, v, k=1):
            self._sum += v * k
            self._n += k

        @property
        def mean(self):
            return self._sum / max(1, self._n)

        def __repr__(self):
            return f"Meter({self.mean:.3f})"

    meter = Meter()

    def fn(x, v):
        meter.update(v, 2)
        return x - meter.mean, repr(meter)

    return fn, calls(0.5, 0.25, 2.0, 1.0, 3.0), meter
