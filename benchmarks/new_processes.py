"""Many tasks in a few processes, which are replaced by new ones: one that has compiled thousands of programs is slower."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

T = TypeVar("T")

TASKS = 20  # of a process


def results(task: Callable[..., T], arguments: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[T]:
    """What `task` returns for each tuple of `arguments`, in the order in which they are done, in `jobs` processes."""
    context = multiprocessing.get_context("spawn")
    # `max_tasks_per_child` can hang: https://github.com/python/cpython/issues/115634
    for at in range(0, len(arguments), jobs * TASKS):
        with ProcessPoolExecutor(jobs, context) as pool:
            tasks = [pool.submit(task, *given) for given in arguments[at : at + jobs * TASKS]]
            for done in as_completed(tasks):
                yield done.result()
