"""Views, in-place writes and shared storages: results, arguments and what shares memory with what are eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.harness.agreement import calls_agree


def counted(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape)


LAYOUTS = {
    "contiguous": lambda: counted(3, 3),
    "transposed": lambda: counted(3, 3).t(),
    "strided": lambda: counted(6, 6)[::2, ::2],
    "offset": lambda: counted(4, 3)[1:],
}


def several_views(x: Any) -> Any:
    row, column, turned, diagonal = x[0], x[:, 0], x.t(), x.diagonal()
    row.add_(1)
    column.mul_(2)
    turned[1].sub_(3)
    diagonal.fill_(7)
    x[1, 1:] = row[:2]
    row.copy_(column)
    row += turned[0] * 2
    return row, column, turned, diagonal, x.sum()


def item_assignment(x: Any) -> Any:
    x[1:3] = x[1:3] * 2
    x[..., 0] = 5
    x[x > 6] = -1
    x[[0, 1]] = x[[1, 0]]
    x[torch.tensor([0]), torch.tensor([1])] = 99
    x[None, 2] *= 2
    x[:, [0, 2]] += 1
    return x


def mutates_and_returns(x: Any) -> Any:
    x.mul_(2)
    return x, x[0], x.t(), x + 1


def reductions_of_itself(x: Any) -> Any:
    x.mul_(x.sum())
    x.sub_(x.mean(0))
    return x.softmax(0)


def reversed_reads(x: Any) -> Any:
    x.add_(x.flip(0))
    return x * x.flip(1)


def adds_its_transpose(x: Any) -> Any:
    x += x.t()
    return x


def copies_its_transpose(x: Any) -> Any:
    return x.copy_(x.t())


def shifts_itself(x: Any) -> Any:
    x[1:] = x[:-1]
    return x


def intermediate(x: Any) -> Any:
    y = x * 1
    y[0].add_(1)
    y.t().relu_()
    y[0] = y[1].clone()
    return y, y.t(), y[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "program",
    [
        several_views, item_assignment, mutates_and_returns, reductions_of_itself, reversed_reads, adds_its_transpose,
        copies_its_transpose, shifts_itself, intermediate,
    ],
    ids=lambda p: p.__name__,
)  # fmt: skip
def test_writes(program: Any, layout: str) -> None:
    def seen(compile: Any) -> Any:
        c = compile(program)
        for _ in range(2):
            x = LAYOUTS[layout]()
            try:
                yield c(x)
            except RuntimeError as error:
                yield str(error)
            yield x

    calls_agree(seen)


def test_a_scalar_written_through_a_view_and_reduced() -> None:
    def seen(compile: Any) -> Any:
        c, x = compile(lambda x: x.t().add_(2).sum()), torch.ones(())
        yield c(x), x
        c, x = compile(lambda x: x.add_(1).roll(2, 0).squeeze().amin()), torch.ones(1)
        yield c(x), x

    calls_agree(seen)


def test_arguments_that_share_memory() -> None:
    def write_one(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2

    def write_both(x: Any, y: Any) -> Any:
        x.add_(y)
        y.mul_(2)
        return x, y

    def seen(compile: Any) -> Any:
        for f in (write_one, write_both):
            for order in (0, 1):
                c, base = compile(f), counted(6)
                pairs = [(counted(3), counted(3)), (base[:3], base[1:4]), (base, base), (base[:3], base[3:])]
                for x, y in pairs[::-1] if order else pairs:
                    try:
                        yield c(x, y), x, y
                    except RuntimeError as error:
                        yield str(error), x, y

    calls_agree(seen)


def test_swapped_arguments() -> None:
    def swap(x: Any, y: Any) -> None:
        held = x.clone()
        x.copy_(y)
        y.copy_(held)

    def seen(compile: Any) -> Any:
        c = compile(swap)
        for _ in range(2):
            x, y = counted(3), -counted(3)
            c(x, y)
            yield x, y

    calls_agree(seen)


def test_views_that_are_returned_share_memory() -> None:
    def seen(compile: Any) -> Any:
        c, x = compile(lambda x: (x.view(-1), x.t(), x[1:], x)), counted(2, 3)
        got = c(x)
        got[0].mul_(10)
        yield got, x, got[3] is x
        c = compile(lambda x: (x * 2).unsqueeze(0).expand(2, 2, 3))
        yield c(x).stride()
        c = compile(lambda x: [y := x * 2, y.view(-1), y[0]])
        got = c(x)
        got[1].zero_()
        yield got

    calls_agree(seen)


def test_inputs_whose_elements_share_memory() -> None:
    def seen(compile: Any) -> Any:
        expanded, overlapping = counted(1, 3).expand(4, 3), counted(6).as_strided((3, 3), (1, 1))
        for f in (lambda x: (x + 1, x.sum(0), x.contiguous(), x.reshape(-1)), lambda x: x.add_(1)):
            c = compile(f)
            for x in (expanded, overlapping):
                try:
                    yield c(x), x
                except RuntimeError as error:
                    yield str(error)

    calls_agree(seen)


def test_metadata_changed_in_place() -> None:
    def own(x: Any) -> Any:
        y = x * 2
        y.t_()
        y.unsqueeze_(0)
        return y

    def outside(x: Any) -> Any:
        x.t_()
        return x

    def gradient(x: Any) -> Any:
        x.requires_grad_(True)
        return x.requires_grad

    def seen(compile: Any) -> Any:
        for f in (own, outside, gradient):
            c, x = compile(f), counted(2, 3)
            yield c(x), x.shape, x.requires_grad

    calls_agree(seen)
