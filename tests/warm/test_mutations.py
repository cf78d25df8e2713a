"""A stored entry serves the program that it was stored for, and none that differs in what decides (`harness/mutations.py`).

`python -m benchmarks.sweep_warm_starts` checks all mutations, these tests a few of each program.
"""

import itertools

import pytest

from tests.harness import mutations

FEW = 12


@pytest.mark.parametrize("name", mutations.PROGRAMS)
def test_mutated_programs_find_no_entry_that_is_wrong(name):
    source = mutations.PROGRAMS[name]
    edited = [tree for _, tree in mutations.edits(source)]
    changes = list(mutations.CHANGES.values())
    at = list(mutations.PROGRAMS).index(name)  # other ones for each program
    with mutations.stored(source):
        assert mutations.hits(lambda: mutations.load(source))
        for tree in itertools.islice(edited, at, None, len(edited) // FEW + 1):
            mutations.hits_if_it_runs(tree)
        for change in itertools.islice(changes, at, None, len(changes) // FEW + 1):
            mutations.hits(lambda: mutations.load(source), change)


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


@pytest.mark.parametrize("change", ["global numbers", "Conv2d._conv_forward patched", "arguments: a view"])
def test_what_decides_nothing_is_not(change):
    source = mutations.PROGRAMS["module"]
    with mutations.stored(source):
        assert mutations.hits(lambda: mutations.load(source), mutations.CHANGES[change])
