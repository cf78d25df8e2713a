"""Shared set-up: deterministic seeds, a folder for what is kept on disk, processes with a simulated device."""

import contextlib
import ctypes
import gc
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings

import smelt
from tests.harness import simulated
from tests.harness.catalogue import DEVICE
from tests.harness.settings import close_autocasts
from tests.simulated import compiled

assert smelt.unavailable is None, smelt.unavailable

# The same examples at each run, so that a change is judged by what it changes. SMELT_RANDOM=1 looks for others.
settings.register_profile("same", derandomize=True)
if not os.environ.get("SMELT_RANDOM"):
    settings.load_profile("same")


# Also of the processes that tests start: none reads what the user's programs keep, or adds to it.
_KEPT = tempfile.TemporaryDirectory(prefix="smelt-tests-")
os.environ["SMELT_CACHE_DIR"] = _KEPT.name

if not torch.cuda.is_available():
    # Read when triton is imported, by whichever test is first: printed kernels then run on CPU tensors.
    os.environ.setdefault("TRITON_INTERPRET", "1")


class _NoStack:
    """In place of `traceback` in torch's modules of a device that is absent. These format the stack at each `manual_seed`,
    which takes longer than most tests, and keep it."""

    @staticmethod
    def format_stack() -> list[str]:
        return []


for _device_module in (torch.cuda, torch.xpu, torch.mtia):
    if not _device_module.is_available():
        _device_module.traceback = _NoStack


def pytest_configure(config: pytest.Config) -> None:
    """In the processes of tests with a simulated device, it is there before anything asks for one."""
    config.addinivalue_line("markers", "simulated_cuda: runs where `cuda` is simulated, in another process")
    if simulated.inside() or (DEVICE == "cuda" and not torch.cuda.is_available()):
        compiled.activate()


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Random constants of a module are the same whatever was imported before it."""
    if isinstance(collector, pytest.Module):
        torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that needs the simulated device runs in another process, which is asked for the outcome."""
    if not simulated.inside():
        for item in items:
            if item.get_closest_marker("simulated_cuda"):
                simulated.run_elsewhere(item)


def pytest_collection_finish() -> None:
    """What was imported and collected is no garbage: `smelt.reset()` would look through it, for half a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests run side by side, those of a file stay together, and those that share a process."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return simulated.process_of(super()._split_scope(nodeid))

        def remove_node(self, node: Any) -> Any:
            """Do not run a test again that crashed its worker."""
            ended_it = super().remove_node(node)
            for tests in self.workqueue.values():
                if ended_it in tests:
                    tests[ended_it] = True
            return ended_it

    return Scheduling(config, log)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What is left after a file, modules and operator databases most of all, is no garbage: tests that collect garbage, a
    hundred times and more, would look through it each time."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def _references() -> int:
    """The references to an argument of a Python function."""

    def referred(value: object) -> int:
        return sys.getrefcount(value)

    return referred(object())


REFERENCES = _references()


def _remove_frame_hook() -> None:
    """Remove the hook that torch.compile leaves in the process where a backend raised: each Python call then holds a
    reference more to its arguments, and eager programs observe other lifetimes."""
    python = ctypes.pythonapi
    python.PyInterpreterState_Get.restype = ctypes.c_void_p
    interpreter = ctypes.c_void_p(python.PyInterpreterState_Get())
    python._PyInterpreterState_SetEvalFrameFunc(interpreter, python._PyEval_EvalFrameDefault)


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    """The same start for all tests; none may leave an autocast open, or closed twice: its cache of cast weights would
    answer later tests."""
    torch.manual_seed(0)
    logging.getLogger("smelt").setLevel(logging.NOTSET)
    # torch's operator database, imported by some test, forbids to set flags such as cudnn.benchmark.
    torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
    yield
    assert close_autocasts() == 0
    assert torch._C._dynamo.eval_frame.get_eval_frame_callback() is None, (
        "torch.compile's frame hook is still there"
    )
    if _references() != REFERENCES:
        _remove_frame_hook()
    if "smelt.shared_compilations" in sys.modules:  # tests of one function count their own compilations
        sys.modules["smelt.shared_compilations"].forget()


@pytest.fixture
def two_threads() -> Iterator[None]:
    """torch, and so compiled code, has two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _device(request: pytest.FixtureRequest) -> Iterator[None]:
    """With SMELT_DEVICE, what tests/parity makes is made there (tests/catalogue sees to that itself)."""
    on_device = DEVICE != "cpu" and request.path.parent.name == "parity"
    with torch.device(DEVICE) if on_device else contextlib.nullcontext():
        yield
