"""Results that are conjugate, negative or real views of memory that others see: eager's values, layouts, bits, who shares
memory with whom, gradients, and writes that all of them see."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import smelt
from smelt.report.inspect import reasons

View = Callable[[torch.Tensor], torch.Tensor]
VIEWS: dict[str, View] = {
    "itself": lambda z: z,
    "conjugate": lambda z: z.conj(),
    "real": lambda z: z.real,
    "imaginary": lambda z: z.imag,
    "negative": lambda z: z.conj().imag,
    "pairs": lambda z: torch.view_as_real(z),
    "row": lambda z: z[0],
    "conjugate row": lambda z: z[0].conj(),
    "adjoint": lambda z: z.mH,
}
PAIRS = list(itertools.permutations(VIEWS, 2))


def seen(results: Sequence[torch.Tensor]) -> list[Any]:
    """What a program sees of these: of each, and who shares memory."""
    each = [
        (t.dtype, t.shape, t.stride(), t.storage_offset(), t.is_conj(), t.is_neg(), t.requires_grad)
        for t in results
    ]
    places = [t.untyped_storage().data_ptr() for t in results]
    return [each, [a == b for a, b in itertools.combinations(places, 2)]]


def values(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [t.detach().resolve_conj().resolve_neg().clone() for t in results]


@pytest.mark.parametrize("written", [False, True], ids=["computed", "written"])
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_two_views(pair: tuple[str, str], grad: bool, written: bool) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = torch.complex(x, y)
        if written:
            z = z * 1
            z.mul_(2j)
        return tuple(VIEWS[name](z) for name in pair)

    compiled = smelt.compile(f)
    outcomes = []
    for call in (f, compiled):
        torch.manual_seed(0)
        x, y = (torch.randn(2, 3, dtype=torch.float64, requires_grad=grad) for _ in range(2))
        results = call(x, y)
        found = [seen(results), values(results)]
        if grad:
            sum(t.abs().square().sum() for t in results).backward()  # type: ignore[union-attr]
            found.append([x.grad, y.grad])
        else:
            results[0].mul_(3)
            found.append(values(results))
        outcomes.append(found)
    want, got = outcomes
    assert got[0] == want[0]
    torch.testing.assert_close(got[1:], want[1:], rtol=1e-12, atol=1e-12)
    assert not reasons(compiled)


Pair = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]
KEPT: dict[str, Pair] = {
    "a conjugate of what a product reads": lambda a, b: (a.conj(), a * b),
    "behind the product": lambda a, b: (a * a, a.conj()),
    "of what a conjugate product reads": lambda a, b: (a.conj(), a * b.conj()),
    "of a matrix": lambda a, b: (a.conj(), a @ b.mH),
    "of its own norm": lambda a, b: (a.conj(), a * torch.vdot(a.flatten(), a.flatten()).abs()),
    "a factor beside the product": lambda a, b: (a * b.conj(), b),
    "a part of a factor": lambda a, b: (a * b.conj(), b.narrow(0, 0, 2), b.t()),
    "a product of products": lambda a, b: ((a @ b.mH) @ a, a + b),
    "a negative part": lambda a, b: (a.conj().imag, a * b),
    "parts that may be empty": lambda a, b: (
        torch.cat([a[: len(a) // 2], b, a[len(a) // 2 :]]),
        a.split(len(a) // 2)[0].real,
    ),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("f", KEPT.values(), ids=KEPT.keys())
def test_gradients_of_what_is_kept(f: Pair, dynamic: bool) -> None:
    """The backward reads values that lie in the memory of results, or flow into others, with other signs."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return f(torch.complex(x, y), torch.complex(y, x * 0.5))

    compiled = smelt.compile(program, dynamic=dynamic)
    for shape in ((3, 4), (5, 7)):
        outcomes = []
        for call in (program, compiled):
            torch.manual_seed(0)
            x, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
            results = call(x, y)
            sum(t.abs().square().sum() for t in results).backward()  # type: ignore[union-attr]
            outcomes.append([values(results), [x.grad, y.grad]])
        torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-9, atol=1e-9)
    assert not reasons(compiled)


COMPUTED_WITH: dict[str, View] = {
    "negative": lambda z: z.conj().imag,
    "a row of the negative": lambda z: z.conj().imag[0],
    "a part of the negative": lambda z: z.conj().imag.split(1, 1)[1],
    "conjugate": lambda z: z.conj(),
    "of an adjoint": lambda z: z.mH.imag,
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("given", [False, True], ids=["computed", "given"])
@pytest.mark.parametrize("view", COMPUTED_WITH.values(), ids=COMPUTED_WITH.keys())
def test_a_view_that_is_returned_and_computed_with(
    view: View, given: bool, grad: bool, dynamic: bool
) -> None:
    def f(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        w = z if given else z * 2
        t = view(w)
        return t.sin(), t, t + 1, (w * 1j).real

    compiled = smelt.compile(f, dynamic=dynamic)
    for shape in ((3, 4), (5, 7)):
        outcomes = []
        for call in (f, compiled):
            torch.manual_seed(0)
            z = torch.randn(shape, dtype=torch.complex128, requires_grad=grad)
            results = call(z)
            found = [seen([*results, z]), values(results)]
            if grad:
                sum(t.abs().square().sum() for t in results).backward()  # type: ignore[union-attr]
                found.append(z.grad)
            else:
                results[1].mul_(3)
                found.append(values([*results, z]))
            outcomes.append(found)
        want, got = outcomes
        assert got[0] == want[0]
        torch.testing.assert_close(got[1:], want[1:], rtol=1e-9, atol=1e-9)
    assert not reasons(compiled)
