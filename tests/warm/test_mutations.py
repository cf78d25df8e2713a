"""A stored entry serves the program that it was stored for, and none that differs in what decides (`harness/mutations.py`).

`python -m benchmarks.sweep_warm_starts` checks all mutations, these tests a few of each program.
"""

import collections.abc
import itertools

import pytest

from tests.harness import mutations

FEW = 12


@pytest.mark.parametrize("way", mutations.WAYS)
@pytest.mark.parametrize("name", mutations.PROGRAMS)
def test_mutated_programs_find_no_entry_that_is_wrong(name, way):
    if way == "gradients" and name in mutations.WITHOUT_GRADIENTS:
        pytest.skip("it writes to its arguments")
    source, how = mutations.PROGRAMS[name], mutations.WAYS[way]
    edited = [tree for _, tree in mutations.edits(source)]
    changes = list(mutations.CHANGES.values())
    at = list(mutations.PROGRAMS).index(name)  # other ones for each program
    few = FEW if not way else FEW // 3
    with mutations.stored(source, how):
        assert mutations.hits(lambda: mutations.load(source, how), way=how)
        for tree in itertools.islice(edited, at, None, len(edited) // few + 1):
            mutations.hits_if_it_runs(tree, how)
        for change in itertools.islice(changes, at, None, len(changes) // few + 1):
            mutations.hits(lambda: mutations.load(source, how), change, how)


@pytest.mark.parametrize(
    "change",
    [
        "forward hook", "global hook", "training of module 0", "parameters as torch.float64", "submodules swapped",
        "a block less",
        "float attributes", "methods replaced", "class attributes", "F.gelu patched", "Linear.forward patched",
        "code of Module._call_impl", "default dtype", "grad mode", "autocast", "option fuse", "arguments: float64",
    ],
)  # fmt: skip
def test_what_decides_is_compared(change):
    source = mutations.PROGRAMS["module"]
    name = change.replace("F.", "torch.nn.functional.")
    with mutations.stored(source):
        assert not mutations.hits(lambda: mutations.load(source), mutations.CHANGES[name])


NAMED_TUPLE = """
import torch
from typing import NamedTuple
class Out(NamedTuple):
    value: torch.Tensor
    label: str
def run(x):
    out = Out(x * 2, "a")
    return out, out.value + 1
def make():
    return run, (torch.ones(3),), {}
"""
LOCAL_CLASS = """
import torch
from torch import nn
def make():
    class Inner(nn.Module):
        def forward(self, x):
            return self.twice(x) + 1
        def twice(self, x):
            return x * 2
        def other(self, x):
            return x * 5
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Inner(), Inner()
        def forward(self, x):
            return self.a(x) + (self.b(x) if isinstance(self.b, Inner) else x)
    return Outer().eval(), (torch.ones(3),), {}
"""
LOCAL_FUNCTION = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.act = act
    def forward(self, x):
        return self.act(x)
def make():
    scale = 2
    def act(x):
        return x.relu() * scale
    return Model(act).eval(), (torch.ones(3),), {}
"""


@pytest.mark.parametrize(
    "source, edits",
    [
        (NAMED_TUPLE, [("value: torch", "v: torch"), ("torch.Tensor\n    label: str", "str\n    label: torch.Tensor")]),
        (NAMED_TUPLE, [("label: str", "label: str\n    more: int = 3")]),
        (LOCAL_CLASS, [("return x * 2", "return x * 3"), ("self.twice(x)", "self.other(x)"), ("x * 5", "x * 6")]),
        (LOCAL_FUNCTION, [("x.relu() * scale", "x.relu() + scale"), ("scale = 2", "scale = 3"), ("(act)", "(nn.ReLU())")]),
    ],
)  # fmt: skip
def test_definitions_are_compared(source, edits):
    with mutations.stored(source):
        assert mutations.hits(lambda: mutations.load(source))
        for before, after in edits:
            assert before in source
            assert not mutations.hits(lambda: mutations.load(source.replace(before, after)))


ABSTRACT = """
import torch, collections.abc
class Bag:
    factor = 2.0
def run(x, bag):
    if isinstance(bag, collections.abc.Sequence):
        x = x * 3
    return x + bag.factor
def make():
    return run, (torch.ones(3), Bag()), {}
"""


def test_registrations_with_abstract_classes_are_compared_and_not_their_number():
    def register(program):
        collections.abc.Sequence.register(program.module.Bag)

    with mutations.stored(ABSTRACT):
        collections.abc.Mapping.register(type("Other", (), {}))
        assert mutations.hits(lambda: mutations.load(ABSTRACT))
        assert not mutations.hits(lambda: mutations.load(ABSTRACT), register)


OUT_OF_RANGE = """
import torch
def run(x, i):
    return x[i].exp() + 1
def make():
    return run, (torch.ones(3), torch.tensor([0, 2])), {}
"""


def test_an_operator_raises_as_in_eager():
    with mutations.stored(OUT_OF_RANGE):
        assert mutations.hits(lambda: mutations.load(OUT_OF_RANGE.replace("[0, 2]", "[0, 7]")))


@pytest.mark.parametrize("change", ["global numbers", "Conv2d._conv_forward patched", "arguments: a view"])
def test_what_decides_nothing_is_not(change):
    source = mutations.PROGRAMS["module"]
    with mutations.stored(source):
        assert mutations.hits(lambda: mutations.load(source), mutations.CHANGES[change])
