"""A number that changes between calls is symbolic from its second change on: two entries accept all calls."""

from __future__ import annotations

import collections
import math
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx

import smelt
from smelt import events
from smelt.graph import verify_graph
from smelt.graph.graph_interpreter import run
from smelt.graph.graph_printer import code
from smelt.graph.ir import NumberSpec
from smelt.report import inspect
from smelt.tracing.symbolic.sym_numbers import Float, Int
from smelt.tracing.symbolic.symbolic_numbers import Symbols
from tests.harness.agreement import same

X = torch.linspace(-2, 3, 12).reshape(3, 4)


def entries(compiled: Any) -> list[Any]:
    return list(inspect.entries(compiled))


def check(fn: Callable[..., Any], calls: list[tuple[Any, ...]], **options: Any) -> Any:
    """Compiles `fn`, compares every call with eager, and gives the compiled function."""
    compiled = smelt.compile(fn, options={"verify_stages": True, **options})
    with torch.no_grad():
        for args in calls:
            expected, found = fn(*args), compiled(*args)
            assert torch.equal(expected, found) or torch.allclose(expected, found, rtol=1e-6), (
                args,
                expected,
                found,
            )
    return compiled


# ------------------------------------------------------------------------------------- a hundred calls, two entries


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.rate = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.rate *= 0.99
        return x * self.rate + self.calls


def test_a_counter_and_a_rate_of_a_module() -> None:
    eager, module = Counts(), Counts()
    compiled = smelt.compile(module)
    with torch.no_grad():
        for _ in range(100):
            assert torch.allclose(eager(X), compiled(X))
            assert (eager.calls, eager.rate) == (module.calls, module.rate)
    assert len(entries(compiled)) == 2


SCHEDULES: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "argument": lambda x, n: x + n,
    "expression": lambda x, n: x * (0.1 / (1 + n // 10)),
    "cosine": lambda x, n: x * (0.5 * (1 + math.cos(math.pi * n / 100))),
    "power": lambda x, n: x * 0.9**n,
    "alpha": lambda x, n: torch.add(x, x, alpha=n * 0.5),
    "clamp": lambda x, n: x.clamp(max=n / 10),
    "comparison of a tensor": lambda x, n: (x > n) * 1.0,
    "full": lambda x, n: torch.full((3, 4), n * 1.0) + x,
    "tensor": lambda x, n: torch.tensor(n) * x,
    "in place": lambda x, n: x.clone().mul_(n).add_(x, alpha=n),
    "pow": lambda x, n: x.abs() ** (n / 50),
    "unused": lambda x, n: x + 1,
    "min": lambda x, n: x * min(n, 1000),
    "type": lambda x, n: x * n if isinstance(n, int) and type(n) is int else x,
    "setitem": lambda x, n: torch.cat([x, x.new_full((1, 4), n)]),
    "foreach": lambda x, n: torch._foreach_mul([x], n)[0],
    "not none": lambda x, n: x * n if n is not None else x,
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_two_entries_accept_a_hundred_calls(name: str) -> None:
    compiled = check(SCHEDULES[name], [(X, n) for n in range(1, 101)])
    assert len(entries(compiled)) == (1 if name == "unused" else 2)


REST = {  # of a buffer of fixed size, from a place that changes
    "multiplied": lambda buffer, n: buffer[n:].mul_(2),
    "with its sum": lambda buffer, n: buffer[n:].sub_(1).mul_(buffer[n:].sum()),
    "set": lambda buffer, n: operator.setitem(buffer, slice(n, None), buffer[: 40 - n] * 2),
    "clamped": lambda buffer, n: buffer[n:].clamp_(min=1.0),
    "masked": lambda buffer, n: buffer[n:].masked_fill_(buffer[n:] > 3, 0.0),
    "zero": lambda buffer, n: buffer[n:].zero_(),
    "drawn": lambda buffer, n: (buffer[n:].normal_(), buffer[n:].uniform_()),
    "scanned": lambda buffer, n: buffer[n:].cumsum_(0),
    "filled at indices": lambda buffer, n: buffer[n:].index_fill_(0, torch.tensor([0]), 1.0),
    "copied to indices": lambda buffer, n: buffer[n:].index_copy_(0, torch.tensor([1]), torch.ones(1, 3)),
    "both parts": lambda buffer, n: (buffer[:n].add_(1), buffer[n:].mul_(3)),
}


@pytest.mark.parametrize("name", REST)
def test_two_entries_write_the_rest_of_a_buffer(name: str) -> None:
    def program(buffer: torch.Tensor, n: int) -> torch.Tensor:
        buffer[0] = 1
        REST[name](buffer, n)
        return buffer.sum(0)

    compiled = smelt.compile(program)
    for n in range(2, 30):
        buffers = [torch.arange(120.0).view(40, 3) for _ in range(2)]
        results = []
        for function, buffer in zip((program, compiled), buffers):
            torch.manual_seed(n)
            results.append(function(buffer, n))
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*buffers)
    assert len(entries(compiled)) == 2


def test_dynamic_numbers_are_generalized_together() -> None:
    state = types.SimpleNamespace(a=0, b=0.5)
    compiled = smelt.compile(lambda x, n: x * state.a + state.b * n)
    with torch.no_grad():
        for n in range(20):
            state.a, state.b = n, n / 3
            assert torch.allclose(compiled(X, n), X * n + (n / 3) * n)
    assert len(entries(compiled)) == 2


def test_the_first_entry_still_accepts_its_value() -> None:
    compiled = check(lambda x, n: x * n, [(X, n) for n in (3, 4, 3, 5, 3)])
    assert len(entries(compiled)) == 2
    assert (
        "L['n'] == 3" in entries(compiled)[0].guards and "type(L['n']) is int" in entries(compiled)[1].guards
    )


def test_ints_and_floats_get_an_entry_each() -> None:
    values = (1, 2, 3, 0.5, 1.5, 2.5, 4, 3.5)
    assert len(entries(check(lambda x, v: x * v, [(X, v) for v in values]))) == 3


def test_a_bool_is_always_specialized() -> None:
    compiled = check(
        lambda x, flag: x * 2 if flag else x * flag, [(X, b) for b in (True, False, True, False)]
    )
    assert len(entries(compiled)) == 2
    assert all("bool" not in e.guards and "L['flag'] == " in e.guards for e in entries(compiled))


def test_ints_beyond_64_bits_are_specialized() -> None:
    compiled = check(lambda x, n: x + n % 7, [(X, n) for n in (1, 2, 3, 1 << 70, 4, (1 << 70) + 1)])
    assert "L['n'] == 1180591620717411303424" in entries(compiled)[2].guards
    assert len(entries(compiled)) == 4


@pytest.mark.parametrize("values", [(0.5, math.inf, math.nan, -0.0, 0.0, -math.inf), (-0.0, 0.0, 1.0, -0.0)])
def test_all_floats(values: tuple[float, ...]) -> None:
    compiled = smelt.compile(lambda x, v: (torch.full_like(x, v), -v, v * 1))
    with torch.no_grad():
        for v in values:
            filled, negated, same = compiled(X, v)
            assert (
                repr(filled[0, 0].item()) == repr(v) and repr(negated) == repr(-v) and repr(same) == repr(v)
            )
    assert len(entries(compiled)) == 2


# --------------------------------------------------------------------------------------- branches and what is pinned


def test_a_branch_guards_its_condition() -> None:
    compiled = check(lambda x, n: x * 2 if n < 10 else x / n, [(X, n) for n in range(30)])
    assert len(entries(compiled)) == 3
    assert "L['n'] < 10" in entries(compiled)[1].guards and "not (L['n'] < 10)" in entries(compiled)[2].guards


def test_a_division_guards_that_it_is_defined() -> None:
    compiled = check(lambda x, n: x * (1 / n), [(X, n) for n in (1, 2, 4)])
    assert "type((1 / L['n'])) is float" in entries(compiled)[1].guards
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        compiled(X, 0)
    assert len(entries(compiled)) == 2


PINNED: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "range": lambda x, n: x + sum(range(n)),
    "characters of a text": lambda x, n: x + len(f"{n}"),
    "key that is a text": lambda x, n: x + {"k1": 1, "k2": 2, "k3": 3}[f"k{n}"],
    "key": lambda x, n: x + {n: 2}[n],
    "bits": lambda x, n: x + (n & 3),
    "axis": lambda x, n: x.sum(n % 2),
    "method": lambda x, n: x + n.bit_length(),
}


@pytest.mark.parametrize("name", PINNED)
def test_operations_that_specialize(name: str) -> None:
    compiled = check(PINNED[name], [(X, n) for n in (1, 2, 3)])
    assert [f"L['n'] == {n}" in e.guards for n, e in zip((1, 2, 3), entries(compiled))] == [True] * 3


def test_the_compiled_frame_formats_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    def fn(x: torch.Tensor, n: int) -> Any:
        print(f"step {n}", n / 2, [n], "%d of %5.1f" % (n, n))  # noqa: UP031
        return x * n, f"{n / 3:.3f}", str(n), repr(n) + "!", "{}-{:>4}".format(n, n), {"n": n}  # noqa: UP032

    compiled = smelt.compile(fn)
    with torch.no_grad():
        for n in range(1, 20):
            expected, printed = fn(X, n), capsys.readouterr().out
            assert compiled(X, n)[1:] == expected[1:] and capsys.readouterr().out == printed
    assert len(entries(compiled)) == 2


def test_a_specialized_number_is_a_constant_of_the_graphs() -> None:
    compiled = check(lambda x, n: (x * n).sum(n - 1), [(X, n) for n in (1, 2)])
    assert entries(compiled)[1].traced.numbers == () and "mul(2)" in code(
        entries(compiled)[1].traced.torch_graph
    )


def test_a_large_expression_specializes() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        for i in range(100):
            n = n * 2 % 1000 + i
        return x + n

    assert len(entries(check(fn, [(X, n) for n in (1, 2, 3)]))) == 3


def test_numbers_are_specialized_if_symbolic_ones_raise() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x + int.__add__(n, 1)  # a function of C that wants an int

    check(fn, [(X, n) for n in (1, 2, 3)])


def test_an_error_names_the_users_types() -> None:
    compiled = smelt.compile(lambda x, v: torch.maximum(x, v))
    for v in (0.5, 0.25, 0.125):
        with pytest.raises(TypeError, match="must be Tensor, not float"):
            compiled(X, v)


# ------------------------------------------------------------------------------------------------- the compiled frame


def test_the_compiled_frame_is_python() -> None:
    def fn(x: torch.Tensor, lr: float, state: Any) -> Any:
        state.calls += 1
        return x * (lr / state.calls), state.calls % 2

    compiled, state = smelt.compile(fn), types.SimpleNamespace(calls=0)
    with torch.no_grad():
        for k in range(4):
            compiled(X, 1 / (k + 1), state)
    assert state.calls == 4
    lines = [line.partition("  #")[0].strip() for line in entries(compiled)[1].source.splitlines()]
    # before 3.13 a SimpleNamespace has a `__setattr__` of its own
    plain = sys.version_info >= (3, 13)
    for line in (
        "calls = inputs[1]",
        "t0, = graph((*inputs[:1], (lr / (calls + 1)),))",
        "state.calls = (calls + 1)" if plain else "set_attribute(state, 'calls', (calls + 1))",
        "return (t0, ((calls + 1) % 2))",
    ):
        assert line in lines


def test_constant_numbers_stay_specialized() -> None:
    compiled = check(lambda x, n: x * n, [(X, 3)] * 3)
    (entry,) = entries(compiled)
    assert entry.traced.numbers == () and "graph(inputs)" in entry.source and "number" not in entry.guards


def test_a_changed_number_is_the_reported_reason() -> None:
    found: list[str] = []
    with events.subscribed(lambda e: found.append(str(e.data["failure"])) if e.kind == "recompile" else None):
        check(lambda x, n: x * n, [(X, n) for n in (1, 2, 3)])
    assert len(found) == 1 and found[0].startswith("L['n']: expected 1, found 2")


# ---------------------------------------------------------------------------------------------------- the graphs


def traced_with(fn: Callable[..., Any], *values: Any) -> Any:
    compiled = smelt.compile(fn, backend="aot_eager")
    with torch.no_grad():
        for v in values:
            compiled(X, v)
    return entries(compiled)[-1].traced


def test_numbers_are_inputs_of_both_graphs_after_the_tensors() -> None:
    traced = traced_with(lambda x, lr: torch.add(x, x, alpha=lr) * (lr + 1), 0.5, 0.25)
    for graph in (traced.torch_graph, traced.aten_graph):
        verify_graph.verify(graph)
        assert [n.name for n in graph.placeholders] == ["x", "lr", "lr_add"]
        assert [n.spec for n in graph.placeholders[1:]] == [NumberSpec(float), NumberSpec(float)]
        out = run(graph, (X, 0.75, 1.75))[0]
        assert torch.allclose(out, (X + X * 0.75) * 1.75)
    assert "alpha=lr" in code(traced.torch_graph) and "alpha=lr" in code(traced.aten_graph)
    assert [type(v) for v in traced.example_inputs()] == [torch.Tensor, float, float]


def test_promotion_is_that_of_a_number() -> None:
    traced = traced_with(lambda x, v: (x.sum() * v, x.double() + v, x.bool() * v), 0.5, 0.25)
    assert [f.dtype for f in traced.outputs] == [torch.float32, torch.float64, torch.float32]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool])
@pytest.mark.parametrize("number", [int, float])
def test_every_backend_gives_eagers_values(dtype: torch.dtype, number: type) -> None:
    def fn(x: torch.Tensor, v: Any) -> Any:
        return x * v, x + v, v - x.to(torch.float32), x / v, x > v, torch.where(x > 0, x, v), x.clamp(max=v)

    x = torch.arange(-3, 5).to(dtype)
    for backend in ("eager", "aot_eager", "smelt"):
        compiled = smelt.compile(fn, backend=backend, options={"verify_stages": True})
        with torch.no_grad():
            for k in (2, 3, 5, 7):
                for expected, found in zip(fn(x, number(k)), compiled(x, number(k))):
                    assert expected.dtype is found.dtype and torch.allclose(expected, found)
        assert len(entries(compiled)) == 2


def test_a_foreign_backend_gets_symbols_for_numbers_that_change() -> None:
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        seen.append(examples)
        return gm.forward

    compiled = smelt.compile(lambda x, v: x * v + 1, backend=backend)
    with torch.no_grad():
        for v in (0.5, 0.25, 0.125):
            assert torch.equal(compiled(X, v), X * v + 1)
    assert [type(e) for e in seen[1]] == [torch.Tensor, torch.SymFloat] and len(seen) == 2


def test_operators_without_a_lowering_take_numbers() -> None:
    compiled = check(
        lambda x, n: x.abs().pow(n) + x.norm(n) + torch.remainder(n, x.abs() + 1),
        [(X, n) for n in (1.0, 2.0, 3.0, 4.5)],
    )
    assert len(entries(compiled)) == 2


def test_numbers_too_large_for_a_tensor() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x + n * n * 2

    compiled = check(
        fn, [(X, n) for n in (2, 3, 5, 1 << 31, 1 << 30)]
    )  # one is unsigned, which C++ knows apart
    assert (
        len(entries(compiled)) == 3
        and "abs(((L['n'] * L['n']) * 2)) < 9223372036854775808" in entries(compiled)[1].guards
    )
    with pytest.raises(OverflowError):
        compiled(X, 1 << 40)


def test_gradients_flow_past_numbers() -> None:
    w = torch.ones(4, requires_grad=True)
    compiled = smelt.compile(lambda x, v: torch.add(x * w * v, w, alpha=v).sum())
    for v in (0.5, 0.25, 0.125, 2.0):
        w.grad = None
        compiled(X, v).backward()
        assert torch.allclose(w.grad, X.sum(0) * v + 3 * v)


# ------------------------------------------------------------------------------------------------- the numbers alone


def symbolic(value: Any) -> tuple[Any, list[Any], list[Any]]:
    pinned: list[Any] = []
    required: list[Any] = []
    symbols = Symbols(
        lambda key, now: pinned.append(key), lambda e, expected: required.append((str(e), expected))
    )
    return symbols.leaf("n", value), pinned, required


def test_arithmetic_builds_expressions() -> None:
    n, pinned, required = symbolic(3)
    made = (n + 1) * 2 - n // 2
    assert (
        type(made) is Int
        and made.node.value == 7
        and str(made.node.expression) == "(((n + 1) * 2) - (n // 2))"
    )
    assert type(n / 2) is Float and not pinned and required == [("(n // 2)", int), ("(n / 2)", float)]


def test_comparisons_are_guarded() -> None:
    n, pinned, required = symbolic(3)
    assert (n > 2) is True and (n == 2) is False and bool(n) is True and not pinned
    assert required == [("(n > 2)", True), ("(n == 2)", False), ("(n != 0)", True)]


@pytest.mark.parametrize(
    "use",
    [
        hash,
        str,
        repr,
        float,
        range,
        "abc".__mul__,
        [1, 2, 3, 4].__getitem__,
        math.gcd,
        complex,
        "{:d}".format,
    ],
)
def test_other_code_specializes(use: Callable[[Any], Any]) -> None:
    n, pinned, _ = symbolic(3)
    found = use(n)
    assert found == use(3) and type(found) not in (Int, Float) and pinned == ["n"]


def test_arithmetic_on_a_specialized_number_is_plain() -> None:
    n, pinned, required = symbolic(3)
    assert hash(n) == 3 and type(n + 1) is int and (n > 2) is True
    assert pinned == ["n"] and not required


# ------------------------------------------------------------------------------------------------------- options


def test_dynamic_false_specializes_everything() -> None:
    compiled = smelt.compile(lambda x, n: x * n, dynamic=False)
    with torch.no_grad():
        for n in (1, 2, 3):
            assert torch.equal(compiled(X, n), X * n)
    assert len(entries(compiled)) == 3 and all(e.traced.numbers == () for e in entries(compiled))


def test_a_backend_that_takes_tensors_only() -> None:
    def backend(gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        if not all(isinstance(e, torch.Tensor) for e in examples):
            raise NotImplementedError("a number")
        return gm.forward

    compiled = smelt.compile(lambda x, n: x * n, backend=backend)
    with torch.no_grad():
        for n in (1, 2, 3):
            assert torch.equal(compiled(X, n), X * n)
    assert len(entries(compiled)) == 3


def test_a_bool_among_dynamic_numbers() -> None:
    def fn(x: torch.Tensor, n: int) -> torch.Tensor:
        return x + n + 1

    compiled = smelt.compile(fn)
    for n in (1, 2, 3, True, 4, False, 5):
        torch.testing.assert_close(compiled(torch.ones(2), n), fn(torch.ones(2), n))


class Held:
    v = 0.5


class Keeps(torch.autograd.Function):
    """Its backward uses a number that its forward only keeps."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.v = Held.v
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.v


class Multiplies(Keeps):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.v = Held.v
        return x * Held.v


class Decides(Keeps):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.v = 3.0
        return x * 2 if Held.v > 1 else x * 5


@pytest.mark.parametrize("read_before", [False, True])
@pytest.mark.parametrize("function", [Keeps, Multiplies, Decides])
@pytest.mark.parametrize("backend", ["eager", "smelt"])
def test_custom_functions_read_dynamic_numbers(
    backend: str, function: type[torch.autograd.Function], read_before: bool
) -> None:
    def fn(x: torch.Tensor, held: Held, n: int) -> torch.Tensor:
        y = x * held.v if read_before else x
        return (function.apply(y) * n).sum()  # type: ignore[no-untyped-call, no-any-return]

    def called(f: Callable[..., Any], n: int) -> tuple[Any, Any]:
        x = torch.ones(3, requires_grad=True)
        result = f(x, Held, n)
        return result.detach(), torch.autograd.grad(result, x)[0]

    compiled = smelt.compile(fn, backend=backend)
    try:
        for n, Held.v in ((1, 0.5), (2, 2.0), (3, 0.75), (4, 0.75), (5, 4.0), (6, 4.0)):
            torch.testing.assert_close(called(compiled, n), called(fn, n))
    finally:
        Held.v = 0.5


def test_steps_with_a_custom_function_and_conditions_on_a_table_are_one_graph() -> None:
    """As Runge-Kutta methods of torchdiffeq take them."""

    class Put(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, k: torch.Tensor, value: torch.Tensor, at: Any) -> torch.Tensor:
            ctx.at = at
            k.data[at] = value
            return k

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return gradient, gradient[ctx.at], None

    table = torch.tensor([0.2, 0.5, 1.0])

    def fn(x: torch.Tensor) -> torch.Tensor:
        k = torch.zeros(3, 4)
        for i, part in enumerate(table):
            x = x * 2 if part == 1.0 else x + part
            k = Put.apply(k, x + k[..., : i + 1].sum(-1), (..., i + 1))  # type: ignore[no-untyped-call]
        smelt.graph_break()
        return Put.apply(k, x, (..., 0)) * 3  # type: ignore[no-untyped-call, no-any-return]

    compiled = smelt.compile(fn)
    for _ in range(3):
        results = []
        for f in (compiled, fn):
            x = torch.ones(3, requires_grad=True)
            results.append((f(x).detach(), torch.autograd.grad(f(x).pow(2).sum(), x)[0]))
        torch.testing.assert_close(*results)
    assert inspect.graph_count(compiled) == 2


@pytest.mark.parametrize(
    "fn",
    [
        lambda n: max(n.item(), 1.0),
        lambda n: min(float(n), 2),
        lambda n: max(float(n), int(n)),
        lambda n: (max(n.item(), 2), min([n.item(), 5]), max(float(n), 2.5)),
        lambda n: torch.full((1,), min(n.item(), 1.5)),
    ],
)
def test_extremes_of_numbers_of_two_types(fn):
    compiled = smelt.compile(fn)
    for value in (3, 1, 0, 5, 2):
        got, want = compiled(torch.tensor(value)), fn(torch.tensor(value))
        assert str(got) == str(want)


def test_an_error_of_an_operator_with_a_symbolic_number_has_no_context() -> None:
    def program(x: torch.Tensor, n: int) -> tuple[str, str, str] | torch.Tensor:
        try:
            return n - (x > 0)
        except RuntimeError as error:
            return str(error), repr(error.__context__), repr(error.__cause__)

    compiled = smelt.compile(program, fullgraph=True)
    for n in (1, 2, 3, 3):
        assert compiled(torch.ones(2), n) == program(torch.ones(2), n)


CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "deque": collections.deque,
    "dict": lambda values: {"a": values[0]},
    "nested": lambda values: [(1, (values[0], 2))],
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_native_copies_of_containers_with_slices(kind: str) -> None:
    """A native copy of a container that the program changes holds the slices themselves, whose numbers are guarded then."""

    def program(x: torch.Tensor, values: Any) -> Any:
        if isinstance(values, dict):
            values["b"] = 1
            return x + 1, dict(values), list(values.values())
        values.append(1)
        return x + 1, tuple(values), list(values), values.copy()

    compiled = smelt.compile(program)
    for n in (5, 6, 7, 0, 1):
        x = torch.ones(2)
        found = compiled(x, CONTAINERS[kind]([slice(0, n)]))
        same(found, program(x, CONTAINERS[kind]([slice(0, n)])))


@pytest.mark.parametrize(
    "ignored", [lambda n: n % 3, lambda n: n // 2, lambda n: 2 * n - 5], ids=["%", "//", "*"]
)
def test_a_class_that_a_loss_ignores_is_computed_from_a_number(ignored: Callable[[int], int]) -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        if ignored(n) == 0:
            return x.sum()
        return torch.nn.functional.cross_entropy(x, torch.tensor([0, 0, 0]), ignore_index=ignored(n))

    compiled, gradients = smelt.compile(f, fullgraph=True), []
    for fn in (f, compiled):
        xs = [X.clone().requires_grad_() for _ in range(8)]
        for n, x in enumerate(xs):
            fn(x, n).backward()
        gradients.append([x.grad for x in xs])
    same(gradients[1], gradients[0])
    assert not inspect.reasons(compiled)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, n: x[None, n],
        lambda x, n: x[:, None, n],
        lambda x, n: x[n, None, n, ..., None],
        lambda x, n: x[None, :, None, n, None, 1:],
    ],
)
def test_new_dimensions_before_a_symbolic_index_have_eagers_strides(f: Any) -> None:
    """Indices apply from the left: a new dimension has the stride of the dimension that is selected after it."""
    x = torch.randn(4, 5, 6)
    compiled = smelt.compile(f, fullgraph=True)
    for n in (1, 2, 3, -1):
        expected, found = f(x, n), compiled(x, n)
        same(found, expected)
        assert found.stride() == expected.stride()
