"""Compiled functions in forked processes: what the parent compiled answers, and the child compiles what is new."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import smelt
from smelt.report.inspect import entries, reasons


def in_child(work: Callable[[], Any], seconds: int = 120) -> None:
    """Runs `work` in a forked process. Raises AssertionError with its traceback, or when it takes too long."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(seconds)  # ends a child that stands still
            torch.set_num_threads(1)  # as DataLoader's workers do: OpenMP's threads are not inherited
            with torch.no_grad():
                work()
            status = 0
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as text:
        assert status == 0, f"status {status}: {text.read()}"


def program(x: Any) -> Any:
    return F.gelu(x @ x.t()).softmax(-1)


def agree(compiled: Any, fn: Any, *shape: int) -> None:
    x = torch.randn(shape)
    torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-5)


def test_compiled_before_the_fork() -> None:
    compiled = smelt.compile(program)
    with torch.no_grad():
        agree(compiled, program, 8, 8)

    def work() -> None:
        agree(compiled, program, 8, 8)  # number of threads is another: compiled anew
        agree(compiled, program, 3, 8)
        assert not reasons(compiled), reasons(compiled)[0]

    in_child(work)
    with torch.no_grad():
        agree(compiled, program, 8, 8)
    assert len(entries(compiled)) == 1  # what the child compiled stays there


def test_compiled_in_the_child() -> None:
    def work() -> None:
        net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)).eval()
        compiled = smelt.compile(net)
        agree(compiled, net, 4, 8)
        assert len(entries(compiled)) == 1 and not reasons(compiled)

    in_child(work)


def test_a_child_of_a_child() -> None:
    compiled = smelt.compile(program)

    def work() -> None:
        agree(compiled, program, 8, 8)
        in_child(lambda: agree(compiled, program, 4, 8))

    in_child(work)


def test_fork_while_another_thread_compiles() -> None:
    done = threading.Event()
    compiling: list[int] = []
    x = torch.randn(8)  # not by the thread: the lock of torch's generator is not smelt's to hold

    def compile_forever() -> None:
        with torch.no_grad():
            while not done.is_set():
                k = float(len(compiling))
                smelt.compile(lambda x: torch.sin(x) * k + x.cos())(x)
                compiling.append(1)

    thread = threading.Thread(target=compile_forever, daemon=True)
    thread.start()
    compiled = smelt.compile(program)
    try:
        for _ in range(6):
            in_child(lambda: agree(compiled, program, 8, 8))
            time.sleep(0.03)
    finally:
        done.set()
        thread.join(60)
    assert not thread.is_alive() and compiling


def test_fork_while_another_thread_is_inside_llvm() -> None:
    """As it is when that thread frees the code of a function that nobody holds any more."""
    inside = threading.Event()

    def stay() -> None:
        with llvmlite.binding.ffi.lib._lock:
            inside.set()
            time.sleep(0.5)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    compiled = smelt.compile(lambda x: x.tan() * 3 - x)
    in_child(lambda: agree(compiled, lambda x: x.tan() * 3 - x, 7), 20)
    thread.join()


class Rows(Dataset[torch.Tensor]):
    """Each row is computed by functions compiled in the parent and in the worker."""

    def __init__(self) -> None:
        self.early = smelt.compile(program)
        self.late: Any = None

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.late is None:
            self.late = smelt.compile(lambda x: torch.tanh(x) * 2)
        x = torch.full((4, 4), float(index) / 10)
        with torch.no_grad():
            return self.late(self.early(x))


def test_workers_of_a_data_loader() -> None:
    rows = Rows()
    with torch.no_grad():
        rows.early(torch.ones(4, 4))
        want = [torch.tanh(program(torch.full((4, 4), i / 10))) * 2 for i in range(12)]
        got = [row for batch in DataLoader(rows, batch_size=3, num_workers=2) for row in batch]
    torch.testing.assert_close(torch.stack(got), torch.stack(want), rtol=1e-4, atol=1e-5)
