"""Errors are effects: what raises in eager raises compiled, whoever reads its result, and leaves the same state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.report.inspect import entries
from tests.harness.agreement import compare, observe
from tests.harness.catalogue import asserts_on_gpu

Program = Callable[..., Any]
FAR = torch.tensor([0, 9])
SINGULAR = torch.zeros(3, 3)
X = torch.arange(16.0).reshape(4, 4) - 5

# name -> an operator of (x, other), and what it raises for
RAISING: dict[str, tuple[Program, torch.Tensor, torch.Tensor]] = {
    "inv": (lambda x, _: torch.linalg.inv(x), SINGULAR, FAR),
    "solve": (lambda x, b: torch.linalg.solve(x, b), SINGULAR, torch.ones(3)),
    "cholesky": (lambda x, _: torch.linalg.cholesky(x), -torch.eye(3) - 1, FAR),
    "cholesky_inverse": (lambda x, _: torch.cholesky_inverse(x - 1), torch.ones(3, 3), FAR),
    "lu_factor": (lambda x, _: torch.linalg.lu_factor(x), SINGULAR, FAR),
    "tensorsolve": (lambda x, b: torch.linalg.tensorsolve(x, b), SINGULAR, torch.ones(3)),
    "matrix_power": (lambda x, _: torch.linalg.matrix_power(x, -2), SINGULAR, FAR),
    "inv_ex": (lambda x, _: torch.linalg.inv_ex(x, check_errors=True), SINGULAR, FAR),
    "eigh": (lambda x, _: torch.linalg.eigh(x / x.sum()), SINGULAR * torch.nan, FAR),
    "svd": (lambda x, _: torch.linalg.svd(x / 0), SINGULAR, FAR),
    "assert_async": (lambda x, _: torch._assert_async((x > 99).all()), X, FAR),
    "assert_async_message": (lambda x, _: torch._assert_async((x > 99).any(), "small"), X, FAR),
    "gather": (lambda x, i: x.gather(0, i[None]), X, FAR),
    "index_select": (lambda x, i: x.index_select(0, i), X, FAR),
    "index": (lambda x, i: x[:, i], X, FAR),
    "take": (lambda x, i: x.take(i * 3), X, FAR),
    "embedding": (lambda x, i: F.embedding(i, x), X, FAR),
    "embedding_bag": (lambda x, i: F.embedding_bag(i[None], x), X, FAR),
    "index_put": (lambda x, i: x.index_put((i,), torch.ones(4)), X, FAR),
    "index_put_": (lambda x, i: x.index_put_((i,), torch.ones(4)), X, FAR),
    "index_add": (lambda x, i: x.index_add(0, i, torch.ones(2, 4)), X, FAR),
    "index_copy": (lambda x, i: x.index_copy(0, i, torch.ones(2, 4)), X, FAR),
    "index_fill": (lambda x, i: x.index_fill(0, i, 2.0), X, FAR),
    "scatter": (lambda x, i: x.scatter(0, i[None], 1.0), X, FAR),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(0, i[None], torch.ones(1, 2), "amax"), X, FAR),
    "masked_scatter": (lambda x, _: x.masked_scatter(x == x, x[0]), X, FAR),
    "floor_divide": (lambda x, i: x.long() // (i[0] * 2), X, FAR),
    "remainder": (lambda x, _: x.long() % 0, X, FAR),
    "fmod": (lambda x, i: torch.fmod(x.long(), i[0]), X, FAR),
    "div_trunc": (lambda x, i: torch.div(x.long(), i[0], rounding_mode="trunc"), X, FAR),
    "cross_entropy": (lambda x, i: F.cross_entropy(x[:2], i), X, FAR),
    "smoothed_cross_entropy": (lambda x, i: F.cross_entropy(x[:2], i, label_smoothing=0.1), X, FAR),
    "binary_cross_entropy": (lambda x, _: F.binary_cross_entropy(x, x), X, FAR),
    "multi_margin_loss": (lambda x, i: F.multi_margin_loss(x[:2], i), X, FAR),
    "multinomial": (lambda x, _: torch.multinomial(x - 100, 2), X, FAR),
    "bernoulli": (lambda x, _: torch.bernoulli(x), X, FAR),
    "poisson": (lambda x, _: torch.poisson(x), X, FAR),
    "normal": (lambda x, _: torch.normal(x, x), X, FAR),
    "quantile_of_several": (lambda x, _: torch.quantile(x, x[:2, 0] / 50, dim=0), X, FAR),
    "quantile_method": (lambda x, q: x.quantile(q, dim=0), X, torch.tensor([0.5, 1.001])),
    "nanquantile": (lambda x, q: x.nanquantile(q=q), X, torch.tensor([torch.nan, 0.5])),
    "cov": (lambda x, i: torch.cov(x, fweights=i[[0, 1, 1, 0]] - 5), X, FAR),
    "istft": (lambda x, _: torch.istft(x + 0j, 6, window=x[0, :1].expand(6) * 0), X, FAR),
    "bincount": (lambda _, i: torch.bincount(-i, minlength=3), X, FAR),
    "one_hot": (lambda _, i: F.one_hot(i, 4), X, FAR),
    "histc": (lambda x, _: torch.histc(x / 0), X, FAR),
    "quantile": (lambda x, i: torch.quantile(x, i[1] * 0.2), X, FAR),
    "searchsorted": (lambda x, i: torch.searchsorted(x[0], x[0], sorter=i.repeat(2)), X, FAR),
    "max_unpool": (lambda x, i: F.max_unpool1d(x[None, :, :2], i.expand(1, 4, 2), 2), X, FAR),
    "repeat_interleave": (lambda x, i: x[:2].repeat_interleave(-i, 0), X, FAR),
}  # fmt: skip


def raises_alike(program: Program, *arguments: Any, times: int = 2) -> None:
    """Two calls: the one that is captured, and one that finds an entry."""
    compiled = smelt.compile(program)
    for _ in range(times):
        fresh = lambda: tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments)  # noqa: E731
        want = observe(program, fresh(), 0)
        assert want.error is not None
        compare(observe(compiled, fresh(), 0), want)


@pytest.mark.parametrize("name", RAISING)
def test_the_result_is_returned(name: str) -> None:
    raises_alike(*RAISING[name])


@pytest.mark.parametrize("name", RAISING)
def test_nobody_reads_the_result(name: str) -> None:
    operator, x, other = RAISING[name]

    def program(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        operator(x, other)
        return x + 1

    raises_alike(program, x, other)


@asserts_on_gpu
@pytest.mark.parametrize("name", RAISING)
def test_writes_before_it_stay_and_those_after_it_do_not_happen(name: str) -> None:
    operator, x, other = RAISING[name]

    def program(x: torch.Tensor, other: torch.Tensor, seen: list[int]) -> torch.Tensor:
        x.add_(1)
        torch.rand(3)
        seen.append(1)
        operator(x - 1, other)
        seen.append(2)
        torch.rand(3)
        x.mul_(2)
        return x

    compiled = smelt.compile(program)
    for _ in range(2):
        want, got = (observe(f, (x.clone(), other.clone(), []), 0) for f in (program, compiled))
        assert want.error is not None and want.arguments[2] == [1]
        compare(got, want)


@pytest.mark.parametrize("name", ["index_put_", "index_add", "cross_entropy", "solve"])
def test_an_input_that_requires_gradients(name: str) -> None:
    operator, x, other = RAISING[name]

    def program(x: torch.Tensor, count: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        y = x * 2
        operator(y, other)
        return (x * 3).sum()

    compiled = smelt.compile(program)
    for _ in range(2):
        arguments = [(x.clone().requires_grad_(), torch.zeros(1), other.clone()) for _ in range(2)]
        compare(observe(compiled, arguments[0], 0), observe(program, arguments[1], 0))
        assert arguments[0][1].item() == 1


def test_a_loss_of_which_only_the_gradient_is_returned() -> None:
    def program(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(F.cross_entropy(x[:2], target), x)[0]

    x = X.clone().requires_grad_()
    compiled = smelt.compile(program)
    for _ in range(2):
        compare(observe(compiled, (x, FAR), 0), observe(program, (x, FAR), 0))


def test_a_handler_around_it() -> None:
    def program(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, str]:
        x.add_(1)
        try:
            x[index]
        except IndexError as error:
            x.mul_(2)
            return x, str(error)
        return x, ""

    compiled = smelt.compile(program)
    for index in (FAR, FAR.clamp(max=3), FAR):
        compare(observe(compiled, (X.clone(), index), 0), observe(program, (X.clone(), index), 0))


def test_an_operator_of_the_users_own() -> None:
    with torch.library._scoped_library("smelt_test_errors", "FRAGMENT") as library:
        library.define("positive(Tensor x) -> Tensor")

        def positive(x: torch.Tensor) -> torch.Tensor:
            if x.min() < 0:
                raise ValueError("negative")
            return x.clone()

        library.impl("positive", positive, "CPU")
        library.impl("positive", torch.empty_like, "Meta")

        def program(x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            torch.ops.smelt_test_errors.positive(x)
            return x.mul_(2)

        raises_alike(program, X)


def test_nothing_to_read_raises_nothing_and_indices_of_nothing_do() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x[i], x.index_select(0, i), F.embedding(i, x), x.long() // i[:0].sum()
        return x + 1

    compiled = smelt.compile(program)
    for x, i in ((X, FAR[:0]), (X[:0], FAR), (X[:0], FAR[:0])):
        compare(observe(compiled, (x, i), 0), observe(program, (x, i), 0))


TEXTS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: _raise(RuntimeError(f"bad input {[x, 1.0]}")),
    lambda x: _raise(RuntimeError("bad input", [x], {"x": x + 1})),
    lambda x: _raise(ValueError(x * 2)),
    lambda x: _raise(KeyError("%s of %r" % (x, [x]))),  # noqa: UP031
    lambda x: _raise(RuntimeError("bad {} {:>12}".format([x, 2], str(x.shape)))),  # noqa: UP032
    lambda x: {}[x],
]


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("program", TEXTS)
def test_a_text_or_an_argument_of_an_exception_shows_a_tensor(program: Callable[[torch.Tensor], Any]) -> None:
    for fullgraph in (True, False):
        compiled = smelt.compile(program, fullgraph=fullgraph)
        for n in (2, 3, 4):
            x = torch.arange(float(n))
            got, want = observe(compiled, (x,), 0), observe(program, (x,), 0)
            assert want.error is not None
            assert (type(got.error), str(got.error)) == (type(want.error), str(want.error))


def test_a_text_that_shows_a_size_does_not_specialize_it() -> None:
    def program(x):
        if x.shape[0] > 6:
            raise ValueError(f"{x.shape[0]} rows in {tuple(x.shape)}")
        return x * 2

    compiled = smelt.compile(program)
    for n in (3, 4, 5, 7, 8, 9, 6):
        raised = observe(compiled, (torch.ones(n),), 0), observe(program, (torch.ones(n),), 0)
        assert str(raised[0].error) == str(raised[1].error)
    assert len(entries(compiled)) == 2


@pytest.mark.parametrize("value", [True, False, 1])
@pytest.mark.parametrize("is_leaf", [True, False])
def test_a_flag_that_eager_does_not_set(value: object, is_leaf: bool) -> None:
    """`requires_grad = value` raises for a tensor that is no leaf, also if nothing changes, and for other values."""

    def assign(x: torch.Tensor) -> bool:
        x.requires_grad = value  # type: ignore[assignment]
        return x.requires_grad

    def outcome(fn: Program) -> Any:
        x = torch.ones(2, requires_grad=True)
        try:
            return fn(x if is_leaf else x * 1)
        except (RuntimeError, TypeError) as error:
            return type(error), str(error)

    assert outcome(smelt.compile(assign)) == outcome(assign)


NORMS: dict[str, Program] = {
    "batch": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True),
    "running": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)),
    "layer": lambda x: F.layer_norm(x, (4,), torch.ones(4)),
    "group": lambda x: F.group_norm(x, 2, torch.ones(4)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_of_a_dtype_that_its_parameters_do_not_have(name: str, dtype: torch.dtype) -> None:
    def caught(x: torch.Tensor) -> Any:
        try:
            return NORMS[name](x).dtype
        except RuntimeError as error:
            return str(error)

    x = torch.randn(300, 4, dtype=dtype)
    assert smelt.compile(caught)(x) == caught(x)


@pytest.mark.parametrize("start", ["a", b"a", bytearray(b"a")])
def test_errors_of_sums_and_unpackings(start: Any) -> None:
    def caught(x: torch.Tensor, fn: Program) -> str:
        try:
            return str(fn(x))
        except TypeError as error:
            return str(error)

    for fn in (lambda x: sum((), start), lambda x: sum([start], start=start), lambda x: [*start, *x.ndim]):
        x = torch.ones(2)
        assert smelt.compile(caught)(x, fn) == caught(x, fn)

    compiled = smelt.compile(lambda x, value: [x, *value])
    with pytest.raises(TypeError, match=r"Value after \* must be an iterable, not int"):
        compiled(torch.ones(2), 3)
