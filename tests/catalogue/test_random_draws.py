"""Programs that draw random numbers with Python's `random` and with `numpy.random`."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import smelt
from tests.harness.catalogue import Changing, asserts_on_gpu, leaf, program, tensor

# ------------------------------------------------------------------------------------------- numbers in tensors


@program(graphs=1)
def numbers_of_every_method():
    def fn(x):
        y = x * random.random() + random.uniform(1, 2) - random.randint(1, 10)
        return y * random.choice([1, 2, 3]) + random.gauss(0, 1), random.triangular(0, 1, 0.5)

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def numbers_of_a_generator_from_outside():
    rng = random.Random(5)

    def fn(x):
        return x * rng.random(), rng.randint(1, 9), rng.sample(range(10), 3), rng.choices([0.5, 0.25], k=2)

    return fn, [(tensor(3),)] * 3, lambda: rng.getstate()[1][:5]


@program(graphs=1)
def arithmetic_with_drawn_numbers():
    def fn(x):
        scale = (random.random() - 0.5) / 2
        return x * max(random.random(), 0.5) + int(random.random() * 10), abs(scale), round(random.random())

    return fn, [(tensor(3),)] * 3


@program(graphs=1, later=2)
def bounds_that_change_between_calls():
    class Schedule:
        width = 0.5

    schedule = Schedule()

    def fn(x):
        schedule.width += 0.125
        return x * random.uniform(0, schedule.width)

    return fn, [(tensor(3),)] * 4, schedule


@program(graphs=0, breaks=["random-state"] * 3)
def bounds_that_stand_ahead_in_an_iterator():
    rng = random.Random(0)

    def fn():
        seen = []
        for scale in 0.0, 2.5:
            for _ in range(2):
                drawn = rng.vonmisesvariate(0.0, scale)
                assert drawn < 10  # the graph breaks here, with both loops on the stack
                seen.append(drawn)
        return seen

    return fn, [()] * 3


@program(graphs=1, later=2)
def numbers_that_are_stored_and_printed():
    seen = []

    def fn(x):
        seen.append(random.random())
        print("drawn", f"{random.random():.3f}")
        return {"a": x * seen[-1]}

    return fn, [(tensor(3),)] * 3, seen


@program(graphs=1)
def gradients_with_drawn_numbers():
    def fn(x):
        return (x**2 * random.uniform(1, 2) + torch.from_numpy(np.random.rand(3)).float()).sum()

    return fn, [(leaf(3),)] * 3


# -------------------------------------------------------------------------------------- numbers that decide


@program(graphs=1, later=1, breaks=["random-state"])
def a_layer_that_is_skipped_now_and_then():
    layer = nn.Linear(3, 3).requires_grad_(False)

    def fn(x):
        if random.random() < 0.5:
            return x + 1
        return layer(x)

    return fn, [(tensor(3),)] * 8


@program(graphs=1)
def decisions_that_every_number_makes_alike():
    def fn(x):
        if random.random() < 0.0 or random.random() >= 1 or random.randint(1, 6) > 6:
            return x
        return x * random.random()

    return fn, [(tensor(3),)] * 3


@program(graphs=0, breaks=["random-state"])
def a_number_that_is_an_index():
    def fn(x):
        return x[random.randint(0, 2)]

    return fn, [(tensor(3),)] * 8


# ------------------------------------------------------------------------------------------ what goes wrong


@asserts_on_gpu
@program(graphs=1)
def a_graph_that_raises_has_drawn_nothing():
    def fn(x, at):
        scale = random.random()
        try:
            y = x[at] * scale
        except IndexError:
            y = x * random.random() * np.random.rand()
        return y, np.random.uniform()

    return fn, [(tensor(3), torch.tensor(i)) for i in (1, 7, 2, 7)]


@asserts_on_gpu
@program(graphs=1)
def a_graph_that_raises_leaves_what_a_generator_keeps_for_later():
    old, rng = np.random.RandomState(3), random.Random(3)

    def fn(x, at):
        return x[at] * old.normal() * rng.gauss(0, 1) + torch.from_numpy(old.normal(size=(3,)))

    return (
        fn,
        [(tensor(3, 3), torch.tensor(i)) for i in (1, 7, 2, 7, 0)],
        lambda: (str(old.get_state()), rng.getstate()),
    )


@program(graphs=0)
def a_draw_that_raises():
    def fn(x):
        try:
            random.randint(5, 1)
        except ValueError as error:
            return str(error), random.random()

    return fn, [(tensor(3),)] * 3


@program(graphs=1, breaks=["random-state"])
def what_a_draw_leaves_in_its_generator():
    rng = random.Random(3)

    def fn(x):
        y = x * rng.gauss(0, 1)
        return y, rng.gauss_next is None

    return fn, [(tensor(3),)] * 4


@program(graphs=2, breaks=["random-state"])
def a_generator_of_another_class():
    class Constant(random.Random):
        def random(self):
            return 0.25

    rng = Constant(1)

    def fn(x):
        return x * rng.random() + rng.uniform(0, 1)

    return fn, [(tensor(3),)] * 3


@program(graphs=1, breaks=["random-state"])
def generators_that_are_seeded_inside():
    def fn(x):
        random.seed(3)
        np.random.seed(4)
        return x * random.random() + np.random.rand(), random.getstate()[1][0]

    return fn, [(tensor(3),)] * 3


def scaled(x):
    return (x * random.random()).sin()


@program(graphs=2, later=1, breaks=["random-state", "random-state", "random-state", "random-state"])
def draws_of_a_function_that_the_graph_calls():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.scale = random.random()
            return x * ctx.scale

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.scale * random.random()

    def fn(x):
        return Scaled.apply(x * random.random()) + checkpoint(scaled, x, use_reentrant=False)

    return fn, [(leaf(3),)] * 3


# ---------------------------------------------------------------------------------------------------- NumPy


@program(graphs=1)
def arrays_of_numpy():
    def fn(x):
        noise = np.random.rand(3)
        noise *= 2
        order, table = np.random.permutation(3), np.random.randint(0, 5, size=(2, 2))
        return torch.from_numpy(noise) + x, torch.from_numpy(order), table, noise

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def numbers_of_numpy():
    old, new = np.random.RandomState(3), np.random.default_rng(3)

    def fn(x):
        return x * old.uniform() + old.randint(5) + new.random() * new.normal(), new.standard_normal((2,))

    return fn, [(tensor(3),)] * 3, lambda: (old.get_state()[2], new.bit_generator.state["state"])


@program(graphs=1, breaks=["data-dependent-value", "random-state"])
def scalars_of_numpy():
    def fn(x):
        return x + np.random.default_rng(3).integers(5)

    return fn, [(tensor(3),)] * 3


def test_second_derivatives_with_an_array_that_only_the_graph_has():
    def fn(w):
        return (w**2 + torch.from_numpy(np.random.rand(3))).sum()

    def second(fn):
        np.random.seed(0)
        w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        (first,) = torch.autograd.grad(fn(w), w, create_graph=True)
        return torch.autograd.grad(first.sum(), w)[0]

    torch.testing.assert_close(second(smelt.compile(fn)), second(fn))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
def test_every_backend(backend):
    def fn(x):
        return x * random.random() + torch.from_numpy(np.random.rand(3))

    def run(fn):
        random.seed(1), np.random.seed(1)
        return [fn(torch.ones(3)) for _ in range(3)], random.getstate(), np.random.rand()

    got, want = run(smelt.compile(fn, backend=backend)), run(fn)
    torch.testing.assert_close(got[0], want[0])
    assert got[1:] == want[1:]


@program(graphs=1, later=2, breaks=["random-state"])
def a_method_of_the_generators_class_is_replaced():
    original = random.Random.random
    drawn = []

    def fixed(self):
        drawn.append(1)
        return 0.25

    def fn(x):
        return x * random.gammavariate(1.0, 2.0)

    changes = {
        1: lambda: setattr(random.Random, "random", fixed),
        2: lambda: delattr(random.Random, "random"),
    }
    return fn, Changing([(tensor(3),)] * 3, changes), lambda: len(drawn)


@program(graphs=1)
def seeds_inside_of_all_generators():
    def fn(x, seed):
        random.seed(seed), np.random.seed(4)
        torch.manual_seed(seed + 1)
        first = torch.rand(3) * random.random()
        return first, torch.nn.functional.dropout(x), np.random.rand(), x * random.randint(1, 9)

    return fn, [(tensor(3), 3)] * 3


@program(graphs=2, breaks=["random-state"])
def a_seed_after_torch_has_drawn():
    def fn(x):
        noise = torch.rand(3)
        torch.manual_seed(7)
        return x + noise, torch.rand(3), torch.manual_seed is torch.random.manual_seed or x

    return fn, [(tensor(3),)] * 3


@program(graphs=1)
def a_seed_before_a_graph_that_raises():
    def fn(x, i):
        torch.manual_seed(5)
        y = torch.rand(3)
        return (x + y).index_select(0, i), torch.rand(1)

    return fn, [(tensor(3), torch.tensor([2]))] * 2 + [(tensor(3), torch.tensor([3]))] * 2


@program(graphs=1, later=2)
def a_generator_created_from_an_argument():
    def fn(x, seed):
        rng = random.Random(seed)
        rows = [x, x + 1, x * 2]
        return (
            rng.choice(rows) * rng.uniform(1, 2),
            rng.sample(range(9), 3),
            rng.choices("abc", k=2),
            rng.gauss(0, 1),
        )

    return fn, [(tensor(3), seed) for seed in (1, 1, 2, "a")]


@program(graphs=1)
def states_of_generators():
    outer, kept = random.Random(5), [None]

    def fn(x):
        made = random.Random(9)
        y = x * made.gauss(0, 1) + outer.random()
        outer.setstate(made.getstate())
        kept[0] = made
        return y * outer.uniform(1, 2), made.random()

    return fn, [(tensor(3),)] * 3, lambda: (outer.getstate(), kept[0] and kept[0].getstate())


@program(graphs=1)
def a_state_that_is_none():
    rng = random.Random(5)

    def fn(x):
        try:
            rng.setstate((3, (1, 2), None))
        except ValueError as error:
            return x * rng.random(), str(error)

    return fn, [(tensor(3),)] * 3, rng.getstate


def test_a_created_generator_that_leaves_has_its_state():
    def fn(x):
        rng = random.Random(7)
        return x * rng.random(), rng

    compiled = smelt.compile(fn, fullgraph=True)
    x = tensor(3)
    found = [compiled(x)[1] for _ in range(2)]
    assert found[0] is not found[1] and all(rng.getstate() == fn(x)[1].getstate() for rng in found)
