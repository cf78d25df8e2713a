"""Programs that ask for what only the graph knows, where it mostly is what capture assumes."""

from __future__ import annotations

import torch
from torch.library import EffectType

from tests.harness.catalogue import BREAKS, leaf, program, tensor


@program(graphs=1)
def equal_or_raise():
    def fn(x, y):
        if not torch.equal(x, y):
            raise ValueError("not equal")
        if not torch.allclose(x, y) or not (x.allclose(y, atol=0.5) and x.equal(y)):
            raise ValueError("far")
        return x + y

    same = tensor(3)
    return fn, [(same, same.clone()), (same, same + 1), (same, same.clone()), (same, same * float("nan"))]


@program(graphs=1, later=1)
def different_or_raise():
    def fn(x, y):
        if torch.equal(x, y):
            raise ValueError("equal")
        if torch.allclose(x, y, equal_nan=True):
            raise ValueError("close")
        return (x * y).sum()

    same = leaf(3)
    return fn, [(same, leaf(3)), (same, same.detach().clone()), (same, leaf(3))]


@program(graphs=0, breaks=["data-dependent-value"])
def equal_to_itself_whatever_it_holds():
    def fn(x):
        if torch.equal(x, x):
            raise ValueError("equal")
        return x

    return fn, [(torch.tensor([float("nan")]),)] * 3


@program(graphs=2, breaks=["data-dependent-value"])
def comparisons_that_are_values():
    def fn(x, y):
        return x + 1, torch.equal(x, y), [a.equal(b) for a, b in ((x, y), (x, x))], torch.allclose(x, y)

    return fn, [(tensor(3), tensor(3))] * 3


@program(graphs=1)
def counts_of_known_length():
    def fn(x):
        counts = torch.bincount(x, minlength=6)
        return counts / counts.sum(), x.bincount(minlength=4)

    return fn, [
        (torch.tensor(values),) for values in ([1, 2, 2, 3], [0, 0, 3, 1], [1, 9, 2, 2], [1, -1, 2, 2])
    ]


@program(graphs=1)
def counts_in_a_handler():
    def fn(x):
        try:
            return torch.bincount(x, minlength=4) * 2
        except RuntimeError as error:
            return str(error)

    return fn, [(torch.tensor(values),) for values in ([1, 2, 3], [0, -1, 3], [5, 0, 1])]


@program(graphs=1)
def filled_with_a_number_in_a_tensor():
    def fn(x, t):
        return (
            x.new_full((2, 2), t),
            torch.full((3,), t),
            x.new_full(size=(2,), fill_value=t, dtype=torch.float64),
        )

    return fn, [(tensor(3), torch.tensor(n, dtype=torch.uint8)) for n in (7, 200, 0)]


@program(graphs=1)
def filled_with_floats_and_bools():
    def fn(x, t, b):
        return torch.full([2], t), x.new_full((1,), b), torch.full((), b), torch.full((2,), fill_value=t)

    return fn, [(tensor(3), torch.tensor(n), torch.tensor(n > 0)) for n in (0.5, -2.0, float("inf"))]


@program(graphs=1)
def filled_with_what_may_not_fit():
    def fn(x, t):
        return x * 2, torch.full((2,), t, dtype=torch.int8)

    return fn, [(tensor(3), torch.tensor(n)) for n in (7, 300, -128)]


# ------------------------------------------------------------------------ operators that must not run once more

RAN: list[str] = []


@torch.library.custom_op("assumed::report", mutates_args=())
def report(x: torch.Tensor) -> None:
    RAN.append("report")


@report.register_fake
def _(x):
    return None


@torch.library.custom_op("assumed::count", mutates_args=("counter",))
def count(counter: torch.Tensor) -> None:
    RAN.append("count")
    counter.add_(1)


@torch.library.custom_op("assumed::registered", mutates_args=())
def registered(x: torch.Tensor) -> torch.Tensor:
    RAN.append("registered")
    return x.clone()


@registered.register_fake
def _(x):
    return torch.empty_like(x)


if hasattr(registered, "register_effect"):
    registered.register_effect(EffectType.ORDERED)


def ran() -> list[str]:
    """What ran since the last call of this function."""
    found = [*RAN]
    RAN.clear()
    return found


def selections():
    """Two masks; those of the third and fifth call select other numbers of elements."""
    counts = [(2, 2), (3, 3), (2, 3), (4, 4), (3, 1)]
    return [(tensor(5), torch.arange(5) < a, torch.arange(5) < b) for a, b in counts]


def attempted(fn, *args):
    try:
        return fn(*args)
    except RuntimeError as e:
        return type(e).__name__


@program(graphs=2, later=3, breaks=["data-dependent-shape"])
def an_operator_reports_before_sizes_are_equal():
    def fn(x, a, b):
        report(x)
        return attempted(lambda: x[a] + x[b])

    return fn, selections(), ran


@program(graphs=2, later=2, breaks=["data-dependent-shape"] * 2)
def an_operator_with_an_effect_runs_between_two_sizes():
    def fn(x, a, b):
        first = x[a]
        y = registered(x)
        return attempted(lambda: first + y[b])

    return fn, selections(), ran


@program(graphs=1)
def an_operator_reports_behind_the_last_size():
    def fn(x, a, b):
        total = x[a] + x[a]
        report(total)
        return total, x[a] * 2

    return fn, selections(), ran


@program(graphs=2, later=3, breaks=["data-dependent-condition"], eager=["user-exception"], options=BREAKS)
def an_operator_counts_before_a_condition():
    def fn(x, counter):
        count(counter)
        if x.sum() > 3:
            raise ValueError("too large")
        return x * counter

    return fn, [(torch.ones(n), torch.zeros(1)) for n in (2, 2, 5, 1)], ran
