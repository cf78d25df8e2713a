"""Tracing with example inputs: nothing outside of the graph changes, and the graph computes or refuses what eager does."""

import collections
import copy
import random
import traceback
import warnings

import pytest
import torch
from torch import nn

import smelt
from smelt import fx


class Holds(nn.Module):
    """A module of one leaf and of a function of it."""

    def __init__(self, function, leaf=None):
        super().__init__()
        self.leaf = nn.Linear(4, 4) if leaf is None else leaf
        self.other = nn.Linear(4, 4)
        self.function = function
        self.notes = {}
        self.register_buffer("buffer", torch.ones(4))

    def forward(self, x):
        return self.function(self, x)


def sets_buffer(self, x):
    self.buffer = self.buffer * 2
    return x + self.buffer


def sets_entry(self, x):
    self.notes["x"] = x * 2
    return x + 1


def appends(self, x):
    SEEN.append(x * 2)
    return x + len(SEEN)


SEEN: list = []


@pytest.mark.parametrize("form", [{}, {"level": "aten"}, {"dynamic": True}], ids=str)
@pytest.mark.parametrize("function", [sets_buffer, sets_entry, appends])
def test_effects_are_warned_of_and_not_applied(function, form):
    module, x = Holds(function), torch.randn(3, 4)
    buffers = dict(module._buffers)
    with pytest.warns(
        UserWarning, match=rf"test_captured_calls.py:\d+ in {function.__name__}; the graph does not"
    ):
        traced = smelt.symbolic_trace(module, example_inputs=(x,), **form)
    assert module._buffers == buffers and not module.notes and not SEEN
    torch.testing.assert_close(traced(x), function(copy.deepcopy(module), x))
    SEEN.clear()


def test_an_exception_of_the_program_leaves_its_objects():
    def fails(self, x):
        self.notes["x"] = 1
        self.buffer.add_(1)
        torch.rand(1)
        raise KeyError("mine")

    module, generator = Holds(fails), torch.get_rng_state()
    with pytest.raises(KeyError, match="mine") as caught:
        smelt.symbolic_trace(module, example_inputs=(torch.ones(4),))
    assert not module.notes and torch.equal(module.buffer, torch.ones(4))
    assert torch.equal(torch.get_rng_state(), generator)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "fails"


def test_random_numbers_of_python_are_refused():
    before = random.getstate()
    for dynamic in (False, True):
        with pytest.raises(smelt.errors.SmeltError, match="random"):
            smelt.symbolic_trace(
                lambda x: x * random.random(), example_inputs=(torch.ones(2),), dynamic=dynamic
            )
    assert random.getstate() == before


def test_constants_are_removed_after_an_error():
    def returns_object(self, x):
        return x * CONSTANT, OBJECT

    module = Holds(returns_object)
    with pytest.raises(smelt.errors.SmeltError, match="the result holds a object"):
        smelt.symbolic_trace(module, example_inputs=(torch.ones(4),))
    assert [name for name, _ in module.named_buffers()] == ["buffer"]


CONSTANT = torch.tensor([1.0, 2.0, 3.0, 4.0])
OBJECT = object()


def autocast(self, x):
    with torch.autocast("cpu", torch.bfloat16):
        y = self.leaf(x)
    return y, self.leaf(x)


def without_gradients(self, x):
    with torch.no_grad():
        y = self.leaf(x)
    return y, self.leaf(x)


def other_weight(self, x):
    return torch.func.functional_call(self.leaf, {"weight": self.other.weight}, (x,))


def computed_weight(self, x):
    return torch.func.functional_call(self.leaf, {"weight": self.leaf.weight * 2}, (x,))


def changes_slope(self, x):
    self.leaf.negative_slope = 0.5
    first = self.leaf(x)
    self.leaf.negative_slope = 0.1
    return first, self.leaf(x)


class FreezesItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            y = self.linear(x)
        return y * self.linear(x)


@pytest.mark.parametrize(
    "function, leaf",
    [
        (autocast, None),
        (without_gradients, None),
        (other_weight, None),
        (computed_weight, None),
        (changes_slope, nn.LeakyReLU()),
        (lambda self, x: self.leaf(self.leaf(x)), FreezesItself()),
    ],
    ids=["autocast", "no_grad", "other weight", "computed weight", "changed attribute", "settings inside"],
)
def test_a_call_of_a_leaf_is_a_node_only_where_it_computes_the_same(function, leaf):
    module, x = Holds(function, leaf), torch.randn(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the attribute
        traced = smelt.symbolic_trace(
            module, example_inputs=(x,), leaves=[nn.Linear, nn.LeakyReLU, FreezesItself]
        )
    ours, theirs = (torch.utils._pytree.tree_leaves(f(x)) for f in (traced, module))
    for a, b in zip(ours, theirs, strict=True):
        assert a.requires_grad == b.requires_grad
        torch.testing.assert_close(a, b)


def total(x, values):
    return sum(values.values() if isinstance(values, dict) else values, x)


@pytest.mark.parametrize(
    "first, second, message",
    [
        (1, 2, r"values has length 2, the graph was traced with one that has length 1"),
        (1, 0, r"values has length 0"),
        ("a", "ab", r"values has the keys \['a', 'b'\], .* that has the keys \['a'\]"),
        ("ab", "ba", r"values has the keys \['b', 'a'\]"),
    ],
)
def test_containers_of_other_lengths_and_keys_are_refused(first, second, message):
    def values(n):
        return [torch.ones(2)] * n if isinstance(n, int) else {name: torch.ones(2) for name in n}

    traced = smelt.symbolic_trace(total, example_inputs=(torch.ones(2), values(first)))
    torch.testing.assert_close(traced(torch.ones(2), values(first)), total(torch.ones(2), values(first)))
    with pytest.raises(smelt.errors.SmeltError, match=message):
        traced(torch.ones(2), values(second))


def test_objects_among_the_arguments_are_refused():
    class Settings:
        scale = 2

    with pytest.raises(smelt.errors.SmeltError, match="the argument settings holds a Settings"):
        smelt.symbolic_trace(
            lambda x, settings: x * settings.scale, example_inputs=(torch.ones(2), Settings())
        )


def test_defaults():
    def program(x, pair=(1, 2), n=3, *, z, dtype=torch.float64):
        return (x * pair[0] + n + z).to(dtype)

    x, z = torch.ones(2), torch.zeros(2)
    traced = smelt.symbolic_trace(program, example_inputs=(x,), example_kwargs={"z": z})
    torch.testing.assert_close(traced(x, z=z), program(x, z=z))
    with pytest.raises(smelt.errors.SmeltError, match="z is None"):
        traced(x)
    nan = smelt.symbolic_trace(lambda x, n: x * n, example_inputs=(x, float("nan")))
    assert nan(x, float("nan")).isnan().all()


def test_a_parameter_as_an_argument_is_an_input_of_its_own():
    module = nn.Linear(2, 2, bias=False)
    traced = smelt.symbolic_trace(module, example_inputs=(module.weight,))
    torch.testing.assert_close(traced(torch.eye(2)), module(torch.eye(2)))


def halves(x):
    return x.new_zeros(x.shape[0] // 2) if x.shape[0] % 2 == 0 else x


def larger(x, y):
    return x.sum() + y.sum() if x.shape[0] > y.shape[0] else y.sum()


@pytest.mark.parametrize(
    "program, example, fits, differs",
    [
        (halves, (4,), (6,), (5,)),
        (larger, (5, 3), (6, 4), (3, 5)),
        (lambda s0, x: s0 * x, (3, 3), (5, 5), (5, 6)),
    ],
    ids=["divisible", "compared", "the name of a size"],
)
def test_conditions_on_sizes_are_checked(program, example, fits, differs):
    inputs = lambda sizes: tuple(map(torch.ones, sizes))  # noqa: E731
    traced = smelt.symbolic_trace(program, example_inputs=inputs(example), dynamic=True)
    torch.testing.assert_close(traced(*inputs(fits)), program(*inputs(fits)))
    with pytest.raises(smelt.errors.SmeltError, match="the graph was traced with"):
        traced(*inputs(differs))


def test_sizes_in_the_result_are_those_of_the_call():
    def program(x):
        return x * 2, x.shape, x.shape[0] * 2, x.numel(), x.shape[0] / 2

    traced = smelt.symbolic_trace(program, example_inputs=(torch.ones(3, 4),), dynamic=True)
    for rows in (3, 7):
        ours, theirs = traced(torch.ones(rows, 4)), program(torch.ones(rows, 4))
        assert ours[1:] == theirs[1:] and list(map(type, ours)) == list(map(type, theirs))


def test_programs_that_compute_nothing():
    x = torch.ones(2)
    program = lambda x, y: ([x], 3, collections.OrderedDict(y=y))  # noqa: E731
    traced = smelt.symbolic_trace(program, example_inputs=(x, x + 1))
    assert str(traced(x, x + 1)) == str(program(x, x + 1))
    assert isinstance(traced, fx.GraphModule)
