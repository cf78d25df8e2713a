"""What the native core reads by layout is tried when smelt is imported; where a trial fails, everything runs eagerly."""

import gc
import sys
import threading

import pytest
import torch

from smelt import _native
from tests.harness.processes import run

NAMES = {
    "attributes of instances",
    "dictionaries",
    "changes of dictionaries",
    "versions of classes",
    "data of code objects",
    "sets",
    "iterators",
    "enumerate and zip",
    "iterators of itertools",
    "frames",
    "the recursion limit",
    "the garbage collector",
    "dtypes, devices and layouts",
    "tensors",
    "autograd's metadata",
}


def test_all_layouts_are_known_here():
    assert _native.probe() == dict.fromkeys(NAMES)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_whatever_mode_torch_is_in(mode):
    with mode():
        assert set(_native.probe().values()) == {None}


def test_in_another_thread_and_with_another_recursion_limit():
    found = []
    thread = threading.Thread(target=lambda: found.append(_native.probe()))
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 123)
    try:
        thread.start()
        thread.join()
        assert set(_native.probe().values()) | set(found[0].values()) == {None}
        assert sys.getrecursionlimit() == before + 123
    finally:
        sys.setrecursionlimit(before)


def test_a_trial_leaves_the_collector_as_it_was():
    was = gc.isenabled()
    try:
        for enable, wanted in ((gc.disable, False), (gc.enable, True)):
            enable()
            _native.probe()
            assert gc.isenabled() == wanted
    finally:
        (gc.enable if was else gc.disable)()


# Python or torch say something else of an object than what is read from its memory.
PLANTED = [
    ("torch.Tensor.is_conj = lambda self: False", "tensors", "conjugated"),
    ("torch.Tensor.stride = lambda self: (3, 1)", "tensors", "strides"),
    ("torch.Tensor._version = 7", "tensors", "how often"),
    ("torch.Tensor.requires_grad_ = lambda self: self", "autograd's metadata", "requires grad"),
    ("torch.Tensor._backward_hooks = None", "autograd's metadata", "hooks"),
    ("torch.float64 = torch.float32", "dtypes, devices and layouts", "dtype"),
    ("torch.sparse_coo = torch.strided", "dtypes, devices and layouts", "layout"),
    ("torch.device = lambda text: type('Device', (), {})()", "dtypes, devices and layouts", "device"),
    ("sys.getrecursionlimit = lambda: 77", "the recursion limit", "another limit"),
    ("gc.get_count = lambda: (0, 0, 0)", "the garbage collector", "number of new objects"),
]


@pytest.mark.parametrize("planted, name, what", PLANTED)
def test_where_a_trial_fails_everything_runs_eagerly(planted, name, what):
    found = run(
        f"""
import gc, json, sys, torch, warnings
{planted}
import smelt
def f(x): return x + 1
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    same = smelt.compile(f) is f
[told] = said
print(json.dumps([same, smelt.unavailable, str(told.message)]))
"""
    )
    same, unavailable, told = found
    assert same and unavailable in told and "\n" not in unavailable
    assert f"{name} (" in unavailable and what in unavailable
