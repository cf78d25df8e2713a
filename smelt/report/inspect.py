"""Contents of a compiled callable: its entries (guards, compiled source, kernels) and the reasons for eager calls."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from smelt.backends.smelt import inference_schedules
from smelt.capture.driver.cache_entries import Entry, Record, entries_of, reasons_of, records_of
from smelt.config import Config, defaults
from smelt.reasons import Reason
from smelt.runtime.compiled_callables import native_callable
from smelt.schedule.schedule_printer import print_schedule
from smelt.torch_private import original_of_torch_compile


def code_of(compiled: Callable[..., Any]) -> CodeType:
    """The code object that keys the cache of a compiled callable. Raises TypeError for other objects."""
    wrapped = native_callable(compiled)
    if wrapped is None:
        in_place = getattr(compiled, "_compiled_call_impl", None)
        is_torchs = in_place is not None or original_of_torch_compile(compiled) is not compiled
        why = "torch.compile captured it, not smelt.compile" if is_torchs else "it is not compiled"
        raise TypeError(f"smelt has no entries of it, because {why}: {compiled!r}")
    code: CodeType = wrapped.__wrapped__.__code__
    return code


def entries(compiled: Callable[..., Any]) -> list[Entry]:
    """The compiled entries of the function itself, oldest first; resume functions have their own (`records`)."""
    return entries_of(code_of(compiled))


def reasons(compiled: Callable[..., Any]) -> tuple[Reason, ...]:
    """Why `compiled` is not one graph: reasons of eager calls, then of graph breaks. Empty if each call was captured
    as one graph."""
    return reasons_of(code_of(compiled))


def records(compiled: Callable[..., Any]) -> list[tuple[str, Record]]:
    """(name, record) of the function and of each of its resume functions. A record has `entries`, `reasons`, `breaks`."""
    return records_of(code_of(compiled))


def graph_count(compiled: Callable[..., Any]) -> int:
    """The number of graphs compiled for `compiled` and its resume functions; entries without computation do not count."""
    return sum(entry.computes for _, record in records(compiled) for entry in record.entries)


def source(compiled: Callable[..., Any]) -> str:
    """All compiled frames as Python source: the function's, then those of its resume functions."""
    return "\n".join(entry.source for _, record in records(compiled) for entry in record.entries)


def kernels(compiled: Callable[..., Any], config: Config | None = None) -> str:
    """The kernels of all graphs as nested loops, the ATen calls between them, and the reasons against fusion.

    These are the kernels of calls without gradients under `config` (None: the defaults). With gradients, a graph is cut
    into a forward and a backward, whose kernels differ. A generated matrix product, convolution or pooling appears as
    the ATen call that it replaces. Raises Unsupported for tensors on a device without a target.
    """
    found = [entry.traced for _, record in records(compiled) for entry in record.entries if entry.computes]
    schedules = [
        schedule for traced in found for schedule in inference_schedules(traced, config or defaults())
    ]
    return "\n\n".join(map(print_schedule, schedules))
